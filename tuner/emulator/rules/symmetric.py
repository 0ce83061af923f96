"""Which calls leave the classic path for symmetric kernels and copy engines, and with which kernel: rules by name.

One call in its group with buffers in windows; outside windows where NCCL is asked to.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, PeerCall, Protocol
from tuner.base.numerics import f32
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.non_classic import COPY_ENGINES, NonClassicPath
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import candidate, cta_policy, symmetric_rail, symmetric_sides, symmetric_variables, windows
from tuner.emulator.rules.symmetric_sides import ClassicProtocol, in_whole_cells, own_bytes_of
from tuner.emulator.rules.symmetric_time import BLOCK_CHARGE, KernelUse, OfSize
from tuner.release.schema import given
from tuner.release.symmetric import SymmetricKernel

NonClassicRule = Callable[[Communicator, Request, int, ClassicProtocol], NonClassicPath | None]
RULES: Registry[NonClassicRule] = Registry()
REACH_RULES: Registry[Callable[[Communicator], bool]] = Registry()

REDUCIBLE = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel on its blocks, the time of NCCL's model, and what NCCL compares it by: that time and its blocks."""

    kernel: str
    blocks: int
    time_us: np.float32
    score: np.float32
    low_latency: bool


@RULES(nccl.TASK_APPEND(since="2.18.1"))
def classic_path_only(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The release has no symmetric kernels."""
    return None


@RULES(nccl.PREPARE_TASKS(since="2.27.3"))
def symmetric_by_blocks(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, on all blocks the kernel's model asks for."""
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    choice = _best(communicator, request, own_bytes, own_bytes)
    return None if choice is None else _kernel_path(communicator, request, choice, choice.blocks)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.28.3"), nccl.TUNING_COMPUTE(since="2.31.2"))
def symmetric_by_cells(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, in cells of a KiB, of which there may be fewer than blocks.

    Copy engines run it where no block is to be used.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None or isinstance(choice, NonClassicPath):
        return choice
    if choice.low_latency and request.symmetric is not Sides.both:
        takes = given(communicator.rules.symmetric_low_latency, "rules.symmetric_low_latency")
        if not takes(communicator, request, nbytes, classic):
            return None
    return _dealt(communicator, request, nbytes, choice)


@RULES(nccl.MAKE_SYMMETRIC_TASK_LIST(since="2.29.2"))
def symmetric_by_cells_low_latency_if_classic_is_ll(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """As symmetric_by_cells, but a low-latency kernel only where the classic path would take LL, or if it is named.

    Nor where a process has several GPUs, unless it is named.
    """
    choice = _in_cells(communicator, request, nbytes)
    if choice is None or isinstance(choice, NonClassicPath):
        return choice
    unasked = choice.low_latency and not symmetric_variables.names_a_kernel(communicator)
    if unasked and (communicator.ranks_share_processes or classic(request, nbytes) is not Protocol.LL):
        return None
    return symmetric_by_cells(communicator, request, nbytes, classic)


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.29.2"))
def nvlink_between_gpus(communicator: Communicator) -> bool:
    """NVLink joins all ranks of a node: not where there is one GPU, whose path to itself is nearer (sic)."""
    return communicator.direct_nvlink and communicator.graphs[Algorithm.Ring].type_intra == "NVL"


@REACH_RULES(nccl.TOPO_PATH_ALL_DIRECT_NVLINK(since="2.30.7"))
def nvlink_or_one_gpu(communicator: Communicator) -> bool:
    """NVLink or a GPU that they share joins all ranks."""
    return communicator.direct_nvlink


def _in_cells(communicator: Communicator, request: Request, nbytes: int) -> KernelChoice | NonClassicPath | None:
    if _copied(communicator, request, nbytes):
        return COPY_ENGINES
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return None
    own_bytes = own_bytes_of(communicator, request, nbytes)
    return _best(communicator, request, own_bytes, in_whole_cells(communicator, own_bytes))


def _asked_for(communicator: Communicator, request: Request) -> bool:
    """Whether NCCL looks for a symmetric kernel: on windows that are made; outside on one node, one GPU per process."""
    if request.symmetric is Sides.none:
        alone = communicator.nodes == 1 and not communicator.ranks_share_processes
        return alone and symmetric_variables.windows_enabled(communicator)
    made = symmetric_sides.are_asked(communicator, request.symmetric) and windows.are_made(communicator)
    return made and (communicator.nodes == 1 or symmetric_rail.exist_for(communicator, request))


def sends_are_copied(communicator: Communicator, function: PeerCall, sides: Sides) -> bool:
    """Whether copy engines do an AlltoAll, Gather or Scatter, which NCCL else makes of sends and receives.

    ``sides`` are in symmetric windows. BadInput for links on which windows are not emulated.
    Source: taskAppend, src/enqueue.cc, v2.28.9-1.
    """
    return _wants_no_blocks(communicator) and _may_copy(communicator, function, sides)


def _copied(communicator: Communicator, request: Request, nbytes: int) -> bool:
    gathers = request.collective is Collective.AllGather
    if not gathers or not _may_copy(communicator, request.collective, request.symmetric):
        return False
    if _wants_no_blocks(communicator):
        return True
    if communicator.nodes > 1:
        return False
    over = symmetric_variables.copied_over_elements(communicator, _multicast(communicator))
    if over is None or communicator.min_comp_cap < 100 or not _reaches(communicator):
        return False
    return own_bytes_of(communicator, request, nbytes) // request.dtype.size_bytes > over


def _wants_no_blocks(communicator: Communicator) -> bool:
    return cta_policy.of(communicator) is cta_policy.Policy.zero


def _may_copy(communicator: Communicator, call: Collective | PeerCall, sides: Sides) -> bool:
    """Whether copy engines can do the call where these buffers are in symmetric windows."""
    if not symmetric_sides.suffice_to_copy(communicator, sides) or not windows.are_made(communicator):
        return False
    between = communicator.rules.copies_between_nodes
    if communicator.nodes > 1 and (between is None or not between(communicator, call, sides)):
        return False
    _check_links(communicator)
    return True


def _dealt(communicator: Communicator, request: Request, nbytes: int, choice: KernelChoice) -> NonClassicPath:
    cells = -(-own_bytes_of(communicator, request, nbytes) // communicator.release.symmetric.cell_bytes)
    return _kernel_path(communicator, request, choice, -(-cells // -(-cells // choice.blocks)))


def _kernel_path(communicator: Communicator, request: Request, choice: KernelChoice, blocks: int) -> NonClassicPath:
    """NoAlgorithm where NCCL picks the kernel for an operation that it was not built for."""
    if request.op.name in communicator.release.symmetric.ops_without_kernels.get(request.collective, ()):
        raise NoAlgorithm(
            f"NCCL {communicator.release.name} picks a symmetric kernel for {request.collective.name} "
            f"{request.op.name} and has none: it launches nothing; valid: plain or registered buffers"
        )
    return NonClassicPath(choice.kernel, blocks, communicator.release.symmetric.threads)


def _implemented(communicator: Communicator, request: Request) -> bool:
    """Whether symmetric kernels exist for the call."""
    if request.collective not in (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter):
        return False
    _check_links(communicator)
    if not _reaches(communicator):
        return False
    if request.collective is Collective.AllGather:
        return True
    return request.op.name in communicator.release.symmetric.ops and request.dtype in REDUCIBLE


def _check_links(communicator: Communicator) -> None:
    """BadInput where a GPU does not reach every other over NVLink: whether windows are symmetric then is not known."""
    near = communicator.graphs[Algorithm.Ring].type_intra in ("LOC", "NVL")
    direct = communicator.direct_nvlink if communicator.shares_gpus else communicator.local_ranks <= 2
    if not near or not (communicator.has_nvswitch or direct):
        raise BadInput("symmetric windows without NVLink between all GPUs are not emulated; valid: machines with it")
    if communicator.min_comp_cap != communicator.max_comp_cap:
        raise BadInput("symmetric windows on GPUs of several compute capabilities are not emulated; valid: equal GPUs")


def _reaches(communicator: Communicator) -> bool:
    """Whether symmetric kernels reach every rank; of several GPUs in a node :func:`_check_links` knows that they do."""
    several = communicator.local_ranks > 1 and not communicator.shares_gpus
    return several or given(communicator.rules.symmetric_reach, "rules.symmetric_reach")(communicator)


def _best(communicator: Communicator, request: Request, own_bytes: int, modelled_bytes: int) -> KernelChoice | None:
    """The kernel with the least time, each block counting against it; None where none can do the call."""
    table = communicator.release.symmetric
    best: KernelChoice | None = None
    for choice in _weighed(communicator, request, own_bytes, modelled_bytes):
        beaten = best is None or choice.score < best.score or (table.last_of_equals and choice.score == best.score)
        best = choice if beaten else best
    return best


def _weighed(
    communicator: Communicator, request: Request, own_bytes: int, modelled_bytes: int
) -> Iterator[KernelChoice]:
    """The kernels that can do the call, in NCCL's order."""
    bus_bytes = own_bytes * (1 if request.collective is Collective.AllReduce else communicator.ranks)
    if communicator.nodes > 1:
        yield from _of_rails(communicator, request, bus_bytes, modelled_bytes)
        return
    for each in _candidates(communicator, request):
        if _small_enough(communicator, each.kernel, bus_bytes):
            choice = _on_blocks(communicator, each, own_bytes, modelled_bytes)
            if choice is not None:
                yield choice


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A kernel that can do calls of some sizes: the numbers of blocks it may have, and its model."""

    name: str
    kernel: SymmetricKernel
    blocks: tuple[int, ...]
    time_us: OfSize
    charge: float


@lru_cache(64)  # every size asks
def _candidates(communicator: Communicator, request: Request) -> tuple[_Candidate, ...]:
    """In NCCL's order."""
    made = []
    for name, kernel in _kernels(communicator, request.collective):
        if _usable(communicator, request, kernel):
            use = KernelUse(communicator, request, name)
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


def _kernels(communicator: Communicator, collective: Collective) -> Iterator[tuple[str, SymmetricKernel]]:
    """Those of a collective that NCCL_SYM_KERNEL leaves, in NCCL's order, by their names without the collective."""
    table = communicator.release.symmetric
    for name in table.names:
        of, _, short = name.partition("_")
        kernel = table.kernels[collective].get(short) if of == collective.name else None
        if kernel is not None and communicator.rules.symmetric_requested(communicator, collective, name):
            yield short, kernel


def _of_rails(
    communicator: Communicator, request: Request, bus_bytes: int, modelled_bytes: int
) -> Iterator[KernelChoice]:
    if bus_bytes >= communicator.release.symmetric.below_bytes:
        return
    multicast, requested = _multicast(communicator), communicator.rules.symmetric_requested
    for each in symmetric_rail.weighed(communicator, request, modelled_bytes, multicast):
        name = f"{request.collective.name}_{each.name}"
        if not requested(communicator, request.collective, name):
            continue
        if not each.reads_multicast or _switch_reduces(communicator, request):
            score = _score(each.time_us, BLOCK_CHARGE, each.blocks)
            yield KernelChoice(name, each.blocks, each.time_us, score, False)


def weighed(communicator: Communicator, request: Request, nbytes: int) -> tuple[KernelChoice, ...]:
    """The symmetric kernels that can do a call of nBytes, in NCCL's order, with their times; whatever takes it then.

    Errors: those of the release's rule.
    """
    rule = communicator.rules.non_classic_path
    if rule is classic_path_only:
        return ()
    if not _asked_for(communicator, request) or not _implemented(communicator, request):
        return ()
    own_bytes = modelled_bytes = own_bytes_of(communicator, request, nbytes)
    if rule is not symmetric_by_blocks:
        modelled_bytes = in_whole_cells(communicator, own_bytes)
    return tuple(_weighed(communicator, request, own_bytes, modelled_bytes))


def _usable(communicator: Communicator, request: Request, kernel: SymmetricKernel) -> bool:
    """Whether a call of some size can have the kernel."""
    multicast = _multicast(communicator)
    if not kernel.low_latency and not symmetric_sides.suffice(communicator, request):
        return False
    if kernel.bulk_unit_bytes is not None and not symmetric_variables.copies_in_bulk(communicator):
        return False
    if kernel.reads_multicast and not (multicast and _switch_reduces(communicator, request)):
        return False
    return multicast or not kernel.multicast


def _small_enough(communicator: Communicator, kernel: SymmetricKernel, bus_bytes: int) -> bool:
    table = communicator.release.symmetric
    if kernel.low_latency and bus_bytes >= table.low_latency_below_bytes:
        return False
    return bus_bytes < table.below_bytes


def _multicast(communicator: Communicator) -> bool:
    return communicator.nvls and communicator.local_ranks >= communicator.release.symmetric.multicast_from_ranks


def _switch_reduces(communicator: Communicator, request: Request) -> bool:
    if request.dtype in FP8:
        return communicator.min_comp_cap >= 100
    return request.dtype in (*candidate.NVLS_ANY_ORDER, *candidate.NVLS_SUM_ONLY)


def _on_blocks(communicator: Communicator, of: _Candidate, own_bytes: int, modelled_bytes: int) -> KernelChoice | None:
    """The kernel on the fewest blocks that cost it no more than 2.5 % of its time on all it may have."""
    counts, kernel = of.blocks, of.kernel
    if kernel.bulk_unit_bytes is not None:
        counts = tuple(count for count in counts if _enough(kernel, own_bytes, communicator.ranks, count))
    if not counts:
        return None
    time_us = of.time_us(own_bytes, modelled_bytes)
    all_us = f32(time_us(counts[-1]))
    bearable_us = 1.025 * float(all_us)
    blocks, chosen_us = counts[-1], all_us
    for count in counts[:-1]:
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
