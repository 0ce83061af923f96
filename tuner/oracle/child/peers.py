"""Marks a rank's connections to peers of sends and receives as its transports would: over the network, or not.

NCCL asks of a connection what transport it has, and whether it has a buffer for LL. Whether ranks can reach each other
without the network, its own transports are asked; those of the network share one buffer, which is of Simple.
"""

import os
from collections.abc import Set

from tuner._native._sim import ffi
from tuner.oracle.child.memory import pointer, scalar
from tuner.oracle.child.world import Failure, World
from tuner.oracle.works import PeerOffsets

CONNECTION = 1  # of sends and receives; 0 is of collectives
LL = 0


def connect(world: World, rank: int, peers: Set[int]) -> None:
    """The connections to these peers in all channels of sends and receives."""
    start, comm = world.start, world.comms[rank]
    at, ring = start.peers, start.ring
    channels = scalar(comm, start.comm.members["p2pnChannels"])
    own_buffers = os.environ.get("NCCL_NET_SHARED_BUFFERS") == "0"  # ncclParamNetSharedBuffers, src/transport/net.cc
    network_has_ll = own_buffers or scalar(comm, start.comm.members["allocP2pNetLLBuffers"])
    for peer in sorted(peers - {rank}):
        by_network = not any(_reaches(world, transport, rank, peer) for transport in at.without_network)
        for number in range(channels):
            channel = comm + ring.channels + number * ring.channel_bytes
            record = pointer(pointer(channel + ring.peers) + peer * ffi.sizeof("void *"))
            for ends, transport in ((ring.send, at.network_send), (ring.receive, at.network_receive)):
                connector = record + ends + CONNECTION * at.connector_bytes
                _write(connector + at.transport, world.base + transport if by_network else 1)
                has_ll = network_has_ll if by_network else True
                _write(connector + at.buffers + LL * ffi.sizeof("void *"), int(has_ll))


def _write(address: int, value: int) -> None:
    ffi.cast("uintptr_t *", address)[0] = value


def _reaches(world: World, can_connect: int, rank: int, peer: int) -> bool:
    """What one of NCCL's transports says."""
    start, comm = world.start, world.comms[rank]
    at: PeerOffsets = start.peers
    function = ffi.cast("int (*)(int *, uintptr_t, void *, uintptr_t, uintptr_t)", world.base + can_connect)
    asked = comm if at.asks_communicator else pointer(comm + start.comm.members["topo"].offset)
    infos = pointer(comm + start.comm.members["peerInfo"].offset)
    answer = ffi.new("int *")
    result = function(answer, asked, ffi.NULL, infos + rank * at.info_bytes, infos + peer * at.info_bytes)
    if result:
        raise Failure(f"asking how rank {peer} is reached returned {world.error(result)}")
    return bool(answer[0])
