"""How to measure the four parameters: latency and bandwidth, inside a node and between nodes, from a ring AllReduce.

Shapes: scalars, or arrays that broadcast and are computed one by one.
"""

from dataclasses import dataclass

from numpy.typing import ArrayLike

from tuner.times.costmodels.alphabeta import terms
from tuner.times.costmodels.checks import Array, positive, whole
from tuner.times.costmodels.operations import Operation


@dataclass(frozen=True, slots=True)
class Experiment:
    """``usual`` is the range to expect, in us of a latency and GB/s of a bandwidth."""

    parameter: str
    inside: bool
    latency: bool
    ranks: str
    bytes: int
    iterations: int
    warmup: int
    usual: tuple[float, float]

    @property
    def nccl_tests(self) -> str:
        """The same as arguments of nccl-tests, which warms up and repeats by itself."""
        gpus = "-g 8" if self.inside else "-g 1"
        return f"all_reduce_perf -b {self.bytes} -e {self.bytes} -n {self.iterations} -w {self.warmup} {gpus}"

    def within(self, value: float) -> bool:
        """Whether a measured value lies where it usually does."""
        low, high = self.usual
        return low <= value <= high


EXPERIMENTS = (
    Experiment("alpha_intra_us", True, True, "all GPUs of one node", 4, 10_000, 100, (1, 5)),
    Experiment("alpha_inter_us", False, True, "one GPU of each node", 4, 10_000, 100, (5, 20)),
    Experiment("beta_intra_gbs", True, False, "all GPUs of one node", 2 * 10**9, 20, 3, (250, 300)),
    Experiment("beta_inter_gbs", False, False, "one GPU of each node", 4 * 10**9, 10, 3, (40, 50)),
)
REPETITIONS = 5  # of each, for a mean and a deviation
SWEEP_BYTES = (10**3, 10**10)  # smallest and largest, for a fit of both
USUAL_RATIO = 6.0  # of the bandwidth inside a node to that between nodes


def alpha_us(elapsed_us: ArrayLike, iterations: ArrayLike, ranks: ArrayLike) -> Array:
    """Of a step, from calls of a size so small that only the ring's steps count."""
    calls = positive("elapsed_us", elapsed_us) / whole("iterations", iterations)
    alpha: Array = calls / terms(Operation.AllReduce, "ring", whole("ranks", ranks, least=2)).steps
    return alpha


def beta_gbs(nbytes: ArrayLike, elapsed_us: ArrayLike, iterations: ArrayLike, ranks: ArrayLike) -> Array:
    """From calls of a size so large that latencies do not count: the bus bandwidth."""
    calls = positive("elapsed_us", elapsed_us) / whole("iterations", iterations)
    share = terms(Operation.AllReduce, "ring", whole("ranks", ranks, least=2)).share
    beta: Array = share * positive("bytes", nbytes) / calls / 1000
    return beta
