"""``nccl-tuner cost overlap``: communication behind computation."""

import click

from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.times.costmodels import overlap


@click.command(name="overlap", cls=options.Command)
@click.option("--compute-us", type=values.POSITIVE, required=True, metavar="US", help="Computation of a step.")
@click.option("--communication-us", type=values.POSITIVE, required=True, metavar="US", help="Communication of a step.")
@click.option(
    "--hidden",
    type=values.PARTS,
    default="0,0.5,0.8,1",
    show_default=True,
    help="Shares of the communication that run beside the computation; several with commas.",
)
@options.json_option
def command(compute_us: float, communication_us: float, hidden: list[float], as_json: bool) -> None:
    """The time of a step whose communication is partly hidden, and the speed-up over one after the other.

    \b
    nccl-tuner cost overlap --compute-us 2000000 --communication-us 600000 --hidden 0,0.8,1
    """
    times = compute_us, communication_us
    records = [
        {
            "hidden": share,
            "step_us": float(overlap.step_us(*times, share)),
            "speedup": float(overlap.speedup(*times, share)),
            "of_most": float(overlap.achieved(*times, share)),
        }
        for share in hidden
    ]
    if as_json:
        values.print_records(records)
        return
    rows = [
        (
            f"{100 * record['hidden']:g} %",
            f"{record['step_us'] / 1000:.2f}",
            f"{record['speedup']:.3f}",
            f"{100 * record['of_most']:.1f} %",
        )
        for record in records
    ]
    print_table("Communication behind computation", ("hidden", "step ms", "speed-up", "of the most"), rows)
