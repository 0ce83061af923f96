"""Our own channels across nodes against the live libnccl: every rank's neighbours, trees, heads and adapters.

    python -m tests.scripts.check_channels                  every release, a part of `make test-releases`
    python -m tests.scripts.check_channels 2.18.1 --all     these, with every machine in every shape

Each machine on some of 1, 2, 3 and 5 nodes with all and some of its GPUs (other shapes in each release), with variables
set, nodes that differ, random topologies. Prints, by release, which communicators are equal, and the channels of ranks
that were compared. Exit code 1 where anything differs.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import click

from tests.support.channels_across import count, differences
from tests.support.random_topologies import drawn
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.cli.output import print_table
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

NODES = (1, 2, 3, 5)
SETTINGS = (
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_MIN_NCHANNELS": "20"},
    {"NCCL_MAX_NCHANNELS": "1"},
    {"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "8"},
    {"NCCL_MAX_NCHANNELS": "5", "NCCL_MIN_NCHANNELS": "32"},
    {"NCCL_MIN_CTAS": "13", "NCCL_MAX_CTAS": "24"},
    {"NCCL_COLLNET_ENABLE": "1"},
    {"NCCL_COLLNET_ENABLE": "1", "NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "7"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_P2P_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NVLS_NCHANNELS": "7"},
    {"NCCL_NVLS_ENABLE": "0"},
)
MIXED = (
    (("dgx-h100", None, 1), ("dgx-h100", 4, 2)),
    (("dgx-h100", 8, 2), ("dgx-a100", None, 1), ("dgx-h100", 3, 1)),
    (("dgx-a100", 2, 1), ("dgx-b200", None, 1)),
    (("dgx-1v", None, 2), ("dgx-a100", 1, 3)),
    (("dgx-2", None, 1), ("dgx-a100", 4, 1)),
)
KINDS = ("machines", "settings", "mixed", "random")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--all", "everything", is_flag=True, help="Every machine in every shape.")
@click.option("--every", type=int, default=1, metavar="N", help="One of N cases alone, others in each release.")
@click.option("--random", "topologies", type=int, default=8, show_default=True, help="Random topologies per release.")
def main(names: tuple[str, ...], everything: bool, every: int, topologies: int) -> None:
    rows, differs = [], False
    for nccl in names or release.names():
        equal, asked, channels = Counter[str](), Counter[str](), 0
        with tempfile.TemporaryDirectory() as folder:
            of_release = list(cases(nccl, everything, topologies, Path(folder)))
            for kind, scenario in of_release[release.names().index(nccl) % every :: every]:
                found = compare(scenario)
                if found is None:
                    continue
                asked[kind] += 1
                equal[kind] += not found[1]
                channels += found[0]
                if found[1]:
                    click.echo(f"DIFFERS {nccl} {scenario.heading}: {len(found[1])}, first {found[1][0]}")
        differs |= equal != asked
        rows.append((nccl, *(f"{equal[kind]}/{asked[kind]}" for kind in KINDS), channels))
        click.echo(f"{nccl}: {equal.total()} of {asked.total()} equal, {channels} channels of ranks", err=True)
    print_table("communicators equal / compared with libnccl", ("release", *KINDS, "channels"), rows)
    sys.exit(1 if differs else 0)


def cases(nccl: str, everything: bool, topologies: int, folder: Path) -> Iterator[tuple[str, Scenario]]:
    """What is compared for a release, by kind."""
    turn = release.names().index(nccl)
    here = [name for name in catalogue.names() if nccl not in catalogue.load(name).crashes]
    for at, name in enumerate(here):
        shapes = list(product(NODES, sorted(catalogue.load(name).gpu_counts)))
        shapes = [(nodes, gpus) for nodes, gpus in shapes if nodes * gpus > 1]
        for nodes, gpus in shapes if everything else [shapes[(3 * turn + 5 * at) % len(shapes)]]:
            yield "machines", Scenario(nccl, nodes, machine=name, gpus_per_node=gpus)
    for at, settings in enumerate(SETTINGS, start=turn):
        for name in here if everything else ["dgx-h100" if at % 2 else here[at % len(here)]]:
            yield "settings", Scenario(nccl, 2 + at % 3 % 2, machine=name, collnet=True, environment=settings)
    yield "machines", Scenario(nccl, 16, machine="dgx-h100", gpus_per_node=1)
    for described in MIXED:
        if all(name in here for name, _, _ in described):
            own, *others = [Scenario(nccl, nodes, machine=name, gpus_per_node=gpus) for name, gpus, nodes in described]
            yield "mixed", replace(own, others=tuple(others))
    for number in range(topologies):
        node = drawn(f"{number} {nccl}")
        file = folder / f"{number}.xml"
        file.write_text(node.xml)
        if node.across and node.gpus * node.nodes > 1:
            yield (
                "random",
                Scenario(
                    nccl, node.nodes, topology=file, gpus_per_node=node.gpus, collnet=True, environment=node.environment
                ),
            )


def compare(scenario: Scenario) -> tuple[int, list[str]] | None:
    """How many channels of ranks there are, and what differs; None where it is refused here, or libnccl crashes."""
    try:
        ours = scenario.resolve().connected
    except BadInput:
        return None
    try:
        started = Oracle(scenario.oracle_configuration(), 600)
    except OracleFailed as error:
        click.echo(f"not compared, libnccl fails by itself: {scenario.heading}: {error}".splitlines()[0])
        return None
    with started as oracle:
        theirs = oracle.connected()
    return count(theirs), list(differences(ours, theirs))


if __name__ == "__main__":
    main()
