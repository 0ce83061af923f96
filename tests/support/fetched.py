"""A cache with no libnccl but those that `make test` fetches, so that a fuller one hides nothing from a test."""

from pathlib import Path

from tests.support.available_releases import FETCHED
from tuner import release
from tuner.oracle import library


def link(folder: Path, cache: Path) -> None:
    """Links what `make test` fetches from the cache into a folder that serves as one; the rest is written there."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {library.cached(name, build).parent.name for name in release.names() for build in library.WHEELS}
    wanted = {entry.name for entry in cache.iterdir()} & (FETCHED | {"aarch64"}) if cache.is_dir() else set[str]()
    for name in known - wanted:
        (folder / name).unlink(missing_ok=True)
    for name in wanted:
        if not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)  # where another cache was
            (folder / name).symlink_to(cache / name)
