"""What measures: GPUs, or a planted truth. The loop above knows nothing else of them."""

from collections.abc import Sequence
from typing import Protocol

from tuner.base.dataclass import dataclass
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Point


@dataclass(frozen=True, slots=True)
class Run:
    """Repeats of one point: times of each in us, what was executed (None: not seen), how many results were wrong.

    ``host_us`` is the least that the host took to start one call on all ranks; None where nobody looked. ``late_us``
    are the ranks that ended last, with how much later than the middle of all ranks, us.
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
        """The number of ranks."""

    def describe(self) -> Header:
        """What a header says of it: everything that a second run needs to be the same, and that explains the times.

        What explains the times and may be another in a second run (date, clocks, driver) is its ``noted``.
        """

    def combinations(self, point: Point) -> Sequence[Combination]:
        """What can be requested at this point."""

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """``requested`` is None for NCCL's own choice, or that of the table in use."""

    def now_s(self) -> float:
        """The clock of budgets and of ``at_s``, from any beginning; a simulated one passes without waiting."""

    def use_table(self, text: str | None) -> None:
        """The decision table that NCCL's own choices follow from here on; None for none."""

    def renew(self) -> bool:
        """Goes on in a fresh process, in which everything is set up anew. False where there can be no other here."""

    def rest(self, seconds: float) -> None:
        """Lets this time pass without any call; a simulated clock goes forwards by it."""

    def close(self) -> None:
        """Gives back what it holds; nothing is run afterwards."""
