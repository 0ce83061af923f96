"""Which ranks' lines are of one communicator."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.scenario.logs.reader import RankLog


@dataclass(slots=True)
class CommunicatorLines:
    """The ranks of one communicator."""

    name: str
    logs: list[RankLog]

    @property
    def ranks(self) -> int | None:
        """The number of ranks, as far as a line says it."""
        return next((log.ranks for log in self.logs if log.ranks is not None), None)

    @property
    def root(self) -> RankLog | None:
        """Rank 0's log, where there is one."""
        return next((log for log in self.logs if log.rank == 0), None)


def groups(logs: Sequence[RankLog]) -> list[CommunicatorLines]:
    """The communicators in their order; ranks that show no communicator count only where no rank shows one."""
    by_name: dict[str, CommunicatorLines] = {}
    for log in logs:
        if log.group is not None:
            by_name.setdefault(log.group, CommunicatorLines(log.group, [])).logs.append(log)
    for log in logs:
        if log.group is None and log.ranks is not None:
            home = next((g for g in by_name.values() if g.ranks == log.ranks and not _has(g, log.rank)), None)
            if home is None:
                name = f"{log.comm}"
                home = by_name.setdefault(name, CommunicatorLines(name, []))
            home.logs.append(log)
    if not by_name and logs:
        return [CommunicatorLines("unnamed", list(logs))]
    return list(by_name.values())


def _has(group: CommunicatorLines, rank: int | None) -> bool:
    return any(log.rank == rank for log in group.logs)
