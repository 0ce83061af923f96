"""C's numeric steps, against values worked out from the C standard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.base.numerics import as_size_t, int32, log2i, log2i_array, parse_long, shortest


@given(st.integers(0, 2**64 - 1))
def test_log2i_of_arrays_is_log2i(value: int) -> None:
    assert log2i_array(np.array([value], np.uint64)) == log2i_array(np.array([value, 1], np.uint64))[0] == log2i(value)


@pytest.mark.parametrize("exponent", range(64))
def test_log2i_at_powers_of_two(exponent: int) -> None:
    values = [2**exponent - 1, 2**exponent, 2**exponent + 1]
    wanted = [exponent - 1, exponent, exponent if exponent else 1]
    assert log2i_array(np.array(values, np.uint64)).tolist() == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        (" 7x", 7),
        ("0x1f", 31),
        ("010", 8),
        ("0x", 0),
        ("abc", 0),
        ("+5", 5),
        ("09", 0),
        ("", 0),
    ],
)
def test_parse_long_is_strtoll(text: str, value: int) -> None:
    assert parse_long(text) == value


def test_int_products_wrap() -> None:
    assert int32(2**31) == -(2**31)
    assert int32(64 * 512 * 8 * 8192) == -(2**31)
    assert as_size_t(-1) == 2**64 - 1


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_shortest_reads_back_to_the_same_float32(value: float) -> None:
    single = np.float32(value)
    assert np.float32(shortest(single)) == single
