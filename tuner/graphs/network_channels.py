"""How a channel comes from the network to its first GPU, and how it leaves for the network again.

Source: ncclTopoSearchRecNet and the part of ncclTopoSearchRecGpu that goes to the network, src/graph/search.cc,
v2.28.9-1.
"""

from collections.abc import Generator, Iterator
from typing import Final

from tuner.base.names import Pattern
from tuner.base.numerics import ceil_div
from tuner.graphs.load import Load, less_by
from tuner.graphs.nets import ANY_GPU, Nets
from tuner.graphs.order import NextGpus
from tuner.graphs.rejections import Recorder
from tuner.graphs.routes import UNKNOWN, Routes
from tuner.graphs.system import Kind, System
from tuner.graphs.transpositions import TranspositionTable
from tuner.graphs.trial import Trial
from tuner.release import Release
from tuner.release.environment import Environment

DONE = -1  # tries left when a graph has all the channels asked for
NEVER = -1  # a step that no channel has
FREE, PCI_ORDER, REPLAY = 0, 1, 2
# A GPU of a channel: its number, the step, the steps that go to the network and to the first GPU, how the next GPUs are
# chosen, and bits of the GPUs that the channel has.
State = tuple[int, int, int, int, int, int]
Ways = Iterator[State]


def begun(gpu: int, forced: int, back: int, round_: int) -> State:
    """The state of a channel at its first GPU."""
    return gpu, 0, back, round_, forced, 1 << gpu


class NetworkChannels:
    """Both ends of the channels that are laid; generators yield states, and take back what they did after each."""

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
        self.left = 0  # tries
        self.trial: Trial
        self.routes: Routes
        self.transpositions = TranspositionTable(self.load, self.nets, self.net_left)
        self.recorder: Recorder | None = None

    def from_nets(self, back: int) -> Ways:
        """Through each network device that the next channel may enter by."""
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
        """To the GPUs that a channel may begin with. Returns whether the device gets its bandwidth back."""
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
                entering.append(routes.route((Kind.NET, net, Kind.GPU, gpu)))
            route = entering[at]
            if route is not None and load.take(route):
                trial.hops += route.hops
                yield begun(gpu, FREE, back, NEVER)
                load.give(route)
                trial.hops -= route.hops
        return reached  # sic: NCCL goes on with the next device and forgets this one's bandwidth

    def _head(self, net: int, listed: list[int], back: int) -> Generator[State, None, tuple[bool, bool]]:
        """To the GPU that a device belongs to, as a head. Returns whether the device gets its bandwidth back, and
        whether a head was found."""
        trial, rules = self.trial, self.rules.nvls_heads
        if rules == "by_number_of_net":
            yield begun(self._head_by_number(listed), FREE, back, NEVER)
            return True, False
        if trial.channels >= len(listed):
            return True, False
        gpu = self.nets.devices[net].local_gpu
        heads = [trial.intra[channel][0] for channel in range(trial.channels)]
        if gpu in heads and rules != "of_first_net":
            return rules == "distinct", False
        if gpu != NEVER:
            yield from self._enter(net, gpu, back, FREE)
        return True, gpu != NEVER or rules == "distinct_losing_nets"

    def _head_by_number(self, listed: list[int]) -> int:
        """The number that NCCL reads in a list of devices as that of a GPU (sic): beyond the list, zeros.

        It has 4 bytes for each device, and glibc's malloc gives out 24, 40, 56 ... bytes. What follows these is the
        size of the next piece of memory, which is no GPU's number.
        """
        channel = self.trial.channels
        if channel < len(listed):
            return listed[channel]
        allocated_bytes = max(24, ceil_div(4 * len(self.system.nets) + 8, 16) * 16 - 8)
        return 0 if channel < allocated_bytes // 4 else self.gpus

    def _enter(self, net: int, gpu: int, back: int, forced: int) -> Ways:
        """From a network device to the channel's first GPU."""
        route = self.routes.route((Kind.NET, net, Kind.GPU, gpu))
        if route is not None and self.routes.take(route):
            yield begun(gpu, forced, back, NEVER)
            self.routes.give(route)

    def to_nets(self, gpu: int, step: int, round_: int, forced: int, used: int) -> Ways:
        """Leaves for the network at this step; both of a balanced tree's first two GPUs do, each with half of it."""
        trial, nets = self.trial, self.nets
        balanced = trial.pattern is Pattern.BalancedTree
        gbs = trial.bw_inter / 2 if balanced else trial.bw_inter
        routes, load = self.routes.leaving[gpu], self.load
        for net in nets.leaving(trial, gpu, step):
            if routes[net] is UNKNOWN:
                routes[net] = self.routes.route((Kind.GPU, gpu, Kind.NET, net), gbs=gbs)
            route = routes[net]
            if route is not None and load.take(route):
                trial.hops += route.hops
                trial.inter[trial.channels][1] = nets.devices[net].id
                yield gpu, step, 1 if balanced and step == 0 else NEVER, round_, forced, used
                load.give(route)
                trial.hops -= route.hops
