"""``nccl-tuner accuracy``: how far off calibrated times are."""

from pathlib import Path
from typing import Any

import click

from tuner.cli import options
from tuner.cli.measured_options import given_of_files, measured_file_options
from tuner.cli.output import print_json, print_table, say
from tuner.cli.release_names import release_option
from tuner.times.calibration.accuracy.evaluate import SplitResult
from tuner.times.calibration.accuracy.of_file import FileAccuracy, Held, of_path
from tuner.times.calibration.accuracy.splits_file import of_splits


@click.command(name="accuracy", cls=options.Command)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option("--machine", metavar="NAME", help="The machine that was measured. [default: what the file says]")
@click.option(
    "--topology", type=click.Path(path_type=Path), metavar="FILE.xml", help="Instead of it, a topology in NCCL's XML."
)
@release_option("The release that was measured. [default: what the file says]", only_known=False)
@click.option(
    "--calibration",
    metavar="NAME|FILE",
    help="The calibration to hold against it. [default: the machine's own, else one of its generation]",
)
@measured_file_options
@click.option(
    "--update",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rows of the same cluster that the calibration is updated with first; they are not judged.",
)
@options.json_option
def command(
    file: Path | None,
    machine: str | None,
    topology: Path | None,
    nccl: str | None,
    calibration: str | None,
    update: Path | None,
    as_json: bool,
    **of_files: Any,
) -> None:
    """How far off calibrated times are: on a FILE of measured times, or on the frozen splits.

    FILE has the columns of tables/measured, or those of nccl-tests collections: collective, dtype, gpus, bytes,
    time_us; or it is the name of a shipped table ('nccl-tuner measured list'). Without FILE all frozen splits are run,
    a few minutes: fitted to some measured times, predicting others, beside simpler models.

    \b
    nccl-tuner accuracy h100.csv --machine dgx-h100 --nccl 2.29.2 --json
    nccl-tuner accuracy
    """
    if file is None:
        accuracy = of_splits(lambda done, of: click.echo(f"\rsplit {done} of {of}", err=True, nl=done == of))
        if as_json:
            print_json(accuracy)
        else:
            _print_splits(accuracy.splits)
        return
    held = of_path(file, Held(machine, topology, nccl, calibration, update, given_of_files(**of_files)))
    if as_json:
        print_json(held.as_json())
    else:
        _print_file(held)


def _print_file(held: FileAccuracy) -> None:
    rows = [
        (
            kind,
            each.rows,
            each.extrapolated,
            _percent(each.mean_absolute_error),
            _percent(each.nccl_model_error),
            _percent(each.coverage_90),
            f"± {_percent(each.half_width_90)}",
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
            *(_percent(each.errors[model]) for model in models),
            _percent(each.coverage),
            f"± {_percent(each.half_width)}",
        )
        for each in results
    ]
    columns = ("carried over", "machine", "rows", *models, "covered", "half-width")
    print_table("mean absolute errors of times that were held out", columns, rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
