"""``nccl-tuner machines``: the catalogue, and topologies that are completed or diagnosed."""

import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.answers.changes import changed
from tuner.base.errors import BadInput
from tuner.base.files import check_writable, write_text
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import json_form, to_json
from tuner.base.sizes import human_bytes
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.communicator_options import release_option
from tuner.cli.output import number, print_json, print_table, progress, say, verdict, width_to_fit
from tuner.machine import catalogue, graphs
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.doctor.examine import Examination
    from tuner.answers.doctor.records import Finding
    from tuner.machine.listings.shape import NodeShape


MOST_SHOWN = 5


@click.command(name="complete", cls=options.Command)
@click.argument("file", type=FILE)
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
def complete_command(
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
    from tuner.machine.listings import ListingAdditions, completed

    name = release.load(nccl or release.names()[-1]).name
    made = completed(file, ListingAdditions(gpu, net_gbps, net_latency_us, cpu, pcie))
    if out is not None:
        write_text(out, made.topology)
    if as_json:
        print_json({"file": str(file), "gpu": gpu, "nccl": name, "topology": made.topology, "notes": made.notes})
        return
    for note in made.notes:
        say(f"note: {note}", err=True)
    click.echo(made.topology if out is None else f"wrote {out}", nl=out is not None)


def _print_nearest(file: Path, gpu: str | None, as_json: bool) -> None:
    """The machines of the catalogue nearest to FILE: what agrees, what differs, and what FILE does not say."""
    from tuner.machine.listings.complete import ranked

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


def _shape(file: Path, gpu: str | None) -> "NodeShape":
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


SIZES = (8, 64 << 10, 1 << 20, 64 << 20, 1 << 30)
MOST_CHANGES = 6  # of a finding that are shown; --json has all
WIDTH = 100  # of text, at most


@click.command(name="diagnose", cls=options.Command)
@click.argument("file", type=FILE)
@options.skeleton_options()
@click.option("--like", metavar="MACHINE", help="The machine to hold it against. [default: the nearest, if any]")
@click.option(
    "--nodes", type=click.IntRange(1, 1 << 20), default=2, show_default=True, help="Nodes, for what it costs."
)
@release_option("Release, for what it costs. [default: the newest]")
@options.out_option("OUT.xml", "Write the repaired topology there.", required=False)
@options.json_option
@click.pass_context
def diagnose_command(
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
    'nccl-tuner diff' takes, too. Exit code 1: something is wrong, by physics, by the part's own data, by the other
    devices, or because the same machine has it otherwise; what is unlike another machine may be as it is.

    \b
    nccl-tuner machines diagnose node.xml -o repaired.xml
    nccl-tuner machines diagnose skeleton.xml --gpu h100-sxm --nic-gbps 400 --like azure-nd-h100-v5
    """
    from tuner.answers.doctor.examine import DoctorOptions, examine
    from tuner.emulator.request import Request

    name = release.load(nccl or release.names()[-1]).name
    asked = DoctorOptions(name, nodes, Request(Collective.AllReduce, DataType.float32, Op.sum), SIZES)
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
    from tuner.machine.listings import ListingAdditions, completed, read

    if gpu is None and (listing := read(file)) is not None:
        raise BadInput(f"{file}: {listing.tool} is no topology of NCCL; valid: what 'machines complete' makes of it")
    if gpu is not None:
        return completed(file, ListingAdditions(gpu, net_gbps, net_latency_us)).topology
    return skeleton.read_complete(file)[0]


def _print(seen: "Examination", where: str) -> None:
    from tuner.answers.doctor.records import KINDS, WRONG

    near = seen.nearness
    severities = Counter(finding.severity for finding in seen.findings)
    found = ", ".join(f"{count} {severity}" for severity, count in severities.items())
    click.echo(verdict(f"found: {found}" if found else "nothing is wrong", not severities[WRONG]))
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
            costs = f"AllReduce of {size} at {left} instead of {whole:.1f} if only this is left"
            paragraph(f"   costs on {nodes}: {'nothing by itself, as NCCL predicts it' if same else costs}", 10)
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
            min(width_to_fit(), WIDTH),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


@click.command(name="show", cls=options.Command)
@options.under(None, "--change")
@click.argument("name", required=False, metavar="[NAME]")
@options.of_nodes_option
@click.option(
    "--like",
    type=FILE,
    metavar="FILE",
    help="The machines nearest to FILE instead: what agrees, what differs, and what FILE does not say. It is what "
    "'nvidia-smi topo -m' printed, what 'lstopo --of xml' wrote, or a topology in NCCL's format.",
)
@click.option("--gpu", metavar="MODEL", help="The GPU model, where FILE does not name it, such as h100-sxm.")
@options.json_option
def show_command(name: str | None, changes: tuple[str, ...], like: Path | None, gpu: str | None, as_json: bool) -> None:
    """The machines known by name; of NAME the topology XML, with the source of every fact, after changes as it then is.

    \b
    nccl-tuner machines
    nccl-tuner machines show dgx-h100 > topology.xml
    nccl-tuner machines show dgx-h100 --change sockets=1 > one-socket.xml
    nccl-tuner machines show --like topo.txt --gpu h100-sxm
    """
    if (like is None and gpu is not None) or (like is not None and (name is not None or changes)):
        raise BadInput("--like FILE: the machines nearest to it; valid with it: --gpu, without NAME and --change")
    if changes and name is None:
        raise BadInput("--change: of which machine? valid: with NAME")
    if like is not None:
        _print_nearest(like, gpu, as_json)
    elif name is None:
        _print_all(as_json)
    elif changes:
        machine = catalogue.load(name)
        options.say_whose_parts([name])
        topology = changed(Scenario(machine.releases[-1], 1, machine.name), changes).resolve().own.topology_xml
        if as_json:
            print_json({"name": machine.name, "changes": changes, "topology": topology})
        else:
            click.echo(topology, nl=False)
    else:
        machine = catalogue.load(name)
        options.say_whose_parts([name])
        if as_json:
            sources = to_json(machine.sources)
            print_json(
                {
                    **to_json(_listed(machine)),
                    "notes": machine.notes,
                    "sources": sources,
                    "topology": machine.topology_xml,
                }
            )
        else:
            click.echo(machine.topology_xml, nl=False)


def _print_all(as_json: bool) -> None:
    records = [_listed(catalogue.load(name)) for name in catalogue.names()]
    if as_json:
        print_json(records)
        return
    columns = ("name", "title", "GPUs", "compute capability", "NICs", "CPU")
    rows = [(r.name, r.title, r.gpus_per_node, r.compute_capability, r.nics, r.cpu) for r in records]
    print_table("Machines", columns, rows)


@click.command(name="search", cls=options.Command)
@click.argument("name")
@release_option("Release that searches; may be repeated.", "releases", multiple=True)
@click.option("--all", "every", is_flag=True, help="All releases that run there.")
@click.option("--libnccl", is_flag=True, help="Have libnccl search them, to compare with; into a file of its own.")
@options.out_option(
    "FILE.toml",
    "The file of --libnccl to write; releases that it has stay. [default: NAME.graphs.toml]",
    required=False,
)
@options.json_option
def search_command(
    name: str, releases: tuple[str, ...], every: bool, libnccl: bool, out: Path | None, as_json: bool
) -> None:
    """Searches the graphs of NAME for every number of GPUs and keeps them in its folder, for fast answers later.

    Needs no libnccl. What was searched before is remembered, so that it goes on where it was interrupted.

    \b
    nccl-tuner machines search dgx-h100 --all
    nccl-tuner machines search dgx-h100 --all --libnccl -o tests/golden/graphs/dgx-h100.toml
    """
    machine = catalogue.load(name)
    start, names = time.monotonic(), _releases(machine, releases, every)
    if libnccl:
        from tuner.oracle.conformance.capture import capture

        file, of_machine = out or Path(f"{machine.name}.graphs.toml"), name
        check_writable(file)
        for nccl in names:
            progress(f"{name}, NCCL {nccl}")
            capture(name, nccl, file)
    elif out is not None:
        raise BadInput("--out: graphs go into the machine's folder; valid: with --libnccl")
    else:
        from tuner.graphs import cached

        file, of_machine = Path(str(catalogue.folder())) / machine.name / catalogue.GRAPHS_FILE, machine.name
        write_text(file, graphs.to_json(cached.find_all(machine, names)))
    if as_json:
        print_json([{"machine": of_machine, "nccl": nccl, "file": str(file)} for nccl in names])
    else:
        click.echo(f"wrote {file} in {time.monotonic() - start:.0f} s")


VERBS = {
    "show": "the machines known by name; of one its topology, or those nearest to a file",
    "complete": "a topology from what nvidia-smi, lstopo or a cloud say of a node",
    "diagnose": "what is wrong in a topology, what that costs, and its repair",
    "search": "graphs of a machine for every number of GPUs, kept for later",
}


@click.group(name="machines", cls=Group, verbs=VERBS, modules="machines", default="show", no_args_is_help=False)
def command() -> None:
    """The machines known by name, and topologies. 'machines' alone lists them.

    \b
    nccl-tuner machines
    nccl-tuner machines show dgx-h100
    """


def _releases(machine: catalogue.Machine, named: tuple[str, ...], every: bool) -> tuple[str, ...]:
    if every == bool(named):
        raise BadInput(f"which releases? valid: --all, or --nccl RELEASE ({', '.join(release.names())})")
    return machine.releases if every else tuple(release.load(name).name for name in named)


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of the catalogue as ``--json`` lists it; GPUs and adapters of a node."""

    name: str
    title: str
    gpus_per_node: int
    compute_capability: str
    nics: int
    cpu: str
    peer_to_peer_across_sockets: bool
    environment: Mapping[str, str]
    trays: int | None = field(default=None, metadata=json_form(optional=True))  # of a machine that is a NVLink domain


def _listed(machine: catalogue.Machine) -> ListedMachine:
    topology = machine.topology
    capabilities = sorted(set(topology.compute_capabilities(machine.gpus_per_node)))
    return ListedMachine(
        name=machine.name,
        title=machine.title,
        gpus_per_node=machine.gpus_per_node * (machine.trays or 1),
        compute_capability=", ".join(f"{capability / 10:.1f}" for capability in capabilities),
        nics=len(topology.nets) * (machine.trays or 1),
        cpu=" ".join(filter(None, (topology.cpu_vendor, topology.cpu_arch))),
        peer_to_peer_across_sockets=machine.peer_to_peer_across_sockets,
        environment=machine.environment,
        trays=machine.trays,
    )
