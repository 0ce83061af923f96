"""Messages between the oracle and its child process. The child imports this module first, so the module itself imports
little.

Fields of :class:`GpuMessage`, :class:`NetMessage`, :class:`SimulatedHost` and :class:`SimulatedMachine` have the names
of the members in csrc/sim; so do the fields for ``struct sim_call`` and ``struct sim_operation_layout``.
"""

from array import array
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct as the compiler laid it out: a number, an array of numbers, or a struct."""

    name: str
    offset: int
    kind: "str | Struct"  # numpy's kind and number of bytes, such as "f4"
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct as the compiler laid it out, with its own size."""

    bytes: int
    fields: tuple[Field, ...]


def compiled(ffi: Any, name: str) -> Struct:
    """The layout of a struct in a module that cffi built, by its C name ("struct sim_answer")."""
    return _struct(ffi, ffi.typeof(name))


def _struct(ffi: Any, kind: Any) -> Struct:
    return Struct(ffi.sizeof(kind), tuple(_field(ffi, name, field) for name, field in kind.fields))


def _field(ffi: Any, name: str, field: Any) -> Field:
    kind, dims = field.type, []
    while kind.kind == "array":
        dims.append(kind.length)
        kind = kind.item
    if kind.kind == "struct":
        return Field(name, field.offset, _struct(ffi, kind), tuple(dims))
    return Field(name, field.offset, f"{_letter(ffi, kind)}{ffi.sizeof(kind)}", tuple(dims))


def _letter(ffi: Any, kind: Any) -> str:
    if kind.kind == "pointer":
        return "u"
    if kind.cname in ("float", "double"):
        return "f"
    return "i" if int(ffi.cast(kind, -1)) < 0 else "u"


# Messages about connections.


@dataclass(frozen=True, slots=True)
class AdapterOffsets:
    """Offsets in NCCL's structs and library that are needed to mark connections over adapters."""

    use_gdr: int
    use_net_pxn: int
    topology: int
    graphs: int
    adapter_of: int
    check: int
    # For each algorithm, the members of channels that have the parent and the children of a rank
    trees: Mapping[int, tuple[Member, Member]]


@dataclass(frozen=True, slots=True)
class RingOffsets:
    """Offsets of a channel's neighbours in the ring, and of the flags of the connections to these."""

    adapters: AdapterOffsets | None  # None up to 2.23, in which nothing depends on adapters
    channels: int
    channel_bytes: int
    prev: int
    next: int
    peers: int
    send: int
    receive: int
    flags: int


@dataclass(frozen=True, slots=True)
class ReadConnections:
    """Asks what NCCL recorded about every rank's connections."""

    ring: RingOffsets
    channels: int  # offset of a communicator's number of channels


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


@dataclass(frozen=True, slots=True)
class WorkStructs:
    """The layouts of NCCL's work structures, and the values of their enumerations, by name.

    ``in_ring``: works have one size and are in a ring (releases up to 2.21). ``first_element`` is the offset of their
    first element in bytes, by type of work. ``without`` are the addresses in the library of symmetric kernels, whose
    works have another layout.
    """

    layouts: Mapping[str, WorkLayout]
    enumerations: Mapping[str, Mapping[str, int]]
    in_ring: bool
    first_element: Mapping[str, int]
    without: frozenset[int]


@dataclass(frozen=True, slots=True)
class PeerOffsets:
    """Functions by which NCCL's transports say whether ranks can reach each other, and what the transports set in a
    connection."""

    without_network: tuple[int, ...]  # functions of transports, in their order, that say whether ranks reach each other
    asks_communicator: bool  # these functions get the communicator, not its topology
    info_bytes: int  # size of struct ncclPeerInfo
    network_send: int  # what connections of the network's transport point to
    network_receive: int
    connector_bytes: int
    transport: int  # offsets in a connection
    buffers: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Works of one type that a block does together; ``type`` is NCCL's name without "ncclDevWorkType" or
    "ncclWorkType".

    ``works`` are the values of the work structures by name; in releases up to 2.21, "place" is the element's place in
    its work. ``extends``: the block does the next batch together with this one.
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

