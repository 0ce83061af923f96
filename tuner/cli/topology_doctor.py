"""``nccl-tuner machines diagnose``: what is wrong with a topology, what it costs, and its repair."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import to_json
from tuner.base.sizes import human_bytes
from tuner.cli import options
from tuner.cli.layout import width_to_fit
from tuner.cli.output import number, print_json, print_table
from tuner.cli.release_names import release_option

if TYPE_CHECKING:
    from tuner.answers.doctor.examine import Examination
    from tuner.answers.doctor.records import Finding

SIZES = (8, 64 << 10, 1 << 20, 64 << 20, 1 << 30)
MOST_CHANGES = 6  # of a finding that are shown; --json has all
WIDTH = 100  # of text, at most


@click.command(cls=options.Command)
@click.argument("file", type=click.Path(path_type=Path))
@options.skeleton_options()
@click.option("--like", metavar="MACHINE", help="The machine to hold it against. [default: the nearest, if any]")
@click.option(
    "--nodes", type=click.IntRange(1, 1 << 20), default=2, show_default=True, help="Nodes, for what it costs."
)
@release_option("Release, for what it costs. [default: the newest]")
@options.out_option("OUT.xml", "Write the repaired topology there.", required=False)
@options.json_option
@click.pass_context
def diagnose(
    ctx: click.Context,
    file: Path,
    gpu: str | None,
    net_gbps: float | None,
    net_latency_us: float | None,
    like: str | None,
    nodes: int,
    nccl: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Says what is wrong in FILE, a topology that NCCL dumped, what that costs, and repairs it.

    Parts are known by their PCI ids, and FILE is held against the nearest machine of the catalogue: switches and NUMA
    nodes that a virtual machine hides, PCIe links without speed or slower than usual, NVLinks fewer than the model has,
    GPUDirect RDMA off, adapters that NCCL takes for one, drops, or that no GPU is near. Each repair is a change that
    'nccl-tuner whatif' takes, too. Exit code 1: something is wrong, by physics, by the part's own data, by the other
    devices, or because the same machine has it otherwise; what is unlike another machine may be as it is.

    \b
    nccl-tuner machines diagnose node.xml -o repaired.xml
    nccl-tuner machines diagnose skeleton.xml --gpu h100-sxm --nic-gbps 400 --like azure-nd-h100-v5
    """
    from tuner.answers.doctor.examine import Asked, examine
    from tuner.emulator.request import Request

    name = release.load(nccl or release.names()[-1]).name
    asked = Asked(name, nodes, Request(Collective.AllReduce, DataType.float32, Op.sum), SIZES)
    seen = examine(str(file), _text(file, gpu, net_gbps, net_latency_us), like, asked)
    if out is not None:
        write_text(out, seen.topology)
    if as_json:
        print_json({**to_json(seen), "nccl": name, "nodes": nodes})
    else:
        _print(seen, f"{nodes} {'node' if nodes == 1 else 'nodes'}, NCCL {name}")
        if out is not None:
            click.echo(f"wrote {out}; NCCL reads it with NCCL_TOPO_FILE={out}")
    ctx.exit(0 if seen.sound else 1)


def _text(file: Path, gpu: str | None, net_gbps: float | None, net_latency_us: float | None) -> str:
    from tuner.machine import skeleton
    from tuner.machine.listings import Given, completed, read

    if gpu is None and (listing := read(file)) is not None:
        raise BadInput(f"{file}: {listing.tool} is no topology of NCCL; valid: what 'machines complete' makes of it")
    if gpu is not None:
        return completed(file, Given(gpu, net_gbps, net_latency_us)).topology
    return skeleton.read_complete(file)[0]


def _print(seen: "Examination", where: str) -> None:
    from tuner.answers.doctor.records import KINDS

    near = seen.nearness
    paragraph(
        f"{seen.file}: held against its parts alone, as no machine of the catalogue has as many such GPUs"
        if near is None
        else f"{seen.file}: held against {near.in_words}; not known: {', '.join(near.unknown) or 'nothing'}"
    )
    whole = seen.sizes[-1].busbw_gbs_after if seen.sizes else None
    for place, finding in enumerate(seen.findings, start=1):
        click.echo("")
        _print_finding(place, finding, whole, where.split(",")[0])
    click.echo("")
    if not seen.findings:
        click.echo("nothing is wrong")
        paragraph(f"looked for: {', '.join(KINDS)}")
    if seen.not_priced:
        paragraph(f"what it costs is not known: {seen.not_priced}")
    if seen.sizes:
        _print_sizes(seen, where)
    if seen.changes and seen.left:
        paragraph(f"left after the repair: {', '.join(dict.fromkeys(finding.kind for finding in seen.left))}")


def _print_finding(number: int, finding: "Finding", whole: float | None, nodes: str) -> None:
    severity = finding.severity if finding.unlike is None else f"{finding.severity} {finding.unlike}"
    paragraph(f"{number}. {severity}: {finding.kind}. {finding.says}", 3)
    if finding.changes:
        shown = " ".join(finding.changes[:MOST_CHANGES])
        more = len(finding.changes) - MOST_CHANGES
        what = "repair" if finding.unlike is None else "to be like it"
        paragraph(f"   {what}: {shown}{f' and {more} more (--json)' if more > 0 else ''}", 11)
        if finding.busbw_gbs_left is not None and whole is not None:
            size, left = human_bytes(SIZES[-1]), f"{finding.busbw_gbs_left:.1f} GB/s busbw"
            same = f"{finding.busbw_gbs_left:.1f}" == f"{whole:.1f}"
            costs = "nothing that NCCL predicts" if same else f"AllReduce of {size} at {left} if only this is left"
            paragraph(f"   costs on {nodes}: {costs}; {whole:.1f} without it", 10)
    if finding.do != "nothing":
        paragraph(f"   on the machine: {finding.do}", 19)


def _print_sizes(seen: "Examination", where: str) -> None:
    rows = [
        (
            human_bytes(one.bytes),
            f"{one.before.name} x{one.before.channels}",
            f"{one.after.name} x{one.after.channels}",
            number(one.busbw_gbs_before, 3),
            number(one.busbw_gbs_after, 3),
        )
        for one in seen.sizes
    ]
    columns = ("size", "pick now", "pick repaired", "busbw GB/s now", "busbw GB/s repaired")
    print_table(f"AllReduce on {where}, by NCCL's own prediction; x channels", columns, rows)


def paragraph(text: str, indent: int = 0) -> None:
    """Paragraphs no wider than the terminal; long changes are not broken."""
    click.echo(
        textwrap.fill(
            text,
            min(width_to_fit() or WIDTH, WIDTH),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
