"""``nccl-tuner machines``: the catalogue."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from tuner import release
from tuner.answers.changes import changed
from tuner.base.errors import BadInput
from tuner.base.files import check_writable, write_text
from tuner.base.records import json_form, to_json
from tuner.cli import machine_files, options
from tuner.cli.lazy import Group
from tuner.cli.output import print_json, print_table
from tuner.cli.release_names import release_option
from tuner.cli.topology_doctor import diagnose
from tuner.machine import catalogue, graphs
from tuner.scenario import Scenario


@click.group(name="machines", cls=Group, invoke_without_command=True, former={"doctor": "machines diagnose"})
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
@options.under(None, "--change")
@click.argument("name")
@options.of_nodes_option
@options.json_option
def show(name: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Prints the topology XML of NAME, with the source of every fact; after changes as it then is.

    \b
    nccl-tuner machines show dgx-h100 > topology.xml
    nccl-tuner machines show dgx-h100 --change sockets=1 > one-socket.xml
    """
    machine = catalogue.load(name)
    options.say_whose_parts([name])
    if changes:
        topology = changed(Scenario(machine.releases[-1], 1, machine.name), changes).resolve().own.topology_xml
        if as_json:
            print_json({"name": machine.name, "changes": changes, "topology": topology})
        else:
            click.echo(topology, nl=False)
    elif as_json:
        sources = to_json(machine.sources)
        listed = to_json(_listed(machine))
        print_json({**listed, "notes": machine.notes, "sources": sources, "topology": machine.topology_xml})
    else:
        click.echo(machine.topology_xml, nl=False)


for each in (diagnose, machine_files.complete, machine_files.nearest):
    command.add_command(each)

releases_option = release_option("Release that searches; may be repeated.", "releases", multiple=True)
every_option = click.option("--all", "every", is_flag=True, help="All releases that run there.")


@command.command()
@click.argument("name")
@releases_option
@every_option
@options.json_option
def search(name: str, releases: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Searches the graphs of NAME for every number of GPUs and keeps them in its folder, for fast answers later.

    Needs no libnccl. What was searched before is remembered, so that it goes on where it was interrupted.

    \b
    nccl-tuner machines search dgx-h100 --all
    """
    from tuner.graphs import cached

    machine = catalogue.load(name)
    names = _releases(machine, releases, every)
    start = time.monotonic()
    file = Path(str(catalogue.folder())) / machine.name / catalogue.GRAPHS_FILE
    write_text(file, graphs.to_json(cached.find_all(machine, names)))
    if as_json:
        print_json([{"machine": machine.name, "nccl": nccl, "file": str(file)} for nccl in names])
    else:
        click.echo(f"wrote {file} in {time.monotonic() - start:.0f} s")


@command.command()
@click.argument("name")
@releases_option
@every_option
@options.out_option(
    "FILE.toml", "The file to write; releases that it has stay. [default: NAME.graphs.toml]", required=False
)
@options.json_option
def capture(name: str, releases: tuple[str, ...], every: bool, out: Path | None, as_json: bool) -> None:
    """Has libnccl search the graphs of NAME for every number of GPUs and writes them to a file, to compare with.

    \b
    nccl-tuner machines capture dgx-h100 --nccl 2.28.9
    nccl-tuner machines capture dgx-h100 --all -o tests/golden/graphs/dgx-h100.toml
    """
    from tuner.oracle.conformance.capture import capture as write_graphs

    machine = catalogue.load(name)
    file, written = out or Path(f"{machine.name}.graphs.toml"), []
    check_writable(file)
    for nccl in _releases(machine, releases, every):
        start = time.monotonic()
        write_graphs(name, nccl, file)
        written.append({"machine": name, "nccl": nccl, "file": str(file)})
        click.echo(f"{name}, NCCL {nccl}: {time.monotonic() - start:.0f} s", err=True)
    if as_json:
        print_json(written)
    else:
        click.echo(f"wrote {file}")


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
