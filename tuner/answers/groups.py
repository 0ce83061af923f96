"""What becomes of a group of calls, by the emulator; :mod:`tuner.answers.library` has the real library's."""

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.emulator.group import Group, Operation, plan
from tuner.emulator.selection import Selection
from tuner.scenario import ConstantsUsed, Scenario

if TYPE_CHECKING:
    from tuner.answers.launches import LaunchAnswer


@dataclass(frozen=True, slots=True)
class CallInKernel:
    """One call of a kernel: ``call`` is its place among the calls, ``choice`` an index into the choices.

    None stands for what a release of the real library does not show, and for what calls do not have that no algorithm
    does: these have no channels of their own either.
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
    """One launch: blocks of its grid, threads of a block, its calls in NCCL's order.

    ``bypass_kernel`` says what it is where no algorithm does its calls: a symmetric kernel, or copy engines.
    """

    channels: int
    threads: int
    calls: tuple[CallInKernel, ...]
    bypass_kernel: str | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """Calls that NCCL chose for together: ``bytes`` is their sum, ``time_us`` of all of them."""

    collective: Collective | None
    bytes: int | None
    pipelined: int = field(metadata=json_form("numPipeOps"))
    time_us: float | None


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """``kernels`` in the order of their launch, ``choices`` in the order that NCCL makes them."""

    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    kernels: tuple[KernelAnswer, ...]
    choices: tuple[ChoiceAnswer, ...]
    launch: "LaunchAnswer | None" = field(default=None, metadata=json_form(optional=True))  # in full, where asked for


def from_emulator(scenario: Scenario, operations: Sequence[Operation]) -> GroupAnswer:
    """What NCCL makes of the calls.

    Errors: those of :func:`tuner.emulator.group.plan`; BadInput where ranks of nodes that differ make other kernels of
    them than rank 0: NCCL hangs, or gives wrong results.
    """
    (_, view), *others = scenario.resolve().views_of_kinds
    group = plan(Selection(view), operations)
    for node, other in others:
        if other != view and plan(Selection(other), operations).kernels != group.kernels:
            raise BadInput(
                f"ranks disagree: those on {node.name} make other kernels of this group than rank 0; "
                "'nccl-tuner pick' says which calls they pick otherwise"
            )
    return described(scenario, group)


def described(scenario: Scenario, group: Group) -> GroupAnswer:
    """The emulator's group as an answer."""
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
