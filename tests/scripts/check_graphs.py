"""Our own search for channels against the live libnccl: every number, every channel's order, and the file it writes.

    python -m tests.scripts.check_graphs                       every release, a part of `make test-releases`
    python -m tests.scripts.check_graphs 2.18.1 --random 200   these, with so many random topologies each

Every machine with all and half of its GPUs on 1, 2 and 3 nodes; each variable of the search on two machines, others in
every release; random topologies, also of rare processors; adapters of two ports. Prints counts by release and what was
compared. Exit code 1 where anything differs.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import click

from tests.support.processors import PROCESSORS, with_processors
from tests.support.random_topologies import drawn
from tests.support.search_variables import ASSIGNMENTS
from tests.support.two_ports import HOW, MERGING, with_two_ports
from tuner import release
from tuner.base.errors import OracleFailed, TunerError
from tuner.base.names import PATHS_WITHOUT_WORD
from tuner.cli.output import print_table
from tuner.graphs import SearchRequest, graph_file, searched
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.search import ordered_graphs
from tuner.scenario.oracle_configuration import OracleConfiguration

KINDS = ("machines", "settings", "random", "processors", "adapters")


@dataclass(frozen=True)
class Case:
    kind: str
    title: str
    configuration: OracleConfiguration

    @property
    def request(self) -> SearchRequest:
        asked = self.configuration
        several, across = asked.nodes > 1, asked.peer_to_peer_across_sockets
        return SearchRequest(
            asked.topology, asked.gpus_per_node, several, dict(asked.env), across, network_reduces=asked.network_reduces
        )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--random", "topologies", type=int, default=20, show_default=True, help="Random topologies per release.")
@click.option("--seed", default="", help="Other topologies.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="These alone.")
def main(names: tuple[str, ...], topologies: int, seed: str, kinds: tuple[str, ...]) -> None:
    rows, differs = [], False
    for nccl in names or release.names():
        equal, asked = Counter[str](), Counter[str]()
        for case in cases(nccl, topologies, seed):
            if kinds and case.kind not in kinds:
                continue
            asked[case.kind] += 1
            why = difference(case)
            equal[case.kind] += why is None
            if why is not None:
                click.echo(f"DIFFERS {nccl} {case.title}: {why}")
        differs |= equal != asked
        rows.append((nccl, *(f"{equal[kind]}/{asked[kind]}" for kind in KINDS)))
        click.echo(f"{nccl}: {equal.total()} of {asked.total()} equal", err=True)
    print_table("graphs equal / compared with libnccl", ("release", *KINDS), rows)
    sys.exit(1 if differs else 0)


def cases(nccl: str, topologies: int, seed: str) -> Iterator[Case]:
    yield from of_machines(nccl)
    yield from with_settings(nccl)
    yield from at_random(nccl, topologies, seed)
    yield from of_processors(nccl, topologies, seed)
    yield from of_two_ports(nccl)


def of_machines(nccl: str) -> Iterator[Case]:
    for name in catalogue.names():
        machine = catalogue.load(name)
        if nccl in machine.crashes:
            continue
        for gpus in {machine.gpus_per_node, max(1, machine.gpus_per_node // 2)} & set(machine.gpu_counts):
            for nodes in (1, 2, 3):
                yield Case("machines", f"{nodes} x {name}, {gpus} GPUs", configuration(nccl, name, gpus, nodes))


def with_settings(nccl: str) -> Iterator[Case]:
    here = [name for name in catalogue.names() if nccl not in catalogue.load(name).crashes]
    start = release.names().index(nccl)  # other machines in every release
    for at, assignment in enumerate(ASSIGNMENTS, start=start):
        variable, _, value = assignment.partition("=")
        for name in (here[at % len(here)], here[(at + len(here) // 2) % len(here)]):
            plain = configuration(nccl, name, catalogue.load(name).gpus_per_node, 2)
            changed = replace(plain, env={**plain.env, variable: value})
            yield Case("settings", f"2 x {name}, {assignment}", changed)


def at_random(nccl: str, topologies: int, seed: str) -> Iterator[Case]:
    for number in range(topologies):
        node = drawn(f"{seed}{number} {nccl}")
        asked = node.oracle_configuration(nccl)
        yield Case("random", f"random topology {seed}{number}", asked)


def of_processors(nccl: str, topologies: int, seed: str) -> Iterator[Case]:
    """Random topologies, too, of POWER and Zhaoxin."""
    for number in range(topologies):
        node = drawn(f"{seed}{number} {nccl}")
        kind = PROCESSORS[number % len(PROCESSORS)]
        topology = with_processors(node.xml, kind, f"{seed}{number}")
        asked = replace(node, xml=topology).oracle_configuration(nccl)
        yield Case("processors", f"random topology {seed}{number} of {kind}", asked)


def of_two_ports(nccl: str) -> Iterator[Case]:
    """Machines whose adapters got a second port."""
    for name in ("dgx-h100", "dgx-1v", "pcie-l40s-4nic"):
        for how, (at, settings) in product(HOW, enumerate(MERGING)):
            plain = configuration(nccl, name, 2 + at % 2, 2)
            environment = {**plain.env, **settings}
            changed = replace(plain, topology=with_two_ports(plain.topology, how), env=environment)
            yield Case("adapters", f"2 x {name}, {plain.gpus_per_node} GPUs, {how}, {settings}", changed)


def configuration(nccl: str, name: str, gpus: int, nodes: int) -> OracleConfiguration:
    machine = catalogue.load(name)
    return OracleConfiguration(
        machine.topology_xml,
        nodes,
        gpus,
        nccl,
        machine.environment,
        network_reduces=True,
        peer_to_peer_across_sockets=machine.peer_to_peer_across_sockets,
    )


def difference(case: Case) -> str | None:
    """What differs first; None where nothing does, or where both refuse."""
    nccl = case.configuration.release
    try:
        result = searched(case.request, nccl)
        for part in range(1, result.parts):  # where NCCL fails in one of them, there is no communicator
            searched(replace(case.request, rank=result.part_of_rank.index(part)), nccl)
    except TunerError as error:
        return _refused_too(case, error)
    try:
        with Oracle(case.configuration, 600) as oracle:
            theirs, written = ordered_graphs(oracle), oracle.graph_xml()
    except OracleFailed as error:
        return f"libnccl failed: {error}"
    ours = {name: each for name, each in result.graphs.items() if each.graph.channels}
    for name in sorted(ours.keys() | theirs.keys()):
        # Of ring and tree NCCL goes on with as many channels as both have.
        if name in ("ring", "tree") and ours["ring"].graph.channels != ours["tree"].graph.channels:
            continue
        # Where NCCL takes a host for several nodes, it mixes their graphs, and the file alone has those of rank 0.
        if result.parts == 1 and ours.get(name) != theirs.get(name):
            return f"{name}: {ours.get(name)} here, {theirs.get(name)} in libnccl"
    if any({each.graph.type_intra, each.graph.type_inter} & set(PATHS_WITHOUT_WORD) for each in ours.values()):
        return None
    return None if graph_file.text(result.graphs, release.load(nccl).search.dump) == written else "the file of graphs"


def _refused_too(case: Case, refused: TunerError) -> str | None:
    try:
        Oracle(case.configuration, 600).close()
    except OracleFailed:
        return None
    return f"refused here alone: {refused}"


if __name__ == "__main__":
    main()
