"""Reads ``tables/nccl``: a release's file laid over its parent's, checked and converted to a :class:`Release`."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import NEAREST, BadReleaseFile, UnknownRelease, nearest_of, one_of
from tuner.base.expressions import expression
from tuner.base.files import sha256
from tuner.release import convert, learnt, packages
from tuner.release.schema import Release, ReleaseFile, file_of
from tuner.release.standing import Standing

# The spellings of a release: as its file is called (2.28.9), as NCCL's tag (v2.28.9-1), as NCCL's log
# (2.28.9+cuda12.9), as a wheel that was made again (2.26.2.post1), or without the last number (2.28).
SPELLED = expression(r"v?(\d+\.\d+(?:\.\d+)?)(?:\.post\d+)?(?:-\d+)?(?:\+cuda[\d.]+)?", re.IGNORECASE)
HEAD = frozenset({"release", "parent", "without", "learnt", "not_read"})
NOT_IN_FILES = frozenset({"name", "files", "efficiency", "standing"})  # the fields of a Release that no file contains


@dataclass(frozen=True, slots=True)
class Difference:
    """One dotted key whose value differs between two releases; a value is None if its release does not have the key."""

    key: str
    before: Any
    after: Any


def names() -> list[str]:
    """The names of all releases that were compared with their library, oldest first."""
    return _names_in(_folder())


def names_by_source() -> list[str]:
    """The names of the releases that are only known by their public source, oldest first; no library was compared."""
    return _names_in(_folder_by_source())


def _names_in(folder: Path) -> list[str]:
    there = (entry.name.removesuffix(".toml") for entry in folder.iterdir())
    return sorted(there, key=parts_of)


def is_spelled(text: str) -> bool:
    """Whether a text looks like a release: a number, the file of a libnccl, or a package that requires it."""
    if packages.names_one(text):
        return True
    return SPELLED.fullmatch(text) is not None or learnt.is_learnt(text) or learnt.is_path(text)


def is_known(name: str) -> bool:
    """Whether a release can be loaded: it has a table, was learnt, or is known by its source."""
    return learnt.is_learnt(name) or name in names() or name in names_by_source()


FIRST_CODE = 20_900  # NCCL_VERSION_CODE is X * 10000 + Y * 100 + Z from 2.9 on


def first_with(has: Callable[[Release], bool]) -> str:
    """The oldest release for which ``has`` is true, for messages about valid releases. There must be one."""
    return next(name for name in names() if has(load(name)))


def named(said: object) -> str:
    """The name of the release that a text means: 2.28.9 for ``v2.28.9-1``, and the newest 2.29.x for ``2.29``.

    ``said`` may also be the number 2.29, PyTorch's (2, 28, 9), NCCL_VERSION_CODE such as 22809, a package that requires
    NCCL, such as ``torch==2.13.0``, or the file of a ``pip freeze``. A release with all three numbers may be known only
    by its source, or lie between two known ones; its ``standing`` says so. Raises UnknownRelease, which lists the valid
    releases.
    """
    text = _in_words(said)
    if packages.names_one(text):
        text = packages.release_in(text, names()[-1])
    if learnt.is_learnt(text):
        return text
    if learnt.is_path(text):
        return of_library(Path(text).resolve())
    known, spelled = names(), SPELLED.fullmatch(text)
    found = [name for name in known if spelled and (name == spelled[1] or name.startswith(f"{spelled[1]}."))]
    if not found and spelled and (spelled[1] in names_by_source() or _around(spelled[1], known)):
        return spelled[1]
    if not found:
        listed = _neighbours(spelled[1], known) if spelled else nearest_of(text, known)
        other = "or a libnccl.so.2 of it: nccl-tuner oracle learn FILE"
        sources = "; a number between two of these where both agree"
        sources += f"; by source, not compared: {', '.join(names_by_source())}"
        raise UnknownRelease(f"no table for NCCL {text}; {listed} (all: nccl-tuner doctor), {other}{sources}")
    return found[-1]


def _around(number: str, known: Sequence[str]) -> tuple[str, str] | None:
    """The compared releases before and after ``number``; None unless it has three parts and lies between two compared
    releases."""
    if number.count(".") < 2:
        return None
    place = bisect_left(known, parts_of(number), key=parts_of)
    return (known[place - 1], known[place]) if 0 < place < len(known) else None


def _in_words(said: object) -> str:
    if isinstance(said, float):
        return f"{said:.2f}"  # the number 2.30 prints as 2.3
    if isinstance(said, tuple):
        return ".".join(map(str, said))
    if isinstance(said, int) and said >= FIRST_CODE:
        return f"{said // 10_000}.{said // 100 % 100}.{said % 100}"
    return str(said).strip()


def _neighbours(number: str, known: list[str]) -> str:
    """The releases around this one, for an error: ``valid: a, b, c, d, e and 21 more``."""
    place = bisect_left(known, parts_of(number), key=parts_of)
    first = max(0, min(place - 2, len(known) - NEAREST))
    shown = known[first : first + NEAREST]
    return f"{one_of(shown)} and {len(known) - len(shown)} more"


def parts_of(number: str) -> tuple[int, ...]:
    """The parts of a release's name as numbers, by which releases are sorted."""
    return tuple(int(part) for part in number.split("."))


