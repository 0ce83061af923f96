"""Collects what forced and default runs of one machine show about NCCL's picks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import AlgoProto, Collective, DataType, Op
from tuner.base.nouns import Shape, Span
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.plugin.table.parse import decision_text
from tuner.plugin.table.records import Decision, TableChoice
from tuner.times import measured
from tuner.times.calibration import plausible
from tuner.times.measured import formats
from tuner.times.measured.formats import Given
from tuner.times.measured.samples import Combination, Measurements
from tuner.times.picks import PickVerdict, columns_of
from tuner.times.placement import Site, read_by_model
from tuner.times.regret import arms, judged
from tuner.times.regret.arms import MeasuredArms, MeasuredCall, TableSource
from tuner.times.regret.judged import RunEvidence, RunsPick, SplitGain, sizes_record, split_gains
from tuner.times.telling import TellingCall, telling_calls
from tuner.times.timemodel import predict


@dataclass(frozen=True, slots=True)
class RecommendedRow:
    """A row for the measured sizes from ``low_bytes`` to ``high_bytes``, at all of which the same combination is
    faster.

    ``gain_low`` and ``gain_high`` are the smallest and the largest ratio of the pick's time to that of ``choice``,
    minus 1; ``surely`` is the lower end of the 95 % interval of the smallest one. A row applies to all data types;
    ``dtypes`` names the measured ones.
    """

    row: str
    collective: Collective
    nodes: int
    gpus_per_node: int
    low_bytes: int
    high_bytes: int
    choice: Combination = field(metadata=json_form(convert=str))
    gain_low: float
    gain_high: float
    surely: float
    dtypes: tuple[str, ...]
    decision: Decision = field(metadata=json_form(omitted=True))

    def holds(self, one: RunsPick) -> bool:
        """Whether a pick with a known verdict is among the calls of the row."""
        alike = self.collective is one.call.collective and one.verdict is not PickVerdict.unknown
        return alike and self.low_bytes <= one.call.bytes <= self.high_bytes


def recommended(judged: Sequence[RunsPick]) -> list[RecommendedRow]:
    """Makes one row of neighbouring measured sizes with the same faster combination. The combination has to be faster
    for every data type, placement and setting that was measured at the size.
    """
    sizes: list[list[RunsPick]] = []
    for _, several in groupby(sorted(judged, key=_by_size), key=_by_size):
        sizes.append([one for one in several if one.verdict is not PickVerdict.unknown])
    rows: list[RecommendedRow] = []
    for _, of_communicator in groupby(filter(None, sizes), key=lambda its: _by_size(its[0])[:3]):
        for choice, run in groupby(of_communicator, key=_faster):
            if choice is not None:
                rows.append(_row(choice, [one for its in run for one in its]))
    return rows


def _by_size(one: RunsPick) -> tuple[int, int, int, int]:
    return int(one.call.collective), one.call.nodes, one.call.gpus_per_node, one.call.bytes


def _faster(several: Sequence[RunsPick]) -> Combination | None:
    """The combination that is faster than the pick in all these calls; None if there is no such combination."""
    choices = {one.faster.combination if one.faster else None for one in several}
    return choices.pop() if len(choices) == 1 else None


def _row(choice: Combination, judged: Sequence[RunsPick]) -> RecommendedRow:
    first, last = judged[0], judged[-1]
    regrets = [one.regret for one in judged if one.regret is not None]
    decision = Decision(
        first.call.collective,
        bytes=Span(first.call.bytes, last.call.bytes),
        ranks=Span(first.call.nodes * first.call.gpus_per_node, first.call.nodes * first.call.gpus_per_node),
        nodes=Span(first.call.nodes, first.call.nodes),
        choices=(TableChoice(choice.algorithm, choice.protocol, choice.channels or None),),
    )
    return RecommendedRow(
        decision_text(decision),
        first.call.collective,
        first.call.nodes,
        first.call.gpus_per_node,
        first.call.bytes,
        last.call.bytes,
        choice,
        min(regrets),
        max(regrets),
        min(one.low for one in judged if one.low is not None),
        tuple(dict.fromkeys(one.call.dtype.name for one in judged)),
        decision,
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often NCCL's own choices, known from a log or from their time, equal the emulated picks.

    ``clear`` counts choices that a log shows, or whose time is nearer to one forced arm than to all others, beyond the
    noise; ``nearest`` counts the remaining choices, identified only by the nearest time.
    """

    clear: int
    clear_agreeing: int
    nearest: int
    nearest_agreeing: int


