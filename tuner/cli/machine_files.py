"""``nccl-tuner machines complete`` and ``nearest``: what files of a cluster show of its nodes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json, print_table, say
from tuner.cli.release_names import release_option

if TYPE_CHECKING:
    from tuner.machine.listings.shape import Shape

MOST_SHOWN = 5


@click.command(cls=options.Command)
@click.argument("file", type=click.Path(path_type=Path))
@options.skeleton_options()
@click.option(
    "--cpu",
    metavar="CPU",
    help="The CPUs, where FILE does not say them: GenuineIntel:6:143, AuthenticAMD:143:49 as NCCL counts, or arm64.",
)
@click.option(
    "--pcie",
    metavar="GEN[xLANES]",
    help="All PCIe links, where FILE does not say their speed. [default: as the GPU model has, x16]",
)
@release_option("For earlier scripts: all releases complete it alike.")
@options.out_option("OUT.xml", "Write there, not to stdout.", former="--output", required=False)
@options.json_option
def complete(
    file: Path,
    gpu: str | None,
    net_gbps: float | None,
    net_latency_us: float | None,
    cpu: str | None,
    pcie: str | None,
    nccl: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Completes FILE as NCCL does on a machine with such GPUs; without libnccl. What FILE does not say is asked for.

    FILE is a topology that only places devices, what 'nvidia-smi topo -m' printed (with 'topo -mp' and 'topo -p2p r'
    after it, where you have them), or what 'lstopo --of xml' wrote.

    \b
    nccl-tuner machines complete ndv5-topo.xml --gpu h100-sxm --nic-gbps 400 -o ndv5.xml
    nccl-tuner machines complete topo.txt --gpu h100-sxm --nic-gbps 400 --cpu GenuineIntel:6:143 -o node.xml
    nccl-tuner machines complete lstopo.xml --gpu h100-sxm --nic-gbps 400 -o node.xml
    """
    from tuner.machine.listings import Given, completed

    name = release.load(nccl or release.names()[-1]).name
    made = completed(file, Given(gpu, net_gbps, net_latency_us, cpu, pcie))
    if out is not None:
        write_text(out, made.topology)
    if as_json:
        print_json({"file": str(file), "gpu": gpu, "nccl": name, "topology": made.topology, "notes": made.notes})
        return
    for note in made.notes:
        say(f"note: {note}", err=True)
    click.echo(made.topology if out is None else f"wrote {out}", nl=out is not None)


@click.command(cls=options.Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="MODEL", help="The GPU model, where FILE does not name it, such as h100-sxm.")
@options.json_option
def nearest(file: Path, gpu: str | None, as_json: bool) -> None:
    """The machines of the catalogue nearest to FILE: what agrees, what differs, and what FILE does not say.

    FILE is what 'nvidia-smi topo -m' printed, what 'lstopo --of xml' wrote, or a topology in NCCL's format. With
    --json every machine is listed, the nearest first.

    \b
    nccl-tuner machines nearest topo.txt --gpu h100-sxm
    """
    from tuner.machine.listings.nearest import ranked

    every = ranked(_shape(file, gpu))
    if as_json:
        print_json({"file": str(file), "machines": to_json(every)})
        return
    rows = [
        (near.machine, *(", ".join(said) or "-" for said in (near.agrees, (*near.differs, *near.others))))
        for near in every[:MOST_SHOWN]
    ]
    print_table(f"Machines nearest to {file}", ("machine", "agrees", "differs"), rows)
    click.echo(f"not known: {', '.join(every[0].unknown) or 'nothing'}")
    if every[0].differs:
        click.echo("none agrees in all that decides")


def _shape(file: Path, gpu: str | None) -> "Shape":
    from tuner.machine import gpus, skeleton
    from tuner.machine.listings import read
    from tuner.machine.listings.shape import of_listing, of_topology

    model = None if gpu is None else gpus.load(gpu)
    listing = read(file)
    if listing is not None:
        return of_listing(listing, model)
    if gpu is not None:
        raise BadInput(f"{file} is a topology; valid without --gpu, completed by 'nccl-tuner machines complete'")
    text, _ = skeleton.read_complete(file)
    return of_topology(text)
