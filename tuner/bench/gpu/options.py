"""How GPUs are measured: what the command line says, and what a file's header says once more."""

from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.oracle.library import given
from tuner.times.records.header import Header

# Above, a call takes longer than the host takes to start it: 20 us on 2 ranks of a process, 60 to 90 us on 8 (an H200).
GRAPHS_BELOW_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How the GPUs are measured.

    ``topology`` is where NCCL's view of the machine is written, ``log`` where NCCL's log is kept (of rank 0's process,
    and of the first communicator there), ``library`` a libnccl instead of the installed wheel's. ``limit_s`` is for
    each block, for the communicator's init, and for meeting. Calls of fewer nBytes than ``graphs_below_bytes`` are
    timed inside CUDA graphs, so that the host's time does not count; their buffers are registered there, as NCCL does
    by itself, only with ``registered``.
    """

    ranks_per_gpu: int = 1
    library: Path | None = None
    topology: Path = Path("nccl-topology.xml")
    limit_s: float = 60.0
    log: Path | None = None
    graphs_below_bytes: int = GRAPHS_BELOW_BYTES
    registered: bool = False


def options_of(header: Header) -> Options:
    """The options that a file with this header was measured with; BadMeasurement where it does not say them."""
    topology = header.scenario.topology if header.scenario else None
    library = given(header.nccl or "") or (header.noted.library if header.noted else None)
    if header.ranks_per_gpu is None or topology is None or library is None:
        raise BadMeasurement(
            f"the header does not say how to measure again: ranks_per_gpu {header.ranks_per_gpu}, library {library}, "
            f"topology {topology}"
        )
    return Options(
        header.ranks_per_gpu,
        library,
        topology,
        graphs_below_bytes=header.graphs_below_bytes or 0,
        registered=bool(header.graph_buffers_registered),
    )
