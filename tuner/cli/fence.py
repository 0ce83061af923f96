"""Limits what a command may do while it answers a remote client: read files below some folders, and nothing else.

The fence does not depend on which parameter names a file (``table:FILE``, ``@FILE``, a variable's value): Python asks
the fence before it opens any file. The fence cannot be removed, so only a server sets it up.
"""

import errno
import os
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote

from tuner.base import tables
from tuner.base.errors import BadInput
from tuner.base.files import cache_folder
from tuner.base.sizes import human_bytes

MOST_FILE_BYTES = 50 << 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = ("os.", "shutil.", "socket.", "subprocess.", "tempfile.", "urllib.", "pty.", "ftplib.", "http.", "smtplib.")
_OF_TEMPORARY_FILES = frozenset(
    ("os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "tempfile.mkdtemp", "tempfile.mkstemp")
)
_HARMLESS = frozenset({"os.putenv", "os.unsetenv", "os.listdir", "os.scandir", "os.walk", "os.fwalk"})


class TooSlow(BaseException):
    """An answer took too long. It is not an Exception, so that no command's error handling catches it."""


def real_folder(folder: Path) -> Path:
    """The path of a folder with links resolved. BadInput if it is not a folder, or is the root folder."""
    try:
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadInput(f"--allow {folder}: {getattr(error, 'strerror', None) or error}") from None
    if not real.is_dir():
        raise BadInput(f"--allow {folder}: not a folder")
    if real == real.parent:
        raise BadInput(f"--allow {folder}: this would allow every file; name a folder below it")
    return real


class Fence:
    """The one fence of a process; ``allowed``: real folders below which files may be read."""

    def __init__(self, allowed: Sequence[Path]) -> None:
        self.allowed = tuple(allowed)
        places = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
        own = (Path(__file__).parents[1], tables.folder(), cache_folder(), *map(Path, places))
        self._own = tuple(each.resolve() for each in own)
        self._listed = frozenset(os.path.realpath(each) for each in sys.path if each)
        self._up = False
        self._scratch: Path | None = None

    def file(self, name: str) -> Path:
        """The real path of a file that a client names; a relative one is looked up in the allowed folders, in order.

        BadInput for a file that is outside the folders, not a regular file, or too large.
        """
        if not self.allowed:
            raise BadInput(f"{name}: no folder is allowed; valid: files below DIR, after nccl-tuner mcp --allow DIR")
        valid = f"valid: files below {', '.join(map(str, self.allowed))}"
        if "\0" in name:
            raise BadInput(f"{name!r}: not a path; {valid}")
        tried = [folder / name for folder in self.allowed]  # an absolute name is itself
        try:
            real = next((each for each in tried if each.exists()), tried[0]).resolve()
            if not self._is_allowed(real):
                raise BadInput(f"{name}: outside the folders that are allowed; {valid}")
            if not real.exists():
                raise BadInput(f"{name}: No such file or directory; {valid}")
            if not real.is_file():
                raise BadInput(f"{name}: not a regular file; {valid}")
            size = real.stat().st_size
        except (OSError, RuntimeError) as error:
            raise BadInput(f"{name}: {getattr(error, 'strerror', None) or error}; {valid}") from None
        if size > MOST_FILE_BYTES:
            raise BadInput(f"{name}: {human_bytes(size)}; valid: files up to {human_bytes(MOST_FILE_BYTES)}")
        return real

    def has(self, name: str) -> bool:
        """Whether a client's text is a file below the allowed folders, and not the name of something else."""
        return "\0" not in name and any((folder / name).exists() for folder in self.allowed)

    def _is_allowed(self, real: Path) -> bool:
        return any(real.is_relative_to(folder) for folder in self.allowed)

    def build(self, scratch: Path) -> None:
        """Makes Python ask the fence from now on. The audit hook cannot be removed, but it can be told to allow
        everything.

        ``scratch``: a folder of this process for temporary files, which some answers need.
        """
        self._scratch = scratch.resolve()
        tempfile.tempdir = str(self._scratch)
        sys.addaudithook(self._asked)

    @contextmanager
    def up(self, seconds: float) -> Iterator[None]:
        """Inside the block, only files below the allowed folders may be read. Raises :class:`TooSlow` if the block
        takes longer than the given time.
        """
        before = signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again each second, should somebody swallow the first
        self._up = True
        try:
            yield
        finally:
            self._up = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _asked(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._up:
            return
        if event == "open":
            self._opened(*given)
        elif event == "sqlite3.connect":
            name = os.fsdecode(given[0])
            if name != ":memory:":
                path, _, options = name.removeprefix("file:").partition("?")
                self._opened(unquote(path), "r" if "mode=ro" in options else "w", 0)
        elif event in ("os.listdir", "os.scandir"):
            self._listed_folder(given[0])
        elif event in _OF_TEMPORARY_FILES and self._is_temporary(*given):
            return
        elif event.startswith(_REFUSED) and event not in _HARMLESS:
            raise PermissionError(errno.EACCES, f"{event}: only reading files is allowed")

    def _is_temporary(self, path: Any, *more: Any) -> bool:
        name = os.fsdecode(path)
        if more and isinstance(more[-1], int) and more[-1] >= 0:  # the folder that a relative name is in
            name = os.path.join(os.readlink(f"/proc/self/fd/{more[-1]}"), name)
        folder = os.path.realpath(os.path.dirname(name))  # what is removed may be a link: it is not followed
        return self._scratch is not None and Path(folder).is_relative_to(self._scratch)

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        if isinstance(path, int) or os.fsdecode(path) == os.devnull:
            return
        real = Path(os.path.realpath(os.fsdecode(path)))
        if self._scratch is not None and real.is_relative_to(self._scratch):
            return
        if flags & _WRITES or (mode is not None and set(mode) & set("wax+")):
            raise PermissionError(errno.EACCES, "nothing is written", str(real))
        if self._is_allowed(real):
            if real.exists() and real.stat().st_size > MOST_FILE_BYTES:
                valid = f"too large; valid: up to {human_bytes(MOST_FILE_BYTES)}"
                raise PermissionError(errno.EFBIG, valid, str(real))
        elif not any(real.is_relative_to(folder) for folder in self._own):
            raise PermissionError(errno.EACCES, "outside the folders that are allowed", str(real))

    def _listed_folder(self, path: Any) -> None:
        if isinstance(path, int):
            return  # opened before
        real = os.path.realpath(os.fsdecode("." if path is None else path))
        if real in self._listed or any(
            Path(real).is_relative_to(each) for each in (*self.allowed, *self._own, *filter(None, [self._scratch]))
        ):
            return
        raise PermissionError(errno.EACCES, "outside the folders that are allowed", real)


def _ring(number: int, frame: FrameType | None) -> None:
    raise TooSlow
