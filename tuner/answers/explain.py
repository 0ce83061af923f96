"""Explains NCCL's pick for a size: its numbers step by step, why the others lost, and for which sizes the pick is the
same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tuner.answers.tuners import TunerWord, word_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.frames import Column, Framed, Rows, html_table
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol, by_name
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes
from tuner.base.trace import TraceStep
from tuner.emulator.ranges import FOLLOWED_BYTES, combinations
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Selection, of_picks
from tuner.scenario import ConstantsUsed, Scenario
from tuner.scenario.domain import what_hosts_are

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.answers.calibrated import CalibrationUsed, TimesWanted
    from tuner.base.nouns import TimeInterval


@dataclass(frozen=True, slots=True)
class Slower:
    """A combination that the call may use: its numbers at this size, and how much slower than the pick it is."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float
    latency_us: float
    bandwidth_gbs: float
    slower_us: float
    slower_percent: float


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A combination that the call may not use, and why."""

    algorithm: Algorithm
    protocol: Protocol
    reason: str


@dataclass(frozen=True, slots=True)
class Holds:
    """The sizes around the explained one that get the same algorithm and protocol, both ends included."""

    from_bytes: int
    to_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Framed):
    """Reasons for the pick of a call of ``bytes`` (NCCL's nBytes).

    ``steps`` lead to the pick's numbers; ``others`` are the slower combinations, the fastest first, then those that
    cannot be used. ``calibrated`` are calibrated times of every combination that the call may use, if they were asked
    for. ``nccl-tuner explain --json`` prints this record. As a data frame it has one row per step.
    """

    collective: Collective
    bytes: int
    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    pick: Pick
    steps: tuple[TraceStep, ...]
    others: tuple[Slower | Unavailable, ...]
    holds: Holds
    domains: str | None = field(default=None, metadata=json_form(optional=True))  # what NCCL makes of NVLink domains
    split_hosts: str | None = field(default=None, metadata=json_form(optional=True))  # those that are several nodes
    calibrated: "Mapping[str, TimeInterval] | None" = field(default=None, metadata=json_form(optional=True))
    calibration: "CalibrationUsed | None" = field(default=None, metadata=json_form(optional=True))
    tuner_word: TunerWord | None = field(default=None, metadata=json_form(optional=True))  # of a loaded tuner plugin

    def __repr__(self) -> str:
        call = f"{self.collective.name} of {human_bytes(self.bytes)}"
        return (
            f"<{type(self).__name__}: {call}, {self.pick.name} in {self.pick.time_us:.2f} us, {len(self.steps)} steps>"
        )

    def columns(self) -> dict[str, Column]:
        """Columns with one element per step: quantity, name, before, after, unit, says, source."""
        return Rows(self.steps).columns()

    def _repr_html_(self) -> str:
        """The pick and the other combinations that the call may use, as a table for notebooks."""
        call = f"{self.collective.name} of {human_bytes(self.bytes)}: {self.pick.name}"
        until = f"{human_bytes(self.holds.from_bytes)} to {human_bytes(self.holds.to_bytes)}"
        rows: list[tuple[str, float, float | None]] = [(self.pick.name, float(self.pick.time_us), None)]
        rows += [
            (f"{each.algorithm.name}/{each.protocol.name}", each.time_us, each.slower_percent) for each in self.slower
        ]
        reasons = "; ".join(f"{each.algorithm.name}/{each.protocol.name}: {each.reason}" for each in self.unavailable)
        below = f"The same pick from {until}.{f' Not usable: {reasons}.' if reasons else ''}"
        return html_table(call, ("combination", "time_us", "slower_percent"), rows, below)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draws the times of the pick and of every other combination that the call may use. If a ``path`` (.png, .svg,
        .pdf) is given, the figure is saved there.

        BadInput for another ending of the path; MissingExtra without matplotlib.
        """
        from tuner.answers import charts

        pick = by_name(Algorithm, self.pick.algorithm, "algorithm"), by_name(Protocol, self.pick.protocol, "protocol")
        times_us = {pick: float(self.pick.time_us)}
        times_us |= {(each.algorithm, each.protocol): float(each.time_us) for each in self.slower}
        what = f"{self.collective.name} of {human_bytes(self.bytes)}: predicted time"
        where = f"the same pick from {human_bytes(self.holds.from_bytes)} to {human_bytes(self.holds.to_bytes)}"
        return charts.plot(lambda figures: figures.combinations(pick, times_us, what, where), path)

    @property
    def slower(self) -> list[Slower]:
        """Other combinations that the call may use, the fastest first."""
        return [other for other in self.others if isinstance(other, Slower)]

    @property
    def unavailable(self) -> list[Unavailable]:
        """Combinations that the call may not use."""
        return [other for other in self.others if isinstance(other, Unavailable)]


_Steps: TypeAlias = Mapping[AlgoProto, list[TraceStep]]


def explain(scenario: Scenario, request: Request, size: int) -> Explanation:
    """Explains the pick of ``size`` bytes as rank 0 sees it.

    NoAlgorithm if nothing can run. BadInput for what is not emulated, for windows, and if NCCL_CTA_POLICY changes the
    pick.
    """
    explanation = explain_pick(Selection(scenario.communicator()), scenario.constants, request, size)
    resolved = scenario.resolve()
    return replace(explanation, domains=resolved.what_domains_are, split_hosts=what_hosts_are(resolved.nodes))


def explain_pick(selection: Selection, constants: ConstantsUsed, request: Request, size: int) -> Explanation:
    """Explains a pick on the communicator of ``selection``. Raises NoAlgorithm and BadInput in the same cases as
    :func:`explain`.
    """
    if request.symmetric:
        raise BadInput(
            "calls on window buffers may bypass algorithms and protocols at any size, so there is no pick to explain: "
            "use plain or registered buffers"
        )
    picks = selection.pick(request, size)
    (pick,) = of_picks(picks)
    (algo_proto,) = picks.algo_protos()
    steps = {each: selection.steps(request, size, each) for each in selection.candidates(request)}
    if algo_proto not in steps and selection.communicator.tuner is not None:
        raise BadInput(
            f"the tuner plugin picks {pick.name}, for which NCCL computes no numbers to explain: leave out the tuner"
        )
    if algo_proto not in steps or last(steps[algo_proto], "time") != pick.time_us:
        raise BadInput(
            f"NCCL_CTA_POLICY moves this pick to {pick.algorithm} whatever its time, so there is nothing to explain: "
            "remove the variable"
        )
    return Explanation(
        collective=request.collective,
        bytes=size,
        constants=constants,
        pick=pick,
        steps=tuple(steps[algo_proto]),
        others=(*_slower(steps, algo_proto), *_unavailable(selection, request, steps)),
        holds=_holds(selection, request, size),
        tuner_word=word_of(selection, request, size),
    )


def with_times(explanation: Explanation, scenario: Scenario, request: Request, wanted: "TimesWanted") -> Explanation:
    """Adds calibrated times. BadInput if no calibration answers, BadCalibration if it is invalid."""
    from tuner.answers import calibrated

    model = calibrated.answering(wanted, scenario, Selection(scenario.communicator()), request.buffers)
    if isinstance(model, calibrated.NoCalibration):
        return replace(explanation, calibration=calibrated.used(model))
    names = [explanation.pick.name, *(f"{each.algorithm.name}/{each.protocol.name}" for each in explanation.slower)]
    several = calibrated.of_combinations(model, request, [explanation.bytes], names)
    estimates = {name: estimate for name, (estimate,) in several.items()}
    times = {name: each.time for name, each in estimates.items()}
    return replace(explanation, calibrated=times, calibration=calibrated.used(model, estimates.items()))


def last(steps: list[TraceStep], *quantities: str) -> float:
    """The value after the last of the ``steps`` that computes one of these ``quantities``. ValueError if no step
    computes one.
    """
    *_, value = (step.after for step in steps if step.quantity in quantities)
    return value


def _slower(steps: _Steps, pick: AlgoProto) -> Iterator[Slower]:
    """Yields the other candidates, the fastest first."""
    times_us = {algo_proto: last(seen, "time") for algo_proto, seen in steps.items()}
    for algo_proto in sorted(steps.keys() - {pick}, key=lambda algo_proto: (times_us[algo_proto], algo_proto)):
        seen, slower_us = steps[algo_proto], times_us[algo_proto] - times_us[pick]
        yield Slower(
            *algo_proto,
            time_us=times_us[algo_proto],
            latency_us=last(seen, "latency", "latency at this size"),
            bandwidth_gbs=last(seen, "bandwidth", "bandwidth at this size"),
            slower_us=slower_us,
            slower_percent=100 * slower_us / times_us[pick],
        )


def _unavailable(selection: Selection, request: Request, steps: _Steps) -> Iterator[Unavailable]:
    for algo_proto, reason in selection.excluded(request).items():
        if algo_proto not in steps:  # Ring stands in where nothing is left
            yield Unavailable(*algo_proto, reason)


def _holds(selection: Selection, request: Request, size: int) -> Holds:
    """The sizes around ``size`` with the same pick; the search is from 1 byte to 1 TiB, or to ``size`` if that is
    larger.
    """
    ranges = combinations(selection, request, 1, max(FOLLOWED_BYTES, size))
    at = int(np.searchsorted(ranges.from_bytes, np.uint64(size), side="right")) - 1
    return Holds(int(ranges.from_bytes[at]), int(ranges.to_bytes[at]))