@dataclass(frozen=True, slots=True)
class MeasuredRegret:
    """What the runs show. ``sizes`` are NCCL's picks compared with what was measured. ``splits`` are calls that would
    be faster as several smaller calls. ``rows`` are the rows of a decision table that the measurements support.
    ``skipped`` counts rows that could not be placed, by reason; ``simulated`` are the files with simulated times.
    ``stand_in`` is a note if ``nccl`` stands in for another release, else empty.
    """

    machine: str | None
    nccl: str
    stand_in: str
    sizes: tuple[RunsPick, ...] = field(metadata=json_form(convert=sizes_record))
    agreement: Agreement
    splits: tuple[SplitGain, ...]
    rows: tuple[RecommendedRow, ...]
    skipped: Mapping[str, int]
    simulated: tuple[str, ...]
    measured: MeasuredArms = field(metadata=json_form(omitted=True))

    def count(self, verdict: PickVerdict) -> int:
        """Number of sizes with this verdict."""
        return sum(one.verdict is verdict for one in self.sizes)


def of_arms(placed: MeasuredArms) -> MeasuredRegret:
    """Collects everything that the arms show without a calibration."""
    noises = judged.of_arms(placed)
    found = tuple(judged.judged(one, noises.get(judged.group_of(one.call))) for one in placed.calls)
    return MeasuredRegret(
        placed.site.machine,
        placed.site.nccl,
        placed.site.stand_in,
        found,
        _agreement(found),
        tuple(split_gains(placed.calls, noises)),
        tuple(recommended(found)),
        placed.skipped,
        placed.simulated,
        placed,
    )


