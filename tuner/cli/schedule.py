"""``nccl-tuner schedule``: who sends which bytes to whom in a call, for simulators of networks."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

from tuner.base.errors import BadInput
from tuner.base.names import Collective, PeerCall
from tuner.cli import options
from tuner.cli.options import ROOTED, ROOTED_WORDS
from tuner.emulator.request import Request

FORMATS = ("csv", "goal", "chakra")


@click.command(name="schedule", cls=options.Command)
@options.under("The call", "--root", "--rank", "--peer")
@options.any_call_argument
@click.option(
    "--bytes", "size", type=options.size_bytes, required=True, metavar="SIZE", help="NCCL's nBytes, as in pick."
)
@click.option("--format", "kind", type=click.Choice(FORMATS), default="csv", show_default=True, help="Whose file.")
@click.option("--wire", is_flag=True, help="Bytes with the flags that LL and LL128 send along; csv has both.")
@click.option(
    "--root", type=int, default=0, show_default=True, metavar="RANK", help="Of Broadcast, Reduce, gather and scatter."
)
@click.option("--rank", type=int, default=0, show_default=True, help="Of send and recv: whose.")
@click.option("--peer", type=int, default=1, show_default=True, help="Of send and recv: the other rank.")
@options.communicator_options()
@options.call_options(buffers=False, in_place=False, windows=False)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of standard output; chakra: the beginning of the names FILE.0.et, FILE.1.et, one a rank.",
)
def command(
    collective: Collective | PeerCall,
    size: int,
    kind: str,
    wire: bool,
    root: int,
    rank: int,
    peer: int,
    call: options.CallOptions,
    out: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Writes the schedule of one COLLECTIVE as NCCL launches it: each rank's sends and receives, by channel and step.

    csv: a row for each range of bytes at each end of each message; the switch of NVLS and the network of CollNet are
    peers, too. goal: the text of LogGOPSim and ATLAHS. chakra: execution traces, one file a rank, as ASTRA-sim reads
    them (nccl-tuner[chakra]); both know ranks alone.

    \b
    nccl-tuner schedule allreduce --bytes 1M --machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=Ring
    nccl-tuner schedule allgather --bytes 64M --machine dgx-h100 --nodes 2 --format goal -o allgather.goal
    nccl-tuner schedule allreduce --bytes 16M --machine dgx-a100 --nodes 4 --format chakra -o traces/allreduce
    nccl-tuner schedule alltoall --bytes 16M --machine dgx-h100 --nodes 2 --format goal -o alltoall.goal
    """
    from tuner.answers import alone
    from tuner.answers.exchanges import ExchangeQuery
    from tuner.answers.exports import schedules
    from tuner.emulator.p2p.plan import POINT_TO_POINT

    if root and collective not in (*ROOTED, PeerCall.Gather, PeerCall.Scatter):
        raise BadInput(f"--root: {collective.name} has none; valid: of {ROOTED_WORDS}")
    if (rank, peer) != (0, 1) and collective not in POINT_TO_POINT:
        raise BadInput(f"--rank, --peer: of send and recv; valid for {collective.name}: without, all ranks are in it")
    described = communicator.scenario()
    if isinstance(collective, Collective):
        made = alone.of_collective(described, Request(collective, call.dtype, call.op), size, root)
    else:
        ends = (rank, peer) if collective in POINT_TO_POINT else (0, root)
        made = alone.of_exchange(described, ExchangeQuery(collective, [size], call.dtype, *ends))
    if wire and kind == "csv":
        raise BadInput("csv: has bytes and wire_bytes; valid: without --wire")
    if kind == "chakra":
        if out is None:
            raise BadInput("chakra: a file a rank; valid with it: --out")
        schedules.write_chakra(made, out, wire)
    elif kind == "goal":
        schedules.check_ranks_only(made, kind)
        with _opened(out) as file:
            schedules.write_goal(made, file, wire)
    else:
        with _opened(out) as file:
            schedules.write_csv(made, file)
    click.echo(made.title, err=True)


@contextlib.contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """The file, or standard output: what is written goes there at once, as a schedule may be larger than memory."""
    if out is None:
        yield sys.stdout
        return
    try:
        with out.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror}") from error
