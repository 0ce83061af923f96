"""Lays channels over the system, depth first, and keeps the best graph found.

Source: ncclTopoSearchRec, ncclTopoSearchRecNet, ncclTopoSearchRecGpu and what they call, src/graph/search.cc,
v2.28.9-1.

NCCL's functions call each other: a channel begins (SearchRec), enters from an adapter (SearchRecNet) or begins at a
GPU, goes from GPU to GPU (SearchRecGpu), leaves for the network, and when it is done the next channel begins, until the
graph has all channels or nothing is left to try. Each function takes bandwidth from links before it calls the next one,
and returns the bandwidth afterwards. Here each of these functions is a generator, which yields every ``State`` from
which the search continues. When it is asked for the next state, it first gives back the bandwidth that it took for the
last one. :meth:`ChannelSearch._lay` keeps the unfinished generators in a list, the innermost last, because a search is
too deep for Python's stack. The functions follow each other in this cycle:

_next_channel -> from_nets or _from_gpus -> _from_state -> _to_peers, _to_first, to_nets, _through_all -> _channel_done,
which compares with the best -> _next_channel

NCCL counts a try whenever it enters ncclTopoSearchRecGpu; here, a try is a state from which the search continues. NCCL
stops after a certain number of tries. The graph therefore depends on every try and on the order of tries, and both are
the same here.

Most searches are made in C (:mod:`tuner.graphs.compiled`). This module makes the others: searches for heads, recorded
searches, and all searches if the C part was not built. Three things make it fast without changing the result:

* :meth:`ChannelSearch._straight_on` goes over GPUs with one neighbour in a loop, without yielding each; it counts a try
  for each of them, as if it had.
* A state from which nothing better was found is not continued again: its tries are only counted.
* A repeated search is not made again: its tries are counted, and the links get the bandwidths that it left, which
  rounding may have changed.

The last two are in :mod:`tuner.graphs.transpositions`.
"""

from tuner.base.names import Pattern
from tuner.graphs import compiled
from tuner.graphs.load import Route
from tuner.graphs.network_channels import DONE, FREE, NEVER, PCI_ORDER, REPLAY, NetworkChannels, State, Ways, begun
from tuner.graphs.routes import UNKNOWN, Parts, Routes, all_to_all, through_switch
from tuner.graphs.system import DeviceKind, System
from tuner.graphs.transpositions import FailedSearches, SearchState
from tuner.graphs.trial import Recorder, Trial, better
from tuner.release import Release
from tuner.release.environment import Environment


