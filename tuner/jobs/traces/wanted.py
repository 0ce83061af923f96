"""Which of a file's calls are those of a communicator, and what kind of call each is."""

from dataclasses import replace

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Buffers, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import MAX_BYTES
from tuner.jobs.traces.calls import Call


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calls count: those of communicators of this size, priced on one of ``priced_ranks``, or of these names.

    ``dtype`` and ``op`` are of calls whose own the file does not say; ``buffers`` and ``in_place`` of all, as no file
    says them.
    """

    ranks: int
    priced_ranks: int
    nodes: int | None = None
    communicators: tuple[str, ...] = ()
    dtype: DataType = DataType.float32
    op: Op = Op.sum
    buffers: Buffers = Buffers.plain
    in_place: bool = False

    def check_names(self, calls: "list[Call]") -> None:
        """BadInput for a communicator that no call is of."""
        names = dict.fromkeys(call.communicator for call in calls if call.communicator is not None)
        for name in self.communicators:
            if name not in names:
                raise BadInput(f"`communicator` {name!r}: {one_of(names) if names else 'the calls name none'}")

    def left_out(self, call: Call) -> str | None:
        """Why a call does not count; None where it does, and has a collective and a size then."""
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
        return None if call.bytes > 0 else "of 0 bytes, for which NCCL runs nothing"

    def elsewhere(self, call: Call) -> str | None:
        """Of which other communicators a call is."""
        if self.communicators and call.communicator not in self.communicators:
            return f"of communicator {call.communicator or 'without a name'}"
        if call.ranks not in (None, self.ranks):
            return f"of communicators of {call.ranks} ranks"
        if self.nodes is not None and call.nodes not in (None, self.nodes):
            return f"of communicators on {call.nodes} nodes"
        return None

    def request(self, call: Call) -> Request:
        """The kind of a call that counts."""
        assert call.collective is not None
        dtype = self.dtype if call.dtype is None else call.dtype
        op = self.op if call.op is None else call.op
        kind = Request(call.collective, dtype, op, buffers=self.buffers, in_place=self.in_place)
        return replace(kind, op=Op.sum) if kind.moves_only else kind
