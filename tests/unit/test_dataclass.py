"""Dataclasses whose methods are made late, against the standard library's."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from tuner.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Late:
    """A record."""

    name: str
    size: int = 3
    parts: tuple[int, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Later(Late):
    """One with a field more, which it checks."""

    last: float = 0.5

    def __post_init__(self) -> None:
        assert self.last > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """The same record by the standard library."""

    name: str
    size: int = 3
    parts: tuple[int, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False, kw_only=True)


GIVEN: list[Callable[[Any], Any]] = [
    lambda kind: kind("a"),
    lambda kind: kind("a", 4),
    lambda kind: kind(size=5, name="b", note="n"),
    lambda kind: kind("a", 3, (1, 2), note="m"),
]


@pytest.mark.parametrize("make", GIVEN)
def test_objects_are_as_the_standard_librarys(make: Callable[[Any], Any]) -> None:
    ours, other = make(Late), make(Plain)
    assert repr(ours) == repr(other).replace("Plain", "Late")
    assert dataclasses.asdict(ours) == dataclasses.asdict(other)
    assert [ours == each(Late) for each in GIVEN] == [other == each(Plain) for each in GIVEN]
    assert all(hash(ours) == hash(each(Late)) for each in GIVEN if each(Late) == ours)
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == dataclasses.replace(ours) == ours
    assert dataclasses.replace(ours, size=9).size == 9
    assert ours != other


def test_a_field_cannot_be_set_nor_deleted() -> None:
    record = Late("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
        record.size = 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
        del record.size
    assert record.size == 3


def test_wrong_arguments_are_refused() -> None:
    several: list[Any] = [{}, {"name": "a", "sise": 1}]
    for wrong in several:
        with pytest.raises(TypeError, match=r"__init__\(\) (missing|got an unexpected)"):
            Late(**wrong)


def test_a_subclass_has_its_own_fields_and_checks() -> None:
    assert Later("a", last=0.25) != Late("a")
    assert repr(Later("a")) == "Later(name='a', size=3, parts=(), last=0.5)"
    with pytest.raises(AssertionError):
        Later("a", last=-1)


def test_one_that_may_change_has_no_hash() -> None:
    @dataclass(slots=True)
    class Changing:
        count: int = 0

    changing = Changing()
    changing.count = 2
    assert changing == Changing(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)
