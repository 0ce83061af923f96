"""The heads of a rank's node, which the chunks of NVLS and CollNet go by."""

from tuner.emulator.connect.records import Connected
from tuner.emulator.rules.heads import Heads, NetworkOf


def heads_of(connected: Connected, rank: int = 0, network: NetworkOf | None = None) -> Heads:
    """As a rank knows them; where there are none, one that is that rank."""
    own = connected.ranks[rank]
    direct = own.channels[0].direct
    return Heads(
        nvls=own.nvls[0].heads if own.nvls else 1,
        own_nvls=own.nvls[0].head if own.nvls else None,
        direct=direct.heads if direct else 1,
        own_direct=direct.head if direct else None,
        direct_depth=2 if direct and (direct.up or direct.down) else 1,
        network=network,
    )
