"""The self-test and the whole loop in stages, on simulated GPUs under the real libnccl."""

import json
import re
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path
from statistics import median
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from benchmarks import gpu_stages
from benchmarks.gpu_calls import HOST_SIZES, compare
from benchmarks.gpu_stages import ARCHIVE, Done, Ended, Stage, Stages
from tests.support.available_releases import HERE
from tests.support.double.settings import DoubleEnvironment, DoubleSettings, Fault
from tuner import plugin
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Algorithm, Protocol
from tuner.bench.backend import Options, Run
from tuner.bench.gpu import selftest
from tuner.bench.gpu.selftest import RANKS, TOOK_TOO_LONG, SelfTest, named_in, passes
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination

ROOT = Path(__file__).parents[2]
RELEASE = "2.28.9"
RING_LL, TREE_LL = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Tree, Protocol.LL)
SELF_TEST = ("-m", "tuner.bench.gpu.selftest")
needs_libnccl = pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")


def on_simulated_gpus(*words: str, fault: str | None = None, limit_s: float = 300) -> tuple[int, str]:
    """Exit code and output of a Python on two of them."""
    faults = () if fault is None else (Fault.parsed(fault),)
    settings = DoubleSettings(Scenario(RELEASE, 1, machine="dgx-h100", gpus_per_node=2), faults=faults)
    with DoubleEnvironment(settings) as environment:
        done = subprocess.run(
            [sys.executable, *words, "--library", str(environment.library)],
            env=environment.variables(),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    return done.returncode, done.stdout + done.stderr


def layers(said: str) -> dict[str, str]:
    """By layer: what was said last of it."""
    found = {}
    for line in said.splitlines():
        name, _, rest = line.partition(":")
        if line.endswith(" ..."):
            found[line.removesuffix(" ...")] = "begun"
        elif rest.strip().startswith(("ok", "FAILED")):
            found[name] = rest.split(",")[0].strip()
    return found


ALL = (
    "packages",
    "driver",
    "NVRTC",
    "libnccl",
    "ranks",
    "a plain call",
    "a call in a graph",
    "forced calls",
)


@pytest.mark.live
@needs_libnccl
def test_all_layers_work() -> None:
    code, said = on_simulated_gpus(*SELF_TEST)
    assert code == 0, said
    assert layers(said) == {**dict.fromkeys(ALL, "ok"), "all layers": "ok"}


@pytest.mark.live
@needs_libnccl
@pytest.mark.parametrize(
    ("fault", "layer"),
    [
        ("error:error=cudaErrorLaunchFailure", "a plain call"),
        ("wrong:rank=1", "a plain call"),
    ],
)
def test_the_layer_that_fails_is_named(fault: str, layer: str) -> None:
    code, said = on_simulated_gpus(*SELF_TEST, fault=fault)
    assert code == 1, said
    good = ALL[: ALL.index(layer)]
    found = layers(said)
    assert {name: found[name] for name in good} == dict.fromkeys(good, "ok")
    assert found[layer].startswith("FAILED: ")
    assert not set(ALL[ALL.index(layer) + 1 :]) & found.keys()


@pytest.mark.live
@needs_libnccl
def test_a_layer_that_hangs_was_begun_last() -> None:
    code, said = on_simulated_gpus(*SELF_TEST, "--limit-s", "5", fault="hang")
    # the communicator's own limit, or the self-test's, whichever is there first
    assert code in (1, TOOK_TOO_LONG), said
    last = [line for line in said.splitlines() if line.startswith("a plain call:")][-1]
    assert named_in(last) == "a plain call"
    assert last.startswith(
        ("a plain call: HANGS: not done 5 s", "a plain call: FAILED: a collective was not done within 5 s")
    )


def test_the_layer_that_hangs_is_named_and_it_ends_as_what_took_too_long(tmp_path: Path) -> None:
    hangs = (
        "import time; from tuner.bench.gpu import selftest as s; "
        "watched = s._Watched(1.0); watched.say('ranks ...'); time.sleep(60)"
    )
    stages = Stages(tmp_path, 60, say=lambda line: None)
    assert not stages.run(Stage("selftest", (sys.executable, "-c", hangs), 30))
    done = stages.done["selftest"]
    assert (done.ended, done.said) == (Ended.limit, "ranks: HANGS: not done 1 s after the start")
    assert named_in(done.said) == named_in("ranks ...") == RANKS
    assert "in <module>" in (tmp_path / "selftest.err").read_text(), "where"


def test_a_missing_package_and_a_missing_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    said: list[str] = []
    assert not passes(Options(), said.append)
    assert said[0] == "packages ..."
    assert said[1].startswith("packages: FAILED: missing: cupy (")
    assert len(said) == 2


def test_a_libnccl_for_other_gpus_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = SelfTest(Options(library=tmp_path / "libnccl.so.2"))
    (tmp_path / "libnccl.so.2").touch()
    made._cuda = SimpleNamespace(count=1, capability=lambda _: 80, name=lambda _: "A100")  # type: ignore[assignment]
    for has, complaint in (
        (80, None),
        (90, r"libnccl\.so\.2 has no code for A100, sm_80: use the libnccl of a wheel, or a"),
    ):
        monkeypatch.setattr(selftest, "runs_on", lambda _, capability, has=has: capability == has)
        with pytest.raises(BadInput, match=complaint) if complaint else nullcontext():
            dict(made.layers)["libnccl"]()


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (Run((9.0,), RING_LL, wrong=3), "the call: 3 elements of the results are wrong"),
        (Run((9.0,), RING_LL), None),
    ],
)
def test_wrong_results_are_no_success(run: Run, complaint: str | None) -> None:
    with pytest.raises(MeasuringFailed, match=complaint) if complaint else nullcontext():
        dict(with_runs(run).layers)["a plain call"]()


