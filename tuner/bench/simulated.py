"""A measuring backend without GPUs: hidden ("planted") true times with the noise of a real machine, on a virtual clock.

The same seed gives the same times. docs/measuring.md describes what is planted.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import f32
from tuner.base.spelling import option
from tuner.bench.backend import Run
from tuner.emulator import fitted_constants
from tuner.emulator.build import with_release
from tuner.emulator.communicator import Comm
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Selection
from tuner.plugin import asked, loading
from tuner.plugin.dry_run import DryRun, TunerCall
from tuner.release import Release
from tuner.release.convert import plain
from tuner.scenario import Scenario
from tuner.times.measured.header import SIMULATED, Header, as_written, scenario_of
from tuner.times.measured.samples import Combination, Point

# The time's bandwidth part grows by this power of NCCL's own over the used channels: with half of them, by a factor of
# 1.62.
CHANNELS_POWER = 0.7
# An hour: some releases give this or more to a choice for which their model has no time, so that it comes last
NO_TIME_US = 3.6e9
_GRID = tuple(1 << power for power in range(3, 31))
_SHARE = 0.35  # share of the constants that a draw changes
_FACTORS = (0.5, 2.0)
_EFFICIENCIES = (0.5, 1.25)


def draw(nccl: Release, rng: np.random.Generator) -> dict[str, Any]:
    """Draws a change of some of the release's constants, in the form of
    :func:`tuner.emulator.fitted_constants.changed`.

    About a third of the latencies and caps change by a factor of 0.5 to 2 (log-uniform), a third of the bandwidths by
    0.5 to 1.25, and some of the tree's corrections and of the ring's plateau.
    """
    latencies = plain(nccl.base_latency_us)
    change: dict[str, Any] = {
        "base_latency_us": _scaled_rows(latencies, rng),
        "hw_latency_us": {where: _scaled_rows(rows, rng) for where, rows in plain(nccl.hw_latency_us).items()},
        "cap_gbs": {
            name: {row: [value * factor for value in values] for row, values in rows.items()}
            for name, rows in nccl.cap_gbs.items()
            if (factor := _factor(rng)) is not None
        },
        "tree_correction": {
            protocol: [value**factor for value in values]
            for protocol, values in plain(nccl.tree_correction).items()
            if (factor := _factor(rng)) is not None
        },
        "efficiency": {
            algorithm: shares
            for algorithm, row in latencies.items()
            if (shares := {protocol: share for protocol in row if (share := _factor(rng, _EFFICIENCIES)) is not None})
        },
    }
    factor = _factor(rng)
    if factor is not None:
        change["ring_plateau"] = {
            generation: max(1.0, value * factor) for generation, value in nccl.ring_plateau.factors.items()
        }
    return {name: rows for name, rows in change.items() if rows}


def _scaled_rows(rows: Mapping[str, Mapping[str, float]], rng: np.random.Generator) -> dict[str, dict[str, float]]:
    scaled = {
        algorithm: {
            protocol: value * factor
            for protocol, value in row.items()
            if (factor := _factor(rng)) is not None and value > 0
        }
        for algorithm, row in rows.items()
    }
    return {algorithm: row for algorithm, row in scaled.items() if row}


def _factor(rng: np.random.Generator, between: tuple[float, float] = _FACTORS) -> float | None:
    """A factor for one constant; None if the constant stays. Always draws the same number of random numbers."""
    chance, where = rng.random(2)
    return math.exp(math.log(between[0]) + where * math.log(between[1] / between[0])) if chance < _SHARE else None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one combination at one size: its latency, its transfer time, and NCCL's own number of channels."""

    latency_us: float
    transfer_us: float
    channels: int

    def time_us(self, channels: int) -> float:
        """The time with this many channels, in us.

        0 channels means NCCL's own number, and so does any larger number than that.
        """
        used = min(channels or self.channels, self.channels)
        slower: float = (self.channels / used) ** CHANNELS_POWER
        return self.latency_us + self.transfer_us * slower


