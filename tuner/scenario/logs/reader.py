"""Converts NCCL's lines to records: what each rank printed while it made a communicator, and the choices printed later.

Every line is read by itself and belongs to the communicator that its thread was making, so lines of ranks and hosts may
come in any order. Sources are named at the expressions. If releases print a line differently, all forms are read.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import NamedTuple

from tuner.base.dataclass import dataclass
from tuner.base.expressions import expression
from tuner.base.names import Algorithm, Collective
from tuner.scenario.logs import choice, endings
from tuner.scenario.logs.endings import EndingLine
from tuner.scenario.logs.lines import (
    COMPLETION,
    LAST_ERROR,
    OF_RESULTS,
    TYPES,
    UNKNOWN,
    Lines,
    PrintedLine,
    Thread,
    of_rank,
)
from tuner.scenario.logs.thinned import Sort

# src/init.cc, initTransportsRank and ncclCommInitRankFunc
_RANK = expression(r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+)")
_NODES = expression(r"nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d+)")
# src/init.cc, fillInfo; src/mnnvl.cc and before 2.25 src/init.cc, ncclMnnvlCheck
_FABRIC = expression(
    r"MNNVL busId 0x[0-9a-f]+ fabric UUID (\S+) cliqueId 0x([0-9a-f]+) state(?: (\d+))?(?: healthMask 0x([0-9a-f]+))?"
)
_CLIQUE = expression(r"MNNVL 1 cliqueId [0-9a-f]+ cliqueSize (\d+) cliqueRank ")
_COMM_ID = expression(r"commId (0x[0-9a-f]+)")
_SPLIT = expression(r"(splitCount \d+ color -?\d+) key")
_CHANNELS = expression(r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?\d+ p2p channels")
_NETWORK = expression(r"Using network (.+?)\s*$")
_VERSION = expression(r"NCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d+)\.(\d+))?")
_NO_SYMBOL = expression(r"dlv?sym failed on (\w+) - (\S*lib\w+\.so\S*?):")  # src/misc/mlx5dvsymbols.cc
MOST_SYMBOLS = 3
_RCCL = expression(r"RCCL version (?:: )?(\S+)")  # AMD's
# Lines that only RCCL prints, in case the line with its version is missing
_OF_RCCL = expression(r"\bRCCL |librccl|\[RINGS\]")
# PyTorch, torch/csrc/distributed/c10d: ProcessGroupNCCL.cpp, and NCCLUtils.cpp with ncclGetLastError
_TIMED_OUT = expression(
    r"[Rr]ank ?(\d+)\].*(?:Watchdog c|C)aught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, NumelIn=(\d+), NumelOut=(\d+))?"
)
_AT_WORK = expression(r"[Rr]ank ?(\d+)\].* work(?: sequence id)?: (\d+),? (?:PG status: )?last enqueued (?:NCCL )?work")
# NCCL's last error, in case a launcher or a person joined the lines or left out the one that announces it.
_ERROR_INSIDE = expression(
    r"Last error: +(?P<error>\S.*?)(?: {3}| Exception raised|$)"
    r"|log entry \(may be unrelated\) '(?P<entry>.+?)'\.?(?:;|\s|$)"  # XLA
)
_OF_CHILD = expression(r"exitcode|traceback : Signal")  # lines of torchrun's report
_CHILD = expression(
    r"(?:(?:^|\s)(host|rank)\s{2,}|^(host|rank) ): (\S+)"
)  # torch/distributed/elastic/multiprocessing/errors
_PROCESS_GROUP = expression(r"\[PG (?:ID )?(\S+)(?: PG GUID ([^\]]+))? Rank \d+\]")  # the GUID is the same on all ranks
# src/graph/search.cc, ncclTopoPrintGraph; "speed" up to 2.17
_PATTERN = expression(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), type (\w+)/(\w+), "
    r"sameChannels ([01])(?!\S)"
)
_CHANNEL = expression(r"^ *\d+ :((?: [A-Z]+/[0-9A-Fa-f-]+)+)\s*$")
# src/graph/topo.cc, ncclTopoPrintRec
_CPU = expression(r"^CPU/(?:([0-9A-Fa-f]+)-)?[0-9A-Fa-f]+ \((-?\d+)/(-?\d+)/-?\d+\)\s*$")
# src/graph/tuning.cc, ncclTopoTuneModel; src/tuning/tuning.cc from 2.31 on
_HEADER = expression(r"^\s*Algorithm\s+\|(.*)")
_THREADS = expression(r"^\s*Max NThreads\s+\|(.*)")
_ROW = expression(rf"^\s*({'|'.join(c.name for c in Collective)})\s+\|(.*)")
_CELL = expression(r"\s*([^\s/|]+)/\s*([^\s/|]+)\s*\|")
_THRESHOLDS = expression(r"threadThresholds (-?\d+)/(-?\d+)/(-?\d+) \| (-?\d+)/(-?\d+)/(-?\d+) \| (-?\d+) \| (-?\d+)")
# src/misc/param.cc and many others; integers end with a full stop
_VARIABLE = expression(r"(NCCL_\w+) set (?:by environment )?to (.*?)\s*$")
# src/transport/net_ib.cc, ncclIbInit; src/transport/nvls.cc, ncclNvlsInit; aws-ofi-nccl, src/platform-aws.c
_ADAPTERS = expression(r"NET/IB : Using ((?:\[\d+\]\S+ ?)+)")
_INTERFACES = expression(r"NET/Socket : Using ((?:\[\d+\][^\s:]+:\S+ ?)+)")  # src/transport/net_socket.cc
_SPEED = expression(r"NET/IB ?: \[\d+\] ?([^:\s]+):\S+ .*\bspeed=(\d+)")
_AWS_RELEASE = expression(r"NET/OFI Initializing aws-ofi-nccl v?(\d+\.\d+\.\d+)")
_TUNER_PRODUCT = expression(r"Tuner is chosen for platform: (\S+)")
_INSTANCE = expression(r"NET/OFI Running on (?:an? )?([a-z]\w*\.\w+)")
_MULTICAST = expression(r"NVLS multicast support is (not )?available on dev")
_DEVICE_NUMBER = expression(r" cudaDev (\d+)\b")
_BUS_ID = expression(r" busId ([0-9a-f]+)\b")
_PCI = expression(r"\+ PCI\[(\d+(?:\.\d+)?)\] - PCI/")
_GPU = expression(r"\+ PCI\[[\d.]+\] - GPU/(\S+) \(")
_NVLINK = expression(r"\+ NVL\[[\d.]+\] - GPU/(\S+)")
# src/transport/p2p.cc, shm.cc, net.cc: a connection and its way; src/graph/connect.cc: the ring of a channel
_VIA = expression(r"Channel \d+(?:/\d+)? : (\d+)\[\S+\] -> \d+\[\S+\] (?:\[(send|receive)\] )?via (NET/.+?/\d\S*|\S+)")
_RING = expression(r"^Channel (\d+)/(\d+) :((?:\s+\d+)+)\s*$")
# src/init.cc, for one rank, up to where the line is cut
_TREES = expression(r"^Trees((?: \[\d+\] \S+->\d+->[-\d/]+)+)")
_TREE = expression(r"\[(\d+)\] ([-\d/]+)->(\d+)->(-?\d+)")  # up to 2.7 with its way down after a bar
_NVLS_HEAD = expression(r"^NVLS Head +(\d+):((?: +\d+)+)\s*$")  # src/graph/connect.cc, up to 20 nodes
_FALLBACK = expression(r"Could not find a path for pattern (\d+), falling back to simple order")  # src/graph/search.cc
_P2P = expression(r"(?:intraNodeP2pSupport|isAllDirectP2p) ([01])")  # src/init.cc; the second from 2.27 on
# src/plugin/tuner.cc and before src/misc/tuner.cc: the plugin that NCCL found, and the file that a variable names
_TUNER = expression(r"TUNER/Plugin: (?:Using tuner plugin|Using) (?!internal)(\S.*?)\s*$")
_TUNER_FILE = expression(r"TUNER/Plugin: Plugin name set by env to (\S+)|NCCL_TUNER_PLUGIN set by environment to (\S+)")
# src/misc/ibvwrap.cc and src/transport/net_ib.cc: why there is no InfiniBand
_NO_IB = expression(r"(Failed to open libibverbs\S*|NET/IB : No device found|No device found)")
_FAULTS = {
    "Failed": "libibverbs is not there ({}): install it, in the container, too (rdma-core, libibverbs1)",
    "NET/IB": "NCCL found no device: none is up, or the container has no /dev/infiniband",
}
_NO_GDR = expression(r"GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([^']+)'(?: \((.+?)\))?")  # src/transport/net.cc
# src/graph/paths.cc, ncclTopoCheckGdr: numbers of path types; the second is that of NCCL_NET_GDR_LEVEL
_FAR = expression(r"GPU Direct RDMA Disabled for GPU \S+ / HCA \S+ \(distance (\d+) >=? (\d+)\)")
_RETURNED = expression(r"^(\S+\.(?:cc|c|h|cu):\d+) -> ([1-6])\b")  # src/include/checks.h, NCCLCHECK and those like it
_CONFIG = expression(r"Comm config ([\w ]+?) set to (\S+)")  # src/init.cc
_DIAGNOSTIC = expression(r"NCCL DIAG \[(\w+)\]\s+([A-Za-z][\w/ ]*?)(?: check)?: (.*?)\s*$")
MOST_DIAGNOSTICS = 10_000
_ADDED = expression(r"NET/OFI Adding (NCCL_\w+)=(\S+) to environment")
_STEPPED_BACK = expression(r"NCCL_OFI_TUNER is not available|OFI_TUNER.*[Ff]all(ing)? ?back")
_DMABUF = expression(r"DMA-BUF is available on GPU device")
_GDR_OFF = expression(r"NET/\S+ (.*disabling GDR.*|Need to force simple protocol: GDR not supported)")
# src/plugin: a library that was named but does not exist, or contains no plugin of that kind
_NO_PLUGIN = expression(
    r"\b(NET|TUNER|PROFILER)/Plugin: (?:"
    r"No plugin found(?: \((?P<named>[^)]*)\))?|Could not find: ?(?P<names>.+?)\s*$"
    r"|(?P<symbol>[Ff]ailed to find (?!ncclCollNet)\S+(?: symbol)?.*(?:using internal|not supported).*))"
)
# src/enqueue.cc, ncclEnqueueCheck
_CALL = expression(
    r"\b(\w+): opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count (\d+) datatype (\d+) op (\d+) root -?\d+ "
    r"comm (0x[0-9a-f]+) \[nranks=(\d+)\]"
)
_SYMMETRIC = expression(r"\b(\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+)")
# nccl-tests, src/common.cu
_DEVICE = expression(r"#\s+Rank\s+(\d+)\s(?:.*\bPid\s+(\d+))?(?:.*\bon\s+(\S+))?.*\bdevice\s+\d+ \[(\S+)\] (.+?)\s*$")
MOST_DEVICES = 100_000

_RESULTS = expression(r"^#\s+(?:size\s+count\s+type\b|out-of-place\s+in-place\b)")
_RESULT_ROW = expression(rf"^\s+\d+\s+\d+\s+(?:{TYPES})\s+\w+\s+-?\d")

# Algorithms of a block of the table whose header is missing: three per block, in NCCL's order.
ALGORITHMS_PER_BLOCK = 3


TreePlace = tuple[int | None, tuple[int, ...]]  # the parent and the children of a rank


@dataclass(frozen=True, slots=True)
class PrintedGraph:
    """A graph, as a ``Pattern`` line prints it."""

    pattern: int
    cross_nic: int
    channels: int
    bw_intra: str
    bw_inter: str
    type_intra: str
    type_inter: str
    same_channels: bool


@dataclass(slots=True)
class Block:
    """Some columns of the tuning table: the printed texts of complete cells."""

    algorithms: list[str] | None  # None if the line with their names is missing
    threads: list[str] = field(default_factory=list)
    rows: dict[Collective, list[tuple[str, str]]] = field(default_factory=dict)

    def names(self, index: int) -> list[str]:
        """The names of the block's algorithms. For a block without names, these are the ones that NCCL prints in block
        number ``index``."""
        first = index * ALGORITHMS_PER_BLOCK
        return self.algorithms or [a.name for a in list(Algorithm)[first : first + ALGORITHMS_PER_BLOCK]]


@dataclass(slots=True)
class RankLog:
    """The facts that one rank printed while it made one communicator; None for what it did not print."""

    thread: Thread
    comm: str | None = None
    group: str | None = None  # the same for all ranks of a communicator: its commId, or the number of the split
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None  # number of ranks of its node
    local_rank: int | None = None
    mnnvl: bool = False
    fabric: tuple[str, str] | None = None  # cluster and clique of its GPU, whether or not NCCL uses them
    fabric_state: int | None = None  # nvmlGpuFabricState_t
    fabric_health: int | None = None  # nvmlGpuFabricInfoV_t.healthMask
    fabric_line: int = 0
    clique_ranks: int | None = None  # number of ranks that NVLink joins with it
    graphs: list[PrintedGraph] = field(default_factory=list)
    ring_gpus: int | None = None
    ring_has_adapters: bool | None = None  # whether its ring uses adapters, and so reaches other nodes
    cpus: list[tuple[int, int]] = field(default_factory=list)  # architecture and vendor
    hosts: set[str] = field(default_factory=set)  # hosts of its node, by the numbers that CPUs have
    system: bool = False
    max_gbs: float | None = None  # the most bandwidth from a GPU of the system to another GPU or an adapter
    bridge_gbs: float | None = None  # bandwidth of its slowest PCI switch or bridge
    nvswitch: bool = False
    nvswitch_gbs: float | None = None  # bandwidth of a GPU's NVLinks to NVSwitches
    device: int | None = None  # number of its GPU in the process
    bus_id: int | None = None  # bus id of its GPU, packed into a number as NCCL does
    line: int = 0  # number of the first line that has its rank
    gpu: str | None = None  # the last GPU of its node that the system lists
    # For each GPU of its node, the GPUs to which NVLinks lead
    linked: dict[str, set[str]] = field(default_factory=dict)
    table: list[Block] = field(default_factory=list)
    thresholds: tuple[str, ...] | None = None
    channels: tuple[str, str | None] | None = None  # channels for collectives and for NVLS
    collnet_channels: int | None = None
    channels_line: int = 0
    config: dict[str, str] = field(default_factory=dict)
    fallback_patterns: list[int] = field(default_factory=list)  # patterns of graphs that the search did not find
    started: bool = False  # whether the log has the line that begins the creation of its communicator
    complete: bool = False

    @property
    def node_ranks(self) -> int | None:
        """Number of ranks on the rank's node; None if no line says it."""
        return self.local_ranks or self.clique_ranks or self.ring_gpus


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call of a collective, as the COLL subsystem prints it."""

    collective: str
    count: int
    dtype: int
    op: int
    comm: str
    ranks: int


class TimedOut(NamedTuple):
    """A collective for which PyTorch's watchdog timed out. Numbers of elements are None if they are not printed."""

    number: int  # number of the call in its process group
    collective: str
    numel_in: int | None
    numel_out: int | None
    line: int


