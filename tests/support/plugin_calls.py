"""Calls of the plugin, what it answers and says; also in new processes that find another tuner by their libraries."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.plugin.dry_run import INFO, DryRun, TunerCall

COSTS = np.full((len(Algorithm), len(Protocol)), 10.0, np.float32)
COSTS[Algorithm.CollNetChain] = -1


def said(run: DryRun, level: int = INFO) -> list[str]:
    """What the plugin itself logged."""
    mark = "TUNER/nccl-tuner: "
    return [line.text.removeprefix(mark) for line in run.log if line.level == level and line.text.startswith(mark)]


def answer(run: DryRun, call: TunerCall) -> object:
    """What is taken: a pair and channels, or None where nothing was written."""
    if run.version < 3:
        choice, channels = run.name(call)
        return (*choice, channels) if choice else None
    answered = run.ask(call, COSTS)
    if answered.cost_us.tobytes() == COSTS.tobytes() and answered.channels == 0:
        return None
    cell = int(answered.cost_us[answered.cost_us >= 0].argmin())
    usable = np.argwhere(answered.cost_us >= 0)[cell]
    return Algorithm(int(usable[0])), Protocol(int(usable[1])), answered.channels


def by_default(
    folder: Path, versions: Iterable[int], loaded: str = "", value: str = "", **env: str
) -> dict[int, tuple[bool, str]]:
    """Whether another tuner answered in a process whose libraries lie in the folder, and what the log says.

    By version of the interface, each in a process of its own; ``loaded`` are libraries that it opens before, ``value``
    is NCCL_TUNER_NEXT.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith("NCCL_")}
    environment |= {"LD_LIBRARY_PATH": str(folder), **env}
    command = [sys.executable, "-m", __name__, ",".join(map(str, versions)), loaded, value]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    return {version: (answered, log) for version, answered, log in map(json.loads, ran.stdout.splitlines())}


def _ask(version: int, loaded: str, value: str) -> None:
    for name in filter(None, loaded.split(",")):
        ctypes.CDLL(name)
    with DryRun(None, ranks=16, nodes=2, version=version, env={"NCCL_TUNER_NEXT": value}) as run:
        answered = answer(run, TunerCall(Collective.AllReduce, 5)) is not None
    print(json.dumps([version, answered, "".join(f"{line}\n" for line in said(run))]), flush=True)


def _ask_each(versions: str, loaded: str, value: str) -> None:
    for version in versions.split(","):
        child = os.fork()  # cheaper than to start Python anew
        if child == 0:
            _ask(int(version), loaded, value)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"version {version} failed")


if __name__ == "__main__":
    _ask_each(*sys.argv[1:])
