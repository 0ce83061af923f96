"""The self-test and the whole loop in stages, on simulated GPUs under the real libnccl."""

import json
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.available_releases import HERE
from tuner.base.errors import MeasuringFailed
from tuner.base.names import Algorithm, Protocol
from tuner.bench.backend import Run
from tuner.bench.double.environment import Environment
from tuner.bench.double.settings import DoubleSettings, Fault
from tuner.bench.gpu.options import Options
from tuner.bench.gpu.selftest import SelfTest, passes
from tuner.bench.gpu.stages import ARCHIVE
from tuner.scenario import Scenario
from tuner.times.records.samples import Combination

ROOT = Path(__file__).parents[2]
RELEASE = "2.28.9"
RING_LL, TREE_LL = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Tree, Protocol.LL)
SELF_TEST = ("-m", "tuner.bench.gpu.selftest")
needs_libnccl = pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")


def on_simulated_gpus(*words: str, fault: str | None = None, limit_s: float = 300) -> tuple[int, str]:
    """Exit code and output of a Python on two of them."""
    faults = () if fault is None else (Fault.parsed(fault),)
    settings = DoubleSettings(Scenario(RELEASE, 1, machine="dgx-h100", gpus_per_node=2), faults=faults)
    with Environment(settings) as environment:
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
    assert code == 1, said
    found = layers(said)
    assert list(found)[-1] == "a plain call"
    assert found["a plain call"].startswith(("begun", "FAILED: a collective was not done within 5 s"))


def test_a_missing_package_and_a_missing_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    said: list[str] = []
    assert not passes(Options(), said.append)
    assert said[0] == "packages ..."
    assert said[1].startswith("packages: FAILED: missing: cupy (")
    assert len(said) == 2


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
    _, said = on_simulated_gpus(*loop, "--bytes", "16K,8M", "--seconds", "175")
    done = {each["name"]: each["ended"] for each in json.loads((tmp_path / "out" / "stages.json").read_text())}
    assert {"selftest", "quick", "verify-quick", "gate", "sweep", "verify", "fit", "decide"} <= done.keys(), said
    assert "failed" not in done.values(), said  # a slow computer may leave out what comes last
    assert {done[name] for name in ("quick", "verify-quick")} == {"ok"}, said
    last = "gate" if done["gate"] == "ok" else "verify-quick"  # a slow computer reaches the limit of the gate's time
    assert done["gate"] in ("ok", "limit"), said
    with tarfile.open(tmp_path / "to" / ARCHIVE) as packed:
        assert set(packed.getnames()) >= {"run.jsonl", "run.jsonl.topology.xml", "gate.table", "quick.nccl.log"}
    _, said = on_simulated_gpus(*loop, "--seconds", "20")
    assert f"== {last}: done before" in said, said
