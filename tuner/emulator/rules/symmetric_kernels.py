"""The symmetric kernels that can carry calls of a kind, and NCCL's choice among them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import SYMMETRIC, Buffers, Collective, PeerCall, Sides
from tuner.base.numerics import f32
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import candidate, launch, symmetric_rail, symmetric_variables
from tuner.release.schema import given
from tuner.release.symmetric import SymmetricKernel, SymmetricRow

BLOCK_CHARGE = 0.025  # share of the time that each block counts
GBS = 2**30 / 1e6  # bytes per us; NCCL's GBps


@dataclass(frozen=True, slots=True, eq=False)
class KernelUse:
    """A kernel by its name, for calls of any size, one or several at a time."""

    communicator: Comm
    request: Request
    name: str
    several: bool = False

    @property
    def kernel(self) -> SymmetricKernel:
        """The kernel's row in the release's table."""
        return self.communicator.release.symmetric.kernels[self.request.collective][self.name]

    @property
    def row(self) -> SymmetricRow:
        """The constants for the generation of the GPUs."""
        return self.communicator.release.symmetric.row(self.communicator.min_comp_cap)


BlockRule = Callable[[Comm, Request, int], Iterator[int]]  # numbers of blocks up to the most that the kernel may have
BLOCK_RULES: Registry[BlockRule] = Registry()
OfBlocks = Callable[[int], float]  # the time in us on a number of blocks
OfSize = Callable[[int, int], OfBlocks]  # called with the bytes of the data, and with those that the model assumes
TimeRule = Callable[[KernelUse], tuple[OfSize, float]]  # and the share that a block counts against the kernel
TIME_RULES: Registry[TimeRule] = Registry()


@TIME_RULES(
    nccl.SYMMETRIC_QUERY_MODEL(since="2.27.3"),
    nccl.QUERY_MODEL(since="2.28.3"),
    nccl.QUERY_MODEL_LSA(since="2.29.2"),
    nccl.QUERY_MODEL_LSA_MOVED(since="2.31.2"),
)
def by_bus(use: KernelUse) -> tuple[OfSize, float]:
    """The time in which the bytes cross the bus at the bandwidth of the blocks, which saturates smoothly."""
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
    """Time of one AllGather on Blackwell by the work of its blocks and its links; all else as in :func:`by_bus`."""
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
    """The efficiency of low-latency stores, which slow each other down around 32 blocks."""
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
def every_count(communicator: Comm, request: Request, limit: int) -> Iterator[int]:
    """Every number of blocks from the lowest to the highest; a minimum above the maximum is ignored (sic)."""
    least, most = communicator.ctas[0], min(communicator.ctas[1], limit)
    yield from (*range(least, most), most)


@BLOCK_RULES(
    nccl.QUERY_MODEL_LSA_MOVED(since="2.31.2"), nccl.BINARY("block counts of symmetric kernels", since="2.32.3")
)
def one_or_even_counts(communicator: Comm, request: Request, limit: int) -> Iterator[int]:
    """1 and the even numbers between the lowest and the highest number of blocks of a call.

    Both ends are first rounded to 1 or an even number.
    """
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


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel with its number of blocks, and the two numbers by which NCCL compares kernels: the modelled time and the
    blocks."""

    kernel: str
    blocks: int
    time_us: np.float32
    score: np.float32
    low_latency: bool


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """Sizes of the calls that one kernel carries: the largest in bytes, and the sum of all as the model counts it."""

    most_bytes: int
    modelled_bytes: int
    calls: int = 1


def best(communicator: Comm, request: Request, counts: KernelCounts) -> KernelChoice | None:
    """The kernel with the least time, where each block adds a charge to it; None if no kernel can carry the call."""
    table = communicator.release.symmetric
    least: KernelChoice | None = None
    for choice in weighed(communicator, request, counts):
        beaten = least is None or choice.score < least.score or (table.last_of_equals and choice.score == least.score)
        least = choice if beaten else least
    return least


