# ruff: noqa: E501  the lines of other programs are as long as they are
"""nccl-tests' text of all versions and its JSON, NCCL logs and our own files, recognized by their content."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from tuner.base.errors import BadMeasurement
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.times.measured import formats
from tuner.times.measured.formats import Given, MeasurementFile, read_any
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock, Writer

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
A100 = CASES / "2xA100-pcie-nvlink-nccl2.27.7"
AR, AG = Collective.AllReduce, Collective.AllGather

# As the printf calls of each version lay them out: src/common.cu and src/{all_reduce,all_gather,reduce}.cu.
V1 = """\
nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.3
# Using devices
#   Rank  0 on       nodeA device  0 [0x07] Tesla V100-SXM2-16GB
#   Rank  1 on       nodeB device  0 [0x0a] Tesla V100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
           8             2   float     sum    0.032   0.00   0.00    0e+00    0.031   0.00   0.00    0e+00
          16             4   float     sum    0.033   0.00   0.00    1e+01    0.034   0.00   0.00    0e+00
 Out of bounds values : 1 FAILED
"""
V2 = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  11 on      nodeA device  0 [0x07] Tesla V100-SXM2-16GB
#   Rank  1 Pid  12 on      nodeA device  1 [0x0a] Tesla V100-SXM2-16GB
#
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           128   float      110    0.06    0.03  0e+00    17.03    0.06    0.03  5e-07
        2048           256    half   123456    0.12    0.06  nan      17.20    0.12    0.06    N/A
# Out of bounds values : 0 OK
"""
V213 = """\
# nThread 1 nGpus 1 minBytes 64 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 5
#  Rank  0 Group  0 Pid    100 on      nodeA device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid    200 on      nodeB device  0 [0x07] NVIDIA H100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
          64            16  bfloat16     avg      -1    10.50    0.01    0.01      0    11.50    0.01    0.01      3
         128            32  fp8_e4m3     max      -1     9.50    0.01    0.01    N/A     8.50    0.01    0.01    N/A
         128            32     float  mulsum      -1     9.50    0.01    0.01    N/A     8.50    0.01    0.01    N/A
"""
V219 = """\
# nccl-tests version 2.19.6 nccl-headers=23003 nccl-library=23003
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 64 maxBytes 128 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#  Rank  0 Group  0 Pid    100 on      nodeA device  0 [0000:07:00] NVIDIA H100
#                                                              out-of-place (+ per-iteration)                                in-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%          timestamp
       65536          2048     float    none      -1    20.50    3.20    3.20       0    19.00    25.00    24.00     3.10    21.50    3.05    3.05       0    19.50    26.00    25.00     3.30  2026-11-21 05:00:00
"""


def read(folder: Path, content: str, collective: Collective | None = None) -> Measurements:
    file = folder / "output.txt"
    file.write_text(content)
    return read_any(file, collective)


def rows(found: Measurements) -> list[tuple[int, bool, float, int]]:
    return [(each.point.bytes, each.point.in_place, each.times_us[0], each.wrong) for each in found.blocks]


def test_version_1_prints_milliseconds(tmp_path: Path) -> None:
    found = read(tmp_path, "$ ./build/all_reduce_perf -g 2\n" + V1)
    assert rows(found) == [(8, False, 32.0, 0), (8, True, 31.0, 0), (16, False, 33.0, 1), (16, True, 34.0, 0)]
    assert found.blocks[0].point == Point(AR, 8)
    assert found.header.ranks == found.header.nodes == 2
    assert found.header.out_of_bounds == 1


def test_version_2_without_redop_and_root_prints_errors(tmp_path: Path) -> None:
    found = read(tmp_path, V2, AG)
    assert rows(found) == [
        (1024, False, 110.0, 0),
        (1024, True, 17.03, 0),
        (2048, False, 123456.0, 1),
        (2048, True, 17.2, 0),
    ]
    assert found.blocks[2].point.dtype is DataType.float16
    assert (found.header.gpus, found.header.nodes) == (("Tesla V100-SXM2-16GB",), 1)


@pytest.mark.parametrize("extra", ["", "nstreams", "host  nstreams"])
def test_columns_that_a_fork_adds_before_the_times_are_left_out(extra: str, tmp_path: Path) -> None:
    head = f"# all_reduce_perf\n#  size  count  type  redop  root  {extra}  time  algbw  busbw  #wrong\n"
    row = f"  1048576  262144  float  sum  -1  {'4  ' * len(extra.split())}30.00  34.95  61.16  0  31.00  33.83  59.20  2\n"
    assert rows(read(tmp_path, head + row)) == [(1 << 20, False, 30.0, 0), (1 << 20, True, 31.0, 2)]


