"""``nccl-tuner verify``: is NCCL's pick the fastest?"""

from pathlib import Path

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.measure.comparison.compared import mean_regrets
from tuner.measure.comparison.model_errors import ModelError
from tuner.measure.verify import VerifiedFile, verify


@click.command(name="verify")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--histogram",
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="How often which size is called, collective,bytes,count: the total is over these calls.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="OUT.png",
    help="The measured times as a picture: .png, .svg or .pdf; needs matplotlib.",
)
@options.json_option
def command(files: tuple[Path, ...], histogram: Path | None, plot: Path | None, as_json: bool) -> None:
    """NCCL's pick against the measured best, by size, for FILEs that 'nccl-tuner measure' wrote.

    A pick is "not best" only beyond the noise: with few rounds nothing is.

    \b
    nccl-tuner verify run.jsonl
    nccl-tuner verify run.jsonl --histogram training.csv --plot run.png --json
    """
    verified = verify(files, histogram=histogram)
    if plot is not None:
        from tuner.plot import measured, save

        save(measured.figure([file.comparison for file in verified.files], list(map(str, files))), plot)
    if as_json:
        print_json(to_json(verified))
        return
    for file in verified.files:
        _print(file)
    for file in verified.files:
        if (total := file.histogram) is not None:
            click.echo(
                f"{file.file}: {total.calls:g} calls take {total.pick_us:.0f} us by NCCL's picks, "
                f"{total.best_us:.0f} us by the best: regret {100 * total.regret:.2f} %"
            )


def _print(file: VerifiedFile) -> None:
    sizes = file.comparison.sizes
    rows = [
        (
            one.point.collective.name,
            human_bytes(one.point.bytes),
            one.pick,
            f"{one.pick_us:.2f}",
            one.best,
            f"{one.best_us:.2f}",
            f"{100 * one.regret:.1f} %",
            "yes" if one.significant else "",
        )
        for one in sizes
    ]
    cut = ", its last line cut off" if file.truncated else ""
    print_table(f"{file.file}{cut}", ("collective", "size", "pick", "us", "best", "us", "regret", "beyond noise"), rows)
    if file.crossovers:
        changed = [(each.collective.name, each.before, each.after, each.at_bytes) for each in file.crossovers]
        print_table("where the measured best changes", ("collective", "from", "to", "about bytes"), changed)
    for each in file.model_changes:
        click.echo(f"{each.collective.name}: NCCL's pick changes at {', '.join(map(str, each.bytes)) or 'no size'}")
    if file.model_errors:
        columns = ("collective", "combination", "sizes", "MAPE", "MAPE scaled", "scale", "tau")
        print_table("the model against the times", columns, map(_error, file.model_errors))
    for collective, tau in file.rank_agreement.items():
        click.echo(f"{collective.name}: the model orders the combinations of a size with Kendall's tau {tau:.3f}")
    for skipped in file.skipped:
        click.echo(f"not judged: {skipped.point.collective.name} {human_bytes(skipped.point.bytes)}: {skipped.reason}")
    if not any(block.requested for block in file.comparison.measurements.blocks):
        click.echo("only NCCL's own choices were measured: 'nccl-tuner measure' measures whether others are faster")
    mean, beyond = mean_regrets(sizes)
    worse = sum(one.significant for one in sizes)
    click.echo(
        f"regret: mean {100 * mean:.2f} %, {100 * beyond:.2f} % of it beyond the noise; "
        f"not best at {worse} of {len(sizes)} sizes"
    )


def _error(one: ModelError) -> tuple[object, ...]:
    return (
        one.collective.name,
        f"{one.algorithm.name}/{one.protocol.name}",
        one.sizes,
        f"{100 * one.mape:.1f} %",
        f"{100 * one.mape_scaled:.1f} %",
        f"{one.scale:.3f}",
        "-" if one.tau is None else f"{one.tau:.3f}",
    )
