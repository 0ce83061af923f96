"""What the blocks of a symmetric kernel are handed: cells of its calls, dealt out evenly, one call behind the other.

Source: ncclSymmetricTaskScheduler, src/scheduler/symmetric_sched.cc; getWorkRange, src/device/symmetric/primitives.cuh,
v2.28.9-1.
"""

from collections.abc import Iterator, Sequence

from tuner.base.names import DataType, Op
from tuner.base.numerics import ceil_div
from tuner.emulator.communicator import Communicator
from tuner.emulator.group import Operation
from tuner.emulator.launches import BlockPart, LaunchedKernel, SymmetricBlock, SymmetricLaunch, SymmetricWork
from tuner.emulator.request import FP8
from tuner.emulator.rules.device_functions import SHORT_TYPES
from tuner.emulator.rules.op_arguments import factor_bits
from tuner.emulator.rules.schedule.task import Task

WHOLE = 1 << 16  # of a call, of which a block's part ends at a fraction

End = tuple[int, int]  # the call that a block's part ends in, and at which fraction of it
Together = tuple[int, int]  # the first block that does a call together with those behind, and how many do


def symmetric_kernel(
    communicator: Communicator, tasks: Sequence[Task], operations: Sequence[Operation], last: bool
) -> LaunchedKernel:
    """The kernel that does these calls, which have one; ``last``: no symmetric one of the group comes behind."""
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


def _op_argument(communicator: Communicator, task: Task, kernel: str) -> int:
    """What averages are done with: a factor for the sums, which are float32, or float16 of shorter types.

    Source: convertCollTaskToSymmetricTask, src/scheduler/symmetric_sched.cc, v2.30.3-1.
    """
    request = task.request
    if request.op is not Op.avg or request.moves_only:
        return 0
    if kernel == "ReduceScatter_LDMC":  # which adds in the type itself
        return communicator.rules.op_argument(request, communicator.ranks)
    return factor_bits(DataType.float16 if request.dtype in FP8 else DataType.float32, communicator.ranks)


def dealt(counts: Sequence[int], cell_elements: int, blocks: int, last: bool) -> tuple[list[End], list[Together]]:
    """Ends of parts by block, and by call of so many elements which blocks do it together.

    ``last``: no symmetric kernel of the group comes behind.
    """
    cells = [ceil_div(count, cell_elements) for count in counts]
    room = share = ceil_div(sum(cells), blocks)
    ends, together = list[End](), list[Together]()
    for call, whole in enumerate(cells):
        left, first, count = whole, 0, 0
        while left:
            if room < share:  # behind another call
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
    """Parts of the calls by block."""
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
    """The element at a fraction of a call."""
    cells: int = part * ceil_div(count, cell_elements) // WHOLE
    return cells * cell_elements