def test_a_collective_is_given_only_where_the_file_names_none(tmp_path: Path) -> None:
    assert read(tmp_path, V2, Collective.Broadcast).blocks[0].point == Point(Collective.Broadcast, 1024)
    assert read(tmp_path, V219, Collective.Broadcast).blocks[0].point == Point(AG, 65536)


@pytest.mark.parametrize(
    ("columns", "bandwidths", "collective"),
    [
        ("sum      -1", "100.00  187.50", "AllReduce"),
        ("sum      -1", "100.00   93.75", "ReduceScatter"),
        ("sum       0", "100.00  100.00", "Reduce"),
        ("none      2", "100.00  100.00", "Broadcast"),
        ("none     -1", "100.00   93.75", "AllGather"),
        ("none      0", "100.00   93.75", None),  # Gather or Scatter
        ("none     -1", "100.00  100.00", None),  # SendRecv
        ("sum      -1", "100.00  120.00", None),  # of no program with so many ranks
    ],
)
def test_columns_show_the_collective_that_no_line_names(
    tmp_path: Path, columns: str, bandwidths: str, collective: str | None
) -> None:
    ranks = "".join(
        f"#  Rank {n:2d} Group  0 Pid {n} on h{n // 8} device  0 [0000:18:00] NVIDIA H100\n" for n in range(16)
    )
    row = f"  1048576  262144  float  {columns}  10.49  {bandwidths}      0  10.49  {bandwidths}      0\n"
    text = f"#  size  count  type  redop  root  time  algbw  busbw  #wrong\n{row}"
    if collective is None:
        with pytest.raises(BadMeasurement, match="does not say which collective was run"):
            read(tmp_path, ranks + text)
    else:
        assert read(tmp_path, ranks + text).blocks[0].point.collective.name == collective
    assert read(tmp_path, ranks + text, Collective.Broadcast).blocks[0].point.collective is Collective.Broadcast


def test_small_sizes_show_the_collective_by_their_counts(tmp_path: Path) -> None:
    ranks = "".join(f"#   Rank {n:2d} Pid {n} on gpu9 device {n} [0x3d] NVIDIA GeForce RTX 2080 Ti\n" for n in range(4))
    head = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
    row = "  {size}  {count}  float  sum  20.56  {bw}  {bw}  1e-07  133.3  {bw}  {bw}  0e+00\n"
    for bandwidth in ("0.00", "0.01"):
        whole = ranks + head + row.format(size=128, count=32, bw=bandwidth)
        assert read(tmp_path, whole).blocks[0].point.collective is AR
        part = ranks + head + row.format(size=128, count=8, bw=bandwidth)
        with pytest.raises(BadMeasurement, match="does not say which collective was run"):
            read(tmp_path, part)


def test_a_text_from_the_web_without_the_marks_of_comments(tmp_path: Path) -> None:
    text = V213.replace("#  Rank", "   Rank").replace("#       size", "        size")
    assert read(tmp_path, text, AR).header.ranks == read(tmp_path, V213, AR).header.ranks


def test_an_all_to_all_is_no_all_gather(tmp_path: Path) -> None:
    row = "  1048576  262144  float  none  -1  10.49  100.00  50.00      0  10.49  100.00  50.00  N/A\n"
    with pytest.raises(BadMeasurement, match=r"does not say which collective was run.* in the file$"):
        read(tmp_path, "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n" + row)


