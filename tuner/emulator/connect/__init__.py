"""Channels across nodes: which rank talks to which over which adapter, as NCCL joins the graphs of all nodes."""

from tuner.emulator.connect.join import Across, Crossing, RingOrder, TreeOrder, connect, rings_and_trees, summarize
from tuner.emulator.connect.nodes import (
    ChannelAdapter,
    CollNetDirect,
    Connected,
    NodeKind,
    Nodes,
    NvlsChannel,
    RankChannel,
    RankView,
    Tree,
)

__all__ = [
    "Across",
    "ChannelAdapter",
    "CollNetDirect",
    "Connected",
    "Crossing",
    "NodeKind",
    "Nodes",
    "NvlsChannel",
    "RankChannel",
    "RankView",
    "RingOrder",
    "Tree",
    "TreeOrder",
    "connect",
    "rings_and_trees",
    "summarize",
]
