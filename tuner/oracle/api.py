"""Asks libnccl questions, on simulated devices."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.extras import bindings
from tuner.base.names import SYMMETRIC, Algorithm, Buffers, Collective, DataType, Op, Windows
from tuner.emulator.connect.nodes import Connected
from tuner.emulator.group import Operation
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules import call_configuration
from tuner.machine.graphs import Graph
from tuner.oracle import facts, launches, messages, start
from tuner.oracle.answers import Contradiction, Observation, OracleLaunch, Reader, TunerCosts
from tuner.plugin import forcing_path
from tuner.plugin.forcing import SeenByPlugin
from tuner.release import learnt
from tuner.scenario.oracle_configuration import OracleConfiguration

# Warnings after which NCCL does the same as on the real machine: about hardware that is not simulated and affects no
# choice, about CollNet that NCCL then leaves out, about values of variables that it corrects (later releases print
# these as INFO), and about a search that finds no better channels than the GPUs in their order.
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


def serious_warnings(log: Sequence[str]) -> list[str]:
    """Lines of NCCL's log that warn about something that differs from the real machine."""
    return [line for line in log if " NCCL WARN " in line and not any(words in line for words in _HARMLESS)]


def _registration(buffers: Buffers, windows: Windows) -> messages.RegistrationMessage:
    if buffers is not Buffers.window:
        return messages.RegistrationMessage(int(buffers))
    return messages.RegistrationMessage(int(buffers), int(windows.sides), int(windows.flags))


