"""Colours that differ in grey, and marks that can be seen on them."""

from itertools import combinations

import pytest

from tuner.answers.charts import palette
from tuner.base.names import Algorithm, Protocol


def lightness(colour: str) -> float:
    """CIE L* of ``#RRGGBB`` (sRGB, D65), 0 to 100: what is left of a colour in grey."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 216 / 24389 else luminance * 24389 / 27


def apart(one: str, other: str) -> float:
    return abs(lightness(one) - lightness(other))


def test_lightness_is_that_of_the_standard() -> None:
    """CIE 1976 L* of sRGB's primaries."""
    for colour, expected in (("#FF0000", 53.24), ("#00FF00", 87.73), ("#0000FF", 32.30), ("#FFFFFF", 100.0)):
        assert lightness(colour) == pytest.approx(expected, abs=0.01)
    assert lightness("#000000") == 0


def test_algorithms_differ_in_grey() -> None:
    assert set(palette.COLOURS) == set(Algorithm)
    for one, other in combinations([*palette.COLOURS.values(), palette.NOTHING_COLOUR], 2):
        assert apart(one, other) >= 8, (one, other)


@pytest.mark.parametrize("often", [["Tree", "Ring", "NVLS", "NVLSTree"], ["Ring", "PAT"]])
def test_what_stands_side_by_side_differs_more(often: list[str]) -> None:
    for one, other in combinations([palette.COLOURS[Algorithm[name]] for name in often], 2):
        assert apart(one, other) >= 18, (one, other)


def test_hatches_can_be_seen_on_every_colour() -> None:
    for algorithm, colour in palette.COLOURS.items():
        assert apart(colour, palette.INKS[algorithm]) >= 40, algorithm
    assert apart(palette.NOTHING_COLOUR, palette.NOTHING_INK) >= 40


def test_protocols_have_marks_of_their_own() -> None:
    for marks in (palette.HATCHES, palette.DASHES):
        assert set(marks) == set(Protocol)
        assert len(set(marks.values())) == len(Protocol)
    assert palette.NOTHING_HATCH not in palette.HATCHES.values()


def test_ratios_differ_in_grey_by_lightness_or_stripes() -> None:
    faster, alike, slower = palette.RATIOS[:3], palette.RATIOS[3], palette.RATIOS[4:]
    assert faster[-1][0] < 1 < alike[0] < slower[0][0]
    assert len({hatch for side in (faster, slower) for _, _, _, hatch in side} | {alike[3]}) == 3
    for side in (faster, slower):
        assert len({hatch for _, _, _, hatch in side}) == 1
        for (_, one, _, _), (_, other, _, _) in combinations([*side, alike], 2):
            assert apart(one, other) >= 15 or alike[1] in (one, other)
        assert all(apart(colour, ink) >= 40 for _, colour, ink, _ in side)
    assert apart(alike[1], palette.SAME_COLOUR) >= 15
