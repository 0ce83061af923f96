"""Groups of calls: collectives, and sends and receives, with or without collectives."""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Unpack

from tuner.answers.exchanges import TransferAnswer, transfers_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.base.sizes import whole
from tuner.emulator.group import GroupPlan, Operation, plan
from tuner.emulator.p2p import mixed
from tuner.emulator.p2p.mixed import BroadcastKernel, MixedKernel
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.emulator.p2p.records import P2pContext
from tuner.emulator.request import CallKind, request
from tuner.emulator.selection import Selection
from tuner.scenario import ConstantsUsed, Scenario

if TYPE_CHECKING:
    from tuner.answers.launches import LaunchAnswer


@dataclass(frozen=True, slots=True)
class CallInKernel:
    """One call of a kernel. ``call`` is its index among the calls of the group, ``choice`` the index of its choice
    among the group's choices.

    A field is None if a release of the real library does not show it, or if the call has no algorithm and so no
    channels of its own.
    """

    call: int | None
    collective: Collective | None
    bytes: int | None
    dtype: DataType | None = field(metadata=json_form("type"))
    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: tuple[int, ...]
    choice: int | None


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """One launch: number of blocks (``channels``), threads of a block, and its calls in NCCL's order.

    ``bypass`` names the symmetric kernel or the copy engines if no algorithm executes its calls.
    """

    channels: int
    threads: int
    calls: tuple[CallInKernel, ...]
    bypass: str | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """Calls for which NCCL made one choice; ``bytes`` and ``time_us`` are totals over these calls."""

    collective: Collective | None
    bytes: int | None
    pipelined: int = field(metadata=json_form("numPipeOps"))
    time_us: float | None


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What NCCL makes of a group: ``kernels`` in the order of their launch, ``choices`` in the order in which NCCL
    makes them.
    """

    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    kernels: tuple[KernelAnswer, ...]
    choices: tuple[ChoiceAnswer, ...]
    launch: "LaunchAnswer | None" = field(default=None, metadata=json_form(optional=True))  # in full, where asked for


def from_emulator(scenario: Scenario, operations: Sequence[Operation]) -> GroupAnswer:
    """What NCCL makes of the calls.

    NoAlgorithm if nothing can run. BadInput for what is not emulated, and if ranks of other nodes make other kernels
    than rank 0: NCCL then hangs or gives wrong results.
    """
    (_, view), *others = scenario.resolve().views_of_kinds
    group = plan(Selection(view), operations)
    for node, other in others:
        if other != view and plan(Selection(other), operations).kernels != group.kernels:
            raise BadInput(
                f"ranks disagree: those on {node.name} launch other kernels for this group than rank 0; 'nccl-tuner "
                "pick' shows for which calls they pick differently"
            )
    return described(scenario, group)


def described(scenario: Scenario, group: GroupPlan) -> GroupAnswer:
    """The emulator's plan of a group as an answer."""
    kernels = tuple(
        KernelAnswer(
            len(kernel.channels),
            kernel.threads,
            tuple(
                CallInKernel(
                    call=place,
                    collective=pick.operation.request.collective,
                    bytes=pick.operation.bytes,
                    dtype=pick.operation.request.device_dtype,
                    algorithm=pick.algorithm,
                    protocol=pick.protocol,
                    channels=tuple(pick.channels),
                    choice=pick.choice,
                )
                for place in kernel.places
                for pick in (group.picks[place],)
            ),
            None if kernel.path is None else kernel.path.name,
        )
        for kernel in group.kernels
    )
    choices = tuple(
        ChoiceAnswer(choice.request.collective, choice.bytes, choice.pipelined, shortest(choice.time_us))
        for choice in group.choices
    )
    return GroupAnswer(scenario.constants, kernels, choices)


# A collective and its nBytes; then a type; then an operation.
GroupCall = (
    tuple[Collective | str, int]
    | tuple[Collective | str, int, DataType | str]
    | tuple[Collective | str, int, DataType | str, Op | str]
)


def operations(calls: Sequence[GroupCall], **kind: Unpack[CallKind]) -> list[Operation]:
    """The calls of a group as records. If a call does not say its data type or operation, those of ``kind`` are used.
    BadInput for an unknown name, value or size.
    """
    made = []
    for call in calls:
        described: CallKind = {**kind}
        if len(call) != 2:
            described["dtype"] = call[2]
        if len(call) == 4:
            described["op"] = call[3]
        made.append(Operation(request(call[0], **described), whole(call[1], "size")))
    return made


NO_TIME = "NCCL has no time model of sends and receives"


@dataclass(frozen=True, slots=True)
class MixedKernelAnswer:
    """One launch: its function, number of blocks (``channels``) and threads of a block; its collectives and its
    messages.

    If no algorithm executes the kernel's collectives, ``function`` names what does: a symmetric kernel, or the copy
    engines.
    """

    function: str
    channels: int
    threads: int
    calls: tuple[CallInKernel, ...]
    transfers: tuple[TransferAnswer, ...]


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """What NCCL makes of a group with sends and receives: kernels in the order of their launch, ``choices`` for the
    collectives in the order in which NCCL makes them.

    ``no_time`` says why sends and receives have no time. ``rank`` is the rank that makes the sends and receives; all
    ranks call the collectives.
    """

    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    rank: int
    p2p_channels: int
    p2p_channels_per_peer: int
    kernels: tuple[MixedKernelAnswer, ...]
    choices: tuple[ChoiceAnswer, ...]
    no_time: str = NO_TIME


def mixed_from_emulator(
    scenario: Scenario,
    p2p_context: P2pContext,
    operations: Sequence[Operation],
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
) -> MixedAnswer:
    """What NCCL makes of a group of collectives (``operations``) and of ``calls``, which are sends, receives and calls
    made from these. ``buffers`` is the kind of all their buffers. BadInput for what is not emulated.
    """
    kernels, made = mixed.plan(Selection(p2p_context.communicator), p2p_context, operations, calls, buffers)
    choice_of = {place: number for number, choice in enumerate(made) for place in choice.places}
    choices = (
        ChoiceAnswer(each.request.collective, each.bytes, each.pipelined, shortest(each.time_us)) for each in made
    )
    channels = p2p_context.channels
    return MixedAnswer(
        scenario.constants,
        p2p_context.order.rank,
        channels.channels,
        channels.per_peer,
        tuple(_kernel(each, choice_of) for each in kernels),
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
    """Yields Broadcasts that NCCL merges: they run on rings, and no algorithm is chosen."""
    for place, operation in kernel.operations:
        channels = tuple(channel for channel, parts in kernel.parts.items() if place in {each.place for each in parts})
        known = place, Collective.Broadcast, operation.bytes, DataType.int8
        yield CallInKernel(*known, Algorithm.Ring, kernel.protocol, channels, None)