def weighed(communicator: Comm, request: Request, counts: KernelCounts) -> Iterator[KernelChoice]:
    """The kernels that can carry the calls, in NCCL's order.

    The size limit of low-latency kernels counts whole cells, as the model does.
    """
    parts = 1 if request.collective is Collective.AllReduce else communicator.ranks
    bus_bytes = counts.most_bytes * parts
    whole_bytes = bus_bytes if counts.calls > 1 else counts.modelled_bytes * parts
    if communicator.nodes > 1:
        yield from _of_rails(communicator, request, bus_bytes, counts.modelled_bytes)
        return
    for each in _candidates(communicator, request, counts.calls > 1):
        if _small_enough(communicator, each.kernel, bus_bytes, whole_bytes):
            choice = _on_blocks(communicator, each, counts)
            if choice is not None:
                yield choice


def exists_for(communicator: Comm, request: Request, nbytes: int) -> bool:
    """Whether any kernel could do a call of nBytes in windows, even one that copies in bulk and has too few bytes."""
    in_windows, table = replace(request, buffers=Buffers.window, windows=SYMMETRIC), communicator.release.symmetric
    if communicator.nodes > 1:
        own_bytes = nbytes // request.parts(communicator.ranks)
        return any(_of_rails(communicator, in_windows, nbytes, own_bytes, table.waits_for_any))
    return any(
        _small_enough(communicator, kernel, nbytes, nbytes) and _usable(communicator, in_windows, kernel)
        for _, kernel in _kernels(communicator, request.collective, table.waits_for_any)
        if not kernel.multicast or _notes_multicast(communicator, request)
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A kernel that can carry calls of some sizes: the numbers of blocks that it may have, and its model."""

    name: str
    kernel: SymmetricKernel
    blocks: tuple[int, ...]
    time_us: OfSize
    charge: float


@lru_cache(64)  # needed again for every size
def _candidates(communicator: Comm, request: Request, several: bool) -> tuple[_Candidate, ...]:
    """The candidates in NCCL's order; low-latency kernels do one call at a time."""
    made = []
    for name, kernel in _kernels(communicator, request.collective):
        if _usable(communicator, request, kernel) and not (several and kernel.low_latency):
            use = KernelUse(communicator, request, name, several)
            blocks = _block_counts(communicator, use)
            made.append(
                _Candidate(f"{request.collective.name}_{name}", kernel, blocks, *communicator.rules.symmetric_time(use))
            )
    return tuple(made)


def _block_counts(communicator: Comm, use: KernelUse) -> tuple[int, ...]:
    table = communicator.release.symmetric
    if (requested := symmetric_variables.requested_blocks(communicator)) is not None:
        return (requested,)
    shared = use.row.multicast_blocks if use.kernel.few else table.max_blocks * communicator.ranks
    limit = min(table.max_blocks, -(-shared // communicator.ranks))
    return tuple(communicator.rules.symmetric_blocks(communicator, use.request, limit))


def _kernels(
    communicator: Comm, collective: Collective, any_name: bool = False
) -> Iterator[tuple[str, SymmetricKernel]]:
    """Kernels of a collective that NCCL_SYM_KERNEL allows, in NCCL's order, by their names without the collective."""
    table = communicator.release.symmetric
    for name in table.names:
        of, _, short = name.partition("_")
        kernel = table.kernels[collective].get(short) if of == collective.name else None
        if kernel is None:
            continue
        if any_name or communicator.rules.symmetric_requested(communicator, collective, name):
            yield short, kernel


def _of_rails(
    communicator: Comm, request: Request, bus_bytes: int, modelled_bytes: int, any_name: bool = False
) -> Iterator[KernelChoice]:
    if bus_bytes >= communicator.release.symmetric.below_bytes:
        return
    switch, requested = multicast(communicator), communicator.rules.symmetric_requested
    for each in symmetric_rail.weighed(communicator, request, modelled_bytes, switch):
        name = f"{request.collective.name}_{each.name}"
        if not any_name and not requested(communicator, request.collective, name):
            continue
        if not each.reads_multicast or _switch_reduces(communicator, request):
            score = _score(each.time_us, BLOCK_CHARGE, each.blocks)
            yield KernelChoice(name, each.blocks, each.time_us, score, False)


def _notes_multicast(communicator: Comm, request: Request) -> bool:
    """Whether kernels that multicast are known to be possible: outside windows perhaps only once another kernel ran.

    Source: ncclSymkInitOnce, src/sym_kernels.cc, v2.29.7-1.
    """
    late = communicator.release.symmetric.multicast_is_noted_late
    if request.symmetric or not late or symmetric_variables.note_multicast(communicator, request):
        return True
    left = _kernels(communicator, request.collective)
    return any(kernel.low_latency and not kernel.multicast for _, kernel in left)


def _usable(communicator: Comm, request: Request, kernel: SymmetricKernel) -> bool:
    """Whether the kernel can carry the call at some size."""
    switch = multicast(communicator)
    if not kernel.low_latency and not symmetric_rail.suffice(communicator, request):
        return False
    if kernel.bulk_unit_bytes is not None and not symmetric_variables.copies_in_bulk(communicator):
        return False
    if kernel.reads_multicast and not (switch and _switch_reduces(communicator, request)):
        return False
    return not kernel.multicast or (switch and _notes_multicast(communicator, request))


def _small_enough(communicator: Comm, kernel: SymmetricKernel, bus_bytes: int, whole_bytes: int) -> bool:
    table = communicator.release.symmetric
    if kernel.low_latency and whole_bytes >= table.low_latency_below_bytes:
        return False
    return bus_bytes < table.below_bytes


def multicast(communicator: Comm) -> bool:
    """Whether kernels may write to all GPUs at once."""
    return communicator.nvls and communicator.lsa_ranks >= communicator.release.symmetric.multicast_from_ranks


def _switch_reduces(communicator: Comm, request: Request) -> bool:
    if request.dtype in FP8:
        return communicator.min_comp_cap >= 100
    return request.dtype in (*candidate.NVLS_ANY_ORDER, *candidate.NVLS_SUM_ONLY)


def _on_blocks(communicator: Comm, of: _Candidate, counts: KernelCounts) -> KernelChoice | None:
    """The kernel on the lowest number of blocks with which it is at most 2.5 % slower than on all blocks that it may
    have."""
    blocks_of, kernel = of.blocks, of.kernel
    if kernel.bulk_unit_bytes is not None:
        enough = tuple(n for n in blocks_of if _enough(kernel, counts.most_bytes, communicator.ranks, n))
        if not enough and not symmetric_variables.kernels_are_listed(communicator):
            return None
        blocks_of = enough or blocks_of
    time_us = of.time_us(counts.most_bytes, counts.modelled_bytes)
    all_us = f32(time_us(blocks_of[-1]))
    bearable_us = 1.025 * float(all_us)
    blocks, chosen_us = blocks_of[-1], all_us
    for count in blocks_of[:-1]:
        if (us := time_us(count)) <= bearable_us:
            blocks, chosen_us = count, f32(us)
            break
    score = _score(chosen_us, of.charge, blocks)
    return KernelChoice(of.name, blocks, chosen_us, score, kernel.low_latency)


def _score(time_us: np.float32, charge: float, blocks: int) -> np.float32:
    """The score by which kernels are compared: the time, increased by a share for each block."""
    return time_us * (f32(1) + f32(charge) * f32(blocks))


def _enough(kernel: SymmetricKernel, own_bytes: int, ranks: int, blocks: int) -> bool:
    """Whether a kernel that copies in bulk (TMA) has enough for that many blocks."""
    unit_bytes = (kernel.bulk_unit_bytes or 0) * (ranks if kernel.bulk_per_rank else 1)
    return own_bytes >= unit_bytes * (blocks if kernel.bulk_per_block else 1)


# Which calls on symmetric windows copy engines carry between nodes: rules by name.

Copied = Collective | PeerCall
BetweenNodesRule = Callable[[Comm, Copied, Sides], bool]  # gets the call, and the buffers that are in such windows
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.HIER_CE_AVAILABLE(since="2.30.7"))
def gathers_and_exchanges_over_rma(communicator: Comm, call: Copied, sides: Sides) -> bool:
    """AllGather and AllToAll from and into windows, if hosts start transfers over the network (RMA).

    A network with GIN is assumed to allow that. NCCL does not use RMA if rings may not cross adapters
    (NCCL_CROSS_NIC=0), if there are no RMA contexts (NCCL_NUM_RMA_CTX=0), or if nodes have different numbers of ranks.
    """
    variables = communicator.environment
    offered = variables.number("NCCL_CROSS_NIC", 2) != 0 and variables.c_int(symmetric_variables.RMA, 1) != 0
    offered &= communicator.min_local_ranks == communicator.max_local_ranks
    return offered and call in (Collective.AllGather, PeerCall.AllToAll) and sides is Sides.both
