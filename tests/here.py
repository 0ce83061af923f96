"""Which releases the live tests ask: a few, or with NCCL_TUNER_TEST_RELEASES=all every one on this computer.

`python tests/here.py` prints the few, without the installed one: `make test` fetches them.
"""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from tuner import release
from tuner.errors import OracleFailed
from tuner.oracle import library

T = TypeVar("T")

FEW = {release.names()[0], "2.27.7", "2.28.9", release.names()[-1], library.installed_release()}
ALL = os.environ.get("NCCL_TUNER_TEST_RELEASES") == "all"

HERE = [
    name
    for name in release.names()
    if (ALL or name in FEW) and (name == library.installed_release() or library.cached(name).is_file())
]


def where_not_crashed(ask: Callable[[], T], tries: int = 4) -> T:
    """Asks libnccl again where it crashed while it starts, which 2.18 does now and then on several nodes with NVLS.

    It reads its list of adapters past the end: ncclTopoSearchRecNet, src/graph/search.cc, v2.18.3-1.
    """
    for _ in range(tries - 1):
        try:
            return ask()
        except OracleFailed as error:
            if "SIGSEGV while initialising" not in str(error):
                raise
            print(f"again: {error}", file=sys.stderr)
    return ask()


if __name__ == "__main__":
    print(*(name for name in release.names() if name in FEW - {library.installed_release()}))
