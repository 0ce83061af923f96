"""``nccl-tuner machines``: the catalogue."""

from typing import Any

import click

from tuner import machines
from tuner.cli.output import print_json, print_table


@click.group(name="machines", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """The machines known by name, and how their graphs are captured.

    \b
    nccl-tuner machines
    nccl-tuner machines show dgx-h100
    """
    if ctx.invoked_subcommand is not None:
        return
    records = [_record(machines.load(name)) for name in machines.names()]
    if as_json:
        print_json(records)
    else:
        columns = ("name", "title", "GPUs", "compute capability", "NICs", "CPU")
        print_table("Machines", columns, [
            (r["name"], r["title"], r["gpus_per_node"], r["compute_capability"], r["nics"], r["cpu"]) for r in records
        ])


@command.command()
@click.argument("name")
def show(name: str) -> None:
    """Prints the topology XML of NAME, with the source of every fact.

    \b
    nccl-tuner machines show dgx-h100 > topology.xml
    """
    click.echo(machines.load(name).topology_xml, nl=False)


@command.command()
@click.argument("name")
@click.option("--nccl", metavar="RELEASE", required=True, help="NCCL release that searches the graphs.")
def capture(name: str, nccl: str) -> None:
    """Lets libnccl search the graphs of NAME on every number of GPUs and writes them into its table.

    \b
    nccl-tuner machines capture dgx-h100 --nccl 2.28.9
    """
    from tuner.capture import capture as write_graphs

    click.echo(f"wrote {write_graphs(name, nccl)}")


def _record(machine: machines.Machine) -> dict[str, Any]:
    topology = machine.topology
    capabilities = sorted(set(topology.compute_capabilities(machine.gpus_per_node)))
    return {
        "name": machine.name,
        "title": machine.title,
        "gpus_per_node": machine.gpus_per_node,
        "compute_capability": ", ".join(f"{capability / 10:.1f}" for capability in capabilities),
        "nics": len(topology.nets),
        "cpu": f"{topology.cpu_vendor} {topology.cpu_arch}",
    }
