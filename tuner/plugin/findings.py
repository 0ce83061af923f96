"""What lint says of a line of a decision table."""

from tuner.base.dataclass import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a line of a table, and how much."""

    line: int
    severity: str
    reason: str
