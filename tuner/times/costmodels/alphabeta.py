"""The alpha-beta model: a collective takes a number of steps, each of which costs alpha, and moves a share of its size
at the bandwidth beta.

All times are linear in the size, so the size at which two algorithms are equally fast is computed, not searched for.

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.times.costmodels.operations import Array, CostOperation, not_negative, positive, whole

_ROUNDING = 1e-12  # times that differ by a smaller share are equal


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A network: ``alpha_us`` per step, ``beta_gbs`` per rank in one direction."""

    alpha_us: Array
    beta_gbs: Array


def level(alpha_us: ArrayLike, beta_gbs: ArrayLike) -> Level:
    """A latency and a bandwidth. BadInput for a latency below 0, or a bandwidth that is not above 0."""
    return Level(not_negative("alpha_us", alpha_us), positive("beta_gbs", beta_gbs))


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A time in us that is linear in the size: ``fixed_us + us_per_byte * bytes``."""

    fixed_us: Array
    us_per_byte: Array

    def time_us(self, nbytes: ArrayLike) -> Array:
        """The time of ``nbytes``, us."""
        time: Array = self.fixed_us + self.us_per_byte * positive("bytes", nbytes)
        return time

    def __add__(self, other: "Linear") -> "Linear":
        return Linear(self.fixed_us + other.fixed_us, self.us_per_byte + other.us_per_byte)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The number of consecutive ``steps``, and the ``share`` of the bytes that a rank sends in them."""

    steps: Array
    share: Array

    def time_us(self, nbytes: ArrayLike, on: Level) -> Array:
        """The time of ``nbytes`` on a network, us: latency and transfer."""
        return self.latency_us(on) + self.transfer_us(nbytes, on)

    def latency_us(self, on: Level) -> Array:
        """Time of the steps before a byte moves, us."""
        latency: Array = self.steps * on.alpha_us
        return latency

    def transfer_us(self, nbytes: ArrayLike, on: Level) -> Array:
        """Time of moving the share of ``nbytes``, us."""
        transfer: Array = self.share * positive("bytes", nbytes) / (1000 * on.beta_gbs)
        return transfer

    def on(self, level: Level) -> Linear:
        """The time on a network, as a linear function of the size."""
        return Linear(self.latency_us(level), self.share / (1000 * level.beta_gbs))


def log2_rounds(ranks: ArrayLike) -> Array:
    """The number of rounds until all ranks have what one rank had: log2 of the ranks, rounded up."""
    _, exponent = np.frexp(whole("ranks", ranks) - 1)
    rounds: Array = exponent.astype(np.float64)
    return rounds


def _part(ranks: Array) -> Array:
    part: Array = (ranks - 1) / ranks
    return part


def _power_of_two(ranks: Array) -> Array:
    others = np.asarray(ranks)[2 ** log2_rounds(ranks) != ranks]
    if len(others):
        raise BadInput(f"halving-doubling is only defined for a power of two ranks, not for {others[0]:g}")
    return log2_rounds(ranks)


def _direct(ranks: Array) -> Terms:
    return Terms(ranks / ranks, ranks / ranks)


def _tree(ranks: Array) -> Terms:
    """Terms of a tree that sends the whole size in each round."""
    return Terms(log2_rounds(ranks), log2_rounds(ranks))


def _binomial(ranks: Array) -> Terms:
    """Terms of a binomial tree, which sends half of the rest in each round."""
    return Terms(log2_rounds(ranks), _part(ranks))


def _ring(ranks: Array) -> Terms:
    return Terms(ranks - 1, _part(ranks))


def _halving(ranks: Array) -> Terms:
    return Terms(_power_of_two(ranks), _part(ranks))


def _after(first: Callable[[Array], Terms], second: Callable[[Array], Terms]) -> Callable[[Array], Terms]:
    def both(ranks: Array) -> Terms:
        one, other = first(ranks), second(ranks)
        return Terms(one.steps + other.steps, one.share + other.share)

    return both


# The first algorithm of an operation is used if none is named.
FORMULAS: Mapping[CostOperation, Mapping[str, Callable[[Array], Terms]]] = {
    CostOperation.SendRecv: {"direct": _direct},
    CostOperation.Broadcast: {"tree": _tree, "scatter-allgather": _after(_binomial, _ring)},
    CostOperation.Reduce: {"tree": _tree, "reducescatter-gather": _after(_ring, _binomial)},
    CostOperation.Scatter: {"binomial": _binomial},
    CostOperation.Gather: {"binomial": _binomial},
    CostOperation.AllReduce: {
        "ring": _after(_ring, _ring),
        "tree": _after(_tree, _tree),
        "halving-doubling": _after(_halving, _halving),
    },
    CostOperation.AllGather: {"ring": _ring, "halving-doubling": _halving},
    CostOperation.ReduceScatter: {"ring": _ring, "halving-doubling": _halving},
    CostOperation.AllToAll: {"pairwise": _ring},
}


def terms(operation: CostOperation, algorithm: str, ranks: ArrayLike) -> Terms:
    """The terms of an algorithm, which are 0 for one rank. BadInput if the operation has no such algorithm."""
    formulas = FORMULAS[operation]
    if algorithm not in formulas:
        raise BadInput(f"{operation.name} has no algorithm {algorithm!r}; {one_of(formulas)}")
    return formulas[algorithm](whole("ranks", ranks))


def crossover_bytes(one: Linear, other: Linear) -> Array:
    """The size in bytes above 0 at which both take equally long; NaN if there is no such size."""
    fixed_us, us_per_byte = other.fixed_us - one.fixed_us, one.us_per_byte - other.us_per_byte
    alike = np.abs(us_per_byte) <= _ROUNDING * np.maximum(one.us_per_byte, other.us_per_byte)
    together = np.abs(fixed_us) <= _ROUNDING * np.maximum(one.fixed_us, other.fixed_us)
    size = fixed_us / np.where(alike, 1.0, us_per_byte)
    crossing: Array = np.where(~alike & ~together & (size > 0), size, np.nan)[()]
    return crossing


def fastest(costs: Mapping[str, Linear]) -> list[tuple[float, str]]:
    """The fastest algorithms, each with the size from which it is fastest; if several are equally fast, the first one
    counts. Scalars only.
    """
    order = {name: place for place, name in enumerate(costs)}
    name = min(costs, key=lambda each: (costs[each].fixed_us, costs[each].us_per_byte, order[each]))
    steps = [(0.0, name)]
    while True:
        now = costs[steps[-1][1]]
        faster = [
            (float(crossover_bytes(now, cost)), float(cost.us_per_byte), order[each], each)
            for each, cost in costs.items()
            if cost.us_per_byte < now.us_per_byte
        ]
        later = [one for one in faster if np.isfinite(one[0])]
        if not later:
            return steps
        at, _, _, name = min(later)
        steps.append((at, name))
