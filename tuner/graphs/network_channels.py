"""Leads a channel from the network to its first GPU, and from its last GPU back to the network.

Source: ncclTopoSearchRecNet and the part of ncclTopoSearchRecGpu that goes to the network, src/graph/search.cc,
v2.28.9-1.
"""

from collections.abc import Callable, Generator, Iterator
from operator import itemgetter
from typing import Final

from tuner.base.names import Pattern
from tuner.base.numerics import ceil_div
from tuner.graphs.load import Load, less_by
from tuner.graphs.nets import ANY_GPU, Nets
from tuner.graphs.routes import UNKNOWN, Routes
from tuner.graphs.system import DeviceKind, GpuDevice, System, SystemDevice
from tuner.graphs.transpositions import TranspositionTable
from tuner.graphs.trial import Recorder, Trial
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.search import ChannelRules

DONE = -1  # number of tries left when a graph has all channels that were asked for
NEVER = -1  # no channel has this step
FREE, PCI_ORDER, REPLAY = 0, 1, 2
# State of the search at a GPU of a channel: the GPU's number, the step, the steps at which the channel goes to the
# network and to the first GPU, how the next GPUs are chosen, and a bit for each GPU that the channel has.
State = tuple[int, int, int, int, int, int]
Ways = Iterator[State]


def begun(gpu: int, forced: int, back: int, round_: int) -> State:
    """The state at the first GPU of a channel."""
    return gpu, 0, back, round_, forced, 1 << gpu


