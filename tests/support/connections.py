"""What NCCL notes of connections as it really makes them: over its own transports and proxies, on all ranks."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from random import Random

from tests.support.random_launches import DIFFERENT_LINKS, REACHING
from tuner import release
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.emulator.connect.network import ORDER
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import NetworkUse
from tuner.machine import catalogue
from tuner.oracle import bill, start
from tuner.oracle.messages import Connections, RankConnections, Read
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration
from tuner.scenario.p2p import network_of


def connections(
    configuration: OracleConfiguration, calls: Sequence[tuple[Request, int]], timeout_s: float = 120.0
) -> list[tuple[RankConnections, ...]]:
    """Connections of every rank after initialisation, and after each of ``calls`` (with NCCL's nBytes), on plain
    buffers.

    Errors: BadInput for nodes that differ, NVLink domains and releases up to 2.23, which note nothing of the network;
    those of :class:`tuner.oracle.api.Oracle`.
    """
    prepared = start.prepare(replace(configuration, without_tuner=True))
    if len(prepared.kinds) > 1 or configuration.domains:
        raise BadInput("connections: of nodes that are alike, without NVLink domains; each process reads one topology")
    child = start.launch_child(prepared, bill.PROGRAM)
    try:
        _check_notes_adapters(prepared)
        child.request(
            start.request(prepared, child.log, child.topologies, child.sysfs),
            timeout_s,
            f"connecting {configuration.ranks} ranks",
        )
        noted: list[tuple[RankConnections, ...]] = []
        for call in (None, *calls):
            if call is not None:
                request, size = call
                issued = bill.issued(request, size, configuration.ranks)
                child.request(issued, timeout_s, f"{request.collective.name} of {size} bytes")
            noted.append(child.request(Read.connections, timeout_s, "reading connections"))
    finally:
        child.close()
    return noted


def marked(configuration: OracleConfiguration, timeout_s: float = 120.0) -> tuple[RankConnections, ...]:
    """Connections of a communicator whose ranks are not connected, as the oracle marks it for registered buffers."""
    prepared = start.prepare(replace(configuration, without_tuner=True))
    child = start.launch_child(prepared)
    try:
        _check_notes_adapters(prepared)
        child.request(
            start.request(prepared, child.log, child.topologies, child.sysfs),
            timeout_s,
            f"initialising {configuration.ranks} ranks",
        )
        answer: Connections = child.request(Read.connections, timeout_s, "reading connections")
    finally:
        child.close()
    return answer


def _check_notes_adapters(prepared: start.Preparation) -> None:
    if not prepared.symbols.notes_adapters:
        raise BadInput(f"NCCL {prepared.library.release} registers no buffers for adapters; valid: 2.24.3 and later")


WITH_NETWORK = [name for name in release.names() if release.load(name).registration.network != "never"]
MOST_RANKS = 20  # each has threads of its own that poll
AT_ONCE, RING, RING_TREE, TREE_RING = "at once", "ring", "ring, tree", "tree, ring"
BY_COLLECTIVE = "allgather:ring;allreduce:tree"
CALLS = {"ring": Collective.AllGather, "tree": Collective.AllReduce}
NIC = 0x04  # NCCL_DIRECT_NIC, of the flags of a connection: src/include/device.h, v2.28.9-1


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
