"""A training job of several processes on simulated GPUs, under the real libnccl, with the plugin as tuner and profiler.

Kernels write the counters of NCCL's profiler with planted times (csrc/sim/counters.c). Each rank is a process of
training_rank.py, which makes the calls that its script names, one a line.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.programs import FOLDER
from tuner import plugin
from tuner.base.files import cache_folder, remember, sha256
from tuner.oracle import symbols
from tuner.oracle.library import Library, find
from tuner.oracle.messages import Symbols
from tuner.oracle.preloaded import preloaded
from tuner.scenario.describe import describe

RANK = Path(__file__).with_name("training_rank.py")


@dataclass(frozen=True)
class Planted:
    """Times of kernels, us: ``(collective, algorithm, protocol)`` by NCCL's numbers, -1 for any, as (us, us a MiB)."""

    times: Mapping[tuple[int, int, int], tuple[float, float]] = field(default_factory=lambda: {(-1, -1, -1): (100, 10)})
    skew_us: float = 0
    straggler: tuple[int, int] = (-1, 0)  # rank, and of how many calls in percent it comes last
    noise_percent: float = 0

    def text(self, plain: bool) -> str:
        """The file that csrc/sim/counters.c reads; ``plain``: kernels have no clock."""
        lines = [f"time {c} {a} {p} {us} {each}" for (c, a, p), (us, each) in self.times.items()]
        lines += [f"skew {self.skew_us}", f"straggler {self.straggler[0]} {self.straggler[1]}"]
        return "\n".join([*lines, f"noise {self.noise_percent}", *(["plain"] if plain else []), ""])


_OF_PLAN = (b"ncclKernelPlan", b"ncclTaskColl", b"ncclDevKernelArgs", b"ncclDevWorkBatch")


@cache
def _plan_line(nccl: str) -> str:
    """Where a release has what its thread for the profiler waits for, from 2.31 on; "" where it has no such thread.

    Reading it takes seconds: it is kept for other processes and later runs, until this file changes.
    """
    library = find(nccl)
    located = symbols.load(library.path, library.sha256, cache_folder())
    if "ncclProfilerPostPlanWork" not in located.functions:
        return ""
    kept = FOLDER / f"plan-{library.sha256[:24]}-{sha256(Path(__file__))[:24]}"
    try:
        return kept.read_text("utf-8")
    except FileNotFoundError:
        line = _read_plan_line(library, located)
        remember(kept, line)
        return line


def _read_plan_line(library: Library, located: Symbols) -> str:
    from elftools.elf.elffile import ELFFile

    numbers: dict[str, int] = {}
    with library.path.open("rb") as file:
        for unit in ELFFile(file).get_dwarf_info().iter_CUs():
            top = unit.get_top_DIE()
            if top.attributes["DW_AT_name"].value.endswith(b"enqueue.cc"):
                for die in top.iter_children():
                    name = die.attributes.get("DW_AT_name")
                    if name and name.value in _OF_PLAN and die.has_children:
                        layout, owner = symbols.layout(die), name.value.decode().removeprefix("nccl")
                        numbers |= {f"{owner}.{path}": each.bit // 8 for path, each in layout.numbers.items()}
                        numbers[owner] = layout.size_bytes
    plan = [numbers[f"KernelPlan.{name}"] for name in ("collTaskQueue.head", "kernelArgs")]
    task = [numbers[f"TaskColl.{name}"] for name in ("eActivationMask", "channelLo")]
    comm = [located.comm.members[f"profiler.{name}"].offset for name in ("workStarted", "workCompleted", "workCounter")]
    device = [
        numbers[f"Dev{name}"]
        for name in ("KernelArgs.channelMask", "KernelArgs", "WorkBatch", "WorkBatch.offsetBitset")
    ]
    return " ".join(map(str, ["plan", *plan, *task, *comm, *device]))


@dataclass(frozen=True)
class Ran:
    """How each rank ended, and what it printed, NCCL's log included."""

    codes: list[int]
    outputs: list[str]


def hostile_files(how: str) -> dict[str, str]:
    """Variables of a rank whose files misbehave: hostile_files.c has the words."""
    from tests.support.programs import compiled, compiler

    source = Path(__file__).parent / "hostile_files.c"
    shared = compiled(compiler(), ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", source, "-ldl"], suffix=".so")
    return {"LD_PRELOAD": str(shared), "HOSTILE_FILES": how}


def run(
    folder: Path,
    nccl: str,
    ranks: int,
    script: Sequence[str] | Mapping[int, Sequence[str]],
    planted: Planted | None = None,
    nodes: int = 1,
    each: Mapping[int, Mapping[str, str]] | None = None,
    timeout_s: float = 120,
    **variables: str,
) -> Ran:
    """Runs a job whose ranks measure into ``folder``/job. ``each``: variables of single ranks, "" for none.

    A script by rank is for ranks that do not all do the same. A rank that has not ended by ``timeout_s`` is killed.
    """
    described = describe(machine="dgx-h100", nccl=nccl, nodes=nodes, gpus_per_node=ranks // nodes)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))}
    times = (planted or Planted()).text(plain=nccl.startswith("2.26."))
    (folder / "times").write_text(f"{times}{_plan_line(nccl)}\n")
    shared_object = str(plugin.path())
    given = {
        "NCCL_TUNER_PLUGIN": shared_object,
        "NCCL_PROFILER_PLUGIN": shared_object,
        "NCCL_TUNER_NEXT": "none",
        "NCCL_TUNER_JOB": str(folder / "job"),
        "NCCL_TUNER_JOB_SECONDS": "1",
        "NCCL_TUNER_SIM_TIMES": str(folder / "times"),
        "NCCL_DEBUG": "INFO",
        "NCCL_ALLGATHERV_ENABLE": "0",  # where broadcasts are not profiled, the plugin does not measure: 2.29 and 2.30
        **variables,
    }
    with preloaded(described.oracle_configuration()) as prepared, tempfile.TemporaryDirectory() as meeting:
        started = []
        for rank in range(ranks):
            lines = script[rank] if isinstance(script, Mapping) else script
            said = {**prepared.variables({**own, **given, **(each or {}).get(rank, {})}), "RANK": str(rank)}
            said = {name: value for name, value in said.items() if value or name in own}
            words = [sys.executable, "-I", "-S", str(RANK), str(ranks), str(ranks // nodes), meeting, *lines]
            file = (folder / f"rank{rank}.log").open("w")
            started.append(subprocess.Popen(words, env=said, stdout=file, stderr=subprocess.STDOUT))
        until = time.monotonic() + timeout_s
        for process in started:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    outputs = [(folder / f"rank{rank}.log").read_text() for rank in range(ranks)]
    return Ran([process.returncode for process in started], outputs)
