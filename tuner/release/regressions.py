"""Upgrades after which users reported lower performance, and what this tool says about each
(``tables/regressions.toml``).
"""

from functools import cache
from typing import Literal

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.release.reader import names

Verdict = Literal["explains", "partly", "cannot"]


@dataclass(frozen=True, slots=True)
class RegressionCommand:
    """A command of this tool, with the regular expressions that its output has to match and those that it must not
    match.

    ``live`` says whether the command asks libnccl.
    """

    command: str
    prints: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    live: bool = False


@dataclass(frozen=True, slots=True)
class Regression:
    """A known regression of NCCL: ``first`` is the first release that has it, ``fixed`` the first release without it,
    ``says`` what users reported."""

    thread: str
    title: str
    first: str
    fixed: str | None
    says: str
    verdict: Verdict
    shows: str
    runs: tuple[RegressionCommand, ...]


@cache
def regressions() -> tuple[Regression, ...]:
    """All regressions, those of the newest releases first."""
    table = tables.toml(tables.folder() / "regressions.toml")
    return tuple(
        Regression(
            one["thread"],
            one["title"],
            one["from"],
            one.get("fixed"),
            one["says"],
            one["verdict"],
            one["shows"],
            tuple(
                RegressionCommand(
                    run["command"], tuple(run["prints"]), tuple(run.get("lacks", ())), run.get("live", False)
                )
                for run in one["runs"]
            ),
        )
        for one in table["regression"]
    )


def between(before: str, after: str) -> list[Regression]:
    """The regressions that ``after`` has and ``before`` does not; empty if one of them is a learnt release."""
    known = names()
    if not {before, after} <= set(known):
        return []
    old, new = known.index(before), known.index(after)

    def has(one: Regression, at: int) -> bool:
        return known.index(one.first) <= at and (one.fixed is None or at < known.index(one.fixed))

    return [one for one in regressions() if has(one, new) and not has(one, old)]
