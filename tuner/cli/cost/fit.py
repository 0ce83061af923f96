"""``nccl-tuner cost fit``: alpha and beta of a measured sweep."""

from pathlib import Path
from typing import Any

import click

from tuner.base.names import Collective
from tuner.calibration import sweep
from tuner.calibration.sweep import AlphaBeta, Sweep
from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import human_bytes, print_table
from tuner.costmodels import algorithms
from tuner.costmodels.alphabeta import FORMULAS
from tuner.costmodels.line import Repeated
from tuner.costmodels.operations import Operation

_ALGORITHMS = sorted({name for collective in Collective for name in FORMULAS[Operation[collective.name]]})


@click.command(name="fit")
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
    help="Whose steps and bytes the times are taken for. [default: ring; of Broadcast and Reduce tree]",
)
@options.json_option
def command(
    files: tuple[Path, ...], collective: Collective | None, ranks: int | None, algorithm: str | None, as_json: bool
) -> None:
    """Alpha of a step and beta of a link from the times over sizes in FILEs, each a run of the same.

    FILEs are what nccl-tests prints or writes with -J, or what 'nccl-tuner measure' wrote, with NCCL's own choices.
    'nccl-tuner fit --model alpha-beta' fits each algorithm and protocol that was measured apart.

    \b
    nccl-tuner cost fit run1.txt run2.txt run3.txt
    """
    sweeps = [sweep.read(path, collective) for path in files]
    algorithm = algorithm or algorithms.names(Operation[sweeps[0].collective.name])[0]
    terms = sweep.terms_of(sweeps, algorithm, ranks)
    found = sweep.fit(sweeps, terms)
    if as_json:
        values.print_records([_record(sweeps, algorithm, found)])
    else:
        _print(sweeps, algorithm, found)


def _record(sweeps: list[Sweep], algorithm: str, found: AlphaBeta) -> dict[str, Any]:
    fit = found.fit
    return {
        "operation": sweeps[0].collective.name,
        "algorithm": algorithm,
        "files": [str(each.path) for each in sweeps],
        "alpha_us": float(found.level.alpha_us),
        "beta_gbs": float(found.level.beta_gbs),
        "r2": fit.r2,
        "alpha_deviation_us": fit.fixed_deviation_us * float(found.level.alpha_us) / fit.fixed_us,
        "beta_deviation_gbs": fit.gbs_deviation * float(found.level.beta_gbs) / fit.gbs,
        "fixed_us": fit.fixed_us,
        "gbs": fit.gbs,
        "error": found.error,
        "class": found.verdict.name,
        "causes": list(found.verdict.causes),
        "runs": {"alpha_us": _repeated(found.alpha_us), "beta_gbs": _repeated(found.beta_gbs)},
        "wrong": [{"file": str(each.path), "bytes": size} for each in sweeps for size in each.wrong_bytes],
        "sizes": [
            {"file": str(each.path), "bytes": int(size), "time_us": float(time_us)}
            for each in sweeps
            for size, time_us in zip(each.bytes, each.times_us, strict=True)
        ],
    }


def _repeated(found: Repeated) -> dict[str, float | None]:
    return {"mean": found.mean, "deviation": found.deviation}


def _print(sweeps: list[Sweep], algorithm: str, found: AlphaBeta) -> None:
    record = _record(sweeps, algorithm, found)
    rows = [
        (
            "alpha of a step, us",
            f"{record['alpha_us']:.3f}",
            f"{record['alpha_deviation_us']:.3f}",
            *_shown(found.alpha_us),
        ),
        ("beta, GB/s", f"{record['beta_gbs']:.3f}", f"{record['beta_deviation_gbs']:.3f}", *_shown(found.beta_gbs)),
    ]
    title = f"{record['operation']}, taken for {algorithm}, {len(record['sizes'])} times of {len(sweeps)} runs"
    print_table(title, ("", "all runs", "+-", "mean of runs", "deviation"), rows)
    click.echo(f"R2 {record['r2']:.4f}, mean error {100 * found.error:.1f} %: {record['class']}")
    for path, wrong_bytes in ((one.path, one.wrong_bytes) for one in sweeps if one.wrong_bytes):
        click.echo(f"{path}: left out, as results were wrong: {', '.join(map(human_bytes, wrong_bytes))}")
    for cause in record["causes"]:
        click.echo(f"  look for {cause}")


def _shown(found: Repeated) -> tuple[str, str]:
    return f"{found.mean:.3f}", "-" if found.deviation is None else f"{found.deviation:.3f}"
