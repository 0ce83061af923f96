"""``nccl-tuner decide``: measurements to a decision table."""

import sys
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.records import to_json
from tuner.bench.decide import Decided, DecidedRow, decide, decide_runs
from tuner.bench.decision.gate import GateSettings
from tuner.bench.decision.rows import Interpolated
from tuner.bench.decision.rows import interpolate as interpolated
from tuner.bench.opened import OtherRank
from tuner.cli import options
from tuner.cli.command import FILE, Params, excludes, missing_of, only
from tuner.cli.exports import Exports, export_options, of_decision
from tuner.cli.measure import library_option
from tuner.cli.measured_options import asked, check_place, is_asked, place_options
from tuner.cli.output import command_line, json_wanted, plural, print_json, say, show, verdict
from tuner.plugin.dry_run import CommunicatorSize
from tuner.plugin.table.parse import size_text


def _of_job(params: Params) -> bool:
    return bool(params["files"]) and all(file.is_dir() for file in params["files"])


RULES = (
    only("DIR of a job", "files", "out", "steps", "name", when=_of_job),
    excludes("FILEs", "steps", "name", when=lambda params: not _of_job(params)),
)


@click.command(name="decide", cls=options.Command, rules=RULES)
@options.under(
    "A/B runs", "--rounds", "--processes", "--apart-s", "--repeats", "--warmup", "--seed", "--no-gate", "--library"
)
@options.under("Output", "--parquet", "--prometheus")
@options.under("Arms that a job explored", "--steps", "--range")
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE|DIR]...")
@options.out_option("TABLE", "The table to write.")
@place_options
@options.file_option(
    "--constants",
    "CONSTANTS",
    "Constants fitted by 'nccl-tuner fit constants': they say at which size a row ends; without them a row ends "
    "halfway between two measured sizes.",
)
@options.option("--rounds", "Number of rounds of the A/B run.", type=click.IntRange(min=3), default=20)
@options.option(
    "--processes",
    "Number of fresh processes that share the rounds; each runs with and without the table.",
    type=click.IntRange(min=3),
    default=5,
)
@options.option(
    "--apart-s",
    "Seconds between the processes of the A/B run. [default: as long as 1,500 of their sample blocks take, at most 60]",
    type=click.FloatRange(min=0),
)
@options.option("--repeats", "Number of timed runs per sample block.", type=click.IntRange(min=1), default=10)
@options.option("--warmup", "Number of warm-up runs before each sample block.", type=click.IntRange(min=0), default=2)
@options.option("--seed", "Seed of the random order in the A/B run.", type=click.IntRange(min=0), default=0)
@options.flag(
    "--no-gate", "Skip the A/B run: all rows are kept as measured, and the table says that they were not tested."
)
@options.flag(
    "--interpolate",
    "Also write rows for node counts between those of the FILEs, if the rows of both neighbouring node counts "
    "choose the same.",
)
@options.steps_options
@library_option
@export_options
@options.json_option
def command(
    files: tuple[Path, ...],
    out: Path,
    constants: Path | None,
    rounds: int,
    processes: int,
    apart_s: float | None,
    repeats: int,
    warmup: int,
    seed: int,
    no_gate: bool,
    interpolate: bool,
    exports: Exports,
    steps: Path | None,
    name: str,
    **given: Any,
) -> None:
    """Writes a decision table with few rows from FILEs that 'nccl-tuner measure' wrote, one FILE for each number of
    ranks.

    A row stays only if an A/B run through the plugin, in several fresh processes, shows that it gains more than 2 %,
    with a probability of at least 0.975 for all rows together. A table without rows is an answer, too: then NCCL's
    default is the best choice. The A/B run is kept in TABLE.ab.jsonl.

    With --arm, --machine, --topology or --log the FILEs may be from nccl-tests or any origin that 'verify' takes: files
    with NCCL_ALGO or NCCL_PROTO in them say what they forced. Rows are then choices that beat NCCL's pick beyond the
    noise; as such runs cannot be repeated here, --no-gate is required.

    DIR is the folder that a job wrote while it explored arms: choices that it tried in blocks of calls (several DIRs:
    restarts of the job). An arm stays if it gains more than 2 % over the calls before and after its blocks, with an
    error probability of at most 0.025 for all arms together, and if the job itself is not slower in these blocks, by
    --steps or else by the time between calls. Nothing changes while the job runs.

    Exit code 0 if the table has rows, 1 if NCCL's own choices stay, 3 if nothing can be judged.

    \b
    nccl-tuner decide run.jsonl --out pod.table
    nccl-tuner decide /shared/job --out pod.table --steps steps.log
    nccl-tuner decide 2nodes.jsonl 4nodes.jsonl --constants pod.toml --out pod.table --json
    nccl-tuner decide 2nodes.jsonl 4nodes.jsonl 8nodes.jsonl --interpolate --out pod.table
    nccl-tuner decide plain.log --arm Ring=ring.log --machine dgx-h100 --nccl 2.28.9 --no-gate --out pod.table
    """
    if files and all(file.is_dir() for file in files):
        from tuner.cli.job import decide_in_job

        decide_in_job(files, out, steps, name)
        return
    if is_asked(given):
        if constants is not None or interpolate:
            raise BadInput(
                "--constants and --interpolate only apply to FILEs that 'measure' wrote, without --arm and --machine"
            )
        if not no_gate:
            raise BadInput("an A/B run cannot repeat runs of nccl-tests: add --no-gate to skip the A/B run")
        of_runs = decide_runs(asked(files, given), out, command_line())
        if not exports.deliver(of_runs, of_decision(of_runs)):
            show(of_runs, _print)
        sys.exit(0 if of_runs.kept else 1)
    if not files:
        raise missing_of(click.get_current_context(), "argument 'FILE...'")
    check_place(files)
    settings = None if no_gate else GateSettings(rounds, repeats, warmup, seed, processes, apart_s)
    try:
        decided = decide(files, out=out, constants=constants, gate=settings, command=command_line())
    except OtherRank:
        sys.exit(0)
    between = None
    if interpolate:
        between = interpolated(out, {CommunicatorSize(file.ranks, file.nodes): file.file for file in decided.files})
    if exports.deliver(decided, of_decision(decided)):
        pass
    elif json_wanted():
        print_json(to_json(decided) | (to_json(between) if between else {}))
    else:
        _print_all(decided, out, between)
    sys.exit(0 if decided.kept else 1)