class Truth:
    """Times of every combination on ``communicator`` if the release's constants were changed by ``change``."""

    def __init__(self, communicator: Comm, change: Mapping[str, Any]) -> None:
        nccl = communicator.release
        self.change = dict(change)
        self._selection = Selection(with_release(communicator, fitted_constants.changed(nccl, change)))
        self._costs: dict[Request, dict[int, dict[AlgoProto, Cost]]] = {}

    def costs(self, point: Point) -> dict[AlgoProto, Cost]:
        """The cost of every combination that NCCL can run at this point."""
        known = self._costs.setdefault(point.request, {})
        if point.bytes not in known:
            unit = point.unit_bytes(self._selection.communicator.ranks)
            sizes = sorted({point.bytes, *(size for size in _GRID if size % unit == 0)} - known.keys())
            known.update(zip(sizes, self._compute(point.request, sizes), strict=True))
        return known[point.bytes]

    def time_us(self, point: Point, combination: Combination) -> float:
        """The planted time of a combination, us."""
        return self.costs(point)[combination.algo_proto].time_us(combination.channels)

    def _compute(self, request: Request, sizes: Sequence[int]) -> list[dict[AlgoProto, Cost]]:
        communicator, tables = self._selection.communicator, self._selection.tables
        nbytes = np.array(sizes, np.uint64)
        table_us = self._selection.cost_table(request, nbytes)
        excluded = self._selection.excluded(request)
        by_size: list[dict[AlgoProto, Cost]] = [{} for _ in sizes]
        for algo_proto in ALGO_PROTOS:
            if algo_proto in excluded:
                continue
            total_us: NDArray[np.float32] = table_us[:, algo_proto[0], algo_proto[1]]
            start_us = tables.latency_us[(request.collective, *algo_proto)]
            call = RuleCall(communicator, request, algo_proto)
            latency_us = timing.time_us(start_us, f32(np.inf), call, MessageSizes(nbytes))
            channels, _ = communicator.rules.launch(call, tables, nbytes)
            for row, costs in enumerate(by_size):
                if 0 < total_us[row] < NO_TIME_US:
                    transfer_us = float(total_us[row]) - float(latency_us[row])
                    costs[algo_proto] = Cost(float(latency_us[row]), transfer_us, max(1, int(channels[row])))
        return by_size


NAME = SIMULATED
SEED, NCCLS, GIVEN = "of the seed", "NCCL's own", "given"  # values of "truth" in the header
_TRUTH_STREAM, _NOISE_STREAM, _PROCESS_STREAM = 0, 1, 2
_BETWEEN_RUNS_S = 2e-4  # time that a block takes in addition to its runs


@dataclass(frozen=True, slots=True)
class PlantedNoise:
    """Noise that is added to the true times, as shares of 1, except for fields with a unit in their names."""

    sigma: float  # of every run, lognormal
    spike_chance: float
    spikes: tuple[float, float]  # factors, log-uniform
    drift_sigma: float  # common to all points, changes from block to block
    drift_memory: float
    switch: float  # the first run after another combination is slower by this share
    switch_runs: float  # number of runs in which that share falls by a factor of e
    process_sigma: float = 0.0  # of each combination, fixed in a process


@dataclass(frozen=True, slots=True)
class Replaced:
    """Sizes at which the simulated NCCL runs its own pick instead of a forced combination.

    As on a real machine, only what was executed shows this.
    """

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    from_bytes: int
    to_bytes: int  # included

    def holds(self, point: Point, algo_proto: AlgoProto) -> bool:
        """Whether this combination is replaced for that call."""
        here = self.collective is point.collective and algo_proto == (self.algorithm, self.protocol)
        return here and self.from_bytes <= point.bytes <= self.to_bytes


