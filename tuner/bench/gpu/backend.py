"""Measures on GPUs: with one communicator of libnccl on all local GPUs, or of all processes that a launcher started.

Rank 0 runs the loop and tells the other ranks which calls are next, until it ends. The forcing plugin (csrc/force)
forces choices without a new communicator. CUDA events around a few calls in a row give the times; the slowest rank's
time counts.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, MeasuringFailed, TunerError
from tuner.base.files import sha256
from tuner.base.names import Collective, DataType, Op
from tuner.bench.backend import Options, Run
from tuner.bench.gpu import kernels, process
from tuner.bench.gpu.calls import CALLS, Calls, Rank
from tuner.bench.gpu.process import within
from tuner.bench.gpu.rendezvous import Rendezvous
from tuner.plugin import loading
from tuner.plugin.forcing import forced
from tuner.release.variables import NOT_NCCLS
from tuner.scenario import Scenario
from tuner.times.measured.header import GPU, Header, as_written
from tuner.times.measured.nccl_tests import Log
from tuner.times.measured.samples import Combination, Point, lateness

Message: TypeAlias = Mapping[str, Any]  # JSON that processes send each other
CLOSE: Message = {"do": "close"}
RENEW: Message = {"do": "renew"}  # the communicator closes, and fresh processes will meet again


@dataclass(frozen=True, slots=True)
class Order:
    """An instruction from rank 0 to the other ranks: run one call.

    The plugin decides the call by ``table``; ``seed`` determines the data. The call is checked once, then timed
    ``repeats`` times.
    """

    point: Point
    table: str | None
    repeats: int
    seed: int

    def message(self) -> Message:
        """The order in the form that ranks share."""
        return {"do": "run", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one process measured: times in us, and how many results were wrong.

    ``host_us`` is the least time that the host took to start one call; None if it was not measured. ``whole_us``: how
    long all calls together took on each rank of the process, us.
    """

    times_us: tuple[float, ...]
    wrong: int
    host_us: float | None = None
    whole_us: tuple[float, ...] = ()

    def message(self) -> Message:
        """The answer in the form that rank 0 gathers."""
        said = {"times_us": list(self.times_us), "wrong": self.wrong, "host_us": self.host_us}
        return {**said, "whole_us": list(self.whole_us)}


def failed(rank: int, error: Exception) -> Message:
    """The message that a rank sends instead of an answer if it failed."""
    return {"error": f"rank {rank}: {error}"}


def order_of(message: Message) -> Order | None:
    """The order in rank 0's message; None if the communicator is to be closed."""
    if message["do"] in (CLOSE["do"], RENEW["do"]):
        return None
    point = message["point"]
    return Order(
        Point(
            Collective(point["operation"]),
            point["bytes"],
            DataType(point["dtype"]),
            Op(point["op"]),
            point["in_place"],
            point["graph"],
        ),
        message["table"],
        message["repeats"],
        message["seed"],
    )


def answer_of(message: Message) -> Answer:
    """The gathered answers. MeasuringFailed if a process reports that it failed."""
    if "error" in message:
        raise MeasuringFailed(message["error"])
    return Answer(tuple(message["times_us"]), message["wrong"], message["host_us"], tuple(message.get("whole_us", ())))


NAME = GPU
SEVERAL = "NCCL_MULTI_RANK_GPU_ENABLE"
MOST_BLOCKS = "NCCL_MAX_CTAS"
REGISTERS = "NCCL_GRAPH_REGISTER"
OWN = "NCCL_TUNER_"
LEFT_BYTES = 2 << 30  # memory of a GPU that is left to NCCL and CUDA
_FREE_S = 5.0  # time that a broken communicator gets to end
_LATER_S = 5.0  # time after the limit of a block, because a call that hangs inside NCCL does not check that limit


