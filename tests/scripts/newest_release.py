"""The newest release that the index has a wheel of, where no file knows it: ``unknown=2.33.1``, else ``unknown=``.

python -m tests.scripts.newest_release
"""

import re
import subprocess
import sys

from tuner import release
from tuner.oracle import library


def main() -> None:
    command = [sys.executable, "-m", "pip", "index", "versions", library.WHEELS[library.BUILD]]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(f"unknown={unknown(said)}")


def unknown(said: str) -> str:
    """The release of pip's first line, ``nvidia-nccl-cu12 (2.33.1)``; nothing where it is known."""
    found = re.search(r"\((\d+\.\d+\.\d+)", said)
    if found is None:
        raise SystemExit(f"pip said no version: {said[:200]!r}")
    return "" if found[1] in release.names() else found[1]


if __name__ == "__main__":
    main()