class Simulated:
    """A simulated backend (tuner.bench.backend) for ``scenario``.

    ``truth`` is a change of the release's constants (see tuner.bench.simulated.truth); {} for a machine that follows
    NCCL's model, None for a change that the seed draws. If this run continues earlier ones, ``after`` is the number of
    blocks that they measured; the noise then differs from theirs. BadInput if nodes differ. The attributes ``truth``,
    ``noise`` and ``replaced`` are what a measuring run has to find.
    """

    def __init__(
        self, scenario: Scenario, seed: int, truth: Mapping[str, Any] | None = None, *, after: int = 0
    ) -> None:
        if scenario.others:
            raise BadInput(f"{option('backend')} simulated: nodes that differ cannot be simulated: use equal nodes")
        self.scenario, self.seed = scenario, seed
        communicator = scenario.communicator()
        planting = np.random.default_rng([seed, _TRUTH_STREAM])
        drawn = draw(communicator.release, planting)
        self._from = SEED if truth is None else GIVEN if truth else NCCLS
        self.truth = Truth(communicator, drawn if truth is None else truth)
        self._selection = Selection(communicator)
        self.noise = _noise(planting)
        self.replaced = tuple(_replacements(planting))
        self._rng = np.random.default_rng([seed, _NOISE_STREAM, after])
        self._processes = np.random.default_rng([seed, _PROCESS_STREAM, after])
        self._of_process: dict[AlgoProto, float] = {}  # as logarithms
        self._drift = self._rng.normal(0, self.noise.drift_sigma)
        self._now_s = 0.0
        self._last: tuple[Point, AlgoProto, int] | None = None
        self._since_switch = 0
        self.renew()
        self._plugin: DryRun | None = None
        self._table = ""  # the plugin's table
        self._picks: dict[Point, Combination] = {}
        self._decided: dict[tuple[str, Point], Combination] = {}  # what the plugin decided with this table

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self._selection.communicator.ranks

    def describe(self) -> Header:
        """The scenario and the planted times, for the file's header."""
        return Header(NAME, scenario=as_written(self.scenario), ranks=self.ranks, seed=self.seed, truth=self._from)

    def combinations(self, point: Point) -> list[Combination]:
        """Each combination as NCCL would run it, with NCCL's own number of channels."""
        return [Combination(*algo_proto) for algo_proto in self.truth.costs(point)]

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Times of one call according to the planted truth, with noise. BadInput for what cannot run here."""
        wanted = self._own(point) if requested is None else requested
        costs = self.truth.costs(point)
        if any(each.holds(point, wanted.algo_proto) for each in self.replaced):
            wanted = self._pick(point)
        algo_proto = wanted.algo_proto
        if algo_proto not in costs:
            raise BadInput(f"{wanted} cannot run {point.collective.name} of {point.bytes} bytes here")
        channels = min(wanted.channels or costs[algo_proto].channels, costs[algo_proto].channels)
        times_us = np.round(
            costs[algo_proto].time_us(channels) * self._factors((point, algo_proto, channels), repeats), 4
        )
        self._now_s += _BETWEEN_RUNS_S + float(times_us.sum()) * 1e-6
        return Run(tuple(times_us.tolist()), Combination(*algo_proto, channels))

    def now_s(self) -> float:
        """Seconds that the runs so far would have taken."""
        return self._now_s

    def use_table(self, text: str | None) -> None:
        """Sets the decision table.

        PluginRefused if the plugin refuses the table, BadInput for a release that passes no cost table to plugins.
        """
        self.close()
        if text is None:
            return
        communicator = self._selection.communicator
        interface = loading.interface(communicator.release)
        if not interface.hands_costs:
            since = loading.first(lambda each: each.hands_costs)
            name = communicator.release.name
            raise BadInput(
                f"NCCL {name} passes no costs to tuner plugins, by which they could decide: use {since} or later"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "decide.table")
            path.write_text(text, "utf-8")
            self._table = text
            described = asked.size(communicator, interface)
            self._plugin = DryRun.of(path, described, version=interface.version, env=asked.strict(path))

    def renew(self) -> bool:
        """Draws again everything that is fixed within a process."""
        drawn = self._processes.normal(0, self.noise.process_sigma, len(ALGO_PROTOS))
        self._of_process = dict(zip(ALGO_PROTOS, drawn.tolist(), strict=True))
        self._last = None
        return True

    def rest(self, seconds: float) -> None:
        """Moves the clock forward."""
        self._now_s += seconds

    def close(self) -> None:
        """Unloads the plugin."""
        if self._plugin is not None:
            self._plugin.close()
            self._plugin = None

    def _own(self, point: Point) -> Combination:
        """The combination that runs if nothing is forced."""
        if self._plugin is None:
            return self._pick(point)
        known = self._table, point
        if known not in self._decided:
            self._decided[known] = self._pick_by_table(point, self._plugin)
        return self._decided[known]

    def _pick(self, point: Point) -> Combination:
        """NCCL's pick without a table."""
        if point not in self._picks:
            picks = self._selection.pick(point.request, [point.bytes])
            self._picks[point] = Combination(*picks.algo_protos()[0], int(picks.channels[0]))
        return self._picks[point]

    def _pick_by_table(self, point: Point, plugin: DryRun) -> Combination:
        (table_us,) = self._selection.cost_table(point.request, [point.bytes])
        answer = plugin.ask(TunerCall(point.collective, point.bytes), table_us)
        best, _ = self._selection.pick_by(answer.cost_us[None])
        return Combination(*ALGO_PROTOS[int(best[0])], channels=answer.channels)

    def _factors(self, what: tuple[Point, AlgoProto, int], repeats: int) -> NDArray[np.float64]:
        noise, rng = self.noise, self._rng
        if what != self._last:
            self._last, self._since_switch = what, 0
        slower = _after_switch(noise, self._since_switch, repeats)
        self._since_switch += repeats
        fresh = math.sqrt(1 - noise.drift_memory**2) * noise.drift_sigma
        self._drift = noise.drift_memory * self._drift + rng.normal(0, fresh)
        spikes = np.exp(rng.uniform(math.log(noise.spikes[0]), math.log(noise.spikes[1]), repeats))
        factors = np.exp(rng.normal(self._drift + self._of_process[what[1]], noise.sigma, repeats))
        factors *= np.where(rng.random(repeats) < noise.spike_chance, spikes, 1.0)
        drawn: NDArray[np.float64] = factors * slower
        return drawn


