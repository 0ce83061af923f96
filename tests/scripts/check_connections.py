"""What NCCL notes of the connections that it really makes, against the emulator and the marks of the oracle.

    python -m tests.scripts.check_connections --seed a --communicators 30           every release that notes it
    python -m tests.scripts.check_connections --seed a --communicators 30 2.28.9

Random communicators connect over NCCL's own transports and proxies: rings by a first call, and all algorithms at once
(NCCL_RUNTIME_CONNECT=0). Of every rank it is compared whether it sends over another GPU (useNetPXN), whether adapters
reach GPU memory (useGdr), and which connections of its rings go over such adapters. Some of them call Ring and then
Tree, or Tree and then Ring. Exit code 1 where anything differs or a communicator could not be connected.
"""

import sys
import time
from collections.abc import Collection, Iterator
from random import Random

import click

from tests.support.connections import connections, marked
from tests.support.random_launches import DIFFERENT_LINKS, REACHING
from tuner import release
from tuner.base.errors import TunerError
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.cli.output import print_table
from tuner.emulator.connect.network import ORDER
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import NetworkUse
from tuner.machine import catalogue
from tuner.oracle.messages import RankConnections
from tuner.scenario import Scenario
from tuner.scenario.p2p import network_of

WITH_NETWORK = [name for name in release.names() if release.load(name).registration.network != "never"]
MOST_RANKS = 20  # each has threads of its own that poll
AT_ONCE, RING, RING_TREE, TREE_RING = "at once", "ring", "ring, tree", "tree, ring"
BY_COLLECTIVE = "allgather:ring;allreduce:tree"
CALLS = {"ring": Collective.AllGather, "tree": Collective.AllReduce}
NIC = 0x04  # NCCL_DIRECT_NIC, of the flags of a connection: src/include/device.h, v2.28.9-1


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(WITH_NETWORK), metavar="[RELEASE]...")
@click.option("--seed", default="", help="Other communicators.")
@click.option("--communicators", default=10, show_default=True, help="Of each release.")
def main(names: tuple[str, ...], seed: str, communicators: int) -> None:
    rows, differs = [], False
    for name in names or WITH_NETWORK:
        begun, equal, ranks, telling = time.monotonic(), 0, 0, 0
        for scenario, how in drawn(name, seed, communicators):
            try:
                found, compared, told = differences(scenario, how)
            except TunerError as error:
                found, compared, told = [f"not asked: {error}".splitlines()[0]], 0, False
            ranks, telling, equal = ranks + compared, telling + told, equal + (not found)
            differs |= bool(found)
            for each in found[:3]:
                click.echo(f"DIFFERS {scenario.title} {scenario.environment} {how}: {each}")
        click.echo(f"{name}: {communicators} communicators in {time.monotonic() - begun:.0f} s", err=True)
        rows.append((name, f"{equal}/{communicators}", ranks, telling))
    head = "release", "equal / connected", "ranks", "where adapters do not take buffers"
    print_table("connections that libnccl made", head, rows)
    sys.exit(1 if differs else 0)


def drawn(nccl: str, seed: str, communicators: int) -> Iterator[tuple[Scenario, str]]:
    """Nodes that are alike, two or more, and what connects them."""
    random, machines = Random(f"connections {seed} {nccl}"), catalogue.names()
    while communicators:
        name = random.choice((random.choice(machines), random.choice(DIFFERENT_LINKS)))
        machine, how = catalogue.load(name), random.choice((AT_ONCE, AT_ONCE, RING, RING_TREE, TREE_RING))
        gpus = random.choice((1, 2, random.randint(1, machine.gpus_per_node), machine.gpus_per_node))
        if nccl in machine.crashes or not machine.topology.nets or machine.trays or gpus > MOST_RANKS // 2:
            continue
        settings = dict(random.choice(({}, *REACHING)))
        settings |= {"NCCL_RUNTIME_CONNECT": "0"} if how == AT_ONCE else {"NCCL_ALGO": BY_COLLECTIVE}
        nodes = random.randint(2, max(2, min(5, MOST_RANKS // gpus)))
        scenario = Scenario(
            nccl, nodes, machine=name, gpus_per_node=min(gpus, machine.gpus_per_node), environment=settings
        )
        try:
            network_of(scenario.resolve(), 0)
            scenario.oracle_configuration()
        except TunerError:
            continue
        communicators -= 1
        yield scenario, how


def differences(scenario: Scenario, how: str) -> tuple[list[str], int, bool]:
    """What differs, how many ranks were compared, and whether adapters take the buffers of none."""
    resolved = scenario.resolve()
    later: Collection[Algorithm] = {AT_ONCE: ORDER, RING_TREE: (Algorithm.Tree,)}.get(how, ())
    ours = [network_of(resolved, rank, later) for rank in range(scenario.ranks)]
    calls = [] if how == AT_ONCE else how.split(", ")
    made = [(Request(CALLS[each], DataType.float32, Op.sum), 1024 * scenario.ranks) for each in calls]
    real = connections(scenario.oracle_configuration(), made)[-1]
    found = [
        f"rank {rank}: emulator {own}, libnccl {noted}"
        for rank, (own, noted) in enumerate(zip(ours, real, strict=True))
        if differ(own, noted)
    ]
    if how in (AT_ONCE, RING):
        marks = marked(scenario.oracle_configuration())
        found += [
            f"rank {rank}: marked {mark}, libnccl {noted}"
            for rank, (mark, noted) in enumerate(zip(marks, real, strict=True))
            if (mark.direct, mark.relayed) != (noted.direct, noted.relayed) or reach(mark, NIC) != reach(noted, NIC)
        ]
    return found, len(real), any(own.relayed or not own.direct for own in ours)


def differ(own: NetworkUse, noted: RankConnections) -> bool:
    """Whether the network is used otherwise; a ring that reaches no GPU's memory is not seen to reach the network."""
    if (own.direct, own.relayed) != (noted.direct, noted.relayed):
        return True
    return own.direct and own.reached != any(map(any, reach(noted, NIC)))


def reach(noted: RankConnections, flag: int) -> list[tuple[bool, bool]]:
    """By channel: whether the next rank, and the previous one, is reached so."""
    return [(bool(after & flag), bool(before & flag)) for after, before in noted.flags]


if __name__ == "__main__":
    main()
