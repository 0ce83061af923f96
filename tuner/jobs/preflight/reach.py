"""What a difference between ranks may reach: a choice, the sizes of messages, the network, or nothing."""

from enum import StrEnum

from tuner.release import Release
from tuner.release.variables import OF_THE_NETWORK, not_emulated


class Reach(StrEnum):
    """What a difference does. The words are those of the JSON."""

    parts = "ranks part"  # they choose differently at some sizes
    alike = "all choose otherwise alike"  # than without the difference
    speed = "speed only"  # the same choices at every size, with other times
    nothing = "nothing"
    messages = "message sizes"  # the choice is the same, and ranks cut it into messages of other sizes
    network = "network"  # ranks look for each other on different networks
    start = "the communicator fails at its start"
    exchange = "what ranks exchange at the start"  # in a form of each release's own, which none of these compares
    unknown = "not known"


# Each rank reads these for itself and cuts its data or sizes its buffers by them; peers go by their own.
# Source: computeBuffSizes, src/init.cc; calcCollChunking, src/enqueue.cc; ncclTopoComputeP2pChannels,
# src/graph/paths.cc; ncclTransportP2pSetup, src/transport.cc, v2.28.9-1.
OF_MESSAGES = frozenset(
    {
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_CHUNK_SIZE",
        "NCCL_NVLS_CHUNKSIZE",
        "NCCL_NVLSTREE_MAX_CHUNKSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PCI_CHUNKSIZE",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_P2P_LL_THRESHOLD",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
        "NCCL_NCHANNELS_PER_NET_PEER",
    }
)
# What rank 0 refuses at the start; the adapters themselves are compared.
OF_THE_START = frozenset({"NCCL_IGNORE_NET_MISMATCH", "NCCL_IGNORE_COLLNET_MISMATCH"})
# What these name is compared by content, or was applied to the adapters on record.
COMPARED_OTHERWISE = frozenset(
    {
        "NCCL_TUNER_PLUGIN",
        "NCCL_TUNER_TABLE",
        "NCCL_TUNER_CONFIG_FILE",
        "NCCL_TUNER_TABLE_SHA256",
        "NCCL_TUNER_STRICT",
        "NCCL_TUNER_STATS",
        "NCCL_TUNER_LIVE",
        "NCCL_TOPO_FILE",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_CONF_FILE",
        "NCCL_IB_HCA",
    }
)


def of_variable(name: str, nccl: Release) -> Reach | None:
    """What a variable reaches where the emulator need not be asked; None where it has to be."""
    if name in OF_MESSAGES:
        return Reach.messages
    if name in OF_THE_NETWORK:
        return Reach.network
    if name in OF_THE_START:
        return Reach.nothing
    if reaches_choice(name, nccl):
        return None
    return Reach.unknown if not_emulated(nccl, [name]) else Reach.nothing


def reaches_choice(name: str, nccl: Release) -> bool:
    """Whether the release's model, selection or search reads the variable."""
    return name in nccl.environment.known or name in nccl.environment.search