@lru_cache
def _after_switch(noise: PlantedNoise, runs: int, repeats: int) -> NDArray[np.float64]:
    """The factors on the times of runs, an array [repeat], which follow ``runs`` runs of the same call."""
    factors: NDArray[np.float64] = 1 + noise.switch * np.exp(-(runs + np.arange(repeats)) / noise.switch_runs)
    return factors


def from_header(header: Header, *, after: int = 0) -> Simulated:
    """The backend with which a file was measured. BadMeasurement if the header does not fully describe it."""
    if header.backend != NAME:
        raise BadMeasurement(f"the file was measured with backend {header.backend!r}, not with {NAME!r}")
    truth, seed = header.truth, header.seed
    if truth not in (SEED, NCCLS) or seed is None:
        raise BadMeasurement(f"the header does not say how to build the backend again: truth {truth!r}, seed {seed!r}")
    return Simulated(scenario_of(header), seed, None if truth == SEED else {}, after=after)


def _noise(rng: np.random.Generator) -> PlantedNoise:
    return PlantedNoise(
        sigma=rng.uniform(0.01, 0.03),
        spike_chance=rng.uniform(0.005, 0.02),
        spikes=(1.5, 5.0),
        drift_sigma=rng.uniform(0.005, 0.015),
        drift_memory=0.98,
        switch=rng.uniform(0.1, 0.3),
        switch_runs=1.5,
        process_sigma=0.003,
    )


def _replacements(rng: np.random.Generator) -> list[Replaced]:
    """Draws one to three size ranges of a few octaves, each for some combination, in which NCCL runs its own pick
    instead of the combination."""
    replacements = []
    for _ in range(rng.integers(1, 4)):
        collective = (Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce)[rng.integers(3)]
        choices = [(algorithm, protocol) for algorithm in (Algorithm.Tree, Algorithm.Ring) for protocol in Protocol]
        choices += [(Algorithm.NVLS, Protocol.Simple), (Algorithm.NVLSTree, Protocol.Simple)]
        low = int(rng.integers(3, 28))
        sizes = 1 << low, (1 << low + int(rng.integers(2, 7))) - 1
        replacements.append(Replaced(collective, *choices[rng.integers(len(choices))], *sizes))
    return replacements
