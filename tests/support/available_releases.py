"""Which releases the live tests ask: a few, or with NCCL_TUNER_TEST_RELEASES=all every one on this computer.

`python -m tests.scripts.releases_to_fetch` prints the few, without the installed one: `make test` fetches them, and the
one with another build. Without the variable no test sees another one, whatever the cache has.
"""

import os

from tuner import release
from tuner.oracle import library

FEW = {release.names()[0], "2.27.7", "2.28.9", release.names()[-1], library.installed_release()}
ALL = os.environ.get("NCCL_TUNER_TEST_RELEASES") == "all"


def _one_of_each_interface() -> dict[int, str]:
    """By version of the tuner interface: a release that looks it up, one of the few where there is one."""
    chosen: dict[int, str] = {}
    for name in sorted(release.names(), key=lambda name: name in FEW):
        plugin = release.load(name).plugin
        if plugin is not None:
            chosen[plugin.api] = name
    return chosen


def is_here(name: str) -> bool:
    """Whether the libnccl of a release is installed or cached."""
    return name == library.installed_release() or library.cached(name).is_file()


ONE_WITH_BUILDS = "2.28.9"  # NCCL of the Makefile
BUILDS = [
    (name, build)
    for build in library.WHEELS
    if build != library.BUILD
    for name in library.with_build(build)
    if (ALL or name == ONE_WITH_BUILDS) and is_here(name) and library.cached(name, build).is_file()
]
INTERFACES = set(_one_of_each_interface().values())
FETCHED = FEW | INTERFACES | {f"{ONE_WITH_BUILDS}-{build}" for build in library.WHEELS if build != library.BUILD}
HERE = [name for name in release.names() if (ALL or name in FEW) and is_here(name)]
WITH_PLUGINS = [
    name
    for name in release.names()
    if (release.load(name).plugin is not None if ALL else name in INTERFACES) and is_here(name)
]
