"""Files that a user names, read and written whole: what cannot be done is one line that names the file."""

from pathlib import Path

from tuner.errors import BadInput, TunerError


def read_bytes(path: Path, wrong: type[TunerError]) -> bytes:
    """Raises ``wrong`` where there is nothing to read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from error


def write_text(path: Path, content: str) -> None:
    """With plain line ends. BadInput where it cannot be written."""
    try:
        path.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
