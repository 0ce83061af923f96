"""Number of channels that sends and receives have, and the sizes of their chunks: what NCCL's init makes of links.

Source: ncclTopoComputeP2pChannels, src/graph/paths.cc; computeBuffSizes, src/init.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.base.numerics import as_size_t, ceil_div, int32
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.buffers import VARIABLES, buffer_bytes, step_bytes
from tuner.emulator.rules.schedule.batches import ARGUMENT_HEAD_BYTES, BATCH_BYTES, Batches
from tuner.machine.peer_links import PeerLinks

PER_NET_PEER = "NCCL_NCHANNELS_PER_NET_PEER"
PER_CHANNEL_BANDWIDTH = "NCCL_P2P_PER_CHANNEL_NET_BW"
# NCCL divides by an eighth of a chunk, and multiplies it by 32 in an int (addP2pToPlan, src/enqueue.cc, v2.28.9-1).
LEAST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = 8, (1 << 26) - 1
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
    """Channels of a communicator; ``links``: of rank 0's kind of node, then of the others.

    ``shared``: those of the communicator whose resources it shares. ``NCCL_CHUNK_SIZE`` and the sizes of the buffers
    count as NCCL reads them. BadInput for sizes with which NCCL divides by zero or never ends.
    """
    number, data = communicator.environment.number, communicator.release.exchange
    c_int, most = communicator.environment.c_int, communicator.release.limits.max_channels
    own = links[0]
    first = min(communicator.channels, c_int("NCCL_MAX_P2P_NCHANNELS", most))
    first = max(first, c_int("NCCL_MIN_P2P_NCHANNELS", 1))
    if data.planner == "chunks" and first > most:
        raise BadInput(f"NCCL_MIN_P2P_NCHANNELS={first}: NCCL {communicator.release.name} crashes; valid: up to {most}")
    first = first if shared is None else min(first, shared.channels)
    channels, per_peer = _powers_of_two(communicator, links, first)
    chunk = _chunk_bytes(communicator, own)
    return PeerChannels(
        channels=channels,
        per_peer=per_peer,
        chunk_bytes=chunk if shared is None else min(chunk, shared.chunk_bytes),
        ll_chunk_bytes=_checked(step_bytes(communicator, Protocol.LL), f"an eighth of {VARIABLES[Protocol.LL]}"),
        ll_threshold_bytes=number("NCCL_P2P_LL_THRESHOLD", data.ll_threshold_bytes),
        forced_chunk_bytes=_forced_chunk_bytes(communicator),
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
    if communicator.nodes == 1 or _given_per_net_peer(communicator) is not None:
        return channels, min(per_peer, channels)
    peers = communicator.ranks
    if data.max_peers and (said := communicator.environment.c_int("NCCL_P2P_MAX_PEERS", 0)) > 0:
        peers = min(said, peers)
    while per_peer * ceil_div(peers, TOGETHER) > channels and per_peer > 1:
        per_peer //= 2
    return channels, per_peer


def _most(communicator: Communicator) -> int:
    """The most channels a kernel's arguments have room for a batch each."""
    most = communicator.release.limits.max_channels
    if communicator.release.exchange.planner == "chunks":
        return _power_of_two(most)
    given = communicator.environment.number("NCCL_WORK_ARGS_BYTES", -1)
    most = min(most, as_size_t(given - ARGUMENT_HEAD_BYTES) // BATCH_BYTES)
    if most < 1:
        raise BadInput(Batches.TOO_SMALL)
    return 1 << most.bit_length() - 1


def _each_peer(communicator: Communicator, links: Sequence[PeerLinks], first: int) -> Iterator[int]:
    """Channels of the pairs of GPUs that these nodes' ranks are in."""
    for node in links:
        if node.local_channels is not None:
            yield node.local_channels
        if communicator.nodes == 1:
            continue
        given = _given_per_net_peer(communicator)
        if given is None:
            yield from (_over_network(communicator, adapters, first) for adapters in node.adapters)
        elif given >= 0:
            yield given


def _given_per_net_peer(communicator: Communicator) -> int | None:
    """NCCL_NCHANNELS_PER_NET_PEER, where it counts; below 0 it limits nothing."""
    given, counts = communicator.environment.optional(PER_NET_PEER), communicator.release.exchange.per_net_peer_counts
    if given is None or (counts == "but_minus_one" and given == -1) or (counts == "from_one" and given < 1):
        return None
    return given


def _over_network(communicator: Communicator, adapters: tuple[int, float], first: int) -> int:
    data, count = communicator.release.exchange, adapters[0]
    if data.net_channels == "two":
        return 2
    if data.net_channels == "by_bandwidth":
        per_channel = communicator.environment.number(PER_CHANNEL_BANDWIDTH, int(data.channel_bandwidth_gbs))
        if per_channel == 0:
            raise BadInput(f"{PER_CHANNEL_BANDWIDTH}=0: NCCL divides by it; valid: GB/s, 1 and more")
        return max(count, ceil_div(int(adapters[1]), per_channel)) if count else 2
    few_ranks = 2 * communicator.ranks <= first * 4
    return max(count, 2 if few_ranks else 1)


def _chunk_bytes(communicator: Communicator, own: PeerLinks) -> int:
    limits, data = communicator.release.limits, communicator.release.exchange
    if communicator.nodes > 1:
        blackwell_on_arm = communicator.cpu_arch == "arm64" and communicator.min_comp_cap >= 100
        times = data.net_chunks_of_arm_blackwell if blackwell_on_arm else 1
        variable, default = "NCCL_P2P_NET_CHUNKSIZE", data.net_chunk_bytes
    elif own.all_nvlink:
        times, variable, default = 1, "NCCL_P2P_NVL_CHUNKSIZE", data.nvlink_chunk_bytes
    else:
        times, variable, default = 1, "NCCL_P2P_PCI_CHUNKSIZE", data.pci_chunk_bytes
    chunk = times * communicator.environment.c_int(variable, default)
    if data.chunk_within_buffer and int32(chunk * limits.buffer_steps) > buffer_bytes(communicator, Protocol.Simple):
        chunk, variable = step_bytes(communicator, Protocol.Simple), f"an eighth of {VARIABLES[Protocol.Simple]}"
    return _checked(chunk, variable)


def _forced_chunk_bytes(communicator: Communicator) -> int:
    """NCCL_CHUNK_SIZE; 0: none."""
    if not (forced := communicator.environment.number("NCCL_CHUNK_SIZE", 0)):
        return 0
    return _checked(forced, "NCCL_CHUNK_SIZE")


def _checked(chunk: int, variable: str) -> int:
    if not LEAST_CHUNK_BYTES <= chunk <= LARGEST_CHUNK_BYTES:
        raise BadInput(f"{variable}: chunks of {chunk} bytes; valid: {LEAST_CHUNK_BYTES} to {LARGEST_CHUNK_BYTES}")
    return chunk


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()
