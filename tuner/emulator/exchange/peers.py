"""How many channels sends and receives have, and the sizes of their chunks: what NCCL's init makes of links.

Source: ncclTopoComputeP2pChannels, src/graph/paths.cc; computeBuffSizes, src/init.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.base.names import Protocol
from tuner.base.numerics import ceil_div
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.buffers import step_bytes
from tuner.emulator.rules.schedule.batches import ARGUMENT_HEAD_BYTES, BATCH_BYTES
from tuner.machine.peer_links import PeerLinks

PER_NET_PEER = "NCCL_NCHANNELS_PER_NET_PEER"
TOGETHER = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH, and half of NCCL_MAX_WORK_ELEMENTS_P2P (src/include/device.h)


@dataclass(frozen=True, slots=True)
class PeerChannels:
    """NCCL's "p2p channels" and "p2p channels per peer", both powers of two, and the steps of the buffers in bytes."""

    channels: int
    per_peer: int
    chunk_bytes: int  # of Simple
    ll_chunk_bytes: int  # of the buffer, in which half of LL is flags
    ll_threshold_bytes: int
    forced_chunk_bytes: int  # NCCL_CHUNK_SIZE; 0: none
    ll_over_network: bool


def peer_channels(
    communicator: Communicator, links: Sequence[PeerLinks], shared: PeerChannels | None = None
) -> PeerChannels:
    """Those of a communicator; ``links``: of rank 0's kind of node, then of the others.

    ``shared``: those of the communicator whose resources it shares. ``NCCL_CHUNK_SIZE`` and the sizes of the buffers
    count as NCCL reads them.
    """
    number, data = communicator.environment.number, communicator.release.exchange
    own = links[0]
    first = min(communicator.channels, number("NCCL_MAX_P2P_NCHANNELS", communicator.release.limits.max_channels))
    first = max(first, number("NCCL_MIN_P2P_NCHANNELS", 1))
    first = first if shared is None else min(first, shared.channels)
    channels, per_peer = _powers_of_two(communicator, links, first)
    chunk = _chunk_bytes(communicator, own)
    return PeerChannels(
        channels=channels,
        per_peer=per_peer,
        chunk_bytes=chunk if shared is None else min(chunk, shared.chunk_bytes),
        ll_chunk_bytes=step_bytes(communicator, Protocol.LL),
        ll_threshold_bytes=number("NCCL_P2P_LL_THRESHOLD", data.ll_threshold_bytes),
        forced_chunk_bytes=number("NCCL_CHUNK_SIZE", 0),
        ll_over_network=number("NCCL_NET_SHARED_BUFFERS", -2) == 0 or number("NCCL_ALLOC_P2P_NET_LL_BUFFERS", 0) == 1,
    )


def _powers_of_two(communicator: Communicator, links: Sequence[PeerLinks], first: int) -> tuple[int, int]:
    data = communicator.release.exchange
    most = _most(communicator)
    channels = min(_power_of_two(first), most)
    if data.least_of == "own_node":
        least = min([first, *_each_peer(communicator, links[:1], first)])
        return channels, min(_power_of_two(least), channels) if data.planner == "rounds" else _power_of_two(least)
    least = min([communicator.release.limits.max_channels, *_each_peer(communicator, links, first)])
    per_peer = _power_of_two(least)
    if communicator.nodes == 1 or communicator.environment.optional(PER_NET_PEER) is not None:
        return channels, min(per_peer, channels)
    peers = communicator.ranks
    if data.max_peers:
        peers = communicator.environment.number("NCCL_P2P_MAX_PEERS", peers)
    while per_peer * ceil_div(peers, TOGETHER) > channels and per_peer > 1:
        per_peer //= 2
    return channels, per_peer


def _most(communicator: Communicator) -> int:
    """The most channels a kernel's arguments have room for a batch each."""
    most = communicator.release.limits.max_channels
    if communicator.release.exchange.planner == "chunks":
        return _power_of_two(most)
    given = communicator.environment.optional("NCCL_WORK_ARGS_BYTES")
    if given is not None:
        most = min(most, (given - ARGUMENT_HEAD_BYTES) // BATCH_BYTES)
    return 1 << most.bit_length() - 1


def _each_peer(communicator: Communicator, links: Sequence[PeerLinks], first: int) -> Iterator[int]:
    """Channels of the pairs of GPUs that these nodes' ranks are in."""
    for node in links:
        if node.local_channels is not None:
            yield node.local_channels
        if communicator.nodes == 1:
            continue
        for adapters in node.adapters:
            yield _over_network(communicator, adapters, first)


def _over_network(communicator: Communicator, adapters: tuple[int, float], first: int) -> int:
    data, count = communicator.release.exchange, adapters[0]
    given = communicator.environment.number(PER_NET_PEER, -1)
    if given != -1 or data.net_channels == "two":
        return 2 if given == -1 else given
    if data.net_channels == "by_bandwidth":
        per_channel = communicator.environment.number("NCCL_P2P_PER_CHANNEL_NET_BW", int(data.channel_bandwidth_gbs))
        return max(count, ceil_div(int(adapters[1]), per_channel)) if count else 2
    few_ranks = 2 * communicator.ranks <= first * 4
    return max(count, 2 if few_ranks else 1)


def _chunk_bytes(communicator: Communicator, own: PeerLinks) -> int:
    number, data = communicator.environment.number, communicator.release.exchange
    if communicator.nodes > 1:
        blackwell_on_arm = communicator.cpu_arch == "arm64" and communicator.min_comp_cap >= 100
        times = data.net_chunks_of_arm_blackwell if blackwell_on_arm else 1
        chunk = times * number("NCCL_P2P_NET_CHUNKSIZE", data.net_chunk_bytes)
    elif own.all_nvlink:
        chunk = number("NCCL_P2P_NVL_CHUNKSIZE", data.nvlink_chunk_bytes)
    else:
        chunk = number("NCCL_P2P_PCI_CHUNKSIZE", data.pci_chunk_bytes)
    if not data.chunk_within_buffer:
        return chunk
    return min(chunk, step_bytes(communicator, Protocol.Simple))


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()