def load(name: str) -> Release:
    """The release called ``name``, in any spelling that :func:`named` knows.

    Raises UnknownRelease, which lists the valid releases, and BadReleaseFile, which names the file and the key that is
    wrong.
    """
    return learnt.held[name] if name in learnt.held else _load(name)


@cache
def _load(name: str) -> Release:
    exact = named(name)
    if exact != name:
        return load(exact)
    if name in names() or learnt.is_learnt(name):
        return read(_folder(), name, _kept)
    return uncompared(name, names())


def uncompared(name: str, known: Sequence[str]) -> Release:
    """Loads a release that has no compared table of its own; its ``standing`` says what its answers rest on.

    ``known`` are the compared releases, oldest first. Raises UnknownRelease if its source is not known and it does not
    lie between two compared releases.
    """
    if name not in known and name in names_by_source():
        nccl = read(_folder(), name, _kept)
        earlier = [each for each in known if parts_of(each) < parts_of(name)]
        not_read = tuple(nccl.files[0].table.get("not_read", ()))
        return replace(
            nccl, standing=Standing("by source", not_read=not_read, compared=earlier[-1] if earlier else None)
        )
    around = None if name in known else _around(name, known)
    if around is None:
        raise UnknownRelease(f"NCCL {name} is known neither by source nor between two releases")
    before, after = map(load, around)
    keys = tuple(each.key for each in differences(before, after))
    return replace(before, name=name, standing=Standing("between", around, keys))


def forget() -> None:
    """Forgets all files that were read; to be called after one of them was written."""
    _load.cache_clear()
    _kept.clear()


class _Parents:
    """Release files by path, and the records made from them: releases share what they inherit from the same parent."""

    def __init__(self) -> None:
        self.files: dict[str, ReleaseFile] = {}
        self.merged: dict[str, dict[str, object]] = {}
        self.converted: convert.Shared = {}

    def clear(self) -> None:
        """Forgets every file, so that each is read anew."""
        self.__init__()  # type: ignore[misc]


_kept = _Parents()  # the files and records of the releases that are loaded


def read(folder: Path, name: str, parents: _Parents | None = None) -> Release:
    """Reads the release ``name`` from a folder of release files. Raises BadReleaseFile, which names the file and the
    key."""
    parents = parents or _Parents()
    chain = tuple(_chain(folder, name, parents))
    return _release(name, chain, _merged(chain, parents.merged), parents.converted)


def of_library(path: Path) -> str:
    """The name of the release of a libnccl file: the known release whose library has the same sha256, or the one learnt
    from it.

    Raises UnknownRelease if the file is missing or too large, if the library was not learnt, or if the emulator differs
    from it.
    """
    if not path.is_file():
        raise UnknownRelease(f"{path} is not a file: give a libnccl.so.2, or a release such as {names()[-1]}")
    if path.stat().st_size > learnt.MOST_BYTES:
        raise UnknownRelease(f"{path} {learnt.TOO_LARGE}")
    digest = sha256(path)
    for name in reversed(names()):
        builds = load(name).library.values()
        if any(file.sha256 == digest for files in builds for file in files.values()):
            _files[name] = path
            return name
    found = sorted(learnt.file_of("*").parent.glob(f"*{learnt.AT}{digest[: learnt.DIGITS]}.toml"))
    for file in found:
        origin = learnt.origin_of(load(file.stem))
        if origin is not None and origin.sha256 == digest:
            if origin.exact:
                return file.stem
            raise UnknownRelease(
                f"{path} is not emulated exactly: {origin.words}; 'nccl-tuner oracle learn {path}' says what differs"
            )
    raise UnknownRelease(f"{path} was not learnt yet: run nccl-tuner oracle learn {path} first")


