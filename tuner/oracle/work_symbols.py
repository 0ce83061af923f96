"""Where a libnccl has the structures of work and the functions of its transports."""

from tuner.oracle import symbols
from tuner.oracle.symbols import Symbols
from tuner.oracle.works import PeerOffsets, WorkStructs

_ALIGNMENT = {"P2p": 4, "Coll": 8, "RegColl": 8}  # of the elements of a work, up to 2.21 (src/include/device.h)


def work_structs(located: Symbols) -> WorkStructs:
    """The layouts that works are read with."""
    in_ring = "ncclWorkElemP2p" in located.works
    header = located.works["ncclWorkHeader"].size_bytes if in_ring else 0
    first = {name: -(-header // unit) * unit for name, unit in _ALIGNMENT.items()}
    without = frozenset(address for address, name in located.kernels.items() if name.startswith(symbols.SYMMETRIC))
    return WorkStructs(located.works, located.enumerations, in_ring, first, without)


def peers(located: Symbols) -> PeerOffsets:
    """The transports, in the order in which NCCL asks them, and what connections are marked with."""
    functions = located.functions
    transport = located.works["ncclTransport"]
    network = located.objects["netTransport"]
    return PeerOffsets(
        without_network=tuple(functions[f"{name}CanConnect"][0][0] for name in ("p2p", "shm")),
        asks_communicator=any(name.startswith("_Z13p2pCanConnectPiP8ncclComm") for name in functions),
        info_bytes=located.works["ncclPeerInfo"].size_bytes,
        network_send=network + transport.structs["send"],
        network_receive=network + transport.structs["recv"],
        connector_bytes=located.connector.bytes,
        transport=located.connector.members["transportComm"].offset,
        buffers=located.connector.members["conn.buffs"].offset,
    )
