"""Lays channels over the system, depth first, and keeps the best graph found.

Source: ncclTopoSearchRec, ncclTopoSearchRecNet, ncclTopoSearchRecGpu and what they call, src/graph/search.cc,
v2.28.9-1. A try is an entry of ncclTopoSearchRecGpu; NCCL limits their number, so their order is kept exactly.
"""

from collections.abc import Generator, Iterator
from typing import Final

from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.search.compare import better
from tuner.search.load import Load, Route, less_by
from tuner.search.local import nearest
from tuner.search.nets import ANY_GPU, Nets
from tuner.search.order import NextGpus
from tuner.search.recorded import Recorder
from tuner.search.routes import UNKNOWN, Parts, Routes, all_to_all, through_switch
from tuner.search.system import Kind, System
from tuner.search.trial import Trial
from tuner.search.vain import Vain

DONE = -1  # tries left when a graph has all the channels asked for
NEVER = -1  # a step that no channel has
FREE, PCI_ORDER, REPLAY = 0, 1, 2
# A GPU of a channel: its number, the step, the steps that go to the network and to the first GPU, how the next GPUs are
# chosen, and bits of the GPUs that the channel has.
State = tuple[int, int, int, int, int, int]
Ways = Iterator[State]


class ChannelSearch:
    """All searches for the graphs of one system; what one takes of a link's bandwidth, it gives back."""

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
        self.best: Trial
        self._vain = Vain(system)
        self.recorder: Recorder | None = None

    def record(self) -> Recorder:
        """What the searches from here on are written to."""
        self.recorder = self.load.recorder = Recorder()
        return self.recorder

    def search(self, trial: Trial, best: Trial, tries: int) -> int:
        """Lays channels as ``trial`` asks for them; ``best`` becomes what compares better. Returns the tries left."""
        trial.channels = 0
        key = self._vain.key(trial, best, self.load.left, self.net_left)
        known = self._vain.known(key)
        self._found = False
        if self.recorder:
            self.recorder.begin(trial)
        if known is not None:
            self.left, self.load.left[:], self.net_left[:], trial.hops = known
        else:
            self.trial, self.best, self.left = trial, best, tries
            self.routes = Routes(self.system, self.load, self.rules, trial)
            self._lay()
            if not self._found:
                self._vain.remember(key, (self.left, list(self.load.left), list(self.net_left), trial.hops))
        if self.recorder:
            self.recorder.end(best, (tries, self.left), self._found, known is not None)
        return self.left

    def _lay(self) -> None:
        """Depth first over all ways to go on: each generator yields states, and takes back what it did after each."""
        ways = [self._next_channel()]
        while ways:
            state = next(ways[-1], None)
            if state is None:
                ways.pop()
            elif self.left > 0:
                self.left -= 1
                ways.append(self._from_state(state))

    def _next_channel(self) -> Ways:
        """The ways to begin a channel."""
        trial = self.trial
        while len(trial.intra) <= trial.channels:
            trial.intra.append([0] * self.gpus)
            trial.inter.append([0, 0])
        last = self.gpus - 1
        if self.system.several_nodes:
            return self._from_nets({Pattern.Ring: last, Pattern.SplitTree: 1}.get(trial.pattern, 0))
        return self._from_gpus(last if trial.pattern is Pattern.Ring else NEVER)

    def _from_gpus(self, round_: int) -> Ways:
        trial = self.trial
        if trial.pattern is Pattern.NVLS:
            yield _begun(trial.channels, FREE, NEVER, round_)
            return
        if trial.channels == 0:
            yield _begun(0, PCI_ORDER, NEVER, round_)
        else:
            yield _begun(trial.intra[trial.channels - 1][0], REPLAY, NEVER, round_)
        if not trial.same_channels or trial.channels == 0:
            for gpu in range(self.gpus):
                yield _begun(gpu, FREE, NEVER, round_)

    def _from_nets(self, back: int) -> Ways:
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
            yield from self._enter(net, trial.intra[number - 1][0], back, REPLAY)
        if number > 0 and trial.same_channels:
            return True
        if number == 0 and (rules.pci_order_first == "always" or not self.system.switched):
            kept, self.left = self.left, self.tries.pci_order
            yield from self._enter(net, 0, back, PCI_ORDER)
            self.left = DONE if self.left == DONE else kept
        device = self.nets.devices[net]
        if rules.starts not in ("nearest", "own_then_nearest"):
            for gpu in self.nets.widest(net, whole, trial.channels, self.order.pci_left):
                yield from self._enter(net, gpu, back, FREE)
            return True
        gpus, type_ = nearest(self.system, device, Kind.GPU)
        own = [device.local_gpu] if rules.starts == "own_then_nearest" and device.local_gpu != NEVER else []
        reached = type_ != self.system.types.DIS
        for gpu in dict.fromkeys([*own, *gpus] if reached else own):
            yield from self._enter(net, gpu, back, FREE)
        return reached  # sic: NCCL goes on with the next device and forgets this one's bandwidth

    def _head(self, net: int, listed: list[int], back: int) -> Generator[State, None, tuple[bool, bool]]:
        """To the GPU that a device belongs to, as a head. Returns whether the device gets its bandwidth back, and
        whether a head was found."""
        trial, rules = self.trial, self.rules.nvls_heads
        if rules == "by_number_of_net":
            # Sic: a device's number is taken for a GPU's, and beyond the list NCCL reads zeros.
            yield _begun(listed[trial.channels] if trial.channels < len(listed) else 0, FREE, back, NEVER)
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

    def _enter(self, net: int, gpu: int, back: int, forced: int) -> Ways:
        """From a network device to the channel's first GPU."""
        route = self.routes.route((Kind.NET, net, Kind.GPU, gpu))
        if route is not None and self._take(route):
            yield _begun(gpu, forced, back, NEVER)
            self._give(route)

    def _from_state(self, state: State) -> Ways:
        """The ways on from one GPU of a channel."""
        gpu, step, back, round_, forced, used = state
        trial = self.trial
        if step == self.gpus:
            yield from self._channel_done()
            return
        order = trial.intra[trial.channels]
        order[step] = gpu
        if step == back:
            yield from self._to_nets(gpu, step, round_, forced, used)
        elif trial.pattern is Pattern.NVLS:
            yield from self._through_all(through_switch(self.gpus, gpu))
        elif trial.pattern is Pattern.CollNetDirect:
            others = [peer for peer in range(self.gpus) if peer != gpu]
            yield from self._through_all(all_to_all(self.gpus, gpu), others)
        elif step < self.gpus - 1:
            routes, load = self.routes.between[gpu], self.load
            for peer in self._peers(gpu, step, back, forced, used):
                route = routes[peer] if routes[peer] is not UNKNOWN else self.routes.new_between(gpu, peer)
                if route is not None and load.take(route):
                    trial.hops += route.hops
                    yield peer, step + 1, back, round_, forced, used | 1 << peer
                    load.give(route)
                    trial.hops -= route.hops
        elif step == round_:
            route = self.routes.route((Kind.GPU, gpu, Kind.GPU, order[0]))
            if route is not None and self._take(route):
                yield order[0], step + 1, back, NEVER, forced, used
                self._give(route)
        else:
            yield gpu, self.gpus, NEVER, NEVER, forced, used

    def _peers(self, gpu: int, step: int, back: int, forced: int, used: int) -> list[int]:
        if forced == FREE and self.order.only_near:
            return self.order.near(gpu, used, self.trial.pattern)
        if forced == PCI_ORDER:
            return [step + 1]
        trial = self.trial
        if forced == REPLAY:
            return [trial.intra[trial.channels - 1][step + 1]]
        near_net = 0 if back == NEVER else 1 if back == step + 1 else -1
        net = self.nets.number_of[trial.inter[trial.channels][0]] if near_net else NEVER
        return self.order.after(gpu, used, trial.pattern, near_net, net)

    def _channel_done(self) -> Ways:
        trial = self.trial
        trial.channels += 1
        if better(trial, self.best, self.gpus, self.rules):
            self.best.take(trial)
            self._found = True
            if trial.channels == trial.max_channels:
                self.left = DONE
        if trial.channels < trial.max_channels:
            yield from self._next_channel()
        trial.channels -= 1

    def _to_nets(self, gpu: int, step: int, round_: int, forced: int, used: int) -> Ways:
        """Leaves for the network at this step; both of a balanced tree's first two GPUs do, each with half of it."""
        trial, nets = self.trial, self.nets
        balanced = trial.pattern is Pattern.BalancedTree
        gbs = trial.bw_inter / 2 if balanced else trial.bw_inter
        for net in nets.listed(trial.type_inter, gpu):
            if not nets.may_leave(trial, net, step):
                continue
            route = self.routes.route((Kind.GPU, gpu, Kind.NET, net), gbs=gbs)
            if route is not None and self._take(route):
                trial.inter[trial.channels][1] = nets.devices[net].id
                yield gpu, step, 1 if balanced and step == 0 else NEVER, round_, forced, used
                self._give(route)

    def _through_all(self, parts: Parts, others: list[int] | None = None) -> Ways:
        taken = []
        for ends, share in parts:
            route = self.routes.route(ends, share)
            if route is None or not self._take(route):
                break
            taken.append(route)
        else:
            if others is not None:
                self.trial.intra[self.trial.channels][1:] = others
            yield NEVER, self.gpus, NEVER, NEVER, FREE, 0
        half = len(parts) // 2
        for route in [*reversed(taken[half:]), *reversed(taken[:half])]:
            self._give(route)

    def _take(self, route: Route) -> bool:
        if not self.load.take(route):
            return False
        self._count(route, 1)
        return True

    def _give(self, route: Route) -> None:
        self.load.give(route)
        self._count(route, -1)

    def _count(self, route: Route, sign: int) -> None:
        """Counts the hops as a C int, to which parts of a hop are added as a float."""
        if not route.part:
            self.trial.hops += sign * route.hops
        else:
            self.trial.hops = int(f32(self.trial.hops) + f32(sign * route.part))


def _begun(gpu: int, forced: int, back: int, round_: int) -> State:
    return gpu, 0, back, round_, forced, 1 << gpu