Copies = tuple[tuple[int, int], ...]  # address and size in bytes of every copy of a function


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a libnccl, thousands, of which a start looks up some: few objects, which are sent quickly."""

    names: str  # one a line
    copies: "array[int]"  # number of copies of each
    places: "array[int]"  # address and size in bytes of each copy of each function

    def by_name(self) -> dict[str, Copies]:
        """Every copy of each function."""
        places = zip(*[iter(self.places)] * 2, strict=True)
        return {
            name: tuple(islice(places, count)) for name, count in zip(self.names.split("\n"), self.copies, strict=True)
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
    """Functions to intercept in order to observe what the release does not report, as offsets in the library."""

    topology_file: int | None
    operations: Mapping[str, int]  # members of struct sim_operation_layout
    search: tuple[int, int]  # the function that searches graphs, and where a system counts its GPUs
    graph_file: tuple[int, int]  # the function that writes graphs, and bits for the path types for which it has a word
    # Members of struct sim_system_functions, if ranks of several hosts make one system
    systems: Mapping[str, int] | None
    # The function that makes a rank's system, and where the rank has its network; set if some hosts merge
    networks: tuple[int, int] | None
    graphs: tuple[int, int] | None  # the function that makes the model of graphs, and the number of graphs
    # The function that computes the time of a cell; numbers of algorithms and protocols; whether it says which times
    # are backups
    times: tuple[int, int, int, bool] | None


@dataclass(frozen=True, slots=True)
class PartOffsets:
    """A communicator of a part of the ranks, and the offsets of what replaces NCCL's sockets."""

    ranks: tuple[int, ...]
    by_shrinking: bool
    shares: bool
    bootstrap: int  # where struct ncclComm has the functions of the bootstrap
    whole_ranks: int
    proxy: int
    init_proxy: int  # a function of libnccl
    with_uds: bool  # it also takes addresses of Unix domain sockets, from 2.21 on


@dataclass(frozen=True, slots=True)
class Start:
    """The first request: load libnccl and initialise all ranks."""

    library: str
    log: str
    anchor: tuple[str, int]
    functions: Functions
    cuda: int  # major version of the CUDA runtime inside the library
    wrapped_plugin: str | None
    intercepted: Intercepted
    ranks: int
    machine: SimulatedMachine
    comm: StructLayout
    graph: StructLayout
    ring: RingOffsets
    works: WorkStructs
    operation_bytes: int  # size of struct ncclProxyOp
    peers: PeerOffsets
    part: PartOffsets | None = None
    # For the wrapped plugin: seconds by which clocks are ahead, and whether it seems to run on another host
    disguise: tuple[int, bool] | None = None
    configuration: tuple[tuple[str, int | str], ...] = ()  # fields of ncclConfig_t


@dataclass(frozen=True, slots=True)
class Started:
    """The answer to a start, which the parent needs before other requests: layouts of records, and values in NCCL's own
    memory."""

    version: int  # NCCL's version, as NCCL encodes it
    base: int  # the address at which libnccl was loaded
    answer: Struct  # struct sim_answer
    kernel: Struct
    operation: Struct
    question: Struct
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


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Asks the forcing plugin for its counts; the answer is a :class:`SeenMessage`, as for :class:`SetTable`."""


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """``struct nccl_tuner_seen``."""

    calls: int
    decided: int
    unavailable: int
    bytes: int
    collective: int
    costs_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ReadChannels:
    """Asks for the channels of all ranks, read from NCCL's memory, and for the adapters that NCCL uses."""

    members: Mapping[str, Member]  # members of struct ncclChannel
    adapter_of: int  # the function that says by which adapter a rank leaves its node
    gives_id: bool  # whether that function also returns the adapter's id
    graphs: Mapping[str, int]  # addresses of the graphs whose adapters are asked for, by algorithm
    head: str  # the member that is -1 for ranks without an adapter of NVLS
    connect_pat: int | None  # the function that notes whom PAT connects; None if the release has no PAT


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
Request = Start | StartAgain | CallsMessage | GroupMessage | Groups | SetTable | ReadCounts | ReadChannels
Connections = tuple[RankConnections, ...]
GroupAnswers = tuple[GroupAnswerMessage, ...]
Reply = Started | Answers | GroupAnswerMessage | GroupAnswers | SeenMessage | ChannelsMessage | tuple[RankBill, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Sent instead of an answer; ``returned``: whether a function of NCCL returned an error."""

    reason: str
    returned: bool = False
