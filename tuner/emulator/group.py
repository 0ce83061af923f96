"""Several collectives in one ncclGroupStart and ncclGroupEnd: what NCCL picks for each, and in which kernels."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, Protocol
from tuner.base.numerics import Float
from tuner.base.spelling import option
from tuner.emulator.communicator import Comm
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules import bounds, registered, symmetric
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.schedule.task import CollectiveTask
from tuner.emulator.selection import Selection


@dataclass(frozen=True, slots=True)
class Operation:
    """One call; ``bytes`` is NCCL's nBytes, ``root`` the root of a broadcast or reduction."""

    request: Request
    bytes: int
    root: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuner plugin's answer to a question; without ``channels`` NCCL keeps its own number."""

    algo_proto: AlgoProto
    time_us: Float
    channels: int = 0


# Called as NCCL calls it: with the total size of the calls that are chosen together
Tuner = Callable[[Request, int], Tuned]


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Collectives for which NCCL made one choice; ``bytes`` is the sum of their sizes."""

    places: tuple[int, ...]  # indices of the calls
    request: Request
    bytes: int
    algorithm: Algorithm
    protocol: Protocol
    time_us: Float  # time of all of them together

    @property
    def pipelined(self) -> int:
        """The value of NCCL's numPipeOps."""
        return self.request.pipelined


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: its calls in NCCL's order, and the threads of its block. Its grid has a block per channel.

    ``path`` names what runs its calls instead of an algorithm: a symmetric kernel, or copy engines, which launch no
    kernel.
    """

    places: tuple[int, ...]
    threads: int
    channels: tuple[int, ...]
    path: NonClassicPath | None = None


@dataclass(frozen=True, slots=True)
class GroupedPick:
    """What NCCL decides for one call of a group.

    ``threads`` is the block size of the call's kernel, and ``own_threads`` is how many of these threads the call needs.

    ``channels`` are contiguous from 2.20 on. If a kernel has a path, its calls have no algorithm, protocol, channels or
    choice of their own.
    """

    operation: Operation
    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: tuple[int, ...]
    own_threads: int
    threads: int
    kernel: int  # index into the group's kernels
    choice: int | None  # index into the group's choices; the last one if NCCL chose again for a later kernel


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """NCCL's plan for a group: ``picks`` in the order of the calls, ``kernels`` and ``choices`` in NCCL's order."""

    picks: tuple[GroupedPick, ...]
    kernels: tuple[Kernel, ...]
    choices: tuple[GroupChoice, ...]


def plan(selection: Selection, operations: Sequence[Operation], tuner: Tuner | None = None) -> GroupPlan:
    """NCCL's plan for these calls in one group; for broadcasts from several roots see tuner.emulator.p2p.mixed.

    All calls have the same kind of buffers, and all are in place or none is. A ``tuner`` acts on plain buffers as a
    tuner plugin does in NCCL, from 2.21 on. BadInput for a size that calls of its data type cannot have, and for what
    is not emulated. NoAlgorithm if NCCL picks nothing.
    """
    communicator = selection.communicator
    if not operations:
        raise BadInput("a group without a collective launches nothing: add one")
    requests = [operation.request for operation in operations]
    check_emulated(selection, requests, tuner)
    check_roots(communicator, operations)
    tasks = [task_of(place, operation, communicator.ranks) for place, operation in enumerate(operations)]
    chooser = SelectionChooser(selection, tuner)
    kernels = tuple(_kernel(inside) for inside in communicator.rules.schedule(chooser, tasks))
    kernel_of = {place: index for index, kernel in enumerate(kernels) for place in kernel.places}
    choice_of = {place: index for index, choice in enumerate(chooser.choices) for place in choice.places}
    picks = tuple(
        _picked(operation, task, kernels[kernel_of[place]].threads, kernel_of[place], choice_of.get(place))
        for place, (operation, task) in enumerate(zip(operations, tasks, strict=True))
    )
    return GroupPlan(picks, kernels, tuple(chooser.choices))


def scheduled_channels(selection: Selection, operation: Operation, tuned: Tuned) -> int:
    """The channels that a single call is launched on if a tuner plugin sets them, limited by registered buffers.

    BadInput for a size that no call of this data type can have.
    """
    communicator, request = selection.communicator, operation.request
    call, named = RuleCall(communicator, request, tuned.algo_proto), np.array([tuned.channels], np.int64)
    bound = bounds.of_registered(call, selection.tables, named)
    task = task_of(0, operation, communicator.ranks)
    communicator.rules.schedule(SelectionChooser(selection, lambda *_: replace(tuned, channels=int(bound[0]))), [task])
    return len(task.channels)


def _picked(operation: Operation, task: CollectiveTask, threads: int, kernel: int, choice: int | None) -> GroupedPick:
    if task.path is not None:
        return GroupedPick(operation, None, None, (), task.path.threads, threads, kernel, choice)
    return GroupedPick(operation, *task.algo_proto, tuple(task.channels), task.threads, threads, kernel, choice)


def check_roots(communicator: Comm, operations: Sequence[Operation]) -> None:
    """Raises BadInput for a root that is not a rank, and for broadcasts that NCCL would merge into one call."""
    check_roots_are_ranks(communicator, operations)
    if together := broadcasts_together(communicator, operations):
        roots = {operations[place].root for place in together}
        raise BadInput(
            f"NCCL {communicator.release.name} turns broadcasts from {len(roots)} roots into one call, which is not "
            "computed here: give them one root"
        )


def check_roots_are_ranks(communicator: Comm, operations: Sequence[Operation]) -> None:
    """Raises BadInput for a root that is not a rank."""
    if outside := [each.root for each in operations if not 0 <= each.root < communicator.ranks]:
        raise BadInput(f"root {outside[0]} is no rank of the communicator: valid are 0 to {communicator.ranks - 1}")


def broadcasts_together(communicator: Comm, operations: Sequence[Operation]) -> list[int]:
    """The indices of the broadcasts that NCCL merges into one call.

    If NCCL merges broadcasts, these are all broadcasts of a group in which they have different roots, else none.
    """
    together = communicator.release.exchange.broadcasts_together
    if not together or communicator.environment.number("NCCL_ALLGATHERV_ENABLE", 1) == 0:
        return []
    places = [place for place, each in enumerate(operations) if each.request.collective is Collective.Broadcast]
    return places if len({operations[place].root for place in places}) > 1 else []


def check_emulated(selection: Selection, requests: Sequence[Request], tuner: Tuner | None) -> None:
    """Raises BadInput if groups of these calls are not emulated, with a ``tuner`` or without."""
    if (missing := not_emulated(selection, requests)) is not None:
        raise BadInput(f"groups are not emulated {missing}")
    if (tuner or selection.communicator.tuner) is not None and (
        needed := not_classic_alone(selection, requests)
    ) is not None:
        raise BadInput(f"groups with a tuner plugin are not emulated {needed}")


def not_emulated(selection: Selection, requests: Iterable[Request]) -> str | None:
    """The condition under which groups of these calls are not emulated; None if they are emulated."""
    if (alone := registered.chosen_alone(selection.communicator)) is not None:
        return f"with {alone}, which chooses each call of a group alone; valid without it"
    kinds = {(request.buffers, request.in_place, request.windows) for request in requests}
    if len(kinds) > 1:
        return "on several kinds of buffers, or in place beside out of place; valid: one kind"
    for buffers, _, windows in kinds:
        selection.check_buffers(buffers, windows)
        # NCCL then asks whether the first buffer is registered for the sum of the calls, which no call says.
        efficient = registered.policy_of(selection.communicator) is registered.CtaPolicy.efficiency
        valid = f"valid: {option('buffers')} plain"
        if buffers is not Buffers.plain and efficient:
            return f"on {buffers.name} buffers with {registered.CTA_POLICY} of efficiency; {valid}"
    return None


def not_classic_alone(selection: Selection, requests: Iterable[Request]) -> str | None:
    """What may let these calls leave the classic path: their buffers, or variables; None if nothing may."""
    if any(request.buffers is not Buffers.plain for request in requests):
        return f"on registered buffers and windows; valid: {option('buffers')} plain"
    return may_leave_classic_path(selection)


def may_leave_classic_path(selection: Selection) -> str | None:
    """The set variables by which calls on plain buffers may get symmetric kernels, as a text; None if none is set."""
    release, values = selection.communicator.release, selection.communicator.environment.values
    reaching = sorted(set(values) & set(release.environment.symmetric_kernels))
    if reaching and release.rules.symmetric_queue:
        return f"for NCCL {release.name} with {', '.join(reaching)}; valid: without"
    return None


def task_of(place: int, operation: Operation, ranks: int) -> CollectiveTask:
    """Makes a task, which is a call on its way through a scheduler. BadInput for a size that no call of its data type
    can have."""
    request = operation.request
    step = request.unit_bytes(ranks)
    if operation.bytes < step or operation.bytes % step:
        raise BadInput(
            f"{request.collective.name} of {request.dtype.name} on {ranks} ranks cannot have {operation.bytes} bytes: "
            f"valid are multiples of {step}"
        )
    return CollectiveTask(place, request, operation.bytes, ranks)


def _kernel(inside: Sequence[CollectiveTask]) -> Kernel:
    places, path = tuple(task.place for task in inside), inside[0].path
    if path is not None:
        return Kernel(places, path.threads, tuple(range(path.blocks)), path)
    used = sorted({channel for task in inside for channel in task.channels})
    return Kernel(places, max(task.threads for task in inside), tuple(used))


def _loaded(selection: Selection) -> Tuner | None:
    """The communicator's own tuner in the form of :data:`Tuner`; None if it has no tuner."""
    if selection.communicator.tuner is None:
        return None

    def tuned(request: Request, nbytes: int) -> Tuned:
        picks = selection.classic_pick(request, nbytes)
        return Tuned(
            picks.algo_protos()[0], picks.time_us[0], int(selection.tuner_answers(request, picks.bytes).channels[0])
        )

    return tuned