@pytest.mark.parametrize("line", ["NCCL version 2.19.3+cuda12.3", "h:1:2 [0] NCCL INFO NCCL version 2.19.3+cuda12.3"])
def test_the_release_that_nccl_printed_among_the_rows(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{V213}{line}\n", AR).header.nccl == "2.19.3"
    with pytest.raises(BadMeasurement, match=r"several releases of NCCL \(2.19.3, 2.28.9\)"):
        read(tmp_path, f"{V213}{line}\n{line.replace('2.19.3', '2.28.9')}\n", AR)


def test_version_2_13_counts_wrong_elements(tmp_path: Path) -> None:
    found = read(tmp_path, V213, AR)
    assert rows(found) == [(64, False, 10.5, 0), (64, True, 11.5, 3), (128, False, 9.5, 0), (128, True, 8.5, 0)]
    assert found.blocks[0].point == Point(AR, 64, DataType.bfloat16, Op.avg, graph=True)
    assert found.blocks[3].point == Point(AR, 128, DataType.float8e4m3, Op.max, in_place=True, graph=True)
    assert not found.blocks[1].counts


def test_version_2_19_names_all_and_prints_single_calls(tmp_path: Path) -> None:
    found = read(tmp_path, V219)
    assert rows(found) == [(65536, False, 20.5, 0), (65536, True, 21.5, 0)]
    assert found.blocks[0].point == Point(AG, 65536)
    assert (found.header.nccl, found.header.warmup_calls, found.header.calls) == ("2.30.3", 1, 20)


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "0: ",
        "[default0]:",
        "[0] ",
        "[pod/a-b/c] ",
        "2026-03-03T11:06:05.1234Z stdout F ",
        "[2026-03-03 11:06:05] 3: ",
    ],
)
def test_launchers_tags(tmp_path: Path, tag: str) -> None:
    tagged = "".join(f"{tag}{line}\n" for line in V213.splitlines())
    assert rows(read(tmp_path, tagged, AR)) == rows(read(tmp_path, V213, AR))


@pytest.mark.parametrize(
    "line",
    [
        "Nov 27 08:0{at}:0{at} node-5 slurmstepd[43{at}]: {line}",
        "\x1b[36mworker-{at}\x1b[0m | \x1b[32mmpi\x1b[0m {line}",
        "2026-05-16 16:39:51,20{at} INFO runner: {line}",
        "nccl-1  | {line}",
        "> {line}",
        '{{"log": "{line}\\n", "stream": "stdout"}}',
        '{{"timestamp": 17{at}, "message": "{line}", "ingestionTime": 1}}',
    ],
)
def test_lines_as_keepers_of_logs_have_them(tmp_path: Path, line: str) -> None:
    kept = "".join(line.format(at=at % 10, line=own) + "\n" for at, own in enumerate(V213.splitlines()))
    assert rows(read(tmp_path, kept, AR)) == rows(read(tmp_path, V213, AR)) != []


def test_json_that_is_no_record_of_lines_is_no_format(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"deviceProperties": [\n7\n, [1]]}\n', "utf-8")
    assert MeasurementFile(tmp_path / "trace.json").format is None


def test_rows_in_pieces_with_nccls_log_between(tmp_path: Path) -> None:
    said = "node-1:77:{tid} [0] NCCL INFO {text}\n"
    planned = "AllReduce: {} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}"
    head, row = V213.splitlines()[:6], "          64            16     float     sum      -1"
    content = (
        "\n".join(head)
        + "\n"
        + "".join(
            [
                said.format(tid=1, text="NCCL version 2.28.9+cuda12.9"),
                row,
                said.format(tid=77, text=planned.format(64)),
                "    10.50    0.01    0.01      0",
                said.format(tid=77, text=planned.format(64)),
                "somebody else's 1 2 3 4\n",
                "    11.50    0.01    0.01      0\n",
                "         128            32     float     sum      -1    12.50    0.01    0.01      0",
                said.format(tid=77, text=planned.format(128)),
                said.format(tid=78, text=planned.format(128).replace("RING", "TREE")),
                "    13.50    0.01    0.01      0\n",
            ]
        )
    )
    found = read(tmp_path, content, AR)
    assert rows(found) == [(64, False, 10.5, 0), (64, True, 11.5, 0), (128, False, 12.5, 0), (128, True, 13.5, 0)]
    assert [each.executed for each in found.blocks] == [Combination(Algorithm.Ring, Protocol.LL, 4)] * 2 + [None] * 2
    assert all(each.requested is None for each in found.blocks)
    assert found.header.nccl == "2.28.9"


def test_a_line_that_may_be_cut_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, V213[: V213.index("8.50") + 1], AR)
    assert rows(found) == [(64, False, 10.5, 0), (64, True, 11.5, 3)]
    assert found.truncated


def test_several_runs_of_the_same_gpus(tmp_path: Path) -> None:
    found = read(tmp_path, V213 + V213.replace("nodeA", "nodeC").replace("graph: 5", "graph: 0"), AR)
    assert rows(found) == rows(read(tmp_path, V213, AR)) * 2
    assert [each.point.graph for each in found.blocks] == [True] * 4 + [False] * 4
    assert (found.header.ranks, found.header.nodes) == (2, 2)