def test_what_was_replaced_is_no_success() -> None:
    with pytest.raises(MeasuringFailed, match=r"^Tree/LL was forced, and Ring/LL ran$"):
        dict(with_runs(Run((9.0,), RING_LL)).layers)["forced calls"]()


def with_runs(run: Run) -> SelfTest:
    """On two ranks whose calls all have this end."""
    gpu = SimpleNamespace(ranks=2, run=lambda *_: run, combinations=lambda point: [RING_LL, TREE_LL])
    made = SelfTest(Options())
    made._gpu = gpu  # type: ignore[assignment]
    return made


@pytest.mark.live
@pytest.mark.slow
@needs_libnccl
def test_the_whole_loop_runs_in_stages_and_goes_on(tmp_path: Path) -> None:
    loop = (str(ROOT / "benchmarks" / "gpu_loop.py"), "--out", str(tmp_path / "out"), "--copies", str(tmp_path / "to"))
    _, said = on_simulated_gpus(*loop, "--bytes", "16K,8M", "--seconds", "170")
    done = {each["name"]: each for each in json.loads((tmp_path / "out" / "stages.json").read_text())}
    ended = {name: each["ended"] for name, each in done.items()}
    assert {"selftest", "own", "check-log", "noise", "quick", "gate", "latency", "sockets"} <= ended.keys(), said
    assert "failed" not in ended.values(), said  # a slow computer may leave out what comes last
    assert {ended[name] for name in ("own", "check-log", "noise", "quick")} == {"ok"}, said
    assert done["own"]["said"].startswith("140 of 140 choices are the emulator's, with channels;"), said
    last = "gate" if ended["gate"] == "ok" else "own"  # a slow computer reaches the limit of the gate's time
    assert ended["gate"] in ("ok", "limit"), said
    with tarfile.open(tmp_path / "to" / ARCHIVE) as packed:
        assert set(packed.getnames()) >= {"own.jsonl", "run.jsonl", "run.jsonl.topology.xml", "own.nccl.log"}
        log = packed.extractfile("own.nccl.log")
        assert log is not None
        (tmp_path / "packed.log").write_bytes(log.read())
    checked = ("-m", "tuner", "log", "--check", str(tmp_path / "packed.log"))
    topology = ("--topology", str(tmp_path / "out" / "own.jsonl.topology.xml"))
    shown = subprocess.run([sys.executable, *checked, *topology], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, "what is packed is all that it takes"
    assert "140/140" in shown.stdout
    _, said = on_simulated_gpus(*loop, "--seconds", "20")
    assert f"== {last}: done before" in said, said


@pytest.mark.live
@needs_libnccl
def test_own_choices_are_compared_with_the_emulators(tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    code, said = on_simulated_gpus(
        str(ROOT / "benchmarks" / "gpu_calls.py"), "own", "--out", str(out), "--most-bytes", "4096"
    )
    assert code == 0, said
    assert said.splitlines()[-1] == (
        "50 of 50 choices are the emulator's, with channels; NCCL did not say 0; 0 results are wrong"
    )
    lines = out.read_text().splitlines()
    for changed, first in (
        ({"ran": {"algorithm": "Tree", "protocol": "Simple", "channels": 1}}, "AllReduce 8 B: NCCL ran Tree/Simple"),
        ({"wrong": 1}, "50 of 50 choices are the emulator's, with channels; NCCL did not say 0; 1 results are wrong"),
    ):
        number = next(number for number, line in enumerate(lines) if '"AllReduce","bytes":8,' in line)
        other = [*lines]
        other[number] = json.dumps({**json.loads(lines[number]), **changed})
        out.write_text("\n".join([*other, ""]))
        text, exact = compare(out)
        assert not exact
        assert text.startswith(first)


@pytest.mark.live
@needs_libnccl
def test_the_hosts_time_with_a_plugin_and_without(tmp_path: Path) -> None:
    table, out = tmp_path / "none.table", tmp_path / "host.jsonl"
    table.write_text("nccl-tuner-table 1\n")
    host_time = (str(ROOT / "benchmarks" / "gpu_calls.py"), "host", "--out", str(out))
    for words in ((), ("--plugin", str(plugin.path()), "--table", str(table))):
        code, said = on_simulated_gpus(*host_time, *words)
        assert code == 0, said
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["bytes"] for line in lines] == 2 * list(HOST_SIZES)
    assert {line["plugin"] for line in lines} == {"none", str(plugin.path())}
    assert all(
        line[name] is not None
        for line in lines
        for name in ("events_us", "host_us", "graph_us", "graph_host_us", "host_clock_us")
    )


JOB = str(ROOT / "benchmarks" / "gpu_job.py")


@pytest.mark.live
@pytest.mark.slow
@needs_libnccl
def test_a_training_step_overlaps_and_a_table_reaches_it(tmp_path: Path) -> None:
    """A table that is no good makes it longer, and is told apart by what it does in this one process already."""
    slow, out = tmp_path / "slow.table", tmp_path / "step.jsonl"
    slow.write_text("nccl-tuner-table 1\nallreduce bytes=8388608..67108864 -> ring/ll\n")
    for words in ((), ("--table", str(slow)), ("--table", str(tmp_path / "none.table"))):
        code, said = on_simulated_gpus(JOB, "step", "--out", str(out), "--share", "0.1", *words)
        assert code == 0, said
    assert "no row was decided" in said
    own, under = (json.loads(line) for line in out.read_text("utf-8").splitlines())
    assert [own["table"], under["table"]] == [False, True]
    step, computing, collectives = (median(own[f"{key}_us"]) for key in ("step", "computing", "collectives"))
    assert max(computing, collectives) < step < computing + collectives
    assert median(under["collectives_us"]) > 1.5 * collectives
    assert median(under["computing_us"]) == computing
    assert median(under["step_us"]) > step


@pytest.mark.parametrize(
    ("times_us", "code", "says"),
    [
        ([(900, 1000), (905, 1004), (898, 1001), (902, 997)], 0, "faster: a training step of 4 ranks takes 901.0 us"),
        ([(1000, 900), (1004, 905), (1001, 898), (997, 902)], 1, "slower: a training step of 4 ranks takes 1000.5 us"),
        ([(1000, 1010), (1010, 1000), (1003, 998), (998, 1003)], 0, "not told apart: "),
        ([(900, 1000), (905, 1004)], 0, "2 processes with a decided table: nothing to compare"),
    ],
)
def test_what_a_table_gains_is_told_with_its_interval(
    tmp_path: Path, times_us: list[tuple[float, float]], code: int, says: str
) -> None:
    alone = {"ranks": 4, "computing_us": [600.0], "collectives_us": [700.0]}
    sides = [
        {**alone, "table": table, "step_us": 3 * [us]}
        for each in times_us
        for table, us in zip((True, False), each, strict=True)
    ]
    (tmp_path / "step.jsonl").write_text("".join(f"{json.dumps(side)}\n" for side in sides))
    done = subprocess.run(
        [sys.executable, JOB, "gain", "--out", str(tmp_path / "step.jsonl")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(says)
    found = re.search(r"([-+][\d.]+) % of speed, 95 % interval ([-+][\d.]+) to ([-+][\d.]+) %, 4 pairs", done.stdout)
    assert (found is not None) == (len(times_us) > 2)
    if found is not None:
        gain, low, high = map(float, found.groups())
        assert low < gain < high
        assert (low > 0) == says.startswith("faster")
        assert (high < 0) == says.startswith("slower")


class Scripted:
    """Stages that end as they are told to; the others succeed."""

    def __init__(self, **said: str) -> None:
        self.said = {name.replace("_", "-"): text for name, text in said.items()}
        self.done: dict[str, Done] = {}

    def succeeded(self, name: str) -> bool:
        return False

    def run(self, stage: Stage) -> bool:
        text = self.said.get(stage.name, "all layers: ok")
        ended = Ended.ok if text == "all layers: ok" else Ended.limit if "HANGS" in text else Ended.failed
        self.done[stage.name] = Done(stage.name, ended, 1.0, text)
        return ended is Ended.ok


NO_CALL, NO_GRAPH = "a plain call: FAILED: a rank hangs", "a call in a graph: FAILED: cudaErrorStreamCaptureWrongThread"
ALL_BUT_SOCKETS = ("", "_16_blocks", "_2_blocks", "_1_block", "_no_p2p")


@pytest.mark.parametrize(
    ("said", "tried", "works"),
    [
        ({}, ["2", "3", "4", "8"], {2: "", 3: "", 4: "", 8: ""}),
        (
            {"selftest_2": NO_CALL, "selftest_2_16_blocks": "a plain call: HANGS: not done 20 s after the start"},
            ["2", "2-16-blocks", "2-2-blocks", "3-2-blocks", "4-2-blocks", "8-2-blocks"],
            {2: "-2-blocks", 3: "-2-blocks", 4: "-2-blocks", 8: "-2-blocks"},
        ),
        (
            {"selftest_2": NO_GRAPH, "selftest_8_no_graphs": NO_CALL},
            ["2", "2-no-graphs", "3-no-graphs", "4-no-graphs", "8-no-graphs", "8-1-block-no-graphs"],
            {2: "-no-graphs", 3: "-no-graphs", 4: "-no-graphs", 8: "-1-block-no-graphs"},
        ),
        (
            {f"selftest_2{step}": NO_CALL for step in ALL_BUT_SOCKETS} | {"selftest_3_sockets": NO_CALL},
            [
                "2",
                "2-16-blocks",
                "2-2-blocks",
                "2-1-block",
                "2-no-p2p",
                *(f"{ranks}-sockets" for ranks in (2, 3, 4, 8)),
            ],
            {2: "-sockets", 4: "-sockets", 8: "-sockets"},
        ),
        ({"selftest_2": "packages: HANGS: not done"}, ["2", "2-again", "3", "4", "8"], {2: "", 3: "", 4: "", 8: ""}),
        ({"selftest_2": "driver: FAILED: no GPU: cudaErrorInsufficientDriver"}, ["2"], {}),
        ({f"selftest_2{step}": NO_CALL for step in (*ALL_BUT_SOCKETS, "_sockets")}, None, {}),
    ],
)
def test_what_fails_is_tried_in_simpler_setups(
    tmp_path: Path, said: dict[str, str], tried: list[str] | None, works: dict[int, str]
) -> None:
    with patch.dict(sys.modules, {"gpu_stages": gpu_stages}):
        loop = run_path(str(ROOT / "benchmarks" / "gpu_loop.py"))
    stages = Scripted(**said)
    runs = [loop["Run"](tmp_path, None, ranks, "1K") for ranks in loop["CLIMB"]]
    found = loop["working_runs"](stages, runs)
    assert {run.ranks_per_gpu: run.setup.name for run in found} == works
    assert tried is None or list(stages.done) == [f"selftest-{name}" for name in tried]
    for run in found:
        (quick,) = [stage for stage in loop["in_order"](found, found) if stage.name == run.name("quick")]
        assert quick.variables == run.setup.variables
        below = quick.command[quick.command.index("--cuda-graph-below") + 1]
        assert below == ("0" if "no-graphs" in run.setup.name else "128M")
