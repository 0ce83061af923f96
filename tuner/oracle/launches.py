"""Records of complete launches: kernels with the works that NCCL passes to them, and the operations that it prepares
for the network."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, PeerCall, Protocol
from tuner.base.nouns import Choice
from tuner.emulator.group import Operation
from tuner.oracle import answers, messages
from tuner.oracle.answers import Contradiction, LoggedSymmetricKernel, Reader
from tuner.oracle.messages import GroupAnswerMessage, KernelWorks

OWN_FUNCTION: dict[Collective | PeerCall, str] = {
    PeerCall.AllToAll: "ncclAlltoAll",
    PeerCall.Scatter: "ncclScatter",
    PeerCall.Gather: "ncclGather",
}


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """One call of a rank. ``count`` is the argument of NCCL's function; ``root`` is the root, or the peer of a send or
    receive."""

    function: Collective | PeerCall
    dtype: DataType
    count: int
    root: int = 0
    op: Op = Op.sum
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """One launched kernel: its name in the library's symbol table, its blocks (``channels``) and threads, and the works
    in its arguments."""

    name: str
    channels: int
    threads: int
    works: KernelWorks


def request(
    calls: Sequence[IssuedCall],
    ranks: int,
    rank: int,
    buffers: messages.RegistrationMessage,
) -> messages.GroupMessage:
    """The request to the child for a launch with all works, and with the operations of the network."""
    peers, captured = _peers(calls, ranks) | {rank}, buffers.kind == Buffers.graph
    return messages.GroupMessage(tuple(map(_message, calls)), peers, True, rank, buffers, captured)


def _message(call: IssuedCall) -> messages.CallMessage:
    return messages.CallMessage(
        int(call.function), int(call.dtype), int(call.op), call.count, call.root, int(call.in_place)
    )


def _peers(calls: Iterable[IssuedCall], ranks: int) -> frozenset[int]:
    peers: set[int] = set()
    for call in calls:
        if isinstance(call.function, PeerCall):
            peers |= {call.root} if call.function in (PeerCall.Send, PeerCall.Recv) else set(range(ranks))
    return frozenset(peers)


@dataclass(frozen=True, slots=True)
class ScheduledCollective:
    """One collective as NCCL put it into a kernel.

    ``collective`` and ``bytes`` come from the log, which has them from 2.24 on; they are None in older releases.
    ``bytes`` is the count times the type's size: the bytes of one rank for AllGather and ReduceScatter.
    """

    algorithm: Algorithm
    protocol: Protocol
    dtype: DataType
    channels: tuple[int, ...]
    collective: Collective | None
    bytes: int | None

    def nbytes(self, ranks: int) -> int | None:
        """NCCL's nBytes on this many ranks; None if the collective is not known."""
        if self.bytes is None:
            return None
        per_rank = self.collective in (Collective.AllGather, Collective.ReduceScatter)
        return self.bytes * (ranks if per_rank else 1)


