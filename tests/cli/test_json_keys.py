"""The form of ``--json``: the keys that other tools go by, as version 0.1.0 wrote them, and the kind of each value.

``json_keys.json`` has, for each command line, every path from the outermost value to a number, a text or a truth value,
with that kind; an element of a list is ``[]``. What is added stands there as well, once it is meant; what is missing
breaks somebody's tool.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import run

RECORDED: dict[str, list[str]] = json.loads(Path(__file__).with_name("json_keys.json").read_text("utf-8"))
KINDS = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}
TABLE = "nccl-tuner-table 1\nallreduce bytes=64K..1M nodes=2 -> ring/ll128 channels=8 | tree/ll128\n# rows: 1\n"


def paths(value: object, where: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, f"{where}.{key}")
        if not value:
            yield f"{where}: {{}}"
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{where}[]")
        if not value:
            yield f"{where}: []"
    else:
        yield f"{where}: {KINDS[type(value)]}"


@pytest.mark.slow
@pytest.mark.parametrize("command", RECORDED)
def test_the_keys_are_those_of_the_first_version(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "my.table"
    table.write_text(TABLE)
    monkeypatch.chdir(Path(__file__).parents[2])
    words = (str(table) if word == "TABLE" else word for word in command.split())
    assert sorted(set(paths(json.loads(run(*words, "--json").stdout)))) == RECORDED[command]
