"""Records as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.base.records import from_json, json_form, to_json


class Word(IntEnum):
    one = 1


class Text(StrEnum):
    two = "second"


@dataclass(frozen=True, slots=True)
class Inner:
    word: Word
    time_us: float | None


@dataclass(frozen=True, slots=True)
class Outer:
    inner: tuple[Inner, ...]
    beside: Inner = field(metadata=json_form(merged=True))
    requested: int = field(metadata=json_form("asked"))
    secret: int = field(metadata=json_form(omitted=True))
    text: Any = field(metadata=json_form(convert=str))
    path: Path | None = None


def test_records_become_dictionaries_in_the_order_of_their_fields() -> None:
    record = Outer((Inner(Word.one, None),), Inner(Word.one, 2.5), 3, 4, (5,), Path("a/b"))
    made = to_json(record)
    assert made == {
        "inner": [{"word": "one", "time_us": None}],
        "word": "one",
        "time_us": 2.5,
        "asked": 3,
        "text": "(5,)",
        "path": "a/b",
    }
    assert list(made) == ["inner", "word", "time_us", "asked", "text", "path"]


def test_values_stay_what_they_are() -> None:
    assert to_json({Word.one: [1, True, None, "x"], "a": (Text.two,)}) == {"one": [1, True, None, "x"], "a": ["second"]}
    assert to_json({"array": np.array([1, 2]), "number": np.float64(0.5)}) == {"array": [1, 2], "number": 0.5}
    assert type(to_json(np.int64(3))) is int


def test_what_has_no_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        to_json([object()])


@dataclass(frozen=True)
class Kept:
    by_number: Mapping[int, tuple[Inner, ...]]
    pair: tuple[int, str]
    texts: Sequence[Text]
    inner: Inner = field(metadata=json_form(merged=True))
    more: list[int] | None = None


def test_records_come_back_by_their_types() -> None:
    inner = Inner(Word.one, 2.5)
    for kept in (
        Kept({7: (inner,), 8: ()}, (1, "a"), (Text.two,), inner),
        Kept({}, (1, "a"), (), Inner(Word.one, None), [3, 4]),
    ):
        written = json.loads(json.dumps(to_json(kept)))
        assert from_json(Kept, written) == kept
        del written["word"]
        with pytest.raises(KeyError):
            from_json(Kept, written)
