"""``nccl-tuner export``: NCCL's picks, their times and schedules as files for other programs."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tuner.base.errors import BadInput
from tuner.base.files import replacing, write_bytes, write_text
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall
from tuner.base.sizes import size_list
from tuner.cli import options
from tuner.cli.command import needs
from tuner.cli.options import ROOTED, ROOTED_WORDS
from tuner.cli.output import print_json
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted
    from tuner.emulator.steps.records import Schedule

SCHEDULES = ("csv", "goal", "chakra")
FORMATS = ("xla", "xla-iota", "choices", "compiled", "simai", *SCHEDULES)
XLA_SIZES = "1K..1G*2"


OF_PICKS = ("low", "high", "nvlink_gbs", "nics_gbs", "time", "calibration", "tuner", "buffers", "in_place")
OF_SCHEDULES = ("wire", "root", "rank", "peer")


RULES = (
    needs("formats of picks, not of schedules", *OF_PICKS, when=lambda params: params["kind"] in SCHEDULES),
    needs("the formats csv, goal and chakra", *OF_SCHEDULES, when=lambda params: params["kind"] not in SCHEDULES),
)


@click.command(name="export", cls=options.Command, rules=RULES)
@options.under("SimAI", "--nvlink-gbs", "--nics-gbs")
@options.under("Sizes of choices", "--from", "--to")
@options.under("Schedules of one call", "--wire", "--root", "--rank", "--peer")
@click.argument("collectives", nargs=-1, type=options.AnyCall(Collective, "collective"), metavar="[COLLECTIVE]...")
@options.option("--format", "kind", "Whose file.", type=click.Choice(FORMATS), required=True)
@options.sizes_option(f"Sizes as NCCL's nBytes: several for xla [default: {XLA_SIZES}], or the one size of a schedule.")
@options.flag(
    "--wire", "Include the flags that LL and LL128 send with the data in the bytes; csv always has both numbers."
)
@options.option("--root", f"Of {ROOTED_WORDS}.", type=int, default=0, metavar="RANK")
@options.option("--rank", "For send and recv: the rank that calls it.", type=int, default=0)
@options.option("--peer", "For send and recv: the other rank.", type=int, default=1)
@options.option("--nvlink-gbs", "simai: NVLink bandwidth of a GPU in one direction, in GB/s.", type=float)
@options.option("--nics-gbs", "simai: bandwidth of all adapters of a node together, in GB/s.", type=float)
@options.range_options
@options.communicator_options(tuner=True)
@options.call_options()
@options.time_options("nccl")
@options.file_option("-o", "--out", "FILE", "Write to this file instead of standard output.")
def command(
    collectives: tuple[Collective | PeerCall, ...],
    kind: str,
    sizes: list[int] | None,
    nvlink_gbs: float | None,
    nics_gbs: float | None,
    low: int | None,
    high: int,
    call: Request,
    times: "TimesWanted | None",
    wire: bool,
    root: int,
    rank: int,
    peer: int,
    out: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Writes NCCL's picks, their times, or schedules of messages as files that other programs read.

    Each file says who predicts its times. xla: XLA's collective performance table, a text proto (AllReduce, AllGather,
    ReduceScatter; float32); xla-iota: the same for versions of XLA that read the devices from
    iota_collective_device_list. choices: ranges of sizes with their picks as JSON, for sizes from --from to --to;
    compiled: the same with times, as a binary file for lookups. simai: SimAI's table of ratios for one collective (by
    default AllReduce) on 1 to 128 nodes.

    csv, goal and chakra write the schedule of one COLLECTIVE as NCCL launches it: each rank's sends and receives, by
    channel and step. csv has two rows for every range of bytes that a message moves, one of the sender and one of the
    receiver; the switch of NVLS and the network of CollNet are peers, too. goal: the text of LogGOPSim and ATLAHS.
    chakra: execution traces, FILE.0.et, FILE.1.et, one a rank, as ASTRA-sim reads them (nccl-tuner[chakra]). goal and
    chakra can only describe ranks, no switch and no network.

    \b
    nccl-tuner export --format xla --machine dgx-h100 --nodes 2 --out h100.pbtxt
    nccl-tuner export allreduce --format choices --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner export allreduce --format choices --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner export --format simai --machine dgx-h100 --nvlink-gbs 450 --nics-gbs 400 --time calibrated
    nccl-tuner export allreduce --format csv --bytes 1M --machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=Ring
    nccl-tuner export allgather --format goal --bytes 64M --machine dgx-h100 --nodes 2 -o allgather.goal
    nccl-tuner export allreduce --format chakra --bytes 16M --machine dgx-a100 --nodes 4 -o traces/allreduce
    nccl-tuner export alltoall --format goal --bytes 16M --machine dgx-h100 --nodes 2 -o alltoall.goal
    """
    if kind in SCHEDULES:
        if len(collectives) != 1 or sizes is None or len(sizes) != 1:
            raise BadInput(f"{kind} writes the schedule of a single call: name one COLLECTIVE and one --bytes SIZE")
        described = communicator.without("tuner").scenario()
        _write_schedule(_scheduled(described, collectives[0], sizes[0], call, root, (rank, peer)), kind, wire, out)
        return
    for each in collectives:  # which says why, of others
        options.Named(Collective, "collective").convert(each.name, None, None)
    named = tuple(each for each in collectives if isinstance(each, Collective))
    described = communicator.scenario()
    if times is not None and times.beside_nccl:
        raise BadInput("--time both: an export holds only one kind of times: use --time nccl or --time calibrated")
    if kind in ("choices", "compiled"):
        if times is not None:
            raise BadInput(f"{kind} only has picks with NCCL's own times: remove --time and --calibration")
        like = call
        if kind == "compiled":
            _compiled(described, like, named, out)
            return
        _choices(described, like, named, (low, high), out)
        return
    if call.buffers is not Buffers.plain or call.in_place:
        raise BadInput(
            f"{kind} is a table of times, which NCCL only has for plain buffers: remove --buffers and "
            "--in-place, or use --format choices"
        )
    if (call.dtype, call.op) != (DataType.float32, Op.sum):
        raise BadInput(f"{kind} is a table for float32 and sum: remove --dtype and --op")
    from tuner.answers.exports import timed

    if kind == "simai":
        if nvlink_gbs is None or nics_gbs is None:
            raise BadInput("simai: needs --nvlink-gbs and --nics-gbs, because it writes ratios to these bandwidths")
        if len(named) > 1:
            raise BadInput(f"simai: the table is for one collective, not {len(named)}: name one")
        text, whose = timed.table(described, (named or (Collective.AllReduce,))[0], nvlink_gbs, nics_gbs, times)
        click.echo(f"times {'; '.join(whose)}", err=True)  # the file has no place for it
        _write(text, out)
        return
    sizes = size_list(XLA_SIZES) if sizes is None else sizes
    _write(timed.xla(described, named or tuple(timed.OPCODES), sizes, times, kind == "xla-iota"), out)


