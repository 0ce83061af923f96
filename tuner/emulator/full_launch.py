"""Launches in full: from calls to what each block of a kernel, and each network proxy, receives."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, DataType, Op, Protocol
from tuner.base.numerics import ceil_div
from tuner.emulator.communicator import Comm
from tuner.emulator.group import Operation, SelectionChooser, Tuner, check_emulated, check_roots, task_of
from tuner.emulator.launches import (
    BlockPart,
    Launch,
    LaunchedKernel,
    SymmetricBlock,
    SymmetricLaunch,
    SymmetricWork,
    Work,
)
from tuner.emulator.request import COPY_ENGINES, FP8
from tuner.emulator.rules import bounds
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.channel_work import ScheduledTask
from tuner.emulator.rules.device_functions import SHORT_TYPES, factor_bits
from tuner.emulator.rules.registered import (
    Heads,
    NetworkOf,
    NetworkUse,
    ZeroCopyPeer,
    buffer_bytes,
    may_reach_network,
    takers,
)
from tuner.emulator.rules.schedule.task import CollectiveTask
from tuner.emulator.selection import Selection
from tuner.release.schema import Registration

HeadsOf = Callable[[], Heads]


def launch(selection: Selection, operations: Sequence[Operation], heads: HeadsOf, tuner: Tuner | None = None) -> Launch:
    """The complete launch on the rank of ``selection``, for one call or for several in one group.

    ``heads`` is called only if the switch (NVLS) or the network (CollNet) takes part, and returns the heads as that
    rank knows them. NoAlgorithm if NCCL picks nothing. BadInput for what is not emulated, for calls that copy engines
    carry (these launch no kernel), and for broadcasts from several roots that NCCL merges into one call.
    """
    communicator = selection.communicator
    if not operations:
        raise BadInput("a group without a collective launches nothing: add one")
    if len(operations) > 1:
        check_emulated(selection, [operation.request for operation in operations], tuner)
        if communicator.tuner is not None and communicator.tuner.chunks_follow_choices(communicator):
            raise BadInput(
                "the full launch of a group is not emulated if a table sets chunk sizes, because NCCL applies those of "
                "the call that was chosen last: put the calls in groups of their own"
            )
    check_roots(communicator, operations)
    tasks = [task_of(place, operation, communicator.ranks) for place, operation in enumerate(operations)]
    kernels = communicator.rules.schedule(SelectionChooser(selection, tuner), tasks)
    if any(task.path is COPY_ENGINES for task in tasks):
        raise BadInput("these calls have no launch to show: copy engines do the work, not kernels")
    by_algorithms = [kernel for kernel in kernels if kernel[0].path is None]
    later = CONNECTED_LATER.intersection(task.algo_proto[0] for kernel in by_algorithms for task in kernel)
    symmetric = [kernel for kernel in kernels if kernel[0].path is not None]
    return Launch(
        (
            *(symmetric_kernel(communicator, each, operations, each is symmetric[-1]) for each in symmetric),
            *(_kernel(selection, kernel, operations, heads, later) for kernel in by_algorithms),
        ),
        (
            buffer_bytes(communicator, Protocol.LL),
            buffer_bytes(communicator, Protocol.LL128),
            buffer_bytes(communicator, Protocol.Simple),
        ),
        communicator.release.limits.buffer_steps,
    )


def _kernel(
    selection: Selection,
    tasks: Sequence[CollectiveTask],
    operations: Sequence[Operation],
    heads: HeadsOf,
    later: Collection[Algorithm],
) -> LaunchedKernel:
    communicator = selection.communicator
    return LaunchedKernel(
        communicator.rules.device_functions.kernel(communicator, tasks),
        tuple(sorted({part.channel for task in tasks for part in task.parts})),
        max(task.threads for task in tasks),
        tuple(_work(selection, task, operations[task.place].root, heads, later) for task in tasks),
    )


def _work(selection: Selection, task: CollectiveTask, root: int, heads: HeadsOf, later: Collection[Algorithm]) -> Work:
    communicator, request = selection.communicator, task.request
    call = task.call(communicator)
    rules, tables = communicator.rules, selection.tables
    own = heads() if _has_heads(call) else NO_HEADS
    taken = takers(call, None if own.network is None else partial(_whatever_came_first, own.network, later))
    shared = rules.channel_work(ScheduledTask(task, call, tables, own, ZeroCopyPeer.network in taken))
    algorithm, protocol = task.algo_proto
    together_bytes = np.array([task.together_bytes], np.uint64)
    threads = int(bounds.own_threads(call, tables, together_bytes, task.together_tuned)[0])
    return Work(
        place=task.place,
        collective=request.collective,
        dtype=request.device_dtype,
        op=request.op,
        algorithm=algorithm,
        protocol=protocol,
        function=rules.device_functions(communicator, task),
        count=task.elements,
        warps=threads // communicator.release.limits.warp_size,
        root=root,
        one_node=communicator.nodes == 1,
        direct=shared.direct,
        sharing=shared.sharing,
        shares=shared.shares,
        function_name=rules.device_functions.name(communicator, task),
        one_rank_per_node=communicator.max_local_ranks == 1,
        op_argument=rules.op_argument(request, communicator.ranks),
        nvls_alignment_bytes=communicator.release.limits.nvls_last_chunk_alignment_bytes,
        registered_for=tuple(taker.name for taker in taken),
        registered_flag=_registered_flag(communicator.release.registration, taken),
    )


NO_HEADS = Heads(1, 0, 1, 0, 1)
# These are connected later than rings: ncclCollPreconnect, src/group.cc
CONNECTED_LATER = frozenset((Algorithm.NVLSTree, Algorithm.PAT))


def _whatever_came_first(network: NetworkOf, later: Collection[Algorithm]) -> NetworkUse:
    """The use of the network, or BadInput if it depends on whether the algorithms or the rings were connected first."""
    used = network(())
    if later and network(later) != used:
        names = ", ".join(sorted(algorithm.name for algorithm in later))
        raise BadInput(
            f"the full launch of one group with {names} is not emulated here, because whether adapters take the rings' "
            "buffers depends on which communicator connected first: put the calls in groups of their own"
        )
    return used


def _has_heads(call: RuleCall) -> bool:
    """Whether the call's chunks depend on heads, or its adapters on rings; otherwise neither is computed."""
    if call.algorithm in (*bounds.NVLS, Algorithm.CollNetDirect):
        return True
    return call.algorithm is Algorithm.Ring and call.communicator.nodes > 1 and may_reach_network(call)


