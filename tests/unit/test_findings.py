"""Findings: codes become words in one place, in the spelling of the command line or of Python."""

import json
import string

import pytest

from tuner.base import findings, tables
from tuner.base.findings import Finding, Severity, Spelling
from tuner.base.records import to_json


@pytest.fixture
def one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "slow": {
            "says": "{sizes:sizes} on {gpus:counted GPU}, ranks {ranks:ranges}: {ratio:.1f} times",
            "do": "add {option:gpus-per-node}",
            "also": {"host": "The host is {host:quoted}."},
        }
    }
    monkeypatch.setattr(findings, "_table", {"made": table}.__getitem__)


def slow(**more: object) -> Finding:
    facts = {"sizes": [2**20, 2**21], "gpus": 1, "ranks": [3, 0, 1], "ratio": 2.04, **more}
    return Finding("made.slow", Severity.FAULT, facts)


@pytest.mark.usefixtures("one_table")
def test_facts_are_written_in_the_form_that_their_place_names() -> None:
    assert findings.words(slow()) == "1 MiB and 2 MiB on 1 GPU, ranks 0-1,3: 2.0 times"
    assert findings.words(slow(host="a b")).endswith("times The host is 'a b'.")
    assert findings.words(slow(host=None)) == findings.words(slow())


@pytest.mark.usefixtures("one_table")
@pytest.mark.parametrize(
    ("spelling", "option"), [(Spelling.COMMAND_LINE, "--gpus-per-node"), (Spelling.PYTHON, "gpus_per_node=")]
)
def test_an_option_is_spelled_as_its_reader_would_write_it(spelling: Spelling, option: str) -> None:
    assert findings.explained(slow(), spelling).do == f"add {option}"


@pytest.mark.usefixtures("one_table")
def test_json_has_code_severity_facts_and_words() -> None:
    written = json.loads(json.dumps(to_json(slow())))
    assert written["code"] == "made.slow"
    assert written["severity"] == "fault"
    assert written["facts"]["sizes"] == [2**20, 2**21]
    assert written["text"].startswith("1 MiB")


@pytest.mark.usefixtures("one_table")
@pytest.mark.parametrize("code", ["made.other", "other.slow"])
def test_a_code_without_words_is_an_error(code: str) -> None:
    with pytest.raises(KeyError):
        findings.words(Finding(code, Severity.NOTE, {}))


def test_the_worst_finding_decides() -> None:
    each = [Finding("made.slow", severity, {}) for severity in (Severity.NOTE, Severity.UNKNOWN, Severity.UNLIKE)]
    assert findings.worst(each) is Severity.UNKNOWN
    assert findings.worst(()) is None


@pytest.mark.parametrize("code", findings.codes())
def test_every_code_has_words_in_known_forms(code: str) -> None:
    entry = findings.entry_of(code)
    assert "says" in entry
    assert set(entry) <= {*findings.PARTS, "also"}
    for text in (*(entry[part] for part in findings.PARTS if part in entry), *entry.get("also", {}).values()):
        for _, name, form, _ in string.Formatter().parse(text):
            assert name is None or form is not None
            assert name != "option" or form, f"{code}: which option?"


def test_every_table_of_findings_is_one_of_a_room() -> None:
    named = {each.stem for each in (tables.folder() / findings.FOLDER).glob("*.toml")}
    assert {code.partition(".")[0] for code in findings.codes()} <= named
