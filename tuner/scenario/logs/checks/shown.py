"""What the checks of a log look at."""

from collections.abc import Mapping

from tuner.base.dataclass import dataclass
from tuner.base.findings import Finding, Severity
from tuner.release import Release
from tuner.scenario.logs.imported import Reading


@dataclass(frozen=True, slots=True)
class ShownByLog:
    """A log and the communicator that is examined.

    ``reading.log`` has the facts of all lines, ``reading.logs`` those of the communicator's ranks. ``variables`` are
    the environment's that the log or the user says, ``channels`` NCCL's printed numbers of channels for collectives and
    for NVLS, ``nccl`` its release; None if it is not known.
    """

    reading: Reading
    variables: Mapping[str, str]
    channels: tuple[str, str | None] | None
    nccl: Release | None


def in_words(text: str, severity: Severity = Severity.FAULT) -> Finding:
    """A finding for which there is only a sentence."""
    return Finding("diagnose.in_words", severity, {"text": text})
