"""Loads the library and holds the communicators of all ranks."""

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from itertools import count, takewhile
from typing import Any

from tuner._native._sim import ffi, lib
from tuner.base.dataclass import dataclass
from tuner.oracle.child import configuration
from tuner.oracle.child.memory import scalar, scalars
from tuner.oracle.child.works import RING_POINTERS
from tuner.oracle.messages import (
    RANK_VARIABLES,
    Intercepted,
    Member,
    Part,
    Scalars,
    SimulatedMachine,
    Start,
    StartAgain,
    Started,
    Symbols,
    compiled,
)

SOCKET_BYTES = 4096  # larger than any record that NCCL has of a socket
ADDRESS_BYTES = 64
PROFILER = "ncclPatternProfiler"  # not the pattern of a collective: NCCL uses it to inform its profiler
KEPT: list[object] = []  # objects to which NCCL has pointers


def make(world: "World", part: Part) -> list[int]:
    """Makes the communicator of a part of the ranks; returns the address of each rank's communicator."""
    ranks, members = world.start.ranks, world.symbols.comm.members
    if part.shares:
        for rank in range(ranks):
            _init_proxy(world, rank)
    offsets = (members[name].offset for name in ("bootstrap", "topParentRanks", "proxyState"))
    lib.sim_locate_part(ffi.new("struct sim_part_layout *", (*offsets, part.shares)))
    comms = ffi.new("void *[]", [ffi.cast("void *", comm) for comm in world.comms])
    results = ffi.new("int[]", ranks)
    by = lib.SIM_BY_SHRINK if part.by_shrinking else lib.SIM_BY_SPLIT
    if lib.sim_make_part(comms, ranks, part.ranks, len(part.ranks), by, results) != 0:
        raise world.failure(f"no threads for {ranks} ranks")
    for rank, result in enumerate(results):
        if result != 0:
            call = "ncclCommShrink" if part.by_shrinking else "ncclCommSplit"
            raise world.failure(f"{call} of rank {rank} returned {world.error(result)}")
    return [int(ffi.cast("uintptr_t", comms[number])) for number in range(len(part.ranks))]


def _init_proxy(world: "World", rank: int) -> None:
    """Makes the state of the proxy, which ranks that share resources have in common; nothing is ever sent to the
    proxy."""
    ranks = world.start.ranks
    symbol = next(name for name in world.symbols.functions if name.startswith("_Z13ncclProxyInit"))
    socket, addresses = ffi.new("char[]", SOCKET_BYTES), ffi.new("char[]", ADDRESS_BYTES * ranks)
    hashes = ffi.new("uint64_t[]", [os.getpid() << 16] * ranks)
    KEPT.extend((socket, addresses, hashes))
    given = [ffi.cast("uintptr_t", world.comms[rank]), socket, addresses]
    if symbol.endswith("Pm"):  # it also takes addresses of Unix domain sockets, from 2.21 on
        result = ffi.cast("int (*)(uintptr_t, char *, char *, uint64_t *)", world.named(symbol))(*given, hashes)
    else:
        result = ffi.cast("int (*)(uintptr_t, char *, char *)", world.named(symbol))(*given)
    if result != 0:
        raise world.failure(f"ncclProxyInit of rank {rank} returned {world.error(result)}")


class Failure(Exception):
    """The parent gets this reason instead of an answer; ``returned``: whether a function of NCCL returned an error."""

    def __init__(self, reason: str, returned: bool = False) -> None:
        super().__init__(reason)
        self.returned = returned


@dataclass(frozen=True, slots=True)
class Redirection:
    """One copy of a libnccl function, at its offset in the file, and the row of a table with its replacement."""

    name: str
    function: int
    bytes: int
    table: int
    row: int


def redirections(symbols: Symbols, *, threads: bool, kept: Set[str] = frozenset()) -> Iterator[Redirection]:
    """Yields the redirections of all functions that access hardware; with ``threads``, also of the functions of NCCL's
    bootstrap, so that ranks meet in the memory of this process."""
    for number, table in enumerate(takewhile(lambda rows: rows != ffi.NULL, map(lib.sim_redirects, count()))):
        if number == lib.SIM_MEETING_REDIRECTS and not threads:
            continue
        at = 0
        while table[at].name != ffi.NULL:
            name = text(table[at].name) if table[at].cuda in (0, symbols.cuda) else ""
            for offset, size in () if name in kept else symbols.functions.get(name, ()):
                yield Redirection(name, offset, size, number, at)
            at += 1


