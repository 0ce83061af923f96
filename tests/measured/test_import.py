"""Measured times of nccl-tests, parquet and runs of `measure` as tables, and the command that makes them."""

import json
from dataclasses import replace
from pathlib import Path

import polars
import pytest

from tests.support import nccl_tests_text
from tests.support.command_line import run
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.times import measured
from tuner.times.calibration import calibrate
from tuner.times.measured import formats
from tuner.times.measured.formats import Given
from tuner.times.measured.header import Header, MeasuredLaunch
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock, Writer

TIMES = ((1024, 20.0), (2048, 21.5), (1 << 20, 80.25))
FACTS = Header(title="ours", machine="dgx-h100")


def plain(table: Measurements) -> list[tuple[object, ...]]:
    return [
        (row.point.name, row.nodes, row.gpus_per_node, row.point.bytes, row.median_us, row.point.in_place)
        for row in table.blocks
    ]


def test_text_of_nccl_tests(tmp_path: Path) -> None:
    table = formats.read(nccl_tests_text.write(tmp_path / "run.log", TIMES, nodes=2))
    expected = [
        ("allreduce", 2, 8, size, us * (1 + place), bool(place)) for size, us in TIMES for place in (False, True)
    ]
    assert plain(table) == expected
    assert (table.header.nccl, table.header.gpu) == ("2.28.9", "H100")
    assert table.header.launch is MeasuredLaunch.process_per_gpu
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert all(str(row.point.bytes) == lines[row.line - 1].split()[0] for row in table.blocks)


@pytest.mark.parametrize("program", ["alltoall_perf", "sendrecv_perf", "gather_perf"])
def test_text_of_sends_and_receives(tmp_path: Path, program: str) -> None:
    table = formats.read(nccl_tests_text.write(tmp_path / "run.log", TIMES, program=program))
    assert {row.point.name for row in table.blocks} == {program.removesuffix("_perf")}
    assert all(row.point.is_point_to_point for row in table.blocks)
    with pytest.raises(BadMeasurement, match="is made of sends and receives: NCCL picks nothing for it"):
        _ = table.blocks[0].point.collective


def test_one_thread_is_told_from_a_process_a_gpu(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES)
    file.write_text(file.read_text().replace("nThread 1 nGpus 1", "nThread 1 nGpus 8"))
    assert formats.read(file).header.launch is MeasuredLaunch.one_thread
    file.write_text(file.read_text().replace("nThread 1 nGpus 8", "nThread 8 nGpus 1"))
    assert formats.read(file).header.launch is MeasuredLaunch.thread_per_gpu


def test_rows_are_those_blocks_of_a_file_that_count(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES, nodes=2)
    file.write_text(file.read_text().replace(" 1.00 1.00 0 ", " 1.00 1.00 3 ", 1))
    blocks, rows = formats.read_any(file).blocks, formats.read(file).blocks
    assert [block.wrong for block in blocks] == [3, *[0] * (len(blocks) - 1)]
    assert [replace(block, shape=(2, 8), run="run") for block in blocks[1:]] == list(rows)
    assert [block.line for block in blocks[1:]] == [row.line for row in rows]


def test_wrong_results_are_left_out_and_counted(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES)
    file.write_text(file.read_text().replace("20 1.00 1.00 0", "20 1.00 1.00 7"))
    table = formats.read(file)
    assert len(table.blocks) == 5
    assert table.header.left_out == {"results that were wrong": 1}


def record(program: str = "./alltoall_perf", size: int = 4096) -> dict[str, object]:
    half = {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": 0}
    result = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "-1"}
    devices = [{"hostname": "a", "device_info": "NVIDIA H100"}] * 8
    return {
        "args": [program, "-J", "x.json", "-g", "8"],
        "nccl_version": 22809,
        "config": {"warmup_iters": 5, "iterations": 20, "devices": devices},
        "results": [
            {**result, "out_of_place": half, "in_place": None},
            {**result, "in_place": half, "in_place_per_iter": {"times_us": [12.0, 13.0]}},
        ],
    }