@dataclass(frozen=True, slots=True)
class GroupKernel:
    """One launched kernel: its name in the library's symbol table, its blocks (``channels``) and threads, and its
    collectives in NCCL's order.

    ``symmetric`` is what NCCL's log says about a symmetric kernel, for which it lists no collectives.
    """

    name: str
    channels: int
    threads: int
    operations: tuple[ScheduledCollective, ...]
    symmetric: LoggedSymmetricKernel | None = None


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question to the recorder about one choice for several collectives: the costs, a float32 array
    [algorithm][protocol] in us (-1.0 for ignored cells), and numPipeOps.

    ``collective`` and ``bytes`` are None in releases up to 2.21, which compute the cells one by one.
    """

    collective: Collective | None
    bytes: int | None
    pipelined: int
    costs_us: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PluginQuestion:
    """One question to a wrapped tuner plugin, with its answer.

    ``before_us`` is NCCL's cost table, ``after_us`` the same after the plugin changed it: times indexed
    [algorithm][protocol], -1.0 for ignored cells. ``channels`` is the number that the plugin asks for (0: NCCL
    chooses), ``result`` the ncclResult_t that it returned. ``outside``: whether the plugin wrote outside the table;
    ``nanoseconds``: the time that it took.
    """

    pipelined: int
    before_us: NDArray[np.float32]  # [A, 3]
    after_us: NDArray[np.float32]  # [A, 3]
    channels: int
    result: int
    outside: bool
    nanoseconds: int


@dataclass(frozen=True, slots=True)
class TunedCall:
    """One launched call: the questions to the wrapped plugin (none without one), of which the last decides, and the
    choice.

    ``choice`` is None if NCCL returned ``error``, the text of an ncclResult_t.
    """

    call: Operation
    questions: tuple[PluginQuestion, ...]
    choice: Choice | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchedGroup:
    """A group as NCCL launched it on rank 0.

    ``questions`` are empty without the recorder. From 2.29 on, a communicator that could run symmetric kernels may ask
    about these first: the last questions decide.
    """

    kernels: tuple[GroupKernel, ...]
    questions: tuple[ChoiceQuestion, ...]


def read_groups(reader: Reader, answer: GroupAnswerMessage, log: bytes) -> LaunchedGroup:
    """The group that these records and this piece of NCCL's log describe. Contradiction if they do not fit together."""
    kernels = np.frombuffer(answer.kernels, reader.kernel)
    operations = np.frombuffer(answer.operations, reader.operation)
    questions = np.frombuffer(answer.questions, reader.question)
    scheduled = _scheduled(reader, operations, log)
    plans = _plans([int(number) for number in operations["number"]])
    symmetric = answers.symmetric_kernels(log)
    if len(symmetric) + len(plans) != len(kernels):
        raise Contradiction(
            f"collectives numbered as in {len(plans)} kernels, {len(symmetric)} symmetric ones, {len(kernels)} kernels"
        )
    launched = [_symmetric(reader, kernel, said) for kernel, said in zip(kernels, symmetric, strict=False)]
    for kernel, plan in zip(kernels[len(symmetric) :], plans, strict=True):
        inside = tuple(scheduled[plan])
        used = {channel for each in inside for channel in each.channels}
        if len(used) != kernel["grid_x"]:
            raise Contradiction(f"collectives on {len(used)} channels in a kernel of {kernel['grid_x']} blocks")
        name = reader.kernel_name(kernel)
        launched.append(GroupKernel(name, int(kernel["grid_x"]), int(kernel["block_x"]), inside))
    return LaunchedGroup(tuple(launched), tuple(map(_question, questions)))


def read_tuned(reader: Reader, call: Operation, answer: GroupAnswerMessage, log: bytes) -> TunedCall:
    """The launch of ``call`` that these records and the log describe. Contradiction unless there is one choice and one
    kernel.

    The choice is read from the log: if a plugin made NCCL choose an algorithm that cannot run, the operations for the
    network may be those of another algorithm.
    """
    asked = tuple(map(_plugin_question, np.frombuffer(answer.questions, reader.question)))
    if answer.error is not None:
        return TunedCall(call, asked, None, answer.error)
    kernels, said = np.frombuffer(answer.kernels, reader.kernel), answers.choices(log)
    names = [(each.algorithm, each.protocol) for each in said] or [
        (each.algorithm, each.protocol)
        for kernel in read_groups(reader, answer, log).kernels
        for each in kernel.operations
    ]
    if len(kernels) != 1 or len(names) != 1:
        raise Contradiction(f"one collective gave {len(names)} choices and {len(kernels)} kernels")
    channels, threads = (int(kernels[0][name]) for name in ("grid_x", "block_x"))
    return TunedCall(call, asked, Choice(*names[0], channels, threads))


