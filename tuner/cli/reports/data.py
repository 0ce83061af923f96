"""Collects the numbers on the page of a machine, picks with NCCL's and calibrated times, and packs them for a
browser."""

import itertools
import json
import zlib
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted
from tuner.answers.choices import NOTHING, picks
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective, DataType, Op
from tuner.base.numerics import FloatArray, SizeArray
from tuner.base.trace import Steps
from tuner.emulator import alike
from tuner.emulator.alike import Alike
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_factor
from tuner.times.timemodel import features
from tuner.times.timemodel.predict import CalibratedTimes, TimeModel, joined_times

# Powers of two and what lies half way, so that every size and count has a short name.
SIZES = np.array([part << shift for shift in range(32) for part in (8, 12)][:-1], np.uint64)
NODES = (1, *(part << shift for shift in range(11) for part in (2, 3)))[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Picks and times of one release, collective and number of nodes, over all sizes.

    ``times_us`` is an array [candidate][size], NaN if NCCL ignores the candidate. ``pick`` is 3 x algorithm + protocol;
    it is -1 if NCCL finds nothing to run (``nothing`` says why), and for sizes below ``least_bytes``, which is one
    element per rank. ``steps`` explain each candidate that is a pick somewhere; their arrays [size] begin at index
    ``first``, the first valid size, or have the one number of all sizes.
    """

    candidates: tuple[AlgoProto, ...]
    times_us: FloatArray
    pick: NDArray[np.int64]
    pick_us: FloatArray
    channels: NDArray[np.int64]
    threads: NDArray[np.int64]
    excluded: tuple[tuple[AlgoProto, str], ...]
    least_bytes: int
    nothing: str
    first: int
    steps: dict[AlgoProto, list[Steps]]


@dataclass(frozen=True, slots=True, eq=False)
class PageData:
    """The content of a page. ``lines`` is keyed by (release, collective, number of nodes); ``sizes`` are in bytes."""

    scenario: Scenario
    dtype: DataType
    op: Op
    releases: tuple[str, ...]
    nodes: tuple[int, ...]
    sizes: SizeArray
    lines: dict[tuple[str, Collective, int], Line]
    selections: dict[tuple[str, int], Selection]  # by release and number of nodes

    def bus_factor(self, collective: Collective, nodes: int) -> float:
        """The factor from algorithm bandwidth to bus bandwidth on this number of nodes."""
        return float(bus_factor(collective, nodes * self.scenario.local_ranks()))


def collect(
    scenario: Scenario,
    releases: Sequence[str],
    dtype: DataType,
    op: Op,
    along: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> PageData:
    """Collects the content of a page for a scenario and each of ``releases``; the page opens at the scenario's own
    nodes.

    ``along`` wraps the iteration over releases, for example in a progress bar. BadInput for what the emulator refuses,
    and for nodes that differ or have given graphs.
    """
    if scenario.others or scenario.graphs:
        raise BadInput(
            "--node and --topo-graphs describe a single number of nodes, and the page shows several: use --machine "
            "or --topology"
        )
    nodes, lines = nodes_of(scenario), dict[tuple[str, Collective, int], Line]()
    selections, drawn = dict[tuple[str, int], Selection](), _Lines(SIZES)
    for name in along(releases):
        of_release = replace(scenario, nccl=name)
        for count in nodes:
            selection, of_calls = drawn.lines(of_release.with_nodes(count), dtype, op)
            selections[name, count] = selection
            lines.update({(name, collective, count): line for collective, line in of_calls.items()})
    return PageData(scenario, dtype, op, tuple(releases), nodes, SIZES, lines, selections)


def nodes_of(scenario: Scenario) -> tuple[int, ...]:
    """The numbers of nodes on the map, including the scenario's own; without those that give only one rank."""
    fewest, most = scenario.node_counts
    counts = sorted(count for count in {*NODES, scenario.nodes} if fewest <= count <= most)
    return tuple(count for count in counts if count * scenario.local_ranks() > 1)


class _Lines:
    """Lines over ``sizes``; what several releases have in common is computed once, and is one object."""

    def __init__(self, sizes: SizeArray) -> None:
        self.sizes = sizes
        self._selection = Alike().selection
        self._of_communicator: dict[Hashable, dict[Collective, Line]] = {}
        self._of_choice: dict[Hashable, Line] = {}

    def lines(self, scenario: Scenario, dtype: DataType, op: Op) -> tuple[Selection, dict[Collective, Line]]:
        """The selection of a scenario, and its lines."""
        communicator = scenario.communicator()
        selection, alike_ones = self._selection(communicator), alike.of_calls(communicator)
        made = None if alike_ones is None else self._of_communicator.get(alike_ones)
        if made is None:
            made = {each: self._line(scenario, selection, Request(each, dtype, op)) for each in Collective}
            if alike_ones is not None:
                self._of_communicator[alike_ones] = made
        return selection, made

    def _line(self, scenario: Scenario, selection: Selection, request: Request) -> Line:
        choice = alike.of_choice(selection, request)
        line = None if choice is None else self._of_choice.get(choice)
        if line is None:
            line = _line(scenario, selection, request, self.sizes)
            if choice is not None:
                self._of_choice[choice] = line
        # Steps of the model lead from constants to the tables, and have their numbers once for all sizes.
        steps = {
            algo_proto: [*selection.steps_of_model(request, 1, algo_proto), *of_calls]
            for algo_proto, of_calls in line.steps.items()
        }
        excluded = tuple(item for item in selection.excluded(request).items() if item[0] not in line.candidates)
        return replace(line, steps=steps, excluded=excluded)


def _line(scenario: Scenario, selection: Selection, request: Request, sizes: SizeArray) -> Line:
    """A line without the cells that are excluded, and without the steps of the model."""
    least_bytes = request.unit_bytes(scenario.ranks)
    small = int(np.searchsorted(sizes, np.uint64(least_bytes)))
    table = selection.cost_table(request, sizes[small:])
    picked = picks(selection, request, sizes, table)
    end = small + np.count_nonzero(picked.algorithm != NOTHING)
    candidates = tuple(selection.candidates(request)) if selection.usable(request) else ()
    numbers = picked.combinations
    line = Line(
        candidates=candidates,
        times_us=np.full((len(candidates), len(sizes)), np.nan, np.float32),
        pick=np.where(picked.algorithm == NOTHING, NOTHING, numbers),
        pick_us=picked.time_us,
        channels=picked.channels,
        threads=picked.threads,
        excluded=(),
        least_bytes=least_bytes,
        nothing=_nothing(selection, request, sizes[end:]),
        first=small,
        steps={},
    )
    for row, algo_proto in enumerate(candidates):
        times_us = table[:, algo_proto[0], algo_proto[1]]
        line.times_us[row, small:] = np.where(times_us < 0, np.float32(np.nan), times_us)
    for algo_proto in candidates:
        if (line.pick == ALGO_PROTOS.index(algo_proto)).any():
            line.steps[algo_proto] = selection.steps_of_calls(request, sizes[small:], algo_proto)
    return line


def _nothing(selection: Selection, request: Request, refused: SizeArray) -> str:
    if refused.size:
        try:
            selection.pick(request, refused)
        except NoAlgorithm as error:
            return str(error)
    return ""


_PRECISION = np.int32(-(1 << 11))  # of a float32: 12 bits after the point, which pack well and say more than is known


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedLine:
    """Calibrated times in us of a line's picks, with their bounds: float32 arrays [size], NaN if there is no time.

    ``measured`` is an array [size] of bools. ``used`` says which calibration answered, or why none did.
    """

    time_us: NDArray[np.float32]
    low_us: NDArray[np.float32]
    high_us: NDArray[np.float32]
    measured: NDArray[np.bool_]
    used: CalibrationUsed


CalibratedLines = dict[tuple[str, Collective, int], CalibratedLine]


def collect_calibrated(
    report: PageData, wanted: TimesWanted, along: Callable[[Sequence[str]], Iterable[str]] = iter
) -> CalibratedLines:
    """Collects calibrated times for each line of the content. Raises BadInput and BadCalibration."""
    lines, known = CalibratedLines(), dict[tuple[Any, ...], CalibratedTimes]()
    shared: dict[Hashable, CalibratedLine] = {}
    numbers = _places()  # of facts, which take long to compare
    for release in along(report.releases):
        for count in report.nodes:
            scenario = replace(report.scenario, nccl=release, nodes=count)
            selection = report.selections[release, count]
            model = calibrated.answering(wanted, scenario, selection)
            used, facts = calibrated.used(model), numbers[alike.of_facts(selection.communicator)]
            of_model = None if isinstance(model, NoCalibration) else _by(model)
            for collective in Collective:
                at = release, collective, count
                line = report.lines[at]
                # What releases share of a line has the identity of its times.
                by = id(line.times_us), facts, of_model
                if by not in shared:
                    request = Request(collective, report.dtype, report.op)
                    shared[by] = _calibrated_line(report, request, line, model, known)
                lines[at] = replace(shared[by], used=replace(used, carried_over=shared[by].used.carried_over))
    return lines


def _calibrated_line(
    report: PageData,
    request: Request,
    line: Line,
    model: TimeModel | NoCalibration,
    known: dict[tuple[Any, ...], CalibratedTimes],
) -> CalibratedLine:
    shape = report.sizes.shape
    times_us, measured = np.full((3, *shape), np.nan), np.zeros(shape, np.bool_)
    there = np.flatnonzero(line.pick != NOTHING)
    used = calibrated.used(model)
    if isinstance(model, TimeModel) and there.size:
        number = line.pick[there]
        algorithm, protocol = np.array(ALGO_PROTOS, np.int8)[number].T
        launched = line.channels[there], line.threads[there]
        picked = Picks(report.sizes[there], algorithm, protocol, line.pick_us[there], *launched)
        answer = _times(model, request, picked, known)
        times_us[:, there] = answer.time_us, answer.low_us, answer.high_us
        measured[there] = answer.measured
        used = replace(used, carried_over=tuple(kind.value for kind in answer.carried_over))
    time_us, low_us, high_us = map(_few_digits, times_us)
    return CalibratedLine(time_us, low_us, high_us, measured, used)


def _times(
    model: TimeModel, request: Request, picked: Picks, known: dict[tuple[Any, ...], CalibratedTimes]
) -> CalibratedTimes:
    """Like :meth:`TimeModel.of_picks`; picks that releases share are computed once and kept in ``known``."""
    by, parts = _by(model), []
    for where, calls in features.by_combination(model.selection, request, picked):
        key = *by, *(np.asarray(getattr(calls, each.name)).tobytes() for each in fields(calls))
        if key not in known:
            known[key] = model.times(request, calls)
        parts.append((where, known[key]))
    return joined_times(parts, len(picked.bytes))


def _by(model: TimeModel) -> tuple[Hashable, ...]:
    """What calibrated times depend on beside the features of calls."""
    communicator = model.selection.communicator
    by = model.calibration.name, model.same_machine, model.chosen.adapters_gbs
    return *by, communicator.nodes, communicator.local_ranks, model.depends_on_release()


def _few_digits(values: NDArray[np.float64]) -> NDArray[np.float32]:
    rounded: NDArray[np.float32] = (values.astype(np.float32).view(np.int32) & _PRECISION).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded)


