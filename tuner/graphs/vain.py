"""Searches that found nothing better: the same one again would find nothing again, and needs no tries here.

NCCL repeats them, as it steps through path types that no path has.
"""

from collections.abc import Hashable, Sequence

from tuner.graphs.system import Kind, System
from tuner.graphs.trial import Trial

NO_TYPE = -1
After = tuple[int, list[float], list[float], int]  # tries left; what is left of links and of adapters; hops


class Vain:
    """What was searched for in vain on one system, and how it left the system."""

    def __init__(self, system: System) -> None:
        self.system = system
        inside = (Kind.GPU, Kind.NVS)
        self._intra_types = {type_ for kind in inside for type_ in self._types(kind, inside)}
        self._inter_types = {*self._types(Kind.GPU, (Kind.NET,)), *self._types(Kind.NET, (Kind.GPU,))}
        self._after: dict[Hashable, After] = {}

    def _types(self, kind: Kind, to: tuple[Kind, ...]) -> set[int]:
        nodes = self.system.nodes[kind]
        return {path.type for node in nodes for far in to for path in node.paths.get(far, ())}

    def key(self, trial: Trial, best: Trial, links: Sequence[float], nets: Sequence[float]) -> Hashable:
        """All that a search goes by; types that no path has count as the next nearer one that some has."""
        speeds = trial.bw_intra, trial.bw_inter, trial.min_channels, trial.cross_nic
        to_beat = best.pattern, best.cross_nic, best.channels, best.bw_intra, best.bw_inter, best.hops
        return speeds, to_beat, self.key_at_any_gbs(trial, links, nets)

    def key_at_any_gbs(self, trial: Trial, links: Sequence[float], nets: Sequence[float]) -> Hashable:
        """The same but for the bandwidth and the adapters of a channel, and for what is compared with the best."""
        intra = max((type_ for type_ in self._intra_types if type_ <= trial.type_intra), default=NO_TYPE)
        inter = max((type_ for type_ in self._inter_types if type_ <= trial.type_inter), default=NO_TYPE)
        asked = trial.pattern, trial.in_network, trial.max_channels, trial.same_channels
        return asked, intra, inter, trial.hops, tuple(links), tuple(nets)

    def known(self, key: Hashable) -> After | None:
        """How a search ends that was made before; None for a new one."""
        return self._after.get(key)

    def remember(self, key: Hashable, after: After) -> None:
        """Keeps how a search ended."""
        self._after[key] = after
