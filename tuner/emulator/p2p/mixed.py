"""Sends and receives in one group with collectives: they follow them, in the last of their kernels if it has room.

Source: ncclLaunchPrepare, src/enqueue.cc, v2.28.9-1 and v2.21.5-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Protocol
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.group import (
    Chooser,
    GroupChoice,
    Operation,
    broadcasts_together,
    check_roots_are_ranks,
    not_emulated,
    task_of,
)
from tuner.emulator.p2p import broadcasts, chunks, rounds
from tuner.emulator.p2p.broadcasts import BroadcastKernel
from tuner.emulator.p2p.plan import ExchangeCall, messages
from tuner.emulator.p2p.queues import Queues
from tuner.emulator.p2p.records import ExchangeKernel, P2pContext
from tuner.emulator.rules.schedule.batches import Batches
from tuner.emulator.rules.schedule.task import Task
from tuner.emulator.rules.schedule.works import Works
from tuner.emulator.selection import Selection


@dataclass(frozen=True, slots=True)
class MixedKernel:
    """One launch: its collectives in NCCL's order, and its sends and receives; one of both may be missing.

    ``path``: what does its collectives if no algorithm does: a symmetric kernel, or copy engines, which launch none.
    """

    name: str
    threads: int
    channels: tuple[int, ...]
    tasks: tuple[Task, ...]
    exchange: ExchangeKernel | None
    broadcasts: BroadcastKernel | None = None  # from several roots, put together
    path: NonClassicPath | None = None


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """The kernels in the order of their launch, and what NCCL chose for the collectives, in its order."""

    kernels: tuple[MixedKernel, ...]
    choices: tuple[GroupChoice, ...]


def plan(
    selection: Selection,
    p2p_context: P2pContext,
    operations: Sequence[Operation],
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
) -> MixedGroup:
    """The kernels of a group of collectives and of sends and receives, whose ``buffers`` are those of collectives, too.

    BadInput as of :func:`tuner.emulator.group.plan` and of :func:`tuner.emulator.p2p.plan.plan`.
    """
    communicator = selection.communicator
    requests = [each.request for each in operations]
    if requests and (missing := not_emulated(selection, requests)) is not None:
        raise BadInput(f"groups are not emulated {missing}")
    captured, queues = buffers is Buffers.graph, Queues(messages(p2p_context, calls), p2p_context.order.rank)
    check_roots_are_ranks(communicator, operations)
    together = broadcasts_together(communicator, operations)
    tasks = [
        task_of(place, operation, communicator.ranks)
        for place, operation in enumerate(operations)
        if place not in together
    ]
    chooser = Chooser(selection, None, beside_messages=bool(queues))
    kernels = communicator.rules.schedule(chooser, tasks) if tasks else []
    launches = [_of_tasks(p2p_context, kernel) for kernel in kernels]
    of_several = broadcasts.kernels(
        selection, p2p_context, [(place, operations[place]) for place in together], captured
    )
    launches += [_of_broadcasts(p2p_context, kernel) for kernel in of_several]
    by_algorithms = [kernel for kernel in launches if kernel.path is None]
    exchanges = list(_exchanges(p2p_context, queues, by_algorithms, captured))
    if by_algorithms and exchanges:
        launches[-1] = _joined(p2p_context, launches[-1], exchanges.pop(0))
    alone = communicator.rules.device_functions.EXCHANGES
    rest = (MixedKernel(alone, each.threads, each.channels, (), each) for each in exchanges)
    return MixedGroup((*launches, *rest), tuple(chooser.choices))


def _of_tasks(p2p_context: P2pContext, kernel: Sequence[Task]) -> MixedKernel:
    communicator, path = p2p_context.communicator, kernel[0].path
    if path is not None:
        return MixedKernel(path.name, path.threads, tuple(range(path.blocks)), tuple(kernel), None, path=path)
    channels = tuple(sorted({channel for task in kernel for channel in task.channels}))
    name = communicator.rules.device_functions.kernel(communicator, kernel)
    return MixedKernel(name, max(task.threads for task in kernel), channels, tuple(kernel), None)


def _of_broadcasts(p2p_context: P2pContext, kernel: BroadcastKernel) -> MixedKernel:
    name = p2p_context.communicator.rules.device_functions.broadcasts_together()
    return MixedKernel(name, kernel.threads, tuple(sorted(kernel.parts)), (), None, kernel)


def _joined(p2p_context: P2pContext, kernel: MixedKernel, exchange: ExchangeKernel) -> MixedKernel:
    """The last kernel of the collectives with what it has room for; its block and function change even for nothing."""
    functions = p2p_context.communicator.rules.device_functions
    if kernel.broadcasts is not None:
        name = kernel.name if kernel.broadcasts.protocol is Protocol.LL else functions.EXCHANGES
    else:
        name = functions.kernel_with_exchanges(p2p_context.communicator, kernel.tasks)
    channels = tuple(sorted({*kernel.channels, *exchange.channels}))
    threads = max(kernel.threads, exchange.threads)
    return replace(kernel, name=name, threads=threads, channels=channels, exchange=exchange)


def _exchanges(
    p2p_context: P2pContext, queues: Queues, before: Sequence[MixedKernel], captured: bool
) -> Iterator[ExchangeKernel]:
    """The kernels of the messages, the first of which goes into the last of the collectives where there is one."""
    if p2p_context.communicator.release.exchange.planner == "rounds":
        return rounds.kernels(p2p_context, queues, captured, [_filled(p2p_context, kernel) for kernel in before])
    works = Works(p2p_context.communicator, captured)
    for task in before[-1].tasks if before else ():
        works.add(task)
    return chunks.kernels(p2p_context, queues, captured, works.left)


def _filled(p2p_context: P2pContext, kernel: MixedKernel) -> tuple[int, int]:
    """Batches of a kernel of collectives, and bytes of their works."""
    if kernel.broadcasts is not None:
        return kernel.broadcasts.batches, kernel.broadcasts.work_bytes
    held = Batches.of(p2p_context.communicator, kernel.tasks)
    return held.batches, held.filled_bytes
