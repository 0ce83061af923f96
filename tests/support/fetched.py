"""A cache with no libnccl but those that `make test` fetches, so that a fuller one hides nothing from a test."""

from pathlib import Path

from tests.support.available_releases import FETCHED
from tuner import release
from tuner.base.files import sha256
from tuner.oracle import library


def link(folder: Path, cache: Path) -> None:
    """Links what the cache has, but for other libraries, into a folder that serves as one.

    Libraries whose digests nobody remembered are read here, as tests that aren't marked live cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unwanted = {
        library.cached(name, build).parent.name for name in release.names() for build in library.WHEELS
    } - FETCHED
    entries = {entry.name for entry in cache.iterdir()} if cache.is_dir() else set[str]()
    for name in unwanted:
        (folder / name).unlink(missing_ok=True)
    for name in entries - unwanted:
        if not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)  # where another cache was
            (folder / name).symlink_to(cache / name)
    for name in entries & FETCHED:
        if (file := cache / name / "libnccl.so.2").is_file():
            sha256(file)
