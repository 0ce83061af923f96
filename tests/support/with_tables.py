"""Runs Python code in which the package ``tuner.tables`` is another folder: a copy of ``tables/``, with a change.

    python tests/support/with_tables.py FOLDER CODE [ARGUMENT...]

CODE is run as with ``python -c``, before anything of ``tuner`` is imported.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

NAME = "tuner.tables"


def python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What such a process answers."""
    command = [sys.executable, str(Path(__file__)), str(folder), code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def main() -> None:
    folder, code, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location(NAME, f"{folder}/__init__.py", submodule_search_locations=[folder])
    assert spec is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    sys.argv = ["nccl-tuner", *arguments]
    exec(compile(code, "code", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
