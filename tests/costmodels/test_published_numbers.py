"""The numbers of the texts behind the cost models come out to the digits they print, or it is said why not."""

from typing import Any

import pytest

from tests.support import published_numbers
from tests.support.published_numbers import ROWS, Row
from tuner.times.costmodels import fabric


def digits(value: Any, like: str) -> str:
    """To as many decimals as ``like`` has."""
    return f"{float(value):.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.text}: {row.place}")
def test_the_number_comes_out(row: Row) -> None:
    expected = row.formula or row.printed
    assert digits(row.value(), expected) == expected
    assert (row.formula is None) == (row.why is None)
    if row.formula is not None:
        assert digits(row.value(), row.printed) != row.printed, "the text is right: take formula and why away"


def test_each_place_stands_once() -> None:
    places = [(row.text, row.place) for row in ROWS]
    assert len(set(places)) == len(places)
    assert {row.text for row in ROWS} == {"000", "001", "002", "003"}
    assert set(published_numbers.PRINTED[1]) == set(published_numbers.PRINTED[3])


def test_what_is_called_cut_off_is() -> None:
    cut = [row for row in ROWS if (row.why or "").startswith("cut off")]
    assert len(cut) > 5
    for row in cut:
        value = f"{float(row.value()):.9f}"
        assert value[: len(row.printed)] == row.printed, row.place


def test_the_last_efficiencies_are_those_of_other_links() -> None:
    """16 GB/s and no MDFI give what the text prints, 15 GB/s and MDFI its times."""
    for ranks, percent, measured_ms in ((2, "74", 74.2), (4, "66", 41.5), (12, "46", 19.7)):
        other = fabric.fabric(published_numbers.AURORA, "tables", xe_gbs=16.0)
        us = other.parts_us(875_000_000, 1, ranks, "direct", ranks == 2)["Xe-link"]
        assert digits(us / 10 / measured_ms, percent) == percent
