"""What measuring and deciding make of planted times behind known noise: 15 sizes, 6 combinations. Prints.

    python benchmarks/noise.py                    200 machines of each kind of noise
    python benchmarks/noise.py --seeds 20         fewer
    python benchmarks/noise.py --noise "3 % of a block"
    python benchmarks/noise.py --gate-alone       without measuring and deciding, in minutes

For each noise, machines with nothing to gain and machines with 5 % to gain at 6 of 15 sizes go through the whole
pipeline (measured, decided, gated), and the gate alone judges rows that gain nothing, by default and in the fewest
rounds and processes. False keeps are tables with a row that gains nothing; regrets are true ones. Intervals are those
of measured times, of regrets, and of rows' gains: how many of the 95 % intervals hold the truth. "waited" is how many
sample blocks could have been run while the gate's processes were kept apart. Exit code 1 where a figure is outside of
what docs/measuring.md says.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.planted_noise import GAIN, NOISES, Noise, Outcome, held, idle_gated, pipeline
from tuner.bench.decision.gate import GateSettings, RowVerdict
from tuner.bench.loop import Settings

SEEDS = 200
MOST_FALSE = 0.05  # of tables
MOST_REGRET = 0.005  # left of 5 %, at BOUND
BOUND = ("AR(1) of 3 %", "3 % of a block")
HOLDING = (0.90, 0.99)  # of intervals
LESS = {"own slow drift": {"regrets": 0.75}}  # a run is as long as six times what the drift remembers
FEWEST = GateSettings(9, warmup=0, processes=3)  # that docs/measuring.md speaks of


@dataclass
class Figures:
    """Of one noise, over machines."""

    seeds: int
    false: int = 0  # tables with a false keep, of machines without anything to gain
    false_beside: int = 0  # the same, of those with a gain
    false_alone: int = 0  # the same, by the gate alone
    false_fewest: int = 0  # and by that in the fewest rounds and processes
    runs: list[Outcome] = field(default_factory=list)
    held: dict[str, list[bool]] = field(default_factory=dict)

    def share_held(self, what: str) -> float:
        """Of the intervals."""
        return float(np.mean(self.held[what])) if self.held.get(what) else float("nan")

    @property
    def regrets(self) -> tuple[float, float]:
        """Before and after, means over machines with a gain."""
        before, after = np.mean([(one.regret_before, one.regret_after) for one in self.runs], axis=0)
        return float(before), float(after)

    def add_alone(self, alone: Sequence[RowVerdict], fewest: Sequence[RowVerdict]) -> None:
        """Takes in what the gate says of rows that gain nothing, by default and in the fewest processes."""
        self.false_alone += any(one.why_not is None for one in alone)
        self.false_fewest += any(one.why_not is None for one in fewest)
        for what, each in (("gains", held(alone)), ("fewest", held(fewest))):
            self.held.setdefault(what, []).extend(each)

    def broken(self, noise: Noise) -> Iterable[str]:
        """What is outside of the bounds."""
        worst = max(self.false, self.false_beside, self.false_alone, self.false_fewest)
        if worst > MOST_FALSE * self.seeds:
            yield f"false keeps in {worst} of {self.seeds} tables"
        if noise.name in BOUND and self.runs and self.regrets[1] > MOST_REGRET:
            yield f"regret left {100 * self.regrets[1]:.2f} %"
        for what in self.held:
            least = LESS.get(noise.name, {}).get(what, HOLDING[0])
            if not least <= self.share_held(what) <= (1.0 if noise.in_lumps or what == "fewest" else HOLDING[1]):
                yield f"{what}: {100 * self.share_held(what):.1f} % of intervals hold the truth"


def figures(noise: Noise, seeds: Sequence[int], settings: Settings, gate: GateSettings) -> Figures:
    """Of one noise."""
    found = Figures(len(seeds))
    for seed in seeds:
        nothing, gaining = (pipeline(noise, seed, gain, settings, gate) for gain in (0.0, GAIN))
        alone, fewest = idle_gated(noise, seed, gate), idle_gated(noise, seed, FEWEST)
        found.false += nothing.false_kept > 0
        found.false_beside += gaining.false_kept > 0
        found.add_alone(alone, fewest)
        found.runs.append(gaining)
        for what, each in (*nothing.held.items(), *gaining.held.items()):
            found.held.setdefault(what, []).extend(each)
    return found


def _gates_alone(noises: Sequence[Noise], seeds: int, gate: GateSettings) -> int:
    """Prints what the gate alone makes of rows that gain nothing; the exit code."""
    print(
        f"{'':20} {'tables with a false keep':^24} {'intervals that hold':^21}\n{'noise':20} {'gate alone':>12} "
        f"{'fewest':>11} {'gains':>10} {'fewest':>10}"
    )
    broken = []
    for noise in noises:
        found = Figures(seeds)
        for seed in range(seeds):
            found.add_alone(idle_gated(noise, seed, gate), idle_gated(noise, seed, FEWEST))
        shares = (found.false_alone / seeds, found.false_fewest / seeds, *map(found.share_held, ("gains", "fewest")))
        cells = (f" {100 * each:>{width}.1f} %" for each, width in zip(shares, (10, 9, 8, 8), strict=True))
        print(f"{noise.name:20}" + "".join(cells), flush=True)
        broken += [f"{noise.name}: {what}" for what in found.broken(noise)]
    print("\n".join(broken) or "all within their bounds")
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="machines of each noise [default: 200]")
    parser.add_argument("--noise", choices=[each.name for each in NOISES], help="only this one")
    parser.add_argument("--gate-alone", action="store_true", help="only the gate, on rows that gain nothing")
    parser.add_argument("--rounds", type=int, default=Settings().rounds)
    parser.add_argument("--gate-rounds", type=int, default=GateSettings().rounds)
    parser.add_argument("--processes", type=int, default=GateSettings().processes, help="of the gate")
    given = parser.parse_args()
    settings = Settings(rounds=given.rounds, warmup=0)
    gate = GateSettings(given.gate_rounds, warmup=0, processes=given.processes)
    if given.gate_alone:
        return _gates_alone([each for each in NOISES if given.noise in (None, each.name)], given.seeds, gate)
    print(
        f"{'':20} {'tables with a false keep':^40} {'regret of 5 %':^17} {'intervals that hold the truth':^39} "
        f"{'measured':^18} {'gate':^15}\n"
        f"{'noise':20} {'nothing':>9} {'beside':>9} {'gate alone':>10} {'fewest':>9} {'before':>8} {'after':>8} "
        f"{'times':>9} {'regrets':>9} {'gains':>9} {'fewest':>9} {'rounds':>8} {'processes':>9} {'blocks':>7} "
        f"{'waited':>7}"
    )
    broken = []
    for noise in NOISES:
        if given.noise not in (None, noise.name):
            continue
        found = figures(noise, range(given.seeds), settings, gate)
        keeps = (found.false, found.false_beside, found.false_alone, found.false_fewest)
        false = [f"{100 * count / given.seeds:.1f} %" for count in keeps]
        before, after = found.regrets
        holding = [
            f"{100 * found.share_held(what):.1f} %" if found.held.get(what) else "-"
            for what in ("times", "regrets", "gains", "fewest")
        ]
        took = [(one.rounds, one.processes, one.gated_blocks, one.waited_blocks) for one in found.runs]
        rounds, processes, blocks, waited = np.mean(took, 0)
        print(
            f"{noise.name:20} {false[0]:>9} {false[1]:>9} {false[2]:>10} {false[3]:>9} "
            f"{100 * before:>6.2f} % {100 * after:>6.2f} % "
            f"{holding[0]:>9} {holding[1]:>9} {holding[2]:>9} {holding[3]:>9} "
            f"{rounds:>8.1f} {processes:>9.1f} {blocks:>7.0f} {waited:>7.0f}",
            flush=True,
        )
        broken += [f"{noise.name}: {what}" for what in found.broken(noise)]
    print("\n".join(broken) or "all within their bounds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
