"""Algorithm and bus bandwidth, as nccl-tests defines them (doc/PERFORMANCE.md of NVIDIA/nccl-tests)."""

from tuner.names import Collective


def algorithm_gbs(nbytes: float, time_us: float) -> float:
    """Size over time, 1e9 bytes per second."""
    return nbytes / time_us * 1e-3


def bus_factor(collective: Collective, ranks: int) -> float:
    """What turns algorithm into bus bandwidth: the share of the size that crosses a rank's link."""
    if collective is Collective.AllReduce:
        return 2 * (ranks - 1) / ranks
    if collective in (Collective.AllGather, Collective.ReduceScatter):
        return (ranks - 1) / ranks
    return 1.0
