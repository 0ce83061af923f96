"""One communicator of a log while its facts are collected, and what is said of them."""

from dataclasses import dataclass, field

from tuner.scenario.logs.groups import CommunicatorLines
from tuner.scenario.logs.imported import Given
from tuner.scenario.logs.reader import Log, RankLog


@dataclass(frozen=True, slots=True)
class Reading:
    """``group`` is the communicator, None where the log shows none. The lists grow while its facts are collected.

    ``needed`` is what emulating it lacks, ``missing`` what was not printed, ``notes`` what was assumed.
    """

    log: Log
    given: Given
    group: CommunicatorLines | None
    needed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def logs(self) -> list[RankLog]:
        """What its ranks printed."""
        return self.group.logs if self.group else []
