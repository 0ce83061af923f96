"""The symmetric kernels that can do calls of a kind, and the best of them by NCCL's model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tuner.base.names import Buffers, Collective, PeerCall
from tuner.base.numerics import f32
from tuner.base.registry import Registry
from tuner.base.windows import SYMMETRIC, Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import candidate, symmetric_rail, symmetric_sides, symmetric_variables, windows
from tuner.emulator.rules.symmetric_time import BLOCK_CHARGE, KernelUse, OfSize
from tuner.release.symmetric import SymmetricKernel


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel on its blocks, the time of NCCL's model, and what NCCL compares it by: that time and its blocks."""

    kernel: str
    blocks: int
    time_us: np.float32
    score: np.float32
    low_latency: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of the calls of one kernel: the largest, in bytes, and what the model takes for all of them."""

    most_bytes: int
    modelled_bytes: int
    calls: int = 1


def best(communicator: Communicator, request: Request, counts: Counts) -> KernelChoice | None:
    """The kernel with the least time, each block counting against it; None where none can do the call."""
    table = communicator.release.symmetric
    least: KernelChoice | None = None
    for choice in weighed(communicator, request, counts):
        beaten = least is None or choice.score < least.score or (table.last_of_equals and choice.score == least.score)
        least = choice if beaten else least
    return least


def weighed(communicator: Communicator, request: Request, counts: Counts) -> Iterator[KernelChoice]:
    """The kernels that can do the calls, in NCCL's order."""
    bus_bytes = counts.most_bytes * (1 if request.collective is Collective.AllReduce else communicator.ranks)
    if communicator.nodes > 1:
        yield from _of_rails(communicator, request, bus_bytes, counts.modelled_bytes)
        return
    for each in _candidates(communicator, request, counts.calls > 1):
        if _small_enough(communicator, each.kernel, bus_bytes):
            choice = _on_blocks(communicator, each, counts)
            if choice is not None:
                yield choice


