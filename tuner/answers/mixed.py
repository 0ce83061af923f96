"""What becomes of a group with sends and receives, alone or beside collectives."""

from collections.abc import Iterator, Sequence
from dataclasses import field

from tuner.answers.exchanges import TransferAnswer, transfers_of
from tuner.answers.groups import CallInKernel, ChoiceAnswer
from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Buffers, Collective, DataType
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.emulator.group import Operation
from tuner.emulator.p2p import mixed
from tuner.emulator.p2p.mixed import BroadcastKernel, MixedKernel
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.emulator.p2p.records import P2pContext
from tuner.emulator.selection import Selection
from tuner.scenario import ConstantsUsed, Scenario

NO_TIME = "NCCL has no time model of sends and receives"


@dataclass(frozen=True, slots=True)
class MixedKernelAnswer:
    """One launch: its function, blocks of its grid, threads of a block; its collectives, then its messages.

    Where no algorithm does its collectives, the function is a symmetric kernel, or copy engines.
    """

    function: str
    channels: int
    threads: int
    calls: tuple[CallInKernel, ...]
    transfers: tuple[TransferAnswer, ...]


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """``kernels`` in the order of their launch, ``choices`` of the collectives in the order that NCCL makes them.

    ``no_time`` says why sends and receives have none. ``rank`` is whose they are; collectives are those of all ranks.
    """

    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    rank: int
    p2p_channels: int
    p2p_channels_per_peer: int
    kernels: tuple[MixedKernelAnswer, ...]
    choices: tuple[ChoiceAnswer, ...]
    no_time: str = NO_TIME


def from_emulator(
    scenario: Scenario,
    p2p_context: P2pContext,
    operations: Sequence[Operation],
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
) -> MixedAnswer:
    """What NCCL makes of the calls on such ``buffers``. BadInput as of :func:`tuner.emulator.p2p.mixed.plan`."""
    group = mixed.plan(Selection(p2p_context.communicator), p2p_context, operations, calls, buffers)
    choice_of = {place: number for number, choice in enumerate(group.choices) for place in choice.places}
    choices = (
        ChoiceAnswer(each.request.collective, each.bytes, each.pipelined, shortest(each.time_us))
        for each in group.choices
    )
    channels = p2p_context.channels
    return MixedAnswer(
        scenario.constants,
        p2p_context.order.rank,
        channels.channels,
        channels.per_peer,
        tuple(_kernel(each, choice_of) for each in group.kernels),
        tuple(choices),
    )


def _kernel(kernel: MixedKernel, choice_of: dict[int, int]) -> MixedKernelAnswer:
    calls = (
        CallInKernel(
            task.place,
            task.request.collective,
            task.nbytes,
            task.request.device_dtype,
            task.algo_proto[0] if kernel.path is None else None,
            task.algo_proto[1] if kernel.path is None else None,
            tuple(task.channels),
            choice_of.get(task.place),
        )
        for task in kernel.tasks
    )
    exchange = () if kernel.exchange is None else tuple(transfers_of(kernel.exchange))
    together = () if kernel.broadcasts is None else _broadcasts(kernel.broadcasts)
    return MixedKernelAnswer(kernel.name, len(kernel.channels), kernel.threads, (*calls, *together), exchange)


def _broadcasts(kernel: BroadcastKernel) -> Iterator[CallInKernel]:
    """Those that NCCL puts together, in rings and without a choice of their own."""
    for place, operation in kernel.operations:
        channels = tuple(channel for channel, parts in kernel.parts.items() if place in {each.place for each in parts})
        known = place, Collective.Broadcast, operation.bytes, DataType.int8
        yield CallInKernel(*known, Algorithm.Ring, kernel.protocol, channels, None)