def test_a_tag_before_each_piece_of_a_row(tmp_path: Path) -> None:
    pieces = []
    for line in V213.splitlines():
        words = line.split()
        pieces.append(f"[0] {line}" if line.startswith("#") else " ".join(["[0]", *words[:5], "[0]", *words[5:]]))
    assert rows(read(tmp_path, "\n".join(pieces) + "\n", AR)) == rows(read(tmp_path, V213, AR))


def test_runs_on_other_hosts_say_how_to_take_one(tmp_path: Path) -> None:
    second = V213.replace("nodeA", "nodeC")
    found = read(tmp_path, V213 + second, AR)
    # After the last row that is read; one of mulsum is not.
    assert "tail -n +9 " in found.other_hosts
    assert "nodeA, nodeB; nodeB, nodeC" in found.other_hosts
    assert not read(tmp_path, V213 * 2, AR).other_hosts


def test_gzipped(tmp_path: Path) -> None:
    file = tmp_path / "output.txt.gz"
    file.write_bytes(gzip.compress(("node-1:77:77 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n" + V213).encode()))
    found = read_any(file, AR)
    assert rows(found) == rows(read(tmp_path, V213, AR))
    assert found.header.nccl == "2.28.9"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(BadMeasurement, match=r"output.txt.gz: Compressed file ended"):
        read_any(file)