class ChannelSearch(NetworkChannels):
    """Makes all searches for the graphs of one system. Each search gives back the bandwidth that it took from the
    links."""

    def __init__(self, system: System, nccl: Release, variables: Environment) -> None:
        super().__init__(system, nccl, variables)
        self.best: Trial
        self._failed = FailedSearches(system)
        self._compiled = compiled.of(self)

    def record(self) -> Recorder:
        """Starts a log to which all later searches are written, and returns it."""
        self.recorder = self.load.recorder = self.transpositions.recorder = Recorder()
        return self.recorder

    def stop_recording(self) -> None:
        """Stops the log: later searches are not recorded."""
        self.recorder = self.load.recorder = self.transpositions.recorder = None

    def search(self, trial: Trial, best: Trial, tries: int) -> int:
        """Searches channels as ``trial`` requests, and writes a better graph into ``best``. Returns the number of tries
        left."""
        trial.channels = 0
        key = self._failed.key(trial, best, self.load.left, self.net_left)
        known = self._failed.known(key)
        self._found = False
        if self.recorder:
            self.recorder.begin(trial)
        in_c = self._compiled if self._compiled and not self.recorder and self._compiled.takes(trial) else None
        if known is not None:
            self.left, self.load.left[:], self.net_left[:], trial.hops = known
        elif in_c:
            self.left, self._found = in_c.run(trial, best, tries)
        else:
            self.trial, self.best, self.left = trial, best, tries
            self.routes = Routes(self.system, self.load, self.rules, trial)
            self.load.begin()
            self.transpositions.begin(trial)
            self._lay()
        if known is None and not self._found:
            self._failed.remember(key, (self.left, list(self.load.left), list(self.net_left), trial.hops))
        if self.recorder:
            self.recorder.end(best, (tries, self.left), self._found, known is not None)
        return self.left

    def _deepest_look(self) -> int:
        """The last step of a channel at which looking up earlier searches saves more than it costs."""
        if not self._looks or (self.order.only_near and not self.system.several_nodes):
            return NEVER
        return 0 if self.order.only_near else max(0, self.gpus - 3)

    def _lay(self) -> None:
        """Tries all continuations, depth first. Each generator yields states, and undoes its change after each of
        them."""
        # With heads or limited connections, the search depends on more than the key of a state contains.
        self._looks = self.transpositions.worth_it and not (self.trial.heads_only or self.rules.connections_limit_nets)
        self._looks_between_channels = self._looks and not self.trial.same_channels
        self._repeats_orders = not self.system.several_nodes or self.rules.replay == "always"
        self._deepest = self._deepest_look()
        ways, above = self._next_channel(), list[Ways]()
        while True:
            for state in ways:
                if self.left > 0:
                    self.left -= 1
                    looks = state[1] <= self._deepest and state[4] == FREE
                    above.append(ways)
                    ways = self._unless_dead_end(state) if looks else self._from_state(state)
                    break
            else:
                if not above:
                    return
                ways = above.pop()

    def _unless_dead_end(self, state: State) -> Ways:
        """The continuations of a state. If a state is known to lead to nothing better, its tries are counted again, and
        nothing else is done."""
        before = self.transpositions.within_channel(state, self.left)
        if not self._is_dead_end(before):
            yield from self._from_state(state)
            self.transpositions.store(before, self.left)

    def _is_dead_end(self, state: SearchState) -> bool:
        """Whether an earlier search from this state found nothing better; if so, its tries are counted again."""
        tries = self.transpositions.tries(state)
        self.left -= tries or 0
        if not self.transpositions.worth_it:
            self._deepest, self._looks_between_channels = NEVER, False
        return tries is not None

    def _next_channel(self) -> Ways:
        trial = self.trial
        while len(trial.intra) <= trial.channels:
            trial.intra.append([0] * self.gpus)
            trial.inter.append([0, 0])
        last = self.gpus - 1
        if self.system.several_nodes:
            return self.from_nets({Pattern.Ring: last, Pattern.SplitTree: 1}.get(trial.pattern, 0))
        return self._from_gpus(last if trial.pattern is Pattern.Ring else NEVER)

    def _from_gpus(self, round_: int) -> Ways:
        trial = self.trial
        if trial.pattern is Pattern.NVLS:
            yield begun(trial.channels, FREE, NEVER, round_)
            return
        if trial.channels == 0:
            yield begun(0, PCI_ORDER, NEVER, round_)
        else:
            self.transpositions.repeated[trial.channels - 1] += 1
            yield begun(trial.intra[trial.channels - 1][0], REPLAY, NEVER, round_)
        if not trial.same_channels or trial.channels == 0:
            for gpu in range(self.gpus):
                yield begun(gpu, FREE, NEVER, round_)

    def _from_state(self, state: State) -> Ways:
        """The continuations of a channel that has reached one of its GPUs."""
        gpu, step, back, round_, forced, used = state
        trial = self.trial
        if step == self.gpus:
            return self._channel_done()
        order = trial.intra[trial.channels]
        order[step] = gpu
        if step == back:
            return self.to_nets(gpu, step, round_, forced, used)
        if trial.pattern is Pattern.NVLS:
            return self._through_all(through_switch(self.gpus, gpu))
        if trial.pattern is Pattern.CollNetDirect:
            others = [peer for peer in range(self.gpus) if peer != gpu]
            return self._through_all(all_to_all(self.gpus, gpu), others)
        if step < self.gpus - 1:
            peers = self._peers(gpu, step, back, forced, used)
            if len(peers) == 1 and (forced != FREE or self.order.only_near):
                return self._straight_on(state, peers[0])
            return self._to_peers(state, peers)
        if step == round_:
            return self._to_first(order[0], state)
        return iter(((gpu, self.gpus, NEVER, NEVER, forced, used),))

    def _to_peers(self, state: State, peers: list[int]) -> Ways:
        """The channel continues at each of the next GPUs in turn."""
        gpu, step, back, round_, forced, used = state
        trial, routes, load = self.trial, self.routes.between[gpu], self.load
        for peer in peers:
            route = routes[peer] if routes[peer] is not UNKNOWN else self.routes.new_between(gpu, peer)
            if route is not None and load.take(route):
                trial.hops += route.hops
                yield peer, step + 1, back, round_, forced, used | 1 << peer
                load.give(route)
                trial.hops -= route.hops

    def _to_first(self, first: int, state: State) -> Ways:
        """The channel continues from the last GPU of a ring to its first."""
        gpu, step, back, _, forced, used = state
        route = self.routes.route((DeviceKind.GPU, gpu, DeviceKind.GPU, first))
        if route is not None and self.routes.take(route):
            yield first, step + 1, back, NEVER, forced, used
            self.routes.give(route)

    def _straight_on(self, state: State, peer: int) -> Ways:
        """Follows GPUs that have only one successor, then yields all continuations of the last one, as if each GPU had
        been yielded."""
        gpu, step, back, round_, forced, used = state
        trial, load, between, last = self.trial, self.load, self.routes.between, self.gpus - 1
        order, taken = trial.intra[trial.channels], list[Route]()
        while True:
            route = between[gpu][peer]
            if route is UNKNOWN:
                route = self.routes.new_between(gpu, peer)
            if route is None or not load.take(route):
                break
            taken.append(route)
            trial.hops += route.hops
            if self.left <= 0:
                break
            self.left -= 1
            gpu, step, used = peer, step + 1, used | 1 << peer
            if step in (last, back):
                yield from self._from_state((gpu, step, back, round_, forced, used))
                break
            order[step] = gpu
            peers = self._peers(gpu, step, back, forced, used)
            if len(peers) != 1:
                yield from self._from_state((gpu, step, back, round_, forced, used))
                break
            peer = peers[0]
        for route in reversed(taken):
            load.give(route)
            trial.hops -= route.hops

    def _peers(self, gpu: int, step: int, back: int, forced: int, used: int) -> list[int]:
        order = self.order
        if forced == FREE and order.only_near:
            return order.near(gpu, used, self.trial.pattern)
        if forced == PCI_ORDER:
            return [step + 1]
        trial = self.trial
        if forced == REPLAY:
            return [trial.intra[trial.channels - 1][step + 1]]
        near_net = 0 if back == NEVER else 1 if back == step + 1 else -1
        net = self.nets.number_of[trial.inter[trial.channels][0]] if near_net else NEVER
        return order.after(gpu, used, trial.pattern, near_net, net)

    def _channel_done(self) -> Ways:
        trial = self.trial
        trial.channels += 1
        if better(trial, self.best, self.gpus, self.rules):
            self.best.take(trial)
            self._found = True
            self.transpositions.better()
            if trial.channels == trial.max_channels:
                self.left = DONE
        if trial.channels < trial.max_channels:
            before = None
            if self._looks_between_channels:
                before = self.transpositions.between_channels(self.left, self._repeats_orders)
            if before is None or not self._is_dead_end(before):
                yield from self._next_channel()
                if before is not None:
                    self.transpositions.store(before, self.left)
        trial.channels -= 1

    def _through_all(self, parts: Parts, others: list[int] | None = None) -> Ways:
        taken = self.routes.take_parts(parts)
        if len(taken) == len(parts):
            if others is not None:
                self.trial.intra[self.trial.channels][1:] = others
            yield NEVER, self.gpus, NEVER, NEVER, FREE, 0
        self.routes.give_parts(parts, taken)