class LastCall(NamedTuple):
    """The last call that a thread began on a communicator; ``number`` is NCCL's number of the call."""

    number: int
    collective: str
    elements: int
    dtype: int
    line: int


class DeviceLine(NamedTuple):
    """A rank and its GPU in the list of nccl-tests; None for what older versions do not print."""

    rank: int
    pid: int | None
    host: str | None
    bus_id: str
    line: int


class DiagnosticLine(NamedTuple):
    """A result of NCCL's own diagnostics: which check, and whether it passed."""

    check: str
    text: str
    is_good: bool
    line: int


class ChoiceLine(NamedTuple):
    """A choice, the thread that printed it, and the calls of that thread since its previous choices.

    ``batch`` is the same for all choices that follow the same calls; 0 if no line shows calls.
    """

    thread: Thread
    printed: choice.PrintedChoice
    calls: tuple[LoggedCall, ...]
    batch: int = 0


@dataclass(slots=True)
class NcclLog:
    """Everything that was read from a log."""

    versions: dict[str, None] = field(default_factory=dict)  # in the order in which they appear
    releases_of: dict[tuple[str, int], set[str]] = field(
        default_factory=dict
    )  # releases by process, if the line has a prefix; two if a process has two libraries
    missing_symbols: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # by library, with the first line
    rccl: str | None = None  # version of AMD's library, if that wrote the log
    ranks: list[RankLog] = field(default_factory=list)
    # The number of times, in the order in which they appear
    calls: Counter[tuple[Thread, LoggedCall]] = field(default_factory=Counter)
    choices: list[ChoiceLine] = field(default_factory=list)
    symmetric: list[tuple[Thread, str]] = field(default_factory=list)
    environment: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)  # by process
    # The first line of each variable or setting of a program
    setting_lines: dict[str, int] = field(default_factory=dict)
    plugin_settings: dict[str, str] = field(default_factory=dict)  # variables that a network plugin sets itself
    networks: dict[tuple[str, int], str] = field(default_factory=dict)
    network_lines: dict[str, int] = field(default_factory=dict)  # by network
    adapters: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by host, those that NCCL's own network uses
    interfaces: dict[str, None] = field(default_factory=dict)  # IP interfaces that NCCL's sockets use
    speeds_mbps: dict[tuple[str, str], int] = field(default_factory=dict)  # by host and adapter
    instance: str | None = None  # a cloud's name for the machine, if a network plugin prints it
    multicast: set[bool] = field(default_factory=set)  # whether GPUs can run NVLS, as each rank says
    devices: dict[int, str] = field(default_factory=dict)  # GPU names by rank, from the list of nccl-tests
    device_lines: list[DeviceLine] = field(default_factory=list)
    cuda: tuple[int, int] | None = None  # CUDA version that the library was built for
    warnings: dict[str, PrintedLine] = field(default_factory=dict)  # the first line with each text, by the text
    timed_out: dict[int, TimedOut] = field(default_factory=dict)  # by rank
    # Process groups of the calls that timed out, by rank and number
    process_groups: dict[tuple[int, int], str] = field(default_factory=dict)
    diagnostics: list[DiagnosticLine] = field(default_factory=list)
    transports: dict[str, int] = field(default_factory=dict)  # number of connections of each kind
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by channel, as rank 0 prints them
    ring_channels: dict[Thread, int] = field(default_factory=dict)  # number of rings, by the thread that prints it
    trees: dict[int, dict[int, TreePlace]] = field(default_factory=dict)  # by channel and rank
    nvls_heads: dict[int, tuple[int, ...]] = field(default_factory=dict)  # for each head, its rank on each node
    adapters_of_ranks: dict[int, set[int]] = field(default_factory=dict)  # the adapters over which each rank sends
    p2p_support: bool | None = None  # inside a node
    tuner_plugins: dict[str, str] = field(
        default_factory=dict
    )  # plugins that NCCL uses, by name, with the file that a variable names
    tuner_file: str | None = None  # the file that a variable names, whether or not it contains a tuner
    stepped_back: int | None = None  # the line in which the tuner leaves the choice to NCCL
    no_plugin: dict[str, tuple[str, int]] = field(default_factory=dict)  # by kind: what NCCL prints, and the line
    dma_buf: bool = False  # adapters get access to GPU memory without nvidia-peermem
    gpudirect_off: str | None = None  # why a network plugin does not use GPUDirect RDMA
    aws_release: str | None = None  # release of aws-ofi-nccl
    tuner_product: str | None = None  # the product name on which its tuner depends
    network_faults: dict[str, str] = field(default_factory=dict)
    gpudirect: dict[str, str | None] = field(default_factory=dict)  # by adapter: None if it works, else why it does not
    # By host: whether connections have GPUDirect RDMA
    direct_of_hosts: dict[str, set[bool]] = field(default_factory=dict)
    far_adapters: str | None = None  # how far an adapter is from its GPU, and how far it may be for GPUDirect RDMA
    destroyed: set[tuple[tuple[str, int], str]] = field(default_factory=set)  # communicators by process
    last_calls: dict[tuple[Thread, str], LastCall] = field(default_factory=dict)  # by thread and communicator
    last_line: int = 0  # number of NCCL's last line
    result_rows: int | None = None  # rows of nccl-tests; None if it printed no header of its table
    # Number of the first line and name of each file, if several were read as one
    files: tuple[tuple[int, str], ...] = ()
    endings: list[EndingLine] = field(default_factory=list)  # how processes and jobs ended
    returned: tuple[str, int] | None = None  # where one of NCCL's own calls failed first, and its ncclResult_t

    def place(self, line: int) -> str:
        """Where a line is, as a text for messages."""
        first, file = max((each for each in self.files if each[0] <= line), default=(1, ""))
        return f"{file}:{line - first + 1}" if len(self.files) > 1 else f"line {line}"