def _registered_flag(registration: Registration, taken: Sequence[ZeroCopyPeer]) -> int:
    """The value of ``regUsed``. Source: ncclTasksRegAndEnqueue, src/enqueue.cc, v2.28.9-1."""
    named = [taker for taker in taken if taker is not ZeroCopyPeer.network]
    if registration.flag_of_device == "whether":
        return int(bool(named))
    return sum(taker.value for taker in named)


WHOLE = 1 << 16  # the denominator of the fraction of a call at which a block's part ends

End = tuple[int, int]  # the call in which a block's part ends, and the fraction of it at which the part ends
# The first block that does a call together with the following blocks, and the number of these blocks
Together = tuple[int, int]


def symmetric_kernel(
    communicator: Comm, tasks: Sequence[CollectiveTask], operations: Sequence[Operation], last: bool
) -> LaunchedKernel:
    """The symmetric kernel that carries these calls.

    ``last`` is true if it is the last symmetric kernel of the group.
    """
    (path,), table = {task.path for task in tasks}, communicator.release.symmetric
    assert path is not None
    assert path.kernel is not None
    request, counts = tasks[0].request, [task.elements for task in tasks]
    typed = "" if request.moves_only else f"_{request.op.name}_{SHORT_TYPES[request.dtype]}"
    ends: list[End] = []
    together: list[tuple[int | None, int | None]] = [(None, None)] * len(tasks)
    cell_elements = table.cell_bytes // request.device_dtype.size_bytes
    if table.deals_cells:
        ends, own = dealt(counts, cell_elements, path.blocks, last)
        together = [*own]
    works = tuple(
        SymmetricWork(
            task.place,
            request.collective,
            request.device_dtype,
            request.op,
            task.elements,
            operations[task.place].root,
            *blocks,
            _op_argument(communicator, task, path.kernel),
        )
        for task, blocks in zip(tasks, together, strict=True)
    )
    launched = SymmetricLaunch(path.kernel, works, tuple(parts(counts, cell_elements, ends)))
    return LaunchedKernel(f"{table.symbol}{path.kernel}{typed}", tuple(range(path.blocks)), path.threads, (), launched)


def _op_argument(communicator: Comm, task: CollectiveTask, kernel: str) -> int:
    """The argument of averages: the factor for the sum, as float32, or float16 for 8-bit types; else 0.

    Source: convertCollTaskToSymmetricTask, src/scheduler/symmetric_sched.cc, v2.30.3-1.
    """
    request = task.request
    if request.op is not Op.avg or request.moves_only:
        return 0
    if kernel == "ReduceScatter_LDMC":  # this kernel adds in the type itself
        return communicator.rules.op_argument(request, communicator.ranks)
    return factor_bits(DataType.float16 if request.dtype in FP8 else DataType.float32, communicator.ranks)


def dealt(counts: Sequence[int], cell_elements: int, blocks: int, last: bool) -> tuple[list[End], list[Together]]:
    """Divides calls among blocks. Returns where each block's part ends, and which blocks share each call.

    ``counts``: the calls' numbers of elements.

    ``last`` is true if the calls are those of the group's last symmetric kernel.
    """
    cells = [ceil_div(count, cell_elements) for count in counts]
    room = share = ceil_div(sum(cells), blocks)
    ends, together = list[End](), list[Together]()
    for call, whole in enumerate(cells):
        left, first, count = whole, 0, 0
        while left:
            if room < share:  # the call begins in a block that has another call before it
                if left <= room:
                    first, count = len(ends), 1
            elif not count:
                first, count = len(ends), 1
            elif left > room or room - left <= 1 or (last and call == len(cells) - 1):
                count += 1
            taken = min(left, room)
            left, room = left - taken, room - taken
            if not room:
                ends.append((call, ceil_div(WHOLE * (whole - left), whole)))
                room = share
        together.append((first, count))
    return (ends if room == share else [*ends, (len(cells) - 1, WHOLE)]), together


def parts(counts: Sequence[int], cell_elements: int, ends: Sequence[End]) -> Iterator[SymmetricBlock]:
    """The parts of calls that each block does."""
    call, begin = 0, 0
    for last_call, end in ends:
        own = []
        for each in range(call, last_call + 1):
            first = _element(counts[each], cell_elements, begin) if each == call else 0
            behind = _element(counts[each], cell_elements, end) if each == last_call else counts[each]
            own.append(BlockPart(each, first, min(behind, counts[each]) - first))
        yield SymmetricBlock(last_call, end - 1, tuple(own))
        call, begin = (last_call, end) if end < WHOLE else (last_call + 1, 0)


def _element(count: int, cell_elements: int, part: int) -> int:
    """The number of the element at a fraction of a call."""
    cells: int = part * ceil_div(count, cell_elements) // WHOLE
    return cells * cell_elements