class Loaded:
    """The loaded library, in which every function that accesses hardware is redirected.

    With ``threads``, all ranks are threads of this process, and meet in its memory instead of over NCCL's sockets.
    ``kept`` are functions of NCCL that are not redirected.
    """

    def __init__(self, start: Start, *, threads: bool = True, kept: Set[str] = frozenset()) -> None:
        self.start, self.kept = start, kept
        self.symbols = start.whole_symbols()
        check_build()
        configure(start.machine)
        if (error := lib.sim_load_nccl(start.library.encode())) != ffi.NULL:
            raise Failure(f"cannot load {start.library}: {text(error)}")
        anchor, offset = self.symbols.anchor
        self.base = int(ffi.cast("uintptr_t", lib.sim_nccl_function(anchor.encode()))) - offset
        self.redirect(threads)

    def named(self, name: str) -> int:
        """The address of the first copy of a function of libnccl."""
        return self.base + self.symbols.functions[name][0][0]

    def function(self, name: str) -> Any:
        """A pointer to the first copy of a function of libnccl."""
        return ffi.cast("void *", self.named(name))

    def redirect(self, threads: bool) -> None:
        """Redirects the function of every row, in every copy that the compiler made of it."""
        for row in redirections(self.symbols, threads=threads, kept=self.kept):
            replacement = lib.sim_redirects(row.table)[row.row].replacement
            if error := lib.sim_redirect(ffi.cast("void *", self.base + row.function), row.bytes, replacement):
                raise Failure(f"cannot redirect {row.name} of {row.bytes} bytes: {os.strerror(error)}")
        lib.sim_locate_local_ranks(self.symbols.comm.members["localRanks"].offset)

    @property
    def counts_gpus(self) -> int:
        """Offset in bytes of the number of GPUs in a struct ncclTopoSystem. Each of the struct's lists of nodes begins
        with its length, and the list of GPUs is the first."""
        return self.symbols.system.arrays["nodes"][0]

    def record_operations(self) -> None:
        """Starts to record the operations that NCCL gives its proxy."""
        lib.sim_record_operations(ffi.new("struct sim_operation_layout *", operation_layout(self.symbols)))

    def share_search(self) -> None:
        """Makes one rank search graphs for all ranks of its host, and of equal hosts. All these ranks have to be
        threads of this process."""
        graph = self.symbols.graph
        channels, ranks = (graph.members[name].offset for name in ("nChannels", "intra"))
        search = ffi.new(
            "struct sim_search_function *",
            (self.function("ncclTopoCompute"), graph.bytes, channels, ranks, self.counts_gpus),
        )
        if not lib.sim_share_search(search):
            raise Failure("cannot intercept the search: it begins with instructions that cannot be moved")

    def write_every_graph(self) -> None:
        """Makes NCCL write its file of graphs even with path types that it has no name for."""
        graph, write = self.symbols.graph, self.function("ncclTopoDumpGraphs")
        intra, inter = (graph.members[name].offset for name in ("typeIntra", "typeInter"))
        named_paths = self.start.intercepted.named_paths
        file = ffi.new("struct sim_graph_file *", (write, graph.bytes, intra, inter, named_paths))
        if not lib.sim_write_every_graph(file):
            raise Failure("cannot intercept the file of graphs: it begins with instructions that cannot be moved")

    def share_systems(self) -> None:
        """Makes one rank of an NVLink domain build the system for all ranks of the domain."""
        if not self.start.intercepted.systems:
            return
        layout = {
            "compute_paths": self.function("ncclTopoComputePaths"),
            "trim": self.function("ncclTopoTrimSystem"),
            "init_search": self.function("ncclTopoSearchInit"),
            "system": self.symbols.comm.members["topo"].offset,
            "gpus": self.counts_gpus,
        }
        if not lib.sim_share_systems(ffi.new("struct sim_system_functions *", layout)):
            raise Failure("cannot intercept the paths: their functions begin with instructions that cannot be moved")

    def merge_by_host(self) -> None:
        """If only some hosts merge adapters, makes NCCL see a merging network on these hosts alone."""
        if not self.start.intercepted.networks:
            return
        if not lib.sim_merge_by_host(self.function("ncclTopoGetSystem"), self.symbols.comm.members["ncclNet"].offset):
            raise Failure("cannot intercept the system: its function begins with instructions that cannot be moved")

    def failure(self, reason: str) -> Failure:
        """Makes the failure that the parent gets; used by modules that this one imports."""
        return Failure(reason)

    def error(self, result: int) -> str:
        """An ncclResult_t as text: its number and NCCL's description."""
        error_string = ffi.cast("const char *(*)(int)", lib.sim_nccl_function(b"ncclGetErrorString"))
        return f"{result} ({text(error_string(result))})"


