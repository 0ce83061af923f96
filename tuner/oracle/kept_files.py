"""Lists and removes files of the cache by name: only those that this project wrote there as this user.

To keep one more kind of file in the cache, add its folder and names to ``KINDS``.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.files import cache_folder
from tuner.oracle.serving import ENGINES
from tuner.release import BUILDS

_UNFINISHED = r"(?:\.[0-9a-f]{16})?"  # the end of the name of a file that a killed process left unfinished
KINDS = {  # For each kind of file: its path below the cache, and the group that is the name by which it can be removed
    "libnccl, as fetch-nccl got it": rf"(\d+\.\d+\.\d+(?:-(?:{'|'.join(BUILDS)}))?)/(?:libnccl\.so\.2|library\.json)",
    "what oracle learn found of a libnccl": rf"(learnt)/[\w.]+@[0-9a-f]+\.toml{_UNFINISHED}",
    "graphs that were searched": rf"(graphs)/[0-9a-f]{{64}}\.json{_UNFINISHED}",
    "symbols of each libnccl": rf"(symbols)/[0-9a-f]{{32}}\.\d+\.json{_UNFINISHED}",
    "sums of each libnccl": rf"(sha256)/[0-9a-f]{{32}}{_UNFINISHED}",
    "topologies of measurements": r"(topologies)/[0-9a-f]{16}/[^/]+",
    "files of a serving engine": rf"engines/((?:{'|'.join(ENGINES)})-[\w.]+)/.+",
}
_KINDS = {what: re.compile(pattern) for what, pattern in KINDS.items()}
_DEPTH = 12  # the deepest folders that are searched


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Files of the cache with one name; ``days_unused``: days since any of them was last read or written."""

    name: str
    what: str
    files: int
    bytes: int
    days_unused: float


def kept_files(now_s: float) -> dict[KeptFiles, list[Path]]:
    """The files in the cache by name, libraries first; empty without a cache. BadInput if the cache cannot be read."""
    folder, found = cache_folder(), dict[tuple[str, str], list[tuple[Path, os.stat_result]]]()
    try:
        for path, info in _own(folder, _DEPTH) if folder.exists() else ():
            inside = path.relative_to(folder).as_posix()
            for what, pattern in _KINDS.items():
                if (match := pattern.fullmatch(inside)) is not None:
                    found.setdefault((what, match[1]), []).append((path, info))
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}; set NCCL_TUNER_CACHE to another folder") from None
    order = list(KINDS)
    kept = dict[KeptFiles, list[Path]]()
    for (what, name), files in sorted(found.items(), key=lambda each: (order.index(each[0][0]), each[0][1])):
        last_s = max(max(info.st_atime, info.st_mtime) for _, info in files)
        size = sum(info.st_size for _, info in files)
        unused = max(0.0, (now_s - last_s) / 86400)
        kept[KeptFiles(name, what, len(files), size, unused)] = [path for path, _ in files]
    return kept


def _own(folder: Path, depth: int) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files of this user below a folder; links are neither followed nor listed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
                yield Path(entry.path), info
            elif stat.S_ISDIR(info.st_mode) and depth:
                try:
                    yield from _own(Path(entry.path), depth - 1)
                except PermissionError:  # the folder of another user
                    continue


def chosen(
    kept: Mapping[KeptFiles, Sequence[Path]], names: Sequence[str], unused_days: float
) -> dict[KeptFiles, Sequence[Path]]:
    """The files with these names (by default all) that nobody used for at least ``unused_days`` days. BadInput for an
    unknown name."""
    there = [each.name for each in kept]
    if wrong := [name for name in names if name not in there]:
        raise BadInput(f"{', '.join(wrong)}: not in {cache_folder()}; {one_of(there)}")
    return {
        each: paths
        for each, paths in kept.items()
        if (not names or each.name in names) and each.days_unused >= unused_days
    }


def remove(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """Removes these files, and folders that are then empty. Returns those that cannot be removed, with the reason."""
    left = list[tuple[Path, str]]()
    folder = cache_folder()
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            left.append((path, error.strerror or str(error)))
            continue
        for above in path.parents:
            if above == folder:
                break
            try:
                above.rmdir()
            except OSError:  # the folder is not empty
                break
    return left