def _places() -> "defaultdict[Any, int]":
    """The places of distinct values in a list, in the order in which they are first asked for."""
    return defaultdict(itertools.count().__next__)


class Packer:
    """Packs the lines of the content one by one; the index stores values as positions in lists of distinct values."""

    def __init__(self, report: PageData, calibrated: CalibratedLines | None = None) -> None:
        self.report, self.calibrated = report, calibrated
        self.floats = _places()
        self.shorts = _places()
        self.numbers = _places()
        self.texts = _places()
        self.steps = _places()
        self.traces = _places()
        self.excluded = _places()
        self.lines = _places()
        # Of what several lines of the report share, by the identity of an array or of steps: where it is placed.
        self._numbers_of: dict[int, int] = {}
        self._values_of: dict[int, tuple[float | tuple[int], float | tuple[int]]] = {}
        self._texts_of: dict[tuple[str, str, Callable[..., Any], str], int] = {}

    def pack(self, described: dict[str, object]) -> tuple[str, str]:
        """Packs the content; ``described``, which is everything else that the page says, is added to the index.

        Returns the index, which is JSON, and rows with one number per size: first rows of little-endian float32, whose
        bytes are in four planes, then of uint16. Both texts are base64 of zlib's format.
        """
        report, nodes = self.report, self.report.nodes
        places = [
            [[self._line(release, report.lines[release, one, count]) for count in nodes] for one in Collective]
            for release in report.releases
        ]
        calibrated = None if self.calibrated is None else self._calibrated(self.calibrated)
        index = {
            **described,
            "calibrated": calibrated,
            "releases": report.releases,
            "collectives": [one.name for one in Collective],
            "nodes": nodes,
            "sizes": report.sizes.tolist(),
            "bus_factors": [[report.bus_factor(one, count) for count in nodes] for one in Collective],
            "places": places,
            "floats": len(self.floats),
            "numbers": [*self.numbers],
            "lines": [*self.lines],
            "excluded": [*self.excluded],
            "traces": [*self.traces],
            "steps": [tuple(map(self.texts.__getitem__, texts)) for texts in self.steps],
            "texts": [*self.texts],
        }
        # In planes, bytes that are alike lie together.
        planes = np.frombuffer(b"".join(self.floats), np.uint8).reshape(-1, 4).T.tobytes()
        binary = planes + b"".join(self.shorts)
        text = json.dumps(index, separators=(",", ":"), allow_nan=False)
        return _deflated(text.encode()), _deflated(binary)

    def _calibrated(self, lines: CalibratedLines) -> dict[str, object]:
        """The calibrated times for the index: for each release, collective and number of nodes the position of a row,
        which refers to times, bounds and what was measured."""
        report, rows = self.report, _places()

        def place(line: CalibratedLine) -> int:
            times = tuple(self._floats(row) for row in (line.time_us, line.low_us, line.high_us))
            used = line.used
            carried = f"; measured times are carried over to: {', '.join(used.carried_over)}"
            said = f"{used.reason}{carried if used.carried_over else ''}"
            measured = self.shorts[line.measured.astype("<u2").tobytes()]
            return rows[(*times, measured, self.texts[said])]

        places = [
            [[place(lines[release, one, count]) for count in report.nodes] for one in Collective]
            for release in report.releases
        ]
        return {"places": places, "rows": [*rows]}

    def _line(self, nccl: str, line: Line) -> int:
        if id(line.times_us) not in self._numbers_of:
            self._numbers_of[id(line.times_us)] = self._numbers(line)
        reasons = tuple((_number(algo_proto), self.texts[reason]) for algo_proto, reason in line.excluded)
        steps = tuple((_number(each), self._trace(nccl, line, steps)) for each, steps in line.steps.items())
        numbers = self._numbers_of[id(line.times_us)]
        return self.lines[numbers, self.excluded[reasons], line.least_bytes, self.texts[line.nothing], steps]

    def _numbers(self, line: Line) -> int:
        pick = np.where(line.pick == NOTHING, 0xFFFF, line.pick)
        numbers = (
            tuple(
                (_number(algo_proto), self._floats(row))
                for algo_proto, row in zip(line.candidates, line.times_us, strict=True)
            ),
            self._floats(line.pick_us),
            *(self.shorts[values.astype("<u2").tobytes()] for values in (pick, line.channels, line.threads)),
        )
        return self.numbers[numbers]

    def _trace(self, nccl: str, line: Line, steps: list[Steps]) -> int:
        """Position of the steps of an explanation; each has the position of its texts, and the values before and after
        it."""
        values = ((self._texts(nccl, one), *self._before_and_after(line, one)) for one in steps)
        return self.traces[tuple(values)]

    def _texts(self, nccl: str, one: Steps) -> int:
        at = nccl, one.quantity, one.rule, one.unit
        if at not in self._texts_of:
            texts = (one.quantity, one.name, one.unit, one.says, one.source(nccl))
            self._texts_of[at] = self.steps[texts]
        return self._texts_of[at]

    def _before_and_after(self, line: Line, one: Steps) -> tuple[float | tuple[int], float | tuple[int]]:
        placed = self._values_of.get(id(one))
        if placed is None:
            placed = self._values_of[id(one)] = self._values(line, one.before), self._values(line, one.after)
        return placed

    def _values(self, line: Line, values: NDArray[Any]) -> float | tuple[int]:
        """The value itself if it is the same for all sizes, else the index of a row of numbers."""
        if len(values) == 1 or (values == values[0]).all():
            return float(values[0])
        row = np.full(line.first + len(values), np.nan, np.float32)
        row[line.first :] = values
        return (self._floats(row),)

    def _floats(self, row: NDArray[Any]) -> int:
        return self.floats[row.astype("<f4").tobytes()]


def _number(algo_proto: AlgoProto) -> int:
    return ALGO_PROTOS.index(algo_proto)


def _deflated(content: bytes) -> str:
    return b64encode(zlib.compress(content, 9)).decode("ascii")
