"""``nccl-tuner export``: NCCL's picks and their times in the files that other programs read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.exports.timed import Times
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted

FORMATS = ("xla", "xla-iota", "choices", "compiled", "simai")


@click.command(name="export", cls=options.Command)
@options.under("SimAI", "--nvlink-gbs", "--nics-gbs")
@options.under("Sizes of choices", "--from", "--to")
@click.argument("collectives", nargs=-1, type=options.Named(Collective, "collective"), metavar="[COLLECTIVE]...")
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="Whose file.")
@click.option(
    "--bytes",
    "sizes",
    type=options.Sizes(),
    default="1K..1G*2",
    show_default=True,
    help="Sizes of xla, NCCL's nBytes.",
)
@click.option("--nvlink-gbs", type=float, help="simai: what NVLink carries of a GPU in one direction, in GB/s.")
@click.option("--nics-gbs", type=float, help="simai: the same of all adapters of a node together.")
@options.range_options
@options.communicator_options(tuner=True)
@options.call_options()
@options.time_options("nccl")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Instead of standard output.")
def command(
    collectives: tuple[Collective, ...],
    kind: str,
    sizes: list[int],
    nvlink_gbs: float | None,
    nics_gbs: float | None,
    low: int | None,
    high: int,
    call: options.CallOptions,
    times: "TimesWanted | None",
    out: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Writes NCCL's picks, or their times, as another program reads them. Each file says whose times it has.

    xla: XLA's collective performance table, a text proto (AllReduce, AllGather, ReduceScatter; float32); xla-iota the
    same for XLA that has the devices in iota_collective_device_list. choices: sizes and picks as JSON, of --from to
    --to; compiled: the same with times, as a binary file to look up in. simai: SimAI's table of ratios of one
    collective (AllReduce where none is named), for 1 to 128 nodes.

    \b
    nccl-tuner export --format xla --machine dgx-h100 --nodes 2 --out h100.pbtxt
    nccl-tuner export allreduce --format choices --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner export allreduce --format choices --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner export --format simai --machine dgx-h100 --nvlink-gbs 450 --nics-gbs 400 --time calibrated
    """
    described, wanted = communicator.scenario(), Times(times)
    if times is not None and times.beside_nccl:
        raise BadInput("--time both: an export has one; valid: --time nccl, --time calibrated")
    if kind in ("choices", "compiled"):
        if times is not None:
            raise BadInput(f"{kind}: picks with NCCL's own times; valid: without --time calibrated")
        like = call.request()
        if kind == "compiled":
            _compiled(described, like, collectives, out)
            return
        _choices(described, like, collectives, (low, high), out)
        return
    if call.buffers is not Buffers.plain or call.in_place:
        raise BadInput(f"{kind}: a table of times, which NCCL has of plain buffers; valid with --buffers: choices")
    if (call.dtype, call.op) != (DataType.float32, Op.sum):
        raise BadInput(f"{kind}: a table of float32 and sum; valid: without --dtype and --op")
    if kind == "simai":
        from tuner.answers.exports import timed

        if nvlink_gbs is None or nics_gbs is None:
            raise BadInput("simai: ratios to the links' bandwidths; valid with it: --nvlink-gbs and --nics-gbs")
        if len(collectives) > 1:
            raise BadInput(f"simai: {len(collectives)} collectives; valid: one")
        links = timed.LinkRates(nvlink_gbs, nics_gbs)
        text, whose = timed.table(described, (collectives or (Collective.AllReduce,))[0], links, wanted)
        click.echo(f"times {'; '.join(whose)}", err=True)  # the file has no place for it
        _write(text, out)
        return
    from tuner.answers.exports.timed import OPCODES, XlaTable

    _write(XlaTable(described, sizes, wanted, kind == "xla-iota").text(collectives or tuple(OPCODES)), out)


def _choices(
    described: Any, like: Request, collectives: tuple[Collective, ...], ends: tuple[int | None, int], out: Path | None
) -> None:
    import json

    from tuner.answers.exports.choices import choices
    from tuner.base.records import to_json

    requests = options.runnable({"": Selection(described.communicator())}, collectives, like)
    found = choices(described, requests, *ends)
    if out is None:
        print_json(found)
    else:
        write_text(out, json.dumps(to_json(found), indent=1) + "\n")


def _compiled(described: Any, like: Request, collectives: tuple[Collective, ...], out: Path | None) -> None:
    from tuner.answers.exports.choices import compiled

    if out is None:
        raise BadInput("compiled is a binary file; give it a name with --out FILE")
    requests = options.runnable({"": Selection(described.communicator())}, collectives, like)
    out.write_bytes(compiled(described, requests))


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
