"""Counts of what was compared with libnccl, docs/*.toml: pages print them, live tests write them with ``--record``."""

import fcntl
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.machine.graphs import release_key

DOCS = Path(__file__).parents[2] / "docs"


def read(name: str) -> dict[str, Any]:
    """Rows of docs/NAME.toml by release, oldest first."""
    return tomllib.loads((DOCS / f"{name}.toml").read_text())


@dataclass(frozen=True)
class Recorder:
    """Where ``on``, writes what tests compared."""

    on: bool

    def write(self, name: str, release: str, row: dict[str, Any]) -> None:
        """Replaces a release's row in docs/NAME.toml, whatever other tests write to it meanwhile."""
        if not self.on:
            return
        with (DOCS / f"{name}.toml").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            file.seek(0)
            file.truncate()
            file.write(written(text.partition("\n")[0], tomllib.loads(text) | {release: row}))


def written(head: str, rows: dict[str, Any]) -> str:
    """The text of a file with these rows, whose first line is ``head``."""
    lines = [head]
    for each in sorted(rows, key=release_key):
        lines += ["", f'["{each}"]', *(f"{key} = {_value(value)}" for key, value in rows[each].items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_value(each)}' for key, each in value.items())} }}"
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else json.dumps(value)
