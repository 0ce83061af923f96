"""Sends and receives in one group with collectives: they follow them, in the last of their kernels if it has room.

Source: ncclLaunchPrepare, src/enqueue.cc, v2.28.9-1 and v2.21.5-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.emulator.exchange import chunks, rounds
from tuner.emulator.exchange.plan import ExchangeCall, messages
from tuner.emulator.exchange.queues import Queues
from tuner.emulator.exchange.records import ExchangeKernel
from tuner.emulator.exchange.situation import Situation
from tuner.emulator.group import Chooser, GroupChoice, Operation, not_emulated, task_of
from tuner.emulator.rules.schedule.batches import Batches
from tuner.emulator.rules.schedule.task import Task
from tuner.emulator.rules.schedule.works import Works
from tuner.emulator.selection import Selection


@dataclass(frozen=True, slots=True)
class MixedKernel:
    """One launch: its collectives in NCCL's order, and its sends and receives; one of both may be missing."""

    name: str
    threads: int
    channels: tuple[int, ...]
    tasks: tuple[Task, ...]
    exchange: ExchangeKernel | None


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """The kernels in the order of their launch, and what NCCL chose for the collectives, in its order."""

    kernels: tuple[MixedKernel, ...]
    choices: tuple[GroupChoice, ...]


def plan(
    selection: Selection, situation: Situation, operations: Sequence[Operation], calls: Sequence[ExchangeCall]
) -> MixedGroup:
    """The kernels of a group of collectives and of sends and receives, all on plain buffers.

    BadInput as of :func:`tuner.emulator.group.plan` and of :func:`tuner.emulator.exchange.plan.plan`.
    """
    communicator = selection.communicator
    if operations and (missing := not_emulated(selection, [each.request for each in operations])) is not None:
        raise BadInput(f"groups are not emulated {missing}")
    tasks = [task_of(place, operation, communicator.ranks) for place, operation in enumerate(operations)]
    chooser = Chooser(selection, None)
    kernels = communicator.rules.schedule(chooser, tasks) if tasks else []
    queues = Queues(messages(situation, calls), situation.order.rank)
    joined = [MixedKernel(*_of_tasks(situation, kernel), tuple(kernel), None) for kernel in kernels]
    exchanges = list(_exchanges(situation, queues, kernels[-1] if kernels else []))
    if kernels and exchanges:
        joined[-1] = _joined(situation, kernels[-1], exchanges.pop(0))
    alone = communicator.rules.device_functions.EXCHANGES
    rest = (MixedKernel(alone, each.threads, each.channels, (), each) for each in exchanges)
    return MixedGroup((*joined, *rest), tuple(chooser.choices))


def _of_tasks(situation: Situation, kernel: Sequence[Task]) -> tuple[str, int, tuple[int, ...]]:
    communicator = situation.communicator
    channels = tuple(sorted({channel for task in kernel for channel in task.channels}))
    name = communicator.rules.device_functions.kernel(communicator, kernel)
    return name, max(task.threads for task in kernel), channels


def _joined(situation: Situation, kernel: Sequence[Task], exchange: ExchangeKernel) -> MixedKernel:
    """The last kernel of the collectives with what it has room for; its block and function change even for nothing."""
    _, threads, channels = _of_tasks(situation, kernel)
    name = situation.communicator.rules.device_functions.kernel_with_exchanges(situation.communicator, kernel)
    both = tuple(sorted({*channels, *exchange.channels}))
    return MixedKernel(name, max(threads, exchange.threads), both, tuple(kernel), exchange)


def _exchanges(situation: Situation, queues: Queues, before: Sequence[Task]) -> Iterator[ExchangeKernel]:
    if situation.communicator.release.exchange.planner == "rounds":
        batches = Batches(situation.communicator)
        for task in before:
            batches.add(task)
        return rounds.kernels(situation, queues, batches.batches, len(before) * batches.work_bytes)
    works = Works(situation.communicator)
    for task in before:
        works.add(task)
    return chunks.kernels(situation, queues, works.left)
