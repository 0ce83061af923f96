"""Runs unchanged programs that call libnccl on simulated GPUs. This module makes the environment of their processes.

The simulated CUDA runtime is loaded before the program (``LD_PRELOAD``), and prepares each process from a file that
this module writes. No Python runs inside the processes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.scratch import IN_THE_OPEN, ScratchFolder, clear_shared_memory
from tuner.oracle import start
from tuner.oracle.messages import RANK_VARIABLES, Start
from tuner.oracle.process import NO_TUNER, NOT_A_PLUGIN, SIM, SIM_NAMES, check_platform
from tuner.scenario.oracle_configuration import OracleConfiguration

PLAN = "NCCL_TUNER_SIM_PLAN"  # names the file with the plan

_OWN_PROCESSES = frozenset({"getPidHash"})  # NCCL distinguishes the program's processes by itself

# Variables that would change the simulation if a program set them; of the plugins that NCCL looks for by itself, the
# network's is the simulated one.
_DEFAULTS = {
    "NCCL_ENV_PLUGIN": "none",
    "NCCL_PROFILER_PLUGIN": "none",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_TUNER_PLUGIN": NO_TUNER,
}


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What a program's processes need to start. ``library`` is the libnccl that they load."""

    library: Path
    folder: Path
    configuration: OracleConfiguration

    def variables(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of a process. BadInput if ``given`` has a variable that the simulated machine sets."""
        said = {
            "NCCL_TOPO_FILE": str(self.folder / "topology.xml"),
            "NCCL_NET_PLUGIN": "sim",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
        }
        if doubled := sorted(said.keys() & given.keys()):
            raise BadInput(f"{', '.join(doubled)} set: the simulated machine sets that itself: unset it")
        own = {"LD_LIBRARY_PATH": [str(self.folder)], "LD_PRELOAD": [str(SIM), str(self.library)]}
        paths = {name: os.pathsep.join(filter(None, [*items, given.get(name)])) for name, items in own.items()}
        plan = {PLAN: str(self.folder / "plan")}
        return {**_DEFAULTS, **self.configuration.env, **given, **said, **paths, **plan}


@contextmanager
def preloaded(configuration: OracleConfiguration, processes_per_node: int | None = None) -> Iterator[Preloaded]:
    """Inside the block, programs can be started. ``processes_per_node`` is how many ranks in a row are on the same
    host; by default one per GPU.

    BadInput and BadTopology for configurations on which no program can run. OracleUnavailable if the release's libnccl
    is missing or cannot run here.
    """
    check_platform()
    if len(set(configuration.hosts)) > 1 or configuration.domains or configuration.skeleton:
        raise BadInput("programs can only be run on equal nodes, without NVLink domains and parts of topologies")
    if configuration.shares_gpus or configuration.split_off:
        raise BadInput("the program itself says which ranks there are: use one rank for each GPU")
    prepared = start.prepare(configuration)
    with ScratchFolder("preload") as made:
        folder = Path(made)
        (topology := folder / "topology.xml").write_text(start.topologies(prepared)[0])
        for name in SIM_NAMES:
            (folder / name).symlink_to(SIM)
        assert NOT_A_PLUGIN is not None
        assert NOT_A_PLUGIN.origin is not None
        (folder / f"libnccl-tuner-{NO_TUNER}.so").symlink_to(NOT_A_PLUGIN.origin)
        library = prepared.library.path.resolve()
        (folder / "libnccl.so.2").symlink_to(library)
        request = start.request(prepared, folder / "unused.log", (topology,))
        (folder / "plan").write_bytes(_plan(request, library, processes_per_node or configuration.hosts[0].gpus))
        (marker := folder / IN_THE_OPEN).touch()
        begun_s = marker.stat().st_mtime
        try:
            yield Preloaded(library, folder, configuration)
        finally:
            # Shared memory of processes that were killed, or that left communicators behind
            clear_shared_memory(begun_s)


def _plan(request: Start, library: Path, processes_per_host: int) -> bytes:
    """The file that ``csrc/sim/preload.c`` reads."""
    from tuner._native._sim import ffi, lib
    from tuner.oracle.child.world import check_build, machine_struct, operation_layout, redirections

    check_build()
    symbols = request.whole_symbols()
    rows = list(redirections(symbols, threads=False, kept=_OWN_PROCESSES))
    _, version_function = symbols.anchor
    plan = ffi.new(
        "struct sim_plan *",
        {
            "sources": ffi.string(lib.sim_sources()),
            "library": os.fsencode(library),
            "rank_variables": [name.encode() for name in RANK_VARIABLES],
            "processes_per_host": processes_per_host,
            "rows": len(rows),
            "version_function": version_function,
            "local_ranks": symbols.comm.members["localRanks"].offset,
            "operations": operation_layout(symbols),
            "machine": machine_struct(request.machine)[0],
        },
    )
    planned = ffi.new("struct sim_planned_row[]", [(row.function, row.bytes, row.table, row.row) for row in rows])
    return bytes(ffi.buffer(plan)) + bytes(ffi.buffer(planned))