_files = dict[str, Path]()  # the library by which the user last named each release


def file_named(name: str) -> Path | None:
    """The libnccl file by which the user named a known release; None if the user named a number."""
    return _files.get(name)


def learnt_from(name: str) -> learnt.LearntFrom:
    """The library of a learnt release. UnknownRelease without its file."""
    origin = learnt.origin_of(load(name))
    assert origin is not None
    return origin


def changed(nccl: Release, change: Mapping[str, Any]) -> Release:
    """The release with some values replaced by those of ``change``, whose keys are as in a release's file. The release
    keeps its name.

    Raises BadReleaseFile, which names the key that does not fit.
    """
    try:
        if wrong := sorted({"name", "files"} & change.keys()):
            raise convert.WrongValue(wrong[0], f"unknown key; {one_of(_keys())}")
        new: Release = convert.laid_over(Release, nccl, change, "")
    except convert.WrongValue as error:
        raise BadReleaseFile(f"a change of NCCL {nccl.name}: {error}") from None
    return new


def differences(before: Release, after: Release) -> list[Difference]:
    """The values that differ between two releases, by dotted key. Library files, which always differ, are left out."""
    old, new = map(flat, (before, after))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [Difference(key, old.get(key), new.get(key)) for key in keys]


def flat(nccl: Release) -> dict[str, object]:
    """Everything that a release's file and its parents' files say, by dotted key, without library files."""
    return dict(_flat(_merged(nccl.files)))


def _folder() -> Path:
    return tables.folder() / "nccl"


def _folder_by_source() -> Path:
    return tables.folder() / "by_source"


def _chain(folder: Path, name: str, parents: _Parents) -> Iterator[ReleaseFile]:
    """A release's own file, then its parent's, the parent's parent's, and so on."""
    seen: list[str] = []
    parent: str | None = name
    while parent is not None:
        if (file := parents.files.get(str(_path(folder, parent)))) is None:
            file = _file(folder, parent)
            if not learnt.is_learnt(parent):  # a file that ships with the project does not change
                parents.files[file.path] = file
        yield file
        seen.append(parent)
        parent = file.table.get("parent")
        if parent is not None and (parent in seen or not _path(folder, parent).is_file()):
            valid = "a release with a file that is not its own descendant"
            raise BadReleaseFile(f"{file.path}: parent: {parent!r}; valid: {valid}")


def _file(folder: Path, name: str) -> ReleaseFile:
    path = learnt.file_of(name) if learnt.is_learnt(name) else _path(folder, name)

    def has_sources(text: str) -> None:
        if key := next(missing(text), None):
            where = "a # on its line or its table's with src/... of NVIDIA/nccl, libnccl.so.2, or 'from the binary'"
            raise BadReleaseFile(f"{path}: {key}: no source; valid: {where}")

    try:
        if learnt.is_learnt(name):
            import tomllib

            has_sources(text := learnt.text_of(name))
            table = tomllib.loads(text)
        else:
            table = tables.toml(path, has_sources)
    except ValueError as error:  # the error of tomllib, which is not loaded if the parsed file was in the cache
        raise BadReleaseFile(f"{path}: not TOML: {error}") from None
    if table.get("release") != name:
        raise BadReleaseFile(f"{path}: release: {table.get('release')!r}; valid: {name!r}")
    return ReleaseFile(str(path), table)


def _path(folder: Path, name: str) -> Path:
    by_source = _folder_by_source() / f"{name}.toml"
    return by_source if by_source.is_file() else folder / f"{name}.toml"


