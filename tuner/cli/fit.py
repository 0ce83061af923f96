"""``nccl-tuner fit``: constants, alpha and beta, or a calibration from measured times, and how accurate it is."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, TunerError
from tuner.base.files import write_text
from tuner.base.names import Collective
from tuner.base.printable import RETURN
from tuner.base.view import columns_of, in_percent
from tuner.cli import options
from tuner.cli.command import FILE, Group, has, lacks, missing_of, needs, only
from tuner.cli.cost import values
from tuner.cli.measure import library_option
from tuner.cli.measured_options import asked, check_place, is_asked, place_options, say_stand_in, site_options
from tuner.cli.output import (
    command_line,
    human_bytes,
    json_wanted,
    note_after,
    plural,
    print_json,
    print_table,
    print_view,
    progress,
    say,
    show,
    shown_as_json,
)
from tuner.scenario.describe import describe
from tuner.times.acceptance.accept import AcceptOptions, accept
from tuner.times.calibration import calibrate, sweep
from tuner.times.calibration.accuracy.evaluate import SplitResult, of_splits
from tuner.times.calibration.accuracy.of_file import FileAccuracy, of_path
from tuner.times.calibration.fit import KEPT_ALIKE, KEPT_WITHOUT_EFFECT, Error, Fitted
from tuner.times.calibration.sweep import SweepFit
from tuner.times.calibration.workflow import (
    AlphaBeta,
    AlphaBetaReport,
    FitReport,
    FittedFiles,
    HeldOut,
    fit,
    fit_alpha_beta,
)
from tuner.times.costmodels import algorithms
from tuner.times.costmodels.alphabeta import FORMULAS
from tuner.times.costmodels.line import Repeated
from tuner.times.costmodels.operations import CostOperation
from tuner.times.measured.formats import Given
from tuner.times.measured.samples import NEAR, Measurements
from tuner.times.placement import Site
from tuner.times.regret import arms, workflow
from tuner.times.timemodel import calibration


def measured_files(
    files: tuple[Path, ...], given: Mapping[str, Any]
) -> tuple[list[Measurements] | None, tuple[Path, ...]]:
    """Measurements of the arms that ``place_options`` describe (None without these options), and the files of
    measurements.

    Raises BadInput if a file does not say where it was measured.
    """
    if is_asked(given):
        runs = asked(files, given)
        placed = workflow.read(runs)
        say_stand_in(placed.site)
        return arms.of_arms(placed), runs.paths
    if not files:
        raise missing_of(click.get_current_context(), "argument 'FILE...'")
    check_place(files)
    return None, files


def title_of(files: FittedFiles) -> str:
    return f"{files.calls} calls, {files.times} times, on {'; '.join(files.communicators)}"


def print_left_out(files: FittedFiles) -> None:
    for reason, count in sorted(files.left_out.items()):
        say(f"left out: {count} {reason}")
    for floor in files.floors:
        say(
            f"{floor.communicator}: the fastest calls of several combinations all take {floor.floor_us:.1f} us, which "
            f"must be the time that the host needs; calls that take less than {NEAR:g} times this, up to "
            f"{human_bytes(floor.to_bytes)}, are left out"
        )


WORSE = 2.0  # times what the model misses in the middle: sizes that are named


@click.command(name="constants", cls=options.Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE)
@place_options
@options.out_option(
    "CONSTANTS", "The file of fitted constants to write, for the --constants of pick and table.", required=False
)
@library_option
@options.json_option
def constants_command(
    files: tuple[Path, ...],
    out: Path | None,
    **given: Any,
) -> None:
    """Fits the constants of NCCL's model to the measurements in FILE, of one machine and release.

    A constant that the measurements do not determine keeps NCCL's value; measurements on several node counts determine
    more constants. Every fourth size is held out, and errors are shown for these sizes, which the fit did not use.
    Sessions and communicators are held out in turn as well.

    With --arm, --machine, --topology or --log the FILEs may be from nccl-tests or any origin that 'verify' takes; if no
    log says what NCCL chose by itself, the emulator's pick is assumed.

    \b
    nccl-tuner fit constants one-node.jsonl two-nodes.jsonl --out pod.toml
    """
    read, files = measured_files(files, given)
    report = fit(files, out=out, command=command_line(), progress=progress, measured=read)
    if not shown_as_json(report):
        _print_constants(report)
        if out is not None:
            say(f"{out}: {len(report.fitted)} constants of NCCL {report.files.nccl}")


LL_ROWS = (
    "cap_gbs.ll: on several nodes NCCL chooses the row of this constant by the processors: ampere for AMD or mixed "
    "processors, volta for others"
)


def _print_constants(report: FitReport) -> None:
    fitted, title = report.fit, title_of(report.files)
    rows = [
        (one.name, f"{one.nccl:.5g}", f"{one.value:.5g}", _interval(one), one.status, _alike(one))
        for one in report.fitted
    ]
    print_table(title, ("constant", "NCCL", "fitted", "95 %", "status", "kept constants with the same effect"), rows)
    if any(one.name.startswith("cap_gbs.ll.") for one in report.fitted):
        say(LL_ROWS)
    kept = [one for one in fitted.constants if one.status == KEPT_ALIKE]
    if kept:
        title = "Constants kept at NCCL's value, as the measurements cannot separate their effect from that of others"
        columns: tuple[str, ...] = ("constant", "NCCL", "same effect as")
        print_table(title, columns, [(one.name, f"{one.nccl:.5g}", _alike(one)) for one in kept])
    print_view("Mean absolute error of the times, %", columns_of(Error), fitted.errors)
    _print_held_out(report)
    without_effect = [one.name for one in fitted.constants if one.status == KEPT_WITHOUT_EFFECT]
    for what, names in (
        ("they have too little effect on the measured times", without_effect),
        ("no measured call depends on them", fitted.unreached),
    ):
        if names:
            say(f"constants kept at NCCL's value ({what}): {_few(names)}")
    if fitted.noise > 1:
        say(
            f"the fitted model is {fitted.noise:g} standard deviations off the measured times; the intervals are "
            "widened by this factor"
        )
    worse = [one for one in fitted.noise_by_size if one.noise > WORSE * fitted.noise]
    if worse:
        sizes = ", ".join(f"from {human_bytes(one.from_bytes)} {one.noise:g}" for one in worse)
        say(f"the model is further off at some sizes, which get less weight (standard deviations): {sizes}")
    print_left_out(report.files)


def _print_held_out(report: FitReport) -> None:
    if report.held_out:
        print_view("Mean absolute error on times that the fit did not use, %", columns_of(HeldOut), report.held_out)
    else:
        say(
            "no session and no communicator was held out to test the fit: that takes three processes, or FILEs of "
            "two communicators"
        )


def _interval(one: Fitted) -> str:
    return "-" if one.low is None or one.high is None else f"{one.low:.4g}..{one.high:.4g}"


def _alike(one: Fitted) -> str:
    return ", ".join(f"{name} x{part:.2g}" for name, part in one.alike.items()) or "-"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more (--json)" if len(names) > 4 else "")


_ALGORITHMS = sorted({name for collective in Collective for name in FORMULAS[CostOperation[collective.name]]})
ONLY_SWEPT = ("collective", "ranks", "algorithm")
RULES = (
    only(*("--experiment", "experiment", "elapsed_us", "ranks", "iterations", "size"), when=has("experiment")),
    needs("--experiment", "elapsed_us", "iterations", "size", when=lacks("experiment")),
    only("--sweep", "swept", *ONLY_SWEPT, when=has("swept")),
    needs("--sweep", *ONLY_SWEPT, when=lambda params: not params["experiment"] and not params["swept"]),
)


@click.command(name="alpha-beta", cls=options.Command, rules=RULES)
@options.under("A sweep over sizes", "--sweep", "--collective", "--ranks", "--algorithm")
@options.under("One experiment for each parameter", "--experiment", "--elapsed-us", "--iterations", "--bytes")
@click.argument("files", metavar="[FILE|PARAMETER]...", nargs=-1, type=FILE)
@place_options
@options.file_option(
    "--cost-table", "TABLE", "Write the fitted times as cost rows of a decision table for the tuner plugin."
)
@library_option
@options.flag(
    "--sweep",
    "swept",
    "Fit the textbook's alpha (latency of a step) and beta (bandwidth of a link) instead. Each FILE is a run over "
    "sizes with NCCL's own choices: what nccl-tests prints or writes with -J, or what 'measure' wrote.",
)
@options.collective_option("The collective, if FILE has several or does not name it.")
@options.option("--ranks", "Number of ranks, if FILEs do not say it.", type=int)
@options.option(
    "--algorithm",
    f"Algorithm that is assumed to have run: {', '.join(_ALGORITHMS)}. [default: ring; for Broadcast and Reduce tree]",
    type=click.Choice(_ALGORITHMS),
    metavar="NAME",
)
@options.flag(
    "--experiment",
    "Show which ring AllReduce measures each parameter of the two-level model (repeat each five times for a mean and "
    "a deviation); with a PARAMETER instead of FILE, compute the parameter from measured times.",
)
@options.option(
    "--elapsed-us",
    "Elapsed time of all iterations together, in us: one value for each repetition.",
    type=values.POSITIVES,
    metavar="US[,US...]",
)
@options.option("--iterations", "Number of iterations in each repetition. [default: as in the experiment]", type=int)
@options.option("--bytes", "size", "Size of the AllReduce. [default: as in the experiment]", type=options.SIZES)
@options.json_option
def alpha_beta_command(
    files: tuple[Path, ...],
    cost_table: Path | None,
    swept: bool,
    collective: Collective | None,
    ranks: int | None,
    algorithm: str | None,
    experiment: bool,
    elapsed_us: list[float] | None,
    iterations: int | None,
    size: list[int] | None,
    **given: Any,
) -> None:
    """Fits a latency and a bandwidth to each algorithm and protocol that was measured separately, or to a sweep of
    sizes.

    FILEs are measurements of one machine and release, as for 'fit constants'. Every fourth size is held out to test the
    fit.

    \b
    nccl-tuner fit alpha-beta two-nodes.jsonl --cost-table pod.table
    nccl-tuner fit alpha-beta --sweep run1.txt run2.txt run3.txt
    nccl-tuner fit alpha-beta --experiment
    nccl-tuner fit alpha-beta --experiment alpha_intra_us --elapsed-us 322000,320000,325000 --ranks 8
    """
    if experiment:
        if len(files) > 1:
            raise BadInput(f"{files[1]}: --experiment takes a single PARAMETER; remove this one")
        from tuner.cli.cost.bandwidths import show_experiment

        show_experiment(str(files[0]) if files else None, elapsed_us, ranks, iterations, size)
        return
    if swept:
        if not files:
            raise missing_of(click.get_current_context(), "argument 'FILE...'")
        _show_sweep(files, collective, ranks, algorithm)
        return
    read, files = measured_files(files, given)
    fits = fit_alpha_beta(files, cost_table=cost_table, command=command_line(), measured=read)
    show(fits, _print_alpha_beta, cost_table)


def _print_alpha_beta(report: AlphaBetaReport, cost_table: Path | None) -> None:
    first, *others = columns_of(AlphaBeta)
    print_view(title_of(report.files), [first, *columns_of(AlphaBeta, "combination"), *others], report.fits)
    for reason in report.without:
        say(f"not fitted: {reason}")
    print_left_out(report.files)
    if cost_table is not None:
        say(f"{cost_table}: {plural(sum(one.known for one in report.fits), 'row')}")


def _show_sweep(
    files: tuple[Path, ...], collective: Collective | None, ranks: int | None, algorithm: str | None
) -> None:
    sweeps = [sweep.read(path, collective) for path in files]
    algorithm = algorithm or algorithms.names(CostOperation[sweeps[0].collective.name])[0]
    terms = sweep.terms_of(sweeps, algorithm, ranks)
    show(sweep.fit(sweeps, algorithm, terms), _print_sweep)


def _print_sweep(fitted: SweepFit) -> None:
    rows = [
        (
            "alpha of a step, us",
            f"{fitted.alpha_us:.3f}",
            f"{fitted.alpha_deviation_us:.3f}",
            *_shown(fitted.runs.alpha_us),
        ),
        ("beta, GB/s", f"{fitted.beta_gbs:.3f}", f"{fitted.beta_deviation_gbs:.3f}", *_shown(fitted.runs.beta_gbs)),
    ]
    title = (
        f"{fitted.operation}, assumed to run {fitted.algorithm}, {len(fitted.sizes)} times of {len(fitted.files)} runs"
    )
    print_table(title, ("", "all runs", "+-", "mean of runs", "deviation"), rows)
    worst = max(fitted.sizes, key=lambda each: abs(fitted.error_of(each)))
    click.echo(
        f"R2 {fitted.r2:.4f}, mean error {100 * fitted.error:.1f} %, the most {100 * fitted.error_of(worst):+.1f} % at "
        f"{human_bytes(worst.bytes)}: {fitted.verdict}"
    )
    for file in dict.fromkeys(each.file for each in fitted.wrong):
        sizes = ", ".join(human_bytes(each.bytes) for each in fitted.wrong if each.file == file)
        click.echo(f"{file}: left out, as results were wrong: {sizes}")
    for cause in fitted.causes:
        say(f"  look for {cause}")


def _shown(value: Repeated) -> tuple[str, str]:
    return f"{value.mean:.3f}", "-" if value.deviation is None else f"{value.deviation:.3f}"


@click.command(name="calibration", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@site_options
@options.option(
    "--update",
    "Adapt this calibration to your own site by the FILEs' rows between nodes; one row is enough.",
    metavar="NAME|FILE",
)
@options.option("--name", "Name by which answers call the calibration and the site.", default="own")
@options.out_option("OUT.json", "The file to write.")
@options.json_option
def calibration_command(
    files: tuple[Path, ...],
    site: Site,
    given: Given,
    update: str | None,
    name: str,
    out: Path,
) -> None:
    """Makes a calibration from FILEs of measured times, for the option --calibration of pick, budget, edges and others.

    FILEs are what nccl-tests prints or writes as JSON, runs of 'measure', columns, or names of shipped tables. A dozen
    rows are enough; times that were not measured are estimated from machines with GPUs of the same generation, with
    wide intervals. With --update one row of your own cluster is enough; four rows at different sizes are better.

    \b
    nccl-tuner fit calibration sweep.csv --machine dgx-h100 --nccl 2.29.2 -o own.json
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.29.2 --bytes 64M --calibration own.json
    nccl-tuner fit calibration --update dgx-h100 all_reduce.log --machine dgx-h100 --name pod7 -o pod7.json
    """
    made, notes = calibrate.of_paths(files, site, name, update, given)
    for stand_in in notes:
        note_after(stand_in)
    write_text(out, calibration.text(made))
    for path in files:
        if why := _unhealthy(path, made.machine, site, given):
            say(f"note: {path}: {why}; a calibration made from it takes such times as normal", err=True)
    rows = sum(each.rows for each in made.measured)
    if not shown_as_json({"file": out, "name": made.name, "machine": made.machine, "measured": made.measured}):
        of_tables = ", ".join(each.name for each in made.measured)
        done = "fitted to" if update is None else f"{update} updated by"
        click.echo(f"{out}: {made.machine}, {done} {plural(rows, 'row')} of {of_tables}")


def _unhealthy(path: Path, machine: str, site: Site, given: Given) -> str:
    """Why the times of a file cannot come from a healthy machine; empty if nothing shows that."""
    try:
        scenario = describe(None if site.topology else machine, topology=site.topology, nccl=site.nccl or None)
        found = accept([path], AcceptOptions(scenario, replace(given, nccl=given.nccl or site.nccl)))
    except TunerError:  # a file that 'accept' cannot place says nothing
        return ""
    slow, sizes = found.calls_judged
    return f"'nccl-tuner accept' fails this run, as {slow} of {sizes} sizes are too slow or too fast" if slow else ""


@click.command(name="accuracy", cls=options.Command)
@click.argument("file", required=False, type=FILE, metavar="[FILE]")
@options.calibration_option("The calibration to compare FILE with.")
@site_options
@options.file_option(
    "--update",
    "FILE",
    "Measured rows of the same cluster with which the calibration is adapted first; they are not judged themselves.",
)
@options.json_option
def accuracy_command(
    file: Path | None,
    site: Site,
    given: Given,
    calibration: str | None,
    update: Path | None,
) -> None:
    """Shows how far off calibrated times are, on a FILE of measured times or on the frozen splits.

    FILE has the columns of tables/measured, or those of nccl-tests collections: collective, dtype, gpus, bytes,
    time_us; or it is the name of a shipped table ('nccl-tuner measured'). Without FILE, all frozen splits are run,
    which takes a few minutes: for each split, the model is fitted to some of the measured times and predicts the
    others, and so do simpler models for comparison.

    \b
    nccl-tuner fit accuracy h100.csv --machine dgx-h100 --nccl 2.29.2 --json
    nccl-tuner fit accuracy
    """
    if file is None:
        accuracy = of_splits(_split_done)
        if not shown_as_json(accuracy):
            _print_splits(accuracy.splits)
        return
    held = of_path(file, site, given, calibration, update)
    if json_wanted():
        print_json(held.as_json())
    else:
        _print_file(held)


def _split_done(done: int, of: int) -> None:
    """Prints progress on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"{RETURN}split {done} of {of}", err=True, nl=done == of)