class World(Loaded):
    """The library, machine and communicators, made in the required order: libnccl is loaded after everything that it
    calls."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        if start.wrapped_plugin is not None:
            wrap(start.wrapped_plugin)
            disguise(start)
        self.intercept(start.intercepted)
        self.log_file = os.open(start.log, os.O_RDONLY | os.O_CREAT)
        self.load_tuner()
        self.comms = self.init(start.ranks)
        self.devices = list(range(start.ranks))  # the device of each rank
        self.rings_marked = False  # whether the connections of rings are marked, on which registered buffers depend
        if start.part is not None:
            self.devices = list(start.part.ranks)
            self.comms = make(self, start.part)
        self.acknowledge_work(0)
        if self.symbols.works_are_in_ring:
            lib.sim_keep_pointers(RING_POINTERS)

    def intercept(self, at: Intercepted) -> None:
        """Intercepts functions to observe what a release does not report. In releases whose communicator does not keep
        its graphs, ``copied_graphs`` is a buffer into which they are copied; otherwise it is None."""
        self.copied_graphs: Any = None
        self.record_operations()
        if at.topology_files:
            check(lib.sim_intercept_topology_file(self.function("ncclTopoGetXmlFromFile")), "the topology file")
        check(lib.sim_skip_zeros(), "memset and calloc")
        self.share_search()
        self.write_every_graph()
        self.share_systems()
        self.merge_by_host()
        symbols, (algorithms, protocols) = self.symbols, self.symbols.shape
        # The time of a cell, and the model of graphs, where neither a plugin nor the communicator has them
        time_of_cell, model, graph_bytes = "ncclTopoGetAlgoTime", "ncclTopoTuneModel", symbols.graph.bytes
        if "ncclGroupSimulateEnd" not in symbols.functions and time_of_cell in symbols.functions:
            says_backups = any(
                name.startswith("_Z19ncclTopoGetAlgoTime") and name.endswith("Pb") for name in symbols.functions
            )
            times = lib.sim_intercept_times(self.function(time_of_cell), algorithms, protocols, says_backups)
            check(times, "the times")
        if "graphs" not in symbols.comm.arrays and model in symbols.functions:
            copies = self.copied_graphs = ffi.new("char[]", graph_bytes * algorithms * self.start.ranks)
            check(lib.sim_intercept_graphs(self.function(model), copies, graph_bytes, algorithms), "the graphs")

    def load_tuner(self) -> None:
        """Loads the plugin early: in 2.19 and 2.20, a rank gets no plugin if another rank is loading it at that moment.

        The threads of one process race for it in these releases (src/misc/tuner.cc, v2.19.3-1); later ones use a lock.
        """
        for offset, _ in self.symbols.functions.get("ncclLoadTunerPlugin", ()):
            ffi.cast("int (*)(void **)", self.base + offset)(ffi.new("void **"))

    def init(self, ranks: int) -> list[int]:
        """Initialises the communicators of all ranks, each in its own thread; returns their addresses."""
        comms = ffi.new("void *[]", ranks)
        results = ffi.new("int[]", ranks)
        configured = configuration.of_communicator(self.start.configuration, configuration.version())
        if lib.sim_init_ranks(ranks, configured, comms, results) != 0:
            raise Failure(f"no threads for {ranks} ranks")
        for rank, result in enumerate(results):
            if result != 0:
                raise Failure(f"ncclCommInitRank of rank {rank} returned {self.error(result)}", returned=True)
        return [int(ffi.cast("uintptr_t", comm)) for comm in comms]

    def acknowledge_work(self, rank: int) -> None:
        """Marks all work that a rank sent to kernels as taken, in releases that wait for this."""
        members = self.symbols.comm.members
        sent, taken = members.get("workFifoSent"), members.get("workFifoAckdMin")
        if sent is not None and taken is not None:
            lib.sim_acknowledge_work(*(ffi.cast("uint32_t *", self.comms[rank] + at.offset) for at in (sent, taken)))

    def start_again(self, request: StartAgain) -> Started:
        """Makes another communicator, which later requests refer to; the previous one stays as it is."""
        for name, value in request.variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self.comms = self.init(self.start.ranks)
        self.rings_marked = False
        self.acknowledge_work(0)
        return self.started()

    def started(self) -> Started:
        """The answer to the first request."""
        version = ffi.new("int *")
        ffi.cast("int (*)(int *)", lib.sim_nccl_function(b"ncclGetVersion"))(version)
        members = self.symbols.comm.members
        return Started(
            version=version[0],
            base=self.base,
            answer=compiled(ffi, "struct sim_answer"),
            kernel=compiled(ffi, "struct sim_kernel"),
            operation=compiled(ffi, "struct sim_operation"),
            question=compiled(ffi, "struct sim_question"),
            buffer_bytes=tuple(map(lib.sim_buffer_bytes, range(lib.SIM_BUFFER_KINDS))),
            comm=scalars(self.comms[0], members),
            last_comm=scalars(self.comms[-1], members),
            graphs=tuple(self.graphs()),
            plugin_used=self.plugin_used(),
            plugin_interface=lib.sim_wrapped_version(),
        )

    def graphs(self) -> list[Scalars]:
        """Rank 0's graphs, indexed by algorithm. An algorithm that uses another algorithm's graph may have an empty one
        here."""
        start, count = self.graphs_of(0)
        graph = self.symbols.graph
        return [scalars(start + i * graph.bytes, graph.members) for i in range(count)]

    def graphs_of(self, rank: int) -> tuple[int, int]:
        """Address of a rank's graphs, which are stored in the order of algorithms, and the number of graphs."""
        if self.copied_graphs is None:
            offset, (count,) = self.symbols.comm.arrays["graphs"]
            return self.comms[rank] + offset, count
        start, (count, _) = int(ffi.cast("uintptr_t", self.copied_graphs)), self.symbols.shape
        return start + self.devices[rank] * count * self.symbols.graph.bytes, count

    def plugin_used(self) -> bool:
        """Whether NCCL asks the given plugin. If it rejects that plugin, it loads the network's plugin instead, which
        is the recorder."""
        if self.start.wrapped_plugin is not None:
            return bool(lib.sim_wrapped_version())
        entry = self.symbols.comm.members.get("tuner")
        tuner = ffi.NULL if entry is None else ffi.cast("char **", scalar(self.comms[0], entry))
        return tuner != ffi.NULL and not lib.sim_is_recorder(tuner)


