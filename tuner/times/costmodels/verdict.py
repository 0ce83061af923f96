"""How good a prediction is, and how good a measured bandwidth; what is usually behind a bad one."""

from dataclasses import dataclass

import numpy as np

EXCELLENT, USEFUL = 0.10, 0.30  # errors up to which
WELL_OPTIMISED = 0.70  # efficiency from which; such systems are usually at 0.70 to 0.85

# Of a model that is far off, in the order in which to look.
CAUSES = (
    "contention: other jobs on the same network",
    "the wrong path: alpha and beta were measured on another one",
    "protocols: what small messages carry besides their bytes",
    "memory pressure on the GPU, which slows copies",
)

# Of a bandwidth above the ideal.
ABOVE = (
    "reduction in the switch",
    "a network so fast that it takes from the links in the node",
    "too low a bandwidth given",
)


@dataclass(frozen=True, slots=True)
class Class:
    """``causes`` are what to look for; none where nothing has to be."""

    name: str
    causes: tuple[str, ...] = ()


def of_error(error: float) -> Class:
    """By the absolute relative error of a prediction: below 10 %, to 30 %, above."""
    if not np.isfinite(error):
        return Class("no prediction")
    if abs(error) < EXCELLENT:
        return Class("excellent")
    return Class("useful for planning") if abs(error) <= USEFUL else Class("assumptions violated", CAUSES)


def of_efficiency(efficiency: float, latency_share: float) -> Class:
    """By a share of the ideal busbw, and the share of the predicted time that is latency.

    A size whose time is mostly latency cannot reach a bandwidth, so that is what is said of it.
    """
    if efficiency > 1:
        return Class("above the ideal", ABOVE)
    if efficiency >= WELL_OPTIMISED:
        return Class("well optimised")
    if latency_share > 0.5:
        return Class("latency-bound", ("small messages: larger buckets share the latency",))
    causes = ("software: launch and synchronisation", "protocol headers", "contention", "copies over PCIe")
    return Class("below what is usual", causes)


def error(predicted: float, measured: float) -> float:
    """Relative to what was measured; above 0 where the prediction is too long."""
    return predicted / measured - 1
