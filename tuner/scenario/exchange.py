"""A scenario's sends and receives: the links of its nodes, and in which order a rank turns to its peers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.emulator.exchange.order import Order
from tuner.emulator.exchange.peers import PeerChannels, peer_channels
from tuner.emulator.exchange.situation import Situation
from tuner.machine.peer_links import PeerLinks

if TYPE_CHECKING:
    from tuner.scenario.domain import ResolvedDomain
    from tuner.scenario.node import ResolvedNode
    from tuner.scenario.part import ResolvedPart
    from tuner.scenario.resolved import ResolvedScenario


def situation(resolved: "ResolvedScenario", rank: int = 0) -> Situation:
    """What sends and receives of a rank go by.

    BadInput for a rank that there is none, for graphs that were dumped, as the links are not in them, and where it is
    not known which of its transports NCCL takes.
    """
    if any(kind.scenario.graphs is not None for kind in resolved.kinds):
        raise BadInput("--graphs: sends and receives go by the links of the topology; valid without it")
    communicator, ranks_of = resolved.view_of(rank), resolved.ranks_of
    _transports_known(resolved)
    order = Order(communicator, ranks_of, rank)
    links = _links(resolved, rank)
    channels = _channels(resolved, rank, links)
    return Situation(communicator, channels, order, links[0].joined_by_network, lambda: _rings(resolved, rank))


def _links(resolved: "ResolvedScenario", rank: int) -> list[PeerLinks]:
    """Those of the rank's node, then of other kinds of nodes."""
    from tuner.search.peer_links import peer_links

    several, kinds = sum(count for _, count in resolved.nodes) > 1, {id(node): node for node, _ in resolved.nodes}
    own = next(node for node, ranks in zip(_each(resolved), resolved.ranks_of, strict=True) if rank in ranks)
    others = [node for each, node in kinds.items() if each != id(own)]
    return [peer_links(node.for_search(several), resolved.release.name) for node in (own, *others)]


def _channels(resolved: "ResolvedScenario", rank: int, links: list[PeerLinks]) -> PeerChannels:
    made = resolved.scenario.members
    if made is None or not resolved.shares:
        return peer_channels(resolved.view_of(rank), links)
    of_whole = made.ranks[rank]
    whole = _channels(resolved.whole, of_whole, _links(resolved.whole, of_whole))
    return peer_channels(resolved.view_of(rank), links, whole)


def _transports_known(resolved: "ResolvedScenario") -> None:
    """BadInput where a release has ranks of two nodes reach each other other than by the network."""
    data = resolved.release.exchange
    if data.fabric_reaches_hosts and any(size > 1 for size in resolved.domains):
        raise BadInput(f"sends and receives in NVLink domains of hosts: not emulated in {resolved.release.name}")
    if data.parts_share_memory and resolved.views[0].splits_hosts:
        raise BadInput(
            f"sends and receives where NCCL takes a host for several nodes: not emulated in {resolved.release.name}"
        )


def _rings(resolved: "ResolvedScenario", rank: int) -> list[list[int]]:
    """The ranks of each ring, from one of them on."""
    views, rings = resolved.connected.ranks, []
    for channel in range(len(views[rank].channels)):
        ring = [rank]
        while (following := views[ring[-1]].channels[channel].next) != rank:
            ring.append(following)
        rings.append(ring)
    return rings


def _each(resolved: "ResolvedScenario") -> Iterator["ResolvedNode | ResolvedDomain | ResolvedPart"]:
    """Each of NCCL's nodes."""
    for node, count in resolved.nodes:
        for _ in range(count):
            yield node
