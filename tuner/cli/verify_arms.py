"""What ``nccl-tuner verify`` prints of forced and default runs of one machine."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from tuner.cli.output import human_bytes, print_table, say
from tuner.times.regret.halves import SplitGain
from tuner.times.regret.judged import JudgedPick, Verdict
from tuner.times.regret.next_runs import NextRuns
from tuner.times.regret.workflow import Agreement, MeasuredRegret

SPLITS_SHOWN = 10
NEXT_SHOWN = 8
CALLS_NAMED = 4  # of which nothing is known


def print_regret(regret: MeasuredRegret) -> None:
    """Sizes that something is known of, then what is not known and why, splits, and rows."""
    where = regret.machine or "the topology"
    known = [one for one in regret.sizes if one.regret is not None]
    if known:
        columns = ("call", "size", "pick", "us", "best", "us", "regret", "95 % interval", "", "NCCL ran")
        how = "best of simulated times" if regret.simulated else "measured best"
        print_table(f"NCCL's picks against the {how} on {where}, NCCL {regret.nccl}", columns, map(_row, known))
    if regret.simulated:
        say(f"simulated times, which no machine took: {', '.join(regret.simulated)}")
    _print_unknown([one for one in regret.sizes if one.regret is None])
    for why, rows in regret.skipped.items():
        say(f"left out: {rows} rows: {why}")
    _print_agreement(regret.agreement)
    _print_splits(regret.splits)
    for row in regret.rows:
        say(
            f"{row.row}\n  {_percent(row.gain_low, row.gain_high)} faster than NCCL's pick, "
            f"at least {100 * row.surely:.1f} % beyond the noise; measured: {', '.join(row.dtypes)}"
        )
    _print_total(regret, known)


def print_next(runs: NextRuns) -> None:
    """The combinations to force, the largest possible gain first."""
    rows = [
        (
            f"{one.collective.name} {one.dtype.name}",
            f"{one.nodes} x {one.gpus_per_node}",
            one.variables,
            _span(one.low_bytes, one.high_bytes),
            human_bytes(one.bytes),
            f"{one.pick} {one.pick_us:.1f}",
            f"{one.low_us:.1f} to {one.high_us:.1f}{'' if one.measured else ' *'}",
            f"up to {100 * one.possible_gain:.1f} %",
        )
        for one in runs.runs[:NEXT_SHOWN]
    ]
    columns = ("call", "GPUs", "force", "sizes", "first at", "pick, us", "may take us", "possible gain")
    say()
    if rows:
        print_table("What to force next: never measured here, and maybe faster by calibrated times", columns, rows)
        if any(not one.measured for one in runs.runs[:NEXT_SHOWN]):
            say("* such calls were never measured: the interval is wide")
        if len(runs.runs) > NEXT_SHOWN:
            say(f"{len(runs.runs) - NEXT_SHOWN} more have a smaller possible gain: --json")
        say(f"calibrated times: {runs.runs[0].calibration}")
    for reason in runs.not_answered:
        say(f"not known what to force next: {reason}")
    if not rows and not runs.not_answered:
        say("nothing to force next: all that may be faster was measured")
    if runs.first_sizes:
        sizes = ", ".join(human_bytes(size) for size in runs.first_sizes)
        say(f"AllReduce sizes that say most of this cluster, the best first: {sizes}; for 'nccl-tuner fit calibration'")


def _row(one: JudgedPick) -> tuple[object, ...]:
    interval = "-" if one.low is None or one.high is None else f"{100 * one.low:.1f} to {100 * one.high:.1f} %"
    ran = one.executed
    return (
        _call(one),
        human_bytes(one.bytes),
        one.pick,
        f"{one.pick_us:.1f}",
        one.best,
        f"{one.best_us:.1f}",
        f"{100 * (one.regret or 0):.1f} %",
        interval,
        one.why if one.verdict is Verdict.unknown else one.verdict,
        "" if ran is None else f"{ran.combination.plain}{'' if ran.is_clear else '?'}{'' if ran.agrees else ' (!)'}",
    )


def _print_unknown(sizes: Sequence[JudgedPick]) -> None:
    by_why: dict[str, Counter[str]] = defaultdict(Counter)
    for one in sizes:
        by_why[one.why][_call(one)] += 1
    for why, calls in by_why.items():
        named = "; ".join(calls) if len(calls) <= CALLS_NAMED else f"{len(calls)} kinds of calls"
        say(f"{named}: whether the pick is best is unknown at {calls.total()} sizes: {why}")


def _call(one: JudgedPick) -> str:
    place = " in place" if one.in_place else ""
    setting = f", {one.setting}" if one.setting else ""
    return f"{one.collective.name} {one.dtype.name} {one.nodes} x {one.gpus_per_node}{place}{setting}"


def _print_agreement(agreement: Agreement) -> None:
    if agreement.clear:
        say(
            f"what NCCL ran by itself is logged, or told from its time beyond the noise, at {agreement.clear} sizes: "
            f"the emulated pick at {agreement.clear_agreeing}"
        )
    if agreement.nearest:
        say(
            f"at {agreement.nearest} more the noise hides it: the nearest forced arm is the emulated pick "
            f"at {agreement.nearest_agreeing}"
        )


def _print_splits(splits: Sequence[SplitGain]) -> None:
    def by(one: SplitGain) -> tuple[int, int, int, int, int]:
        return int(one.collective), one.nodes, one.gpus_per_node, one.bytes, one.part_bytes

    rows = []
    for _, several in groupby(sorted(splits, key=by), key=by):
        same = list(several)
        first, gains = same[0], [one.gain for one in same]
        rows.append(
            (
                max(gains),
                (
                    f"{first.collective.name} {first.nodes} x {first.gpus_per_node}",
                    human_bytes(first.bytes),
                    f"{first.pick} {first.time_us:.1f}",
                    f"{first.parts} of {human_bytes(first.part_bytes)}",
                    f"{first.part_pick} {first.parts_us:.1f}",
                    f"{_percent(min(gains), max(gains))}",
                    len(same),
                ),
            )
        )
    if rows:
        shown = [row for _, row in sorted(rows, key=lambda each: -each[0])[:SPLITS_SHOWN]]
        columns = ("call", "size", "took us", "instead", "take us", "gain", "curves")
        print_table("Where smaller calls one after the other take less, beyond the noise", columns, shown)
        if len(rows) > SPLITS_SHOWN:
            say(f"{len(rows) - SPLITS_SHOWN} more: --json")


def _print_total(regret: MeasuredRegret, known: Sequence[JudgedPick]) -> None:
    unknown = len(regret.sizes) - len(known)
    if not known:
        say(f"regret: unknown at all {unknown} sizes")
        return
    mean = sum(one.regret or 0 for one in known) / len(known)
    loses = regret.count(Verdict.loses)
    rest = f"; unknown at {unknown} more" if unknown else ""
    judged = f"not best at {loses} of {len(known)} sizes beyond the noise"
    say(f"regret: mean {100 * mean:.2f} %; {judged}{rest}{_noise(known)}")


def _noise(known: Iterable[JudgedPick]) -> str:
    noises = dict.fromkeys((one.noise_percent, one.noise_source) for one in known if one.noise_percent is not None)
    each = (f"{percent:.1f} % ({source})" for percent, source in noises)
    return f"; a time may be off by {', '.join(each)}" if noises else ""


def _percent(low: float, high: float) -> str:
    least, most = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{least} %" if least == most else f"{least} to {most} %"


def _span(low: int, high: int) -> str:
    return human_bytes(low) if low == high else f"{human_bytes(low)} to {human_bytes(high)}"