class SelectionChooser:
    """Answers a scheduler's questions from a selection, and keeps the choices that it made."""

    def __init__(self, selection: Selection, tuner: Tuner | None, beside_messages: bool = False) -> None:
        self.beside_messages = beside_messages
        self._selection = selection
        self._tuner = tuner or _loaded(selection)
        self.communicator = selection.communicator
        self.choices: list[GroupChoice] = []

    def choose(self, tasks: Sequence[CollectiveTask], pipelined: int = 1, preset_channels: int = 0) -> None:
        """Makes the choice for tasks that NCCL chooses together, and records it."""
        request = replace(tasks[0].request, pipelined=pipelined, preset_channels=preset_channels)
        sizes = np.array([task.nbytes for task in tasks], np.uint64)
        symmetric.check(self.communicator, tasks[0].request, sizes)
        nbytes = sum(task.nbytes for task in tasks)
        tuned = self._tuner(request, nbytes) if self._tuner else self._own(request, nbytes)
        self.choices.append(
            GroupChoice(tuple(task.place for task in tasks), request, nbytes, *tuned.algo_proto, tuned.time_us)
        )
        bound, threads = self._bounds(request, tuned.algo_proto, nbytes)
        plain = bound
        if request.buffers is not Buffers.plain:
            plain, _ = self._bounds(replace(request, buffers=Buffers.plain), tuned.algo_proto, nbytes)
        if tuned.channels:
            call, together_bytes = RuleCall(self.communicator, request, tuned.algo_proto), np.array([nbytes], np.uint64)
            threads = int(bounds.block_threads(call, self._selection.tables, together_bytes, tuned.channels)[0])
        for task in tasks:
            task.algo_proto, task.threads = tuned.algo_proto, threads
            task.together_bytes, task.together_tuned = nbytes, tuned.channels
            task.bound, task.tuned = self._tuned(bound, tuned.channels), tuned.channels > 0
            task.unregistered_bound = self._tuned(plain, tuned.channels)

    def bind(self, task: CollectiveTask) -> None:
        """Sets the largest number of channels of one chosen task, by its own size."""
        named = self._tuner(task.request, task.nbytes).channels if self._tuner else 0
        task.bound = self._tuned(self._bounds(task.request, task.algo_proto, task.nbytes)[0], named)
        task.tuned = named > 0

    def _tuned(self, own: int, channels: int) -> int:
        """The largest number of channels if a tuner plugin sets ``channels``; ``own`` if it sets none."""
        return self.communicator.rules.tuned_channels(own, channels) if channels else own

    def register(self, task: CollectiveTask) -> None:
        """Reduces the most channels of one chosen task to what its registered buffers allow."""
        call = task.call(self.communicator)
        bound = bounds.of_registered(call, self._selection.tables, np.array([task.bound], np.int64))
        task.bound = int(bound[0])

    def path_of(self, tasks: Sequence[CollectiveTask]) -> NonClassicPath | None:
        """What carries these calls of one kind instead of an algorithm.

        None if an algorithm carries them; with a tuner, an algorithm always does.
        """
        if self._tuner:
            return None
        request, sizes = tasks[0].request, [task.nbytes for task in tasks]
        if len(tasks) > 1:
            return symmetric.kernel_of_several(self.communicator, request, sizes)
        return self._selection.non_classic_paths(request, sizes)[0]

    def _own(self, request: Request, nbytes: int) -> Tuned:
        picks = self._selection.classic_pick(request, nbytes)
        return Tuned((Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0])), picks.time_us[0])

    def _bounds(self, request: Request, algo_proto: AlgoProto, nbytes: int) -> tuple[int, int]:
        """The largest number of channels of a call, and the threads of a block."""
        call = RuleCall(self.communicator, request, algo_proto)
        bound, threads = bounds.bounds(call, self._selection.tables, np.array([nbytes], np.uint64))
        return int(bound[0]), int(threads[0])
