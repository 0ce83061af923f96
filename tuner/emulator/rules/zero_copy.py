"""Who reads and writes the user's own buffers in a call, where they are registered: the switch, peers, adapters."""

from collections.abc import Callable
from enum import Enum

from tuner.base.errors import BadInput
from tuner.base.names import Buffers
from tuner.emulator.rules import registered
from tuner.emulator.rules.call import Call
from tuner.emulator.rules.heads import NetworkUse


class ZeroCopyPeer(Enum):
    """Whom a buffer is registered for; the value is NCCL's ``ncclRegBufferType`` as far as the device is told of it."""

    peers = 1
    switch = 2
    network = 4


def takers(call: Call, network: Callable[[], NetworkUse] | None) -> tuple[ZeroCopyPeer, ...]:
    """Zero-copy peers of a rank's call, which goes to other nodes so. BadInput without a topology.

    Source: ncclRegisterCollBuffers and ncclRegisterCollNvlsBuffers, src/register/coll_reg.cc, v2.28.9-1.
    """
    communicator = call.communicator
    if not call.rules.registered or call.request.buffers is Buffers.plain:
        return ()
    if communicator.nodes > 1 and communicator.environment.number(registered.CROSS_CLIQUE, 0):
        raise BadInput(
            f"{registered.CROSS_CLIQUE}: launches in full are emulated on plain buffers only; valid there: plain"
        )
    found = {
        ZeroCopyPeer.peers: registered.peers_take_buffers(call),
        ZeroCopyPeer.switch: registered.switch_takes_buffers(call),
        ZeroCopyPeer.network: registered.network_takes_buffers(call, network),
    }
    return tuple(taker for taker, takes in found.items() if takes)
