"""What ran against the emulator's picks: each thing that may differ does so once, and is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import trace_files
from tests.support.trace_files import JOB, Made
from tuner.base.errors import BadInput, CannotBeJudged
from tuner.base.names import Algorithm, Collective
from tuner.cli import everything
from tuner.jobs.check_run import CheckedRun, check
from tuner.jobs.traces.read import read
from tuner.jobs.workload import job
from tuner.scenario import Scenario

TWO = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
PLACE = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def checked(path: Path, scenario: Scenario = TWO) -> CheckedRun:
    return check([read(path, scenario.ranks)], scenario, job.wanted_of(scenario))


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(everything, ["check", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def not_judged(*arguments: str | Path) -> str:
    done = CliRunner().invoke(everything, ["check", *map(str, arguments)])
    assert isinstance(done.exception, CannotBeJudged), (done.output, done.exception)
    return str(done.exception)


def refused(*arguments: str | Path) -> str:
    done = CliRunner().invoke(everything, ["check", *map(str, arguments)])
    assert isinstance(done.exception, BadInput), (done.output, done.exception)
    return str(done.exception)


SILENT = ("flight-recorder.json", "flight-recorder.pickle", "deepspeed.log")  # they do not say what ran
SAYING = [name for name in trace_files.WRITERS if name not in SILENT]


@pytest.mark.parametrize("name", SAYING)
def test_a_run_as_the_emulator_picks(tmp_path: Path, name: str) -> None:
    report = checked(trace_files.WRITERS[name](tmp_path / name))
    assert report.differing == ()
    assert report.compared_calls == report.agreeing_calls == (4 if name.endswith(".prom") else 8)


@pytest.mark.parametrize(
    ("name", "change", "differs"),
    [
        ("inspector.prom", {"algorithm": "RING"}, ("algorithm",)),
        ("inspector.prom", {"protocol": "SIMPLE"}, ("protocol",)),
        ("inspector.log", {"channels": 8}, ("channels",)),
        ("profiler-plugin.json", {"algorithm": "RING", "channels": 4}, ("algorithm", "channels")),
        ("profiler-plugin.json", {"protocol": "LL128"}, ("protocol",)),
        ("nsight.sqlite", {"algorithm": "RING"}, ("algorithm",)),
        ("nsight.sqlite", {"channels": 24, "threads": 512}, ("channels", "threads")),
    ],
)
def test_what_differs_is_named(tmp_path: Path, name: str, change: dict[str, Any], differs: tuple[str, ...]) -> None:
    made = (replace(JOB[0], **change), *JOB[1:])
    report = checked(trace_files.WRITERS[name](tmp_path / name, made))
    (one,) = report.differing
    assert (one.collective, one.bytes, one.differs) == (Collective.AllReduce, 64 << 10, differs)
    assert one.emulated[0].algorithm is Algorithm.Tree
    assert report.compared_calls - report.agreeing_calls == one.calls


def test_a_kernel_of_ring_runs_anything_but_trees(tmp_path: Path) -> None:
    """The kernel of NVLSTree is called RING; only that of Tree is called TREE."""
    made = [Made("AllReduce", 256 << 20, "TREE", "SIMPLE", 16)]
    (one,) = checked(trace_files.nsight(tmp_path / "x", made)).differing
    assert (one.differs, one.executed_in_words) == (("algorithm",), "Tree, 16 channels, 640 threads")


def test_within_a_range_of_sizes_any_pick_agrees(tmp_path: Path) -> None:
    # 1-2MB holds 1968827 B, where NCCL leaves Tree/LL128 for NVLSTree/Simple.
    ran = (("TREE", "LL128"), ("NVLS_TREE", "SIMPLE"), ("RING", "LL"))
    made = [Made("AllReduce", 1 << 20, algorithm, protocol, 16) for algorithm, protocol in ran]
    report = checked(trace_files.prometheus(tmp_path / "x", made))
    assert [one.executed.algorithm for one in report.differing] == [Algorithm.Ring]
    assert len(report.differing[0].emulated) == 2


def test_calls_in_a_group_are_not_compared(tmp_path: Path) -> None:
    made = (*JOB[:3], replace(JOB[3], channels=2))
    report = checked(trace_files.profiler(tmp_path / "x", made, together=2))
    assert report.differing == ()
    assert [(left.calls, "in one group" in left.reason) for left in report.not_compared] == [(2.0, True)]


def test_a_kineto_trace_says_channels_threads_and_trees(tmp_path: Path) -> None:
    def events(number: int, kernel: str, grid: int) -> list[dict[str, Any]]:
        arguments = {"External id": number, "Collective name": "allreduce", "Group size": 16}
        arguments |= {"In msg nelems": 16384, "dtype": "Float"}
        launch = {**arguments, "grid": [grid, 1, 1], "block": [640, 1, 1]}
        return [
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": arguments},
            {"ph": "X", "cat": "kernel", "name": kernel, "dur": 50, "args": launch},
        ]

    def trace(kernel: str, grid: int, more: int = 0) -> Path:
        every = events(1, kernel, grid) + events(1, kernel, grid)[1:] * more
        (tmp_path / "x").write_text(json.dumps({"traceEvents": every}))
        return tmp_path / "x"

    tree, ring = (f"ncclDevKernel_AllReduce_Sum_f32_{name}_LL(ncclDevKernelArgsStorage)" for name in ("TREE", "RING"))
    assert checked(trace(tree, 16)).differing == ()
    assert checked(trace(ring, 16)).differing[0].differs == ("algorithm",)
    assert checked(trace(tree, 12)).differing[0].differs == ("channels",)
    assert "a symmetric kernel ran" in not_judged(trace("ncclSymkDevKernel_AllReduce_AGxLL_R", 8), *PLACE)
    assert "does not say what ran" in not_judged(trace(tree, 16, more=1), *PLACE)  # of two kernels none is the call's


def test_logs_are_compared_by_what_they_print() -> None:
    docs = Path(__file__).parents[2] / "docs" / "examples"
    said = run(docs / "nccl.log", "--log", docs / "nccl.log", "--comp-cap", "8.0")
    assert "6 of 6 calls ran as the emulator picks" in said


def test_choices_of_a_log_without_ranks_are_of_those_described(tmp_path: Path) -> None:
    """Lines of choices print the bytes of one rank of AllGather, and no other line of such a log says the ranks."""
    line = "h:1:1 [0] NCCL INFO AllGather: 65536 Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..15}}\n"
    for algorithm, protocol, agreeing in (("RING", "LL128", 1), ("RING", "LL", 0)):
        (tmp_path / "nccl.log").write_text(line.format(algorithm, protocol), "utf-8")
        seen = checked(tmp_path / "nccl.log")
        assert (seen.calls[0].bytes, seen.compared_calls, seen.agreeing_calls) == (1 << 20, 1, agreeing)


def test_exit_codes_and_what_is_printed(tmp_path: Path) -> None:
    good = trace_files.profiler(tmp_path / "good")
    bad = trace_files.profiler(tmp_path / "bad", (replace(JOB[0], algorithm="RING"), *JOB[1:]))
    assert "8 of 8 calls ran as the emulator picks" in run(good, *PLACE)
    said = run(bad, *PLACE, code=1)
    assert "Ring/LL, 16 channels" in said
    assert "Tree/LL on 16 channels of 640 threads" in said
    record = json.loads(run(bad, *PLACE, "--json", code=1))
    assert [each["differs"] for each in record["mismatches"]] == [["algorithm"]]
    assert (record["compared_calls"], record["agreeing_calls"]) == (8, 5)
    assert "does not say what ran" in not_judged(trace_files.deepspeed(tmp_path / "x"), *PLACE)
    assert "--communicator 'x'" in refused(good, *PLACE, "--communicator", "x")
