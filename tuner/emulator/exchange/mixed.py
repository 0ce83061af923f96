"""Sends and receives in one group with collectives: they follow them, in the last of their kernels if it has room.

Source: ncclLaunchPrepare, src/enqueue.cc, v2.28.9-1 and v2.21.5-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Protocol
from tuner.emulator.exchange import broadcasts, chunks, rounds
from tuner.emulator.exchange.broadcasts import BroadcastKernel
from tuner.emulator.exchange.plan import ExchangeCall, messages
from tuner.emulator.exchange.queues import Queues
from tuner.emulator.exchange.records import ExchangeKernel
from tuner.emulator.exchange.situation import Situation
from tuner.emulator.group import (
    Chooser,
    GroupChoice,
    Operation,
    broadcasts_together,
    check_roots_are_ranks,
    not_emulated,
    task_of,
)
from tuner.emulator.non_classic import NonClassicPath
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
    situation: Situation,
    operations: Sequence[Operation],
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
) -> MixedGroup:
    """The kernels of a group of collectives and of sends and receives, whose ``buffers`` are those of collectives, too.

    BadInput as of :func:`tuner.emulator.group.plan` and of :func:`tuner.emulator.exchange.plan.plan`.
    """
    communicator = selection.communicator
    requests = [each.request for each in operations]
    if requests and (missing := not_emulated(selection, requests)) is not None:
        raise BadInput(f"groups are not emulated {missing}")
    captured, queues = buffers is Buffers.graph, Queues(messages(situation, calls), situation.order.rank)
    check_roots_are_ranks(communicator, operations)
    together = broadcasts_together(communicator, operations)
    tasks = [
        task_of(place, operation, communicator.ranks)
        for place, operation in enumerate(operations)
        if place not in together
    ]
    chooser = Chooser(selection, None, beside_messages=bool(queues))
    kernels = communicator.rules.schedule(chooser, tasks) if tasks else []
    launches = [_of_tasks(situation, kernel) for kernel in kernels]
    of_several = broadcasts.kernels(selection, situation, [(place, operations[place]) for place in together], captured)
    launches += [_of_broadcasts(situation, kernel) for kernel in of_several]
    by_algorithms = [kernel for kernel in launches if kernel.path is None]
    exchanges = list(_exchanges(situation, queues, by_algorithms, captured))
    if by_algorithms and exchanges:
        launches[-1] = _joined(situation, launches[-1], exchanges.pop(0))
    alone = communicator.rules.device_functions.EXCHANGES
    rest = (MixedKernel(alone, each.threads, each.channels, (), each) for each in exchanges)
    return MixedGroup((*launches, *rest), tuple(chooser.choices))


def _of_tasks(situation: Situation, kernel: Sequence[Task]) -> MixedKernel:
    communicator, path = situation.communicator, kernel[0].path
    if path is not None:
        return MixedKernel(path.name, path.threads, tuple(range(path.blocks)), tuple(kernel), None, path=path)
    channels = tuple(sorted({channel for task in kernel for channel in task.channels}))
    name = communicator.rules.device_functions.kernel(communicator, kernel)
    return MixedKernel(name, max(task.threads for task in kernel), channels, tuple(kernel), None)


def _of_broadcasts(situation: Situation, kernel: BroadcastKernel) -> MixedKernel:
    name = situation.communicator.rules.device_functions.broadcasts_together()
    return MixedKernel(name, kernel.threads, tuple(sorted(kernel.parts)), (), None, kernel)


def _joined(situation: Situation, kernel: MixedKernel, exchange: ExchangeKernel) -> MixedKernel:
    """The last kernel of the collectives with what it has room for; its block and function change even for nothing."""
    functions = situation.communicator.rules.device_functions
    if kernel.broadcasts is not None:
        name = kernel.name if kernel.broadcasts.protocol is Protocol.LL else functions.EXCHANGES
    else:
        name = functions.kernel_with_exchanges(situation.communicator, kernel.tasks)
    channels = tuple(sorted({*kernel.channels, *exchange.channels}))
    threads = max(kernel.threads, exchange.threads)
    return replace(kernel, name=name, threads=threads, channels=channels, exchange=exchange)


def _exchanges(
    situation: Situation, queues: Queues, before: Sequence[MixedKernel], captured: bool
) -> Iterator[ExchangeKernel]:
    """The kernels of the messages, the first of which goes into the last of the collectives where there is one."""
    if situation.communicator.release.exchange.planner == "rounds":
        return rounds.kernels(situation, queues, captured, [_filled(situation, kernel) for kernel in before])
    works = Works(situation.communicator, captured)
    for task in before[-1].tasks if before else ():
        works.add(task)
    return chunks.kernels(situation, queues, captured, works.left)


def _filled(situation: Situation, kernel: MixedKernel) -> tuple[int, int]:
    """Batches of a kernel of collectives, and bytes of their works."""
    if kernel.broadcasts is not None:
        return kernel.broadcasts.batches, kernel.broadcasts.work_bytes
    held = Batches.of(situation.communicator, kernel.tasks)
    return held.batches, held.filled_bytes
