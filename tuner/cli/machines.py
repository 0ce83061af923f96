"""``nccl-tuner machines``: the catalogue."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.output import print_json, print_table
from tuner.machine import catalogue, gpus


@click.group(name="machines", invoke_without_command=True)
@options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """The machines known by name: their parts, topologies and graphs.

    \b
    nccl-tuner machines
    nccl-tuner machines show dgx-h100
    """
    if ctx.invoked_subcommand is not None:
        return
    records = [_listed(catalogue.load(name)) for name in catalogue.names()]
    if as_json:
        print_json(to_json(records))
    else:
        columns = ("name", "title", "GPUs", "compute capability", "NICs", "CPU")
        print_table(
            "Machines",
            columns,
            [(r.name, r.title, r.gpus_per_node, r.compute_capability, r.nics, r.cpu) for r in records],
        )


@command.command()
@click.argument("name")
@options.json_option
def show(name: str, as_json: bool) -> None:
    """Prints the topology XML of NAME, with the source of every fact.

    \b
    nccl-tuner machines show dgx-h100 > topology.xml
    """
    machine = catalogue.load(name)
    if as_json:
        sources = to_json(machine.sources)
        listed = to_json(_listed(machine))
        print_json({**listed, "notes": machine.notes, "sources": sources, "topology": machine.topology_xml})
    else:
        click.echo(machine.topology_xml, nl=False)


@command.command()
@click.argument("name")
@click.option("--nccl", "releases", metavar="RELEASE", multiple=True, help="Release that searches; may be repeated.")
@click.option("--all", "every", is_flag=True, help="All releases, one after the other.")
@options.json_option
def capture(name: str, releases: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Lets libnccl search the graphs of NAME for every number of GPUs and writes them into its folder.

    \b
    nccl-tuner machines capture dgx-h100 --nccl 2.28.9
    nccl-tuner machines capture dgx-h100 --all
    """
    from tuner.conformance.capture import capture as write_graphs

    if every == bool(releases):
        raise BadInput(f"which releases? valid: --all, or --nccl RELEASE ({', '.join(release.names())})")
    written = []
    crashes = catalogue.load(name).crashes
    for nccl in [each for each in release.names() if each not in crashes] if every else releases:
        start = time.monotonic()
        written.append({"machine": name, "nccl": nccl, "file": str(write_graphs(name, nccl))})
        click.echo(f"{name}, NCCL {nccl}: {time.monotonic() - start:.0f} s", err=True)
    if as_json:
        print_json(written)
    else:
        click.echo(f"wrote {written[-1]['file']}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@options.skeleton_options
@click.option("--nccl", metavar="RELEASE", help="NCCL release that completes it. [default: the newest known]")
@options.out_option("OUT.xml", "Write there, not to stdout.", "--output", required=False)
@options.json_option
def complete(
    file: Path,
    gpu: str | None,
    net_gbps: float | None,
    net_latency_us: float | None,
    nccl: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Lets libnccl complete FILE, a topology that only places devices, as it does on a machine with such GPUs.

    \b
    nccl-tuner machines complete ndv5-topo.xml --gpu h100-sxm --net-gbps 400 -o ndv5.xml
    """
    from tuner.oracle import search

    if gpu is None:
        raise BadInput(f"say what the GPUs of {file} are: --gpu MODEL; {one_of(gpus.names())}")
    name = release.load(nccl or release.names()[-1]).name
    completed = search.completed(file, gpu, net_gbps, net_latency_us, name)
    if out is not None:
        try:
            out.write_text(completed, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{out}: {error.strerror}") from None
    if as_json:
        print_json({"file": str(file), "gpu": gpu, "nccl": name, "topology": completed})
    elif out is None:
        click.echo(completed, nl=False)
    else:
        click.echo(f"wrote {out}")


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


def _listed(machine: catalogue.Machine) -> ListedMachine:
    topology = machine.topology
    capabilities = sorted(set(topology.compute_capabilities(machine.gpus_per_node)))
    return ListedMachine(
        name=machine.name,
        title=machine.title,
        gpus_per_node=machine.gpus_per_node,
        compute_capability=", ".join(f"{capability / 10:.1f}" for capability in capabilities),
        nics=len(topology.nets),
        cpu=" ".join(filter(None, (topology.cpu_vendor, topology.cpu_arch))),
        peer_to_peer_across_sockets=machine.peer_to_peer_across_sockets,
        environment=machine.environment,
    )
