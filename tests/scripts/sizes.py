"""Prints lines and dataclasses of each room of ``tuner``, and the difference to the last tag, or to main without one.

python -m tests.scripts.sizes [COMMIT]
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATACLASS = re.compile(r"^\s*@(?:dataclasses\.)?dataclass(?![\w])", re.MULTILINE)


def room_of(path: str) -> str:
    """``cli`` of ``tuner/cli/pick.py``; ``top`` of a module beside the rooms."""
    parts = Path(path).parts
    return parts[1] if len(parts) > 2 else "top"


def counted(sources: dict[str, str]) -> tuple[Counter[str], int]:
    """Lines by room, and the number of dataclasses, of sources by path."""
    lines = Counter[str]()
    for path, source in sources.items():
        lines[room_of(path)] += source.count("\n")
    return lines, sum(len(DATACLASS.findall(source)) for source in sources.values())


def here() -> dict[str, str]:
    files = (ROOT / "tuner").rglob("*.py")
    return {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout


def at(commit: str) -> dict[str, str]:
    """The sources of a commit. CalledProcessError where there is none."""
    named = _git("ls-tree", "-r", "--name-only", commit, "tuner").splitlines()
    return {path: _git("show", f"{commit}:{path}") for path in named if path.endswith(".py")}


def base() -> str | None:
    """The last tag, else main; None outside a checkout that has either."""
    for words in (("describe", "--tags", "--abbrev=0"), ("rev-parse", "--verify", "main")):
        try:
            return _git(*words).strip()
        except (subprocess.CalledProcessError, FileNotFoundError):
            continue
    return None


def report(before: dict[str, str], after: dict[str, str]) -> str:
    """A line for each room: its lines, and what changed."""
    (old, old_classes), (new, new_classes) = counted(before), counted(after)
    rooms = [(room, new[room], old[room]) for room in sorted({*old, *new}, key=lambda room: -new[room])]
    rows = [*rooms, ("sum", new.total(), old.total()), ("dataclasses", new_classes, old_classes)]
    return "".join(f"{name:<12} {now:>7,} {now - then:>+7,}\n" for name, now, then in rows)


if __name__ == "__main__":
    commit = sys.argv[1] if len(sys.argv) > 1 else base()
    print(report(at(commit) if commit else here(), here()), end="")