def parse(lines: Iterable[PrintedLine]) -> NcclLog:
    """Converts a log's lines to records. Lines that are cut or say nothing of interest are skipped."""
    reader = _Reader()
    for line in lines:
        reader.read(line)
    if isinstance(lines, Lines):
        reader.log.files = lines.files
    return reader.log


def sort_of(line: PrintedLine) -> Sort:
    """Decides for all lines of the same shape as ``line`` which are kept when a log is read for findings."""
    if line.warns:
        return Sort.EACH
    text = line.text
    if line.thread is UNKNOWN and OF_RESULTS.search(text):
        return Sort.EACH
    method = next((method for part, pattern, method in _METHODS if part in text and pattern.search(text)), None)
    if method in (_Reader.call, _Reader.choice, _Reader.symmetric):
        return Sort.REPEATS
    if method is not None or line.thread is not UNKNOWN:
        return Sort.EACH if method is not None else Sort.NOTHING
    return Sort.REPEATS if endings.may_tell(text) else Sort.NOTHING


class _Reader:
    def __init__(self) -> None:
        self.log = NcclLog()
        self._making: dict[Thread, RankLog] = {}
        self._calls: dict[Thread, list[LoggedCall]] = {}
        self._chosen: set[Thread] = set()
        self._batches: dict[Thread, int] = {}
        self._alike: dict[tuple[str, ...], LoggedCall] = {}
        self._error_follows = False  # the error is in the next line, which does not have NCCL's prefix
        self._child = dict[str, str]()  # what was read so far of torchrun's report of a failed process
        self._first_child = False  # torchrun's report of the process that failed first comes next

    def read(self, line: PrintedLine) -> None:
        if self._error_follows and line.thread is UNKNOWN:
            self._error_follows = False
            if text := endings.unwrapped(line.text)[1].strip():
                self.warning(line._replace(text=text))
                return
        if line.thread is not UNKNOWN:
            self.log.last_line = line.number
        if line.warns:
            self.warning(line)
            return
        if line.thread is UNKNOWN and (ending := endings.of_line(line.text, line.number)) is not None:
            self.log.endings.append(self._of_child(ending))
            if said := _ERROR_INSIDE.search(line.text):
                self.warning(line._replace(text=said["error"] or said["entry"]))
        for part, pattern, method in _METHODS:
            if part in line.text and (match := pattern.search(line.text)):
                method(self, line, match)
                return

    def _rank_log(self, line: PrintedLine, fresh: bool = False) -> RankLog:
        """The record of the communicator that the line's thread is making. A ``fresh`` line starts another record if
        the last one is complete."""
        current = self._making.get(line.thread)
        if current is None or (fresh and current.complete):
            current = self._making[line.thread] = RankLog(line.thread)
            self.log.ranks.append(current)
        return current

    def version(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.versions.setdefault(match[1])
        if line.thread is not UNKNOWN:
            self.log.releases_of.setdefault(line.thread.process, set()).add(match[1])
        if match[2] and self.log.cuda is None:
            self.log.cuda = int(match[2]), int(match[3])

    def missing_symbol(self, line: PrintedLine, match: re.Match[str]) -> None:
        _, symbols = self.log.missing_symbols.setdefault(match[2], (line.number, []))
        if match[1] not in symbols and len(symbols) < MOST_SYMBOLS:
            symbols.append(match[1])

    def rccl(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.rccl = match[1]

    def of_rccl(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.rccl = self.log.rccl or "of an unknown release"

    def timed_out(self, line: PrintedLine, match: re.Match[str]) -> None:
        numel_in, numel_out = (int(match[4]), int(match[5])) if match[4] else (None, None)
        call = TimedOut(int(match[2]), match[3], numel_in, numel_out, line.number)
        self.log.timed_out.setdefault(int(match[1]), call)
        self.process_group(line, match)

    def process_group(self, line: PrintedLine, match: re.Match[str]) -> None:
        if group := _PROCESS_GROUP.search(line.text):
            self.log.process_groups.setdefault((int(match[1]), int(match[2])), group[2] or group[1])

    def unprefixed_warning(self, line: PrintedLine, match: re.Match[str]) -> None:
        if line.thread is UNKNOWN:
            self.warning(line._replace(text=match[0].strip()))

    def retried(self, line: PrintedLine, match: re.Match[str]) -> None:
        if match[1] == match[2]:  # NCCL prints the last try at INFO
            self.warning(line)

    def child(self, line: PrintedLine, match: re.Match[str]) -> None:
        what = match[1] or match[2]
        if what == "host":
            self._child.clear()
        self._child[what] = match[3]

    def _of_child(self, ending: EndingLine) -> EndingLine:
        """The ending, with the rank and host that torchrun's report gives for it."""
        if not self._child or not ending.text.startswith("exitcode"):
            return ending
        rank, host = self._child.get("rank", ""), self._child.get("host")
        self._child.clear()
        own = replace(ending, rank=int(rank) if rank.isdigit() else ending.rank, host=host or ending.host)
        if not self._first_child:
            return own
        self._first_child = False
        began = endings.CAUSE if own.role == endings.CAUSE else endings.OPENING
        self.log.endings[:] = [  # the others followed, because torchrun itself ends them, by SIGTERM and then SIGKILL
            replace(each, role=endings.ECHO)
            if each.role in (began, endings.OPENING) and _OF_CHILD.match(each.text)
            else each
            for each in self.log.endings
        ]
        return replace(own, role=began)

    def first_child(self, line: PrintedLine, match: re.Match[str]) -> None:
        self._first_child = True

    def last_error(self, line: PrintedLine, match: re.Match[str]) -> None:
        self._error_follows = True

    def rank(self, line: PrintedLine, match: re.Match[str]) -> None:
        if line.thread is UNKNOWN:
            self.log.last_line = line.number
            line = line._replace(thread=of_rank(int(match[2])))
        nodes = _NODES.search(line.text)
        starts, completes = "- Init START" in line.text, "- Init COMPLETE" in line.text
        if "- Destroy COMPLETE" in line.text or "- Abort COMPLETE" in line.text:
            self.log.destroyed.add((line.thread.process, match[1]))
        if not (nodes or starts or completes):
            return  # this belongs to another stage of the process
        current = self._rank_log(line, fresh=starts)
        if current.comm not in (None, match[1]):
            del self._making[line.thread]
            current = self._rank_log(line)
        current.comm, current.rank, current.ranks = match[1], int(match[2]), int(match[3])
        current.line = current.line or line.number
        group = _COMM_ID.search(line.text) or _SPLIT.search(line.text)
        current.group = group[1] if group else current.group
        if nodes:
            current.nodes, current.local_ranks, current.local_rank = int(nodes[1]), int(nodes[2]), int(nodes[3])
            current.mnnvl = nodes[4] != "0"
        bus_id = _BUS_ID.search(line.text)
        current.bus_id = int(bus_id[1], 16) if bus_id else current.bus_id
        device = _DEVICE_NUMBER.search(line.text)
        current.device = int(device[1]) if device else current.device
        current.started, current.complete = current.started or starts, current.complete or completes

    def fabric(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.fabric, current.fabric_line = (match[1], match[2]), line.number
        current.fabric_state = int(match[3]) if match[3] else None
        current.fabric_health = int(match[4], 16) if match[4] else None

    def clique(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line)
        current.mnnvl, current.clique_ranks = True, int(match[1])

    def network(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.networks.setdefault(line.thread.process, match[1])
        self.log.network_lines.setdefault(match[1], line.number)

    def adapters(self, line: PrintedLine, match: re.Match[str]) -> None:
        names = tuple(word.partition("]")[2].partition(":")[0] for word in match[1].split())
        self.log.adapters.setdefault(line.thread.host, names)

    def interfaces(self, line: PrintedLine, match: re.Match[str]) -> None:
        for word in match[1].split():
            self.log.interfaces.setdefault(word.partition("]")[2].partition(":")[0])

    def bridge(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.bridge_gbs = min(float(match[1]), current.bridge_gbs or float(match[1]))

    def speed(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.speeds_mbps.setdefault((line.thread.host, match[1]), int(match[2]))

    def instance(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.instance = self.log.instance or match[1]

    def multicast(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.multicast.add(match[1] is None)

    def system(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.system, current.max_gbs = True, float(match[1]) if match[1] else None

    def cpu(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.cpus.append((int(match[2]), int(match[3])))
        current.hosts.add(match[1] or "0")

    def nvswitch(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.nvswitch = True
        current.nvswitch_gbs = float(match[1]) if match[1] else current.nvswitch_gbs

    def system_gpu(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        current.gpu = match[1]
        current.linked.setdefault(match[1], set())

    def nvlink(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line, fresh=True)
        if current.gpu is not None:
            current.linked[current.gpu].add(match[1])

    def pattern(self, line: PrintedLine, match: re.Match[str]) -> None:
        pattern, cross_nic, channels, intra, inter, type_intra, type_inter, same = match.groups()
        if "XGMI" in (type_intra, type_inter):  # links of AMD's GPUs, in case the line with the version is missing
            self.of_rccl(line, match)
        current = self._rank_log(line, fresh=True)
        # Each rank starts with its ring, so the lines before this one are missing
        if current.graphs and pattern == "4":
            del self._making[line.thread]
            current = self._rank_log(line)
        current.graphs.append(
            PrintedGraph(int(pattern), int(cross_nic), int(channels), intra, inter, type_intra, type_inter, same == "1")
        )

    def channel(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line)
        if current.ring_gpus is None and [graph.pattern for graph in current.graphs] == [4]:
            current.ring_gpus, current.ring_has_adapters = match[1].count(" GPU/"), " NET/" in match[1]

    def header(self, line: PrintedLine, match: re.Match[str]) -> None:
        names = [name.strip() for name in match[1].split("|")[:-1]]
        self._rank_log(line).table.append(Block(names))

    def threads(self, line: PrintedLine, match: re.Match[str]) -> None:
        block = self._block(line, lambda block: bool(block.threads))
        block.threads = [text.strip() for text in match[1].split("|")[:-1]]

    def row(self, line: PrintedLine, match: re.Match[str]) -> None:
        collective = Collective[match[1]]
        block = self._block(line, lambda block: collective in block.rows)
        cells, at = [], 0
        while cell := _CELL.match(match[2], at):
            cells.append((cell[1], cell[2]))
            at = cell.end()
        block.rows[collective] = cells

    def _block(self, line: PrintedLine, has: Callable[[Block], bool]) -> Block:
        """The block of the table that a row belongs to: a new one if the last block already has such a row, or if there
        is no block."""
        table = self._rank_log(line).table
        if not table or has(table[-1]):
            table.append(Block(None))
        return table[-1]

    def thresholds(self, line: PrintedLine, match: re.Match[str]) -> None:
        self._rank_log(line).thresholds = match.groups()

    def channels(self, line: PrintedLine, match: re.Match[str]) -> None:
        current = self._rank_log(line)
        current.channels, current.channels_line = (match[1], match[3]), line.number
        current.collnet_channels = int(match[2]) if match[2] else None

    def variable(self, line: PrintedLine, match: re.Match[str]) -> None:
        value = re.sub(r"^(-?\d+)\.$", r"\1", match[2])
        self.log.environment.setdefault(line.thread.process, {}).setdefault(match[1], value)
        self.log.setting_lines.setdefault(match[1], line.number)

    def config(self, line: PrintedLine, match: re.Match[str]) -> None:
        self._rank_log(line, fresh=True).config[match[1]] = match[2]
        self.log.setting_lines.setdefault(match[1], line.number)

    def call(self, line: PrintedLine, match: re.Match[str]) -> None:
        if line.thread in self._chosen:
            self._chosen.discard(line.thread)
            self._calls.pop(line.thread, None)
            self._batches[line.thread] = self._batches.get(line.thread, 1) + 1
        name, number, *rest = match.groups()
        call = self._alike.get(groups := (name, *rest))
        if call is None:
            name, count, dtype, op, comm, ranks = groups
            call = self._alike[groups] = LoggedCall(name, int(count), int(dtype), int(op), comm, int(ranks))
        self.log.last_calls[line.thread, call.comm] = LastCall(
            int(number, 16), call.collective, call.count, call.dtype, line.number
        )
        self.log.calls[line.thread, call] += 1
        self._calls.setdefault(line.thread, []).append(call)

    def choice(self, line: PrintedLine, match: re.Match[str]) -> None:
        printed = choice.printed(line.text)
        if printed is not None:
            calls = tuple(self._calls.get(line.thread, ()))
            batch = self._batches.get(line.thread, 1) if calls else 0
            self.log.choices.append(ChoiceLine(line.thread, printed, calls, batch))
            self._chosen.add(line.thread)

    def symmetric(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.symmetric.append((line.thread, match[0]))

    def warning(self, line: PrintedLine) -> None:
        self.log.warnings.setdefault(line.text.strip(), line)
        if match := _FALLBACK.search(line.text):
            self.fell_back(line, match)
        self.no_infiniband(line)

    def fell_back(self, line: PrintedLine, match: re.Match[str]) -> None:
        self._rank_log(line, fresh=True).fallback_patterns.append(int(match[1]))

    def no_infiniband(self, line: PrintedLine, match: re.Match[str] | None = None) -> None:
        if match := _NO_IB.search(line.text):
            fault = _FAULTS["Failed" if match[1].startswith("Failed") else "NET/IB"]
            self.log.network_faults.setdefault(fault, fault.format(match[1]))

    def gpudirect(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.gpudirect.setdefault(match[2], None if match[1] == "Enabled" else match[3] or "")

    def far(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.far_adapters = f"distance {match[1]}, at most {match[2]}"

    def returned(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.returned = self.log.returned or (match[1], int(match[2]))

    def via(self, line: PrintedLine, match: re.Match[str]) -> None:
        rank, direction, way = int(match[1]), match[2], match[3]
        kind, *rest = way.split("/")
        if kind == "NET":
            network, number = (*rest, "", "")[:2]
            digits = re.match(r"\d+", number)
            if digits and direction != "receive":
                self.log.adapters_of_ranks.setdefault(rank, set()).add(int(digits[0]))
            way = "/".join([kind, network, *(["GDRDMA"] if "GDRDMA" in rest else [])])
            self.log.direct_of_hosts.setdefault(line.thread.host, set()).add("GDRDMA" in rest)
        self.log.transports[way] = self.log.transports.get(way, 0) + 1

    def ring(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.rings.setdefault(int(match[1]), tuple(map(int, match[3].split())))
        self.log.ring_channels.setdefault(line.thread, int(match[2]))

    def trees(self, line: PrintedLine, match: re.Match[str]) -> None:
        for channel, down, rank, up in _TREE.findall(match[1]):
            children = tuple(int(peer) for peer in down.split("/") if peer != "-1")
            place = int(up) if up != "-1" else None, children
            self.log.trees.setdefault(int(channel), {}).setdefault(int(rank), place)

    def nvls_head(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.nvls_heads.setdefault(int(match[1]), tuple(map(int, match[2].split())))

    def p2p(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.p2p_support = (self.log.p2p_support is not False) and match[1] == "1"

    def tuner(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.tuner_plugins.setdefault(match[1], self.log.tuner_file or "")

    def no_plugin(self, line: PrintedLine, match: re.Match[str]) -> None:
        if "librccl" in line.text:
            self.of_rccl(line, match)
        says = match["named"] or match["names"] or match["symbol"] or "No plugin found"
        self.log.no_plugin.setdefault(match[1], (says.strip(), line.number))

    def diagnostic(self, line: PrintedLine, match: re.Match[str]) -> None:
        if len(self.log.diagnostics) < MOST_DIAGNOSTICS:
            self.log.diagnostics.append(DiagnosticLine(match[2], match[3], match[1] == "OK", line.number))

    def added(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.plugin_settings.setdefault(match[1], match[2])

    def stepped_back(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.stepped_back = self.log.stepped_back or line.number

    def dma_buf(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.dma_buf = True

    def gpudirect_off(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.gpudirect_off = self.log.gpudirect_off or match[1].strip()

    def aws_release(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.aws_release = self.log.aws_release or match[1]

    def tuner_product(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.tuner_product = self.log.tuner_product or match[1]

    def tuner_file(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.tuner_file = self.log.tuner_file or match[1] or match[2]
        for name, file in self.log.tuner_plugins.items():
            self.log.tuner_plugins[name] = file or self.log.tuner_file

    def results(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.result_rows = self.log.result_rows or 0

    def result_row(self, line: PrintedLine, match: re.Match[str]) -> None:
        if self.log.result_rows is not None:
            self.log.result_rows += 1

    def device(self, line: PrintedLine, match: re.Match[str]) -> None:
        self.log.devices[int(match[1])] = match[5]
        if len(self.log.device_lines) < MOST_DEVICES:
            pid = int(match[2]) if match[2] else None
            self.log.device_lines.append(DeviceLine(int(match[1]), pid, match[3], match[4], line.number))


# The first of these expressions that is found in a line reads it. Looking for a part of the expression first saves
# time.
_METHODS: list[tuple[str, re.Pattern[str], Callable[[_Reader, PrintedLine, re.Match[str]], None]]] = [
    (": opCount ", _CALL, _Reader.call),
    (" [Symmetric]: ", _SYMMETRIC, _Reader.symmetric),
    (" Bytes -> Algo ", expression(" Bytes -> Algo "), _Reader.choice),
    (" |", _ROW, _Reader.row),
    ("comm 0x", _RANK, _Reader.rank),
    ("MNNVL busId ", _FABRIC, _Reader.fabric),
    ("MNNVL 1 ", _CLIQUE, _Reader.clique),
    ("Pattern ", _PATTERN, _Reader.pattern),
    (" GPU/", _CHANNEL, _Reader.channel),
    ("=== System : ", expression(r"^=== System : (?:max(?:Bw|Width) (\d+(?:\.\d+)?))?"), _Reader.system),
    ("CPU/", _CPU, _Reader.cpu),
    (" - NVS/", expression(r"\+ (?:NVL\[(\d+(?:\.\d+)?)\]|\w+\[[\d.]+\]) - NVS/"), _Reader.nvswitch),
    ("] - PCI/", _PCI, _Reader.bridge),
    (" - GPU/", _GPU, _Reader.system_gpu),
    (" - GPU/", _NVLINK, _Reader.nvlink),
    ("Algorithm ", _HEADER, _Reader.header),
    ("Max NThreads ", _THREADS, _Reader.threads),
    ("threadThresholds ", _THRESHOLDS, _Reader.thresholds),
    (" coll channels, ", _CHANNELS, _Reader.channels),
    ("] via ", _VIA, _Reader.via),
    (" via ", _VIA, _Reader.via),
    ("Channel ", _RING, _Reader.ring),
    ("Trees [", _TREES, _Reader.trees),
    ("NVLS Head ", _NVLS_HEAD, _Reader.nvls_head),
    ("Check P2P Type ", _P2P, _Reader.p2p),
    ("Could not find a path for pattern ", _FALLBACK, _Reader.fell_back),
    ("NCCL DIAG ", _DIAGNOSTIC, _Reader.diagnostic),
    ("/Plugin: ", _NO_PLUGIN, _Reader.no_plugin),
    ("NET/OFI Adding ", _ADDED, _Reader.added),
    ("OFI_TUNER", _STEPPED_BACK, _Reader.stepped_back),
    ("DMA-BUF is available", _DMABUF, _Reader.dma_buf),
    ("GDR", _GDR_OFF, _Reader.gpudirect_off),
    ("TUNER/Plugin: ", _TUNER_FILE, _Reader.tuner_file),
    ("TUNER/Plugin: ", _TUNER, _Reader.tuner),
    ("ibverbs", _NO_IB, _Reader.no_infiniband),
    ("No device found", _NO_IB, _Reader.no_infiniband),
    (" to ", _VARIABLE, _Reader.variable),
    ("Comm config ", _CONFIG, _Reader.config),
    ("GPU Direct RDMA Disabled for GPU ", _FAR, _Reader.far),
    ("GPU Direct RDMA ", _NO_GDR, _Reader.gpudirect),
    (" -> ", _RETURNED, _Reader.returned),
    ("NET/IB : Using ", _ADAPTERS, _Reader.adapters),
    ("NET/Socket : Using ", _INTERFACES, _Reader.interfaces),
    (" speed=", _SPEED, _Reader.speed),
    ("NET/OFI Running on ", _INSTANCE, _Reader.instance),
    ("NET/OFI Initializing ", _AWS_RELEASE, _Reader.aws_release),
    ("NET/OFI Region base Tuner ", _TUNER_PRODUCT, _Reader.tuner_product),
    ("NVLS multicast support ", _MULTICAST, _Reader.multicast),
    ("Using network ", _NETWORK, _Reader.network),
    ("NCCL version ", _VERSION, _Reader.version),
    ("sym failed on ", _NO_SYMBOL, _Reader.missing_symbol),
    ("RCCL version ", _RCCL, _Reader.rccl),
    ("RCCL ", _OF_RCCL, _Reader.of_rccl),
    ("librccl", _OF_RCCL, _Reader.of_rccl),
    ("[RINGS]", _OF_RCCL, _Reader.of_rccl),
    ("aught collective ", _TIMED_OUT, _Reader.timed_out),
    ("last enqueued ", _AT_WORK, _Reader.process_group),
    ("Last error:", LAST_ERROR, _Reader.last_error),
    ("Got completion from peer ", COMPLETION, _Reader.unprefixed_warning),
    ("retrying (", expression(r"returned .*, retrying \((\d+)/(\d+)\)"), _Reader.retried),
    (" : ", _CHILD, _Reader.child),
    ("Root Cause (first", expression(r"Root Cause \(first observed failure\)"), _Reader.first_child),
    ("# ", _DEVICE, _Reader.device),
    ("#", _RESULTS, _Reader.results),
    ("    ", _RESULT_ROW, _Reader.result_row),
]
