"""Messages between the oracle and its child process. The child imports this module first, so the module itself imports
little.

Fields of :class:`GpuMessage`, :class:`NetMessage`, :class:`SimulatedHost` and :class:`SimulatedMachine` have the names
of the members in csrc/sim; so do the fields for ``struct sim_call`` and ``struct sim_operation_layout``.
"""

from array import array
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import Any, TypeAlias

from tuner.base.dataclass import dataclass

# The places of members in C structs: in those of libnccl, read from its debug information, and in those of the
# simulated GPUs.


@dataclass(frozen=True, slots=True)
class Member:
    """A scalar, or an array of scalars, inside a struct."""

    offset: int  # in bytes from the start of the struct
    type: str  # such as "int32", "uint64", "float32", "bool", "pointer"
    dims: tuple[int, ...]  # () for a scalar


# The scalars of a struct by NCCL's own path: numbers, or lists of numbers for an array.
Scalars: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StructLayout:
    """A struct's scalar members by dotted path; ``arrays`` maps the path of an array of structs to (offset, dims)."""

    bytes: int
    members: dict[str, Member]
    arrays: dict[str, tuple[int, tuple[int, ...]]]
    structs: dict[str, tuple[int, int]]  # nested structs by path, with offset and size in bytes


# The layout of a struct as the compiler laid it out, in the form from which numpy makes a structured type: names,
# formats and offsets of the fields, and the size of the struct.
CompiledStruct: TypeAlias = Any


def compiled(ffi: Any, name: str) -> CompiledStruct:
    """The layout of a struct in a module that cffi built, by its C name ("struct sim_answer")."""
    return _struct(ffi, ffi.typeof(name))


def _struct(ffi: Any, kind: Any) -> CompiledStruct:
    return {
        "names": [name for name, _ in kind.fields],
        "formats": [_format(ffi, field.type) for _, field in kind.fields],
        "offsets": [field.offset for _, field in kind.fields],
        "itemsize": ffi.sizeof(kind),
    }


def _format(ffi: Any, kind: Any) -> Any:
    """Numpy's format of a number, a struct or an array."""
    dims = []
    while kind.kind == "array":
        dims.append(kind.length)
        kind = kind.item
    plain = _struct(ffi, kind) if kind.kind == "struct" else f"{_letter(ffi, kind)}{ffi.sizeof(kind)}"
    return (plain, tuple(dims)) if dims else plain


def _letter(ffi: Any, kind: Any) -> str:
    if kind.kind == "pointer":
        return "u"
    if kind.cname in ("float", "double"):
        return "f"
    return "i" if int(ffi.cast(kind, -1)) < 0 else "u"


@dataclass(frozen=True, slots=True)
class RankConnections:
    """Connections of one rank: NCCL's ``useGdr`` (``direct``) and ``useNetPXN`` (``relayed``), and per channel the
    flags of the ring's connections to the next and from the previous rank.
    """

    direct: bool
    relayed: bool
    flags: tuple[tuple[int, int], ...]  # by channel


# The works that NCCL passes to a kernel, in the form in which the oracle and its child process exchange them.


