"""Collectives as a file has them: the common form that every reader of files returns."""

from dataclasses import replace
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, PeerCall, Protocol
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.emulator.selection import MAX_BYTES

# What is called like a collective, or beside them, and has no algorithm to choose.
MOST_CALLS = 1e15  # as many as a float counts one by one, and microseconds of thirty years
UNTUNED = ("send", "recv", "sendrecv", "alltoall", "alltoallv", "gather", "scatter", "barrier")


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """How a call was executed, as far as a file says it; None for what it does not say.

    ``is_tree``: whether the kernel's name says that the algorithm is Tree, not another one. ``not_alone`` says why the
    call was not launched by itself, so that an answer for a single call does not apply.
    """

    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    channels: int | None = None
    threads: int | None = None
    is_tree: bool | None = None
    not_alone: str | None = None

    @property
    def says_anything(self) -> bool:
        """Whether there is anything to compare with."""
        return any(
            value is not None
            for value in (self.algorithm, self.protocol, self.channels, self.threads, self.is_tree, self.not_alone)
        )


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One collective that was called ``calls`` times; None for what the file does not say.

    ``name`` is the file's, ``collective`` None if NCCL has no tuning for it. ``bytes`` is NCCL's nBytes; in a file
    that knows ranges of sizes it is the lowest, and ``to_bytes`` the largest. ``members`` are the job's ranks in its
    communicator. ``kernels_us`` are measured durations, one for each call that has one. ``unusable`` says why it has no
    size.
    """

    name: str
    collective: Collective | None
    bytes: int | None
    dtype: DataType | None = None
    op: Op | None = None
    ranks: int | None = None
    nodes: int | None = None
    communicator: str | None = None
    calls: float = 1.0
    kernels_us: tuple[float, ...] = ()
    unusable: str | None = None
    to_bytes: int | None = None
    ran: ExecutedCall | None = None
    members: tuple[int, ...] | None = None

    @property
    def is_all_to_all(self) -> bool:
        """Whether it is an AllToAll that measured times can price; ``bytes`` are then what a rank sends in all."""
        return is_all_to_all(self.name)


@dataclass(frozen=True, slots=True)
class CallList:
    """The calls of a file. ``sizes`` says what the file means by size, ``notes`` what else a reader has to know.

    ``releases`` are those of NCCL that the file names. ``choices`` are the calls of a log that prints what was executed
    apart from the calls.
    """

    file: str
    kind: str
    sizes: str
    calls: tuple[TracedCall, ...]
    notes: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    choices: tuple[TracedCall, ...] = ()

    @property
    def executed(self) -> tuple[TracedCall, ...]:
        """The calls of which the file says what was executed."""
        return tuple(call for call in self.choices or self.calls if call.ran is not None and call.ran.says_anything)


def is_all_to_all(name: str) -> bool:
    """Whether a file's name is that of AllToAll with equal parts: ``alltoall``, ``all_to_all``, ``AllToAll``."""
    return _plain(name) == "alltoall"


def exchanged_bytes(function: PeerCall, each: int, ranks: int | None) -> int | None:
    """The bytes of a message, or what a rank or the root has in all, where ``each`` is the bytes of a count.

    None for a call between all ranks if their number is not known.
    """
    if function in (PeerCall.Send, PeerCall.Recv):
        return each
    return each * ranks if ranks else None


def is_untuned(name: str) -> bool:
    """Whether a file's name stands for an operation without algorithms."""
    return _plain(name) in UNTUNED


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def nbytes(collective: Collective, count: int, dtype: DataType, ranks: int) -> int:
    """NCCL's nBytes of a count as the call takes it: elements of one rank for AllGather and ReduceScatter.

    Source: ncclFuncMaxSendRecvCount in getAlgoInfo, src/enqueue.cc, v2.28.9-1.
    """
    return count * Request(collective, dtype, Op.sum).unit_bytes(ranks)


def spread_bytes(collective: Collective | None, each: int, ranks: int) -> int:
    """NCCL's nBytes of a call whose count is ``each`` bytes on one rank."""
    return each if collective is None else nbytes(collective, each, DataType.int8, ranks)


def duration(value: Any) -> float:
    """A duration in the file's unit; 0 for anything that cannot be one: no number, negative, or infinite."""
    return float(value) if isinstance(value, int | float) and 0 <= value < MOST_CALLS else 0.0


def checked(given: CallList) -> CallList:
    """Returns the list. BadInput for more calls than are possible, whose times would add up to nonsense."""
    for call in given.calls:
        if not 0 <= call.calls <= MOST_CALLS:
            raise BadInput(f"{given.file}: {number(call.calls)} calls of {call.name}; valid: 0 to {MOST_CALLS:g}")
    return given


def number(calls: float) -> str:
    """Format a number of calls as people read it: to the last one, and a weight as it was given."""
    return f"{calls:.15g}"


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """A filter of calls: those of communicators of this size, priced on one of ``priced_ranks``, or of these names.

    ``dtype`` and ``op`` apply to calls for which the file does not say them; ``buffers`` and ``in_place`` to all, as no
    file says them.
    """

    ranks: int
    priced_ranks: int
    nodes: int | None = None
    communicators: tuple[str, ...] = ()
    dtype: DataType = DataType.float32
    op: Op = Op.sum
    buffers: Buffers = Buffers.plain
    in_place: bool = False

    def check_names(self, calls: "list[TracedCall]") -> None:
        """BadInput for a communicator that no call belongs to."""
        names = dict.fromkeys(call.communicator for call in calls if call.communicator is not None)
        for name in self.communicators:
            if name not in names:
                raise BadInput(
                    f"{option('communicator')} {name!r}: {one_of(names) if names else 'the calls name none'}"
                )

    def left_out(self, call: TracedCall) -> str | None:
        """Why a call does not count; None if it does: it then has a collective and a size."""
        if call.unusable is not None:
            return call.unusable
        if call.collective is None:
            return "NCCL has no algorithms to choose from"
        if (elsewhere := self.elsewhere(call)) is not None:
            return elsewhere
        if call.bytes is None:
            return "its size is not known"
        if call.bytes > MAX_BYTES:
            return "of more than 2**62 bytes"
        return None if call.bytes > 0 else "of 0 bytes, which NCCL does not run"

    def elsewhere(self, call: TracedCall) -> str | None:
        """Names the other communicators that a call belongs to; None if it belongs to one that counts."""
        if self.communicators and call.communicator not in self.communicators:
            return f"of communicator {call.communicator or 'without a name'}"
        if call.ranks not in (None, self.ranks):
            return f"of communicators of {call.ranks} ranks"
        if self.nodes is not None and call.nodes not in (None, self.nodes):
            return f"of communicators on {call.nodes} nodes"
        return None

    def request(self, call: TracedCall) -> Request:
        """The kind of a call that counts."""
        assert call.collective is not None
        dtype = self.dtype if call.dtype is None else call.dtype
        op = self.op if call.op is None else call.op
        kind = Request(call.collective, dtype, op, buffers=self.buffers, in_place=self.in_place)
        return replace(kind, op=Op.sum) if kind.moves_only else kind
