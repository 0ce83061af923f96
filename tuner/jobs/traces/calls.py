"""Records of the calls in a file, which every reader of files returns."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

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
    """How a call was executed, as far as a file says it; a field that the file does not say is None.

    ``is_tree``: whether the kernel's name says that the algorithm is Tree. ``not_alone`` says why the call was not
    launched by itself; an answer for a single call does not apply then.
    """

    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    channels: int | None = None
    threads: int | None = None
    is_tree: bool | None = None
    not_alone: str | None = None

    @property
    def says_anything(self) -> bool:
        """Whether any field is known."""
        return any(
            value is not None
            for value in (self.algorithm, self.protocol, self.channels, self.threads, self.is_tree, self.not_alone)
        )


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A collective that was called ``calls`` times; a field that the file does not say is None.

    ``name`` is the file's name of the call; ``collective`` is None if NCCL does not tune the call. ``bytes`` is NCCL's
    nBytes. If the file only knows a range of sizes, ``bytes`` is the smallest size, and ``to_bytes`` the largest.
    ``members`` are the job's ranks in the communicator. ``kernels_us`` are the measured durations of those calls for
    which the file has one. ``unusable`` says why the call has no size.
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
        """Whether it is an AllToAll that measured times can price; ``bytes`` is then what a rank sends in total."""
        return is_all_to_all(self.name)


@dataclass(frozen=True, slots=True)
class CallList:
    """The calls in a file. ``sizes`` says what the file means by size, ``notes`` what else a user has to know.

    ``releases`` are the releases of NCCL that the file names. ``choices`` are the choices that a log prints separately
    from the calls.
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
        """The calls for which the file says what was executed."""
        return tuple(call for call in self.choices or self.calls if call.ran is not None and call.ran.says_anything)


Member: TypeAlias = tuple[str, int]  # a communicator, and a rank of it


def of_lowest_ranks(members: Iterable[Member], where: str) -> tuple[set[Member], list[str]]:
    """Returns the lowest rank of each communicator, and a list that has a note if there are other ranks.

    The calls of the lowest rank count once for all ranks of its communicator. ``where`` is the beginning of the note,
    which says what the file has of its ranks.
    """
    every = set(members)
    lowest = {(name, min(rank for other, rank in every if other == name)) for name, _ in every}
    note = f"{where} of {len(every)} ranks; only those of the lowest rank of each communicator are counted"
    return lowest, [note] if len(every) > len(lowest) else []


def tallied(counts: Mapping[TracedCall, int], durations_us: Mapping[TracedCall, list[float]]) -> tuple[TracedCall, ...]:
    """The distinct calls, each with the number of times that it was made and its known durations."""
    return tuple(
        replace(call, calls=float(times), kernels_us=tuple(durations_us.get(call, ())))
        for call, times in counts.items()
    )


NAMELESS = "undefined"  # PyTorch's description of a process group without one


def group_name(name: str, description: str) -> str | None:
    """The name of a process group of PyTorch with its description, if it has one; None without a name."""
    return (f"{name} ({description})" if description not in ("", NAMELESS, name) else name) or None


def whole_number(value: Any) -> int | None:
    """A whole number from 0 on; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def is_all_to_all(name: str) -> bool:
    """Whether a name in a file stands for an AllToAll with equal parts: ``alltoall``, ``all_to_all``, ``AllToAll``."""
    return _plain(name) == "alltoall"


def exchanged_bytes(function: PeerCall, each: int, ranks: int | None) -> int | None:
    """The bytes of a send's or receive's message; for other calls, the total bytes of a rank or of the root.

    ``each`` is the number of bytes that the call's count stands for.

    None for a call between all ranks if their number is not known.
    """
    if function in (PeerCall.Send, PeerCall.Recv):
        return each
    return each * ranks if ranks else None


def is_untuned(name: str) -> bool:
    """Whether a name in a file stands for an operation for which NCCL has no algorithms."""
    return _plain(name) in UNTUNED


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def nbytes(collective: Collective, count: int, dtype: DataType, ranks: int) -> int:
    """NCCL's nBytes for the count of a call, which is in elements of one rank for AllGather and ReduceScatter.

    Source: ncclFuncMaxSendRecvCount in getAlgoInfo, src/enqueue.cc, v2.28.9-1.
    """
    return count * Request(collective, dtype, Op.sum).unit_bytes(ranks)


def spread_bytes(collective: Collective | None, each: int, ranks: int) -> int:
    """NCCL's nBytes for a call whose count stands for ``each`` bytes; ``each`` itself if ``collective`` is None."""
    return each if collective is None else nbytes(collective, each, DataType.int8, ranks)


def duration(value: Any) -> float:
    """A duration in the file's unit; 0 for anything that cannot be a duration: not a number, negative, or infinite."""
    return float(value) if isinstance(value, int | float) and 0 <= value < MOST_CALLS else 0.0


def checked(given: CallList) -> CallList:
    """Returns the list. BadInput if a number of calls is negative or impossibly large, as the total time would be
    nonsense."""
    for call in given.calls:
        if not 0 <= call.calls <= MOST_CALLS:
            raise BadInput(f"{given.file}: {number(call.calls)} calls of {call.name}: valid are 0 to {MOST_CALLS:g}")
    return given


def number(calls: float) -> str:
    """Formats a number of calls: exactly if it is whole; a weight as it was given."""
    return f"{calls:.15g}"


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """A filter that keeps calls of communicators with ``ranks`` ranks and, if names are given, with one of the names
    ``communicators``.

    A call is also kept if the file does not say the number of ranks. The calls are priced on a communicator of
    ``priced_ranks`` ranks.

    ``dtype`` and ``op`` are used for calls for which the file does not say them; ``buffers`` and ``in_place`` for all
    calls, as no file says them.
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
        """Raises BadInput for a communicator that no call belongs to."""
        names = dict.fromkeys(call.communicator for call in calls if call.communicator is not None)
        for name in self.communicators:
            if name not in names:
                raise BadInput(
                    f"{option('communicator')} {name!r}: {one_of(names) if names else 'the calls name no communicator'}"
                )

    def left_out(self, call: TracedCall) -> str | None:
        """Why a call does not count; None if it counts. A call that counts has a collective and a size."""
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
        """A phrase that names the communicators of a call if this filter leaves them out; None if it keeps them."""
        if self.communicators and call.communicator not in self.communicators:
            return f"of communicator {call.communicator or 'without a name'}"
        if call.ranks not in (None, self.ranks):
            return f"of communicators of {call.ranks} ranks"
        if self.nodes is not None and call.nodes not in (None, self.nodes):
            return f"of communicators on {call.nodes} nodes"
        return None

    def request(self, call: TracedCall) -> Request:
        """The request of a call that counts."""
        assert call.collective is not None
        dtype = self.dtype if call.dtype is None else call.dtype
        op = self.op if call.op is None else call.op
        kind = Request(call.collective, dtype, op, buffers=self.buffers, in_place=self.in_place)
        return replace(kind, op=Op.sum) if kind.moves_only else kind