class NetworkChannels:
    """Both network ends of the current channel. Its generators yield states, and undo their change after each of
    them."""

    def __init__(self, system: System, nccl: Release, variables: Environment) -> None:
        rules = nccl.search.channels
        self.system, self.rules = system, rules
        self.tries = nccl.search.tries
        self.load = Load(system, rules.reverse_needs_type, rules.only_power_pays_nvlinks)
        self.order = NextGpus(system, self.load, rules)
        self.nets = Nets(system, nccl, variables)
        self.gpus: Final = len(system.gpus)
        self.net_left = [net.gbs for net in system.nets]
        self.connections = [net.most_channels if rules.connections_limit_nets else -1 for net in system.nets]
        self.left = 0  # tries left
        self.trial: Trial
        self.routes: Routes
        self.transpositions = TranspositionTable(self.load, self.nets, self.net_left)
        self.recorder: Recorder | None = None

    def from_nets(self, back: int) -> Ways:
        """The channel enters through each network device that it may use."""
        trial, nets, left = self.trial, self.nets, self.net_left
        less, more = less_by(whole := int(trial.bw_inter)), less_by(-whole)
        listed = nets.listed(trial.type_inter, ANY_GPU)
        first = trial.channels if self.rules.nets_rotate else 0
        head_found, heads_only = False, trial.heads_only
        for at in range(len(listed)):
            if heads_only and (head_found or (at > 0 and self.rules.nvls_heads == "of_first_net")):
                break
            net = listed[(first + at) % len(listed)]
            device = nets.devices[net]
            if trial.in_network and not device.in_network:
                continue
            if left[net] < whole or not nets.may_enter(trial, net) or self.connections[net] == 0:
                if self.recorder and left[net] < whole:
                    self.recorder.adapter(net)
                continue
            self.connections[net] -= 1
            trial.inter[trial.channels][0] = device.id
            trial.latency_us = device.latency_us
            for other in nets.same_port[net]:
                left[other] = less[left[other]]
            if heads_only and self.rules.nvls_heads != "none":
                gives_back, head_found = yield from self._head(net, listed, back)
            else:
                gives_back = yield from self._from_net(net, whole, back)
            if gives_back:
                for other in nets.same_port[net]:
                    left[other] = more[left[other]]
            self.connections[net] += 1

    def _from_net(self, net: int, whole: int, back: int) -> Generator[State, None, bool]:
        """The channel continues at each GPU at which it may begin. Returns whether the device gets its bandwidth
        back."""
        trial, rules = self.trial, self.rules
        number = trial.channels
        if number > 0 and (trial.same_channels or rules.replay == "always"):
            self.transpositions.repeated[number - 1] += 1
            yield from self._enter(net, trial.intra[number - 1][0], back, REPLAY)
        if number > 0 and trial.same_channels:
            return True
        if number == 0 and (rules.pci_order_first == "always" or not self.system.switched):
            kept, self.left = self.left, self.tries.pci_order
            yield from self._enter(net, 0, back, PCI_ORDER)
            self.left = DONE if self.left == DONE else kept
        if rules.starts not in ("nearest", "own_then_nearest"):
            for gpu in self.nets.widest(net, whole, trial.channels, self.order.pci_left):
                yield from self._enter(net, gpu, back, FREE)
            return True
        gpus, reached = self.nets.starts(net)
        routes, load = self.routes, self.load
        entering = routes.entering[net]
        for at, gpu in enumerate(gpus):
            if at == len(entering):
                entering.append(routes.route((DeviceKind.NET, net, DeviceKind.GPU, gpu)))
            route = entering[at]
            if route is not None and load.take(route):
                trial.hops += route.hops
                yield begun(gpu, FREE, back, NEVER)
                load.give(route)
                trial.hops -= route.hops
        return reached  # sic: NCCL continues with the next device without giving this one's bandwidth back

    def _head(self, net: int, listed: list[int], back: int) -> Generator[State, None, tuple[bool, bool]]:
        """The channel continues at the GPU that a device belongs to, as a head. Returns whether the device gets its
        bandwidth back, and whether a head was found."""
        trial, rules = self.trial, self.rules.nvls_heads
        if rules == "by_number_of_net":
            yield begun(self._head_by_number(listed), FREE, back, NEVER)
            return True, False
        if trial.channels >= len(listed):
            return True, False
        # The head is the same whichever device the channel enters by, and takes nothing from that device's links
        if rules == "of_net_by_channel":
            own = self.nets.devices[listed[trial.channels]].local_gpu
            if own != NEVER:
                yield begun(own, FREE, back, NEVER)
            return True, False
        gpu = self.nets.devices[net].local_gpu
        heads = [trial.intra[channel][0] for channel in range(trial.channels)]
        if gpu in heads and rules != "of_first_net":
            return rules == "distinct", False
        if gpu != NEVER:
            yield from self._enter(net, gpu, back, FREE)
        return True, gpu != NEVER or rules == "distinct_losing_nets"

    def _head_by_number(self, listed: list[int]) -> int:
        """The number that NCCL takes from a list of devices and uses as a GPU's number, which is a mistake in NCCL.
        After the end of the list it reads zeros.

        The list has 4 bytes for each device, and glibc's malloc allocates 24, 40, 56 ... bytes. After these comes the
        size of the next piece of memory, which is no GPU's number.
        """
        channel = self.trial.channels
        if channel < len(listed):
            return listed[channel]
        allocated_bytes = max(24, ceil_div(4 * len(self.system.nets) + 8, 16) * 16 - 8)
        return 0 if channel < allocated_bytes // 4 else self.gpus

    def _enter(self, net: int, gpu: int, back: int, forced: int) -> Ways:
        """The channel continues from a network device to its first GPU."""
        route = self.routes.route((DeviceKind.NET, net, DeviceKind.GPU, gpu))
        if route is not None and self.routes.take(route):
            yield begun(gpu, forced, back, NEVER)
            self.routes.give(route)

    def to_nets(self, gpu: int, step: int, round_: int, forced: int, used: int) -> Ways:
        """The channel leaves for the network at this step. In a balanced tree, each of the first two GPUs does so, with
        half the bandwidth."""
        trial, nets = self.trial, self.nets
        balanced = trial.pattern is Pattern.BalancedTree
        gbs = trial.bw_inter / 2 if balanced else trial.bw_inter
        routes, load = self.routes.leaving[gpu], self.load
        for net in nets.leaving(trial, gpu, step):
            if routes[net] is UNKNOWN:
                routes[net] = self.routes.route((DeviceKind.GPU, gpu, DeviceKind.NET, net), gbs=gbs)
            route = routes[net]
            if route is not None and load.take(route):
                trial.hops += route.hops
                trial.inter[trial.channels][1] = nets.devices[net].id
                yield gpu, step, 1 if balanced and step == 0 else NEVER, round_, forced, used
                load.give(route)
                trial.hops -= route.hops