def _plugin_question(record: Any) -> PluginQuestion:
    shape = int(record["algorithms"]), int(record["protocols"])
    before, after = (record[name][: shape[0] * shape[1]].reshape(shape).copy() for name in ("before_us", "after_us"))
    return PluginQuestion(
        pipelined=int(record["pipe_ops"]),
        before_us=before,
        after_us=after,
        channels=int(record["channels"]),
        result=int(record["result"]),
        outside=bool(record["outside"]),
        nanoseconds=int(record["nanoseconds"]),
    )


def _symmetric(reader: Reader, kernel: Any, said: LoggedSymmetricKernel) -> GroupKernel:
    """A symmetric kernel; NCCL launches these before all others. Contradiction if it launched another kernel."""
    name = reader.kernel_name(kernel)
    if f"_{said.name}" not in name:
        raise Contradiction(f"NCCL says {said.name} and launches {name}")
    return GroupKernel(name, int(kernel["grid_x"]), int(kernel["block_x"]), (), said)


def _scheduled(reader: Reader, operations: Any, log: bytes) -> list[ScheduledCollective]:
    logged = [choice for choice in answers.choices(log) if choice.channel_lo is not None]
    if logged and len(logged) != len(operations):
        raise Contradiction(f"{len(logged)} collectives in the log, and {len(operations)} operations of the network")
    scheduled = []
    for place, operation in enumerate(operations):
        pattern = reader.pattern(operation)
        algorithm = answers.PATTERNS.get(pattern.removeprefix("ncclPattern"))
        if algorithm is None:
            raise Contradiction(f"a collective whose pattern is {pattern}")
        protocol, channels = Protocol(operation["protocol"]), _bits(int(operation["channels"]))
        choice = logged[place] if logged else None
        prepared = algorithm, protocol, channels[0], channels[-1]
        if choice and (choice.algorithm, choice.protocol, choice.channel_lo, choice.channel_hi) != prepared:
            name = f"{algorithm.name}/{protocol.name}"
            raise Contradiction(f"{choice} in the log is {name} on {channels} for the network")
        scheduled.append(
            ScheduledCollective(
                algorithm,
                protocol,
                DataType(operation["type"]),
                channels,
                choice.collective if choice else None,
                choice.bytes if choice else None,
            )
        )
    return scheduled


def _plans(numbers: Sequence[int]) -> list[slice]:
    """Splits operations by kernel; the numbers of collectives begin again in every kernel."""
    starts = [i for i, number in enumerate(numbers) if i == 0 or number <= numbers[i - 1]]
    ends = [*starts[1:], len(numbers)] if starts else []
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


def _question(record: Any) -> ChoiceQuestion:
    known = record["collective"] >= 0
    rows, columns = int(record["algorithms"]), int(record["protocols"])
    return ChoiceQuestion(
        collective=Collective(record["collective"]) if known else None,
        bytes=int(record["bytes"]) if known else None,
        pipelined=int(record["pipe_ops"]),
        costs_us=record["before_us"][: rows * columns].reshape(rows, columns).copy(),
    )


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


@dataclass(frozen=True, slots=True)
class LaunchInFull:
    """All that NCCL launched and prepared for a group of calls of one rank.

    ``operations`` are those of all kernels in NCCL's order, one per channel and collective: a structured array
    [operation] with the names of ``struct ncclProxyOp``, sizes in bytes. ``patterns`` maps values of ncclPattern_t to
    their names.
    """

    kernels: tuple[RecordedKernel, ...]
    operations: NDArray[Any]
    patterns: dict[int, str]


def read_launches(reader: Reader, answer: messages.GroupAnswerMessage) -> LaunchInFull:
    """The launch of a group for which everything was requested (``in_full``)."""
    kernels = np.frombuffer(answer.kernels, reader.kernel)
    return LaunchInFull(
        tuple(
            RecordedKernel(reader.kernel_name(kernel), int(kernel["grid_x"]), int(kernel["block_x"]), works)
            for kernel, works in zip(kernels, answer.works, strict=True)
        ),
        np.frombuffer(answer.proxy_operations, reader.proxy_operation),
        reader.patterns,
    )
