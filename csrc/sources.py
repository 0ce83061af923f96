"""What the native parts are built from. ``setup.py`` runs this before anything is installed: it needs Python alone."""

import hashlib
from pathlib import Path


def files(folder: Path) -> list[Path]:
    """Every C source and header of csrc."""
    return sorted(folder.glob("*/*.[ch]"))


def macro(folder: Path) -> tuple[str, str]:
    """Name and value of the macro that says what an object was built from, so that another is not taken for it."""
    digest = hashlib.sha256()
    for path in files(folder):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return "NCCL_TUNER_SOURCES", f'"{digest.hexdigest()}"'