def _print_file(held: FileAccuracy) -> None:
    rows = [
        (
            kind,
            each.rows,
            each.extrapolated,
            in_percent(each.mean_absolute_error),
            in_percent(each.nccl_model_error),
            in_percent(each.coverage_90),
            f"± {in_percent(each.half_width_90)}",
        )
        for kind, each in (("collectives", held.collectives), ("point to point", held.point_to_point))
        if each is not None
    ]
    print_table(
        f"{held.file}: calibrated times by {held.reason}",
        ("rows of", "rows", "extrapolated", "mean error", "NCCL's model", "in the 90 % interval", "mean half-width"),
        rows,
    )
    for over, count in held.extrapolations.items():
        click.echo(f"extrapolated: {over}: {count} rows")
    for why, count in held.skipped.items():
        say(f"left out: {count} rows: {why}")
    for problem in held.problems:
        say(f"note: {problem}")


def _print_splits(results: tuple[SplitResult, ...]) -> None:
    models = list(results[0].errors)
    rows = [
        (
            each.split.kind,
            each.split.machine,
            each.rows,
            *(in_percent(each.errors[model]) for model in models),
            in_percent(each.coverage),
            f"± {in_percent(each.half_width)}",
        )
        for each in results
    ]
    columns = ("carried over", "machine", "rows", *models, "covered", "half-width")
    print_table("mean absolute errors on times that were held out of the fit", columns, rows)


VERBS = {
    "constants": "fits the constants of NCCL's model, for --constants",
    "alpha-beta": "fits a latency and a bandwidth to each combination, or to a sweep",
    "calibration": "makes a calibration of your own machine, for --calibration",
    "accuracy": "shows how far off calibrated times are, on a file or frozen splits",
}


@click.group(name="fit", cls=Group, verbs=VERBS, modules="fit")
def command() -> None:
    """Fits models to measured times. 'fit accuracy' says how far off a calibration is.

    \b
    nccl-tuner fit constants one-node.jsonl two-nodes.jsonl --out pod.toml
    nccl-tuner fit calibration sweep.csv --machine dgx-h100 --nccl 2.29.2 -o own.json
    """
