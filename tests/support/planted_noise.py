"""A machine of 15 sizes and 6 combinations with planted times behind one kind of noise, for what measuring makes of it.

Everything above it is the true code: the loop, the evidence, the rows, the gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.backend import Run
from tuner.bench.decision.gate import GateSettings, RowVerdict, gate
from tuner.bench.decision.rows import DecisionRow, Proposal
from tuner.bench.loop import Loop, Settings, Wanted, tasks
from tuner.plugin.table.parse import from_text
from tuner.plugin.table.records import Decision
from tuner.times.measured.header import SIMULATED, Header
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.results import results
from tuner.times.verify import JudgedFile, regret_interval

SIZES = tuple(1 << power for power in range(10, 25))
POINTS = tuple(Point(Collective.AllReduce, size) for size in SIZES)
COMBINATIONS = tuple(
    Combination(algorithm, protocol) for algorithm in (Algorithm.Tree, Algorithm.Ring) for protocol in Protocol
)
PICK = COMBINATIONS[-1]  # NCCL's own choice, at every size
BETTER, BETTER_SIZES, GAIN = COMBINATIONS[1], SIZES[4:10], 0.05  # 5 % at 6 of 15 sizes: a regret of 2 %
BETTER_RANGE = range(11586, 741455)  # bytes: halfway, in logarithms, to the sizes beside them
RANKS = 16
_POOL = 1 << 15
TREND_BLOCKS = 30 * 105  # 30 rounds of everything
BLOCK_S = 1e-3  # that a sample block takes, on the clock of the planted machine
OWN_BLOCKS, NEIGHBOUR_BLOCKS, WARMUP_BLOCKS, CLOCK_BLOCKS = 500, 1000, 20, 30
IDLE_BLOCKS = 4000  # of the neighbour, on average, between its work

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """Deviations of the logarithm of a time; ``ar_memory`` is from one run to the next, ``drift_memory`` from one
    sample block to the next.
    """

    name: str
    run: float = 0.003
    spikes: float = 0.0  # the share of runs that take 1.5 to 5 times as long
    ar: float = 0.0
    ar_memory: float = 0.95
    block: float = 0.0  # common to the runs of a sample block
    drift: float = 0.0  # common to everything
    drift_memory: float = 0.98
    process: float = 0.0  # of each combination, fixed in a process
    trend: float = 0.0  # by so much everything is slower TREND_BLOCKS sample blocks later
    own_drift: float = 0.0  # of each combination, with a memory of OWN_BLOCKS, in whatever process
    neighbour: float = 0.0  # by so much Ring is slower while a neighbour is busy, NEIGHBOUR_BLOCKS at a time
    warmup: float = 0.0  # by so much the first WARMUP_BLOCKS of a process are slower
    timer_us: float = 0.0  # what times are whole multiples of
    two_modes: float = 0.0  # by so much a combination is slower in three of ten processes
    two_clocks: float = 0.0  # by so much everything is slower in half of the sample blocks, CLOCK_BLOCKS at a time
    slow_rank: float = 0.0  # by so much a twentieth of the sample blocks of Tree is slower, for one rank

    @property
    def has_true_times(self) -> bool:
        """Whether a combination takes one time: else only what is faster than another can be known.

        While a neighbour is busy, Ring is in truth the slower one: then regrets are others, too.
        """
        return not (self.trend or self.neighbour or self.two_modes or self.two_clocks)

    @property
    def in_lumps(self) -> bool:
        """Whether times have few values, of which intervals of Student's t may hold more than they should."""
        return bool(self.timer_us or self.neighbour or self.two_modes or self.two_clocks or self.slow_rank)

    @property
    def middle(self) -> float:
        """The median of what a true time is multiplied by."""
        return float(np.exp(self.run * ndtri(0.5 / (1 - self.spikes))))