@pytest.mark.parametrize("kept", [(0, 7, 8, 15), (0, 1, 15), (3, 15)])
def test_a_shortened_list_of_ranks_is_not_all_ranks(tmp_path: Path, kept: tuple[int, ...]) -> None:
    """Documents name the first and the last rank of each node, or of all."""
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES, nodes=2)
    whole = formats.read(file)
    lines = file.read_text().splitlines()
    dropped = [f"#  Rank {rank:2} " for rank in range(16) if rank not in kept]
    file.write_text("\n".join(line for line in lines if not line.startswith(tuple(dropped))) + "\n")
    if kept == (0, 7, 8, 15):  # each node's ranks are as many devices apart
        assert {(row.nodes, row.gpus_per_node) for row in formats.read(file).blocks} == {(2, 8)}
    else:
        with pytest.raises(BadMeasurement, match="does not say how many ranks there were"):
            formats.read(file)
        given = formats.read(file, Given(nodes=2, machine_gpus=8))
        assert [row.times_us for row in given.blocks] == [row.times_us for row in whole.blocks]
        assert {(row.nodes, row.gpus_per_node) for row in given.blocks} == {(2, 8)}


def test_calls_of_no_bytes_have_no_time(tmp_path: Path) -> None:
    """An AllGather of less than an element a rank is printed as 0 bytes, with the time of nothing."""
    file = nccl_tests_text.write(tmp_path / "run.log", [(0, 0.25), *TIMES], program="all_gather_perf")
    assert plain(formats.read(file)) == plain(
        formats.read(nccl_tests_text.write(tmp_path / "run.log", TIMES, program="all_gather_perf"))
    )


@pytest.mark.parametrize("end", ["# Avg bus bandwidth    : 1.0\n", "# Collective test concluded: X\n#\n"])
def test_several_programs_in_one_text(tmp_path: Path, end: str) -> None:
    """A script runs them one after the other; what is no collective is counted."""
    programs, texts = ["all_reduce_perf", "hyperbola_perf", "all_gather_perf"], []
    for program in programs:
        file = nccl_tests_text.write(tmp_path / "run.log", TIMES, program=program)
        texts.append(f"%%%% {program} %%%%\n{file.read_text()}{end.replace('X', program)}")
    file.write_text("".join(texts))
    table = formats.read(file)
    each = 2 * len(TIMES)
    assert [row.point.operation for row in table.blocks] == [Collective.AllReduce] * each + [
        Collective.AllGather
    ] * each
    assert [file.read_text().splitlines()[row.line - 1].split()[0] for row in table.blocks] == [
        str(row.point.bytes) for row in table.blocks
    ]
    assert table.header.left_out == {"of hyperbola_perf: no collective that is known": 2 * len(TIMES)}
    assert formats.MeasurementFile(file).release == "2.28.9"


def test_json_of_nccl_tests(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(record()))
    table = formats.read(file)
    assert plain(table) == [("alltoall", 1, 8, 4096, 10.5, False), ("alltoall", 1, 8, 4096, 12.5, True)]
    assert table.header.launch is MeasuredLaunch.one_thread


def test_json_with_an_impossible_size_is_refused_with_its_result(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(record(size=4100)))
    with pytest.raises(
        BadMeasurement, match=r"run\.json:1: alltoall of float32 with 4100 bytes: .* for each of 8 ranks"
    ):
        formats.read(file)


def test_our_own_runs_are_medians_by_what_was_requested(tmp_path: Path) -> None:
    point = Point(Collective.AllReduce, 1024, DataType.float16)
    ring = Combination(Algorithm.Ring, Protocol.LL, 4)
    with Writer(tmp_path / "own.jsonl", Header("simulated", ranks=8, nodes=1, nccl="2.28.9")) as writer:
        writer.add(SampleBlock(point, None, None, (10.0, 11.0, 30.0)))
        writer.add(SampleBlock(point, ring, ring, (9.0, 9.5)))
        writer.add(SampleBlock(point, ring, ring, (8.0,)))
        writer.add(SampleBlock(point, ring, Combination(Algorithm.Tree, Protocol.LL), (1.0,)))
        writer.add(SampleBlock(point, ring, ring, (1.0,), wrong=3))
    table = formats.read(tmp_path / "own.jsonl")
    default, forced = table.blocks
    assert (default.median_us, default.requested, default.executed, default.run) == (11.0, None, None, "own")
    assert (forced.median_us, forced.requested) == (9.0, ring)
    assert forced.run == "own-forced"
    assert table.header.left_out == {"results that were wrong": 1, "NCCL ran something else than was requested": 1}


def aiconfigurator(path: Path, **columns: object) -> Path:
    one = {
        "framework": "TRTLLM",
        "version": "2.28.9",
        "device": "NVIDIA H100 80GB HBM3",
        "op_name": "all_gather",
        "kernel_source": "NCCL",
        "nccl_dtype": "half",
        "num_gpus": 8,
        "message_size": 4096,
        "latency": 0.01125,
    }
    rows = [one, {**one, "op_name": "alltoall", "nccl_dtype": "int8"}, {**one, "version": "2.27.3"}]
    polars.DataFrame([{**row, **columns} for row in rows]).write_parquet(path)
    return path