def exists_for(communicator: Communicator, request: Request, nbytes: int) -> bool:
    """Whether any kernel could do a call of nBytes in windows, however few bytes a kernel that copies in bulk has."""
    in_windows, table = replace(request, buffers=Buffers.window, windows=SYMMETRIC), communicator.release.symmetric
    if communicator.nodes > 1:
        own_bytes = nbytes // request.parts(communicator.ranks)
        return any(_of_rails(communicator, in_windows, nbytes, own_bytes, table.waits_for_any))
    return any(
        _small_enough(communicator, kernel, nbytes) and _usable(communicator, in_windows, kernel)
        for _, kernel in _kernels(communicator, request.collective, table.waits_for_any)
        if not kernel.multicast or _notes_multicast(communicator, request)
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A kernel that can do calls of some sizes: the numbers of blocks it may have, and its model."""

    name: str
    kernel: SymmetricKernel
    blocks: tuple[int, ...]
    time_us: OfSize
    charge: float


@lru_cache(64)  # every size asks
def _candidates(communicator: Communicator, request: Request, several: bool) -> tuple[_Candidate, ...]:
    """In NCCL's order; those of low latency do one call at a time."""
    made = []
    for name, kernel in _kernels(communicator, request.collective):
        if _usable(communicator, request, kernel) and not (several and kernel.low_latency):
            use = KernelUse(communicator, request, name, several)
            blocks = _block_counts(communicator, use)
            made.append(
                _Candidate(f"{request.collective.name}_{name}", kernel, blocks, *communicator.rules.symmetric_time(use))
            )
    return tuple(made)


def _block_counts(communicator: Communicator, use: KernelUse) -> tuple[int, ...]:
    table = communicator.release.symmetric
    if (requested := symmetric_variables.requested_blocks(communicator)) is not None:
        return (requested,)
    shared = use.row.multicast_blocks if use.kernel.few else table.max_blocks * communicator.ranks
    limit = min(table.max_blocks, -(-shared // communicator.ranks))
    return tuple(communicator.rules.symmetric_blocks(communicator, use.request, limit))


def _kernels(
    communicator: Communicator, collective: Collective, any_name: bool = False
) -> Iterator[tuple[str, SymmetricKernel]]:
    """Kernels of a collective that NCCL_SYM_KERNEL leaves, in NCCL's order, by their names without the collective."""
    table = communicator.release.symmetric
    for name in table.names:
        of, _, short = name.partition("_")
        kernel = table.kernels[collective].get(short) if of == collective.name else None
        if kernel is None:
            continue
        if any_name or communicator.rules.symmetric_requested(communicator, collective, name):
            yield short, kernel


def _of_rails(
    communicator: Communicator, request: Request, bus_bytes: int, modelled_bytes: int, any_name: bool = False
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


def _notes_multicast(communicator: Communicator, request: Request) -> bool:
    """Whether kernels that multicast are known to be possible: outside windows perhaps only once another kernel ran.

    Source: ncclSymkInitOnce, src/sym_kernels.cc, v2.29.7-1.
    """
    late = communicator.release.symmetric.multicast_is_noted_late
    if request.symmetric or not late or windows.note_multicast(communicator, request):
        return True
    left = _kernels(communicator, request.collective)
    return any(kernel.low_latency and not kernel.multicast for _, kernel in left)


def _usable(communicator: Communicator, request: Request, kernel: SymmetricKernel) -> bool:
    """Whether a call of some size can have the kernel."""
    switch = multicast(communicator)
    if not kernel.low_latency and not symmetric_sides.suffice(communicator, request):
        return False
    if kernel.bulk_unit_bytes is not None and not symmetric_variables.copies_in_bulk(communicator):
        return False
    if kernel.reads_multicast and not (switch and _switch_reduces(communicator, request)):
        return False
    return not kernel.multicast or (switch and _notes_multicast(communicator, request))


def _small_enough(communicator: Communicator, kernel: SymmetricKernel, bus_bytes: int) -> bool:
    table = communicator.release.symmetric
    if kernel.low_latency and bus_bytes >= table.low_latency_below_bytes:
        return False
    return bus_bytes < table.below_bytes


def multicast(communicator: Communicator) -> bool:
    """Whether kernels may write to all GPUs at once."""
    return communicator.nvls and communicator.local_ranks >= communicator.release.symmetric.multicast_from_ranks


def _switch_reduces(communicator: Communicator, request: Request) -> bool:
    if request.dtype in FP8:
        return communicator.min_comp_cap >= 100
    return request.dtype in (*candidate.NVLS_ANY_ORDER, *candidate.NVLS_SUM_ONLY)


def _on_blocks(communicator: Communicator, of: _Candidate, counts: Counts) -> KernelChoice | None:
    """The kernel on the fewest blocks that cost it no more than 2.5 % of its time on all it may have."""
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
    """What kernels are compared by: the time, raised by a share for each block."""
    return time_us * (f32(1) + f32(charge) * f32(blocks))


def _enough(kernel: SymmetricKernel, own_bytes: int, ranks: int, blocks: int) -> bool:
    """Whether a kernel that copies in bulk (TMA) has enough for that many blocks."""
    unit_bytes = (kernel.bulk_unit_bytes or 0) * (ranks if kernel.bulk_per_rank else 1)
    return own_bytes >= unit_bytes * (blocks if kernel.bulk_per_block else 1)


# Which calls on symmetric windows copy engines do between nodes: rules by name.

Copied = Collective | PeerCall
BetweenNodesRule = Callable[[Communicator, Copied, Sides], bool]  # the call, and which buffers are in such windows
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.HIER_CE_AVAILABLE(since="2.30.7"))
def gathers_and_exchanges_over_rma(communicator: Communicator, call: Copied, sides: Sides) -> bool:
    """AllGather and AllToAll from and into windows, where hosts start transfers over the network (RMA).

    A network with GIN is taken for one that lets them. NCCL does without where rings may not cross adapters
    (NCCL_CROSS_NIC=0), and where it has no contexts for it (NCCL_NUM_RMA_CTX=0).
    """
    variables = communicator.environment
    offered = variables.number("NCCL_CROSS_NIC", 2) != 0 and variables.c_int(symmetric_variables.RMA, 1) != 0
    return offered and call in (Collective.AllGather, PeerCall.AllToAll) and sides is Sides.both
