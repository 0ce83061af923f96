"""What deciding finds and keeps over 200 simulated machines. Prints; checks nothing."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.simulated_runs import NOTHING, best_found, idle, measured
from tuner.times.measured.samples import Point

SEEDS = 200


def planted() -> None:
    found = compared = rows = 0
    before, after, at_new = [], [], []
    for seed in range(SEEDS):
        run = measured(seed)
        one = best_found(run)
        found, compared = found + one[0], compared + one[1]
        kept = [verdict.row for verdict in run.gated(seed) if verdict.why_not is None]
        rows += len(kept)
        points = [each.point for each in run.comparison.sizes]
        before.append(np.mean([run.true_regret([], point) for point in points]))
        after.append(np.mean([run.true_regret(kept, point) for point in points]))
        between = [Point(each.collective, each.bytes * 5 // 4 // 64 * 64) for each in points if each.bytes > 64]
        at_new.append(np.mean([run.true_regret(kept, point) for point in between]))
    print(
        f"planted best found at {found} of {compared} sizes where it is ahead by 3 % ({100 * found / compared:.2f} %)"
    )
    print(
        f"true regret, mean over machines: {100 * np.mean(before):.2f} % by NCCL's picks, "
        f"{100 * np.mean(after):.2f} % with {rows / SEEDS:.1f} rows (worst machine {100 * np.max(after):.2f} %); "
        f"at sizes that were not measured {100 * np.mean(at_new):.2f} %"
    )


def nothing() -> None:
    kept = proposed = falsely = rows = false_rows = 0
    for seed in range(SEEDS):
        run = measured(seed, NOTHING)
        proposed += bool(run.proposal.rows)
        kept += any(verdict.why_not is None for verdict in run.gated(seed))
        verdicts = run.gated(seed, idle(run))
        stayed = sum(verdict.why_not is None for verdict in verdicts)
        rows, false_rows, falsely = rows + len(verdicts), false_rows + stayed, falsely + bool(stayed)
    print(f"nothing to gain: rows proposed for {proposed}, kept for {kept} of {SEEDS} machines")
    print(f"rows that ask for NCCL's own picks: the gate kept {false_rows} of {rows}, on {falsely} of {SEEDS} machines")


if __name__ == "__main__":
    planted()
    nothing()
