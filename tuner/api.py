"""The interface for Python: a communicator described in words, and what NCCL does with calls on it."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from tuner.answers.picks import CallPicks, CallRanges
from tuner.answers.tuners import with_tuner
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, PeerCall, Protocol, by_name, peer_call
from tuner.base.numerics import FloatArray
from tuner.base.signatures import with_keys
from tuner.base.sizes import whole
from tuner.emulator.compiled import CompiledSelection, PickTable
from tuner.emulator.group import Operation
from tuner.emulator.model import Tables
from tuner.emulator.ranges import FOLLOWED_BYTES, answers
from tuner.emulator.request import CallKind as CallKind
from tuner.emulator.request import Request
from tuner.emulator.request import request as request
from tuner.release import BUILDS
from tuner.scenario import Scenario
from tuner.scenario.describe import Description, describe

if TYPE_CHECKING:  # what a pick does not need takes as long to load as all that it needs; methods load their own
    from tuner.answers.calibrated import CalibratedCalls
    from tuner.answers.diff import PickChanges
    from tuner.answers.exchanges import ExchangeAnswer
    from tuner.answers.explain import Explanation
    from tuner.answers.launches import LaunchAnswer
    from tuner.answers.mixed import GroupAnswer, GroupCall
    from tuner.answers.order import CallOrder
    from tuner.answers.serving import EngineSettings, ServedGroup
    from tuner.base.frames import Rows
    from tuner.bench.workflow import MeasuringResult
    from tuner.emulator.connect import Across
    from tuner.jobs.diagnosis.records import DiagnosedFiles
    from tuner.jobs.environment_file import FileEffects
    from tuner.jobs.workload.grouped import JobBudget
    from tuner.jobs.workload.priced import Budget
    from tuner.oracle.bill import MemoryStage
    from tuner.times.acceptance.accept import Acceptance


class TunedDescription(Description, total=False):
    """The keys of a description, and two more: ``tuner``, the name of the plugin that decides before NCCL, and
    ``env_files``.

    For AWS's instance types, the default tuner is the one in the images of these machines. ``env_files`` are files with
    NCCL's variables, as ``--env-file`` takes them; ``env`` wins over them.
    """

    tuner: str | None
    env_files: Sequence[Path | str]


PeerCallName = Literal["alltoall", "AllToAll", "gather", "Gather", "scatter", "Scatter", "send", "Send", "recv", "Recv"]


class PeerCallKind(TypedDict, total=False):
    """Keys of a call that NCCL makes of sends and receives: its type, the rank whose launch is shown, and its root or
    peer."""

    dtype: DataType | str
    rank: int
    root: int


_CALL_DEFAULTS = {"dtype": "float32", "op": "sum", "buffers": "plain", "in_place": False}
_DESCRIPTION_DEFAULTS = {
    "collnet": False,
    "env_files": (),
    "ranks_without_fabric": (),
    "shared": False,
    "node": (),
    "build": BUILDS[0],
}
_FIRST_CALLS = (("allreduce", 8), ("allreduce", 1 << 20), ("allreduce", 1 << 30))
_of_a_call = with_keys(CallKind, _CALL_DEFAULTS)


class Communicator:
    """One communicator, made by :func:`communicator`; its answers are those of libnccl, bit for bit.

    Collectives, types and operations are NCCL's names in upper or lower case ("allreduce", "float32", "sum"), or
    members of :mod:`tuner.base.names`. Calls are described by the keys of :class:`CallKind`. Sizes are NCCL's nBytes,
    an integer or an array of them: count x size of the type, times the ranks for AllGather and ReduceScatter.

    >>> two_nodes = communicator("dgx-h100", nodes=2, nccl="2.28.9")
    >>> two_nodes.pick("allreduce", [8, 1 << 20]).time_us
    array([25.200483, 62.50566 ], dtype=float32)
    """

    def __init__(self, scenario: Scenario, env_files: "tuple[FileEffects, ...]" = ()) -> None:
        self.scenario = scenario
        self.env_files = env_files  # what the variables of each file do
        self.selection = CompiledSelection(scenario.communicator())
        self._tables: dict[object, tuple[PickTable, Request]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.scenario.heading}>"

    @property
    def ranks(self) -> int:
        """Number of ranks of the communicator."""
        return self.selection.communicator.ranks

    @property
    def tables(self) -> Tables:
        """Latencies (us), bandwidths (GB/s), threads and thresholds (bytes), indexed
        `[collective][algorithm][protocol]`.

        Source: ncclTopoTuneModel, src/graph/tuning.cc.
        """
        return self.selection.tables

    def channels_across_nodes(self) -> "Across":
        """The rings, trees, NVLS heads and adapters of all ranks, from graphs that the emulator's search finds.

        Errors: BadInput if the graphs are from a file. Source: ncclTopoPostset, src/graph/connect.cc.

        >>> two_nodes = communicator("dgx-h100", nodes=2, nccl="2.28.9")
        >>> two_nodes.channels_across_nodes().rings[0].crossings[0]
        Crossing(sender=1, relay=1, send_net=1, receive_net=1, receiver=9)
        """
        from tuner.emulator.connect import summarize  # with the search, which nothing else here needs

        return summarize(self.scenario.resolve().connected)

    def served_by(self, engine: str, **given: Unpack["EngineSettings"]) -> "ServedGroup":
        """The communicator as a serving engine's tensor-parallel group, which says which implementation carries an
        AllReduce of a size.

        ``engine`` is a name with its release; ``environment``, ``arguments``, ``graph`` and ``hidden_size`` are those
        of :class:`tuner.answers.serving.ServedGroup`. BadInput for what the engine's release does not know.

        >>> node = communicator("dgx-h100", nccl="2.30.7").served_by("vllm@0.33.0")
        >>> node.carriers_of([128 << 10, 16 << 20, 128 << 20], dtype="bfloat16").tolist()
        ['flashinfer', 'torch-symmetric', 'nccl']
        """
        from tuner.answers.serving import ServedGroup  # with the tables of engines, which nothing else here needs

        return ServedGroup(self.scenario, engine, **given)

    @overload
    def pick(  # type: ignore[overload-overlap]
        self, collective: PeerCall | PeerCallName, sizes: ArrayLike, **kind: Unpack[PeerCallKind]
    ) -> "Rows[ExchangeAnswer]": ...
    @overload
    def pick(self, collective: Collective | str, sizes: ArrayLike, **kind: Unpack[CallKind]) -> CallPicks: ...
    @_of_a_call
    def pick(self, collective: Any, sizes: ArrayLike, **kind: Any) -> "CallPicks | Rows[ExchangeAnswer]":
        """NCCL's picks: algorithm, protocol, time in us, channels and threads, one element per size.

        For AllToAll, Gather, Scatter, Send and Recv, NCCL picks no algorithm. They give one record per size instead:
        the launch of ``rank`` (``root`` is the root or the peer), and measured times if there are any. Errors:
        NoAlgorithm if NCCL finds nothing to run; BadInput for an unknown name or a size out of range. Source:
        topoGetAlgoInfo, src/enqueue.cc.
        """
        if type(sizes) is int and (known := self.known_table(collective, kind)) is not None:
            table, call = known
            if (pick := table.pick(sizes)) is not None:
                return CallPicks(pick, call, self.selection, self.scenario)
        if (function := peer_call(collective)) is not None:
            return self._exchange(function, sizes, **kind)
        call = request(collective, **kind)
        picks = self.selection.pick(call, sizes)
        return CallPicks(picks.stored, call, self.selection, self.scenario)

    def _exchange(self, function: PeerCall, sizes: ArrayLike, **kind: Unpack[PeerCallKind]) -> "Rows[ExchangeAnswer]":
        from tuner.answers import exchanges  # with the search, which nothing else here needs

        if unknown := sorted(kind.keys() - PeerCallKind.__annotations__.keys()):
            valid = ", ".join(PeerCallKind.__annotations__)
            raise BadInput(f"{function.name} has no {', '.join(unknown)}; valid: {valid}")
        dtype = by_name(DataType, kind.get("dtype", DataType.float32), "type")
        each = [whole(size, "size") for size in np.atleast_1d(np.asarray(sizes)).tolist()]
        asked = exchanges.of_rank(function, each, dtype, kind.get("rank"), kind.get("root"))
        from tuner.base.frames import Rows

        return Rows(tuple(exchanges.answers(self.scenario, asked)))

    @_of_a_call
    def compiled(self, collective: Collective | str, **kind: Unpack[CallKind]) -> PickTable | None:
        """The picks of calls of this kind as a table of size ranges, which :meth:`pick` uses by itself as soon as that
        is faster.

        None if a table cannot express them: for calls that may bypass the algorithms, and picks that NCCL_CTA_POLICY
        moves. Errors: BadInput for an unknown name.
        """
        return self.selection.pick_table(request(collective, **kind))

    def known_table(self, collective: Collective | str, kind: CallKind) -> tuple[PickTable, Request] | None:
        """The table for calls of this kind, if one was made, with their request; cached by the names of collective and
        kind."""
        name = (collective, *kind.items()) if kind else collective
        try:
            return self._tables[name]
        except KeyError:
            if peer_call(collective) is not None:
                return None
            call = request(collective, **kind)
        except TypeError:  # a list of window flags
            return None
        if (table := self.selection.known_table(call)) is None:
            return None
        self._tables[name] = known = table, call
        return known

    @_of_a_call
    def launch(
        self, collective: Collective | str, size: int, rank: int = 0, root: int = 0, **kind: Unpack[CallKind]
    ) -> "LaunchAnswer":
        """The launch of a call of ``size`` bytes on a rank: the work of each block and each proxy.

        Errors: NoAlgorithm; BadInput as for :meth:`pick`, if there is no such rank or root, and for graphs from a file
        if an NVSwitch or the network takes part. Source: scheduleCollTasksToPlan and calcCollChunking, src/enqueue.cc.

        >>> two_nodes = communicator("dgx-h100", nodes=2, nccl="2.28.9")
        >>> work = two_nodes.launch("allreduce", 1 << 20).launch.kernels[0].works[0]
        >>> work.function_name, work.shares[0].count, work.shares[0].chunk, work.shares[0].proxy.steps
        ('ncclDevFunc_AllReduce_Sum_f32_TREE_LL128', 16384, 4320, 4)
        """
        from tuner.answers.launches import Launches  # with the search, which nothing else here needs

        call = Operation(request(collective, **kind), whole(size, "size"), root)
        return Launches(self.scenario, rank).of([call])

    @_of_a_call
    def group(self, calls: "Sequence[GroupCall]", **kind: Unpack[CallKind]) -> "GroupAnswer":
        """What NCCL does with calls between ncclGroupStart and ncclGroupEnd: kernels with their calls, and the choices.

        A call is a tuple of the collective and its size in bytes, and then its type and operation if ``kind`` does not
        say them. All calls have the same buffers. Errors: NoAlgorithm; BadInput for what is not emulated. Source:
        ncclPrepareTasks and scheduleCollTasksToPlan, src/enqueue.cc.

        >>> one_node = communicator("dgx-h100", nccl="2.30.7")
        >>> group = one_node.group([("allreduce", 25 << 20), ("allgather", 1 << 20)], buffers="window")
        >>> [(kernel.bypass, kernel.channels) for kernel in group.kernels]
        [('symmetric kernel AllReduce_RSxLDMC_AGxSTMC', 2), ('symmetric kernel AllGather_STMC', 2)]
        """
        from tuner.answers.mixed import from_emulator, operations

        return from_emulator(self.scenario, operations(calls, **kind))

    @_of_a_call
    def calibrated(
        self,
        collective: Collective | str,
        sizes: ArrayLike,
        calibration: Path | str | None = None,
        **kind: Unpack[CallKind],
    ) -> "CalibratedCalls":
        """Calibrated times of the picks for ``sizes``, in us, with 90 % intervals, one element per size.

        ``calibration``: the name of a shipped one, or a file of ``nccl-tuner fit calibration``; by default that of the
        machine, or else of another machine with GPUs of the same generation. Picks are those of :meth:`pick`. Errors:
        NoAlgorithm; BadInput as for :meth:`pick`, and if no calibration fits the machine or the call; BadCalibration.
        """
        from tuner.answers.calibrated import calls

        named = None if calibration is None else str(calibration)
        return calls(self.scenario, self.selection, request(collective, **kind), sizes, named)

    @_of_a_call
    def cost_table(self, collective: Collective | str, sizes: ArrayLike, **kind: Unpack[CallKind]) -> FloatArray:
        """NCCL's predicted times in us, a float32 array `[size][algorithm][protocol]`; negative if NCCL ignores the
        combination.

        Errors: BadInput for an unknown name or a size out of range. This is the table that a tuner plugin gets. Source:
        updateCollCostTable, src/enqueue.cc.
        """
        return self.selection.cost_table(request(collective, **kind), sizes)

    @_of_a_call
    def edges(
        self,
        collective: Collective | str,
        *,
        low: int | None = None,
        high: int = FOLLOWED_BYTES,
        **kind: Unpack[CallKind],
    ) -> CallRanges:
        """The ranges of nBytes in which algorithm, protocol, channels and threads stay the same, one element per range.

        Together the ranges cover all sizes from ``low`` (by default one element) to ``high`` bytes or the largest size
        that NCCL takes. Calls on windows may bypass the algorithms; ``bypass`` then says what runs them. Errors:
        NoAlgorithm; BadInput for an unknown name, for ``low`` above ``high``, for windows that are not emulated, and if
        channels change at too many sizes.
        """
        call = request(collective, **kind)
        return CallRanges(answers(self.selection, call, low, high), call, self.scenario)

    @_of_a_call
    def explain(self, collective: Collective | str, size: int, **kind: Unpack[CallKind]) -> "Explanation":
        """The explanation of the pick for a call of ``size`` bytes: each number step by step, and what the other
        combinations lack.

        Errors: NoAlgorithm; BadInput as for :meth:`pick`, for windows, and if NCCL_CTA_POLICY moved the pick.
        """
        from tuner.answers.explain import explain_pick

        call = request(collective, **kind)
        return explain_pick(self.selection, self.scenario.constants, call, whole(size, "size"))

    @_of_a_call
    def order(
        self, collective: Collective | str, sizes: ArrayLike, root: int = 0, **kind: Unpack[CallKind]
    ) -> "tuple[CallOrder, ...]":
        """In which order of ranks the numbers of each element are added, one record per size in bytes.

        Errors: BadInput for collectives that add nothing and for a root that is no rank; also those of :meth:`pick`.
        Source: src/device/all_reduce.h, reduce_scatter.h, reduce.h.

        >>> (call,) = communicator("dgx-h100", nccl="2.28.9").order("allreduce", 1 << 10)
        >>> len(call.classes), call.classes[0].order, call.classes[0].ranges
        (8, '1 + 2 + 3 + 4 + 5 + 6 + 7 + 0', ((0, 32),))
        """
        from tuner.answers.order import of_calls  # with the search, which nothing else here needs

        asked = [int(size) for size in np.atleast_1d(np.asarray(sizes)).tolist()]
        return of_calls(self.scenario, request(collective, **kind), asked, root)

    @_of_a_call
    def diff(self, other: "Communicator", collective: Collective | str, **kind: Unpack[CallKind]) -> "PickChanges":
        """The ranges of sizes in bytes in which ``other`` gets another algorithm or protocol, and how the time changes.

        They are between one element and 1 TiB. ``before`` of a change is the pick of this communicator. Errors:
        NoAlgorithm and BadInput as for :meth:`edges`, which name the communicator.
        """
        from tuner.answers.diff import PickChanges, Side, diff

        before, after, call = Side(self.scenario), Side(other.scenario), request(collective, **kind)
        return PickChanges(tuple(diff(before, after, call)), before, after, call)


@_of_a_call
def estimate(
    collective: Collective | str,
    nbytes: int,
    group: Communicator,
    calibration: Path | str | bool | None = None,
    **kind: Unpack[CallKind],
) -> float:
    """The time of one call in us, for compilers that order computation and communication.

    ``nbytes`` is NCCL's nBytes, ``group`` the communicator. The time is NCCL's own prediction for its pick, or that of
    a ``calibration``: its name or file, or True for the one that fits the machine. Errors: NoAlgorithm, BadInput and
    BadCalibration.

    >>> round(estimate("allreduce", 1 << 20, communicator("dgx-h100", nodes=2, nccl="2.28.9")), 3)
    62.506
    """
    if calibration is None or calibration is False:
        known = group.known_table(collective, kind) if type(nbytes) is int else None
        if known is not None and (time_us := known[0].time_us(nbytes)) is not None:
            return float(time_us)
        return float(group.pick(collective, nbytes, **kind).time_us[0])
    named = None if calibration is True else calibration
    return float(group.calibrated(collective, nbytes, named, **kind).time_us[0])


@with_keys(TunedDescription, _DESCRIPTION_DEFAULTS)
def communicator(machine: str | None = None, **description: Unpack[TunedDescription]) -> Communicator:
    """The communicator that ``machine`` (a name of the catalogue) and the keys of :class:`TunedDescription` describe.

    They are ``nodes``, ``gpus_per_node``, ``nccl``, ``env``, ``constants``, ``topology``, ``graphs``, ``gpu``,
    ``net_gbps``, ``net_latency_us``, ``node``, ``build``, ``tuner`` (aws-ofi-nccl, aws-ofi-nccl=VERSION,
    table:FILE[,TUNER], nvidia:FILE.csv, none), ``env_files`` (what their variables do is ``env_files`` of the result),
    and ``log``, which describes the whole communicator, with keys for what a log may lack. Errors: UnknownMachine,
    UnknownRelease, BadTopology, BadConstants, and BadInput for what is not emulated; each says what is valid.
    """
    return Communicator(*_described(machine, description))


@with_keys(TunedDescription, _DESCRIPTION_DEFAULTS)
def scenario(machine: str | None = None, **description: Unpack[TunedDescription]) -> Scenario:
    """The description of a communicator, of which nothing is computed yet, for :mod:`tuner.answers`.

    Errors: UnknownMachine, UnknownRelease, BadConstants, and BadInput for an impossible value.
    """
    return _described(machine, description)[0]


def _described(machine: str | None, description: TunedDescription) -> "tuple[Scenario, tuple[FileEffects, ...]]":
    """The scenario, and what the variables of its files do."""
    given: Any = {key: value for key, value in description.items() if key not in ("tuner", "env_files")}
    described = describe(machine, **given)
    effects: tuple[FileEffects, ...] = ()
    if files := description.get("env_files"):
        from tuner.jobs.environment_file import with_files

        described, effects = with_files(described, map(Path, files))
    return with_tuner(described, description.get("tuner")), effects


class Compared(TypedDict, total=False):
    """Options of a budget, each key with its default.

    ``settings``: additional columns with NCCL's variables, such as "NCCL_ALGO=Ring" (none). ``tables``: additional
    columns with the choices of decision tables (none). ``measured``: a file of measured times, which shows how much the
    picks lose (none). ``calibration``: the name of a shipped one, or a file of ``nccl-tuner fit calibration`` (the one
    that fits the machine, if any).
    """

    settings: Sequence[str]
    tables: Sequence[Path | str]
    measured: Path | str | None
    calibration: Path | str | None


@overload
def budget(
    files: Path | str | Sequence[Path | str],
    communicators: Communicator | Sequence[Communicator],
    **compared: Unpack[Compared],
) -> "Budget": ...
@overload
def budget(
    files: None = None,
    communicators: Communicator | Sequence[Communicator] = (),
    *,
    model: str,
    job: str | None = None,
    **compared: Unpack[Compared],
) -> "JobBudget": ...
@with_keys(Compared, {"settings": (), "tables": ()})
def budget(
    files: Path | str | Sequence[Path | str] | None = None,
    communicators: Communicator | Sequence[Communicator] = (),
    *,
    model: str | None = None,
    job: str | None = None,
    **compared: Unpack[Compared],
) -> "Budget | JobBudget":
    """The time of the collectives in a job's ``files`` by NCCL's model, for each of the ``communicators``.

    Instead of files, ``model`` names a model, such as "llama-3-70b", whose training step is split over the communicator
    as ``job`` says, such as "tp=8,pp=4" (without ``job``, all ranks are replicas). The answer then has a budget for
    each of the job's groups.

    Files are lists, logs or traces, as ``nccl-tuner budget`` reads them; only calls on communicators with as many ranks
    as the first one count. Each communicator is priced as it is and as the keys of :class:`Compared` say, by NCCL's own
    prediction and, if a calibration fits the machine, by calibrated times with bounds. Times are in us; ``by_size`` is
    a frame. Errors: BadInput for what cannot be read, counted or priced; BadTable, BadMeasurement, BadCalibration.
    """
    from tuner.answers.calibrated import TimesWanted
    from tuner.jobs.workload import grouped
    from tuner.jobs.workload import job as jobs

    if unknown := sorted(compared.keys() - Compared.__annotations__.keys()):
        describing = [name for name in unknown if name in inspect.signature(communicator).parameters]
        where = f"; {', '.join(describing)}: of the communicator; pass communicator(...) as communicators"
        valid = f"valid: {', '.join(Compared.__annotations__)}"
        raise BadInput(f"unknown {', '.join(unknown)}; {valid}{where if describing else ''}")
    several = [communicators] if isinstance(communicators, Communicator) else communicators
    scenarios = [one.scenario for one in several]
    if not scenarios:
        raise BadInput("a budget needs a communicator; valid: one or more")
    if (files is None) == (model is None):
        raise BadInput("a budget needs files, or model=NAME instead of them")
    if job is not None and model is None:
        raise BadInput("job= says how a model is split: add model=NAME, or remove it")
    measured, calibration = compared.get("measured"), compared.get("calibration")
    asked = jobs.BudgetComparison(
        scenarios,
        compared.get("settings", ()),
        [Path(table) for table in compared.get("tables", ())],
        TimesWanted(True, None if calibration is None else str(calibration)),
    )
    wanted = jobs.wanted_of(scenarios[0])
    if model is not None:
        if measured is not None:
            raise BadInput("measured= only applies to files; remove it, or model=")
        ranks = scenarios[0].ranks
        split = grouped.JobGroups(grouped.layout_of(job or f"dp={ranks}", ranks), 0, False)
        return grouped.of_model(grouped.ModelStep(model), asked, wanted, split)
    assert files is not None
    paths = [files] if isinstance(files, Path | str) else files
    return jobs.of_files(map(Path, paths), asked, wanted, None if measured is None else Path(measured))


@_of_a_call
def edges(group: Communicator, collective: Collective | str, **kind: Unpack[CallKind]) -> CallRanges:
    """The ranges of nBytes in which NCCL's choice stays the same: :meth:`Communicator.edges` of ``group``.

    >>> len(edges(communicator("dgx-h100", nodes=2, nccl="2.28.9"), "allreduce")) > 50
    True
    """
    return group.edges(collective, **kind)


@_of_a_call
def diff(
    before: Communicator, after: Communicator, collective: Collective | str, **kind: Unpack[CallKind]
) -> "PickChanges":
    """The ranges of sizes in which ``after`` gets another algorithm or protocol: :meth:`Communicator.diff`.

    >>> older, newer = (communicator("dgx-h100", nodes=2, nccl=name) for name in ("2.22.3", "2.25.1"))
    >>> [(str(each.before.protocol), str(each.after.protocol)) for each in diff(older, newer, "broadcast")]
    [('LL128', 'Simple')]
    """
    return before.diff(after, collective, **kind)


def accept(
    results: Path | str | Sequence[Path | str],
    machine: Communicator | str,
    *,
    nodes: int | None = None,
    nccl: str | None = None,
    collective: Collective | str | None = None,
    calibration: Path | str | None = None,
    like: Path | str | None = None,
) -> "Acceptance":
    """Judges whether ``results`` of nccl-tests or of :func:`measure` come from a healthy ``machine``.

    ``machine`` is a name, or a communicator if its topology or settings matter. ``nodes``, ``nccl`` and ``collective``:
    what was run, if the files do not say it. ``calibration``: which calibration's times are expected (by default the
    machine's). ``like``: a run of the same cluster on a healthy day, whose times are expected instead. As a frame it
    has a row for each size that was judged. Errors: BadInput and BadMeasurement for files that cannot be read or
    judged.

    >>> accept("docs/examples/all_reduce.log", "dgx-h100").passes
    False
    """
    from tuner.times.acceptance.accept import AcceptOptions
    from tuner.times.acceptance.accept import accept as judged
    from tuner.times.measured.formats import Given

    ran = "" if collective is None else by_name(Collective, collective, "collective").name
    paths = [results] if isinstance(results, Path | str) else results
    described = machine.scenario if isinstance(machine, Communicator) else scenario(machine, nodes=nodes, nccl=nccl)
    asked = AcceptOptions(
        described,
        Given(nccl=nccl or "", nodes=nodes, collective=ran),
        None if calibration is None else str(calibration),
        None if like is None else Path(like),
    )
    return judged([Path(each) for each in paths], asked)


def diagnose(
    files: Path | str | Sequence[Path | str],
    *,
    machine: str | None = None,
    nodes: int | None = None,
    nccl: str | None = None,
    gpu: str | None = None,
    net_gbps: float | None = None,
    net_latency_us: float | None = None,
) -> "DiagnosedFiles":
    """Finds what is wrong in ``files`` of one job (logs, topologies, results, traces); the gravest file comes first.

    The other parameters say what the files do not: the ``machine``, its ``nodes`` and release; and for a topology that
    only places devices, the ``gpu`` model, and the speed (1e9 bits per second) and latency (us) of its adapters. As a
    frame it has a row for each finding. Errors: BadInput if no file is given, and for an unknown machine or release.

    >>> found = diagnose("docs/examples/node.xml")
    >>> found[0].machine, found.rows()[0][4]
    ('dgx-a100', 'note')
    """
    from tuner.jobs.diagnosis.diagnose import diagnose as diagnosed
    from tuner.jobs.diagnosis.records import DiagnosedFiles, DiagnosisOptions

    asked = DiagnosisOptions(machine, nodes, nccl, gpu, net_gbps, net_latency_us)
    paths = [files] if isinstance(files, Path | str) else files
    return DiagnosedFiles(tuple(diagnosed([Path(each) for each in paths], asked)))


@_of_a_call
def memory(
    group: Communicator, calls: "Sequence[GroupCall]" = _FIRST_CALLS, timeout_s: float = 120.0, **kind: Unpack[CallKind]
) -> "Rows[MemoryStage]":
    """The device memory and the SMs that ``group`` uses after initialisation and after each call, per rank.

    ``calls`` are collectives and their sizes in bytes, made one after the other. libnccl is asked, so it has to be
    fetched first. Errors: BadInput for nodes that differ and NVLink domains; OracleUnavailable without libnccl,
    OracleFailed.
    """
    from tuner.answers.mixed import operations
    from tuner.base.frames import Rows
    from tuner.oracle import bill

    asked = [(each.request, each.bytes) for each in operations(calls, **kind)]
    return Rows(tuple(bill.bill(group.scenario.oracle_configuration(), asked, timeout_s)))


class Measuring(TypedDict, total=False):
    """Options of :func:`measure`, each key with its default.

    ``sizes``: NCCL's nBytes (powers of two from 8 B to 1 GiB). ``dtype``, ``op`` (float32, sum). ``algorithms``,
    ``protocols`` (all). ``channels``: numbers of channels in addition to NCCL's own (none). ``in_place``: whether calls
    are also measured in place (no). ``graph``: whether calls are in CUDA graphs (no). ``precision_percent`` (2): a
    median is precise enough when its 95 % confidence interval is within this share of it. ``rounds`` (30): the largest
    number of sample blocks of a combination. ``rounds_per_process`` (3): rounds after which a new process continues.
    ``repeats`` (10): runs in a block that are kept. ``warmup`` (5): runs before these. ``budget_s``: seconds until
    measuring stops (no limit). ``seed`` (0): the seed of the order, and of the hidden times of a simulated machine.
    ``library``: for GPUs, this libnccl.so.2 instead of the installed wheel's. ``ranks_per_gpu`` (1). ``graphs_below``
    (64 MiB): smaller calls (bytes) are timed inside CUDA graphs, so that the host's time does not count. ``nccl_log``:
    file for NCCL's own log (none).
    """

    sizes: Sequence[int] | None
    dtype: DataType | str
    op: Op | str
    algorithms: Sequence[Algorithm | str]
    protocols: Sequence[Protocol | str]
    channels: Sequence[int]
    in_place: bool
    graph: bool
    precision_percent: float
    rounds: int
    rounds_per_process: int
    repeats: int
    warmup: int
    budget_s: float | None
    seed: int
    library: Path | str | None
    ranks_per_gpu: int
    graphs_below: int
    nccl_log: Path | str | None


_MEASURING_DEFAULTS = {
    "dtype": "float32",
    "op": "sum",
    "algorithms": (),
    "protocols": (),
    "channels": (),
    "in_place": False,
    "graph": False,
    "precision_percent": 2.0,
    "rounds": 30,
    "rounds_per_process": 3,
    "repeats": 10,
    "warmup": 5,
    "seed": 0,
    "ranks_per_gpu": 1,
    "graphs_below": 64 << 20,
}


@with_keys(Measuring, _MEASURING_DEFAULTS)
def measure(
    collectives: Collective | str | Sequence[Collective | str],
    *,
    out: Path | str,
    simulated: Communicator | None = None,
    **how: Unpack[Measuring],
) -> "MeasuringResult | None":
    """Measures ``collectives`` by every algorithm and protocol, and writes the file ``out``; an existing file is
    continued.

    It measures on this computer's GPUs, or on a simulated machine with hidden times: that of the communicator
    ``simulated``. ``how`` has the keys of :class:`Measuring`. Times are medians in us; ``results`` is a frame. Ctrl-C
    ends it and keeps what was measured. Returns None in all processes of a launcher but the first. Errors: BadInput for
    what cannot be measured here or an unknown name, BadMeasurement for a file that was measured otherwise,
    MeasuringFailed.
    """
    from tuner.bench import workflow
    from tuner.bench.backend import Options
    from tuner.bench.loop import How, Settings, Wanted

    if unknown := sorted(how.keys() - Measuring.__annotations__.keys()):
        raise BadInput(f"unknown {', '.join(unknown)}; valid: {', '.join(Measuring.__annotations__)}")
    chosen: dict[str, Any] = {**_MEASURING_DEFAULTS, **how}
    several = [collectives] if isinstance(collectives, Collective | str) else collectives
    kind = request(Collective.AllReduce, dtype=chosen["dtype"], op=chosen["op"])
    wanted = Wanted(
        [by_name(Algorithm, name, "algorithm") for name in chosen["algorithms"]],
        [by_name(Protocol, name, "protocol") for name in chosen["protocols"]],
        chosen["channels"],
    )
    settings = Settings(
        _at_least(chosen, "precision_percent", 1e-6) / 100,
        int(_at_least(chosen, "rounds", 1)),
        int(_at_least(chosen, "repeats", 1)),
        int(_at_least(chosen, "warmup", 0)),
        chosen.get("budget_s"),
        int(_at_least(chosen, "seed", 0)),
        int(_at_least(chosen, "rounds_per_process", 1)),
    )
    plan = workflow.Plan(
        [by_name(Collective, name, "collective") for name in several],
        how.get("sizes"),
        How(kind.dtype, kind.op, (False, True) if chosen["in_place"] else (False,), chosen["graph"]),
        wanted,
        settings,
    )
    if simulated is not None:
        return workflow.measure(Path(out), workflow.simulated(simulated.scenario, chosen["seed"]), plan)
    library, nccl_log = chosen.get("library"), chosen.get("nccl_log")
    on_gpus = Options(
        chosen["ranks_per_gpu"],
        None if library is None else Path(library),
        log=None if nccl_log is None else Path(nccl_log),
        graphs_below_bytes=int(_at_least(chosen, "graphs_below", 0)),
        registered=chosen["graph"],
    )
    return workflow.measure(Path(out), workflow.gpus(on_gpus), plan)


def _at_least(given: Mapping[str, Any], name: str, least: float) -> float:
    value: float = given[name]
    if value < least:
        raise BadInput(f"{name} {value:g}: valid: {least:g} or more")
    return value