class Oracle:
    """One communicator in a child process. Use it as a context manager, or ``close`` it.

    Raises OracleUnavailable if the library cannot be loaded here, BadInput or BadTopology for an impossible
    configuration, and OracleFailed if NCCL fails, crashes or takes longer than ``timeout_s`` (for the start, and for
    each request). NCCL's warnings at the start also count as failure, except with ``warned``: an unknown plugin may
    cause some.
    """

    def __init__(self, configuration: OracleConfiguration, timeout_s: float = 120.0, *, warned: bool = False) -> None:
        self._prepared = start.prepare(configuration)
        self._warned = warned
        self.configuration = configuration
        self.timeout_s = timeout_s
        self._child = start.launch_child(self._prepared)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        configuration, child = self.configuration, self._child
        started: messages.Started = self._request(
            start.request(self._prepared, child.log, child.topologies, child.sysfs),
            f"initialising {configuration.ranks} ranks",
        )
        if not self._warned:
            self._check_log()
        self.plugin_interface = started.plugin_interface  # of a recorded plugin; 0 without one
        if configuration.plugin is not None and not started.plugin_used:
            raise self._child.failure(f"NCCL did not load tuner plugin {configuration.plugin}", about="tuner")
        self._read(started)

    def start_again(self, variables: Mapping[str, str | None]) -> None:
        """Makes another communicator in the same process, after setting these variables (None: unset).

        The previous one stays open; all later questions, and the facts, graphs and tables, refer to the new one.
        OracleFailed if NCCL refuses it; BadInput for a communicator that was split off.
        """
        if self.configuration.split_off is not None:
            raise BadInput("a communicator that was split off cannot be made again: use one of all ranks")
        self._read(self._request(messages.StartAgain(dict(variables)), "initialising a further communicator"))

    def _read(self, started: messages.Started) -> None:
        nccl, symbols = self._prepared.library, self._prepared.symbols
        configuration = self.configuration
        version = release.of_code(started.version)
        if configuration.library is None and version != nccl.release.partition(learnt.AT)[0]:
            raise OracleFailed(f"{nccl.path} says it is {version}, not {nccl.release}")
        self._buffer_bytes = started.buffer_bytes
        self._reader = Reader(started, symbols)
        if release.is_known(configuration.release) and (configuration.library or learnt.is_learnt(nccl.release)):
            version = configuration.release  # the release whose table describes it
        self.facts = facts.facts(started.comm, version, nccl.sha256)
        types = start.path_types(version)
        self.graphs: dict[Algorithm, Graph] = facts.graphs(started.graphs, self.facts.local_ranks, types)
        self.tables = facts.tables(started.comm, symbols.comm)
        self.last_rank_facts = facts.facts(started.last_comm, version, nccl.sha256)
        self.last_rank_tables = facts.tables(started.last_comm, symbols.comm)
        self.memory = started.comm

    def _check_log(self) -> None:
        if warnings := serious_warnings(self._child.log_lines()):
            raise self._child.failure(f"NCCL warned {len(warnings)} times while initialising")

    def _request(self, message: messages.Request, doing: str) -> Any:
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
        """The process id of the child."""
        return self._child.pid

    def log_lines(self) -> list[str]:
        """Lines of NCCL's own log so far, from all ranks: level INFO of the subsystems INIT, GRAPH, TUNING and ENV."""
        return self._child.log_lines()

    def graph_xml(self) -> str | None:
        """Content of NCCL_GRAPH_DUMP_FILE; None if NCCL wrote nothing."""
        return self._child.graph.read_text() if self._child.graph.is_file() else None

    def topology_xml(self) -> str | None:
        """Content of NCCL_TOPO_DUMP_FILE; None if it was not requested."""
        return self._child.completed.read_text() if self._child.completed.is_file() else None

    def connected(self) -> Connected:
        """The channels of every rank as they are in NCCL's memory, and the adapters that NCCL says they use."""
        answer: messages.ChannelsMessage = self._request(messages.Read.channels, "reading the channels")
        return facts.connected(answer, release.load(self.facts.release).limits.max_direct_local_ranks)

    def reachable(self, collective: Collective, dtype: DataType, size_bytes: int) -> tuple[int, int]:
        """The largest possible size of a call that is at most ``size_bytes``, and the smallest possible size that is at
        least ``size_bytes``; never 0."""
        step = self._step(Request(collective, dtype, Op.sum))
        low = max(size_bytes // step, 1) * step
        return low, low if size_bytes == low else max(-(-size_bytes // step), 1) * step

    def costs(self, request: Request, sizes_bytes: Sequence[int]) -> NDArray[np.float32]:
        """The cost table that NCCL hands to a tuner plugin for each size: a float32 array
        ``[size][algorithm][protocol]`` in us, with -1.0 in ignored cells.
        """
        return self.ask(request, sizes_bytes).before_us

    def ask(self, request: Request, sizes_bytes: Sequence[int]) -> TunerCosts:
        """For one call of each size: the cost table before and after the plugin changed it, and the time of NCCL's
        pick."""
        if not self._prepared.recorded:
            raise BadInput("NCCL runs without the recorder: set record_plugin beside a plugin, and not without_tuner")
        simulated = self._prepared.simulates
        answers, calls = self._observe(request, sizes_bytes, simulated=simulated)
        with self._explained():
            return self._reader.requested(answers, calls, simulated, self.tables.max_threads.shape)

    def launch(self, request: Request, sizes_bytes: Sequence[int], captured: bool = False) -> list[OracleLaunch]:
        """Makes NCCL launch a call of each size on rank 0, one after the other; with ``captured``, each in its own CUDA
        graph.

        Calls on graph buffers are always captured.
        """
        if request.symmetric:
            raise BadInput("calls on windows may leave the classic path: use launch_on_any_path for them")
        _, calls = self._observe(request, sizes_bytes, captured=captured)
        with self._explained():
            return [self._reader.launched(call) for call in calls]

    def launch_on_any_path(self, request: Request, sizes_bytes: Sequence[int]) -> list[OracleLaunch | NonClassicPath]:
        """Like :meth:`launch`, for calls that may leave the classic path, such as those in symmetric windows."""
        _, calls = self._observe(request, sizes_bytes)
        with self._explained():
            return [self._reader.non_classic_path(call) or self._reader.launched(call) for call in calls]

    def launch_group(
        self,
        calls: Sequence[Operation],
    ) -> launches.LaunchedGroup:
        """Makes NCCL launch all calls on rank 0 as one group (ncclGroupStart, ncclGroupEnd).

        All calls have the kind of buffers of the first; on graph buffers they are captured into one CUDA graph.
        """
        self._check_ranks()
        if not calls:
            raise BadInput("a group without a collective launches nothing: add one")
        buffers = calls[0].request.buffers
        self._check_registers(buffers)
        issued = tuple(self._call(call.request, call.bytes, buffers, call.root) for call in calls)
        what = f"launching a group of {len(calls)} collectives"
        registration = _registration(buffers, calls[0].request.windows)
        group = messages.GroupMessage(issued, buffers=registration, captured=buffers is Buffers.graph)
        answer: messages.GroupAnswerMessage = self._request(group, what)
        if answer.error is not None:
            raise self._child.failure(f"{what}: {answer.error}", returned=True)
        with self._explained(f"{what} gave "):
            return launches.read_groups(self._reader, answer, self._child.log_bytes(answer.log_start, answer.log_end))

    def launch_tuned(self, call: Operation, rank: int = 0) -> launches.TunedCall:
        """Makes NCCL launch one call on ``rank``. Returns the launch, or NCCL's error, with the questions to the
        wrapped plugin.

        NCCL may ask the plugin several times; its last question is the one that decides.
        """
        self._check_ranks()
        group = messages.GroupMessage((self._call(call.request, call.bytes, root=call.root),), rank=rank)
        what = f"launching {call.request.collective.name} of {call.bytes} bytes on rank {rank}"
        answer: messages.GroupAnswerMessage = self._request(group, what)
        with self._explained(f"{what} gave "):
            log = self._child.log_bytes(answer.log_start, answer.log_end)
            return launches.read_tuned(self._reader, call, answer, log)

    def launch_in_full(
        self,
        calls: Sequence[launches.IssuedCall],
        rank: int = 0,
        buffers: Buffers = Buffers.plain,
        windows: Windows = SYMMETRIC,
    ) -> launches.LaunchInFull:
        """Makes NCCL launch the calls of one rank, which may include sends and receives, as one group; returns
        everything that NCCL writes for them.

        BadInput if the release has no function for one of the calls, or cannot register buffers of the kind
        ``buffers``. Some groups launch no kernel.
        """
        return self.launch_groups_in_full([calls], rank, buffers, windows)[0]

    def launch_groups_in_full(
        self,
        groups: Sequence[Sequence[launches.IssuedCall]],
        rank: int = 0,
        buffers: Buffers = Buffers.plain,
        windows: Windows = SYMMETRIC,
    ) -> list[launches.LaunchInFull]:
        """Launches several groups one after the other, each as :meth:`launch_in_full` does."""
        self._check_ranks()
        self._check_registers(buffers)
        for call in chain.from_iterable(groups):
            own = launches.OWN_FUNCTION.get(call.function)
            if own is not None and own not in self._prepared.symbols.functions:
                raise BadInput(f"NCCL {self.facts.release} has no {own}: use sends and receives")
        ranks, registration = self.configuration.asked_ranks, _registration(buffers, windows)
        asked = tuple(launches.request(calls, ranks, rank, registration) for calls in groups)
        what = f"launching {len(groups)} groups"
        reply: messages.GroupAnswers = self._request(asked, what)
        for answer in reply:
            if answer.error is not None:
                raise self._child.failure(f"{what}: {answer.error}", returned=True)
        return [launches.read_launches(self._reader, answer) for answer in reply]

    def use_table(self, text: str | None) -> None:
        """Sets the table that decides later calls; None for NCCL's own choices. The plugin must be the forcing
        plugin."""
        self._forcing(messages.SetTable(text), "setting a table")

    def seen(self) -> SeenByPlugin:
        """The number of questions that the forcing plugin was asked, and what it did, since its table was set."""
        return SeenByPlugin.of(self._forcing(messages.Read.counts, "asking the forcing plugin"))

    def _forcing(self, request: messages.Request, what: str) -> Any:
        if self.configuration.plugin is None or not self.configuration.plugin.samefile(forcing_path()):
            raise BadInput(f"{what} needs the forcing plugin: plugin={forcing_path()}")
        return bindings("_force").ffi.from_buffer("struct nccl_tuner_seen *", self._request(request, what))

    def _step(self, request: Request) -> int:
        return request.unit_bytes(self.configuration.asked_ranks)

    def _call(
        self, request: Request, size_bytes: int, kind: int = Buffers.plain, root: int = 0
    ) -> messages.CallMessage:
        size, step, most = int(size_bytes), self._step(request), self._buffer_bytes[kind]
        if size < step or size % step:
            low, high = self.reachable(request.collective, request.dtype, size)
            raise BadInput(
                f"no {request.collective.name} of {request.dtype.name} on {self.configuration.asked_ranks} ranks has "
                f"{size} bytes; nearest: {low}" + (f", {high}" if high != low else "")
            )
        if size > most:
            raise BadInput(f"{size} bytes is more than a simulated buffer holds: use up to {most}")
        of_type = int(request.collective), int(request.dtype), int(request.op)
        configured = call_configuration.in_fields(request.configuration)
        return messages.CallMessage(*of_type, size // step, root, int(request.in_place), configured)

    def _check_ranks(self) -> None:
        if self.configuration.asked_ranks == 1:
            raise BadInput("with one rank there is nothing to choose: NCCL only copies")

    def _check_registers(self, buffers: Buffers) -> None:
        if not self._prepared.registers(buffers):
            raise BadInput(f"NCCL {self.facts.release} has no {buffers.name} buffers: use a later release")

    def _observe(
        self, request: Request, sizes_bytes: Sequence[int], simulated: bool = False, captured: bool = False
    ) -> tuple[Any, list[Observation]]:
        """Makes one call of each size. Returns the array of ``struct sim_answer``, and each call with its piece of
        NCCL's log."""
        self._check_ranks()
        buffers = request.buffers
        self._check_registers(buffers)
        captured = captured or buffers is Buffers.graph
        kind = int(Buffers.graph if captured and buffers is Buffers.plain else buffers)
        calls = tuple(self._call(request, size, kind) for size in sizes_bytes)
        if not calls:
            return np.zeros(0, self._reader.answer), []
        what = f"{'simulating' if simulated else 'launching'} {len(calls)} {request.collective.name} of "
        what += request.dtype.name
        buffers_of_calls = _registration(Buffers(kind), request.windows)
        reply: messages.Answers = self._request(
            messages.CallsMessage(calls, buffers_of_calls, simulated, captured), what
        )
        if reply.error is not None:
            raise self._child.failure(
                f"{what}: at {int(sizes_bytes[reply.succeeded])} bytes {reply.error}", returned=True
            )
        answers = np.frombuffer(reply.records, self._reader.answer)
        ends = [int(end) - reply.log_start for end in answers["log_bytes"]]
        log = self._child.log_bytes(reply.log_start, reply.log_start + ends[-1])
        logs = [log[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return answers, list(map(Observation, map(int, sizes_bytes), answers["record"], logs))

    @contextlib.contextmanager
    def _explained(self, before: str = "") -> Iterator[None]:
        """Turns a Contradiction inside the block into an OracleFailed, with NCCL's last warnings."""
        try:
            yield
        except Contradiction as why:
            raise self._child.failure(f"{before}{why}") from None
