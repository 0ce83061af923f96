"""In which order the next GPUs of a channel are tried.

Source: ncclTopoSearchNextGpuSort, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Callable
from operator import itemgetter

from tuner.base.names import Pattern
from tuner.graphs.load import Load
from tuner.graphs.system import Gpu, Kind, Node, System
from tuner.release.search import Channels


class NextGpus:
    """The order for each GPU, from what is known before the search and what is left of the PCI links."""

    def __init__(self, system: System, load: Load, channels: Channels) -> None:
        self.load = load
        self.neighbours = channels.neighbours if system.switched else "none"
        self.only_near = self.neighbours == "only"
        gpus = system.gpus
        self.count = len(gpus)
        self.peers = [
            [
                (peer, at, gpu.paths[Kind.GPU][peer].hops, int(gpu.paths[Kind.GPU][peer].gbs))
                for at, peer in ((at, (number + at) % len(gpus)) for at in range(1, len(gpus)))
                if gpu.paths[Kind.GPU][peer].hops
            ]
            for number, gpu in enumerate(gpus)
        ]
        self.by_peers = [
            [(peer, hops, gbs) for peer, _, hops, gbs in sorted(peers, key=lambda peer: (-peer[3], peer[2], peer[1]))]
            for peers in self.peers
        ]
        self.pci = [self._pci_links(system, gpu) for gpu in gpus]
        self.from_net = [[(path.hops, int(path.gbs)) for path in net.paths.get(Kind.GPU, ())] for net in system.nets]
        self._near_free: list[dict[int, list[int]]] = [{} for _ in range(max(Pattern) + 1)]  # by pattern
        self._near: dict[tuple[Pattern, int], tuple[int, ...]] = {}
        self._free: dict[tuple[int, int], list[int]] = {}
        self.by_load = False  # whether an order went by what is left of the links, since this was last set
        self._by_net: dict[tuple[int, int, int, int, object], list[int]] = {}
        numbers = [number for links in self.pci if links is not None for number in links]
        self._all_pci_left: Callable[[list[float]], object] = itemgetter(*numbers) if numbers else len

    def _pci_links(self, system: System, gpu: Gpu) -> tuple[int, int] | None:
        """The numbers of a GPU's PCI link and of the way back."""
        hardware: Node = gpu
        if system.nodes[Kind.DEV]:
            hardware = gpu.links[0].to
        for link in hardware.links:
            if link.kind == "PIX":
                for back in link.to.links:
                    if back.to is hardware:
                        return self.load.number(link), self.load.number(back)
        return None

    def pci_left(self, gpu: int) -> float:
        """What is left of a GPU's PCI link, of the direction that has less; -1 where it has none."""
        links, left = self.pci[gpu], self.load.left
        return -1.0 if links is None else min(left[links[0]], left[links[1]])

    def after(self, gpu: int, used: int, pattern: Pattern, near_net: int, net: int) -> list[int]:
        """The GPUs to try after ``gpu``; ``used`` are bits of those in the channel.

        ``near_net`` is 1 where the next GPU is the one that leaves for the network, -1 where a later one is, and 0
        where none is; ``net`` is the network device that the channel came from.
        """
        if near_net == 0:
            found = self._by_paths(gpu, used)
        else:
            self.by_load = True
            key = gpu, used, near_net, net, self._all_pci_left(self.load.left)
            known = self._by_net.get(key)
            if known is None:
                known = self._by_net[key] = self._sorted_by_net(gpu, used, near_net, self.from_net[net])
            found = known
        if self.neighbours == "first":
            first = [peer for peer in self._neighbours(gpu, pattern) if peer in found]
            found = first + [peer for peer in found if peer not in first]
        return found

    def near(self, gpu: int, used: int, pattern: Pattern) -> list[int]:
        """The GPUs to try after ``gpu`` where only its neighbours are tried."""
        known, key = self._near_free[pattern], used * self.count + gpu
        found = known.get(key)
        if found is None:
            found = known[key] = [peer for peer in self._neighbours(gpu, pattern) if not used >> peer & 1]
        return found

    def _by_paths(self, gpu: int, used: int) -> list[int]:
        known = self._free.get((gpu, used))
        if known is None:
            known = [peer for peer, _, _ in self.by_peers[gpu] if not used >> peer & 1]
            self._free[gpu, used] = known
        return known

    def _sorted_by_net(self, gpu: int, used: int, near_net: int, from_net: list[tuple[int, int]]) -> list[int]:
        left, pci = self.load.left, self.pci
        scores = []
        for number, at, hops, gbs in self.peers[gpu]:
            if not used >> number & 1:
                links = pci[number]
                pci_gbs = -1 if links is None else int(min(left[links[0]], left[links[1]]))
                net_hops, net_gbs = from_net[number]
                scores.append((-net_gbs, -pci_gbs, net_hops, -gbs, hops, at, number))
        scores.sort()
        if near_net == -1 and all(score[3:5] == scores[0][3:5] for score in scores):
            scores.reverse()
        return [score[6] for score in scores]

    def _neighbours(self, gpu: int, pattern: Pattern) -> tuple[int, ...]:
        """The GPUs before and after one by number, those first that NCCL puts first last."""
        key = pattern, gpu
        if key not in self._near:
            last, following = (gpu - 1) % self.count, (gpu + 1) % self.count
            if pattern is Pattern.Ring:
                order = [last, following]
            elif pattern in (Pattern.SplitTree, Pattern.BalancedTree):
                order = [following, last]
            else:
                order = [following]
            reached = {peer[0] for peer in self.peers[gpu]}
            self._near[key] = tuple(peer for peer in dict.fromkeys(order) if peer in reached)
        return self._near[key]