def test_parquet_has_elements_and_milliseconds(tmp_path: Path) -> None:
    table = formats.read(aiconfigurator(tmp_path / "nccl_perf.parquet"), Given(nccl="2.28.9"))
    assert plain(table) == [("allgather", 1, 8, 8192, 11.25, False), ("alltoall", 1, 8, 4096, 11.25, False)]
    assert table.header.left_out == {"rows of another release than 2.28.9": 1}
    assert table.header.gpu == "H100 80GB HBM3"
    assert table.header.launch is MeasuredLaunch.thread_per_gpu


@pytest.mark.parametrize(
    ("columns", "nccl", "says"),
    [
        ({}, "", "several releases (2.27.3, 2.28.9)"),
        ({}, "2.29.7", "has no row of NCCL 2.29.7: it has 2.27.3, 2.28.9"),
        ({"message_size": 3}, "2.28.9", "parquet:1: allgather of float16 with 6 bytes"),
        ({"latency": 0.0}, "2.28.9", "parquet:1: time_us 0.0"),
        ({"op_name": "gossip"}, "2.28.9", "parquet:1: unknown collective 'gossip'"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, object], nccl: str, says: str) -> None:
    with pytest.raises(BadMeasurement) as error:
        formats.read(aiconfigurator(tmp_path / "nccl_perf.parquet", **columns), Given(nccl=nccl))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_parquet_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadMeasurement, match=r"cut\.parquet: "):
        formats.read(tmp_path / "cut.parquet")
    polars.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadMeasurement, match="no column 'op_name'"):
        formats.read(tmp_path / "a.parquet")


def test_the_oldest_parquet_has_neither_release_nor_gpu(tmp_path: Path) -> None:
    """aiconfigurator-core 0.12.0: h100_sxm and h200_sxm, 2.23."""
    newer = aiconfigurator(tmp_path / "newer.parquet", version="2.23.4")
    polars.read_parquet(newer).drop("version", "device", "framework").write_parquet(tmp_path / "old.parquet")
    with pytest.raises(BadMeasurement, match="has no column 'version': add "):
        formats.read(tmp_path / "old.parquet")
    table = formats.read(tmp_path / "old.parquet", Given(nccl="2.23.4"))
    assert plain(table) == plain(formats.read(newer, Given(nccl="2.23.4")))
    assert (table.header.nccl, table.header.gpu) == ("2.23.4", "")
    assert table.header.nccl_note == "As given: the file has no column 'version'."


@pytest.mark.parametrize(
    ("folder", "other"), [("2.27.3", True), ("2.23", True), ("2.28.9", False), ("2.28", False), ("nccl", False)]
)
def test_a_folder_of_another_release_is_said(tmp_path: Path, folder: str, other: bool) -> None:
    """aiconfigurator-core 0.12.0: b200_sxm/comm/nccl/2.27.3 holds rows of 2.29.2."""
    (tmp_path / folder).mkdir()
    table = formats.read(aiconfigurator(tmp_path / folder / "nccl_perf.parquet"), Given(nccl="2.28.9"))
    assert table.header.nccl == "2.28.9"
    assert (f"Its folder says {folder}." in (table.header.nccl_note or "")) == other


def test_parquet_without_its_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(BadInput, match=r"pip install 'nccl-tuner\[parquet\]'"):
        formats.read(aiconfigurator_file(tmp_path))


def aiconfigurator_file(tmp_path: Path) -> Path:
    (tmp_path / "nccl_perf.parquet").write_bytes(b"PAR1")
    return tmp_path / "nccl_perf.parquet"


