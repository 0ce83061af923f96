"""Where what is written comes from: its day, and the files that it was made of."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from tuner.base.errors import BadInput

Files: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]


def today() -> str:
    """The date, UTC, as in 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes. OSError where it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def paths(files: Files) -> tuple[Path, ...]:
    """One file or several, as paths. BadInput for none."""
    several = (Path(files),) if isinstance(files, str | PathLike) else tuple(map(Path, files))
    if not several:
        raise BadInput("no files; valid: one at least")
    return several