NOISES = (
    Noise("quiet"),
    Noise("5 % of every run", run=0.05),
    Noise("heavy tails", run=0.02, spikes=0.05),
    Noise("trend of 30 %", trend=0.3),
    Noise("drift of 30 %", drift=0.3),
    Noise("AR(1) of 3 %", ar=0.03),
    Noise("AR(1) of 10 %", ar=0.1),
    Noise("3 % of a block", block=0.03),
    Noise("10 % of a block", block=0.1),
    Noise("1 % of a process", process=0.01),
    Noise("2 % of a process", process=0.02),
    Noise("3 % of a process", process=0.03),
    Noise("5 % of a process", process=0.05),
    Noise("own slow drift", own_drift=0.03),
    Noise("a neighbour", neighbour=0.08),
    Noise("warm-up of 15 %", warmup=0.15),
    Noise("timer of 0.5 us", timer_us=0.5),
    Noise("two modes", two_modes=0.06),
    Noise("two clocks", two_clocks=0.2),
    Noise("a slow rank", warmup=0.1, slow_rank=0.2),
)


class _Stream:
    """Numbers that are drawn many at a time."""

    def __init__(self, draw: Any) -> None:
        self._draw, self._at = draw, 0
        self._pool: Times = draw(_POOL)

    def take(self, count: int) -> Times:
        if self._at + count > len(self._pool):
            self._pool, self._at = self._draw(_POOL), 0
        self._at += count
        return self._pool[self._at - count : self._at]


class _Wandering:
    """A deviation that forgets itself by e in OWN_BLOCKS, asked for at later and later sample blocks."""

    def __init__(self, deviation: float, rng: np.random.Generator) -> None:
        self._deviation, self._rng, self._block = deviation, rng, 0.0
        self._value = float(rng.standard_normal()) if deviation else 0.0

    def at(self, block: float) -> float:
        kept = float(np.exp((self._block - block) / OWN_BLOCKS))
        self._value = kept * self._value + float(np.sqrt(1 - kept**2) * self._rng.standard_normal())
        self._block = block
        return self._deviation * self._value


class _Switching:
    """What is on and off by turns, for exponentially distributed times with these means in sample blocks."""

    def __init__(self, on_blocks: float, off_blocks: float, rng: np.random.Generator) -> None:
        self._means, self._rng = (off_blocks, on_blocks), rng
        self._on = bool(rng.random() < on_blocks / (on_blocks + off_blocks))
        self._until = float(rng.exponential(self._means[self._on]))

    def at(self, block: float) -> bool:
        while block >= self._until:
            self._on = not self._on
            self._until += float(self._rng.exponential(self._means[self._on]))
        return self._on


