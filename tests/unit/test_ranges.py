"""Lists of ranks in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.base.errors import BadInput
from tuner.base.sizes import as_ranges, from_ranges


@pytest.mark.parametrize(
    ("text", "numbers", "said"),
    [
        ("0-7:2", (0, 2, 4, 6), "0-6:2"),
        ("12,0-3", (0, 1, 2, 3, 12), "0-3,12"),
        ("0,1", (0, 1), "0-1"),
        ("0,8", (0, 8), "0,8"),
        ("1,9,17,3", (1, 3, 9, 17), "1,3,9,17"),
        ("5", (5,), "5"),
    ],
)
def test_ranges_are_read_and_said(text: str, numbers: tuple[int, ...], said: str) -> None:
    assert from_ranges(text, "--ranks") == numbers
    assert as_ranges(numbers) == said


@given(st.sets(st.integers(0, 200), min_size=1))
def test_what_is_said_is_read_again(numbers: set[int]) -> None:
    assert from_ranges(as_ranges(sorted(numbers)), "--ranks") == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected whole numbers"),
        ("0-7:0", "expected whole numbers"),
        ("a", "expected whole numbers"),
        ("7-0", "0 is below 7"),
        ("0-3,2", "2 stands there twice"),
        ("0-99999999", "expected whole numbers"),
    ],
)
def test_what_is_no_list_of_ranks_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        from_ranges(text, "--ranks")
