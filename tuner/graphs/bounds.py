"""What bounds the searches for graphs of one system: types of paths, bandwidths, variables.

Source: ncclTopoCompute, src/graph/search.cc; ncclTopoGetGpuMinPath, ncclTopoGetGpuMaxPath, ncclTopoSplitNvLink,
src/graph/paths.cc, v2.28.9-1.
"""

from typing import Final

from tuner.base.numerics import f32
from tuner.graphs.system import Kind, System
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.search import LeastCapability

HOPPER = 90
ROWS: Final[tuple[tuple[LeastCapability, int], ...]] = (("blackwell", 100), ("hopper", HOPPER), ("any", 0))


class Bounds:
    """Bounds of the searches, the same for every graph of a system."""

    def __init__(self, system: System, nccl: Release, variables: Environment) -> None:
        self.system, self.rules = system, nccl.search.loop
        self.tries, self.types = nccl.search.tries, system.types
        self.gpus = len(system.gpus)
        capabilities = [gpu.compute_capability for gpu in system.gpus]
        nccl.check_capabilities(capabilities)
        self.capability = min(capabilities)
        self.cross_nic = variables.c_int("NCCL_CROSS_NIC", 2)
        steps = nccl.search.inter_gbs if system.several_nodes else nccl.search.intra_gbs
        row = next(row for row, least in ROWS if self.capability >= least and steps.get(row))
        self.steps = tuple(float(f32(gbs)) for gbs in steps[row])  # bandwidths of a channel, the highest first
        self._set_types()

    def _set_types(self) -> None:
        """The nearest and the farthest types that are tried."""
        types, several = self.types, self.system.several_nodes
        self.near_intra = types.LOC if self.gpus == 1 else types.NVL
        self.near_inter, self.far_intra, self.far_inter = types.PIX, types.SYS, types.SYS
        if self.rules.types == "fixed":
            return
        if self.gpus > 1:
            found = self._path_types(Kind.GPU)
            self.near_intra, self.far_intra = min([types.SYS, *found]), max([types.LOC, *found])
        if several:
            found = self._path_types(Kind.NET)
            self.near_inter, self.far_inter = min([types.SYS, *found]), max([types.LOC, *found])
            self.far_intra = self.far_inter
        if self.rules.any_adapter_before_hopper and self.capability < HOPPER:
            self.far_inter = types.SYS

    def _path_types(self, kind: Kind) -> list[int]:
        return [
            path.type
            for number, gpu in enumerate(self.system.gpus)
            for other, path in enumerate(gpu.paths.get(kind, ()))
            if kind is not Kind.GPU or number != other
        ]

    def split_nvlinks(self) -> bool:
        """Whether there are just two groups of GPUs that NVLinks join (ncclTopoSplitNvLink, paths.cc)."""
        domain = list(range(self.gpus))
        for number, gpu in enumerate(self.system.gpus):
            for peer in range(number + 1, self.gpus):
                if gpu.paths[Kind.GPU][peer].type == self.types.NVL:
                    domain[peer] = domain[number]
        return sum(domain.count(each) > 1 for each in range(self.gpus)) == 2
