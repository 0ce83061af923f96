"""Reads what NCCL's warnings mean (``tables/warnings.toml``)."""

import re
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass

ALWAYS, AFTER_INIT = "always", "after init"  # when a warning is harmless


@dataclass(frozen=True, slots=True)
class KnownWarning:
    """A warning of NCCL: ``pattern`` matches its text, ``says`` is what it means, ``do`` what to do next.

    ``warns`` are the releases that print it as a WARN, ``informs`` later ones that print it at INFO, as ranges; empty
    if no release's code has the text. ``harmless`` says when the warning costs nothing: always, or if init completed;
    it is empty if the warning always costs something. ``follows``: the warning says that another rank ended or failed
    before. ``slower``: NCCL goes on in a slower way, so that the warning explains no failure.
    """

    pattern: str
    says: str
    source: str
    do: str = ""
    warns: str = ""
    informs: str = ""
    harmless: str = ""
    follows: bool = False
    slower: bool = False

    def is_harmless(self, init_complete: bool) -> bool:
        """Whether the warning costs nothing, which for some depends on whether the log shows that init completed."""
        return self.harmless == ALWAYS or (self.harmless == AFTER_INIT and init_complete)


@cache
def known_warnings() -> tuple[tuple[KnownWarning, re.Pattern[str]], ...]:
    """All rows of the table, in its order, with compiled patterns."""
    rows = [KnownWarning(**row) for row in tables.toml(tables.folder() / "warnings.toml")["warning"]]
    return tuple((row, re.compile(row.pattern)) for row in rows)


def meaning_of(text: str) -> KnownWarning | None:
    """The row that explains a warning; None if no row has its text."""
    return next((row for row, pattern in known_warnings() if pattern.search(text)), None)