class NextGpus:
    """The order in which the next GPUs are tried. This order depends on what is known before the search, and on what is
    left on the PCI links."""

    def __init__(self, system: System, load: Load, channels: ChannelRules) -> None:
        self.load = load
        self.neighbours = channels.neighbours if system.switched else "none"
        self.only_near = self.neighbours == "only"
        gpus = system.gpus
        self.count = len(gpus)
        self.peers = [
            [
                (peer, at, gpu.paths[DeviceKind.GPU][peer].hops, int(gpu.paths[DeviceKind.GPU][peer].gbs))
                for at, peer in ((at, (number + at) % len(gpus)) for at in range(1, len(gpus)))
                if gpu.paths[DeviceKind.GPU][peer].hops
            ]
            for number, gpu in enumerate(gpus)
        ]
        self.by_peers = [
            [(peer, hops, gbs) for peer, _, hops, gbs in sorted(peers, key=lambda peer: (-peer[3], peer[2], peer[1]))]
            for peers in self.peers
        ]
        self.pci = [self._pci_links(system, gpu) for gpu in gpus]
        self.from_net = [
            [(path.hops, int(path.gbs)) for path in net.paths.get(DeviceKind.GPU, ())] for net in system.nets
        ]
        self._near_free: list[dict[int, list[int]]] = [{} for _ in range(max(Pattern) + 1)]  # by pattern
        self._near: dict[tuple[Pattern, int], tuple[int, ...]] = {}
        self._free: dict[tuple[int, int], list[int]] = {}
        self._by_net: dict[tuple[int, int, int, int, object], list[int]] = {}
        numbers = [number for links in self.pci if links is not None for number in links]
        self._all_pci_left: Callable[[list[float]], object] = itemgetter(*numbers) if numbers else len

    def _pci_links(self, system: System, gpu: GpuDevice) -> tuple[int, int] | None:
        """The numbers of a GPU's PCI link and of the link in the other direction."""
        hardware: SystemDevice = gpu
        if system.nodes[DeviceKind.DEV]:
            hardware = gpu.links[0].to
        for link in hardware.links:
            if link.kind == "PIX":
                for back in link.to.links:
                    if back.to is hardware:
                        return self.load.number(link), self.load.number(back)
        return None

    def pci_left(self, gpu: int) -> float:
        """The bandwidth left on a GPU's PCI link, in the direction that has less; -1 if it has no such link."""
        links, left = self.pci[gpu], self.load.left
        return -1.0 if links is None else min(left[links[0]], left[links[1]])

    def after(self, gpu: int, used: int, pattern: Pattern, near_net: int, net: int) -> list[int]:
        """The GPUs to try after ``gpu``; ``used`` has a bit for each GPU in the channel.

        ``near_net`` is 1 if the channel leaves for the network at the next GPU, -1 if it leaves at a later GPU, and 0
        if it does not leave. ``net`` is the network device through which the channel entered.
        """
        if near_net == 0:
            found = self._by_paths(gpu, used)
        else:
            key = gpu, used, near_net, net, self._all_pci_left(self.load.left)
            known = self._by_net.get(key)
            if known is None:
                known = self._by_net[key] = self._sorted_by_net(gpu, used, near_net, self.from_net[net])
            found = known
        if self.neighbours == "first":
            first = [peer for peer in self.neighbours_of(gpu, pattern) if peer in found]
            found = first + [peer for peer in found if peer not in first]
        return found

    def near(self, gpu: int, used: int, pattern: Pattern) -> list[int]:
        """The GPUs to try after ``gpu`` if only its neighbours in number are tried."""
        known, key = self._near_free[pattern], used * self.count + gpu
        found = known.get(key)
        if found is None:
            found = known[key] = [peer for peer in self.neighbours_of(gpu, pattern) if not used >> peer & 1]
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

    def neighbours_of(self, gpu: int, pattern: Pattern) -> tuple[int, ...]:
        """The GPUs with the numbers before and after that of a GPU, as far as the GPU reaches them.

        The order is the reverse of NCCL's: NCCL tries the last one first.
        """
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
