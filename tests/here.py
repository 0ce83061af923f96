"""Which releases the live tests ask: a few, or with NCCL_TUNER_TEST_RELEASES=all every one on this computer.

`python tests/here.py` prints the few, without the installed one: `make test` fetches them.
"""

import os

from tuner import release
from tuner.oracle import library

FEW = {release.names()[0], "2.27.7", "2.28.9", release.names()[-1], library.installed_release()}
ALL = os.environ.get("NCCL_TUNER_TEST_RELEASES") == "all"

HERE = [
    name
    for name in release.names()
    if (ALL or name in FEW) and (name == library.installed_release() or library.cached(name).is_file())
]

if __name__ == "__main__":
    print(*(name for name in release.names() if name in FEW - {library.installed_release()}))
