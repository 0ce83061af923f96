"""Fetches releases' libnccl for aarch64, which `fetch-nccl` does on such a computer, into the cache's folder aarch64.

    python -m tests.scripts.fetch_arm                     the release that tests/live/test_aarch64.py runs
    python -m tests.scripts.fetch_arm 2.28.9 2.32.3       these, for tests/live/test_aarch64.py

Where the cross compiler or qemu is not installed nothing can run it, and nothing is fetched. What cannot be fetched
is no error: the test that runs it is skipped and says so.
"""

import os
import platform
import tempfile

import click

from tests.support.both_builds import AARCH64_LIBRARIES, RUN_BY_TESTS, missing_tools
from tuner import release
from tuner.base.errors import OracleUnavailable
from tuner.base.files import sha256
from tuner.oracle import library

TAGS = ("manylinux2014_aarch64", "manylinux_2_18_aarch64", "manylinux_2_27_aarch64")


@click.command()
@click.argument("names", nargs=-1, metavar="[RELEASE]...")
def main(names: tuple[str, ...]) -> None:
    if missing := missing_tools():
        print(f"no libnccl for aarch64 is fetched: not installed: {', '.join(missing)}")
        return
    AARCH64_LIBRARIES.mkdir(parents=True, exist_ok=True)
    os.environ["PIP_PLATFORM"] = " ".join(TAGS)
    platform.machine = lambda: "aarch64"  # whose libraries are known, and wanted
    for name in names or (RUN_BY_TESTS,):
        target = AARCH64_LIBRARIES / f"{name}.so"
        known = release.load(name).library[library.BUILD]["aarch64"]
        if target.is_file() and sha256(target) == known.sha256:
            print(f"{target} is already there")
            continue
        with tempfile.TemporaryDirectory(dir=AARCH64_LIBRARIES) as cache:
            os.environ["NCCL_TUNER_CACHE"] = cache
            try:
                os.replace(library.fetch(name, print).path, target)
            except OracleUnavailable as error:
                print(error)


if __name__ == "__main__":
    main()
