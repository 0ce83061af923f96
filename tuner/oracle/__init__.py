"""The oracle: the real libnccl, run without a GPU in a child process on simulated hardware.

It answers what NCCL itself computes and picks, for one communicator: ``Oracle(Setup(...))``. Nothing here computes a
number of NCCL's; it asks, reads NCCL's own memory, and watches what NCCL launches.
"""

from tuner.oracle.api import Asked, Launched, Oracle
from tuner.oracle.facts import Graph, Tables
from tuner.oracle.groups import Call, LaunchedGroup
from tuner.setup import Host, Setup, Skeleton

__all__ = [
    "Asked", "Call", "Graph", "Host", "Launched", "LaunchedGroup", "Oracle", "Setup", "Skeleton", "Tables",
]
