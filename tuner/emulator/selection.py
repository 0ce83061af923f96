"""The cost table of a call, the pick, and the channels and threads it is launched with; vectorised over sizes.

A :class:`Selection` holds a communicator's tables; those of a collective are filled in when it is first asked for. A
call's cells are those whose bandwidth is not 0 and that no candidate rule refuses; if no cell is left, Ring's backup is
used. Each cell's time is latency plus bytes over bandwidth, with corrections that depend on the size; the release's
pick rule takes the cell with the least time. A tuner plugin is asked first, with the cost table, and may name cell and
channels; NCCL picks what it leaves open. The launch rule then derives channels and threads from the picked cell. Sizes
are computed in chunks, each as an array. For calls that may leave the classic path,
:mod:`tuner.emulator.rules.symmetric` is asked first.

Source of the order of these steps: getAlgoInfo and topoGetAlgoInfo, src/enqueue.cc, v2.28.9-1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base import trace
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm, Remedy
from tuner.base.frames import Column, Framed, arrays_of
from tuner.base.names import ALGO_PROTOS, SYMMETRIC, AlgoProto, Algorithm, Buffers, Collective, Protocol, Windows
from tuner.base.nouns import Choice
from tuner.base.numerics import NEVER_US, Float, FloatArray, IntArray, SizeArray, distinct, shortest
from tuner.base.sizes import size_list
from tuner.emulator import model
from tuner.emulator.communicator import Comm
from tuner.emulator.request import MessageSizes, NonClassicPath, Request
from tuner.emulator.rules import call_configuration, registered, symmetric
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.bounds import plain_bound
from tuner.emulator.rules.call import ModelPoint as ModelPoint
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.channel_work import check_buffer
from tuner.emulator.rules.schedule.scheduler import check_alone, limits_kernels
from tuner.emulator.rules.symmetric_rail import ClassicProtocol
from tuner.emulator.tuner_plugin import OWN, TunerAnswers, TunerQuestion
from tuner.release.standing import refuse_not_read

MULTICAST = (Algorithm.NVLS, Protocol.Simple)
IGNORED_US = np.float32(-1.0)  # NCCL_ALGO_PROTO_IGNORE
LISTS = ("NCCL_ALGO", "NCCL_PROTO")  # variables that exclude some algorithms and protocols
CHUNK = 1 << 15  # sizes that are computed at a time, so that the arrays stay in the processor's cache
MAX_BYTES = 2**62


class Picks(Framed):
    """NCCL's picks, one element per size. ``algorithm`` and ``protocol`` are NCCL's numbers.

    Arrays [size]: ``bytes`` uint64, ``algorithm`` and ``protocol`` int8, ``time_us`` float32, ``channels`` and
    ``threads`` (of a block) int64. The last two are stored in the integer type in which they were given.
    """

    __slots__ = ("_channels", "_threads", "algorithm", "bytes", "protocol", "time_us")

    def __init__(
        self,
        bytes: SizeArray,
        algorithm: NDArray[np.int8],
        protocol: NDArray[np.int8],
        time_us: FloatArray,
        channels: NDArray[np.integer],
        threads: NDArray[np.integer],
    ) -> None:
        self.bytes, self.algorithm, self.protocol, self.time_us = bytes, algorithm, protocol, time_us
        self._channels, self._threads = channels, threads

    @property
    def stored(self) -> tuple[NDArray[Any], ...]:
        """The arrays in the form in which they are stored, in the order of the constructor."""
        return self.bytes, self.algorithm, self.protocol, self.time_us, self._channels, self._threads

    @property
    def channels(self) -> NDArray[np.int64]:
        """The number of channels of each launch, [size]."""
        return self._channels.astype(np.int64, copy=False)

    @property
    def threads(self) -> NDArray[np.int64]:
        """The threads of a block of each launch, [size]."""
        return self._threads.astype(np.int64, copy=False)

    @property
    def combinations(self) -> NDArray[np.int64]:
        """The algorithm and protocol of each size as one number, an index into ``ALGO_PROTOS``."""
        return self.algorithm.astype(np.int64) * len(Protocol) + self.protocol

    def algo_protos(self) -> list[AlgoProto]:
        """Algorithm and protocol of each size."""
        return [(Algorithm(a), Protocol(p)) for a, p in zip(self.algorithm, self.protocol, strict=True)]

    def columns(self) -> dict[str, Column]:
        """One row per size: bytes, algorithm, protocol, channels, threads, time_us."""
        return arrays_of(self, "bytes", "algorithm", "protocol", "channels", "threads", "time_us")


class Selection:
    """Answers for one communicator. ``sizes`` are NCCL's nBytes, 1 to 2**62: an integer or an array of them.

    ``near`` is the selection of a similar communicator. The sizes at which its candidates change their order are tried
    first for this communicator, too, which saves time and changes no answer.
    """

    def __init__(self, communicator: Comm, near: "Selection | None" = None) -> None:
        self.communicator = communicator
        self.near = near
        # Sizes at which the order of candidates changes, for requests where this was computed
        self.turns: dict[Request, SizeArray] = {}
        self._refusals: dict[Request, dict[Algorithm, str | None]] = {}
        self._usable: dict[Request, dict[AlgoProto, Float]] = {}
        self._asks_a_tuner = False

    @cached_property
    def tables(self) -> model.Tables:
        """Latencies, bandwidths, threads and thresholds of this communicator: :func:`tuner.emulator.model.tables`."""
        for collective in Collective:
            self.tables_of(collective)
        return self._begun[0]

    @cached_property
    def _begun(self) -> tuple[model.Tables, set[Collective]]:
        """The tables, filled in only for the collectives that were asked for, and the set of these collectives."""
        return model.empty(self.communicator), set()

    def tables_of(self, collective: Collective) -> model.Tables:
        """The tables with at least this collective filled in, as most callers need only one."""
        tables, filled = self._begun
        if collective not in filled:
            model.fill(tables, self.communicator, collective)
            filled.add(collective)
        return tables

    def excluded(self, request: Request) -> dict[AlgoProto, str]:
        """The cells this call may not use, each with the reason."""
        return {
            algo_proto: reason
            for algo_proto in ALGO_PROTOS
            if (reason := self._reason(request, algo_proto)) is not None
        }

    def candidates(self, request: Request) -> list[AlgoProto]:
        """The cells this call may use, in NCCL's order."""
        return list(self.bandwidths_gbs(request))

    def usable(self, request: Request) -> bool:
        """Whether NCCL accepts this call's data type and finds any algorithm for the call."""
        try:
            self._check_type(request)
        except NoAlgorithm:
            return False
        return bool(self.bandwidths_gbs(request))

    def cost_table(self, request: Request, sizes: ArrayLike) -> FloatArray:
        """Times in us, float32 [size][algorithm][protocol]; negative where NCCL ignores the cell.

        An ignored cell has -1, or -1024 if NCCL's penalty multiplies that, too.

        NCCL gives this table to a tuner plugin. BadInput for sizes out of range.
        """
        nbytes = MessageSizes(size_array(sizes))
        table = np.empty((len(nbytes.nbytes), len(Algorithm), len(Protocol)), np.float32)
        for algo_proto in ALGO_PROTOS:
            table[:, algo_proto[0], algo_proto[1]] = self._cell_us(request, algo_proto, nbytes)
        return table

    def times_us(self, request: Request, sizes: ArrayLike) -> FloatArray:
        """Times of the :meth:`candidates` in us, float32 [size][candidate]. BadInput for sizes out of range."""
        chunk = MessageSizes(size_array(sizes))
        bandwidths = self.bandwidths_gbs(request).items()
        return np.column_stack(
            [self._times(self._call(request, each), chunk, bandwidth_gbs) for each, bandwidth_gbs in bandwidths]
        )

    def ranked(self, request: Request, sizes: SizeArray) -> tuple[FloatArray, NDArray[np.int64]]:
        """The result of :meth:`times_us`, and NCCL's own picks on the classic path.

        The picks are indices into ``ALGO_PROTOS``, in an array [size].

        Each time is computed only once. Launches are computed only if they may change a pick, or if they may be
        refused. Raises NoAlgorithm and BadInput.
        """
        times_us = self.times_us(request, sizes)
        communicator = self.communicator
        if request.buffers is not Buffers.plain or limits_kernels(communicator):
            return times_us, self.alone.classic_pick(request, sizes).combinations
        self._check_type(request)
        self._check_call(request, sizes)
        best, _ = communicator.rules.pick(iter(times_us.T), communicator)
        return times_us, np.array([ALGO_PROTOS.index(each) for each in self.bandwidths_gbs(request)], np.int64).take(
            best
        )

    def combination_us(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> FloatArray:
        """Times of one of the :meth:`candidates` in us, float32 [size]; NaN for any other cell."""
        nbytes = size_array(sizes)
        bandwidth_gbs = self.bandwidths_gbs(request).get(algo_proto)
        if bandwidth_gbs is None:
            return np.full(len(nbytes), np.nan, np.float32)
        return self._times(self._call(request, algo_proto), MessageSizes(nbytes), bandwidth_gbs)

    def non_classic_paths(
        self, request: Request, sizes: ArrayLike, classic: ClassicProtocol | None = None
    ) -> list[NonClassicPath | None]:
        """For each size, the path by which the call bypasses the algorithms; None if it stays on the classic path.

        If a tuner plugin answers instead of NCCL, ``classic`` returns the protocol that the classic path would use.
        BadInput if the bypass is not emulated, or if there is less than a byte for each rank.
        """
        nbytes = size_array(sizes)
        self._check_call(request, nbytes)
        if not self.may_leave_classic_path(request):
            return [None] * len(nbytes)
        self._check_type(request)
        if (none := request.parts(self.communicator.ranks)) > nbytes.min(initial=none):
            raise BadInput(
                f"{request.collective.name} of this size has less than a byte for each rank: give {none} bytes or more"
            )
        rule, protocol = self.communicator.rules.non_classic_path, classic or self._protocols(nbytes)
        return [rule(self.communicator, request, size, protocol) for size in nbytes.tolist()]

    def may_leave_classic_path(self, request: Request) -> bool:
        """Whether these calls may bypass the algorithms at some sizes: on windows, or if variables ask for it."""
        variables = self.communicator.release.environment.symmetric_kernels
        asked = not self.communicator.environment.values.keys().isdisjoint(variables)
        without_windows = self.communicator.rules.symmetric_low_latency is not None
        return bool(request.symmetric) or (asked and without_windows)

    def _protocols(self, nbytes: SizeArray) -> ClassicProtocol:
        """A function that returns the protocol of the classic path at one of these sizes, or None if nothing runs.

        The function computes all sizes at once.
        """

        @cache
        def of_all(request: Request) -> dict[int, Protocol] | None:
            try:
                protocols = self._classic_pick(request, nbytes).protocol
            except NoAlgorithm:  # some sizes have no algorithm
                return None
            return dict(zip(nbytes.tolist(), map(Protocol, protocols.tolist()), strict=True))

        @cache
        def of_one(request: Request, size: int) -> Protocol | None:
            known = of_all(request)
            if known is not None and size in known:
                return known[size]
            try:
                return Protocol(self._classic_pick(request, np.array([size], np.uint64)).protocol[0])
            except NoAlgorithm:
                return None

        return of_one

    def pick(self, request: Request, sizes: ArrayLike) -> Picks:
        """NCCL's picks at these sizes. NoAlgorithm if no algorithm is left, as in NCCL.

        BadInput if a size leaves the classic path: see :meth:`non_classic_paths`.
        """
        nbytes = size_array(sizes)
        if self.may_leave_classic_path(request):
            for size, non_classic in zip(nbytes, self.non_classic_paths(request, nbytes), strict=True):
                if non_classic is not None:
                    call = f"{request.collective.name} of {size} bytes"
                    raise BadInput(f"{call} leaves the classic path for {non_classic.name}")
        return self._classic_pick(request, nbytes)

    def classic_pick(self, request: Request, sizes: ArrayLike) -> Picks:
        """The picks of the classic path, also at sizes at which NCCL bypasses it. Raises NoAlgorithm and BadInput."""
        return self._classic_pick(request, size_array(sizes))

    def pick_with_costs(self, request: Request, sizes: ArrayLike) -> tuple[Picks, FloatArray]:
        """The results of :meth:`pick` and :meth:`cost_table`, for sizes that stay on the classic path; each time is
        computed once."""
        nbytes = size_array(sizes)
        table_us = self.cost_table(request, nbytes)
        return self.model_pick(request, nbytes, table_us), table_us

    def take_tables(self, other: "Selection") -> None:
        """Shares the tables of a selection whose communicator has equal ones: what either fills in, both have."""
        vars(self)["_begun"] = other._begun

    @cached_property
    def alone(self) -> "Selection":
        """The same selection without the communicator's tuner."""
        if self.communicator.tuner is None:
            return self
        other = Selection(replace(self.communicator, tuner=None))
        other._asks_a_tuner = True
        other.take_tables(self)  # a tuner affects none of these numbers
        return other

    def tuner_answers(self, request: Request, nbytes: SizeArray) -> TunerAnswers:
        """Answers of the communicator's tuner; without one, everything is left to NCCL."""
        tuner = self.communicator.tuner
        if tuner is None:
            return TunerAnswers.none(len(nbytes))
        sizes = MessageSizes(nbytes)

        @cache
        def cost_us(algo_proto: AlgoProto) -> FloatArray:
            return self._cell_us(request, algo_proto, sizes)

        return tuner.answers(TunerQuestion(self.communicator, request, nbytes, cost_us, self._not_ignored(request)))

    def _cell_us(self, request: Request, algo_proto: AlgoProto, sizes: MessageSizes) -> FloatArray:
        """The times of a cell, negative where NCCL ignores it, as the cost table has them."""
        if self._not_a_candidate(request, algo_proto[0]) is not None or self._deselected(request, algo_proto):
            return np.full(sizes.nbytes.shape, IGNORED_US)
        bandwidth_gbs = self.tables_of(request.collective).bandwidth_gbs[(request.collective, *algo_proto)]
        return self._times(self._call(request, algo_proto), sizes, bandwidth_gbs)

    def _not_ignored(self, request: Request) -> list[AlgoProto]:
        """The cells of the cost table that have times."""
        bandwidths = self.bandwidths_gbs(request)
        return list(bandwidths) if bandwidths and self._reason(request, next(iter(bandwidths))) is None else []

    def _tuned_pick(self, request: Request, nbytes: SizeArray) -> Picks:
        """Picks with the communicator's tuner; NCCL picks what the tuner leaves to it."""
        self._check_type(request)
        self._check_call(request, nbytes)
        parts = [self._tuned_part(request, nbytes[part]) for part in _chunks(len(nbytes))]
        if len(parts) == 1:
            return parts[0]
        return Picks(*map(np.concatenate, zip(*(part.stored for part in parts), strict=True)))

    def _tuned_part(self, request: Request, nbytes: SizeArray) -> Picks:
        answers = self.tuner_answers(request, nbytes)
        left = answers.cell == OWN
        if left.all():
            return self.alone.model_pick(request, nbytes)
        combination = answers.cell.copy()
        time_us = np.empty(nbytes.shape, np.float32)
        channels, threads = np.empty(nbytes.shape, np.int64), np.empty(nbytes.shape, np.int64)
        for cell in distinct(answers.cell):
            if cell == OWN:
                continue
            of_cell = np.flatnonzero(answers.cell == cell)
            named = answers.channels[of_cell]
            for count in distinct(named):
                at = of_cell[named == count]
                channels[at], threads[at] = self.launched_by_tuner(request, nbytes[at], ALGO_PROTOS[cell], count)
            # The tuner's cell has the time 0. The time that NCCL had computed says more, if there is one (up to 2.21
            # there may be none).
            own_us = self._cell_us(request, ALGO_PROTOS[cell], MessageSizes(nbytes[of_cell]))
            time_us[of_cell] = np.where(own_us < 0, NEVER_US, own_us)
        if left.any():
            own = self.alone.model_pick(request, nbytes[left])
            combination[left], time_us[left] = own.combinations, own.time_us
            channels[left], threads[left] = own.channels, own.threads
        check_alone(self.communicator, int(channels.max()))
        algorithm, protocol = np.divmod(combination, len(Protocol))
        return Picks(nbytes, algorithm.astype(np.int8), protocol.astype(np.int8), time_us, channels, threads)

    def launched_by_tuner(
        self, request: Request, nbytes: SizeArray, algo_proto: AlgoProto, named: int
    ) -> tuple[IntArray, IntArray]:
        """Channels and threads, [size], if a tuner names the cell and ``named`` channels (0: NCCL's own number)."""
        call, tables = self._call(request, algo_proto), self.tables_of(request.collective)
        if not named:
            return self.communicator.rules.launch(call, tables, nbytes)
        return self.communicator.rules.launch.tuned(call, tables, nbytes, named)

    def _classic_pick(self, request: Request, nbytes: SizeArray) -> Picks:
        return self.model_pick(request, nbytes)

    def model_pick(self, request: Request, nbytes: SizeArray, table_us: FloatArray | None = None) -> Picks:
        """The picks of these sizes by the model, without any lookup table; ``table_us``: the cost table, if known.

        NoAlgorithm if nothing is left to pick from.
        """
        if self.communicator.tuner is not None and len(nbytes):
            return self._tuned_pick(request, nbytes)
        self._check_type(request)
        self._check_call(request, nbytes)
        bandwidths = self.bandwidths_gbs(request)
        if not bandwidths and call_configuration.selected(self.communicator, request) is not None:
            raise NoAlgorithm(call_configuration.nothing_selected(request))
        if not bandwidths:
            why = f"nothing is left for {request.collective.name}: {'; '.join(self._why_nothing(request))}"
            lists = [name for name in LISTS if self.communicator.environment.text(name)]
            raise NoAlgorithm(why).cured(*(Remedy("env", None, name) for name in lists))
        candidates = list(bandwidths)
        multicast = registered.multicast_channels(self.communicator, self.tables_of(request.collective), request)
        if self._asks_a_tuner:  # NCCL then ignores NCCL_CTA_POLICY
            multicast = None
        # The table has no times for Ring's backup.
        known = table_us if self._reason(request, candidates[0]) is None else None
        # NCCL_CTA_POLICY may move a pick to a cell that is not a candidate.
        algo_protos = candidates if multicast is None or MULTICAST in candidates else [*candidates, MULTICAST]
        calls = [self._call(request, algo_proto) for algo_proto in algo_protos]
        of_algorithm, of_protocol = np.array(algo_protos, np.int8).T
        algorithm, protocol = np.empty(nbytes.shape, np.int8), np.empty(nbytes.shape, np.int8)
        time_us = np.empty(nbytes.shape, np.float32)
        channels, threads = np.empty(nbytes.shape, np.int64), np.empty(nbytes.shape, np.int64)
        rules = self.communicator.rules
        for part in _chunks(len(nbytes)):
            chunk = MessageSizes(nbytes[part])
            if known is None:
                times = (self._times(call, chunk, bandwidths[call.algo_proto]) for call in calls[: len(candidates)])
            else:
                times = (known[part, *algo_proto] for algo_proto in candidates)
            best, time_us[part] = rules.pick(times, self.communicator)
            if multicast is not None:
                best = self._multicast_preferred(calls, best, chunk.nbytes, multicast)
            algorithm[part], protocol[part] = of_algorithm.take(best), of_protocol.take(best)
            for index, chosen in _by_choice(best):
                check_buffer(calls[index])
                launched = rules.launch(calls[index], self.tables_of(request.collective), chunk.nbytes[chosen])
                channels[part][chosen], threads[part][chosen] = launched
        if len(channels):
            check_alone(self.communicator, int(channels.max()))
        return Picks(nbytes, algorithm, protocol, time_us, channels, threads)

    def pick_by(self, cost_us: FloatArray, handed_us: FloatArray | None = None) -> tuple[NDArray[np.int64], FloatArray]:
        """The release's picks, and their times, from a cost table as a tuner plugin leaves it.

        ``cost_us`` is an array [size][algorithm][protocol]; picks are indices into ``ALGO_PROTOS``. ``handed_us`` is
        the table that NCCL gave the plugin, by default ``cost_us``. The release decides what it means if a plugin
        writes negative times, or times into cells that NCCL ignores (:class:`tuner.release.schema.Plugin`). NoAlgorithm
        if nothing is left.
        """
        handed_us, plugin = cost_us if handed_us is None else handed_us, self.communicator.release.plugin
        revives, negative_excludes = plugin is None or plugin.revives, plugin is None or plugin.negative_excludes
        counts = ~np.isnan(cost_us)
        if not revives:
            counts &= handed_us >= 0
        if negative_excludes:
            counts &= cost_us >= 0
        if not counts.any(axis=(1, 2)).all():
            raise NoAlgorithm(
                "the tuner leaves no algorithm and protocol: NCCL fails such calls with an internal error"
            )
        counted_us = np.where(counts, cost_us, np.float32(np.inf))
        times = (counted_us[:, algorithm, protocol] for algorithm, protocol in ALGO_PROTOS)
        best, time_us = self.communicator.rules.pick(times, self.communicator)
        return best.astype(np.int64), time_us

    def channels(self, request: Request, size: int, algo_proto: AlgoProto) -> int:
        """Number of channels that a call is launched with if this cell is the pick."""
        return int(self.launched(request, size, algo_proto)[0][0])

    def launched(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> tuple[IntArray, IntArray]:
        """Channels and threads, [size], that calls are launched with if this cell is the pick."""
        return self.communicator.rules.launch(
            self._call(request, algo_proto), self.tables_of(request.collective), size_array(sizes)
        )

    def steps(self, request: Request, size: int, algo_proto: AlgoProto) -> list[trace.TraceStep]:
        """The steps in which the model computes the numbers of a cell that this call may use, for one size.

        The order is: latency, bandwidth, latency and bandwidth corrected for this size, time, and the channels and
        threads that the cell has if it is picked. BadInput for a size out of range, or a cell that :meth:`excluded`
        names.
        """
        of_model, of_calls = self._computation(request, algo_proto)
        with trace.tracing(self.communicator.release.read_as) as seen:
            of_model()
            of_calls(size_array(size))
        return seen

    def steps_of_sizes(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> list[trace.Steps]:
        """The result of :meth:`steps` for several sizes at once, as arrays [size]."""
        nbytes = size_array(sizes)
        of_model = self.steps_of_model(request, len(nbytes), algo_proto)
        return [*of_model, *self.steps_of_calls(request, nbytes, algo_proto)]

    def steps_of_model(self, request: Request, count: int, algo_proto: AlgoProto) -> list[trace.Steps]:
        """The first of :meth:`steps_of_sizes`: latency and bandwidth of a cell, the same for all ``count`` sizes."""
        of_model, _ = self._computation(request, algo_proto)
        with trace.tracing_sizes(count) as seen:
            of_model()
        return seen

    def steps_of_calls(self, request: Request, sizes: ArrayLike, algo_proto: AlgoProto) -> list[trace.Steps]:
        """The rest of :meth:`steps_of_sizes`: corrections by size, times, channels and threads, arrays [size]."""
        nbytes, (_, of_calls) = size_array(sizes), self._computation(request, algo_proto)
        with trace.tracing_sizes(len(nbytes)) as seen:
            of_calls(nbytes)
        return seen

    def _computation(
        self, request: Request, algo_proto: AlgoProto
    ) -> tuple[Callable[[], None], Callable[[SizeArray], None]]:
        """Two functions that compute everything about a cell, to be traced: the model, and calls of some sizes.

        The tables are filled in before they run.
        """
        bandwidths = self.bandwidths_gbs(request)
        if algo_proto not in bandwidths:
            raise BadInput(f"{algo_proto[0].name}/{algo_proto[1].name}: {self.excluded(request)[algo_proto]}")
        call = self._call(request, algo_proto)
        at = ModelPoint(self.communicator, request.collective, *algo_proto)

        def compute_model() -> None:
            model.latency_us(at)
            model.bandwidth_gbs(at)

        def compute_calls(nbytes: SizeArray) -> None:
            self._times(call, MessageSizes(nbytes), bandwidths[algo_proto])
            self.communicator.rules.launch(call, self.tables_of(request.collective), nbytes)

        return compute_model, compute_calls

    def _multicast_preferred(
        self, calls: Sequence[RuleCall], best: NDArray[np.int8], nbytes: SizeArray, channels: int
    ) -> NDArray[np.int8]:
        """The picks, moved to NVLS where they would use at least ``channels`` channels; their times stay (sic)."""
        moved, multicast = best.copy(), [call.algo_proto for call in calls].index(MULTICAST)
        for index, chosen in _by_choice(best):
            call = calls[index]
            tables = self.tables_of(call.request.collective)
            bound = plain_bound(self.communicator.channels, call, tables, nbytes[chosen])
            moved[chosen] = np.where(bound >= channels, multicast, index)
        return moved

    def _call(self, request: Request, algo_proto: AlgoProto) -> RuleCall:
        return RuleCall(self.communicator, request, algo_proto)

    def bandwidths_gbs(self, request: Request) -> dict[AlgoProto, Float]:
        """Bandwidths of the :meth:`candidates`, or of Ring's backup if there are none; computed once."""
        if (known := self._usable.get(request)) is None:
            known = self._usable[request] = self._usable_gbs(request)
        return known

    def _usable_gbs(self, request: Request) -> dict[AlgoProto, Float]:
        tables, collective = self.tables_of(request.collective), request.collective
        bandwidths_gbs = tables.bandwidth_gbs[collective]
        there = zip(ALGO_PROTOS, bandwidths_gbs.ravel().tolist(), strict=True)  # quicker than each element by itself
        usable = [each for each, gbs in there if gbs and not self._not_a_candidate(request, each[0])]
        if (selected := call_configuration.selected(self.communicator, request)) is not None:
            left = [each for each in usable if each in selected]
            if not left and not (request.configuration and request.configuration.falls_back):
                return {}
            usable = left or usable
        if usable:
            return {algo_proto: bandwidths_gbs[algo_proto] for algo_proto in usable}
        backups = {(Algorithm.Ring, protocol): tables.backup_gbs[collective, protocol] for protocol in Protocol}
        return {algo_proto: bandwidth_gbs for algo_proto, bandwidth_gbs in backups.items() if bandwidth_gbs > 0}

    def model_of(self, call: RuleCall) -> tuple[Float, Float]:
        """Latency in us and bandwidth in GB/s of a cell that the call may use, before the corrections of a size."""
        latency_us = self.tables_of(call.request.collective).latency_us[(call.request.collective, *call.algo_proto)]
        return latency_us, self.bandwidths_gbs(call.request)[call.algo_proto]

    def _times(self, call: RuleCall, sizes: MessageSizes, bandwidth_gbs: Float) -> FloatArray:
        if bandwidth_gbs == 0:
            return timing.penalised(np.full(sizes.nbytes.shape, IGNORED_US), call)
        latency_us = self.tables_of(call.request.collective).latency_us[(call.request.collective, *call.algo_proto)]
        return timing.time_us(latency_us, bandwidth_gbs, call, sizes)

    def _reason(self, request: Request, algo_proto: AlgoProto) -> str | None:
        at = (request.collective, *algo_proto)
        tables = self.tables_of(request.collective)
        if tables.bandwidth_gbs[at] == 0:
            return tables.reasons.get(at, f"{algo_proto[0].name} does not do {request.collective.name}")
        if (reason := self._not_a_candidate(request, algo_proto[0])) is not None:
            return reason
        return "algSelection of the call leaves it out" if self._deselected(request, algo_proto) else None

    def _not_a_candidate(self, request: Request, algorithm: Algorithm) -> str | None:
        """The reason why these calls may not use the algorithm with any protocol at any size; computed once per
        request."""
        if (known := self._refusals.get(request)) is None:
            known = self._refusals[request] = {}
        if algorithm not in known:
            rules = self.communicator.rules.candidate
            known[algorithm] = next(filter(None, (rule(self.communicator, request, algorithm) for rule in rules)), None)
        return known[algorithm]

    def _deselected(self, request: Request, algo_proto: AlgoProto) -> bool:
        """Whether the call's own selection excludes a cell."""
        return request.configuration is not None and algo_proto not in self.bandwidths_gbs(request)

    def check_buffers(self, buffers: Buffers, windows: Windows = SYMMETRIC) -> None:
        """BadInput for buffers that the release does not have or refuses, or that are not emulated here."""
        registered.check_buffers(self.communicator, buffers, windows)

    def _check_call(self, request: Request, nbytes: SizeArray) -> None:
        registered.check_buffers_of(self.communicator, request)
        if request.buffers is Buffers.window:
            refuse_not_read(self.communicator.release.name, self.communicator.release.standing, "windows")
        call_configuration.check(self.communicator, request)
        symmetric.check(self.communicator, request, nbytes)

    def _check_type(self, request: Request) -> None:
        if self.communicator.rules.fp8_needs_hopper(request) and self.communicator.min_comp_cap < 90:
            refused = NoAlgorithm(f"NCCL refuses {request.dtype.name} on GPUs before compute capability 9.0")
            raise refused.cured(Remedy("dtype", "float16"))
        if request.dtype >= self.communicator.release.limits.data_types:
            raise NoAlgorithm(f"NCCL {self.communicator.release.name} has no type {request.dtype.name}").cured(
                Remedy("dtype", "float16")
            )

    def _why_nothing(self, request: Request) -> list[str]:
        return sorted(set(self.excluded(request).values()))


def size_array(sizes: ArrayLike) -> SizeArray:
    """Sizes in bytes as an array of one dimension. BadInput unless they are integers from 1 to 2**62."""
    values = whole_numbers(sizes)
    if values.size and (values.min() < 1 or values.max() > MAX_BYTES):
        raise BadInput(f"sizes from {values.min()} to {values.max()} bytes: valid are 1 to 2**62")
    if values.dtype == np.int64:
        return values.view(np.uint64)  # no size is below 1
    return values.astype(np.uint64, copy=False)


def whole_numbers(sizes: ArrayLike) -> NDArray[np.integer]:
    """Sizes in bytes as an array of one dimension, of any value. BadInput unless they are integers."""
    values = np.atleast_1d(np.asarray(sizes))
    if values.dtype.kind == "U":  # texts, as the command line passes them
        values = np.array([size for text in values.ravel().tolist() for size in size_list(text)])
    if values.ndim != 1 or (values.size and values.dtype.kind not in "ui"):  # NumPy makes a float array of []
        raise BadInput(
            f"sizes have to be integers in one dimension, from 1 to 2**62, not {values.dtype} of shape {values.shape}"
        )
    return values if values.size else values.astype(np.uint64)


def _by_choice(best: NDArray[np.int8]) -> Iterator[tuple[int, Any]]:
    """Each choice that occurs, in order, with an index (a mask or a slice) for the sizes that have it."""
    occurring = np.flatnonzero(np.bincount(best)).tolist()
    for index in occurring:
        yield index, best == index if len(occurring) > 1 else slice(None)


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, length, CHUNK))


@dataclass(frozen=True, slots=True)
class Pick(Choice):
    """NCCL's choice of an algorithm and protocol, and the time in us that NCCL predicts."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float


def of_picks(picks: Picks) -> list[Pick]:
    """The picks as records, one for each size."""
    columns = picks.algorithm, picks.protocol, picks.channels, picks.threads, picks.time_us
    return [
        Pick(Algorithm(algorithm), Protocol(protocol), int(channels), int(threads), shortest(time_us))
        for algorithm, protocol, channels, threads, time_us in zip(*columns, strict=True)
    ]
