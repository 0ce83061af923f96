"""Graphs of a machine of the catalogue for every number of its GPUs, kept in its folder, so that answers are fast.

Needs no libnccl. What was searched before is remembered, so that it goes on where it was interrupted. With --libnccl
libnccl searches them, into a file that the golden tests compare with.

    python -m tests.scripts.search_graphs dgx-h100 --all
    python -m tests.scripts.search_graphs dgx-h100 --all --libnccl -o tests/golden/graphs/dgx-h100.toml
"""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import click

from tests.support.captured_graphs import capture
from tuner import release
from tuner.base.errors import BadInput, BadTopology
from tuner.base.files import check_writable, write_text
from tuner.graphs import SearchRequest, SearchResult, searched
from tuner.graphs.cached import rules_of
from tuner.machine import catalogue, graphs
from tuner.machine.catalogue import Machine
from tuner.machine.graphs import COLLNET_GRAPHS, WITH_COLLNET, Graph, GraphTable, Shape

Found = tuple[dict[str, Graph], float]


def find_all(machine: Machine, releases: Iterable[str]) -> GraphTable:
    """The machine's table of graphs with these releases searched anew; others that are in it stay.

    Shapes that NCCL refuses, or takes for several nodes, are left out.
    """
    kept = machine.graph_table
    found_graphs, net_gbs = dict(kept.graphs), dict(kept.net_gbs)
    alike: dict[str, list[str]] = {}
    for name in releases:
        alike.setdefault(rules_of(name), []).append(name)
    of_trays = [machine.gpus_per_node * trays for trays in machine.tray_counts]
    counts = [*of_trays, *range(machine.gpus_per_node, 0, -1)]  # the longest searches first
    shapes: list[Shape] = [(names[0], *shape) for names in alike.values() for shape in product(counts, (False, True))]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for (first, gpus, several), found in zip(shapes, pool.map(partial(of_shape, machine), shapes), strict=True):
            for name in alike[rules_of(first)]:
                shape = name, gpus, several
                found_graphs.pop(shape, None), net_gbs.pop(shape, None)
                if found is not None:
                    found_graphs[shape], net = found
                    if release.load(name).search.routing.net_gbs != "unknown":
                        net_gbs[shape] = net
    return GraphTable(machine.topology_sha256, found_graphs, net_gbs)


def of_shape(machine: Machine, shape: Shape) -> Found | None:
    """The graphs of one shape as :class:`GraphTable` has them, and the adapters' bandwidth; None for none."""
    nccl, gpus, several = shape
    try:
        plain, with_collnet = (
            searched(replace(_request(machine, gpus, several, variables), network_reduces=bool(variables)), nccl)
            for variables in ({}, {"NCCL_COLLNET_ENABLE": "1"})
        )
    except (BadInput, BadTopology):
        return None
    if plain.parts > 1:
        return None
    own = _with_channels(plain)
    for name, graph in _with_channels(with_collnet).items():
        if graph != own.get(name):
            own[name if name in COLLNET_GRAPHS else f"{name}{WITH_COLLNET}"] = graph
    return own, plain.net_gbs


def _with_channels(found: SearchResult) -> dict[str, Graph]:
    return {name: each.graph for name, each in found.graphs.items() if each.graph.channels}


def _request(machine: Machine, gpus: int, several: bool, variables: dict[str, str]) -> SearchRequest:
    """GPUs of a host, or of whole trays where the GPUs are more than one has."""
    environment, of_host = {**machine.environment, **variables}, min(gpus, machine.gpus_per_node)
    allowed = machine.peer_to_peer
    return SearchRequest(machine.topology_xml, of_host, several, environment, allowed, hosts=gpus // of_host)


@click.command()
@click.argument("name")
@click.option("--nccl", "releases", multiple=True, metavar="RELEASE", help="Release that searches; may be repeated.")
@click.option("--all", "every", is_flag=True, help="All releases that run there.")
@click.option("--libnccl", is_flag=True, help="Have libnccl search them, to compare with; into a file of its own.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file of --libnccl; releases that it has stay.")
def main(name: str, releases: tuple[str, ...], every: bool, libnccl: bool, out: Path | None) -> None:
    if every == bool(releases):
        raise click.UsageError("which releases? valid: --all, or --nccl RELEASE")
    if libnccl != (out is not None):
        raise click.UsageError("--libnccl and --out: one of them; valid: both, or none for the machine's folder")
    machine = catalogue.load(name)
    names = machine.releases if every else releases
    if out is not None:
        check_writable(out)
        for nccl in names:
            print(f"{name}, NCCL {nccl}", flush=True)
            capture(name, nccl, out)
    else:
        out = Path(str(catalogue.folder())) / machine.name / catalogue.GRAPHS_FILE
        write_text(out, graphs.to_json(find_all(machine, names)))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
