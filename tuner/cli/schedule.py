"""``nccl-tuner schedule``: who sends which bytes to whom in a call, for simulators of networks."""

import io
from pathlib import Path
from typing import Any

import click

from tuner.answers.alone import calls_alone
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Collective, DataType, Op
from tuner.cli import options
from tuner.emulator.non_classic import NonClassicPath
from tuner.emulator.request import Request

FORMATS = ("csv", "goal", "chakra")


@click.command(name="schedule")
@options.collective_argument
@click.option("--bytes", "size", type=options.size_bytes, required=True, metavar="SIZE", help="NCCL's nBytes.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="csv", show_default=True, help="Whose file.")
@click.option("--wire", is_flag=True, help="Bytes with the flags that LL and LL128 send along; csv has both.")
@click.option("--root", type=int, default=0, show_default=True, metavar="RANK", help="Of Broadcast and Reduce.")
@options.scenario_options
@options.request_options
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of standard output; chakra: the beginning of the names FILE.0.et, FILE.1.et, one a rank.",
)
def command(
    collective: Collective,
    size: int,
    kind: str,
    wire: bool,
    root: int,
    dtype: DataType,
    op: Op,
    out: Path | None,
    **scenario: Any,
) -> None:
    """Writes the schedule of one COLLECTIVE as NCCL launches it: each rank's sends and receives, by channel and step.

    csv: a row for each end of each message. goal: the text of LogGOPSim and ATLAHS. chakra: execution traces, one file
    a rank, as ASTRA-sim reads them (nccl-tuner[chakra]). Rings and trees only: the switch of NVLS and SHARP sends
    what no rank does.

    \b
    nccl-tuner schedule allreduce --bytes 1M --machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=Ring
    nccl-tuner schedule allgather --bytes 64M --machine dgx-h100 --nodes 2 --format goal -o allgather.goal
    nccl-tuner schedule allreduce --bytes 16M --machine dgx-a100 --nodes 4 --format chakra -o traces/allreduce
    """
    from tuner.answers.exports import schedules

    described = options.scenario_of(**scenario)
    (call,) = calls_alone(described, Request(collective, dtype, op), [size], root)
    if isinstance(call, NonClassicPath):
        raise BadInput(f"schedule: of Ring and Tree, not of {call.name}; valid: --env NCCL_ALGO=Ring")
    if kind == "chakra":
        if out is None:
            raise BadInput("chakra: a file a rank; valid with it: --out")
        schedules.write_chakra(call, out, wire)
    else:
        text = io.StringIO()
        if kind == "goal":
            schedules.write_goal(call, text, wire)
        elif wire:
            raise BadInput("csv: has bytes and wire_bytes; valid: without --wire")
        else:
            schedules.write_csv(call, text)
        if out is None:
            click.echo(text.getvalue(), nl=False)
        else:
            write_text(out, text.getvalue())
    click.echo(call.title, err=True)
