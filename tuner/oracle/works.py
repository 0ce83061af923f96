"""What NCCL hands a kernel to do, as the oracle and its child process send it to each other."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Number:
    """A number inside a struct: so many bits from a bit on, counted from the start of the struct, little endian."""

    bit: int
    bits: int
    signed: bool

    def of(self, data: bytes) -> int:
        """Its value in the bytes of a struct."""
        first, last = self.bit // 8, (self.bit + self.bits + 7) // 8
        value = int.from_bytes(data[first:last], "little") >> self.bit % 8 & (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> self.bits - 1 else value


@dataclass(frozen=True, slots=True)
class WorkLayout:
    """A struct's size in bytes, its numbers by dotted path, and where the structs inside it begin, in bytes.

    Members of unnamed structs and unions stand as if they were the struct's own. Arrays are left out.
    """

    size_bytes: int
    numbers: dict[str, Number]
    structs: dict[str, int]

    def read(self, data: bytes) -> dict[str, int]:
        """All numbers of a struct."""
        return {path: number.of(data) for path, number in self.numbers.items()}


@dataclass(frozen=True, slots=True)
class WorkStructs:
    """The layouts of NCCL's work structures, and the values of their enumerations, by name.

    ``in_ring``: up to 2.21, works of one size in a ring. ``first_element`` is where their elements begin, in bytes, by
    the type of work. ``without``: kernels that have none, the symmetric ones, by their addresses in the library.
    """

    layouts: Mapping[str, WorkLayout]
    enumerations: Mapping[str, Mapping[str, int]]
    in_ring: bool
    first_element: Mapping[str, int]
    without: frozenset[int]


@dataclass(frozen=True, slots=True)
class PeerOffsets:
    """How ranks reach each other: functions of NCCL's transports, and what they set in a connection."""

    without_network: tuple[int, ...]  # functions that say whether ranks reach each other, of transports in their order
    asks_communicator: bool  # they are handed the communicator, not its topology
    info_bytes: int  # of struct ncclPeerInfo
    network_send: int  # of the network's transport: what connections point to
    network_receive: int
    connector_bytes: int
    transport: int  # offsets in a connection
    buffers: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Works of one type that a block does together: ``type`` without "ncclDevWorkType" or "ncclWorkType".

    ``works`` are the numbers of the structures by name. Up to 2.21 "place" is the element's place in its work.
    ``extends``: the next batch is done together with this one.
    """

    type: str
    function: int  # NCCL's number of the device function
    extends: bool
    works: tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class SymmetricWorks:
    """What a symmetric kernel is handed: the numbers of its works, and by block where its part ends; not in 2.27."""

    works: tuple[dict[str, int], ...]
    ends: tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class KernelWorks:
    """The batches of one kernel, by channel in the order in which its block does them."""

    channels: Mapping[int, tuple[Batch, ...]]
    symmetric: SymmetricWorks | None = None  # where it is a symmetric kernel, whose blocks have no batches
