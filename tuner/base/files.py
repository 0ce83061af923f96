"""Reads and writes files as a whole. An error about a file that a user named is one line that names the file."""

import contextlib
import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

from tuner.base.bounds import ReaderBounds, check_text, factor, over
from tuner.base.errors import BadInput, TunerError

GZIPPED = b"\x1f\x8b"  # the first bytes of a gzipped file
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of text in UTF-16, which Windows' shells write
MOST_BYTES = 1 << 30  # of an unpacked file or a device; the trace of a long run is smaller
PIECE_BYTES = 1 << 20
MOST_KEPT_BYTES = 256 << 20  # of one file in the cache, except for libnccl itself


def contents(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file. A pipe can be read only once, so its bytes are kept for later reads.

    OSError if there are more than ``most`` bytes. If ``most`` is None, a regular file may have any size, and anything
    else up to ``MOST_BYTES``, because a device may be endless. A pipe may never have more than that.
    """
    found = path.stat()
    if stat.S_ISREG(found.st_mode):
        return path.read_bytes() if most is None else _bounded(path, most)
    most = MOST_BYTES if most is None else most
    if not stat.S_ISFIFO(found.st_mode):
        return _bounded(path, most)
    if len(content := _piped(path, found.st_ino)) > most:  # a later reader of this pipe may have another bound
        raise _too_large(most)
    return content


@cache
def _piped(path: Path, _number: int) -> bytes:
    """The content of a pipe; ``_number`` distinguishes pipes that have the same name one after the other, such as
    /dev/fd/63.
    """
    return _bounded(path, MOST_BYTES)


def _bounded(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return _up_to(most, file)


def _up_to(most: int, file: BinaryIO | gzip.GzipFile) -> bytes:
    """Reads everything that is left in a file, in pieces so that an interrupt takes effect. OSError for more than
    ``most`` bytes."""
    pieces, left = [], most
    while piece := file.read(min(PIECE_BYTES, left + 1)):
        if (left := left - len(piece)) < 0:
            raise _too_large(most)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"too large; valid: up to {most} bytes")


TEXT = ReaderBounds("text, where a reader has no bounds of its own", unpacked_bytes=96 << 20)


def read_bytes(
    path: Path, wrong: type[TunerError], most: int | None = None, bounds: ReaderBounds | None = None
) -> bytes:
    """The content of a file within the bounds of :func:`contents`: gzipped files are unpacked, UTF-16 becomes UTF-8,
    and line ends of CR alone become LF.

    A gzipped file of 1 MB may unpack to 1 GB, so ``bounds`` limit the unpacked bytes and the number of lines. Raises an
    error of the class ``wrong`` if the file cannot be read or unpacked, or if it exceeds the bounds.
    """
    try:
        bounds = bounds or TEXT
        content = _unpacked(contents(path, most), most, bounds)
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    check_text(content, str(path), wrong, bounds)
    return content


def read_regular(path: Path, wrong: type[TunerError], bounds: ReaderBounds) -> bytes:
    """Reads a file in a folder to which others may write. Raises an error of the class ``wrong`` unless it is a regular
    file of at most ``bounds.file_bytes``, because a FIFO would block for ever and a device has no end. The message does
    not name the file.
    """
    most = int((bounds.file_bytes or MOST_BYTES) * factor())
    try:
        with _regular(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise wrong(f"{error.strerror or error}") from error
    if len(content) > most:
        raise wrong(over("the file", most, "bytes"))
    return content


def _unpacked(content: bytes, most: int | None, bounds: ReaderBounds) -> bytes:
    if content.startswith(UTF_16):
        with contextlib.suppress(UnicodeError):  # other files can begin with these bytes, too
            return content.decode("utf-16").encode()
    if not content.startswith(GZIPPED):
        return content.replace(b"\r", b"\n") if _ends_in_cr(content) else content
    most_unpacked = int(bounds.unpacked_bytes * factor())
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        try:
            return _up_to(most_unpacked if most is None else min(most, most_unpacked), packed)
        except OSError as error:
            if error.errno == errno.EFBIG and most is None:
                raise OSError(errno.EFBIG, over("what it unpacks to", most_unpacked, "bytes")) from None
            raise


def _ends_in_cr(content: bytes) -> bool:
    """Whether a text's lines end in CR without LF, as old editors write them."""
    return b"\r" in content and b"\n" not in content and b"\0" not in content


def is_plain_file(path: Path) -> bool:
    """Whether a path is a regular file with LF line ends, neither gzipped nor UTF-16.

    Such a file can be read in pieces, and more than once.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            piece = file.read(PIECE_BYTES)
            return not piece.startswith((GZIPPED, *UTF_16)) and not _ends_in_cr(piece)
    except OSError:
        return False


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a file beside ``path`` to write to. If the block ends without an error, the file is synced and renamed to
    ``path``; after an error it is removed.

    So ``path`` keeps its content if the disk is full or the process is killed. Anything but a regular file, such as
    /dev/stdout, is written directly; for a link, the file to which it leads is replaced. BadInput if it cannot be
    written.
    """
    try:
        if _is_device(path):
            yield path
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name[:64]}.{os.urandom(8).hex()}.new")
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error


