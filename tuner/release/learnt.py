"""Releases that ``oracle learn`` read from a libnccl.so.2: files in this user's cache, named by the library's sha256.

Such a release is named after the version that the library reports and its sha256: ``2.28.9@1792291e26d2b27f``. Its file
is like those of ``tables/nccl``, with an additional table ``[learnt]``. The file is trusted only if no other user can
have written it: users may share a cache, and somebody who may write there must not be able to vouch for a library.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, UnknownRelease
from tuner.base.files import cache_folder, recall_own, remember
from tuner.base.printable import in_a_line

if TYPE_CHECKING:
    from tuner.release.schema import Release

AT, DIGITS = "@", 16
MOST_BYTES = 2 << 30  # the largest library that is read; NCCL's largest release has 480 MB
TOO_LARGE = f"is larger than {MOST_BYTES >> 30} GiB; valid: a libnccl.so.2"
held: dict[str, "Release"] = {}  # the learnt releases that are on trial at the moment, by name


@dataclass(frozen=True, slots=True)
class LearntFrom:
    """The library that a release was learnt from, and how the emulator compared with it."""

    library: str
    sha256: str
    compared: int
    equal: int

    @property
    def exact(self) -> bool:
        """Whether every comparison with the library was equal."""
        return self.compared > 0 and self.compared == self.equal

    @property
    def words(self) -> str:
        """How far to trust the release, in words: ``learnt, 5,120 of 5,120 compared equal``."""
        return f"learnt, {self.equal:,} of {self.compared:,} compared equal"


def name_of(said: str, digest: str) -> str:
    """The name of a learnt release: the version that its library reports, and the start of the library's sha256."""
    return f"{said}{AT}{digest[:DIGITS]}"


def is_learnt(name: str) -> bool:
    """Whether a name is that of a learnt release, also of one that is still on trial."""
    return AT in name or name in held


def is_path(text: str) -> bool:
    """Whether a text is the path of a library and not the name of a release."""
    return "/" in text or ".so" in text


@contextmanager
def trying(nccl: "Release") -> Iterator[str]:
    """Makes a release loadable while it is on trial, and yields its name."""
    held[nccl.name] = nccl
    try:
        yield nccl.name
    finally:
        del held[nccl.name]


def file_of(name: str) -> Path:
    """The file of a learnt release."""
    return cache_folder() / "learnt" / f"{name}.toml"


SEAL = "# sha256 of the lines above: "


def keep(name: str, text: str) -> Path:
    """Writes the file of a learnt release, with a checksum. BadInput if the file cannot be written."""
    file, sealed = file_of(name), f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"
    remember(file, sealed)
    if recall_own(file) != sealed:
        raise BadInput(f"{file} cannot be written, so nothing can be learnt: set NCCL_TUNER_CACHE to another folder")
    return file


def check_kept() -> None:
    """Raises BadInput if the files of learnt releases cannot be written."""
    probe = "probe"
    keep(probe, "")
    file_of(probe).unlink(missing_ok=True)


def _unsealed(name: str, sealed: str) -> str:
    """The text that was kept, without its checksum. UnknownRelease if the file was truncated or changed since then."""
    text, found, digest = sealed.rpartition(SEAL)
    if not found or digest.strip() != hashlib.sha256(text.encode()).hexdigest():
        raise UnknownRelease(
            f"{file_of(name)} is not as it was learnt: it was cut or changed: run nccl-tuner oracle learn FILE again"
        )
    return text


def text_of(name: str) -> str:
    """The text of a learnt release's file. UnknownRelease if there is no such file, or another user wrote it."""
    text = recall_own(file_of(name))
    if text is None:
        raise UnknownRelease(
            f"this user has learnt no file of NCCL {name} ({file_of(name)}): run nccl-tuner oracle learn FILE first"
        )
    return _unsealed(name, text)


def origin_of(nccl: "Release") -> LearntFrom | None:
    """The library that a release was learnt from; None if the release was not learnt."""
    table = nccl.files[0].table.get("learnt") if nccl.files else None
    return None if table is None else LearntFrom(**table)


# The text of a learnt release's file.


def text(name: str, parent: str, origin: LearntFrom, changes: Mapping[str, Any]) -> str:
    """The file of a learnt release. ``changes``: what differs from the parent, by dotted key."""
    said, _, _ = name.partition(AT)
    lines = [f"# NCCL {said} as nccl-tuner learnt it from {in_a_line(origin.library)}: what differs from {parent}.", ""]
    lines += [f"release = {_value(name)}", f"parent = {_value(parent)}", "", "[learnt]  # from the binary"]
    lines += [f"{key} = {_value(getattr(origin, key))}" for key in ("library", "sha256", "compared", "equal")]
    lines += ["", "[library]  # from the binary: none of the parent's", ""]
    return "\n".join(lines) + tables_of(changes)


def tables_of(changes: Mapping[str, Any]) -> str:
    """The text of the tables in a release's file that set ``changes``, which has values by dotted key."""
    by_table: dict[str, list[str]] = {}
    for key, value in changes.items():
        table, _, own = key.rpartition(".")
        by_table.setdefault(table, []).append(f"{own} = {_value(value)}")
    return "".join(f"\n[{table}]  # from the binary\n" + "\n".join(own) + "\n" for table, own in by_table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