class Planted:
    """A backend (tuner.bench.backend) whose every combination takes 20 us and more with the size, but for the
    planted gain; ``seed`` is of the noise.
    """

    def __init__(self, noise: Noise, seed: Sequence[int], gain: float = 0.0) -> None:
        self._rng = np.random.default_rng([*seed, crc32(noise.name.encode())])
        self.noise, self.gain = noise, gain
        self._runs, self._blocks, self._drift = _Stream(self._run_noise), _Stream(self._normal), _Stream(self._drifts)
        self._level = {
            (point, combination): float(np.log(self.true_us(point, combination)))
            for point in POINTS
            for combination in COMBINATIONS
        }
        self._rows: tuple[Decision, ...] = ()
        self._tables: dict[str, tuple[Decision, ...]] = {}
        self._of_process: dict[Combination, float] = {}
        self._outlasting_rng = np.random.default_rng([*seed, crc32(noise.name.encode()), 1])
        self._wandering = {each: _Wandering(noise.own_drift, self._outlasting_rng) for each in COMBINATIONS}
        self._busy = _Switching(NEIGHBOUR_BLOCKS, IDLE_BLOCKS, self._outlasting_rng)
        self._slow_clock = _Switching(CLOCK_BLOCKS, CLOCK_BLOCKS, self._outlasting_rng)
        self._now_s, self.processes, self.ranks, self.rested_blocks = 0.0, 0, RANKS, 0.0
        self.renew()

    def true_us(self, point: Point, combination: Combination) -> float:
        """The middle of what a combination takes at a size."""
        faster = combination == BETTER and point.bytes in BETTER_RANGE
        return (20 + point.bytes / 1e5) / (1 + self.gain if faster else 1.0)

    def _normal(self, count: int) -> Times:
        return self._rng.standard_normal(count)

    def _run_noise(self, count: int) -> Times:
        found = self.noise.run * self._normal(count)
        if self.noise.spikes:
            spikes = self._rng.uniform(np.log(1.5), np.log(5), count)
            found += np.where(self._rng.random(count) < self.noise.spikes, spikes, 0.0)
        if self.noise.ar:
            found += self.noise.ar * self._remembering(self.noise.ar_memory, count)
        return found

    def _drifts(self, count: int) -> Times:
        return self.noise.drift * self._remembering(self.noise.drift_memory, count)

    def _remembering(self, memory: float, count: int) -> Times:
        from scipy.signal import lfilter

        fresh = np.sqrt(1 - memory**2) * self._normal(count)
        fresh[0] = self._normal(1)[0]
        found: Times = lfilter([1.0], [1.0, -memory], fresh)
        return found

    # A backend

    def describe(self) -> Header:
        return Header(SIMULATED, ranks=RANKS)

    def combinations(self, point: Point) -> Sequence[Combination]:
        return COMBINATIONS

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        combination = requested or self._own(point.bytes)
        level = self._level.get((point, combination)) or float(np.log(self.true_us(point, combination)))
        level += self._of_process[combination]
        if self.noise.block:
            level += self.noise.block * float(self._blocks.take(1)[0])
        if self.noise.drift:
            level += float(self._drift.take(1)[0])
        level += self.noise.trend * self._now_s / BLOCK_S / TREND_BLOCKS
        times_us = np.exp(level + self._outlasting(combination) + self._runs.take(repeats))
        if self.noise.timer_us:
            times_us = np.maximum(1.0, np.round(times_us / self.noise.timer_us)) * self.noise.timer_us
        self._now_s += BLOCK_S
        return Run(tuple(times_us.tolist()), combination)

    def _outlasting(self, combination: Combination) -> float:
        """Logarithm of what lasts longer than a sample block and is no process's own."""
        blocks, noise = self._now_s / BLOCK_S, self.noise
        level = self._wandering[combination].at(blocks) if noise.own_drift else 0.0
        if noise.neighbour and combination.algorithm is Algorithm.Ring and self._busy.at(blocks):
            level += float(np.log1p(noise.neighbour))
        if noise.warmup:
            level += float(np.log1p(noise.warmup * (blocks - self._begun_blocks < WARMUP_BLOCKS)))
        if noise.two_clocks and self._slow_clock.at(blocks):
            level += float(np.log1p(noise.two_clocks))
        if noise.slow_rank and combination.algorithm is Algorithm.Tree and self._outlasting_rng.random() < 0.05:
            level += float(np.log1p(noise.slow_rank))
        return level

    def _own(self, size: int) -> Combination:
        for row in self._rows:
            if size in row.bytes:
                return Combination(*row.choices[0].algo_proto)
        return PICK

    def now_s(self) -> float:
        return self._now_s

    def rest(self, seconds: float) -> None:
        self._now_s += seconds
        self.rested_blocks += seconds / BLOCK_S

    def use_table(self, text: str | None) -> None:
        if text is not None and text not in self._tables:
            self._tables[text] = from_text(text).decisions
        self._rows = () if text is None else self._tables[text]

    def renew(self) -> bool:
        drawn = self._rng.normal(0, 1, len(COMBINATIONS)) * self.noise.process
        if self.noise.two_modes:
            drawn += np.log1p(self.noise.two_modes) * (self._outlasting_rng.random(len(COMBINATIONS)) < 0.3)
        self._begun_blocks = self._now_s / BLOCK_S
        self._of_process = dict(zip(COMBINATIONS, drawn.tolist(), strict=True))
        self.processes += 1
        return True

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one planted machine: regrets are true ones, means over sizes, shares of 1.

    ``held``: of the intervals of times and of regrets, whether each holds the truth.
    """

    kept: tuple[RowVerdict, ...]
    verdicts: tuple[RowVerdict, ...]
    regret_before: float
    regret_after: float
    rounds: int
    processes: int
    measured_blocks: int
    gated_blocks: int
    waited_blocks: float  # between the gate's processes, in the time of a sample block
    held: Mapping[str, list[bool]] = field(default_factory=dict)

    @property
    def false_kept(self) -> int:
        """Rows that gain nothing in truth."""
        return sum(one.row.choice != BETTER or not set(one.row.sizes) & set(BETTER_SIZES) for one in self.kept)


def measured(backend: Planted, settings: Settings) -> Proposal:
    """What the loop measures, and the rows that follow from it."""
    blocks: list[SampleBlock] = []
    for _ in Loop(backend, tasks(backend, POINTS, Wanted()), settings, blocks.append).run():
        pass
    return Proposal(JudgedFile(Measurements(backend.describe(), tuple(blocks)), None), RANKS, 2)


def idle() -> list[DecisionRow]:
    """Rows of combinations that are as fast as NCCL's own choice where nothing is planted."""
    groups = [(COMBINATIONS[at], SIZES[5 * at : 5 * at + 5]) for at in range(3)]
    return [DecisionRow(Collective.AllReduce, sizes[0], sizes[-1], choice, sizes) for choice, sizes in groups]


