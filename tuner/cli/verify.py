"""``nccl-tuner verify``: is NCCL's pick the fastest?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.records import to_json
from tuner.bench.verify import VerifiedFile, verify
from tuner.cli import options, verify_arms
from tuner.cli.arm_options import asked, is_asked, place_options
from tuner.cli.gpu_options import library_option
from tuner.cli.output import human_bytes, print_json, print_table, say
from tuner.times.comparison.compared import mean_regrets
from tuner.times.comparison.judged import Judged
from tuner.times.comparison.model_errors import ModelError
from tuner.times.regret import next_runs, workflow
from tuner.times.regret.workflow import Asked


@click.command(name="verify", cls=options.Command)
@options.under("Output", "--noise", "--next", "--plot")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@place_options
@click.option("--table", "tables", multiple=True, metavar="NAME|FILE", help="A table of measured times; repeatable.")
@click.option(
    "--noise",
    "noise_percent",
    type=click.FloatRange(min=0, max=1000),
    metavar="PERCENT",
    help="By how much two runs of the same differ, where more is known than repeats and neighbouring sizes show.",
)
@click.option("--next", "wants_next", is_flag=True, help="Which few combinations to force to know more.")
@click.option(
    "--calibration",
    metavar="NAME|FILE",
    help="The calibrated times that --next goes by. [default: the machine's own, else one of its generation]",
)
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
@library_option
@options.json_option
def command(files: tuple[Path, ...], histogram: Path | None, plot: Path | None, as_json: bool, **given: Any) -> None:
    """NCCL's pick against the measured best, by size.

    FILEs of 'nccl-tuner measure' alone are judged one by one. With any option but --histogram and --plot all files are
    arms of one machine: what nccl-tests prints or writes, runs of 'measure', columns as in tables/measured. A FILE says
    by its NCCL_ALGO and NCCL_PROTO what it forced.

    A pick is "not best" only beyond the noise. What was not measured is unknown.

    \b
    nccl-tuner verify run.jsonl
    nccl-tuner verify run.jsonl --histogram training.csv --plot run.png --json
    nccl-tuner verify --arm default=plain.log --arm Ring=ring.log --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner verify --table b200-8x-64n__2.29.7__together --nodes 16 --next
    """
    noise, wants_next, calibration = given.pop("noise_percent"), given.pop("wants_next"), given.pop("calibration")
    if calibration is not None and not wants_next:
        raise BadInput(f"--calibration {calibration} is for --next")
    tables = given.pop("tables")
    if is_asked(given) or tables or wants_next or noise is not None:
        if histogram is not None or plot is not None:
            raise BadInput("--histogram and --plot are for FILEs of measure alone, without --arm, --table, --machine")
        _arms(asked(files, given, tables=tables, noise_percent=noise), wants_next, calibration, as_json)
        return
    if not files:
        raise click.UsageError("Missing argument 'FILE...'.")
    verified = verify(files, histogram=histogram)
    if plot is not None:
        from tuner.cli.charts import measured, save

        names = [f"{file.file}: {file.origin}" for file in verified.files]
        save(measured.figure([file.comparison for file in verified.files], names), plot)
    if as_json:
        print_json(to_json(verified))
        return
    for file in verified.files:
        _print(file)
    for file in verified.files:
        if (total := file.histogram) is not None:
            say(
                f"{file.file}: {total.calls:g} calls take {total.pick_us:.0f} us by NCCL's picks, "
                f"{total.best_us:.0f} us by the best: regret {100 * total.regret:.2f} %"
            )


def _arms(runs_of: Asked, wants_next: bool, calibration: str | None, as_json: bool) -> None:
    regret = workflow.of_arms(workflow.read(runs_of))
    runs = next_runs.next_runs(regret.measured, calibration) if wants_next else None
    if as_json:
        print_json({**to_json(regret), **({"next": to_json(runs)} if runs else {})})
        return
    verify_arms.print_regret(regret)
    if runs is not None:
        verify_arms.print_next(runs)


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
            f"{100 * one.regret:.1f} %" if one.is_known else "unknown",
            "yes" if one.significant else "",
        )
        for one in sizes
    ]
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
        columns = ("collective", "combination", "sizes", "MAPE", "MAPE scaled", "scale", "tau")
        print_table(f"the model against the {_how(file)} times", columns, map(_error, file.model_errors))
    for collective, tau in file.rank_agreement.items():
        say(f"{collective.name}: the model orders the combinations of a size with Kendall's tau {tau:.3f}")
    for skipped in file.skipped:
        say(f"not judged: {skipped.point.collective.name} {human_bytes(skipped.point.bytes)}: {skipped.reason}")
    if not any(block.requested for block in file.comparison.measurements.blocks):
        say("only NCCL's own choices were measured: 'nccl-tuner measure' measures whether others are faster")
    known = [one for one in sizes if one.is_known]
    means = mean_regrets(known)
    if means is None:
        say(f"regret: unknown at all {len(sizes)} sizes: {_missing(sizes)}")
        return
    worse = sum(one.significant for one in known)
    unknown = [one for one in sizes if not one.is_known]
    rest = f"; unknown at {len(unknown)} more: {_missing(unknown)}" if unknown else ""
    of_simulated = " of simulated times" if file.comparison.measurements.header.is_simulated else ""
    say(
        f"regret{of_simulated}: mean {100 * means[0]:.2f} %, {100 * means[1]:.2f} % of it beyond the noise; "
        f"not best at {worse} of {len(known)} sizes{rest}"
    )


def _missing(sizes: Sequence[Judged]) -> str:
    if not any(one.others for one in sizes):
        return "nothing but the picks was measured"
    return "a single other choice was measured, which is no faster, or none"


def _how(file: VerifiedFile) -> str:
    return file.comparison.measurements.header.how


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
