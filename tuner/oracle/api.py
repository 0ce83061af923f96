"""What the oracle can be asked, and its answers."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.non_classic import COPY_ENGINES, NonClassicPath
from tuner.emulator.request import Request
from tuner.machine.skeleton import Skeleton
from tuner.oracle import facts, groups, hardware, library, symbols, tuning_log
from tuner.oracle.answers import ANSWER, KERNEL, OPERATION, QUESTION
from tuner.oracle.configuration import Host, OracleConfiguration
from tuner.oracle.process import SIM, Child
from tuner.plugin import forcing_path, loading
from tuner.plugin.forcing import Seen

MAX_RANKS = 512  # each rank is a thread with NCCL's memory for a rank
RANK_BYTES = 40 << 20  # of host memory per rank; 21 MB were measured with 128 ranks, 8 per node


_IN_GRAPH = len(Buffers)  # IN_GRAPH of csrc/sim/world.c
_PROFILER = "ncclPatternProfiler"  # no pattern of a collective: NCCL tells its profiler of one

# Warnings after which NCCL does what it would do on the real machine: about hardware that is not simulated and takes no
# part in a choice, about CollNet that it then does without, about values of variables that it corrects (later releases
# only inform of those), and about a search that finds no better channels than the GPUs in their order.
_HARMLESS = (
    "lib wrapper not initialized",  # InfiniBand verbs, of GPU-initiated networking: 2.29.7 on
    "rma_socket requires GDRCopy",  # one-sided communication over sockets: 2.32 on
    "CollNet currently only supports up to",  # more than 8 GPUs per node: up to 2.22
    "CollNet is not supported or fails to initialize, ignoring NCCL_ALGO",  # up to 2.23
    "Invalid NCCL_NTHREADS",
    "Invalid NCCL_LL128_NTHREADS",
    "User asked for a minimum of",
    "User asked for a maximum of",
    "is larger than #channels upper limit",
    "is larger than maxCTAs",
    "is being ignored because it is not a power of 2",
    "Both NCCL_CTA_POLICY_ZERO and NCCL_CTA_POLICY_EFFICIENCY are set",
    "falling back to simple order",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a tuner plugin was handed for each size, in us, and what NCCL then takes."""

    before_us: NDArray[np.float32]  # [S, A, 3] the cost table NCCL computed; -1.0 where ignored
    after_us: NDArray[np.float32]  # [S, A, 3] as the wrapped plugin left it; the same without one
    channels: NDArray[np.int32]  # [S] the wrapped plugin's wish; 0 is none
    pipe_ops: NDArray[np.int32]  # [S]
    winner_us: NDArray[np.float32]  # [S] ncclGroupSimulateEnd's time of the pick


@dataclass(frozen=True, slots=True)
class Launched:
    """One collective as NCCL launched it on rank 0."""

    bytes: int  # NCCL's nBytes
    algorithm: Algorithm
    protocol: Protocol
    channels: int  # blocks of the launched grid
    threads: int  # of the launched block
    kernel: str  # its name, as in the library's symbol table
    channel_lo: int
    channel_hi: int
    time_us: float | None  # the pick's cell of the cost table as it was left; None without the recorder


