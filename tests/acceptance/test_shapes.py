"""Shapes of losses, at the sizes and shares where one becomes another."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.times.acceptance.judge import SizeVerdict
from tuner.times.acceptance.shapes import LossShape, loss_of

KIB = 1 << 10
SLOW, FINE = SizeVerdict.slow, SizeVerdict.passed


def lost(first_bytes: int, *factors: float) -> Any:
    """The loss of a curve over powers of two; sizes whose factor is above 1.5 are slow."""
    sizes = np.array([first_bytes << at for at in range(len(factors))], np.uint64)
    expected_us = np.linspace(100.0, 200.0, len(factors))
    curve = SimpleNamespace(bytes=sizes, worst_us=expected_us * factors)
    verdicts = tuple(SLOW if factor > 1.5 else FINE for factor in factors)
    judged: Any = SimpleNamespace(curve=curve, expected=SimpleNamespace(time_us=expected_us), verdicts=verdicts)
    return loss_of(judged)


CASES = {
    # A single slow size, of one and of several.
    (4 * KIB, (2.0,)): LossShape.single,
    (4 * KIB, (2.0, 1.0)): LossShape.alone,
    # 1 MiB is a large call: only losses below it are of latency, and only if there is a large call.
    (256 * KIB, (2.0, 2.0, 1.0, 1.0)): LossShape.latency,
    (512 * KIB, (2.0, 2.0, 1.0, 1.0)): LossShape.middle,
    (4 * KIB, (1.0, 2.0, 2.0)): LossShape.plateau,
    # Two larger sizes that are as expected end a loss; a single one does not.
    (1024 * KIB, (1.0, 2.0, 2.0, 2.0, 1.0, 1.0)): LossShape.middle,
    (1024 * KIB, (1.0, 2.0, 2.0, 2.0, 1.0, 1.45)): LossShape.middle,
    (1024 * KIB, (1.0, 2.0, 2.0, 2.0, 1.0)): LossShape.plateau,
    # Two of three small sizes, and two of three large ones, are enough for a loss at all sizes; one is not.
    (128 * KIB, (2.0, 1.0, 2.0, 2.0, 2.0, 2.0)): LossShape.everywhere,
    (128 * KIB, (2.0, 2.0, 2.0, 2.0, 2.0, 1.0)): LossShape.everywhere,
    (128 * KIB, (1.0, 1.0, 2.0, 2.0, 2.0, 2.0)): LossShape.plateau,
    # Two thirds of the sizes from the first slow one to the last are one loss; fewer are scattered.
    (1024 * KIB, (2.0, 1.0, 2.0)): LossShape.plateau,
    (1024 * KIB, (2.0, 1.0, 1.0, 2.0)): LossShape.scattered,
    # A loss that grows to more than 1.35 times the first, by more than a tenth in each of the last two steps.
    (1024 * KIB, (1.6, 1.8, 2.2)): LossShape.falling,
    (1024 * KIB, (1.6, 2.1, 2.2)): LossShape.plateau,
    (1024 * KIB, (1.6, 1.8, 2.1)): LossShape.plateau,
}


@pytest.mark.parametrize(("curve", "shape"), CASES.items())
def test_a_loss_has_the_shape_of_its_sizes(curve: tuple[int, tuple[float, ...]], shape: LossShape) -> None:
    first_bytes, factors = curve
    found = lost(first_bytes, *factors)
    assert found.shape is shape
    assert found.sizes == tuple(first_bytes << at for at, factor in enumerate(factors) if factor > 1.5)
    assert found.most == pytest.approx(max(factors))


def test_a_curve_without_slow_sizes_has_no_loss() -> None:
    assert lost(4 * KIB, 1.0, 1.2, 1.5) is None


def test_the_factor_is_the_median_of_sizes_from_256_mib_on_else_the_largest_slow_ones() -> None:
    assert lost(1 << 27, 9.0, 2.0, 3.0, 4.0).factor == pytest.approx(3.0)
    assert lost(1 << 20, 9.0, 2.0, 3.0, 4.0).factor == pytest.approx(4.0)