def _choices(
    described: Scenario,
    like: Request,
    collectives: tuple[Collective, ...],
    ends: tuple[int | None, int],
    out: Path | None,
) -> None:
    import json

    from tuner.answers.exports.choices import choices
    from tuner.base.records import versioned

    requests = options.runnable({"": Selection(described.communicator())}, collectives, like)
    found = choices(described, requests, *ends)
    if out is None:
        print_json(found)
    else:
        write_text(out, json.dumps(versioned(found), indent=1) + "\n")


def _compiled(described: Scenario, like: Request, collectives: tuple[Collective, ...], out: Path | None) -> None:
    from tuner.answers.exports.choices import compiled

    if out is None:
        raise BadInput("compiled is a binary file: name the file to write with --out FILE")
    requests = options.runnable({"": Selection(described.communicator())}, collectives, like)
    write_bytes(out, compiled(described, requests))


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)


MOST_SCHEDULED = 16_384  # ranks: a file of so many has hundreds of megabytes


def _scheduled(
    described: Scenario, function: Collective | PeerCall, size: int, call: Request, root: int, ends: tuple[int, int]
) -> "Schedule":
    """The schedule of a call of ``size`` bytes; ``ends`` are the rank and the peer of a send or receive."""
    from tuner.answers import alone
    from tuner.answers.exchanges import ExchangeQuery
    from tuner.emulator.p2p.plan import POINT_TO_POINT

    if described.ranks > MOST_SCHEDULED:
        raise BadInput(f"schedules are written for up to {MOST_SCHEDULED:,} ranks, not for {described.ranks:,}")
    if root and function not in (*ROOTED, PeerCall.Gather, PeerCall.Scatter):
        raise BadInput(f"--root: {function.name} has no root; valid for {ROOTED_WORDS}")
    if ends != (0, 1) and function not in POINT_TO_POINT:
        raise BadInput(f"--rank and --peer only apply to send and recv; all ranks take part in {function.name}")
    if isinstance(function, Collective):
        return alone.of_collective(described, Request(function, call.dtype, call.op), size, root)
    ends = ends if function in POINT_TO_POINT else (0, root)
    return alone.of_exchange(described, ExchangeQuery(function, [size], call.dtype, *ends))


def _write_schedule(made: "Schedule", kind: str, wire: bool, out: Path | None) -> None:
    from tuner.answers.exports import schedules

    if wire and kind == "csv":
        raise BadInput("csv always has both bytes and wire_bytes: remove --wire")
    if kind == "chakra":
        if out is None:
            raise BadInput("chakra writes a file for each rank: name them with --out")
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
    """Opens the output file or standard output, to be written piece by piece, as a schedule may be larger than
    memory."""
    if out is None:
        yield sys.stdout
        return
    with replacing(out) as to, to.open("w", encoding="utf-8", newline="\n") as file:
        yield file