def _is_device(path: Path) -> bool:
    """Whether a path exists and is not a regular file. BadInput for a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        raise BadInput(f"{path}: {os.strerror(errno.EISDIR)}")
    return not stat.S_ISREG(mode)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all. BadInput if it cannot be written."""
    with replacing(path) as to:
        to.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Like :func:`write_bytes` for text, with LF line ends."""
    write_bytes(path, content.encode("utf-8"))


def check_writable(path: Path) -> None:
    """Raises BadInput if :func:`write_text` could not write now; to be called before long work whose result is written.
    Leaves no file.
    """
    try:
        if _is_device(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        if path.exists():
            with path.open("ab"):
                pass
        probe = path.resolve().with_name(f".{os.urandom(8).hex()}")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def cache_folder() -> Path:
    """The folder for files that take long to fetch or compute: NCCL_TUNER_CACHE, or the user's cache folder.

    If the user has no home, such as an unknown user in a container, it is /.cache/nccl-tuner, because containers set
    HOME to /.
    """
    if own := os.environ.get("NCCL_TUNER_CACHE"):
        return Path(own)
    import platformdirs  # importing it takes longer than most answers that need no cache

    # Newer releases of platformdirs raise this; older ones return a relative path
    with contextlib.suppress(RuntimeError):
        if (folder := Path(platformdirs.user_cache_dir("nccl-tuner"))).is_absolute():
            return folder
    return Path("/.cache/nccl-tuner")


def remember(path: Path, content: str) -> None:
    """Writes something that can be computed again. The file is written completely or not at all, because another
    process may be reading. No error is raised if it cannot be written.

    Users may share a cache: the umask decides who else may read the file, but nobody else may write it.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(content)
            temporary.chmod(temporary.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def recall(path: Path) -> str | None:
    """The text that :func:`remember` wrote to ``path``; None if there is no file, or if it cannot be read."""
    try:
        with _regular(path) as file:
            return file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file of the cache; OSError for anything else, such as a FIFO, which would block for ever."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_KEPT_BYTES:
            raise OSError(errno.EINVAL, "neither a regular file nor one that this project wrote")
        yield file


def recall_own(path: Path) -> str | None:
    """The text that a process of this user wrote with :func:`remember`; None if there is no file, or if another user
    may have written it.
    """
    try:
        with _regular(path) as file:
            found = os.fstat(file.fileno())
            own = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            return file.read().decode("utf-8") if own else None
    except (OSError, UnicodeDecodeError):
        return None


def remember_answer(path: Path, answer: str) -> None:
    """Like :func:`remember`, with a checksum of the answer, so that :func:`recall_answer` detects a damaged one."""
    import json

    remember(path, json.dumps({"sha256": sha256_of_text(answer), "answer": answer}))


def recall_answer(path: Path) -> str:
    """The answer that a process of this user wrote with :func:`remember_answer`. KeyError if :func:`recall_own` finds
    no text, ValueError if the answer is damaged.
    """
    import json

    if (text := recall_own(path)) is None:
        raise KeyError(path.name)
    # The file is JSON of another form
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        written = json.loads(text)
        answer: str = written["answer"]
        if written["sha256"] == sha256_of_text(answer):
            return answer
    raise ValueError("changed since it was written")


def sha256_of_text(text: str) -> str:
    """The digest of a text in UTF-8, as hexadecimal digits."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of a file; it is cached while the file is unchanged, because a libnccl has 400 MB.

    A cached digest is used only if this user cached it, and for the same file. Users may share a cache, so somebody who
    can write to it must not be able to pass off another library as NCCL's. The cache key contains the file's time of
    last status change (ctime), which no program can set.
    """
    import hashlib
    import json

    info = path.stat()
    state = json.dumps([str(path.resolve()), info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns])
    stored = cache_folder() / "sha256" / sha256_of_text(state)[:32]
    digest, _, of = (recall_own(stored) or "").partition("\n")
    if len(digest) == 64 and of == state:
        return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    remember(stored, f"{digest}\n{state}")
    return digest