def _agreement(sizes: Sequence[RunsPick]) -> Agreement:
    known = [one.evidence.identified for one in sizes if one.evidence.identified is not None]
    clear, nearest = ([one for one in known if one.is_clear is wanted] for wanted in (True, False))
    return Agreement(len(clear), sum(one.agrees for one in clear), len(nearest), sum(one.agrees for one in nearest))


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """The runs to read. ``labelled``: pairs of what a file forced (``Ring``, ``default``) and the file. ``files`` say
    themselves what they forced. ``tables``: names of shipped tables, or paths. ``nodes`` selects rows of tables, and is
    the number of nodes of files that do not list ranks.

    What ``site`` leaves open is taken from the tables. ``noise_percent`` is by how much two equal runs differ, if the
    user knows it.
    """

    labelled: tuple[tuple[str, Path], ...] = ()
    files: tuple[Path, ...] = ()
    tables: tuple[str, ...] = ()
    site: Site = field(default_factory=Site)
    nodes: int | None = None
    gpus_per_node: int | None = None
    noise_percent: float | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all files."""
        return (*(path for _, path in self.labelled), *self.files)


def read(asked: RunsQuery) -> MeasuredArms:
    """The arms of one machine.

    BadInput if the machine or the release is missing, if the name of an arm is invalid, or if a file was measured with
    another algorithm or protocol forced than its arm names.
    BadMeasurement if a file has no times, or times that cannot be true.
    """
    given = Given(asked.site.nccl, asked.nodes, asked.gpus_per_node, by_round=True)
    sources = [
        *(TableSource(formats.read(path, given), path, arms.by_label(label)) for label, path in asked.labelled),
        *(TableSource(formats.read(path, given), path) for path in asked.files),
        *(TableSource(_of_nodes(_table(name), asked.nodes)) for name in asked.tables),
    ]
    if not sources:
        raise BadInput(f"nothing to judge: give {option('arm')} NAME=FILE, {option('table')} NAME, or FILE")
    site = asked.site.completed([source.table for source in sources])
    topology, trays = site.node
    for source in sources if topology is not None else ():
        plausible.refuse(source.table, topology, str(source.path or source.table.name), trays)
    placed = arms.of_sources(sources, site)
    return placed if asked.noise_percent is None else replace(placed, noise_percent={"1": asked.noise_percent})


def _table(name: str) -> Measurements:
    path = Path(name)
    return measured.read(path) if path.is_file() and name not in measured.names() else measured.load(name)


def _of_nodes(table: Measurements, nodes: int | None) -> Measurements:
    if nodes is None:
        return table
    rows = tuple(row for row in table.blocks if row.nodes == nodes)
    if not rows:
        there = ", ".join(map(str, sorted({row.nodes for row in table.blocks})))
        raise BadInput(f"{table.name} has no row of {nodes} nodes: it has {there}")
    return replace(table, blocks=rows)


FIRST_CALLS = 4


@dataclass(frozen=True, slots=True)
class NextRun:
    """A combination to force from ``low_bytes`` to ``high_bytes``, because it may be faster than the pick.

    The 90 % interval of its calibrated time reaches below the pick's time.

    At ``bytes`` the possible gain is largest: the pick took ``pick_us``; according to ``calibration``, the combination
    may take ``low_us`` to ``high_us``. ``possible_gain`` is the pick's time over ``low_us``, minus 1. ``measured``:
    whether the calibration has measured times of such calls from any communicator; if not, the interval is wide.
    """

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    combination: Combination = field(metadata=json_form(convert=str))
    low_bytes: int
    high_bytes: int
    sizes: int
    bytes: int
    pick: Combination = field(metadata=json_form(convert=str))
    pick_us: float
    time_us: float
    low_us: float
    high_us: float
    possible_gain: float
    measured: bool
    calibration: str

    @property
    def variables(self) -> str:
        """Variables that force the combination, as ``NAME=VALUE`` separated by spaces."""
        return f"NCCL_ALGO={self.combination.algorithm.name} NCCL_PROTO={self.combination.protocol.name}"


@dataclass(frozen=True, slots=True)
class NextRuns:
    """What to run next. ``runs`` has the largest possible gain first; ``not_answered`` says why some calls have no
    calibrated times.

    ``first_calls`` are the calls on the largest number of nodes, run by NCCL's own choice, that tell most about the
    site's other calls, the best first; empty on one node.
    """

    runs: tuple[NextRun, ...]
    not_answered: tuple[str, ...]
    first_calls: tuple[TellingCall, ...] = ()


def next_runs(measured: MeasuredArms, calibration: str | None = None) -> NextRuns:
    """Combinations worth forcing next, for all calls whose pick was measured.

    If a ``calibration`` is named: BadInput if it has no answer for this machine, BadCalibration if it is invalid.
    """
    groups: dict[tuple[object, ...], list[MeasuredCall]] = defaultdict(list)
    for one in measured.calls:
        groups[(*one.call.curve, one.environment)].append(one)
    best: dict[tuple[object, ...], NextRun] = {}
    reasons: dict[str, None] = {}
    for calls in groups.values():
        try:
            runs = list(_of_curve(calls, measured.site, calibration))
        except TunerError as error:
            if calibration is not None:
                raise
            reasons[str(error)] = None
            continue
        for run in runs:
            key = (run.collective, run.nodes, run.gpus_per_node, run.combination)
            if key not in best or run.possible_gain > best[key].possible_gain:
                best[key] = run
    runs_found = tuple(sorted(best.values(), key=lambda run: -run.possible_gain))
    return NextRuns(runs_found, tuple(reasons), _first_calls(measured, calibration))


def _first_calls(measured: MeasuredArms, calibration: str | None) -> tuple[TellingCall, ...]:
    """Calls to measure first on the largest communicator; empty on one node, or without a calibration."""
    call = max((one.call for one in measured.calls), key=lambda each: (each.nodes, each.gpus_per_node))
    if call.nodes == 1:
        return ()
    shape = Shape(call.nodes, call.gpus_per_node)
    try:
        return telling_calls(measured.site, shape, FIRST_CALLS, dtype=call.dtype, calibration=calibration).calls
    except TunerError:
        return ()


def _of_curve(calls: Sequence[MeasuredCall], site: Site, calibration: str | None) -> Iterator[NextRun]:
    call = calls[0].call
    known = read_by_model(release.load(site.nccl), site.environment)
    read = {name: value for name, value in calls[0].environment if name in known}
    selection = site.selection(call.nodes, call.gpus_per_node, read)
    model = predict.of_communicator(selection, site.name, calibration)
    request = Request(call.collective, call.dtype, Op.sum)
    sizes = [one.call.bytes for one in calls]
    for algo_proto, times in model.of_candidates(request, sizes).items():
        open_at = [
            (index, pick_us)
            for index, one in enumerate(calls)
            if (pick_us := _pick_us(one)) is not None
            and not _is_measured(one, algo_proto)
            and times.low_us[index] < pick_us
        ]
        if not open_at:
            continue
        best, pick_us = max(open_at, key=lambda each: each[1] / times.low_us[each[0]])
        yield NextRun(
            collective=call.collective,
            dtype=call.dtype,
            nodes=call.nodes,
            gpus_per_node=call.gpus_per_node,
            combination=Combination(*algo_proto),
            low_bytes=sizes[open_at[0][0]],
            high_bytes=sizes[open_at[-1][0]],
            sizes=len(open_at),
            bytes=sizes[best],
            pick=calls[best].pick.plain,
            pick_us=pick_us,
            time_us=float(times.time_us[best]),
            low_us=float(times.low_us[best]),
            high_us=float(times.high_us[best]),
            possible_gain=float(pick_us / times.low_us[best] - 1),
            measured=bool(np.all(times.measured)),
            calibration=model.reason,
        )


def _pick_us(one: MeasuredCall) -> float | None:
    same = columns_of(one.pick, RunEvidence(one, None))
    return same[0].time_us if same else None


def _is_measured(one: MeasuredCall, algo_proto: AlgoProto) -> bool:
    forced = [arm for arm in one.arms if arm.combination.algo_proto == algo_proto]
    return bool(forced) or one.pick.algo_proto == algo_proto
