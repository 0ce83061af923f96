"""A program and a libnccl for aarch64, run by qemu on simulated GPUs: NCCL's log says what the emulator picks."""

import os
import platform
import re
import runpy
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import both_builds
from tests.support.available_releases import is_here
from tests.support.both_builds import AARCH64_LIBRARIES, CROSS, QEMU, THERE
from tests.support.both_builds import RUN_BY_TESTS as RELEASE
from tests.support.draws import Draws
from tests.support.recorded import Recorder
from tuner.api import communicator
from tuner.base.names import Algorithm, Protocol
from tuner.machine.graphs import release_key
from tuner.oracle import library
from tuner.oracle.preloaded import preloaded
from tuner.scenario.describe import describe

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs" / "examples" / "all_reduce.c"
LIBRARY = AARCH64_LIBRARIES / f"{RELEASE}.so"
FETCHED = sorted([file.stem for file in AARCH64_LIBRARIES.glob("*.so")], key=release_key)
CHOSEN = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+) channel{Lo\.\.Hi}={0\.\.(\d+)}")

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated GPUs for aarch64, and beside them the example."""
    for needed in (CROSS, QEMU):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    if not LIBRARY.is_file():
        pytest.skip(f"no {LIBRARY}: python -m tests.scripts.fetch_arm")
    folder = tmp_path_factory.mktemp("aarch64")
    macro = "-D{}={}".format(*runpy.run_path(str(ROOT / "csrc" / "sources.py"))["macro"](ROOT / "csrc"))
    made = folder / "libnccl_tuner_sim.so"
    subprocess.run([CROSS, macro, "@csrc/sim.args", "-o", made], cwd=ROOT, check=True)
    subprocess.run([CROSS, SOURCE, LIBRARY, made, "-o", folder / "all_reduce"], check=True)
    return made


@pytest.mark.parametrize(("machine", "bytes_each"), [("alps", 1 << 20), ("gh200-4x", 1 << 26), ("dgx-h100", 1 << 10)])
def test_the_library_for_aarch64_picks_what_the_emulator_does(
    simulated: Path, machine: str, bytes_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr("tuner.oracle.preloaded.SIM", simulated)
    described = describe(machine=machine, nccl=RELEASE, gpus_per_node=4)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_", "QEMU_"))}
    with preloaded(replace(described.oracle_configuration(), library=LIBRARY)) as prepared:
        variables = prepared.variables({**own, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"})
        before = [*THERE, "-E", f"LD_PRELOAD={variables.pop('LD_PRELOAD')}"]  # of the program, not of qemu
        words = [*before, str(simulated.with_name("all_reduce")), str(bytes_each)]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "4 of 4 GPUs: done" in done.stdout) == (0, True), done.stdout + done.stderr
    pick = communicator(machine, nccl=RELEASE, gpus_per_node=4).pick("allreduce", [bytes_each])
    algorithm, protocol = Algorithm(int(pick.algorithm[0])).name, Protocol(int(pick.protocol[0])).name
    picked = str(bytes_each), algorithm.upper(), protocol.upper(), str(int(pick.channels[0]) - 1)
    assert set(CHOSEN.findall(done.stdout)) == {picked}


@pytest.mark.slow
@pytest.mark.parametrize("name", FETCHED)
def test_both_builds_compute_the_same(name: str, draws: Draws, recorder: Recorder, tmp_path: Path) -> None:
    """Constants, defaults, bandwidths and picks; latencies but for the last bit. Recorded in docs/arm.toml."""
    if missing := both_builds.missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)}")
    if not is_here(name):
        pytest.skip(f"no libnccl {name} for x86-64 here")
    x86, aarch64 = both_builds.builds(library.find(name).path, AARCH64_LIBRARIES / f"{name}.so", tmp_path)
    row = both_builds.compare(name, x86, aarch64, 100 if recorder.on else draws.times)
    recorder.write("arm", name, row)
    if recorder.on and name == both_builds.RECORDED:
        both_builds.record(aarch64)
    assert not any(row[key] for key in both_builds.WRONG), row
    assert row["constants"]
    assert row["variables"]
