"""``nccl-tuner fit sweep``: alpha and beta of a measured sweep."""

from pathlib import Path

import click

from tuner.base.names import Collective
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.times.calibration import sweep
from tuner.times.calibration.sweep_fit import SweepFit, described
from tuner.times.costmodels import algorithms
from tuner.times.costmodels.alphabeta import FORMULAS
from tuner.times.costmodels.line import Repeated
from tuner.times.costmodels.operations import Operation

_ALGORITHMS = sorted({name for collective in Collective for name in FORMULAS[Operation[collective.name]]})


@click.command(name="sweep", cls=options.Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--collective",
    type=options.Named(Collective, "collective"),
    help="Of a file with several, or one that does not say.",
)
@click.option("--ranks", type=int, help="Of files that do not say.")
@click.option(
    "--algorithm",
    type=click.Choice(_ALGORITHMS),
    metavar="NAME",
    help=f"Whose steps and bytes the times are taken for: {', '.join(_ALGORITHMS)}. "
    "[default: ring; of Broadcast and Reduce tree]",
)
@options.json_option
def command(
    files: tuple[Path, ...], collective: Collective | None, ranks: int | None, algorithm: str | None, as_json: bool
) -> None:
    """Alpha of a step and beta of a link from the times over sizes in FILEs, each a run of the same.

    FILEs are what nccl-tests prints or writes with -J, or what 'nccl-tuner measure' wrote, with NCCL's own choices.
    'nccl-tuner fit alpha-beta' fits each algorithm and protocol that was measured apart.

    \b
    nccl-tuner fit sweep run1.txt run2.txt run3.txt
    """
    sweeps = [sweep.read(path, collective) for path in files]
    algorithm = algorithm or algorithms.names(Operation[sweeps[0].collective.name])[0]
    terms = sweep.terms_of(sweeps, algorithm, ranks)
    fitted = described(sweeps, algorithm, sweep.fit(sweeps, terms))
    if as_json:
        print_json(fitted)
    else:
        _print(fitted)


def _print(fitted: SweepFit) -> None:
    rows = [
        (
            "alpha of a step, us",
            f"{fitted.alpha_us:.3f}",
            f"{fitted.alpha_deviation_us:.3f}",
            *_shown(fitted.runs.alpha_us),
        ),
        ("beta, GB/s", f"{fitted.beta_gbs:.3f}", f"{fitted.beta_deviation_gbs:.3f}", *_shown(fitted.runs.beta_gbs)),
    ]
    title = f"{fitted.operation}, taken for {fitted.algorithm}, {len(fitted.sizes)} times of {len(fitted.files)} runs"
    print_table(title, ("", "all runs", "+-", "mean of runs", "deviation"), rows)
    click.echo(f"R2 {fitted.r2:.4f}, mean error {100 * fitted.error:.1f} %: {fitted.verdict}")
    for file in dict.fromkeys(each.file for each in fitted.wrong):
        sizes = ", ".join(human_bytes(each.bytes) for each in fitted.wrong if each.file == file)
        click.echo(f"{file}: left out, as results were wrong: {sizes}")
    for cause in fitted.causes:
        click.echo(f"  look for {cause}")


def _shown(value: Repeated) -> tuple[str, str]:
    return f"{value.mean:.3f}", "-" if value.deviation is None else f"{value.deviation:.3f}"
