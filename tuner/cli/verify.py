"""``nccl-tuner verify``: NCCL's picks against the measured best."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.records import to_json
from tuner.base.view import columns_of
from tuner.cli import options
from tuner.cli.command import FILE, missing_of
from tuner.cli.measure import library_option
from tuner.cli.measured_options import asked, is_asked, place_options
from tuner.cli.output import (
    human_bytes,
    json_wanted,
    plural,
    print_json,
    print_table,
    print_view,
    say,
    shown_as_json,
    verdict,
)
from tuner.times.picks import PickVerdict
from tuner.times.regret import workflow
from tuner.times.regret.judged import RunsPick, SplitGain, best_arm
from tuner.times.regret.workflow import Agreement, MeasuredRegret, NextRuns, RunsQuery
from tuner.times.verify import ModelError, RoundsPick, VerifiedFile, mean_regrets, verify

SPLITS_SHOWN = 10
NEXT_SHOWN = 8
CALLS_NAMED = 4  # of which nothing is known
ERRORS = columns_of(ModelError, "collective", "combination", "sizes", "mape", "mape_scaled", "scale", "tau")


def print_regret(regret: MeasuredRegret) -> None:
    """Prints the total, the sizes with a verdict, what is not known and why, splits, and rows."""
    where = regret.machine or "the topology"
    known = [one for one in regret.sizes if one.regret is not None]
    _print_total(regret, known)
    say()
    if known:
        columns = ("call", "size", "pick", "us", "best", "us", "regret", "95 % interval", "", "NCCL ran")
        how = "best of simulated times" if regret.simulated else "measured best"
        title = f"NCCL's picks against the {how} on {where}, NCCL {regret.nccl}"
        calls, spare = list(dict.fromkeys(map(_call, known))), ("NCCL ran", "95 % interval")
        if len(calls) > CALLS_NAMED:
            print_table(title, columns, map(_row, known), spare)
        else:
            say(f"{title}\n")
            for call in calls:
                print_table(call, columns[1:], [_row(one)[1:] for one in known if _call(one) == call], spare)
    if regret.simulated:
        say(f"these times are simulated, not measured on a real machine: {', '.join(regret.simulated)}")
    _print_unknown([one for one in regret.sizes if one.regret is None])
    if regret.stand_in:
        say(regret.stand_in)
    for why, rows in regret.skipped.items():
        say(f"left out: {plural(rows, 'row')}: {why}")
    _print_agreement(regret.agreement)
    _print_splits(regret.splits)
    for row in regret.rows:
        say(
            f"{row.row}\n  {_percent(row.gain_low, row.gain_high)} faster than NCCL's pick, and by at least "
            f"{100 * row.surely:.1f} % after allowing for noise; measured: {', '.join(row.dtypes)}"
        )


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
        print_table(
            "What to force next: combinations that were never measured here and that calibrated times say may be "
            "faster",
            columns,
            rows,
        )
        if any(not one.measured for one in runs.runs[:NEXT_SHOWN]):
            say("* such calls were never measured: the interval is wide")
        if len(runs.runs) > NEXT_SHOWN:
            say(f"{len(runs.runs) - NEXT_SHOWN} more have a smaller possible gain: --json")
        say(f"calibrated times: {runs.runs[0].calibration}")
    for reason in runs.not_answered:
        say(f"not known what to force next: {reason}")
    if not rows and not runs.not_answered:
        say("nothing to force next: every combination that may be faster was measured")
    if runs.first_calls:
        say(
            "calls that tell most about this cluster, the most useful first; measure them for 'nccl-tuner fit "
            "calibration':"
        )
        for each in runs.first_calls:
            say(f"  {each.command}")


def _row(one: RunsPick) -> tuple[object, ...]:
    interval = "-" if one.low is None or one.high is None else f"{100 * one.low:.1f} to {100 * one.high:.1f} %"
    ran, best = one.evidence.identified, best_arm(one)
    return (
        _call(one),
        human_bytes(one.call.bytes),
        one.emulated_pick,
        f"{one.pick_us:.1f}",
        best.combination,
        f"{best.time_us:.1f}",
        f"{100 * (one.regret or 0):.1f} %",
        interval,
        one.why if one.verdict is PickVerdict.unknown else one.verdict,
        "" if ran is None else f"{ran.combination.plain}{'' if ran.is_clear else '?'}{'' if ran.agrees else ' (!)'}",
    )


def _print_unknown(sizes: Sequence[RunsPick]) -> None:
    by_why: dict[str, Counter[str]] = defaultdict(Counter)
    for one in sizes:
        by_why[one.why][_call(one)] += 1
    for why, calls in by_why.items():
        named = "; ".join(calls) if len(calls) <= CALLS_NAMED else f"{len(calls)} kinds of calls"
        say(f"{named}: whether the pick is best is unknown at {calls.total()} sizes: {why}")


def _call(one: RunsPick) -> str:
    call = one.call
    place = " in place" if call.in_place else ""
    setting = f", {call.setting}" if call.setting else ""
    return f"{call.collective.name} {call.dtype.name} {call.nodes} x {call.gpus_per_node}{place}{setting}"


def _print_agreement(agreement: Agreement) -> None:
    if agreement.clear:
        say(
            f"at {agreement.clear} sizes it is known what NCCL ran by itself, from a log or from its time; at "
            f"{agreement.clear_agreeing} of them it was the emulated pick"
        )
    if agreement.nearest:
        say(
            f"at {agreement.nearest} more sizes noise hides what ran; at {agreement.nearest_agreeing} of them the run "
            "with the most similar time forced the emulated pick"
        )


def _print_splits(splits: Sequence[SplitGain]) -> None:
    def by(one: SplitGain) -> tuple[int, int, int, int, int]:
        return int(one.call.collective), one.call.nodes, one.call.gpus_per_node, one.call.bytes, one.part_bytes

    rows = []
    for _, several in groupby(sorted(splits, key=by), key=by):
        same = list(several)
        first, gains = same[0], [one.gain for one in same]
        rows.append(
            (
                max(gains),
                (
                    f"{first.call.collective.name} {first.call.nodes} x {first.call.gpus_per_node}",
                    human_bytes(first.call.bytes),
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
        print_table(
            "Calls that are slower, beyond the noise, than several smaller calls one after the other", columns, shown
        )
        if len(rows) > SPLITS_SHOWN:
            say(f"{len(rows) - SPLITS_SHOWN} more: --json")


def _print_total(regret: MeasuredRegret, known: Sequence[RunsPick]) -> None:
    unknown = len(regret.sizes) - len(known)
    if not known:
        say(f"regret: unknown at all {unknown} sizes")
        return
    mean = sum(one.regret or 0 for one in known) / len(known)
    loses = regret.count(PickVerdict.loses)
    rest = f"; unknown at {unknown} more" if unknown else ""
    judged = f"not best at {loses} of {len(known)} sizes beyond the noise"
    say(verdict(f"regret: mean {100 * mean:.2f} %; {judged}{rest}", not loses) + _noise(known))


def _noise(known: Iterable[RunsPick]) -> str:
    noises = dict.fromkeys(one.evidence.noise for one in known if one.evidence.noise is not None)
    each = (f"{noise.percent:.1f} % ({noise.source})" for noise in noises)
    return f"; a time may be off by {', '.join(each)}" if noises else ""


def _percent(low: float, high: float) -> str:
    least, most = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{least} %" if least == most else f"{least} to {most} %"


def _span(low: int, high: int) -> str:
    return human_bytes(low) if low == high else f"{human_bytes(low)} to {human_bytes(high)}"


@click.command(name="verify", cls=options.Command)
@options.under("Output", "--noise", "--next", "--plot")
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE]...")
@place_options
@options.option(
    "--table", "tables", "Also show a table of measured times; repeatable.", multiple=True, metavar="NAME|FILE"
)
@options.option(
    "--noise",
    "noise_percent",
    "Percentage by which two runs of the same call differ, if you know that it is more than repetitions and "
    "neighbouring sizes show.",
    type=click.FloatRange(min=0, max=1000),
    metavar="PERCENT",
)
@options.flag("--next", "wants_next", "Show which few combinations to force next.")
@options.calibration_option("The calibration whose times --next uses.")
@options.file_option(
    "--histogram",
    "CSV",
    "CSV with the columns collective,bytes,count, which say how often each size is called; totals are over "
    "these calls.",
)
@options.file_option("--plot", "OUT.png", "Draw the measured times to this file: .png, .svg or .pdf; needs matplotlib.")
@library_option
@options.json_option
def command(files: tuple[Path, ...], histogram: Path | None, plot: Path | None, **given: Any) -> None:
    """Compares NCCL's pick with the best measured choice, by size.

    If all FILEs are from 'nccl-tuner measure', they are judged one by one. With any option except --histogram and
    --plot, all files are runs on one machine: what nccl-tests prints or writes, runs of 'measure', columns as in
    tables/measured. The NCCL_ALGO and NCCL_PROTO in a FILE say what the run forced.

    A pick is only called "not best" if the difference is larger than the noise. Whether a choice that was not measured
    is faster is unknown.

    \b
    nccl-tuner verify run.jsonl
    nccl-tuner verify run.jsonl --histogram training.csv --plot run.png --json
    nccl-tuner verify --arm default=plain.log --arm Ring=ring.log --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner verify --table b200-8x-64n__2.29.7__together --nodes 16 --next
    """
    noise, wants_next, calibration = given.pop("noise_percent"), given.pop("wants_next"), given.pop("calibration")
    if calibration is not None and not wants_next:
        raise BadInput(f"--calibration {calibration} only applies with --next")
    tables = given.pop("tables")
    if is_asked(given) or tables or wants_next or noise is not None:
        if histogram is not None or plot is not None:
            raise BadInput(
                "--histogram and --plot only apply to FILEs of 'measure', without --arm, --table and --machine"
            )
        _arms(asked(files, given, tables=tables, noise_percent=noise), wants_next, calibration)
        return
    if not files:
        raise missing_of(click.get_current_context(), "argument 'FILE...'")
    verified = verify(files, histogram=histogram)
    if plot is not None:
        from tuner.answers.charts import save
        from tuner.bench import figures

        names = [f"{file.file}: {file.origin}" for file in verified.files]
        save(figures.measured([file.comparison for file in verified.files], names), plot)
    if shown_as_json(verified):
        return
    for file in verified.files:
        _print(file)
    for file in verified.files:
        if (total := file.histogram) is not None:
            say(
                f"{file.file}: {total.calls:g} calls take {total.pick_us:.0f} us by NCCL's picks, "
                f"{total.best_us:.0f} us by the best: regret {100 * total.regret:.2f} %"
            )


def _arms(runs_of: RunsQuery, wants_next: bool, calibration: str | None) -> None:
    regret = workflow.of_arms(workflow.read(runs_of))
    runs = workflow.next_runs(regret.measured, calibration) if wants_next else None
    if json_wanted():
        print_json({**to_json(regret), **({"next": to_json(runs)} if runs else {})})
        return
    print_regret(regret)
    if runs is not None:
        print_next(runs)


def _print(file: VerifiedFile) -> None:
    sizes = file.comparison.sizes
    rows = [
        (
            one.call.collective.name,
            human_bytes(one.call.bytes),
            one.pick,
            f"{one.pick_us:.2f}",
            one.best,
            f"{one.best_us:.2f}",
            "unknown" if one.regret is None else f"{100 * one.regret:.1f} %",
            "yes" if one.loses else "",
        )
        for one in sizes
    ]
    _print_mean(file)
    cut = ", its last line cut off" if file.truncated else ""
    print_table(
        f"{file.file}: {file.origin}{cut}",
        ("collective", "size", "pick", "us", "best", "us", "regret", "beyond noise"),
        rows,
    )
    if file.crossovers:
        changed = [(each.collective.name, each.before, each.after, each.at_bytes) for each in file.crossovers]
        print_table(f"where the {_how(file)} best changes", ("collective", "from", "to", "about bytes"), changed)
    for each in file.model_changes:
        say(f"{each.collective.name}: NCCL's pick changes at {', '.join(map(str, each.bytes)) or 'no size'}")
    if file.model_errors:
        print_view(f"the model against the {_how(file)} times", ERRORS, file.model_errors)
    for collective, tau in file.rank_agreement.items():
        say(f"{collective.name}: the model orders the combinations of a size with Kendall's tau {tau:.3f}")
    for skipped in file.skipped:
        say(f"not judged: {skipped.point.collective.name} {human_bytes(skipped.point.bytes)}: {skipped.reason}")
    if not any(block.requested for block in file.comparison.measurements.blocks):
        say("only NCCL's own choices were measured; 'nccl-tuner measure' also measures others")


def _print_mean(file: VerifiedFile) -> None:
    """Prints the answer in one line: what picks lose on average, and at how many sizes beyond the noise."""
    sizes = file.comparison.sizes
    known = [one for one in sizes if one.is_known]
    means = mean_regrets(known)
    if means is None:
        say(f"regret: unknown at all {len(sizes)} sizes: {_missing(sizes)}")
        return
    worse = sum(one.loses for one in known)
    unknown = [one for one in sizes if not one.is_known]
    rest = f"; unknown at {len(unknown)} more: {_missing(unknown)}" if unknown else ""
    of_simulated = " of simulated times" if file.comparison.measurements.header.is_simulated else ""
    mean = f"mean {100 * means[0]:.2f} %, {100 * means[1]:.2f} % of it beyond the noise"
    said = f"regret{of_simulated}: {mean}; not best at {worse} of {len(known)} sizes{rest}"
    say(verdict(said, not worse))


def _missing(sizes: Sequence[RoundsPick]) -> str:
    if not any(one.others for one in sizes):
        return "only NCCL's picks were measured"
    return "at most one other choice was measured, and it is not faster"


def _how(file: VerifiedFile) -> str:
    return file.comparison.measurements.header.how
