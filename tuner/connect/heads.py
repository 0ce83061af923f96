"""The heads of a rank's node, which the chunks of NVLS and CollNet go by."""

from collections.abc import Iterator

from tuner.connect.records import Connected
from tuner.emulator.rules.heads import Heads, RingWay


def heads_of(connected: Connected, rank: int = 0) -> Heads:
    """As a rank knows them; where there are none, one that is that rank."""
    own = connected.ranks[rank]
    direct = own.channels[0].direct
    return Heads(
        nvls=own.nvls[0].heads if own.nvls else 1,
        own_nvls=own.nvls[0].head if own.nvls else None,
        direct=direct.heads if direct else 1,
        own_direct=direct.head if direct else None,
        direct_depth=2 if direct and (direct.up or direct.down) else 1,
        ring_ways=frozenset(_ring_ways(connected, rank)),
    )


def _ring_ways(connected: Connected, rank: int) -> Iterator[RingWay]:
    node_of = connected.node_of_rank
    for channel in connected.ranks[rank].channels:
        for neighbour, sends in ((channel.next, True), (channel.previous, False)):
            if channel.ring_adapter is not None and node_of[neighbour] != node_of[rank]:
                yield RingWay(channel.ring_adapter.id, sends, relayed=channel.ring_adapter.relay != rank)
