"""What the rules of times and launches look at: one kind of call with one algorithm and protocol."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import Float, f32, f64
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request, ring_steps
from tuner.machine.graphs import Graph
from tuner.release import Generation, Release
from tuner.release.environment import Environment
from tuner.release.schema import CapName, Hardware, Limits

if TYPE_CHECKING:
    from tuner.emulator.rules.resolved import Rules


class RuleCall:
    """A request on a communicator, with the algorithm and protocol that a rule computes for.

    ``algorithm`` and ``protocol`` are those of ``algo_proto``, ``rules`` and ``limits`` those of the release. The
    attributes of a call never change.
    """

    __slots__ = ("algo_proto", "algorithm", "communicator", "limits", "protocol", "request", "rules")

    def __init__(self, communicator: Comm, request: Request, algo_proto: AlgoProto) -> None:
        self.communicator, self.request, self.algo_proto = communicator, request, algo_proto
        self.algorithm, self.protocol = algo_proto
        self.rules: Rules = communicator.rules
        self.limits: Limits = communicator.release.limits

    @property
    def like_nvls(self) -> bool:
        """Whether the operation runs on the channels of NVLS."""
        return self.communicator.rules.nvls_kind(self.communicator, self.algorithm)

    @property
    def like_collnet(self) -> bool:
        """Whether the network takes part, so that every channel of the bound is used."""
        network = self.algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain)
        return network or (self.algorithm is Algorithm.NVLS and self.communicator.nodes > 1)

    @property
    def traffic_per_byte(self) -> int:
        """The bytes of traffic that NCCL counts for one byte of data; the flags of LL count, too."""
        per_byte = self.request.traffic_per_byte(self.communicator.ranks)
        return per_byte * (self.limits.ll_traffic if self.protocol is Protocol.LL else 1)


class ModelPoint:
    """One cell of the latency and bandwidth tables, with what the rules derive from it.

    ``graph`` is the graph of the cell's algorithm. ``environment`` has the variables of the communicator, ``ranks`` and
    ``nodes`` are the numbers of its ranks and nodes, ``release`` is the NCCL release that it runs, and ``rules`` are
    that release's rules. The attributes of a cell never change.
    """

    __slots__ = (
        "algorithm",
        "collective",
        "communicator",
        "environment",
        "graph",
        "nodes",
        "protocol",
        "ranks",
        "release",
        "rules",
    )

    def __init__(self, communicator: Comm, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> None:
        self.communicator, self.collective = communicator, collective
        self.algorithm, self.protocol = algorithm, protocol
        self.release: Release = communicator.release
        self.rules: Rules = communicator.rules
        self.environment: Environment = communicator.environment
        self.graph: Graph = communicator.graphs[algorithm]
        self.ranks, self.nodes = communicator.ranks, communicator.nodes

    @property
    def steps(self) -> int:
        """Steps of a ring for this collective (nsteps)."""
        return ring_steps(self.collective, self.ranks)

    @property
    def gathers_or_scatters(self) -> bool:
        """Whether the collective is AllGather or ReduceScatter."""
        return self.collective in (Collective.AllGather, Collective.ReduceScatter)

    @property
    def local_ranks(self) -> Float:
        """Ranks per node, which NCCL stores as the float ``ppn``."""
        return f32(f32(self.ranks) / f32(self.nodes))

    def cap_gbs(self, name: CapName) -> np.float64:
        """A bandwidth cap for this communicator's generation and node count, a double in NCCL."""
        return self._cap(name, self.communicator.generation)

    @property
    def ll_cap_gbs(self) -> np.float64:
        """The cap of LL's bandwidth: on one node it depends on the GPU's generation, on several on the CPU's vendor."""
        if self.nodes == 1:
            return self.cap_gbs("ll")
        slower = self.communicator.table_cpu_vendor in ("AuthenticAMD", "mixed")
        return self._cap("ll", "ampere" if slower else "volta")

    def _cap(self, name: CapName, row: Generation) -> np.float64:
        column = min(self.nodes, 3) - 1
        return f64(self.release.cap_gbs[name][row][column])

    def hw_latency_us(self, where: str, algorithm: Algorithm | None = None) -> Float:
        """The latency of one step: ``where`` is "intra", "inter", or "here", which means inter if there are several
        nodes."""
        between = where == "inter" or (where == "here" and self.nodes > 1)
        # Only a path of NVLinks counts as NVLink; NVB, C2C and a single GPU (LOC) use the PCI row.
        hardware: Hardware = "net" if between else "nvlink" if self.graph.type_intra == "NVL" else "pci"
        chosen = self.algorithm if algorithm is None else algorithm
        for rule in self.rules.hw_latency_row:
            chosen = rule(self, hardware, chosen)
        return f32(self.release.hw_latency_us[hardware][chosen][self.protocol])


ROW_RULES: Registry[Callable[[ModelPoint, str, Algorithm], Algorithm]] = Registry()


@ROW_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ring_for_trees_on_power(point: ModelPoint, hardware: str, row: Algorithm) -> Algorithm:
    """On POWER, Tree/Simple has Ring's latency inside a node, which favours trees."""
    power = point.communicator.table_cpu_arch == "ppc64" and hardware == "pci"
    tree = row is Algorithm.Tree and point.protocol is Protocol.Simple
    return Algorithm.Ring if power and tree else row
