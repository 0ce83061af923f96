"""NCCL's model of its symmetric kernels: how long one takes on so many blocks, and on how many it may run."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from tuner.base.names import Collective
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import launch
from tuner.release.schema import given
from tuner.release.symmetric import SymmetricKernel, SymmetricRow

BLOCK_CHARGE = 0.025  # of the time, for each block
GBS = 2**30 / 1e6  # bytes per us; NCCL's GBps


@dataclass(frozen=True, slots=True, eq=False)
class KernelUse:
    """A kernel by name for calls of any size, one or several at a time."""

    communicator: Communicator
    request: Request
    name: str
    several: bool = False

    @property
    def kernel(self) -> SymmetricKernel:
        """The kernel's row of the release."""
        return self.communicator.release.symmetric.kernels[self.request.collective][self.name]

    @property
    def row(self) -> SymmetricRow:
        """The constants of the GPUs' generation."""
        return self.communicator.release.symmetric.row(self.communicator.min_comp_cap)


BlockRule = Callable[[Communicator, Request, int], Iterator[int]]  # up to the most that the kernel may have
BLOCK_RULES: Registry[BlockRule] = Registry()
OfBlocks = Callable[[int], float]  # us
OfSize = Callable[[int, int], OfBlocks]  # the bytes of the count, and those that the model takes for them
TimeRule = Callable[[KernelUse], tuple[OfSize, float]]  # and what a block counts for against the kernel
TIME_RULES: Registry[TimeRule] = Registry()


@TIME_RULES(
    nccl.SYMMETRIC_QUERY_MODEL(since="2.27.3"),
    nccl.QUERY_MODEL(since="2.28.3"),
    nccl.QUERY_MODEL_LSA(since="2.29.2"),
    nccl.QUERY_MODEL_LSA_MOVED(since="2.31.2"),
)
def by_bus(use: KernelUse) -> tuple[OfSize, float]:
    """Bytes over the bus at the bandwidth of the blocks, which saturates smoothly."""
    row, kernel, collective, ranks = use.row, use.kernel, use.request.collective, use.communicator.ranks
    base_us = (row.base_us.low_latency if kernel.low_latency else row.base_us.bulk)[collective] + kernel.base_more_us
    block_gbs = row.block_gbs[collective] * GBS
    peak_gbs = row.peak_reduce_gbs if kernel.reduces_in_switch else row.peak_gbs[collective]
    saturated = (peak_gbs if kernel.peak_gbs is None else kernel.peak_gbs) * GBS * kernel.peak_factor
    bytes_over_bus = BUS_BYTES[kernel.bus]
    multiplier = MULTIPLIERS[kernel.multiplier](ranks)
    gbs_of = cache(lambda blocks: _softmin(blocks * block_gbs * multiplier, saturated, block_gbs))

    def of_size(own_bytes: int, modelled_bytes: int) -> OfBlocks:
        bus_bytes = bytes_over_bus(modelled_bytes, ranks)
        return lambda blocks: base_us + _softplus(bus_bytes / gbs_of(blocks) - 1)

    return of_size, BLOCK_CHARGE