@dataclass(frozen=True, slots=True)
class StructNumber:
    """A number inside a struct: its first bit, counted from the struct's start (little endian), and how many bits it
    has."""

    bit: int
    bits: int
    signed: bool

    def of(self, data: bytes) -> int:
        """Reads the number's value from the bytes of a struct."""
        first, last = self.bit // 8, (self.bit + self.bits + 7) // 8
        value = int.from_bytes(data[first:last], "little") >> self.bit % 8 & (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> self.bits - 1 else value


@dataclass(frozen=True, slots=True)
class WorkLayout:
    """A struct's size in bytes, its numbers by dotted path, and the offsets of nested structs, in bytes.

    Members of unnamed structs and unions appear as members of the struct itself. Arrays are left out.
    """

    size_bytes: int
    numbers: dict[str, StructNumber]
    structs: dict[str, int]

    def read(self, data: bytes) -> dict[str, int]:
        """The values of all numbers of a struct, read from its bytes."""
        return {path: number.of(data) for path, number in self.numbers.items()}


SYMMETRIC = ("ncclSymkDevKernel_", "ncclSymDevKernel_")


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of one libnccl that the oracle needs: addresses of its functions, and layouts of its structs."""

    functions: dict[str, list[tuple[int, int]]]  # address and size of every copy, by plain name and by symbol
    kernels: dict[int, str]  # name of a kernel by the address of its host symbol
    # An exported function and its address in the file; subtracted from the loaded address, it gives where the library
    # lies
    anchor: tuple[str, int]
    comm: StructLayout
    graph: StructLayout
    system: StructLayout  # struct ncclTopoSystem
    operation: StructLayout  # struct ncclProxyOp
    channel: StructLayout
    peer: StructLayout  # struct ncclChannelPeer
    connector: StructLayout
    patterns: dict[str, str]  # names of ncclPattern_t by value as text
    works: dict[str, WorkLayout]  # layouts of work structures, for those that the release has
    enumerations: dict[str, dict[str, int]]  # values by name, for each enumeration
    objects: dict[str, int]  # address of netTransport

    @property
    def cuda(self) -> int:
        """The major version of the CUDA runtime inside the library. CUDA 13 calls ``cudaGetDeviceProperties`` what CUDA
        12 calls ``cudaGetDeviceProperties_v2``."""
        return 12 if "cudaGetDeviceProperties_v2" in self.functions else 13

    @property
    def shape(self) -> tuple[int, int]:
        """How many algorithms and protocols the release has: the size of a table with a number for each pair."""
        members = self.comm.members
        algorithms, protocols = members["maxThreads" if "maxThreads" in members else "tuningContext.maxThreads"].dims
        return algorithms, protocols

    @property
    def works_are_in_ring(self) -> bool:
        """Whether works have one size and are in a ring, as in releases up to 2.21."""
        return "ncclWorkElemP2p" in self.works

    @property
    def notes_adapters(self) -> bool:
        """Whether a communicator notes how its ranks reach adapters; up to 2.23, nothing depends on that."""
        return "useGdr" in self.comm.members


@dataclass(frozen=True, slots=True)
class Batch:
    """Works of one type that a block does together; ``type`` is NCCL's name without "ncclDevWorkType" or
    "ncclWorkType".

    ``works`` are the values of the work structures by name. In releases up to 2.21, each also has "place", the index of
    the work element in its ``struct ncclWork``. ``extends`` says that the block does the next batch together with this
    one.
    """

    type: str
    function: int  # NCCL's number of the device function
    extends: bool
    works: tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class SymmetricWorks:
    """Works of a symmetric kernel: their values by name, and per block where its part ends (2.27 has no such ends)."""

    works: tuple[dict[str, int], ...]
    ends: tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class KernelWorks:
    """The batches of one kernel, keyed by channel, in the order in which the channel's block does them."""

    channels: Mapping[int, tuple[Batch, ...]]
    symmetric: SymmetricWorks | None = None  # set for a symmetric kernel, whose blocks have no batches


# Variables that launchers set
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a libnccl. They are thousands, packed into a few objects so that sending them is fast."""

    names: str  # one a line
    copies: "array[int]"  # number of copies of each
    places: "array[int]"  # address and size in bytes of each copy of each function

    def by_name(self) -> dict[str, list[tuple[int, int]]]:
        """The address and size in bytes of every copy of each function, by the function's name."""
        places = zip(*[iter(self.places)] * 2, strict=True)
        return {
            name: list(islice(places, count)) for name, count in zip(self.names.split("\n"), self.copies, strict=True)
        }


@dataclass(frozen=True, slots=True)
class GpuMessage:
    """A GPU as the simulated driver shows it: ``struct sim_gpu``."""

    bus_id: str
    compute_capability: int  # 90 for 9.0
    peer_group: int  # GPUs of one group reach each other's memory over PCIe
    nvlinks: tuple[str, ...] = ()  # bus ids of the devices to which NVLinks lead, if the topology does not say them


@dataclass(frozen=True, slots=True)
class NetMessage:
    """A network device as the simulated network shows it: ``struct sim_net``."""

    name: str
    guid: int
    speed_mbps: int
    port: int
    max_comms: int
    gdr: int  # 1 if it can read and write GPU memory
    latency_us: float
    pci_path: str = ""  # below sysfs; empty if the topology names the device


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """One kind of host: ``struct sim_host``."""

    gpus_per_host: int
    ranks_per_host: int
    nets_per_host: int
    multicast: int
    coll_nets: int
    merges_nets: int
    sysfs: str
    gpu_of_rank: tuple[int, ...]
    gpus: tuple[GpuMessage, ...]
    nets: tuple[NetMessage, ...]
    topology: str


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """``struct sim_machine``."""

    hosts: int
    kinds: int
    driver_version: int
    ranks_per_process: int
    net_name: str
    kind_of_host: tuple[int, ...]
    domain_of_host: tuple[int, ...]  # NVLink domains are numbered from 1; 0 for none
    without_fabric: tuple[int, ...]  # by rank: 1 if it is not in the fabric of its domain yet
    kind: tuple[SimulatedHost, ...]


@dataclass(frozen=True, slots=True)
class Intercepted:
    """What to intercept for this communicator, in addition to what is intercepted for every communicator."""

    topology_files: bool  # hosts read different topologies
    systems: bool  # ranks of several hosts make one system
    networks: bool  # only some hosts merge adapters
    named_paths: int  # bits of the path types for which the file of graphs has a word


@dataclass(frozen=True, slots=True)
class Part:
    """A communicator of a part of the ranks."""

    ranks: tuple[int, ...]
    by_shrinking: bool
    shares: bool


@dataclass(frozen=True, slots=True)
class Start:
    """The first request: load libnccl and initialise all ranks."""

    library: str
    log: str
    functions: Functions  # all of the library's
    symbols: Symbols  # without the functions
    wrapped_plugin: str | None
    intercepted: Intercepted
    ranks: int
    machine: SimulatedMachine
    part: Part | None = None
    # For the wrapped plugin: seconds by which clocks are ahead, and whether it seems to run on another host
    disguise: tuple[int, bool] | None = None
    configuration: tuple[tuple[str, int | str], ...] = ()  # fields of ncclConfig_t

    def whole_symbols(self) -> Symbols:
        """The symbols together with the functions, which the message carries separately."""
        return replace(self.symbols, functions=self.functions.by_name())


@dataclass(frozen=True, slots=True)
class Started:
    """The answer to a start, which the parent needs before other requests: layouts of records, and values in NCCL's own
    memory."""

    version: int  # NCCL's version, as NCCL encodes it
    base: int  # the address at which libnccl was loaded
    answer: CompiledStruct  # struct sim_answer
    kernel: CompiledStruct
    operation: CompiledStruct
    question: CompiledStruct
    buffer_bytes: tuple[int, ...]  # the largest buffer of each kind
    comm: Scalars  # from struct ncclComm of rank 0
    last_comm: Scalars  # the same for the last rank
    graphs: tuple[Scalars, ...]  # struct ncclTopoGraph, by algorithm
    plugin_used: bool
    plugin_interface: int  # the interface by which the wrapped plugin is asked; 0 without one


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Asks for another communicator of the same ranks, after setting these variables (None: unset)."""

    variables: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class CallMessage:
    """One call: ``struct sim_call``."""

    collective: int
    type: int
    op: int
    count: int
    root: int = 0
    in_place: int = 0
    configuration: tuple[tuple[str, int | str], ...] = ()  # fields of ncclCollConfig_t


@dataclass(frozen=True, slots=True)
class RegistrationMessage:
    """Registration of the buffers with NCCL: ``struct sim_registration``."""

    kind: int = 0  # a number of tuner.base.names.Buffers
    sides: int = 3  # a number of tuner.base.names.Sides
    flags: int = 0  # a number of tuner.base.names.WindowFlag


@dataclass(frozen=True, slots=True)
class CallsMessage:
    """Asks for calls on rank 0, one after the other."""

    calls: tuple[CallMessage, ...]
    buffers: RegistrationMessage
    simulated: bool = False  # ask only for the time
    captured: bool = False  # each call is captured in its own CUDA graph


@dataclass(frozen=True, slots=True)
class Answers:
    """``records`` holds ``succeeded`` structs ``sim_answer``; NCCL's log of these calls begins at ``log_start``."""

    log_start: int
    records: bytes
    succeeded: int
    error: str | None


@dataclass(frozen=True, slots=True)
class GroupMessage:
    """Asks for calls of one rank in one group."""

    calls: tuple[CallMessage, ...]
    peers: frozenset[int] = frozenset()  # ranks to which data is sent or from which it is received
    in_full: bool = False  # also read all works, and keep the operations of the network completely
    rank: int = 0  # the rank that makes the calls
    buffers: RegistrationMessage = RegistrationMessage()
    captured: bool = False  # the group is captured into a CUDA graph


@dataclass(frozen=True, slots=True)
class GroupAnswerMessage:
    """Arrays of ``struct sim_kernel``, ``sim_operation`` and ``sim_question``, and the extent of NCCL's log."""

    log_start: int
    log_end: int
    kernels: bytes
    operations: bytes
    questions: bytes
    works: tuple[KernelWorks, ...]  # by kernel
    proxy_operations: bytes  # successive structs ncclProxyOp
    error: str | None


@dataclass(frozen=True, slots=True)
class SetTable:
    """Gives the forcing plugin another table, or none: NCCL's own choices."""

    text: str | None


class Read(Enum):
    """Asks for something that has no parameters."""

    counts = "the forcing plugin's counts, as for SetTable: the bytes of a struct nccl_tuner_seen"
    channels = "the channels of all ranks, read from NCCL's memory, and the adapters that NCCL uses: a ChannelsMessage"
    connections = "what NCCL recorded about every rank's connections: a RankConnections for each rank"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Channels and adapters of one rank, from its ``struct ncclComm``."""

    channels: tuple[Scalars, ...]  # the channels of rings or those of NVLS, whichever are more
    adapters: Mapping[str, tuple[tuple[int, int] | None, ...]]  # network device and relaying rank, by graph and channel
    # For each peer, bits of the channels to send on, and of those to receive on
    pat_channels: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ChannelsMessage:
    """Channels of all ranks; ``comms`` are the scalars of each rank's ``struct ncclComm``."""

    node_of_rank: tuple[int, ...]  # according to rank 0
    ranks: tuple[RankMemory, ...]
    comms: tuple[Scalars, ...]


@dataclass(frozen=True, slots=True)
class RankBill:
    """Memory that libnccl holds for a rank, on the device and pinned on the host (``struct sim_bill``)."""

    device_bytes: int
    peak_device_bytes: int
    host_bytes: int
    counted_bytes: int | None  # device memory in NCCL's own count; None in releases that do not count it
    blocks: int  # blocks of the call's kernel; 0 before the first call


# Groups are made one after the other, up to the first one that fails. Connections and bills are those of every rank.
Groups = tuple[GroupMessage, ...]
Request = Start | StartAgain | CallsMessage | GroupMessage | Groups | SetTable | Read
Connections = tuple[RankConnections, ...]
GroupAnswers = tuple[GroupAnswerMessage, ...]
Reply = Started | Answers | GroupAnswerMessage | GroupAnswers | bytes | ChannelsMessage | tuple[RankBill, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Sent instead of an answer; ``returned``: whether a function of NCCL returned an error."""

    reason: str
    returned: bool = False
