"""NCCL's topology XML: a node's CPUs, GPUs and network adapters, as NCCL_TOPO_DUMP_FILE writes them."""

from tuner.machine.topology.reader import read
from tuner.machine.topology.records import Cpu, Gpu, Net, NvLink, Target, Topology

__all__ = ["Cpu", "Gpu", "Net", "NvLink", "Target", "Topology", "read"]
