"""The schemas of ``--json``: one for each command, written down, and so narrow that another key is noticed.

``tests/conftest.py`` holds what every test lets a command print against them.
"""

import json
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from tests.support import json_schemas
from tests.support.command_line import run
from tuner import cli
from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.base.records import json_form, to_json, versioned

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
NOT_COMMANDS = {"export"}  # prints a file of its own, which is versioned alike


def test_every_command_with_json_has_a_schema() -> None:
    assert {*json_schemas.command_answers()} == {*json_schemas.commands(cli.everything)} | NOT_COMMANDS


def test_the_schemas_are_written_down() -> None:
    now = json_schemas.texts()
    assert {file.name for file in SCHEMAS.iterdir()} == {*now}
    for name, text in now.items():
        assert (SCHEMAS / name).read_text("utf-8") == text, f"docs/schemas/{name}: make docs"


@pytest.mark.parametrize("name", sorted(json_schemas.command_answers()))
def test_what_is_published_is_a_schema(name: str) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads((SCHEMAS / json_schemas.file_name(name)).read_text("utf-8")))


WORDS = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "1M", "--json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found["picks"][0].pop("nccl"), "'nccl' is a required property"),
        (lambda found: found["picks"][0].update(release="2.28.9"), "'release' was unexpected"),
        (lambda found: found["picks"][0]["pick"].update(channels="16"), "$.picks[0].pick"),
        (lambda found: found["picks"][0]["pick"].update(algorithm="Rign"), "$.picks[0].pick"),
        (lambda found: found.update(nccl_tuner_json=2), "'nccl_tuner_json': 2"),
        (lambda found: found.pop("picks"), "$: {"),
    ],
)
def test_another_key_or_kind_is_noticed(change: Any, says: str) -> None:
    found = json.loads(run(*WORDS).stdout)
    json_schemas.check("pick", found)
    change(found)
    with pytest.raises(AssertionError, match="docs/schemas") as raised:
        json_schemas.check("pick", found)
    assert says in str(raised.value)


def test_what_is_published_has_room_for_more_keys() -> None:
    from jsonschema import Draft202012Validator

    published = Draft202012Validator(json.loads((SCHEMAS / "pick.json").read_text("utf-8")))
    found = json.loads(run(*WORDS).stdout)
    found["picks"][0]["later"] = found["later"] = 1
    assert published.is_valid(found)
    del found["picks"][0]["pick"]["channels"]
    assert not published.is_valid(found)


def test_a_list_is_not_printed_without_a_key() -> None:
    assert versioned([1], "numbers") == {"nccl_tuner_json": 1, "numbers": [1]}
    with pytest.raises(TypeError, match="needs a key"):
        versioned([1])


@dataclass(frozen=True, slots=True)
class Inner:
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Record:
    algorithm: Algorithm | None
    span: Inner = field(metadata=json_form(merged="{}_bytes"))
    pair: tuple[int, str]
    maybe: float | None = field(default=None, metadata=json_form(optional=True))
    gone: int = field(default=0, metadata=json_form(omitted=True))
    named: str = field(default="x", metadata=json_form("class"))
    shown: Inner | None = field(default=None, metadata=json_form(convert=str))


@pytest.mark.parametrize("maybe", [None, 1.5])
@pytest.mark.parametrize("algorithm", [None, *Algorithm])
def test_a_records_schema_is_that_of_its_json(algorithm: Algorithm | None, maybe: float | None) -> None:
    from jsonschema import Draft202012Validator

    schema = Draft202012Validator(json_schemas.document("x", Record, closed=True))
    written = versioned(Record(algorithm, Inner(1, None), (1, "a"), maybe))
    assert schema.is_valid(to_json(written))
    for key in written:
        less = {name: value for name, value in written.items() if name != key}
        assert schema.is_valid(less) == (key == "maybe"), key


TABLE = "nccl-tuner-table 1\nallreduce bytes=64K..1M nodes=2 -> ring/ll128 channels=8 | tree/ll128\n# rows: 1\n"
COMMANDS = (
    "pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1M",
    "pick allreduce --machine dgx-h100 --nccl 2.28.9 --bytes 8,1M --buffers window",
    "explain allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M",
    "edges allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "edges allgather --machine dgx-b200 --nccl 2.29.2 --buffers window",
    "diff allreduce --machine dgx-h100 --nodes 2 --nccl 2.27.7 2.28.9",
    "edges allreduce --over nodes --machine dgx-h100 --nccl 2.28.9 --bytes 1M",
    "diff allreduce nodes=4 --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M",
    "diff allgather NCCL_CTA_POLICY=2 --machine dgx-h100 --nccl 2.30.7 --buffers window --bytes 1K",
    "pick allreduce:1M*2,allgather:64K --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "table --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "machines",
    "budget docs/examples/step.csv --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "cost allreduce --bytes 1G --time-us 3000 --ranks 8",
    "plugin lint TABLE --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "plugin dry-run TABLE allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 64K,1G",
    "machines dgx-h100",
    "verify --table v100-8x__2.27.5__dgx1",
    "verify --table b200-8x-64n__2.29.7__together --nodes 16 --next",
    "accept --floors --machine dgx-h100 --nccl 2.28.9 --bytes 64M",
    "check docs/examples/nsight.sqlite --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "decide docs/examples/all_reduce.log docs/examples/all_reduce-ring.log --machine dgx-h100 --no-gate --out TABLE",
    "check docs/examples/profiler-plugin.json --machine dgx-h100 --nodes 2 --nccl 2.28.9",
    "diagnose docs/examples/node.xml",
)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_as_its_schema_says(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of answers of every kind; with all that is always there, and the version first."""
    table = tmp_path / "my.table"
    table.write_text(TABLE)
    monkeypatch.chdir(SCHEMAS.parents[1])
    words = (str(table) if word == "TABLE" else word for word in command.split())
    assert next(iter(json.loads(run(*words, "--json").stdout).items())) == ("nccl_tuner_json", 1)
