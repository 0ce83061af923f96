"""Which constants the data can tell apart, from how all times change with each of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KNOWN = 0.1  # a constant is fitted if the data know its logarithm this well, beside those fitted before it
_SETTLED = 1.5
_SHARE = 0.1  # of the largest: smaller parts in another constant's effect are not named


@dataclass(frozen=True, slots=True)
class Known:
    """Columns of a Jacobian: those to fit, and what the others' effect is made of ({} where they have none)."""

    fitted: tuple[int, ...]
    alike: dict[int, dict[int, float]]


def identify(jacobian: Array, after: Sequence[int], before: Collection[int] = ()) -> Known:
    """Which constants the calls determine, of a ``jacobian`` of numbers, [call][constant].

    The jacobian is of logarithms in units of their deviations; ``after`` orders the constants.

    The best known goes first, then the one that is best known beside it, as in a QR decomposition with pivoting: what
    is left of a column when the parts along those before are taken off is one over its deviation. Columns that were
    fitted ``before`` are preferred to ones that are hardly better known, so that repeated choices settle.
    """
    left, fitted = jacobian.copy(), []
    for rank in sorted(set(after)):
        columns = [column for column, place in enumerate(after) if place == rank]
        while columns:
            lengths = np.linalg.norm(left[:, columns], axis=0)
            if lengths.max() * KNOWN < 1:
                break
            lengths *= np.where(lengths * KNOWN < 1, 0, [_SETTLED if one in before else 1 for one in columns])
            best = columns[int(np.argmax(lengths))]
            columns.remove(best)
            fitted.append(best)
            direction = left[:, best] / np.linalg.norm(left[:, best])
            left -= np.outer(direction, direction @ left)
    return Known(
        tuple(fitted),
        {column: _alike(jacobian, fitted, column) for column in range(jacobian.shape[1]) if column not in fitted},
    )


def _alike(jacobian: Array, fitted: Sequence[int], column: int) -> dict[int, float]:
    """The effect of one column as parts of the fitted ones."""
    own = jacobian[:, column]
    if np.linalg.norm(own) * KNOWN < 1 or not fitted:
        return {}
    basis = jacobian[:, fitted]
    parts, *_ = np.linalg.lstsq(basis, own, rcond=None)
    weights = np.abs(parts) * np.linalg.norm(basis, axis=0)
    return {
        other: float(part)
        for other, part, weight in zip(fitted, parts, weights, strict=True)
        if weight >= _SHARE * weights.max()
    }
