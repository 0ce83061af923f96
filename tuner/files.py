"""Files that a user names, read and written whole: what cannot be done is one line that names the file."""

import gzip
import zlib
from pathlib import Path

from tuner.errors import BadInput, TunerError


def read_bytes(path: Path, wrong: type[TunerError]) -> bytes:
    """What is in the file, unpacked where it is gzipped. Raises ``wrong`` where there is nothing to read."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def write_text(path: Path, content: str) -> None:
    """With plain line ends. BadInput where it cannot be written."""
    try:
        path.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
