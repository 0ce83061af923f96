"""Searches the graphs of one system, one after the other.

Source: ncclTopoCompute, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tuner.base.names import Pattern
from tuner.base.numerics import ceil_div, f32
from tuner.graphs.channels import ChannelSearch
from tuner.graphs.graph_file import GraphFile
from tuner.graphs.network_channels import DONE
from tuner.graphs.system import DeviceKind, System
from tuner.graphs.trial import Trial
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.search import StepsRow

HOPPER = 90
ROWS: Final[tuple[tuple[StepsRow, int], ...]] = (("blackwell", 100), ("hopper", HOPPER), ("any", 0))


class Bounds:
    """The bounds that all searches for graphs of a system have in common."""

    def __init__(self, system: System, nccl: Release, variables: Environment) -> None:
        self.system, self.rules = system, nccl.search.loop
        self.tries, self.types = nccl.search.tries, system.types
        self.gpus = len(system.gpus)
        capabilities = [gpu.compute_capability for gpu in system.gpus]
        self.capability = min(capabilities)
        self.cross_nic = variables.c_int("NCCL_CROSS_NIC", 2)
        steps = nccl.search.inter_gbs if system.several_nodes else nccl.search.intra_gbs
        row = next(row for row, least in ROWS if self.capability >= least and steps.get(row))
        if nccl.search.devices.is_rubin(self.capability):
            row = "rubin"
        # The bandwidths that are tried for a channel, the highest first
        self.steps = tuple(float(f32(gbs)) for gbs in steps[row])
        self._set_types()

    def _set_types(self) -> None:
        """Sets the nearest and the farthest path types that are tried."""
        types, several = self.types, self.system.several_nodes
        self.near_intra = types.LOC if self.gpus == 1 else types.NVL
        self.near_inter, self.far_intra, self.far_inter = types.PIX, types.SYS, types.SYS
        if self.rules.types == "fixed":
            return
        if self.gpus > 1:
            found = self._path_types(DeviceKind.GPU)
            self.near_intra, self.far_intra = min([types.SYS, *found]), max([types.LOC, *found])
        if several:
            found = self._path_types(DeviceKind.NET)
            self.near_inter, self.far_inter = min([types.SYS, *found]), max([types.LOC, *found])
            self.far_intra = self.far_inter
        if self.rules.any_adapter_before_hopper and self.capability < HOPPER:
            self.far_inter = types.SYS

    def _path_types(self, kind: DeviceKind) -> list[int]:
        return [
            path.type
            for number, gpu in enumerate(self.system.gpus)
            for other, path in enumerate(gpu.paths.get(kind, ()))
            if kind is not DeviceKind.GPU or number != other
        ]

    def split_nvlinks(self) -> bool:
        """Whether NVLinks join the GPUs into exactly two separate groups (ncclTopoSplitNvLink, paths.cc)."""
        domain = list(range(self.gpus))
        for number, gpu in enumerate(self.system.gpus):
            for peer in range(number + 1, self.gpus):
                if gpu.paths[DeviceKind.GPU][peer].type == self.types.NVL:
                    domain[peer] = domain[number]
        return sum(domain.count(each) > 1 for each in range(self.gpus)) == 2


AMPERE = 80


def duplicate(best: Trial, capability: int, by_generation: bool) -> None:
    """Lays every channel a second time and halves all bandwidths, if NCCL does that for GPUs of this compute
    capability."""
    if best.channels == 0 or best.pattern is Pattern.NVLS:
        return
    gbs = best.bw_intra
    if by_generation:
        if not ((capability <= AMPERE and gbs >= 25) or (capability <= HOPPER and gbs >= 50)):
            return
    elif gbs < 25 or (capability > AMPERE and gbs < 50 and best.channels > 4):
        return
    channels = min(best.channels * 2, best.max_channels)
    more = channels - best.channels
    best.intra[best.channels :] = [list(row) for row in best.intra[:more]]
    best.inter[best.channels :] = [list(row) for row in best.inter[:more]]
    factor = f32(ceil_div(channels, best.channels))
    best.bw_intra, best.bw_inter = float(f32(best.bw_intra) / factor), float(f32(best.bw_inter) / factor)
    best.channels = channels


class Attempts:
    """The searches for one graph.

    If a search finds too little, one of ``relaxations`` makes the request less strict. Each of them is a function that
    returns whether it changed the request.
    """

    def __init__(self, bounds: Bounds, channels: ChannelSearch, best: Trial, allowed: int, first_same: bool) -> None:
        self.bounds, self.channels, self.best, self.rules = bounds, channels, best, bounds.rules
        self.allowed = allowed  # the value of NCCL_CROSS_NIC, if the graph may cross adapters
        self.trial = best.copied()
        # Whether all channels have to be the same at first, after each change of types or bandwidths
        self.first_same = first_same
        self.unused = bounds.tries.all
        self.left = 0
        self.at = self._start()
        self._set_gbs()
        self.relaxations: Sequence[Callable[[], bool]] = (
            self._farther_gpus,
            self._farther_adapters,
            self._cross_adapters,
            self._split_to_simple,
            self._slower,
        )

    def _start(self) -> int:
        """The index of the first bandwidth that is tried."""
        bounds, system = self.bounds, self.bounds.system
        total = f32(system.total_gbs)
        not_ring = self.trial.pattern is not Pattern.Ring
        hardware = len(system.nodes[DeviceKind.DEV]) or bounds.gpus
        if bounds.rules.one_gpu_unbounded and bounds.gpus == 1:
            total = f32("inf")
        elif hardware > 1 and not_ring:
            total = f32(float(total) * (hardware * 1.0 / (hardware - 1)))
        return self._first(lambda gbs: not self._too_fast(gbs, total))

    def _too_fast(self, gbs: float, total: f32) -> bool:
        bounded = self.rules.total_bounds_start and f32(gbs) * f32(self.trial.min_channels) > total
        return gbs > self._most() or bool(bounded)

    def _most(self) -> float:
        system = self.bounds.system
        if self.rules.nvls_shares_start and self.trial.pattern is Pattern.NVLS and not system.several_nodes:
            return float(f32(system.max_gbs) / f32(self.bounds.gpus))
        return system.max_gbs

    def _first(self, fits: Callable[[float], bool]) -> int:
        steps = self.bounds.steps
        return next((at for at, gbs in enumerate(steps) if fits(gbs)), len(steps) - 1)

    def _set_gbs(self) -> None:
        self.trial.bw_intra = self.trial.bw_inter = self.bounds.steps[self.at]

    def run(self) -> None:
        """Makes both passes of the search.

        The first relaxes the request until a graph is good enough, or nothing is left to relax. The second raises the
        requested bandwidth.
        """
        while not self._searched_to_the_end():
            if not self._relax():
                break
        self._begin_raising()
        while self._raise():
            self._search()

    def _search(self) -> None:
        tries = self.bounds.tries.same_channels if self.trial.same_channels else self.bounds.tries.one
        self.unused -= tries
        self.left = self.channels.search(self.trial, self.best, tries)

    def _searched_to_the_end(self) -> bool:
        self._search()
        return self._enough()

    def _enough(self) -> bool:
        best = self.best
        reached = f32(best.channels) * f32(best.bw_inter) >= f32(self.bounds.system.total_gbs)
        return self.left == DONE or bool(reached)

    def _relax(self) -> bool:
        """Relaxes the request by one step. Returns False if nothing is left to try."""
        bounds, trial, best = self.bounds, self.trial, self.best
        cpu = bounds.system.cpus[0]
        between_amd = cpu.vendor == "AuthenticAMD" and trial.type_intra == bounds.types.SYS
        if trial.same_channels and not (self.rules.same_channels_on_amd and between_amd):
            trial.same_channels = False
            return True
        trial.same_channels = self.first_same
        self.unused = self.unused + self.left if self.left != DONE else bounds.tries.all
        if self.unused < 0 and best.channels:
            return False
        if self.rules.simpler_trees:
            if bounds.capability >= HOPPER and trial.pattern is Pattern.BalancedTree:
                trial.pattern = Pattern.Tree
                return True
            trial.pattern = best.pattern
        return any(relaxed() for relaxed in self.relaxations)

    def _farther_gpus(self) -> bool:
        bounds, trial, best = self.bounds, self.trial, self.best
        limit = trial.type_inter if bounds.system.several_nodes else bounds.far_intra
        if trial.type_intra < limit and (best.channels == 0 or trial.type_intra < best.type_intra):
            trial.type_intra += 1
            if self.rules.tries_disconnected or trial.type_intra < bounds.types.DIS:
                return True
        trial.type_intra = bounds.near_intra
        return False

    def _farther_adapters(self) -> bool:
        bounds, trial, best = self.bounds, self.trial, self.best
        wanted = best.channels == 0 or trial.type_inter < max(best.type_inter, bounds.types.PXN)
        if bounds.system.several_nodes and trial.type_inter < bounds.far_inter and wanted:
            trial.type_inter += 1
            if self.rules.tries_disconnected or trial.type_inter < bounds.types.DIS:
                return True
        trial.type_inter = bounds.near_inter
        return False

    def _cross_adapters(self) -> bool:
        trial = self.trial
        may = self.best.pattern.name in self.rules.cross_nic_of
        if self.allowed == 2 and trial.cross_nic == 0 and may:
            trial.cross_nic = self.rules.cross_nic
            return True
        trial.cross_nic = 1 if self.allowed == 1 else 0
        return False

    def _split_to_simple(self) -> bool:
        if not self.rules.split_trees_become_simple:
            return False
        if self.trial.pattern is Pattern.SplitTree:
            self.trial.pattern = Pattern.Tree
            return True
        self.trial.pattern = self.best.pattern
        return False

    def _slower(self) -> bool:
        steps, best = self.bounds.steps, self.best
        following = steps[self.at + 1] if self.at + 1 < len(steps) else None
        if following is not None and (best.channels == 0 or float(f32(following) / f32(best.bw_inter)) > 0.49):
            self.at += 1
            self._set_gbs()
            return True
        self.at = self._first(lambda gbs: gbs <= self._most())
        self._set_gbs()
        return False

    def _begin_raising(self) -> None:
        self.left = DONE
        if self.rules.duplicate == "before_raising":
            duplicate(self.best, self.bounds.capability, by_generation=False)
        self.trial = self.best.copied()
        self.at = self._first(lambda gbs: gbs <= self.best.bw_inter)
        self._set_gbs()
        self.trial.min_channels = self.best.channels

    def _raise(self) -> bool:
        """Raises the requested bandwidth. Returns False if nothing is left to try."""
        trial, best = self.trial, self.best
        if self.left == 0 or self.at == 0:
            return False
        steps = self.bounds.steps
        everything = self.rules.raised == "all"
        if best.pattern is Pattern.Ring:
            if not everything:
                return False
            self.at -= 1
            self._set_gbs()
            return True
        if (
            everything
            and best.pattern is Pattern.NVLS
            and trial.bw_inter == best.bw_inter
            and trial.bw_inter < trial.bw_intra * 2
        ):
            trial.min_channels = trial.max_channels = best.channels
            self.at -= 1
            trial.bw_inter = steps[self.at]
            return True
        if trial.bw_intra == best.bw_intra and trial.bw_intra < trial.bw_inter * 2:
            self.at -= 1
            trial.bw_intra = steps[self.at]
            return True
        return False


MAY_CROSS = (Pattern.Ring, Pattern.BalancedTree, Pattern.SplitTree)
NO_NET = -1
FALLBACK_GBS = float(f32(0.1))


class SearchLoop:
    """Searches one graph after the other. As in NCCL, each search passes the rounding errors of its links on to the
    next."""

    def __init__(self, system: System, nccl: Release, variables: Environment, file: GraphFile | None = None) -> None:
        self.system, self.rules, self.variables, self.file = system, nccl.search.loop, variables, file
        self.bounds = Bounds(system, nccl, variables)
        self.channels = ChannelSearch(system, nccl, variables)
        self.gpus = len(system.gpus)

    def compute(self, best: Trial, number: int | None = None) -> None:
        """Searches the graph that ``best`` requests, and writes it into ``best``.

        If the graph file has a graph with the id ``number``, it is taken from the file and not searched.
        """
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
        """Lays one channel through the GPUs in their order, as NCCL does if it finds none."""
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
