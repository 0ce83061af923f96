"""NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it: a node's CPUs, GPUs and network adapters."""

from tuner.machine.topology.reader import read
from tuner.machine.topology.records import Cpu, Gpu, Net, NvLink, Target, Topology

__all__ = ["Cpu", "Gpu", "Net", "NvLink", "Target", "Topology", "read"]
