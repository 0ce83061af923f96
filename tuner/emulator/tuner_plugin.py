"""A tuner plugin as a communicator's NCCL calls it: what it gets with each call, and what it answers.

Shapes: sizes are nBytes, [size]; cells are indices into ``ALGO_PROTOS``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm
from tuner.base.names import Protocol as Proto
from tuner.base.numerics import FloatArray, SizeArray
from tuner.emulator.request import Request

if TYPE_CHECKING:  # it has one of these
    from tuner.emulator.communicator import Comm

OWN = -1  # instead of a cell: the tuner leaves the choice to NCCL
CHUNKS_SINCE = 6  # the interface from which on NCCL asks for chunk sizes
IGNORED_US = np.float32(-1.0)  # NCCL_ALGO_PROTO_IGNORE


@dataclass(frozen=True, slots=True)
class TunerQuestion:
    """Calls of one kind and several sizes, as NCCL hands them to a tuner.

    ``cost_us`` has the times of a cell that NCCL computed, float32 [size], :data:`IGNORED_US` where it ignores it.
    ``usable``: the cells that it does not ignore.
    """

    communicator: "Comm"
    request: Request
    nbytes: SizeArray
    cost_us: Callable[[AlgoProto], FloatArray]
    usable: Collection[AlgoProto] = ()

    def ignored(self, algo_proto: AlgoProto) -> NDArray[np.bool_]:
        """Sizes at which NCCL ignores the cell, or whose release lacks the algorithm, [size]."""
        if algo_proto in self.usable:
            return np.zeros(self.nbytes.shape, np.bool_)
        if algo_proto[0] >= self.communicator.release.limits.algorithms:
            return np.ones(self.nbytes.shape, np.bool_)
        ignored: NDArray[np.bool_] = self.cost_us(algo_proto) == IGNORED_US
        return ignored

    @property
    def cost_table_us(self) -> FloatArray:
        """The whole cost table, [size][algorithm][protocol]."""
        table = np.empty((len(self.nbytes), len(Algorithm), len(Proto)), np.float32)
        for algorithm, protocol in ALGO_PROTOS:
            table[:, algorithm, protocol] = self.cost_us((algorithm, protocol))
        return table


@dataclass(frozen=True, slots=True)
class TunerAnswers:
    """A tuner's answer: the cell, :data:`OWN` where NCCL's own pick stays, and channels, 0 for NCCL's own.

    ``region`` numbers the region that decided, from 1 in its release's order, 0 where none did. All are int64 [size].
    """

    cell: NDArray[np.int64]
    channels: NDArray[np.int64]
    region: NDArray[np.int64] | None = None

    @staticmethod
    def none(sizes: int) -> "TunerAnswers":
        """Answers of a tuner that leaves everything to NCCL."""
        return TunerAnswers(np.full(sizes, OWN, np.int64), np.zeros(sizes, np.int64))


@dataclass(frozen=True, slots=True)
class ChunkQuestion:
    """A chunk size as NCCL asks a tuner for it, channel by channel (``getChunkSize``, interface v6).

    ``call_bytes`` is the nBytes that the choice was made for, ``channel_bytes`` the channel's share, and
    ``chunk_bytes`` the size that NCCL computed.
    """

    communicator: "Comm"
    request: Request
    algo_proto: AlgoProto
    call_bytes: int
    channel_bytes: int
    chunk_bytes: int


class TunerPlugin(Protocol):
    """A loaded tuner."""

    @property
    def title(self) -> str:
        """Name and version, as headings say them: ``aws-ofi-nccl 1.21.1``."""

    @property
    def settings(self) -> Mapping[str, str]:
        """NCCL's variables that come with it, where they are not set."""

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        """Cells and channels that NCCL takes from it. BadInput for parts of the tuner that are not emulated."""

    def breaks(self, communicator: "Comm", request: Request) -> Sequence[int]:
        """Sizes in bytes between which its answers do not change, or change once."""

    def may_flicker(self, communicator: "Comm", request: Request) -> bool:
        """Whether its answers may change from byte to byte, so that ranges of sizes say nothing."""

    def why_not(self, communicator: "Comm") -> str | None:
        """The reason why NCCL's own picks stay, whatever the call; None if the tuner decides."""

    def ignored_by(self, release: str) -> str | None:
        """The releases that it is for, where this one ignores its answers; None if it does not."""

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        """The chunk size that it names; None if NCCL does not ask it."""

    def chunks_follow_choices(self, communicator: "Comm") -> bool:
        """Whether chunk sizes depend on what was chosen last, which in a group may be another call."""
