"""The interface of everything that can measure: GPUs, or a simulation with planted times. The measuring loop only uses
this interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.oracle.library import given
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Point


@dataclass(frozen=True, slots=True)
class Run:
    """The repeated runs of one call: their times in us, the executed combination, and the number of wrong results.

    ``executed`` is None if it was not observed.

    ``host_us`` is the least time that the host took to start one call on all ranks; None if not measured. ``late_us``
    has the ranks that took longest, each with the time in us that it took longer than the median rank.
    """

    times_us: tuple[float, ...]
    executed: Combination | None
    wrong: int = 0
    host_us: float | None = None
    late_us: tuple[tuple[int, float], ...] = ()


class Backend(Protocol):
    """One communicator on which calls can be forced, one after the other."""

    @property
    def ranks(self) -> int:
        """The number of ranks of the communicator."""

    def describe(self) -> Header:
        """The header of files that are measured on this backend.

        It has everything that must be equal if a later run continues the file, and what else explains the times.

        The field ``noted`` has what explains the times, but may differ in a later run: the date, clocks, the driver.
        """

    def combinations(self, point: Point) -> Sequence[Combination]:
        """The combinations that can be requested for this call."""

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Runs a call ``repeats`` times. If ``requested`` is None, NCCL or the table in use chooses."""

    def now_s(self) -> float:
        """The clock for time budgets and ``at_s``, in seconds since an arbitrary start. A simulated clock does not
        wait."""

    def use_table(self, text: str | None) -> None:
        """Sets the decision table that NCCL's own choices follow from now on; None removes it."""

    def renew(self) -> bool:
        """Continues in a fresh process, with everything set up again. Returns False if no other process is possible."""

    def rest(self, seconds: float) -> None:
        """Lets ``seconds`` pass without calls. A simulated clock is moved forward instead."""

    def close(self) -> None:
        """Frees all resources; nothing can be run afterwards."""


# Below this size, the host takes longer to start a call than the call takes: 20 us on 2 ranks of a process, 60 to 90 us
# on 8 (an H200).
GRAPHS_BELOW_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """Options for measuring on GPUs.

    ``topology``: file to which NCCL's view of the machine is written. ``log``: file to which NCCL's log is written (of
    rank 0's process and its first communicator). ``library``: a libnccl instead of the installed wheel's. ``limit_s``
    limits each block, the communicator's init, and the rendezvous. Calls of fewer nBytes than ``graphs_below_bytes``
    are timed inside CUDA graphs, so that the host's time does not count. If ``registered`` is true, NCCL registers the
    buffers of calls in graphs, as it does by default. If it is false, NCCL does so only if the environment variable for
    this is set.
    """

    ranks_per_gpu: int = 1
    library: Path | None = None
    topology: Path = Path("nccl-topology.xml")
    limit_s: float = 60.0
    log: Path | None = None
    graphs_below_bytes: int = GRAPHS_BELOW_BYTES
    registered: bool = False


def options_of(header: Header) -> Options:
    """The options with which a file with this header was measured. BadMeasurement if the header does not say them."""
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
