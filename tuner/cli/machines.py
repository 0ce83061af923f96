"""``nccl-tuner machines``: the catalogue, and topologies, by a machine's name or completed from a node's output."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.answers import known
from tuner.answers.changes import changed
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.command import STANDARD_INPUT, Params, has, only
from tuner.cli.output import json_wanted, print_json, print_table, say, shown_as_json
from tuner.machine import catalogue
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.machine.listings import ListingAdditions
    from tuner.machine.listings.shape import NodeShape


MOST_SHOWN = 5


def _is_file(params: Params) -> bool:
    return params["what"] is not None and _file(params["what"]) is not None


RULES = (
    only("--like", "like", "gpu", when=has("like")),
    only("the list of machines (no NAME or FILE)", when=lambda params: not params["like"] and params["what"] is None),
    only(
        *("FILE", "what", "gpu", "net_gbps", "net_latency_us", "cpu", "pcie", "out"),
        when=lambda params: not params["like"] and _is_file(params),
    ),
    only("NAME", "what", "changes", "out", when=lambda params: bool(params["what"]) and not _is_file(params)),
)


@click.command(name="machines", cls=options.Command, rules=RULES)
@options.under(None, "--change")
@click.argument("what", required=False, metavar="[NAME|FILE]")
@options.of_nodes_option
@options.file_option(
    "--like",
    "FILE",
    "Show the machines most similar to FILE instead: what agrees, what differs, and what FILE does not say.",
)
@options.skeleton_options()
@options.option(
    "--cpu",
    "The CPU model, if FILE does not say it: arm64, or vendor, family and model as NCCL numbers them "
    "(GenuineIntel:6:143, AuthenticAMD:143:49).",
    metavar="CPU",
)
@options.option(
    "--pcie",
    "Speed of all PCIe links, if FILE does not say it. [default: x16 of the GPU model's generation]",
    metavar="GEN[xLANES]",
)
@options.out_option("OUT.xml", "Write the topology to this file, not to stdout.", required=False)
@options.json_option
def command(
    what: str | None,
    changes: tuple[str, ...],
    like: Path | None,
    gpu: str | None,
    net_gbps: float | None,
    net_latency_us: float | None,
    cpu: str | None,
    pcie: str | None,
    out: Path | None,
) -> None:
    """Lists the machines known by name; with NAME or FILE, prints its topology in NCCL's XML, with sources for a NAME.

    FILE is completed as NCCL would complete it on a machine with such GPUs, without libnccl; if facts are missing, the
    error names them. FILE is a topology that only says where devices are, what 'nvidia-smi topo -m' printed (with 'topo
    -mp' and 'topo -p2p r' after it, if you have them), or what 'lstopo --of xml' wrote.

    \b
    nccl-tuner machines
    nccl-tuner machines dgx-h100 > topology.xml
    nccl-tuner machines topo.txt --gpu h100-sxm --nic-gbps 400 --cpu GenuineIntel:6:143 -o node.xml
    nccl-tuner machines dgx-h100 --change sockets=1 > one-socket.xml
    nccl-tuner machines lstopo.xml --gpu h100-sxm --nic-gbps 400 -o node.xml
    nccl-tuner machines --like topo.txt --gpu h100-sxm
    """
    if like is not None:
        _print_nearest(like, gpu)
    elif what is None:
        _print_all()
    elif (file := _file(what)) is not None:
        from tuner.machine.listings import ListingAdditions

        _print_completed(file, ListingAdditions(gpu, net_gbps, net_latency_us, cpu, pcie), out)
    else:
        _print_topology(what, changes, out)


def _file(what: str) -> Path | None:
    """The path of a file; None for a machine's name. UnknownMachine for an unknown name."""
    if what == "-":
        return STANDARD_INPUT
    if catalogue.is_known(what):
        return None
    path = Path(what)
    if not path.exists() and path.name == what and not path.suffix[1:].isalpha():
        catalogue.load(what)  # which says what the name may mean
    return path


def _print_topology(name: str, changes: tuple[str, ...], out: Path | None) -> None:
    machine = catalogue.load(name)
    options.say_whose_parts([name])
    topology, record = machine.topology_xml, to_json(known.listed_machine(machine))
    if changes:
        topology = changed(Scenario(machine.releases[-1], 1, machine.name), changes).resolve().own.topology_xml
        record = {"name": machine.name, "changes": changes}
    else:
        record |= {"notes": machine.notes, "sources": to_json(machine.sources)}
    _deliver(topology, {**record, "topology": topology}, out)


def _print_completed(file: Path, added: "ListingAdditions", out: Path | None) -> None:
    from tuner.machine.listings import completed

    topology, notes = completed(file, added)
    if not json_wanted():
        for note in notes:
            say(f"note: {note}", err=True)
    record = {"file": str(file), "gpu": added.gpu, "nccl": release.names()[-1]}
    _deliver(topology, {**record, "topology": topology, "notes": notes}, out)


def _deliver(topology: str, record: Mapping[str, object], out: Path | None) -> None:
    """Writes the topology into a file and prints a line about it, or prints the topology; with --json, prints the
    record."""
    if out is not None:
        write_text(out, topology)
    if json_wanted():
        print_json(record)
    elif out is not None:
        click.echo(f"wrote {out}")
    else:
        click.echo(topology, nl=False)


def _print_nearest(file: Path, gpu: str | None) -> None:
    """Prints the machines of the catalogue that are most similar to FILE: what agrees, what differs, and what FILE does
    not say."""
    from tuner.machine.listings.complete import ranked

    every = ranked(_shape(file, gpu))
    if shown_as_json({"file": str(file), "machines": every}):
        return
    rows = [
        (near.machine, *(", ".join(said) or "-" for said in (near.agrees, (*near.differs, *near.others))))
        for near in every[:MOST_SHOWN]
    ]
    print_table(f"Machines most similar to {file}", ("machine", "agrees", "differs"), rows)
    click.echo(f"{file} does not say: {', '.join(every[0].unknown) or 'nothing'}")
    if every[0].differs:
        click.echo("no machine agrees in everything that NCCL's choices depend on")


def _shape(file: Path, gpu: str | None) -> "NodeShape":
    from tuner.machine import gpus, skeleton
    from tuner.machine.listings import read
    from tuner.machine.listings.shape import of_listing, of_topology

    model = None if gpu is None else gpus.load(gpu)
    listing = read(file)
    if listing is not None:
        return of_listing(listing, model)
    if gpu is not None:
        raise BadInput(
            f"{file} is a topology: remove --gpu, or complete the topology first with 'nccl-tuner machines FILE'"
        )
    text, _ = skeleton.read_complete(file)
    return of_topology(text)


def _print_all() -> None:
    records = known.machines()
    if shown_as_json(records.records, "machines"):
        return
    columns = ("name", "title", "GPUs", "compute capability", "NICs", "CPU")
    rows = [(r.name, r.title, r.gpus_per_node, r.compute_capability, r.nics, r.cpu) for r in records]
    print_table("Machines", columns, rows)
