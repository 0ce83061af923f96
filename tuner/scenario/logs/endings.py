"""How processes and jobs end: lines of CUDA, the kernel, schedulers, PyTorch, shells and others, as records.

Whoever prints them, behind whatever a launcher tags: tables/endings.toml has the patterns.
"""

import re
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass

# What launchers put before a line that name the rank or the host of who wrote it: torchrun and PyTorch, mpirun with
# --tag-output, srun with --label, Ray.
_RANK_TAGS = re.compile(
    r"^\W*\[(?:rank|default)(?P<rank>\d+)\]:|^\[\d+,(?P<tag>\d+)\]<std\w+>:|^(?P<task>\d+): ?(?=\S)"
)
_RAY = re.compile(r"^\W*\((?P<actor>\w[\w()]*) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?\)")


@dataclass(frozen=True, slots=True)
class EndingLine:
    """A line that says how something ended; ``number`` is a code of its kind, such as that of an Xid."""

    kind: str
    role: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class EndingPattern:
    """A row of tables/endings.toml."""

    kind: str
    role: str
    pattern: str
    source: str


@cache
def patterns() -> tuple[tuple[EndingPattern, re.Pattern[str]], ...]:
    """Patterns in the order of the table."""
    rows = [EndingPattern(**row) for row in tables.toml(tables.folder() / "endings.toml")["ending"]]
    return tuple((row, re.compile(row.pattern)) for row in rows)


def of_line(text: str, line: int) -> EndingLine | None:
    """The ending that a line says; None for any other line."""
    for row, pattern in patterns():
        if (match := pattern.search(text)) is None:
            continue
        said = {name: value for name, value in match.groupdict().items() if value is not None}
        tag, ray = _RANK_TAGS.search(text), _RAY.search(text)
        rank = said.get("rank") or (tag and next((each for each in tag.groups() if each), None))
        pid = said.get("pid") or (ray and ray["pid"])
        return EndingLine(
            row.kind,
            row.role,
            line,
            text.strip(),
            int(rank) if rank else None,
            said.get("host") or (ray["ip"] if ray else None),
            int(pid) if pid else None,
            said.get("gpu"),
            int(said["number"]) if "number" in said else None,
        )
    return None
