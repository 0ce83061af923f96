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

if TYPE_CHECKING:  # communicators have a tuner
    from tuner.emulator.communicator import Comm

OWN = -1  # used instead of a cell: the tuner leaves the choice to NCCL
CHUNKS_SINCE = 6  # the first interface with which NCCL asks for chunk sizes
IGNORED_US = np.float32(-1.0)  # NCCL_ALGO_PROTO_IGNORE


@dataclass(frozen=True, slots=True)
class TunerQuestion:
    """What NCCL gives a tuner for calls of one kind and several sizes.

    ``cost_us`` returns the times that NCCL computed for a cell, float32 [size]; :data:`IGNORED_US` where NCCL ignores
    the cell. ``usable`` has the cells that NCCL ignores at no size.
    """

    communicator: "Comm"
    request: Request
    nbytes: SizeArray
    cost_us: Callable[[AlgoProto], FloatArray]
    usable: Collection[AlgoProto] = ()

    def ignored(self, algo_proto: AlgoProto) -> NDArray[np.bool_]:
        """The sizes at which NCCL ignores the cell, as a mask [size]; all of them if the release does not have the
        algorithm."""
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
    """A tuner's answers: cells (:data:`OWN` if NCCL's own pick stays) and channels (0 for NCCL's own number).

    ``region`` is the number of the region that decided, from 1 in its release's order; 0 if no region did. All three
    are int64 arrays [size].
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
    """NCCL's question to a tuner for the chunk size of one channel (``getChunkSize``, interface v6).

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
    """The interface of a loaded tuner."""

    @property
    def title(self) -> str:
        """The name and version, as in headings: ``aws-ofi-nccl 1.21.1``."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The NCCL variables that come with the tuner; they apply unless they are set already."""

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        """The tuner's cells and channels, as NCCL uses them. BadInput for parts of the tuner that are not emulated."""

    def breaks(self, communicator: "Comm", request: Request) -> Sequence[int]:
        """The sizes in bytes between which its answers change at most once."""

    def may_flicker(self, communicator: "Comm", request: Request) -> bool:
        """Whether its answers may change from byte to byte, so that they cannot be described as ranges of sizes."""

    def why_not(self, communicator: "Comm") -> str | None:
        """The reason why NCCL's own picks stay, whatever the call; None if the tuner decides."""

    def ignored_by(self, release: str) -> str | None:
        """None if NCCL ``release`` uses the tuner's answers; else the releases that the tuner was made for."""

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        """The chunk size that the tuner names; None if NCCL does not ask the tuner."""

    def chunks_follow_choices(self, communicator: "Comm") -> bool:
        """Whether a call's chunk size depends on the tuner's last choice, which in a group may be for another call."""