REFUSED = {
    "not named": (
        V2.replace("5e-07", "N/A"),
        "does not say which collective was run; valid: collective= NAME where the command has it, or one name of all_",
    ),
    "two programs": (V219 + V219.replace("all_gather", "all_reduce"), "has several collectives"),
    "other ranks": (V219 + V219.replace("#  Rank  0", "#  Rank  1") + V219, "(2 ranks on 1 node, 1 rank on 1 node)"),
    "two jobs at once": (
        "\n".join(line for both in zip(*[V213.splitlines()] * 2, strict=True) for line in both) + "\n",
        "output.txt:4: rows of a second run, before the first came to its end: two jobs wrote at once",
    ),
    "rows of two jobs": (
        V213.split("          64")[0]
        + "64 16 float sum -1 9.5 0.01 0.01 0\n128 32 float sum -1 9.5 0.01 0.01 0\n"
        + "128 32 float sum -1 9.6 0.01 0.01 0\n",
        "output.txt:9: rows of a second run",
    ),
    "no MPI": (
        V219.replace(
            "#  Rank  0", "#  Rank  0 Group  0 Pid    100 on      nodeB device  0 [0x07] NVIDIA H100\n#  Rank  0"
        ),
        "output.txt:5: 2 processes all call themselves rank 0",
    ),
    "another program": (
        V219.replace("all_gather", "alltoall"),
        "NCCL does not tune alltoall_perf; valid: all_",
    ),
    "no row": (V219.split("       65536")[0], "has no complete row of nccl-tests"),
    "CPU times": (V219.replace(" time ", " cputime "), "CPU times (-C 1), not those of the GPUs"),
    "nothing": ("hello\n", "no measurements; valid: a file of `nccl-tuner measure`, "),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(BadMeasurement) as caught:
        read(tmp_path, content)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def half(time: float, wrong: float | None = 0) -> dict[str, object]:
    return {"time": time, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": wrong}


JSON = {
    "version": 1,
    "start_time": "2026-11-21 05:00:00",
    "args": ["./build/all_reduce_perf", "-J", "x.json"],
    "env": [],
    "nccl_version": 22809,
    "config": {
        "warmup_iters": 5,
        "iterations": 20,
        "graph": 0,
        "devices": [
            {"rank": rank, "group": 0, "pid": 7, "hostname": "nodeA", "device": rank, "device_info": "NVIDIA H100"}
            for rank in (0, 1)
        ],
    },
    "results": [
        {
            "size": 64,
            "count": 16,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": half(10.5),
            "in_place": half(11.5, None),
            "actual_iterations": 20,
        },
        {
            "size": 128,
            "count": 32,
            "type": "half",
            "redop": "max",
            "root": "    -1",
            "out_of_place": None,
            "in_place": half(12.5, 2.0),
            "in_place_per_iter": {"times_us": [12.0, 13.0]},
        },
        {"size": 128, "count": 32, "type": "half", "redop": "mulsum", "root": "    -1", "out_of_place": half(1.0)},
    ],
}


def test_json(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(JSON))
    assert [(each.point, each.times_us, each.wrong) for each in found.blocks] == [
        (Point(AR, 64), (10.5,), 0),
        (Point(AR, 64, in_place=True), (11.5,), 0),
        (Point(AR, 128, DataType.float16, Op.max, in_place=True), (12.0, 13.0), 2),
    ]
    assert (found.header.nccl, found.header.ranks, found.header.gpus) == ("2.28.9", 2, ("NVIDIA H100",))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"args": ["./sendrecv_perf"]}, "NCCL does not tune sendrecv_perf; valid: all_reduce_perf, "),
        ({"results": [{"size": 64}]}, "results[0] is not what nccl-tests writes: KeyError('redop')"),
        ({"results": [JSON["results"][0] | {"in_place": {"cpu_time": 1.0}}]}, "CPU times"),  # type: ignore[index]
    ],
)
def test_bad_json(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    with pytest.raises(BadMeasurement) as caught:
        read(tmp_path, json.dumps(JSON | change))
    assert reason in str(caught.value)


def test_our_own_file(tmp_path: Path) -> None:
    block = SampleBlock(Point(AR, 64), None, Combination(Algorithm.Ring, Protocol.LL, 2), (1.0, 2.0))
    with Writer(tmp_path / "own.jsonl", Header("simulated")) as writer:
        writer.add(block)
    assert read_any(tmp_path / "own.jsonl").blocks == (block,)


def test_a_log_alone_says_what_ran(tmp_path: Path) -> None:
    found = read(tmp_path, "h:1:2 [0] NCCL INFO AllReduce: 64 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n")
    assert [(each.point, each.executed, each.counts) for each in found.blocks] == [
        (Point(AR, 64), Combination(Algorithm.Tree, Protocol.LL128, 2), False)
    ]


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is absent")
@pytest.mark.parametrize(("kind", "log", "channels"), [("normal", "nccl", 24), ("fault", "nccl-fault", 2)])
def test_a_real_interleaved_run(kind: str, log: str, channels: int) -> None:
    found = read_any(A100 / "raw" / f"{log}.log")
    lines = (A100 / f"TIMINGS-{kind}.csv").read_text().splitlines()
    expected = {int(size): (float(out), float(inside)) for size, out, _, _, inside, *_ in csv.reader(lines[1:])}
    assert len(found.blocks) == 2 * len(expected)
    assert {(each.point.bytes, each.point.in_place): each.times_us[0] for each in found.blocks} == {
        (size, in_place): times[in_place] for size, times in expected.items() for in_place in (False, True)
    }
    assert {each.executed for each in found.blocks} == {Combination(Algorithm.Ring, Protocol.Simple, channels)}
    assert (found.header.nccl, found.header.ranks, found.header.nodes) == ("2.27.7", 2, 1)


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is absent")
def test_real_rows_without_any_header() -> None:
    found = read_any(CASES / "32x3090-4nodes-ib-nccl2.12.12" / "TIMINGS-4hosts-run0.txt", AR)
    assert len(found.blocks) == 25
    assert rows(found)[-1] == (1 << 30, False, 515875.0, 0)


def test_what_nccl_logs_of_each_call_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines keep their numbers, cut ones their beginning, and the answer is that of the whole file."""
    text = (EXAMPLES / "all_reduce.log").read_text("utf-8").splitlines(keepends=True)
    said = "{}:4711:4720 [{}] NCCL INFO {}\n"
    logged = [said.format("node07", at % 8, f"AllReduce: opCount {at:x} count 8192") for at in range(4000)]
    told = [
        said.format("node07", 0, "NCCL version 2.29.2+cuda12.9"),
        said.format("node07", 0, "NCCL_ALGO set by environment to Ring"),
        said.format("node08", 0, "Bootstrap: Using eth0").rstrip("\n") + "\u2028glued\n",
    ]
    glued = text[-8].rstrip("\n") + said.format("node07", 3, "AllReduce: opCount 1 count 8192")
    path = tmp_path / "calls.log"
    path.write_text("".join([*text[:14], *logged, *told, *logged, *text[14:-8], glued, *text[-7:]]), "utf-8")
    kept = MeasurementFile(path)
    assert len(kept.content) < path.stat().st_size / 10
    monkeypatch.setattr(formats, "_content", lambda path: path.read_bytes())
    whole = MeasurementFile(path)
    assert len(whole.content) == path.stat().st_size
    for given in (Given(), Given(collective="allreduce")):
        assert kept.read(given) == whole.read(given)
        assert len(kept.read(given).blocks) == 36
    assert (kept.format, kept.forces, kept.release) == (whole.format, True, whole.release)
