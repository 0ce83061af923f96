"""The search for one graph after the other on one system.

Source: ncclTopoCompute, src/graph/search.cc, v2.28.9-1.
"""

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs.attempts import Attempts
from tuner.graphs.bounds import HOPPER, Bounds
from tuner.graphs.channels import ChannelSearch
from tuner.graphs.duplicate import duplicate
from tuner.graphs.graph_file import GraphFile
from tuner.graphs.system import System
from tuner.graphs.trial import Trial
from tuner.release import Release
from tuner.release.environment import Environment

MAY_CROSS = (Pattern.Ring, Pattern.BalancedTree, Pattern.SplitTree)
NO_NET = -1
FALLBACK_GBS = float(f32(0.1))


class Loop:
    """Searches graphs; each leaves the links as rounded as NCCL leaves them to the next."""

    def __init__(self, system: System, nccl: Release, variables: Environment, file: GraphFile | None = None) -> None:
        self.system, self.rules, self.variables, self.file = system, nccl.search.loop, variables, file
        self.bounds = Bounds(system, nccl, variables)
        self.channels = ChannelSearch(system, nccl, variables)
        self.gpus = len(system.gpus)

    def compute(self, best: Trial, number: int | None = None) -> None:
        """Searches the graph that ``best`` asks for, and writes it there; or takes it from the file, by its id."""
        allowed = self.bounds.cross_nic if len(self.system.nets) > 1 and best.pattern in MAY_CROSS else 0
        best.cross_nic = 1 if allowed == 1 else 0
        if self.rules.forced_crossing == "tried_first":
            best.cross_nic = 1 if self.bounds.cross_nic == 1 else 0
            allowed = 2 if allowed else 0
        best.type_intra, best.type_inter = self.bounds.near_intra, self.bounds.near_inter
        first_same = best.same_channels = best.pattern is not Pattern.NVLS
        if self._in_file(best, number):
            return
        if best.pattern is Pattern.NVLS and (not self.system.switched or self.bounds.capability < HOPPER):
            return
        self._bound_channels(best)
        Attempts(self.bounds, self.channels, best, allowed, first_same).run()
        if best.channels == 0 and not best.in_network and best.pattern is not Pattern.NVLS:
            self._fall_back(best)
        if self.rules.duplicate != "before_raising":
            by_generation = self.rules.duplicate == "at_the_end_by_generation"
            duplicate(best, self.bounds.capability, by_generation)

    def _in_file(self, best: Trial, number: int | None) -> bool:
        if self.file is None or number is None:
            return False
        return self.file.fill(best, number, self.system, self.variables)

    def _bound_channels(self, best: Trial) -> None:
        rules, several = self.rules, self.system.several_nodes
        if best.pattern is Pattern.NVLS and rules.nvls_heads_limited:
            best.max_channels = min(rules.most_nvls_heads or self.gpus, self.gpus)
        if best.pattern is Pattern.CollNetDirect:
            best.max_channels = min(rules.most_direct_heads or self.gpus, self.gpus)
        nvls = best.pattern is Pattern.NVLS
        if self.gpus == 1 and best.pattern is not Pattern.Ring:
            best.pattern, nvls = Pattern.Tree, False
        if nvls and not several:
            if not rules.nvls_heads_limited:
                best.max_channels = self.gpus
            best.min_channels = best.max_channels
        split = rules.two_rings_on_split_nvlinks and self.bounds.split_nvlinks()
        if best.pattern is Pattern.Ring and split and best.min_channels == 1 and best.max_channels >= 2:
            best.min_channels = 2

    def _fall_back(self, best: Trial) -> None:
        """One channel through the GPUs in their order."""
        best.intra, best.channels = [list(range(self.gpus))], 1
        best.bw_intra = best.bw_inter = FALLBACK_GBS
        best.type_intra = best.type_inter = self.bounds.types.SYS
        best.inter = [[0, 0]]
        if not self.rules.fallback_nets:
            return
        nets = [self.channels.nets.listed(-1, gpu)[:1] if self.system.nets else [] for gpu in (0, self.gpus - 1)]
        best.inter = [[self.system.nets[net[0]].id if net else NO_NET for net in nets]]
        if NO_NET in best.inter[0]:
            best.inter, best.bw_inter, best.type_inter = [[NO_NET, NO_NET]], 0.0, self.bounds.types.DIS
