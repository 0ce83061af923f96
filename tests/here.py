"""Which releases the live tests ask: a few, or with NCCL_TUNER_TEST_RELEASES=all every one on this computer."""

import os

from tuner import release
from tuner.oracle import library

FEW = {release.names()[0], "2.27.7", "2.28.9", library.installed_release()}
ALL = os.environ.get("NCCL_TUNER_TEST_RELEASES") == "all"

HERE = [
    name
    for name in release.names()
    if (ALL or name in FEW) and (name == library.installed_release() or library.cached(name).is_file())
]
