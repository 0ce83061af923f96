"""The searches that are tried for one graph, until it cannot become better.

First types, patterns and bandwidths are relaxed until something is found, then bandwidths are raised again.
Source: ncclTopoCompute, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Callable, Sequence

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs.bounds import HOPPER, Bounds
from tuner.graphs.channels import ChannelSearch
from tuner.graphs.duplicate import duplicate
from tuner.graphs.network_channels import DONE
from tuner.graphs.system import Kind
from tuner.graphs.trial import Trial


class Attempts:
    """The searches for one graph; each relaxation says whether it changed what is asked for."""

    def __init__(self, bounds: Bounds, channels: ChannelSearch, best: Trial, allowed: int, first_same: bool) -> None:
        self.bounds, self.channels, self.best, self.rules = bounds, channels, best, bounds.rules
        self.allowed = allowed  # NCCL_CROSS_NIC, where the graph may cross adapters
        self.trial = best.copied()
        self.first_same = first_same  # whether channels are to be alike, each time types or bandwidths change
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
        """The number of the first bandwidth."""
        bounds, system = self.bounds, self.bounds.system
        total = f32(system.total_gbs)
        not_ring = self.trial.pattern is not Pattern.Ring
        hardware = len(system.nodes[Kind.DEV]) or bounds.gpus
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
        """Both passes."""
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
        """Asks for less. False where there is nothing more to try."""
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
        """Asks for more bandwidth. False where there is nothing more to try."""
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
