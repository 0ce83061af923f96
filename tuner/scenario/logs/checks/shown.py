"""The input of each check of a log."""

from collections.abc import Mapping

from tuner.base.dataclass import dataclass
from tuner.base.findings import Finding, Severity
from tuner.release import Release
from tuner.scenario.logs.imported import Reading


@dataclass(frozen=True, slots=True)
class ShownByLog:
    """The log and the communicator that a check examines.

    ``reading.log`` has the facts of all lines, ``reading.logs`` those of the communicator's ranks. ``variables`` are
    the environment variables from the log or the user. ``channels`` are the printed numbers of channels for collectives
    and for NVLS, and ``nccl`` is the release; each is None if it is not known.
    """

    reading: Reading
    variables: Mapping[str, str]
    channels: tuple[str, str | None] | None
    nccl: Release | None


def in_words(text: str, severity: Severity = Severity.FAULT) -> Finding:
    """A finding that consists of a sentence only."""
    return Finding("diagnose.in_words", severity, {"text": text})
