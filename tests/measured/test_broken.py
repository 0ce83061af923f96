"""Files of measured times that are broken: each kind is found, and said with its line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.base.errors import BadMeasurement
from tuner.base.names import Algorithm, Collective, DataType, P2pOperation, Protocol
from tuner.machine import catalogue
from tuner.times import measured
from tuner.times.calibration import plausible
from tuner.times.measured import Kind
from tuner.times.measured.header import Header, MeasuredRun
from tuner.times.measured.samples import Combination, Forced, Measurements, Point, SampleBlock

FIVE = "collective,dtype,gpus,bytes,time_us"
TWELVE = "source_id,collective,dtype,nodes,gpus_per_node,bytes,time_us,in_place,algorithm,protocol,channels,notes"
HEALTHY = measured.load("h100-8x__2.29.2__aiconfigurator")
TOPOLOGY = catalogue.load("dgx-h100").topology


def parsed(content: str) -> Measurements:
    return measured.parse("given", content, "given.csv")


def changed(change: Callable[[SampleBlock], SampleBlock]) -> Measurements:
    return replace(HEALTHY, blocks=tuple(map(change, HEALTHY.blocks)))


def of(operation: Collective | P2pOperation, nodes: int, nbytes: int) -> SampleBlock:
    return SampleBlock(Point(operation, nbytes), None, None, (1.0,), shape=(nodes, 8))


def kinds(table: Measurements) -> set[Kind]:
    return {problem.kind for problem in measured.problems(table)}


def test_five_columns_are_of_one_node_and_out_of_place() -> None:
    (row,) = parsed(f"{FIVE}\nall_reduce,half,8,1024,9.5\n").blocks
    assert row == SampleBlock(Point(Collective.AllReduce, 1024, DataType.float16), None, None, (9.5,), shape=(1, 8))
    assert row.line == 2


def test_twelve_columns_keep_what_was_forced_and_make_runs_of_notes() -> None:
    note = "NCCL 22903; arm NCCL_ALGO=Ring; NVIDIA B200"
    table = parsed(f"{TWELVE}\njob-1,AllReduce,float32,2,8,1048576,120.5,1,Ring,LL128,12,{note}\n")
    (row,) = table.blocks
    assert (row.requested, row.executed) == (None, Combination(Algorithm.Ring, Protocol.LL128, 12))
    assert row.point.in_place is True
    assert row.ranks == 16
    assert table.header.nccl == "2.29.3"
    assert table.header.gpu == "B200"
    assert table.environment_of(row) == {"NCCL_ALGO": "Ring"}


RUNS = """# [runs]
# default = {what = ""}
# arm = {what = ""}
# ring = {what = "", environment = {NCCL_ALGO = "Ring"}}
"""
RING_LL, FORCED_RING = Combination(Algorithm.Ring, Protocol.LL, 2), Forced("Ring", "", 0)


@pytest.mark.parametrize(
    ("run", "columns", "requested", "executed"),
    [
        ("arm", "Ring,LL,2", RING_LL, None),
        ("arm", "Ring,,", FORCED_RING, None),
        ("arm", ",,", None, None),
        ("default", "Ring,LL,2", None, RING_LL),
        ("ring", "Ring,LL,2", None, RING_LL),
        ("ring", "Ring,,", FORCED_RING, None),
    ],
)
def test_columns_are_what_was_forced_or_what_a_log_says_that_ran(
    run: str, columns: str, requested: object, executed: object
) -> None:
    names = "collective,dtype,nodes,gpus_per_node,bytes,time_us,algorithm,protocol,channels,run"
    (row,) = parsed(f"{RUNS}{names}\nallreduce,float,1,8,1024,9.5,{columns},{run}\n").blocks
    assert (row.requested, row.executed) == (requested, executed)
    if requested == FORCED_RING:
        with pytest.raises(BadMeasurement, match="only Ring was forced, and NCCL chose the rest"):
            _ = row.combination
    else:
        assert row.combination == requested


@pytest.mark.parametrize("word", ["all_gather", "AllGather", "allgather", "all_gather_perf", "ALL-GATHER"])
def test_collectives_in_any_spelling(word: str) -> None:
    assert parsed(f"{FIVE}\n{word},half,2,1024,9.5\n").blocks[0].point.operation is Collective.AllGather


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("half", DataType.float16),
        ("float", DataType.float32),
        ("double", DataType.float64),
        ("bf16", DataType.bfloat16),
        ("char", DataType.int8),
        ("int8", DataType.int8),
        ("fp8_e4m3", DataType.float8e4m3),
    ],
)
def test_types_in_any_spelling(word: str, dtype: DataType) -> None:
    assert parsed(f"{FIVE}\nallreduce,{word},2,1024,9.5\n").blocks[0].point.dtype is dtype


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("all_redduce,half,8,1024,9.5", "unknown collective 'all_redduce'"),
        ("allreduce,haff,8,1024,9.5", "unknown type 'haff'"),
        ("allreduce,half,eight,1024,9.5", "gpus 'eight'"),
        ("allreduce,half,0,1024,9.5", "gpus '0'"),
        ("allreduce,half,1,1024,9.5", "a collective needs 2"),
        ("allreduce,half,8,1.5K,9.5", "bytes '1.5K'"),
        ("allreduce,half,8,1024,0", "time_us 0.0:"),
        ("allreduce,half,8,1024,-3", "time_us -3.0:"),
        ("allreduce,half,8,1024,nan", "time_us nan:"),
        ("allreduce,half,8,1024,inf", "time_us inf:"),
        ("allreduce,half,8,1024", "the row has 4 cells, not 5"),
        ("allreduce,half,8,1023,9.5", "1023 bytes"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(row: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(f"{FIVE}\nallreduce,half,8,512,9.1\n{row}\n")
    with pytest.raises(BadMeasurement) as error:
        measured.read(file)
    assert str(error.value).startswith(f"{file}:3: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "ranks"),
    [("allgather,half,8,1028,9.5", 8), ("reducescatter,float,3,1024,9.5", 3), ("alltoall,double,8,32,9.5", 8)],
)
def test_a_size_that_was_rounded_is_left_out_and_counted(row: str, ranks: int) -> None:
    table = parsed(f"{FIVE}\nallreduce,half,8,512,9.1\n{row}\n")
    assert [each.point.bytes for each in table.blocks] == [512]
    assert table.header.left_out == {f"no whole elements for each of {ranks} ranks": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "column 'collective' is missing"),
        (f"{FIVE}\n", "no rows"),
        ("collective,dtype,bytes,time_us\nallreduce,half,8,9\n", "column 'nodes' is missing"),
        (f"{FIVE},colour\n", "unknown column 'colour'"),
        (f"{FIVE},gpus\n", "column 'gpus' occurs twice"),
        (f"{FIVE},nodes\n", "leave out the one or the others"),
        (f"# machine = dgx\n{FIVE}\nallreduce,half,8,512,9.1\n", "cannot be read as TOML"),
        (f'# colour = "red"\n{FIVE}\nallreduce,half,8,512,9.1\n', "colour: unknown key"),
        (f"# machine = 8\n{FIVE}\nallreduce,half,8,512,9.1\n", "machine: 8; expected a text"),
        (f'# health = "fine"\n{FIVE}\nallreduce,half,8,512,9.1\n', "health: 'fine'; valid: 'healthy'"),
        (f"# [adapters]\n# count = 0\n{FIVE}\nallreduce,half,8,512,9.1\n", "adapters.count: 0"),
        (f"# [adapters]\n# gbps = true\n{FIVE}\nallreduce,half,8,512,9.1\n", "adapters.gbps: True"),
        (f'# [runs]\n# a = {{health = "ill"}}\n{FIVE}\nallreduce,half,8,512,9.1\n', "health: 'ill'"),
        (f'# launch = "by hand"\n{FIVE}\nallreduce,half,8,512,9.1\n', "launch: 'by hand'"),
        (f'# traps = "none"\n{FIVE}\nallreduce,half,8,512,9.1\n', "traps: 'none'"),
        (f"# [environment]\n# NCCL_NVLS_ENABLE = 0\n{FIVE}\nallreduce,half,8,512,9.1\n", "NCCL_NVLS_ENABLE: 0"),
        (f"{FIVE},run\nallreduce,half,8,512,9.1,r1\n", "the head of the file does not describe run 'r1'"),
        (f"{FIVE},in_place\nallreduce,half,8,512,9.1,perhaps\n", "in_place 'perhaps'"),
        (f"{FIVE},algorithm\nallreduce,half,8,512,9.1,Rink\n", "unknown algorithm 'Rink'"),
        (f"{FIVE},channels\nallreduce,half,8,512,9.1,none\n", "channels 'none'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(content: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content)
    with pytest.raises(BadMeasurement) as error:
        measured.read(file)
    assert str(error.value).startswith(str(file))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadMeasurement, match="No such file"):
        measured.read(tmp_path / "none.csv")


def test_a_healthy_file_has_nothing_refused() -> None:
    found = plausible.refuse(HEALTHY, TOPOLOGY, "healthy.csv")
    assert plausible.usable(HEALTHY, found) == HEALTHY


def test_milliseconds_for_microseconds_with_the_topology() -> None:
    wrong = changed(lambda row: replace(row, times_us=(row.median_us / 1000,)))
    with pytest.raises(BadMeasurement, match=r"wrong\.csv:\d+: .*milliseconds for microseconds\?"):
        plausible.refuse(wrong, TOPOLOGY, "wrong.csv")
    (above,) = (each for each in plausible.judge(wrong, TOPOLOGY) if each.kind is Kind.above_links)
    assert above.text.endswith("milliseconds for microseconds?")


def test_milliseconds_for_microseconds_without_a_topology() -> None:
    wrong = changed(lambda row: replace(row, times_us=(row.median_us / 1000,)))
    (short,) = (each for each in plausible.judge(wrong, None) if each.kind is Kind.too_short)
    assert "milliseconds for microseconds?" in short.text


def test_bits_for_bytes() -> None:
    wrong = changed(lambda row: replace(row, point=replace(row.point, bytes=8 * row.point.bytes)))
    with pytest.raises(BadMeasurement, match=r"above the links: .*bits for bytes"):
        plausible.refuse(wrong, TOPOLOGY, "wrong.csv")


def test_one_row_above_the_links_is_named_and_left_out() -> None:
    last = max(HEALTHY.blocks, key=lambda row: (row.point.bytes, row.line))
    wrong = changed(lambda row: replace(row, times_us=(row.median_us / 3,)) if row is last else row)
    found = plausible.judge(wrong, TOPOLOGY)
    (problem,) = (each for each in found if each.refused)
    assert problem.lines == (last.line,)
    assert "another machine?" in problem.text
    assert len(plausible.usable(wrong, found).blocks) == len(HEALTHY.blocks) - 1


def test_more_gpus_than_the_machine_has() -> None:
    with pytest.raises(BadMeasurement, match="the machine has 4"):
        plausible.refuse(HEALTHY, catalogue.load("gh200-4x").topology, "wrong.csv")


def test_an_unknown_release_is_refused() -> None:
    wrong = replace(HEALTHY, header=replace(HEALTHY.header, nccl="2.99.1"))
    with pytest.raises(BadMeasurement, match=r"NCCL 2\.99\.1 is no release"):
        plausible.refuse(wrong, None, "wrong.csv")


def test_mixed_machines_by_their_notes() -> None:
    rows = [f"a,allreduce,half,1,8,1024,9.5,0,,,,NVIDIA {gpu}" for gpu in ("A100", "A100", "B200")]
    table = parsed("\n".join([TWELVE, *rows]))
    (problem,) = measured.problems(table)
    assert problem.kind is Kind.mixed_machines
    assert problem.text == "A100 from line 2, B200 from line 4; valid: a file for each"
    assert plausible.usable(table, plausible.judge(table, None)).blocks == ()


def test_mixed_releases_by_their_notes() -> None:
    rows = [f"a,allreduce,half,1,8,{size},9.5,0,,,,{nccl}" for size, nccl in ((8, "NCCL 2.28.9"), (16, "nccl 22903"))]
    (problem,) = measured.problems(parsed("\n".join([TWELVE, *rows])))
    assert problem.kind is Kind.mixed_releases
    assert problem.text.startswith("2.28.9 from line 2, 2.29.3 from line 3")


def test_mixed_machines_by_rows_that_disagree() -> None:
    other = measured.load("a100-8x__2.27.3__aiconfigurator").blocks
    mixed = replace(HEALTHY, blocks=(*HEALTHY.blocks, *(replace(row, line=row.line + 1000) for row in other)))
    (problem,) = (each for each in measured.problems(mixed) if each.kind is Kind.repeated_rows)
    assert "several machines, runs or placements in one?" in problem.text
    assert len(problem.lines) > 800
    assert Kind.repeated_rows not in kinds(HEALTHY)


def test_in_place_and_out_of_place_are_kept_apart() -> None:
    rows = "".join(f"a,allreduce,half,1,8,1024,{us},{place},,,,\n" for us, place in ((10, 0), (20, 1)))
    assert measured.problems(parsed(f"{TWELVE}\n{rows}")) == ()


def test_an_unknown_placement_is_said() -> None:
    (problem,) = measured.problems(parsed(f"{TWELVE}\na,allreduce,half,1,8,1024,10,,,,,\n"))
    assert (problem.kind, problem.lines) == (Kind.unknown_placement, (2,))
    assert not problem.refused


def test_a_curve_that_falls_is_said_and_not_refused() -> None:
    content = f"{FIVE}\nallreduce,half,8,1024,10\nallreduce,half,8,2048,5\n"
    (problem,) = measured.problems(parsed(content))
    assert (problem.kind, problem.lines, problem.refused) == (Kind.not_monotone, (3,), False)


def test_a_throttled_curve_is_said() -> None:
    sizes = [(2**20 << step, 10.0 * 2**step * (2 if step == 3 else 1)) for step in range(4)]
    content = "\n".join([FIVE, *(f"allreduce,half,8,{size},{us}" for size, us in sizes)])
    (problem,) = measured.problems(parsed(content))
    assert (problem.kind, problem.lines) == (Kind.falling_bandwidth, (5,))


def test_a_faulty_run_is_said() -> None:
    runs = {name: MeasuredRun(name) for name in "abc"}
    rows = tuple(
        replace(of(P2pOperation.AllToAll, 2, 2**24), times_us=(2000.0 if run == "b" else 1000.0,), line=line, run=run)
        for line, run in enumerate("abc", 10)
    )
    (problem,) = measured.problems(Measurements(Header(runs=runs), rows, name="runs"))
    assert (problem.kind, problem.lines) == (Kind.slow_run, (11,))


def test_written_and_read_again_is_the_same(tmp_path: Path) -> None:
    for name in measured.names()[:6]:
        table = measured.load(name)
        measured.write(tmp_path / f"{name}.csv", table)
        assert measured.read(tmp_path / f"{name}.csv") == table


@pytest.mark.parametrize(
    ("row", "least_us"),
    [
        # 450 GB/s a GPU by NVLink, 8 x 50 GB/s a node; NVSwitches of Hopper reduce, so AllReduce moves the bytes once.
        (of(Collective.AllReduce, 1, 450_000_000), 1000.0),
        (of(Collective.AllGather, 1, 450_000_000), 875.0),
        (of(P2pOperation.AllToAll, 2, 400_000_000), 4000.0),
        (of(Collective.AllGather, 4, 400_000_000), 861.111),
        (of(Collective.Broadcast, 4, 400_000_000), 1000.0),
    ],
)
def test_least_time_of_the_links(row: SampleBlock, least_us: float) -> None:
    assert plausible.least_us_on(TOPOLOGY)(row) == pytest.approx(least_us, rel=1e-5)