def operation_layout(symbols: Symbols) -> dict[str, int]:
    """The members of ``struct sim_operation_layout``: offsets in struct ncclProxyOp and ncclComm, -1 in releases that
    do not have the member."""
    operation, comm = symbols.operation.members, symbols.comm.members

    def offset(members: Mapping[str, Member], name: str) -> int:
        return members[name].offset if name in members else -1

    return {
        "number": operation["opCount"].offset,
        "channel": operation["channelId"].offset,
        "pattern": operation["pattern"].offset,
        "protocol": operation["protocol"].offset,
        "type": operation["dtype"].offset,
        "chunk": operation["chunkSize"].offset,
        "profiler": next((int(value) for value, name in symbols.patterns.items() if name == PROFILER), -1),
        "collective": offset(operation, "coll"),
        "algorithm": offset(operation, "algorithm"),
        "task": symbols.operation.structs.get("task", (-1, 0))[0],
        "started": offset(operation, "sendbuff"),
        "completed": offset(operation, "recvbuff"),
        "counter": offset(operation, "workCounter"),
        "comm_rank": offset(comm, "rank"),
        "comm_ranks": offset(comm, "nRanks"),
    }


def check_build() -> None:
    """Raises Failure unless the loaded object and this module are built from the same sources."""
    if text(lib.sim_sources()) != text(lib.sim_expected_sources()):
        raise Failure("the simulated GPUs are of another build than this program; reinstall nccl-tuner")


def configure(machine: SimulatedMachine) -> None:
    """Makes the machine that libnccl will see."""
    if lib.sim_configure(machine_struct(machine)) != 0:
        raise Failure("the machine has more GPUs or network devices per node than can be simulated")


def machine_struct(machine: SimulatedMachine) -> Any:
    """A ``struct sim_machine *``."""
    return ffi.new("struct sim_machine *", encoded(asdict(machine)))


def wrap(plugin: str) -> None:
    """Loads a tuner plugin that the recorder then asks."""
    error = lib.sim_wrap_tuner(plugin.encode())
    if error != ffi.NULL:
        raise Failure(f"cannot load tuner plugin {plugin}: {text(error)}")


def disguise(start: Start) -> None:
    """Sets ahead the clocks that the wrapped plugin reads. If requested, the plugin also sees another host name,
    another process id and the rank variables of the last rank."""
    if start.disguise is None:
        return
    seconds, elsewhere = start.disguise
    check(lib.sim_disguise_tuner(seconds, elsewhere), "what the tuner plugin asks of the clock and its host")
    if elsewhere:
        os.environ.update(dict.fromkeys(RANK_VARIABLES, str(start.ranks - 1)))


def check(error: int, what: str) -> None:
    """Raises Failure if ``error`` is an errno other than 0."""
    if error:
        raise Failure(f"cannot intercept {what}: {os.strerror(error)}")


def encoded(value: Any) -> Any:
    """The value with all texts, also nested ones, encoded as bytes, from which char arrays are made."""
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [encoded(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def text(characters: Any) -> str:
    """Decodes a C string."""
    return str(ffi.string(characters).decode(errors="replace"))
