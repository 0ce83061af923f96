"""What stands between the alpha-beta model and a measured time, as named factors; and LogP's overheads.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from tuner.times.costmodels.alphabeta import Level, Linear, level
from tuner.times.costmodels.checks import Array, not_negative, positive, share

# What is usual, least and most; of software in us, the others as shares.
USUAL: Mapping[str, tuple[float, float]] = {
    "software": (10.0, 50.0),
    "protocol": (0.05, 0.15),
    "contention": (0.3, 0.5),
    "straggler": (0.05, 0.2),
}


@dataclass(frozen=True, slots=True, eq=False)
class Overheads:
    """``software_us`` of a call (library, driver, launch); the shares of beta that ``protocol`` (headers, checksums,
    repeats) and ``contention`` (other traffic) take; ``copy_gbs`` of a copy to where the adapter reads; ``straggler``,
    how much longer the slowest rank takes, as a share of the time."""

    software_us: Array
    protocol: Array
    contention: Array
    copy_gbs: Array | None
    straggler: Array

    def parts_us(self, nbytes: ArrayLike, cost_on: Callable[[Callable[[Level], Level]], Linear]) -> dict[str, Array]:
        """The model's time and what each factor adds to it, one after the other; their sum is the time.

        ``cost_on`` is the model with its levels changed.
        """
        model, protocol, loaded = (
            cost_on(partial(_with_share, share)).time_us(nbytes)
            for share in (0.0, self.protocol, 1 - (1 - self.protocol) * (1 - self.contention))
        )
        copy = copy_us(nbytes, self.copy_gbs) if self.copy_gbs is not None else 0 * model
        software = self.software_us + 0 * model
        return {
            "model": model,
            "protocol": protocol - model,
            "contention": loaded - protocol,
            "software": software,
            "copy": copy,
            "straggler": (loaded + software + copy) * self.straggler,
        }


def _with_share(taken: ArrayLike, level: Level) -> Level:
    return Level(level.alpha_us, level.beta_gbs * (1 - np.asarray(taken)))


def overheads(
    software_us: ArrayLike = 0.0,
    protocol: ArrayLike = 0.0,
    contention: ArrayLike = 0.0,
    copy_gbs: ArrayLike | None = None,
    straggler: ArrayLike = 0.0,
) -> Overheads:
    """BadInput for what is below 0, or takes all of a link."""
    return Overheads(
        not_negative("software_us", software_us),
        share("protocol", protocol),
        share("contention", contention),
        None if copy_gbs is None else positive("copy_gbs", copy_gbs),
        not_negative("straggler", straggler),
    )


def copy_us(nbytes: ArrayLike, copy_gbs: ArrayLike) -> Array:
    """A copy of the whole size, such as over PCIe."""
    time: Array = positive("bytes", nbytes) / (1000 * positive("copy_gbs", copy_gbs))
    return time


@dataclass(frozen=True, slots=True, eq=False)
class LogGP:
    """``latency_us`` L of the wire, ``overhead_us`` o of each processor, ``gap_us`` g between two messages, and
    ``gbs``, one over the gap G per byte."""

    latency_us: Array
    overhead_us: Array
    gap_us: Array
    gbs: Array

    @property
    def level(self) -> Level:
        """As alpha and beta of steps that wait for each other: alpha is L + 2 o, or g where that is longer."""
        return level(np.maximum(self.latency_us + 2 * self.overhead_us, self.gap_us), self.gbs)

    def stream_us(self, messages: ArrayLike, nbytes: ArrayLike) -> Array:
        """So many messages of a size from one rank to another, none waiting for the one before to arrive."""
        transfer = positive("bytes", nbytes) / (1000 * self.gbs)
        between = np.maximum(self.gap_us, self.overhead_us + transfer)
        time: Array = (positive("messages", messages) - 1) * between + transfer + self.latency_us + 2 * self.overhead_us
        return time


def loggp(latency_us: ArrayLike, overhead_us: ArrayLike, gap_us: ArrayLike, gbs: ArrayLike) -> LogGP:
    """BadInput for times or a gap below 0, or a bandwidth that is not above it."""
    return LogGP(
        not_negative("latency_us", latency_us),
        not_negative("overhead_us", overhead_us),
        not_negative("gap_us", gap_us),
        positive("gbs", gbs),
    )