def test_several_files_are_one_table_with_a_run_each(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = [nccl_tests_text.write(tmp_path / name, TIMES) for name in ("run.log", "b/run.log")]
    table, problems = calibrate.table_of(files, FACTS, Given(), None)
    assert problems == ()
    assert list(table.header.runs) == ["run", "run-2"]
    assert [row.run for row in table.blocks] == ["run"] * 6 + ["run-2"] * 6
    measured.write(tmp_path / "out.csv", table)
    again = measured.read(tmp_path / "out.csv")
    assert again.header == table.header
    assert plain(again) == plain(table)


def test_files_of_two_releases_are_refused(tmp_path: Path) -> None:
    files = [
        nccl_tests_text.write(tmp_path / f"{code}.log", TIMES, program="all_gather_perf", nccl=code)
        for code in (22809, 22903)
    ]
    with pytest.raises(BadMeasurement, match=r"several values of nccl \(2\.28\.9 in .*, 2\.29\.3 in"):
        calibrate.table_of(files, FACTS, Given(), None)


def test_a_file_that_says_another_release_is_refused(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES)
    with pytest.raises(BadMeasurement, match=r"says NCCL 2\.28\.9, but nccl= says 2\.29\.3"):
        calibrate.table_of([file], FACTS, Given(nccl="2.29.3"), None)


def test_ranks_that_are_not_named_have_to_be_given(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES)
    lines = [line for line in file.read_text().splitlines() if "Rank" not in line]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadMeasurement, match="does not say how many ranks there were: add nodes= N gpus_per_node= N"):
        formats.read(file)
    table = formats.read(file, Given(nodes=2, gpus_per_node=4))
    assert {(row.nodes, row.gpus_per_node) for row in table.blocks} == {(2, 4)}


IMPORT = ("--machine", "dgx-h100", "--source", "our cluster")


def test_import_command(tmp_path: Path) -> None:
    file, out = nccl_tests_text.write(tmp_path / "run.log", TIMES), tmp_path / "out.csv"
    done = run("measured", str(file), *IMPORT, "-o", str(out), "--env", "NCCL_ALGO=Ring", "--json")
    said = json.loads(done.stdout)
    assert (said["rows"], said["nccl"], said["machine"], said["problems"]) == (6, "2.28.9", "dgx-h100", [])
    table = measured.read(out)
    assert table.environment_of(table.blocks[0]) == {"NCCL_ALGO": "Ring"}
    assert table.header.source.repository == "our cluster"
    assert table.header.source.path == "run.log"


def test_import_refuses_what_the_links_cannot_carry(tmp_path: Path) -> None:
    fast = tuple((size << 10, us / 10) for size, us in TIMES)
    file = nccl_tests_text.write(tmp_path / "run.log", fast)
    done = run("measured", str(file), *IMPORT, "-o", str(tmp_path / "out.csv"), code=2)
    assert "above the links" in done.stderr
    assert "run.log:" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_check_command_says_what_is_wrong_and_exits_with_1(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", [(size, us / 1000) for size, us in TIMES])
    (said,) = json.loads(run("measured", str(file), "--json", code=1).stdout)["problems"]
    assert (said["kind"], said["refused"], len(said["lines"])) == ("times too short", True, 6)
    nccl_tests_text.write(tmp_path / "run.log", TIMES)
    assert run("measured", str(file), "--machine", "dgx-h100").stdout == "nothing is wrong\n"


def test_list_and_show() -> None:
    listed = json.loads(run("measured", "--json").stdout)["tables"]
    assert [each["name"] for each in listed] == list(measured.names())
    assert all(each["source"]["licence"] for each in listed)
    ours = json.loads(run("measured", "--machine", "dgx-b200", "--json").stdout)["tables"]
    assert {each["machine"] for each in ours} == {"dgx-b200"}
    shown = run("measured", "l40s-8x__2.27.3__aiconfigurator").stdout
    assert "topology of the box is not known" in shown
    whole = json.loads(run("measured", "v100-8x__2.27.5__dgx1", "--json").stdout)
    assert len(whole["rows"]) == 8
    assert whole["header"]["cuda_graph"] is True


def test_show_of_an_unknown_table_names_the_nearest() -> None:
    said = run("measured", "b200-8x-64n__together", code=2).stderr
    assert "No such file or shipped table; did you mean b200-8x-64n__2.29.7__together" in said


def test_table_name_and_file_stay_apart(tmp_path: Path) -> None:
    table = replace(measured.load("v100-8x__2.27.5__dgx1"), name="other")
    measured.write(tmp_path / "mine.csv", table)
    assert measured.read(tmp_path / "mine.csv").name == "mine"


def test_a_table_says_all_that_it_lacks(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", TIMES)
    said = run("measured", str(file), "-o", str(tmp_path / "out.csv"), code=2).stderr
    assert "the machine (--machine NAME or --machine-note TEXT) and where the numbers come from (--source" in said
    assert "--source cannot be used with FILEs without -o" in run("measured", str(file), "--source", "x", code=2).stderr
    assert (
        "--nccl cannot be used with the list of tables (no FILE)" in run("measured", "--nccl", "2.28.9", code=2).stderr
    )


def test_a_log_without_times_is_not_called_sound() -> None:
    log = Path(__file__).parents[2] / "docs" / "examples" / "nccl.log"
    assert "has no measured times" in run("measured", str(log), code=2).stderr