def _print_all(decided: Decided, out: Path, between: Interpolated | None) -> None:
    _print(decided)
    if between:
        for held_out in between.held_out:
            say(f"held out, {held_out}")
        if not between.held_out:
            say(
                "no node count was held out to test the interpolation: that takes a FILE for a node count between "
                "the others"
            )
        say(f"{out}: {len(between.rows)} more rows, interpolated, for the node counts between")


def _print(decided: Decided) -> None:
    kept = f"{decided.table}: {plural(len(decided.kept), 'row')}"
    none = "no row stays: NCCL's default is the best choice that was measured"
    say(verdict(kept if decided.kept else none, bool(decided.kept)))
    if decided.stand_in:
        say(decided.stand_in)
    for row in decided.kept:
        say(f"kept     {row.row} ({row.ranks} ranks): {_gains(row)}")
        if row.cut:
            say(
                f"         ends before {', '.join(map(size_text, row.cut))}: the choice is slower there, or was not "
                "measured beyond it"
            )
    for row in decided.dropped:
        say(f"dropped  {row.row} ({row.ranks} ranks): {row.reason}")
    for file in decided.files:
        out = file.hold_out
        say(f"{file.file}: {file.origin}")
        say(
            f"  at the measured sizes NCCL's picks take {100 * file.regret_before:.2f} % longer than the best measured "
            f"choice, and the table's choices {100 * file.regret_after:.2f} % (means over the sizes; 'verify' calls "
            "this regret)"
        )
        if out.sizes:
            say(
                f"  test with rows made from every other size, at the {plural(out.sizes, 'size')} left out: calls take "
                f"{100 * out.after:.2f} % longer than the best choice with these rows, {100 * out.before:.2f} % without"
            )
    for other in decided.other_ranks:
        say(
            f"the rows for {other.decided_at} ranks do not apply at {other.tried_at} ranks; there they would reduce "
            f"the regret from {100 * other.regrets.before:.2f} % to {100 * other.regrets.after:.2f} %"
        )


def _gains(row: DecidedRow) -> str:
    if row.gain is None:
        return "not tested in an A/B run"
    low, high = (None if end is None else 100 * end for end in (row.gain_low, row.gain_high))
    interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f} %)"
    if row.probability is None:
        return f"gains at least {100 * row.gain:.1f} %{interval}, not tested in an A/B run"
    return f"gains {100 * row.gain:.1f} %{interval}, probability {row.probability:.4f}"