@TIME_RULES(nccl.BINARY("time of symmetric AllGather kernels", since="2.32.3"))
def by_bus_or_all_to_all(use: KernelUse) -> tuple[OfSize, float]:
    """An AllGather alone on Blackwell by its blocks' and its links' shares; all else as :func:`by_bus`."""
    communicator, ranks = use.communicator, use.communicator.ranks
    if use.several or use.request.collective is not Collective.AllGather or communicator.min_comp_cap not in (100, 103):
        return by_bus(use)
    row = given(communicator.release.symmetric.all_to_all, "symmetric.all_to_all")[use.name]
    rounds_us = (ranks - 1) * row.rank_us
    copies = {"all": ranks, "one": 1, "others": ranks}[row.copies]
    cell_bytes = communicator.release.symmetric.cell_bytes
    share = (ranks - 1) / ranks if row.efficient_peak else 1.0

    def of_size(own_bytes: int, modelled_bytes: int) -> OfBlocks:
        cells = -(-own_bytes // cell_bytes)
        wire_us = (ranks - 1) * own_bytes / (row.peak_gbs * share * 1000)

        def time_us(blocks: int) -> float:
            active = -(-cells // -(-cells // blocks))
            effective = active * SCALES[row.scale](active, ranks)
            compute = own_bytes / (effective * row.compute_gbs * 1000) if row.compute_gbs else 0.0
            block_us = compute + copies * own_bytes / (effective * row.block_gbs * 1000)
            work_us = max(block_us, wire_us)
            if row.overlap_blocks is None:
                return row.base_us + rounds_us + work_us
            apart = 1 - min(1.0, row.overlap_blocks / active)
            return row.base_us + max(rounds_us, work_us) + apart * min(rounds_us, work_us)

        return time_us

    return of_size, 0.02


@lru_cache(4096)
def _dip(active: int, ranks: int) -> float:
    """Low-latency stores slow each other down at 32 blocks."""
    if ranks <= 4 or not 4 < active < 64:
        return 1.0
    points = ((2.0, 1.0), (3.0, 0.99), (5.0, 0.69), (6.0, 1.0))
    at = math.log2(active)
    (low, before), (high, after) = next(pair for pair in pairwise(points) if at <= pair[1][0])
    return before + (after - before) * (at - low) / (high - low)


SCALES: dict[str, Callable[[int, int], float]] = {
    "none": lambda active, ranks: 1.0,
    "alone": lambda active, ranks: 1.1445 if active == 1 else 1.0,
    "dip": _dip,
}


@BLOCK_RULES(
    nccl.SYMMETRIC_QUERY_MODEL(since="2.27.3"), nccl.QUERY_MODEL(since="2.28.3"), nccl.QUERY_MODEL_LSA(since="2.29.2")
)
def every_count(communicator: Communicator, request: Request, limit: int) -> Iterator[int]:
    """A least number above the most is passed over (sic)."""
    least, most = communicator.ctas[0], min(communicator.ctas[1], limit)
    yield from (*range(least, most), most)


@BLOCK_RULES(
    nccl.QUERY_MODEL_LSA_MOVED(since="2.31.2"), nccl.BINARY("block counts of symmetric kernels", since="2.32.3")
)
def one_or_even_counts(communicator: Communicator, request: Request, limit: int) -> Iterator[int]:
    """1 and the even numbers between the fewest and the most of a call, and both rounded to such."""
    least, most = launch.ctas(communicator, request)
    most = min(most, limit)
    least = min(least, most)
    if least != most:
        least, most = least + (least != 1 and least % 2), most - (most != 1 and most % 2)
    yield from (*(count for count in range(least, most) if count == least or count % 2 == 0), most)


BUS_BYTES: dict[str, Callable[[int, int], int]] = {
    "low_latency": lambda nbytes, ranks: int(float(ranks * nbytes) * 9.0),
    "scatter_and_gather": lambda nbytes, ranks: 2 * nbytes * (ranks - 1) // ranks,
    "switch": lambda nbytes, ranks: nbytes // ranks + nbytes,
    "others": lambda nbytes, ranks: (ranks - 1) * nbytes,
}
MULTIPLIERS: dict[str, Callable[[int], float]] = {
    "one": lambda ranks: 1.0,
    "a_tenth_more": lambda ranks: 1.1,
    "ranks": float,
    "more_than_half_the_ranks": lambda ranks: 0.55 * ranks,
    "nearly_as_much": lambda ranks: 0.99 * (0.55 * ranks),
}


def _softmin(value: float, ceiling: float, softness: float) -> float:
    return ceiling - softness * math.log1p((math.exp(ceiling / softness) - 1) * math.exp(-value / softness))


def _softplus(value: float) -> float:
    return value if value >= 100.0 else math.log1p(math.exp(value))