class GpuBackend:
    """On rank 0 a Backend (:mod:`tuner.bench.backend`); on other ranks the object that serves rank 0.

    ``cuda`` is a :class:`tuner.bench.gpu.cuda.Cuda`. ``nccl`` is a function that loads libnccl with the given
    environment variables set. ``forcing`` is the forcing plugin. Tests replace all three.
    """

    def __init__(
        self,
        met: Rendezvous,
        devices: Sequence[int],
        options: Options,
        *,
        cuda: Any,
        nccl: Callable[[Mapping[str, str]], Any],
        forcing: Any,
    ) -> None:
        self._met, self._options, self._cuda, self._forcing = met, options, cuda, forcing
        self._log = Log(process.log(options.log if met.place.rank == 0 else None))
        self._conditions = {**self._sharing(devices), **self._registering()}
        self._nccl = nccl({**self._instruments(), **self._conditions})
        try:
            self._open(devices)
        except BaseException:
            self._nccl.close()
            raise

    def _open(self, devices: Sequence[int]) -> None:
        met, options = self._met, self._options
        self.release: str = self._nccl.release
        _check_release(self.release)
        self.ranks = met.place.world * len(devices)
        first = met.place.rank * len(devices)
        self._local = [Rank(first + number, self._cuda.lane(device)) for number, device in enumerate(devices)]
        self._free_bytes: int = self._cuda.free_bytes(devices[0])
        self._calls = Calls(self._nccl, met, self._local, self.ranks, options)
        self._table: str | None = None
        self._offered: dict[Point, list[Combination]] = {}
        self._seed = 0
        self._closed = False
        self._hosts = met.gather([socket.gethostname(), len(devices)])
        try:
            within(options.limit_s + _LATER_S, "the communicator's init", self._init)
        except MeasuringFailed as error:
            warning = self._log.last_warning()
            raise MeasuringFailed(f"{error}; NCCL's last warning: {warning}" if warning else str(error)) from None

    def _instruments(self) -> dict[str, str]:
        """Variables that measuring needs and that affect no choice."""
        return {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV",
            "NCCL_DEBUG_FILE": str(self._log.path),
            # The object is already loaded in the process, so every release finds it by its name.
            "NCCL_TUNER_PLUGIN": self._forcing.path.name,
            "NCCL_TOPO_DUMP_FILE": str(self._options.topology.resolve()),
        }

    def _sharing(self, devices: Sequence[int]) -> dict[str, str]:
        """Variables for ranks that share a GPU: their kernels wait for each other, so all kernels have to fit on the
        GPU at once.

        Without a limit NCCL takes up to 64 blocks for each rank, but a multiprocessor is only sure to run one block.
        """
        if self._options.ranks_per_gpu == 1:
            return {}
        blocks = max(1, self._cuda.multiprocessors(devices[0]) // self._options.ranks_per_gpu)
        return {SEVERAL: "1", MOST_BLOCKS: os.environ.get(MOST_BLOCKS, str(blocks))}

    def _registering(self) -> dict[str, str]:
        """Variables with which calls that are put into graphs only for timing run as they do outside of graphs: NCCL
        must not register their buffers."""
        return {} if self._options.registered else {REGISTERS: os.environ.get(REGISTERS, "0")}

    def _init(self) -> None:
        if len(self._local) > 1:
            self._nccl.load_tuner()
        unique = self._met.share(self._nccl.unique_id().hex() if self._met.place.rank == 0 else None)
        handles = []
        self._nccl.start_group()
        for rank in self._local:
            with rank.lane.current():
                handles.append(self._nccl.init_rank(self.ranks, bytes.fromhex(unique), rank.number))
        self._nccl.end_group()
        for rank, handle in zip(self._local, handles, strict=True):
            rank.comm = handle[0]

    # --- Backend ---

    def describe(self) -> Header:
        """The machine, libraries and settings, for the header of the file."""
        topology, per_gpu = self._options.topology, self._options.ranks_per_gpu
        nodes: dict[str, int] = {}
        for host, count in self._hosts:
            nodes[host] = nodes.get(host, 0) + count
        header = Header(
            backend=NAME,
            ranks=self.ranks,
            nccl=self.release,
            library_sha256=sha256(self._nccl.path),
            scenario=as_written(
                Scenario(
                    self.release,
                    len(nodes),
                    topology=topology,
                    gpus_per_node=next(iter(nodes.values())) // per_gpu,
                    ranks_per_gpu=per_gpu if per_gpu > 1 else None,
                    environment=self._environment(),
                )
            ),
            gpu=self._cuda.name(self._local[0].lane.device),
            ranks_per_gpu=self._options.ranks_per_gpu,
            launcher=self._met.place.launcher,
            calls_per_time=CALLS,
            graphs_below_bytes=self._options.graphs_below_bytes,
            graph_buffers_registered=self._options.registered,
            variables=self._environment(),
            topology_xml=topology.read_text() if topology.is_file() else None,
            noted=replace(
                self._cuda.noted(),
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                hosts=tuple(sorted(nodes)),
                library=self._nccl.path,
            ),
        )
        return replace(header, **self._cuda.stood_in())

    def _environment(self) -> dict[str, str]:
        """The NCCL variables that are set, without those that only measuring uses, this project's own, and those that
        NCCL does not read."""
        left_out = {*self._instruments(), *NOT_NCCLS}
        given = {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}
        given |= self._conditions
        return {name: given[name] for name in given if name not in left_out and not name.startswith(OWN)}

    def combinations(self, point: Point) -> list[Combination]:
        """The combinations that NCCL offers its tuner for this call, with NCCL's own number of channels; empty if the
        GPU's memory is too small.
        """
        kernels.definitions(point.dtype, point.op, self.ranks)
        if not self._fits(point):
            return []
        if (key := replace(point, in_place=False, graph=False)) not in self._offered:
            self._all(key, None, 0)
            costs = self._forcing.seen().costs_us
            self._offered[key] = [Combination(algorithm, protocol) for algorithm, protocol, _ in costs]
        return self._offered[key]

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Runs one collective ``repeats`` times on all ranks.

        MeasuringFailed if a rank fails, BadInput for what cannot run.
        """
        table = self._table
        if requested is not None:
            table = forced(point.collective, requested.algorithm, requested.protocol, requested.channels)
        self._log.skip()
        answers = self._all(point, table, repeats)
        seen, executed = self._forcing.seen(), self._log.since(point.collective, requested)
        if requested is not None and not seen.decided:
            raise BadInput(f"{requested} cannot run {point.collective.name} of {point.bytes} bytes here")
        times = tuple(max(each) for each in zip(*(answer.times_us for answer in answers), strict=True))
        host_us = max((answer.host_us for answer in answers if answer.host_us is not None), default=None)
        whole_us = [each for answer in answers for each in answer.whole_us]
        return Run(times, executed, sum(answer.wrong for answer in answers), host_us, lateness(whole_us))

    def now_s(self) -> float:
        """Seconds of a clock that only goes forwards."""
        return time.monotonic()

    def use_table(self, text: str | None) -> None:
        """Sets the decision table that decides calls for which nothing is forced; None removes it."""
        self._forcing.use_table(text)  # so that a mistake in the table is reported here and now
        self._table = text

    def renew(self) -> bool:
        """Always False: there are no processes besides the launcher's."""
        return False

    def rest(self, seconds: float) -> None:
        """Waits; the other ranks wait for the next message."""
        time.sleep(seconds)

    def close(self) -> None:
        """Ends the communicator on all ranks."""
        self._leave(CLOSE)

    def make_way(self) -> None:
        """Ends as :meth:`close` does, and tells the other ranks that a fresh process will replace each of them."""
        self._leave(RENEW)

    def _leave(self, message: Message) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(TunerError):
            self._met.share(message)
        self._end(broken=False)

    # --- all ranks ---

    def _all(self, point: Point, table: str | None, repeats: int) -> list[Answer]:
        """Lets every process run a point and returns their measurements. On MeasuringFailed the communicator is
        ended.
        """
        if self._closed:
            raise MeasuringFailed("the communicator has ended")
        self._seed += 1
        order = Order(point, table, repeats, self._seed)
        try:
            self._met.share(order.message())
            return list(map(answer_of, self._met.gather(self._do(order).message())))
        except BaseException:
            self._closed = True
            self._end(broken=True)
            raise

    def serve(self) -> bool:
        """On ranks other than 0: carries out rank 0's orders until rank 0 closes or is gone. Returns whether fresh
        processes will follow.

        MeasuringFailed if a rank fails.
        """
        broken = True
        try:
            while (order := order_of(message := self._met.share())) is not None:
                said = self._said(order)
                self._met.gather(said)
                answer_of(said)
            broken = False
        finally:
            self._end(broken)
        return bool(message == RENEW)

    def _said(self, order: Order) -> Message:
        try:
            return self._do(order).message()
        except TunerError as error:
            return failed(self._met.place.rank, error)

    def _end(self, broken: bool) -> None:
        def free() -> None:
            for rank in self._local:
                with suppress(TunerError), rank.lane.current():
                    (self._nccl.abort if broken else self._nccl.destroy)(rank.comm)

        freeing = threading.Thread(target=free, daemon=True)
        freeing.start()
        freeing.join(_FREE_S)
        self._met.close()
        self._nccl.close()

    # --- one block ---

    def _do(self, order: Order) -> Answer:
        """Makes one checked call, one call that is not timed, then the repeats."""
        return within(self._options.limit_s + _LATER_S, "a block of calls", lambda: self._block(order))

    def _block(self, order: Order) -> Answer:
        deadline_s = time.monotonic() + self._options.limit_s
        self._forcing.use_table(order.table)
        wrong = self._calls.checked(order.point, order.seed, deadline_s)
        if not order.repeats:
            return Answer((), wrong)
        timed = self._calls.timed(order.point, order.repeats, deadline_s)
        return Answer(timed.times_us, wrong, timed.host_us, timed.whole_us)

    def _fits(self, point: Point) -> bool:
        """Whether both buffers of all ranks fit on the GPU, including what is already allocated for them."""
        return 2 * point.bytes * self._options.ranks_per_gpu + LEFT_BYTES <= self._free_bytes


def _check_release(name: str) -> None:
    """Raises BadInput for a release without tuner plugins; an unknown release is assumed to have tuner plugins."""
    if name in release.names():
        loading.interface(release.load(name))
