"""Files read and written whole. Of those that a user names, what cannot be done is one line that names the file."""

import contextlib
import gzip
import os
import secrets
import stat
import zlib
from functools import cache
from pathlib import Path

import platformdirs

from tuner.base.errors import BadInput, TunerError

GZIPPED = b"\x1f\x8b"  # how such a file begins


def contents(path: Path) -> bytes:
    """The bytes of a file; those of a pipe, which are there only once, also for who reads it again. Raises OSError."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return path.read_bytes()
    return _piped(path, path.stat().st_ino)


@cache
def _piped(path: Path, _number: int) -> bytes:
    """``_number`` tells pipes apart that had one name after the other, such as /dev/fd/63."""
    return path.read_bytes()


def read_bytes(path: Path, wrong: type[TunerError]) -> bytes:
    """What is in the file, unpacked where it is gzipped. Raises ``wrong`` where there is nothing to read."""
    try:
        content = contents(path)
        return gzip.decompress(content) if content.startswith(GZIPPED) else content
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def write_text(path: Path, content: str) -> None:
    """With plain line ends. BadInput where it cannot be written."""
    try:
        path.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """BadInput where :func:`write_text` could not write it now; for who works long before. Leaves no file behind."""
    there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def cache_folder() -> Path:
    """Where what takes long to get is kept: NCCL_TUNER_CACHE, or the user's cache folder.

    A user without a home, such as a container's unknown one, has it below /, as the containers' tools have HOME.
    """
    if own := os.environ.get("NCCL_TUNER_CACHE"):
        return Path(own)
    with contextlib.suppress(RuntimeError):  # platformdirs' newer releases; older ones answer with a relative path
        if (folder := Path(platformdirs.user_cache_dir("nccl-tuner"))).is_absolute():
            return folder
    return Path("/.cache/nccl-tuner")


def remember(path: Path, content: str) -> None:
    """Writes what can be found again, whole or not at all: another process may be reading. Not where nothing may be.

    Who may read it the umask says, as of every file: users share a cache.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def recall(path: Path) -> str | None:
    """What :func:`remember` wrote; None where nothing is, or nothing that may be read: another user's."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