def gated(backend: Planted, proposal: Proposal, settings: GateSettings) -> tuple[list[RowVerdict], int]:
    """The gate's verdicts and how many sample blocks it took."""
    blocks: list[SampleBlock] = []
    return gate(backend, proposal, settings, blocks.append), len(blocks)


def pipeline(noise: Noise, seed: int, gain: float, settings: Settings, gate_settings: GateSettings) -> Outcome:
    """Measured, decided and gated, in processes of their own."""
    backend = Planted(noise, (seed, 1), gain)
    proposal = measured(backend, replace(settings, seed=seed))
    again = Planted(noise, (seed, 2), gain)
    verdicts, gated_blocks = gated(again, proposal, replace(gate_settings, seed=seed))
    kept = tuple(one for one in verdicts if one.why_not is None)
    before, after = (np.mean([_true_regret(again, size, rows) for size in SIZES]) for rows in ((), kept))
    blocks = proposal.comparison.measurements.blocks
    return Outcome(
        kept,
        tuple(verdicts),
        float(before),
        float(after),
        1 + max(block.round for block in blocks),
        backend.processes,
        len(blocks),
        gated_blocks,
        again.rested_blocks,
        {
            **({"times": _times_held(backend, proposal)} if noise.has_true_times else {}),
            **({} if noise.neighbour else {"regrets": _regrets_held(backend, proposal)}),
        },
    )


def idle_gated(noise: Noise, seed: int, gate_settings: GateSettings) -> list[RowVerdict]:
    """The gate alone, on rows that gain nothing."""
    backend = Planted(noise, (seed, 3))
    blocks = [
        SampleBlock(point, requested, requested or PICK, (20.0,))
        for point in POINTS
        for requested in (None, *COMBINATIONS)
    ]
    proposal = Proposal(JudgedFile(Measurements(backend.describe(), tuple(blocks)), None), RANKS, 2)
    proposal.rows = idle()
    return gated(backend, proposal, replace(gate_settings, seed=seed))[0]


def held(verdicts: Sequence[RowVerdict], log_gain: float = 0.0) -> list[bool]:
    """Whether each interval of a row's gain holds the true one."""
    return [one.interval[0] <= np.expm1(log_gain) <= one.interval[1] for one in verdicts]


def _times_held(backend: Planted, proposal: Proposal) -> list[bool]:
    found = []
    for one in results(proposal.comparison.measurements.blocks):
        true_us = backend.true_us(one.point, one.requested or PICK) * backend.noise.middle
        if one.estimate is not None and one.estimate.is_bounded:
            found.append(one.estimate.low_us <= true_us <= one.estimate.high_us)
    return found


def _regrets_held(backend: Planted, proposal: Proposal) -> list[bool]:
    """Of the pick over what was found best, where that is another."""
    found = []
    for one in proposal.comparison.sizes:
        if one.best != one.pick:
            regret = backend.true_us(one.call, one.pick) / backend.true_us(one.call, one.best) - 1
            low, high = regret_interval(one)
            found.append((low is None or low <= regret) and (high is None or regret <= high))
    return found


def _true_regret(backend: Planted, size: int, kept: Sequence[RowVerdict]) -> float:
    point = Point(Collective.AllReduce, size)
    row = next((one.row for one in kept if one.row.holds(size)), None)
    times_us = {each: backend.true_us(point, each) for each in COMBINATIONS}
    return times_us[row.choice if row else PICK] / min(times_us.values()) - 1
