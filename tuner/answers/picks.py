"""NCCL's picks of a call at each size, by the emulator; :mod:`tuner.answers.library` asks the real library."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.answers.symmetric import NonClassicPick, RunnerUp, bypassing_pick
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.frames import Column, NamedColumn
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, Protocol
from tuner.base.numerics import FloatArray, SizeArray, is_time, shortest
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes
from tuner.base.view import column, shown
from tuner.emulator.ranges import Ranges
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Picks, Selection, of_picks
from tuner.scenario import ConstantsUsed, Scenario
from tuner.times.costmodels.operations import algorithm_gbs, bus_factor, bus_gbs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.answers.calibrated import CalibrationUsed, TimesWanted
    from tuner.answers.launches import LaunchAnswer
    from tuner.base.nouns import TimeInterval


@dataclass(frozen=True, slots=True)
class NodesPick:
    """The pick of ranks on other ``nodes``."""

    nodes: str
    pick: Pick = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class PickAnswer:
    """Pick of a call of ``bytes`` (NCCL's nBytes), and the time of each combination by NCCL's model.

    ``cost_us`` maps names (``Ring/LL``) of the combinations that NCCL does not ignore to times; it is empty if the call
    bypasses the algorithms. ``disagreeing`` are picks of ranks on other nodes that differ from rank 0's; NCCL needs all
    picks to be equal. ``calibrated`` are calibrated times of the same combinations, if they were asked for and exist;
    they do not change the pick. ``alone``: what NCCL would pick without the tuner, if there is a tuner.
    """

    collective: Collective = field(metadata=column())
    bytes: int = field(metadata=column("size", text=human_bytes))
    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    cost_us: Mapping[str, float]
    pick: Pick | NonClassicPick
    disagreeing: tuple[NodesPick, ...] = field(default=(), metadata=json_form(optional=True))
    ranks: int = field(default=0, metadata=json_form(omitted=True))  # of the communicator
    calibrated: "Mapping[str, TimeInterval] | None" = field(default=None, metadata=json_form(optional=True))
    calibration: "CalibrationUsed | None" = field(default=None, metadata=json_form(optional=True))
    launch: "LaunchAnswer | None" = field(default=None, metadata=json_form(optional=True))  # in full, where asked for
    alone: Pick | None = field(default=None, metadata=json_form("nccl_alone", optional=True))

    @property
    @shown("NCCL us", digits=2)
    def time_us(self) -> float | None:
        """Time of the pick by NCCL's model of such calls; None if NCCL has no model of them."""
        return self.pick.time_us

    @property
    @shown("algbw GB/s", digits=3, spare=1)
    def algbw_gbs(self) -> float | None:
        """nccl-tests' algorithm bandwidth at the predicted time, GB/s (1e9 bytes per second); None without a time."""
        return float(algorithm_gbs(self.bytes, self.time_us)) if is_time(self.time_us) else None

    @property
    @shown("busbw GB/s", digits=3)
    def busbw_gbs(self) -> float | None:
        """nccl-tests' bus bandwidth at the predicted time, GB/s; None without a time."""
        return float(bus_gbs(self.collective, self.bytes, self.time_us, self.ranks)) if is_time(self.time_us) else None

    @property
    def calibrated_pick(self) -> "TimeInterval | None":
        """The calibrated time of the pick; None if there is no such time."""
        return self.calibrated.get(self.pick.name) if self.calibrated and isinstance(self.pick, Pick) else None

    @property
    @shown("calibrated busbw GB/s", digits=3, key="")
    def calibrated_busbw_gbs(self) -> float | None:
        """nccl-tests' bus bandwidth at the calibrated time, GB/s; None without a calibrated time."""
        time = self.calibrated_pick
        return None if time is None else float(bus_gbs(self.collective, self.bytes, time.time_us, self.ranks))

    @property
    def runner_up(self) -> RunnerUp | None:
        """The next best combination or kernel; None without another."""
        if not isinstance(self.pick, Pick):
            return self.pick.runner_up
        others = {name: time_us for name, time_us in self.cost_us.items() if name != self.pick.name}
        if not others:
            return None
        name = min(others, key=others.__getitem__)
        return RunnerUp(name, others[name], 100 * (others[name] / self.pick.time_us - 1))


def from_emulator(scenario: Scenario, request: Request, sizes: Sequence[int]) -> list[PickAnswer]:
    """The emulator's answer for each size.

    NoAlgorithm if nothing can run. BadInput for what is not emulated.
    """
    selection, *others = (Selection(view) for _, view in scenario.resolve().views_of_kinds)
    paths = selection.non_classic_paths(request, sizes)
    staying = [size for size, path in zip(sizes, paths, strict=True) if path is None]
    classic = _classic(scenario, [selection, *others], request, staying) if staying else iter(())
    return [
        next(classic)
        if path is None
        else off_classic_path(scenario, request, size, bypassing_pick(selection, request, size, path))
        for size, path in zip(sizes, paths, strict=True)
    ]


def off_classic_path(scenario: Scenario, request: Request, size: int, pick: NonClassicPick) -> PickAnswer:
    """The answer for a call of ``size`` bytes (nBytes) that bypasses the algorithms; ``pick`` says what executes it."""
    return PickAnswer(request.collective, int(size), scenario.constants, {}, pick, ranks=scenario.ranks)


def costs_us(table_us: FloatArray) -> dict[str, float]:
    """Times in us by name of the combinations that NCCL does not ignore, from a cost table [algorithm][protocol].

    A cost table of libnccl has no rows for algorithms that its release does not know.
    """
    known = [(algorithm, protocol) for algorithm, protocol in ALGO_PROTOS if algorithm < len(table_us)]
    cells = {f"{a.name}/{p.name}": table_us[a, p] for a, p in known if table_us[a, p] >= 0}
    return {name: shortest(time_us) for name, time_us in cells.items()}


def _classic(
    scenario: Scenario, views: Sequence[Selection], request: Request, sizes: Sequence[int]
) -> Iterator[PickAnswer]:
    """Yields the picks on the classic path. ``views``: the communicator as rank 0 sees it, then as each other kind of
    node sees it.
    """
    own, *others = views
    picks, tables_us = own.pick_with_costs(request, sizes)
    theirs = [of_picks(other.pick(request, sizes)) for other in others]
    tuner = own.communicator.tuner
    has_say = tuner is not None and tuner.why_not(own.communicator) is None
    alone = of_picks(own.alone.pick(request, sizes)) if has_say else [None] * len(sizes)
    for row, (size, pick) in enumerate(zip(sizes, of_picks(picks), strict=True)):
        disagreeing = tuple(
            NodesPick(node.name, other[row])
            for (node, _), other in zip(scenario.resolve().views_of_kinds[1:], theirs, strict=True)
            if _launched(other[row]) != _launched(pick)
        )
        cost_us = costs_us(tables_us[row])
        yield PickAnswer(
            request.collective,
            int(size),
            scenario.constants,
            cost_us,
            pick,
            disagreeing,
            scenario.ranks,
            alone=alone[row],
        )


def _launched(pick: Pick) -> tuple[str, int, int]:
    return pick.name, pick.channels, pick.threads


def with_times(
    answers: Sequence[PickAnswer], scenario: Scenario, request: Request, wanted: "TimesWanted"
) -> list[PickAnswer]:
    """The answers with calibrated times, or with the reason why there are no such times.

    BadInput if no calibration answers, BadCalibration if it is invalid.
    """
    from tuner.answers import calibrated

    selection = Selection(scenario.communicator())
    model = calibrated.answering(wanted, scenario, selection, request.buffers)
    if isinstance(model, calibrated.NoCalibration):
        return [replace(answer, calibration=calibrated.used(model)) for answer in answers]
    sizes, names = [answer.bytes for answer in answers], dict.fromkeys(name for one in answers for name in _names(one))
    estimates = calibrated.of_combinations(model, request, sizes, names)
    several = []
    for at, answer in enumerate(answers):
        own = {name: estimates[name][at] for name in _names(answer)}
        times = {name: each.time for name, each in own.items()}
        several.append(replace(answer, calibrated=times, calibration=calibrated.used(model, own.items())))
    return several


def _names(answer: PickAnswer) -> list[str]:
    """Names of the combinations that NCCL does not ignore, and of the pick, even if it is not among these."""
    pick = [answer.pick.name] if isinstance(answer.pick, Pick) else []
    return list(dict.fromkeys([*answer.cost_us, *pick]))


NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class RunnersUp:
    """The fastest combination besides the pick, one element per size; ``time_us`` float32 [size].

    If there is no other combination, ``algorithm`` and ``protocol`` are -1 and the time is NaN.
    """

    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    time_us: FloatArray


class CallPicks(Picks):
    """NCCL's picks for ``request``, one element per size: the fields of :class:`tuner.emulator.selection.Picks` and,
    computed when asked for, nccl-tests' bandwidths at the predicted time and the runner-up.
    """

    def __init__(
        self, stored: tuple[NDArray[Any], ...], request: Request, selection: Selection, scenario: Scenario
    ) -> None:
        super().__init__(*stored)
        self.request, self.selection, self.scenario = request, selection, scenario

    def __repr__(self) -> str:
        if not len(self.bytes):
            return f"<{type(self).__name__}: {self.request.title}, no sizes>"
        names = dict.fromkeys(f"{a.name}/{p.name}" for a, p in self.algo_protos())
        ends = dict.fromkeys(human_bytes(int(size)) for size in (self.bytes.min(), self.bytes.max()))
        sizes = f"{len(self.bytes)} sizes, {' to '.join(ends)}" if len(self.bytes) > 1 else " ".join(ends)
        return f"<{type(self).__name__}: {self.request.title}, {sizes}: {', '.join(names)}>"

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draws predicted times and bus bandwidths of the picks and of all combinations that the call may use, over the
        sizes.

        With one size the times are bars. If a ``path`` (.png, .svg, .pdf) is given, the figure is saved there. BadInput
        without sizes or for another ending; MissingExtra without matplotlib.
        """
        from tuner.answers import charts, choices

        if not len(self.bytes):
            raise BadInput("no sizes to draw: give one or more")
        sizes, at = np.unique(self.bytes, return_index=True)
        names = ("algorithm", "protocol", "channels", "threads", "time_us")
        picks = choices.Choices((self.scenario.nodes,), sizes, *(getattr(self, name)[np.newaxis, at] for name in names))
        curves = choices.curves_beside(picks, self.selection, self.request)
        title, where = self.request.title, self.scenario.heading
        if len(sizes) > 1:
            what = f"{title}: predicted time and bus bandwidth"
            return charts.plot(lambda figures: figures.curves(curves, what, where), path)
        (pick, *_), pick_us = self.algo_protos(), self.time_us[0]
        others_us = [*zip(curves.algo_protos, curves.time_us[:, 0], strict=True), (pick, pick_us)]
        times_us = {each: shortest(time_us) for each, time_us in others_us if time_us > 0}
        what = f"{title}, {human_bytes(int(sizes[0]))}: predicted time"
        return charts.plot(lambda figures: figures.combinations(pick, times_us, what, where), path)

    @property
    def algbw_gbs(self) -> NDArray[np.float64]:
        """Size over predicted time, GB/s (1e9 bytes per second), [size]."""
        gbs: NDArray[np.float64] = self.bytes.astype(np.float64) / self.time_us / 1000
        return gbs

    @property
    def busbw_gbs(self) -> NDArray[np.float64]:
        """nccl-tests' bus bandwidth at the predicted time, GB/s, [size]."""
        return self.algbw_gbs * float(bus_factor(self.request.collective, self.selection.communicator.ranks))

    @cached_property
    def runners_up(self) -> RunnersUp:
        """The fastest combination besides each pick, by the cost table."""
        sizes: SizeArray = self.bytes
        table_us = self.selection.cost_table(self.request, sizes).reshape(len(sizes), len(ALGO_PROTOS))
        others_us = np.where(table_us >= 0, table_us, np.float32(np.inf))
        rows = np.arange(len(sizes))
        others_us[rows, self.combinations] = np.inf
        best = others_us.argmin(axis=1)
        time_us = others_us[rows, best]
        there = np.isfinite(time_us)
        algorithm, protocol = np.divmod(best, len(Protocol))
        return RunnersUp(
            np.where(there, algorithm, NOTHING).astype(np.int8),
            np.where(there, protocol, NOTHING).astype(np.int8),
            np.where(there, time_us, np.float32(np.nan)),
        )

    def columns(self) -> dict[str, Column]:
        """One row per size: the columns of Picks, algbw_gbs, busbw_gbs, and runner_up_algorithm, _protocol and
        _time_us.
        """
        second = self.runners_up
        return {
            **super().columns(),
            "algbw_gbs": self.algbw_gbs,
            "busbw_gbs": self.busbw_gbs,
            "runner_up_algorithm": NamedColumn(Algorithm, second.algorithm),
            "runner_up_protocol": NamedColumn(Protocol, second.protocol),
            "runner_up_time_us": second.time_us,
        }


class CallRanges(Ranges):
    """Ranges of what NCCL picks for ``request`` on the communicator of ``scenario``."""

    __slots__ = ("request", "scenario")

    request: Request
    scenario: Scenario

    def __init__(self, ranges: Ranges, request: Request, scenario: Scenario) -> None:
        for each in fields(Ranges):
            object.__setattr__(self, each.name, getattr(ranges, each.name))
        object.__setattr__(self, "request", request)
        object.__setattr__(self, "scenario", scenario)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draws the pick of each range, its channels and threads, over sizes. If a ``path`` (.png, .svg, .pdf) is
        given, the figure is saved there.

        BadInput for another ending of the path; MissingExtra without matplotlib.
        """
        from tuner.answers import charts

        what = f"{self.request.title}: what NCCL picks"
        return charts.plot(lambda figures: figures.edges(self, what, self.scenario.heading), path)
