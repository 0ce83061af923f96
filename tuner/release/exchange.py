"""What a release's file says of sends and receives: named rules and numbers, table ``[exchange]``.

``tuner.emulator.p2p`` has what the names stand for.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """The table ``[exchange]``."""

    # What goes into a kernel: messages cut into chunks, each on one channel, in works of 16; or rounds of one send and
    # one receive each, whose parts are on neighbouring channels, in batches of 8.
    planner: Literal["chunks", "rounds"]
    # The order of peers: nodes near and far in turn, and the ranks of each; differences of node, then of rank, that
    # grow by one more each time; the same of groups of ranks, and every rank of a group.
    order: Literal["nodes_up_and_down", "growing_steps", "growing_steps_of_groups"]
    group_ranks: Literal["of_node", "fixed", "fixed_across_nodes"]  # in a group: a node's, or so many
    # Which channels: part by part as their numbers' bits are mirrored; or neighbours, from a mirrored first one on.
    spread: Literal["parts", "first_channel"]

    # Channels per peer over the network without NCCL_NCHANNELS_PER_NET_PEER: 2; as many as a GPU's adapters, and 2
    # where there are few ranks; as many as the adapters' bandwidth needs.
    net_channels: Literal["two", "by_adapters", "by_bandwidth"]
    # Which values of NCCL_NCHANNELS_PER_NET_PEER count; others are as if it was not set. Below 0 they limit nothing.
    per_net_peer_counts: Literal["all", "but_minus_one", "from_one"]
    least_of: Literal["own_node", "all_ranks"]  # whose links limit the channels per peer
    max_peers: bool  # NCCL_P2P_MAX_PEERS, or all ranks, share the channels
    nvb_counts_links: bool  # two hops of NVLink have as many channels as links, not two
    all_nvlink: Literal["nearest", "farthest"]  # the path between GPUs that says whether all reach each other by NVLink
    # Whether hosts that NVLink joins reach each other by it where they are nodes; "off": NCCL_MNNVL_ENABLE=0;
    # "where_used": domains are, and NCCL takes parts of them for nodes.
    fabric_reaches_hosts: Literal["never", "where_used", "unless_off", "always"]
    parts_share_memory: bool  # the nodes that one host is for NCCL reach each other by shared memory
    chunk_within_buffer: bool  # a chunk is no larger than a step of the buffer of Simple
    net_chunks_of_arm_blackwell: int  # how many times larger a network chunk is there

    # How many channels one message has
    fewer_for_many_ranks: Literal["always", "on_one_node", "for_small"]
    least_part_across_nodes: int  # parts of a chunk: a message has no channel for less
    ll_bytes_per: Literal["message", "channel_of_peer", "channel_used"]  # what NCCL_P2P_LL_THRESHOLD is of
    quarter_chunks: Literal["always", "simple"]  # of small messages over the network: whatever the protocol, or Simple

    # What runs together
    fused: Literal["by_step", "by_chunk"]  # when works begin anew every 8 steps of the order
    batches_of_near_rounds: bool  # only rounds of the same eight
    sweeps: Literal["any", "apart"]  # whether a batch may have messages of several sweeps over all peers
    resumes: bool  # the next kernel goes on where the order stopped as one was full, and not with the nearest peer

    channel_bandwidth_gbs: float  # NCCL_P2P_PER_CHANNEL_NET_BW
    net_chunk_bytes: int
    nvlink_chunk_bytes: int
    pci_chunk_bytes: int
    ll_threshold_bytes: int
    broadcasts_together: bool  # those of a group from several roots are one call, AllGatherV
    own_functions: bool  # ncclAlltoAll, ncclGather, ncclScatter
