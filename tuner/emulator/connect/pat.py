"""Whom PAT sends to: with one rank per node, ranks at every distance that is a power of two.

Source: ncclTransportPatConnect, src/transport/generic.cc, v2.28.9-1.
"""

from tuner.base.names import Algorithm
from tuner.emulator.communicator import Communicator


def peers(view: Communicator, rank: int) -> tuple[int, ...]:
    """The ranks 1, 2, 4 ... further up and down, around the end, below the number of ranks.

    Empty where the release has no PAT, or a node several ranks.
    """
    rows = view.release.rules.exists.values()
    if view.max_local_ranks > 1 or not any(Algorithm.PAT in algorithms for algorithms in rows):
        return ()
    distances = [1 << bit for bit in range((view.ranks - 1).bit_length())]
    return tuple(sorted({(rank + way) % view.ranks for distance in distances for way in (distance, -distance)}))