def _merged(chain: tuple[ReleaseFile, ...], known: dict[str, dict[str, object]] | None = None) -> dict[str, object]:
    """Merges the files of a chain, each over its parent's. ``known`` keeps each step, by the path of the step's last
    file."""
    known, merged = {} if known is None else known, dict[str, object]()
    for file in reversed(chain):
        if file.path not in known or file is chain[0]:
            # Builds of the parent's library do not belong to this release
            lost = {*file.table.get("without", []), *file.table.keys() & {"library"}}
            kept = {key: value for key, value in merged.items() if key not in lost}
            known[file.path] = _merge(kept, {key: value for key, value in file.table.items() if key not in HEAD})
        merged = known[file.path]
    return merged


def _merge(base: Mapping[str, object], change: Mapping[str, object]) -> dict[str, object]:
    """``base`` with the tables of ``change`` laid over it; lists and values are replaced whole."""
    merged = dict(base)
    for key, value in change.items():
        own = merged.get(key)
        merged[key] = _merge(own, value) if isinstance(value, Mapping) and isinstance(own, Mapping) else value
    return merged


def _release(
    name: str, chain: tuple[ReleaseFile, ...], table: Mapping[str, Any], shared: convert.Shared | None = None
) -> Release:
    try:
        if wrong := sorted(table.keys() & NOT_IN_FILES):
            raise convert.WrongValue(wrong[0], f"unknown key; {one_of(_keys())}")
        nccl = replace(convert.record(Release, {"name": name, **table}, "", shared), files=chain)
        _check_lengths(nccl)
    except convert.WrongValue as error:
        raise BadReleaseFile(f"{file_of(chain, error.key)}: {error}") from None
    return nccl


def _keys() -> list[str]:
    return [field.name for field in fields(Release) if field.name not in NOT_IN_FILES]


def _check_lengths(nccl: Release) -> None:
    """Checks lists whose length another number gives."""
    used = max(nccl.limits.tree_corrections, nccl.limits.nvls_tree_corrections or 0)
    for key, factors in convert.plain(nccl.tree_correction).items():
        if len(factors) != used:
            raise convert.WrongValue(f"tree_correction.{key}", f"{len(factors)} values; valid: {used}")


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif f"{above}{key}".split(".")[0] != "library":
            yield f"{above}{key}", value


# What counts as a source: src/... of NVIDIA/nccl at the release's tag, or libnccl itself.
SOURCE = expression(r"(?<![\w/])src/[\w./{},*-]*\.(?:cc|cu|h|in|py)\b|\bfrom the binary\b|\blibnccl\.so\.2\b")
TABLE = expression(r"\[(?P<name>[\w.]+)\]")
KEY = expression(r"(?P<name>[\w.]+)\s*=")
TEXT = expression(r'"[^"]*"')


def missing(text: str) -> Iterator[str]:
    """Yields the dotted keys in a release's file for which no comment names a source, in order.

    A comment on a key's line is about that key. A comment on the line of a table's name, or on the lines just above it,
    is about the whole table and about its subtables.
    """
    table, sourced, above = "", dict[str, bool](), False
    depth = 0  # how many brackets are open, which says whether a line belongs to a list
    for line in text.splitlines():
        code, comment = _split(line)
        source = bool(SOURCE.search(comment))
        if not code:
            above = bool(comment) and (above or source)
            continue
        if depth == 0 and (header := TABLE.fullmatch(code)):
            table = header["name"]
            sourced[table] = source or above or any(sourced.get(parent, False) for parent in _parents(table))
        elif depth == 0 and (key := KEY.match(code)):
            name = f"{table}.{key['name']}" if table else key["name"]
            if not (source or sourced.get(table, False) or name in HEAD):
                yield name
        depth += sum(code.count(mark) for mark in "[{") - sum(code.count(mark) for mark in "]}")
        above = False


def _split(line: str) -> tuple[str, str]:
    """The code of a line, with its quoted texts blanked, and its comment."""
    code, _, comment = TEXT.sub(lambda text: "_" * len(text[0]), line).partition("#")
    return code.strip(), line[len(code) + 1 :] if comment else ""


def _parents(table: str) -> list[str]:
    parts = table.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