class Oracle:
    """One communicator inside a child process. Use it as a context manager, or ``close`` it.

    Raises OracleUnavailable when the library cannot be loaded here, BadInput or BadTopology for a setup that cannot
    be, OracleFailed when NCCL fails, crashes or takes longer than ``timeout_s`` (for the start, and for each request).
    """

    def __init__(self, configuration: OracleConfiguration, timeout_s: float = 120.0) -> None:
        _check(configuration)
        self.configuration = configuration
        self.timeout_s = timeout_s
        coll_net = configuration.env.get("NCCL_COLLNET_ENABLE") == "1"
        far_ends = tuple(chain.from_iterable(configuration.skeleton.nvlinks.values())) if configuration.skeleton else ()
        kinds = {
            host: hardware.read(
                host.topology, len(configuration.hosts), host.gpus, coll_net, host.peer_to_peer_across_sockets, far_ends
            )
            for host in dict.fromkeys(configuration.hosts)
        }
        if len(kinds) > hardware.MAX_KINDS:
            raise BadInput(f"{len(kinds)} kinds of nodes; the oracle simulates at most {hardware.MAX_KINDS}")
        if len({host.peer_to_peer_across_sockets for host in kinds}) > 1:
            raise BadInput("NCCL asks for peer-to-peer once per process: the oracle cannot mix nodes with and without")
        nccl = (
            library.find(configuration.release) if configuration.library is None else library.at(configuration.library)
        )
        found = symbols.load(nccl.path, nccl.sha256, library.cache())
        self._recorded = not configuration.without_tuner and (
            configuration.plugin is None or configuration.record_plugin
        )
        self._simulates = "ncclGroupSimulateEnd" in found.functions
        if configuration.plugin is not None and "tuner" not in found.comm.members:
            raise BadInput(f"NCCL {configuration.release} has no tuner plugins; valid: 2.19 and later")
        if configuration.plugin is not None and configuration.record_plugin and not self._simulates:
            raise BadInput(f"NCCL {configuration.release} hands plugins no costs to record; valid: 2.22 and later")
        self._knows = {
            Buffers.registered: "ncclCommRegister" in found.functions,
            Buffers.window: "ncclCommWindowRegister" in found.functions,
        }
        self._kernels = found.kernels
        self._patterns = found.patterns
        plugin = None if configuration.without_tuner else SIM if self._recorded else configuration.plugin
        xml = [host.topology for host in kinds] if configuration.skeleton is None else [configuration.skeleton.xml]
        self._child = Child(
            list(map(hardware.for_x86, xml)),
            configuration.env,
            plugin,
            plugin is not None and plugin is configuration.plugin and _takes_path(nccl.release, plugin.resolve()),
            None if configuration.skeleton is None else configuration.skeleton.classes,
        )
        try:
            self._start(nccl, found, _machine(configuration, kinds, self._child))
        except BaseException:
            self.close()
            raise

    def _start(self, nccl: library.Library, found: symbols.Symbols, machine: dict[str, Any]) -> None:
        configuration = self.configuration
        wrapped = (
            str(configuration.plugin.resolve())
            if configuration.plugin is not None and configuration.record_plugin
            else None
        )
        started = self._request(
            {
                "sim": str(SIM),
                "library": str(nccl.path),
                "log": str(self._child.log),
                "anchor": found.anchor,
                "functions": found.functions,
                "wrap": wrapped,
                "watch": _watch(found, machine["kinds"]),
                "ranks": configuration.ranks,
                "buffers": [*map(int, Buffers), _IN_GRAPH],
                "machine": machine,
                "comm": asdict(found.comm),
                "graph": asdict(found.graph),
                "ring": _ring(found),
            },
            f"initialising {configuration.ranks} ranks",
        )
        self._check_log()
        if configuration.plugin is not None and not started["plugin_used"]:
            raise self._child.failure(f"NCCL did not load tuner plugin {configuration.plugin}", about="tuner")
        if started["answer_bytes"] != ANSWER.itemsize:
            raise OracleFailed(f"{SIM} is of another build than this program; reinstall nccl-tuner")
        self._base = int(started["base"])
        self._buffer_bytes: list[int] = started["buffer_bytes"]
        comm = started["comm"]
        version = release.of_code(started["version"])
        if configuration.library is None and version != nccl.release:
            raise OracleFailed(f"{nccl.path} says it is {version}, not {nccl.release}")
        self.facts: dict[str, Any] = {"release": version, "library_sha256": nccl.sha256, **facts.facts(comm)}
        self.graphs: dict[Algorithm, facts.Graph] = facts.graphs(started["graphs"], configuration.gpus_per_node)
        self.tables = facts.tables(comm, found.comm)
        self.last_rank_facts: dict[str, Any] = facts.facts(started["last_comm"])
        self.last_rank_tables = facts.tables(started["last_comm"], found.comm)
        self.memory: dict[str, Any] = comm  # every scalar of struct ncclComm by NCCL's own name

    def _check_log(self) -> None:
        lines = self._child.log_lines()
        if warnings := [line for line in lines if " NCCL WARN " in line and not any(w in line for w in _HARMLESS)]:
            raise self._child.failure(f"NCCL warned {len(warnings)} times while initialising")

    def _request(self, message: dict[str, Any], doing: str) -> Any:
        plugin = self.configuration.plugin
        return self._child.request(
            message, self.timeout_s, doing if plugin is None else f"{doing} with tuner plugin {plugin}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child. The oracle's facts, graphs and tables stay readable."""
        self._child.close()

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._child.pid

    def log_lines(self) -> list[str]:
        """NCCL's own log so far: NCCL_DEBUG=INFO, subsystems INIT, GRAPH, TUNING, ENV, of all ranks."""
        return self._child.log_lines()

    def graph_xml(self) -> str | None:
        """What NCCL wrote to NCCL_GRAPH_DUMP_FILE; None if it wrote nothing."""
        return self._child.graph.read_text() if self._child.graph.is_file() else None

    def topology_xml(self) -> str | None:
        """What NCCL wrote to NCCL_TOPO_DUMP_FILE, which is asked for where there is a skeleton to complete."""
        return self._child.completed.read_text() if self._child.completed.is_file() else None

    def reachable(self, collective: Collective, dtype: DataType, size_bytes: int) -> tuple[int, int]:
        """The nearest sizes NCCL can have at or below, and at or above ``size_bytes``; never 0."""
        step = self._step(collective, dtype)
        low = max(size_bytes // step, 1) * step
        return low, low if size_bytes == low else max(-(-size_bytes // step), 1) * step

    def costs(
        self,
        collective: Collective,
        dtype: DataType,
        op: Op,
        sizes_bytes: Sequence[int],
        buffers: Buffers = Buffers.plain,
    ) -> NDArray[np.float32]:
        """The cost table NCCL hands to a tuner plugin: float32 [S, A, 3] in us, -1.0 where ignored."""
        return self.ask(collective, dtype, op, sizes_bytes, buffers).before_us

    def ask(
        self,
        collective: Collective,
        dtype: DataType,
        op: Op,
        sizes_bytes: Sequence[int],
        buffers: Buffers = Buffers.plain,
    ) -> Asked:
        """The cost table before and after the plugin, and the winner's time, for one call of each size."""
        if not self._recorded:
            raise BadInput("NCCL runs without the recorder: set record_plugin beside a plugin, and not without_tuner")
        answers, logs = self._ask(collective, dtype, op, sizes_bytes, buffers, simulated=self._simulates)
        record = answers["record"]
        question = record["question"]
        if len(answers) and not (record["questions"] > 0).all():
            raise OracleFailed(f"NCCL {self.facts['release']} was not seen computing the cost of an algorithm")
        rows, columns = self.tables.max_threads.shape
        shape = (len(answers), rows, columns)
        before = question["before_us"][:, : rows * columns].reshape(shape)
        after = question["after_us"][:, : rows * columns].reshape(shape)
        winner = answers["simulated_us"].copy()
        if not self._simulates:
            picks = [self._choice(int(s), r, log) for s, r, log in zip(sizes_bytes, record, logs, strict=True)]
            # As recorded, "after" has the backups too, which count where nothing else does; no plugin changed anything.
            winner = np.array(
                [table[p.algorithm, p.protocol] for table, p in zip(after, picks, strict=True)], np.float32
            )
            after = before.copy()
        return Asked(before, after, question["channels"].copy(), question["pipe_ops"].copy(), winner)

    def launch(
        self,
        collective: Collective,
        dtype: DataType,
        op: Op,
        sizes_bytes: Sequence[int],
        buffers: Buffers = Buffers.plain,
        captured: bool = False,
    ) -> list[Launched]:
        """Each size launched for real on rank 0, one after the other; ``captured`` each into a CUDA graph of its own.

        NCCL takes buffers that are captured for registered, from 2.24 on and unless NCCL_GRAPH_REGISTER is 0.
        """
        if buffers is Buffers.window:
            raise BadInput("calls on windows may leave the classic path; valid for them: launch_windows")
        answers, logs = self._ask(collective, dtype, op, sizes_bytes, buffers, captured=captured)
        records = answers["record"]
        return [self._launched(int(s), record, log) for s, record, log in zip(sizes_bytes, records, logs, strict=True)]

    def launch_windows(
        self, collective: Collective, dtype: DataType, op: Op, sizes_bytes: Sequence[int]
    ) -> list[Launched | NonClassicPath]:
        """As :meth:`launch` with both buffers in symmetric windows, which a call may leave the classic path for."""
        answers, logs = self._ask(collective, dtype, op, sizes_bytes, Buffers.window)
        return [
            self._departed(record, log) or self._launched(int(size), record, log)
            for size, record, log in zip(sizes_bytes, answers["record"], logs, strict=True)
        ]

    def _departed(self, record: Any, log: bytes) -> NonClassicPath | None:
        """How a call left the classic path; None where it did not. Copy engines launch no kernel and log nothing."""
        kernel = tuning_log.symmetric_kernel(log)
        if kernel is None:
            return None if record["kernels"] else COPY_ENGINES
        launched = self._kernel(record["kernel"])
        if record["kernels"] != 1 or f"_{kernel}" not in launched:
            raise self._child.failure(f"NCCL says {kernel} and launches {record['kernels']} kernels, first {launched}")
        return NonClassicPath(kernel, int(record["kernel"]["grid_x"]), int(record["kernel"]["block_x"]))

    def use_table(self, text: str | None) -> None:
        """What the calls from here on follow, None for NCCL's own choices; the plugin has to be the forcing one."""
        self._forcing({"table": text}, "setting a table")

    def seen(self) -> Seen:
        """What the forcing plugin was asked and did since its table was set."""
        return Seen.of(self._forcing({}, "asking the forcing plugin"))

    def _forcing(self, request: dict[str, Any], what: str) -> Any:
        if self.configuration.plugin is None or not self.configuration.plugin.samefile(forcing_path()):
            raise BadInput(f"{what} takes the forcing plugin: plugin={forcing_path()}")
        return self._request({"forcing": str(self.configuration.plugin.resolve()), **request}, what)

    def launch_group(self, calls: Sequence[groups.Call]) -> groups.LaunchedGroup:
        """All calls, on plain buffers, inside one ncclGroupStart and ncclGroupEnd, launched for real on rank 0."""
        self._check_ranks()
        if not calls:
            raise BadInput("a group without a collective launches nothing; valid: one or more")
        most = self._buffer_bytes[Buffers.plain]
        counts = [self._counts(call.collective, call.dtype, [call.bytes], most)[0] for call in calls]
        what = f"launching a group of {len(calls)} collectives"
        request = [
            {"collective": int(call.collective), "type": int(call.dtype), "op": int(call.op), "count": count}
            for call, count in zip(calls, counts, strict=True)
        ]
        reply = self._request({"calls": request}, what)
        if reply["error"] is not None:
            raise self._child.failure(f"{what}: {reply['error']}")
        kernels, operations, questions = (
            np.frombuffer(base64.b64decode(reply[key]), kind)
            for key, kind in (("kernels", KERNEL), ("operations", OPERATION), ("questions", QUESTION))
        )
        log = self._child.log_bytes(int(reply["log_start"]), int(reply["log_bytes"]))
        try:
            return groups.read(kernels, operations, questions, log, self._kernel, self._patterns)
        except groups.Undecided as why:
            raise self._child.failure(f"{what} gave {why}") from None

    def _launched(self, size: int, record: Any, log: bytes) -> Launched:
        choice = self._choice(size, record, log)
        channels = int(record["kernel"]["grid_x"])
        return Launched(
            bytes=size,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=channels,
            threads=int(record["kernel"]["block_x"]),
            kernel=self._kernel(record["kernel"]),
            channel_lo=0 if choice.channel_lo is None else choice.channel_lo,
            channel_hi=channels - 1 if choice.channel_hi is None else choice.channel_hi,
            time_us=self._time(record, choice),
        )

    def _choice(self, size: int, record: Any, log: bytes) -> tuning_log.TunedChoice:
        """What NCCL's log says it took, and what the operation it prepared says: they must not differ."""
        logged = tuning_log.choices(log)
        if len(logged) > 1 or record["kernels"] != 1:
            raise self._child.failure(
                f"one collective of {size} bytes gave {len(logged)} choices and {record['kernels']} kernels"
            )
        prepared = self._prepared(size, record)
        if prepared is None and not logged:
            raise self._child.failure(f"NCCL does not say what it took for {size} bytes")
        choice = logged[0] if logged else prepared
        assert choice is not None
        if prepared is not None and (prepared.algorithm, prepared.protocol) != (choice.algorithm, choice.protocol):
            raise self._child.failure(
                f"for {size} bytes NCCL says {choice.algorithm.name}/{choice.protocol.name} "
                f"and prepares {prepared.algorithm.name}/{prepared.protocol.name}"
            )
        return choice

    def _prepared(self, size: int, record: Any) -> tuning_log.TunedChoice | None:
        if not record["operations"]:
            return None
        pattern = self._patterns.get(str(record["operation"]["pattern"]), "")
        algorithm = tuning_log.PATTERNS.get(pattern.removeprefix("ncclPattern"))
        if algorithm is None:
            return None
        return tuning_log.TunedChoice(size, algorithm, Protocol(record["operation"]["protocol"]), None, None)

    def _kernel(self, kernel: Any) -> str:
        address = int(kernel["function"]) - self._base
        return self._kernels.get(address, f"0x{address:x}")

    def _time(self, record: Any, choice: tuning_log.TunedChoice) -> float | None:
        if not record["questions"]:
            return None
        question = record["question"]
        return float(question["after_us"][choice.algorithm * int(question["protocols"]) + choice.protocol])

    def _step(self, collective: Collective, dtype: DataType) -> int:
        return Request(collective, dtype, Op.sum).unit_bytes(self.configuration.ranks)

    def _counts(self, collective: Collective, dtype: DataType, sizes: Sequence[int], most_bytes: int) -> list[int]:
        step = self._step(collective, dtype)
        counts = []
        for size in map(int, sizes):
            if size < step or size % step:
                low, high = self.reachable(collective, dtype, size)
                raise BadInput(
                    f"no {collective.name} of {dtype.name} on {self.configuration.ranks} ranks has {size} bytes; "
                    f"nearest: {low}" + (f", {high}" if high != low else "")
                )
            if size > most_bytes:
                raise BadInput(f"{size} bytes is more than a simulated buffer holds; valid: up to {most_bytes}")
            counts.append(size // step)
        return counts

    def _check_ranks(self) -> None:
        if self.configuration.ranks == 1:
            raise BadInput("a communicator of one rank has nothing to choose: NCCL only copies")

    def _ask(
        self,
        collective: Collective,
        dtype: DataType,
        op: Op,
        sizes: Sequence[int],
        buffers: Buffers,
        simulated: bool = False,
        captured: bool = False,
    ) -> tuple[Any, list[bytes]]:
        """Raw answers, and the piece of NCCL's log that belongs to each."""
        self._check_ranks()
        if buffers is not Buffers.plain and not self._knows[buffers]:
            raise BadInput(f"NCCL {self.facts['release']} knows no {buffers.name} buffers; valid: later releases")
        kind = _IN_GRAPH if captured and buffers is Buffers.plain else int(buffers)
        counts = self._counts(collective, dtype, sizes, self._buffer_bytes[kind])
        if not counts:
            return np.zeros(0, ANSWER), []
        what = f"{'simulating' if simulated else 'launching'} {len(counts)} {collective.name} of {dtype.name}"
        reply = self._request(
            {
                "collective": int(collective),
                "type": int(dtype),
                "op": int(op),
                "counts": counts,
                "buffers": kind,
                "simulated": simulated,
                "captured": captured,
            },
            what,
        )
        if reply["error"] is not None:
            size = int(sizes[reply["done"]])
            raise self._child.failure(f"{what}: at {size} bytes {reply['error']}")
        answers = np.frombuffer(base64.b64decode(reply["answers"]), ANSWER)
        start = int(reply["log_start"])
        log = self._child.log_bytes(start, int(answers["log_bytes"][-1]))
        ends = [int(end) - start for end in answers["log_bytes"]]
        return answers, [log[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _check(configuration: OracleConfiguration) -> None:
    if configuration.nodes < 1 or any(host.gpus < 1 for host in configuration.hosts):
        raise BadInput(f"{configuration.nodes} nodes of {configuration.gpus_per_node} GPUs; both have to be at least 1")
    if configuration.ranks > MAX_RANKS:
        raise BadInput(f"{configuration.ranks} ranks; the oracle holds all ranks in one process: at most {MAX_RANKS}")
    available = _available_bytes()
    if available is not None and configuration.ranks * RANK_BYTES > available:
        raise BadInput(
            f"{configuration.ranks} ranks need up to {configuration.ranks * RANK_BYTES >> 20} MB of memory; "
            f"this machine has {available >> 20} MB available, enough for {available // RANK_BYTES} ranks"
        )
    if configuration.plugin is not None and configuration.without_tuner:
        raise BadInput(f"tuner plugin {configuration.plugin} without a tuner plugin; give one of both")
    if configuration.plugin is not None and not configuration.plugin.is_file():
        raise BadInput(f"tuner plugin {configuration.plugin} does not exist")


def _takes_path(name: str, plugin: Path) -> bool:
    """Whether the plugin is loaded by its path, as a user's would be, or by a name, which works in every release."""
    return name in release.names() and loading.takes_path(release.load(name), plugin)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _machine(
    configuration: OracleConfiguration, kinds: Mapping[Host, hardware.Hardware], child: Child
) -> dict[str, Any]:
    """struct sim_machine."""
    numbers = {host: number for number, host in enumerate(kinds)}
    return {
        "hosts": len(configuration.hosts),
        "kinds": len(kinds),
        "driver_version": hardware.DRIVER_VERSION,
        "net_name": configuration.env.get("NCCL_NET", "IB"),
        "kind_of_host": [numbers[host] for host in configuration.hosts],
        "kind": [
            _host(configuration.skeleton, kind, path, child.sysfs)
            for kind, path in zip(kinds.values(), child.topologies, strict=True)
        ],
    }


def _host(skeleton: Skeleton | None, machine: hardware.Hardware, topology: Path, sysfs: Path | None) -> dict[str, Any]:
    """struct sim_host."""
    nvlinks = skeleton.nvlinks if skeleton else {}
    placed = {name: str(sysfs / bus_id) for name, bus_id in skeleton.adapters.items()} if skeleton and sysfs else {}
    return {
        "gpus_per_host": len(machine.gpus),
        "nets_per_host": len(machine.nets),
        "multicast": int(machine.multicast),
        "coll_nets": machine.coll_nets,
        "sysfs": str(sysfs or ""),
        "gpus": [{**asdict(gpu), "nvlinks": nvlinks.get(gpu.bus_id, ())} for gpu in machine.gpus],
        "nets": [{**asdict(net), "pci_path": placed.get(net.name, "")} for net in machine.nets],
        "topology": str(topology),
    }


def _watch(found: symbols.Symbols, kinds: int) -> dict[str, Any]:
    """What the release does not say when asked, and where it can be seen instead."""
    operation = found.operation.members
    model, estimate = found.functions.get("ncclTopoTuneModel"), found.functions.get("ncclTopoGetAlgoTime")
    shape = facts.shape(found.comm)
    graphs = times = None
    if "graphs" not in found.comm.arrays and model is not None:
        graphs = {"function": model[0][0], "count": shape[0]}
    if "ncclGroupSimulateEnd" not in found.functions and estimate is not None:
        backups = any(name.startswith("_Z19ncclTopoGetAlgoTime") and name.endswith("Pb") for name in found.functions)
        times = {"function": estimate[0][0], "shape": shape, "backups": backups}
    return {
        "file": found.functions["ncclTopoGetXmlFromFile"][0][0] if kinds > 1 else None,
        "operations": {
            "number": operation["opCount"].offset,
            "channel": operation["channelId"].offset,
            "pattern": operation["pattern"].offset,
            "protocol": operation["protocol"].offset,
            "type": operation["dtype"].offset,
            "profiler": next((int(value) for value, name in found.patterns.items() if name == _PROFILER), -1),
        },
        "search": {  # a system's GPUs are the first of its sets of nodes, which begin with their count
            "function": found.functions["ncclTopoCompute"][0][0],
            "gpus": found.system.arrays["nodes"][0],
        },
        "graphs": graphs,
        "times": times,
    }


def _ring(found: symbols.Symbols) -> dict[str, Any]:
    """Where a channel's neighbours on the ring are, and the flags of the connections to them.

    ``adapters`` is what connections to adapters are made with; None up to 2.23, where nothing goes by them.
    """
    return {
        "adapters": None
        if "useGdr" not in found.comm.members
        else {
            "use_gdr": found.comm.members["useGdr"].offset,
            "topology": found.comm.members["topo"].offset,
            "graph": found.comm.arrays["graphs"][0] + Algorithm.Ring * found.graph.bytes,
            "adapter_of": found.functions["ncclTopoGetNetDev"][0][0],
            "check": found.functions["ncclTopoCheckGdr"][0][0],
        },
        "channels": found.comm.arrays["channels"][0],
        "channel_bytes": found.channel.bytes,
        "prev": found.channel.members["ring.prev"].offset,
        "next": found.channel.members["ring.next"].offset,
        "peers": found.channel.members["peers"].offset,
        "send": found.peer.arrays["send"][0],
        "receive": found.peer.arrays["recv"][0],
        "flags": found.connector.members["conn.flags"].offset,
    }
