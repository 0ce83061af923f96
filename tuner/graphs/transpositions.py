"""Two memories of what the search already tried without success, so that it need not be tried again.

NCCL's search is depth first and limited by a number of tries, so where it stops depends on every try, also on useless
ones. A memory must therefore say how many tries a repetition takes and which bandwidths it leaves, not only that it
finds nothing.

* A transposition table (:class:`TranspositionTable`), as in programs that play chess: within one search, many orders of
  the same moves reach the same state. Its key is everything that the rest of the search can depend on.
* :class:`FailedSearches`: whole searches that NCCL repeats, as it steps through path types that no path has.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.graphs.load import Load
from tuner.graphs.nets import Nets
from tuner.graphs.system import DeviceKind, System
from tuner.graphs.trial import Recorder, Rejections, Trial

NOWHERE = -1
# After this many look-ups in searches of a kind, look-ups stop unless each has saved this many tries on average.
LOOKS, WORTH = 2048, 2


@dataclass(frozen=True, slots=True)
class SearchState:
    """A state of the search: where a channel continues, with the bandwidths left, the channels found and the tries
    made."""

    key: Hashable
    links: tuple[float, ...]
    adapters: tuple[float, ...]
    left: int  # tries left
    found: int  # number of better graphs found so far
    channel: int
    # How often the current order of the channel's GPUs was repeated; None if the key contains everything about it
    repeated: int | None
    refused: Rejections | None  # rejections so far, if they are recorded


@dataclass(frozen=True, slots=True)
class _DeadEnd:
    """A state from which nothing better is found: the tries that it costs, and the rejections that happen there."""

    tries: int
    latency_us: float
    refused: Rejections | None


class TranspositionTable:
    """States of one search from which laying channels found nothing better. If such a state is reached again, in
    another order, it is not tried again.

    What follows from a state depends on the bandwidths left on links and adapters, on the GPUs and adapters of the
    channel and, if channels alternate, on the adapters of the last channel. The outcome depends on the order of the
    channel's GPUs only if the next channel repeats that order. In this case, states within the channel are not stored,
    and the keys of states between channels contain the order.

    When a stored state is reached again, the rejections by links that followed from it are counted once more.
    """

    def __init__(self, load: Load, nets: Nets, net_left: list[float]) -> None:
        self.load, self.nets, self.net_left = load, nets, net_left
        # Look-ups, and tries that they saved, by the kind of search
        self.looks, self.saved = Counter[Hashable](), Counter[Hashable]()
        self.trial: Trial
        self.recorder: Recorder | None = None

    def begin(self, trial: Trial) -> None:
        """Empties the table before another search."""
        self.trial = trial
        self.kind = trial.pattern, trial.cross_nic
        self.repeated = Counter[int]()  # how often the order of a channel's GPUs was repeated, by channel
        self.found = 0  # number of better graphs found
        self._dead_ends: dict[Hashable, _DeadEnd] = {}

    @property
    def worth_it(self) -> bool:
        """Whether looking up a state saves more time than it costs."""
        looks = self.looks[self.kind]
        return looks < LOOKS or self.saved[self.kind] > WORTH * looks

    def within_channel(self, at: tuple[int, ...], left: int) -> SearchState:
        """The state of the search at a GPU of the current channel."""
        trial, channel = self.trial, self.trial.channels
        entered, exited = trial.inter[channel]
        first = trial.intra[channel][0] if at[1] else NOWHERE
        has_exited = at[2] < 0 or (trial.pattern is Pattern.BalancedTree and at[1] > 0)
        return self._state((at, first, entered, exited if has_exited else NOWHERE), left, self.repeated[channel])

    def between_channels(self, left: int, repeats: bool) -> SearchState:
        """The state of the search when a channel is done and the next one has not begun.

        ``repeats``: the next channel may repeat the order of GPUs of the one that is done.
        """
        last = self.trial.channels - 1
        if not repeats:
            return self._state(None, left, None)
        self.repeated[last] += 1  # counts the order as it is, or as it was when the search was there before
        return self._state(tuple(self.trial.intra[last]), left, None)

    def _state(self, of_channel: Hashable, left: int, repeated: int | None) -> SearchState:
        trial, channel = self.trial, self.trial.channels
        last = tuple(trial.inter[channel - 1]) if self.nets.alternates(trial) else None
        links, adapters = tuple(self.load.left), tuple(self.net_left)
        key = of_channel, channel, last, trial.hops, links, adapters
        refused = self.recorder.counts() if self.recorder else None
        return SearchState(key, links, adapters, left, self.found, channel, repeated, refused)

    def tries(self, state: SearchState) -> int | None:
        """How many tries it takes to find that nothing better follows from a state.

        None if that is not known of the state, or if fewer tries are left.
        """
        self.looks[self.kind] += 1
        known = self._dead_ends.get(state.key)
        if known is None or known.tries > state.left:
            return None
        self.saved[self.kind] += known.tries
        self.trial.latency_us = known.latency_us  # as after the last adapter that was tried
        if self.recorder and known.refused:
            self.recorder.again(known.refused)
        return known.tries

    def store(self, state: SearchState, left: int) -> None:
        """Stores a state from which everything was tried without success, when everything is as it was before."""
        repeated = state.repeated is not None and self.repeated[state.channel] != state.repeated
        if left <= 0 or self.found != state.found or repeated:
            return
        if state.links == tuple(self.load.left) and state.adapters == tuple(self.net_left):
            refused = self.recorder.since(state.refused) if self.recorder and state.refused else None
            self._dead_ends[state.key] = _DeadEnd(state.left - left, self.trial.latency_us, refused)

    def better(self) -> None:
        """Notes that a better graph was found, with which everything is compared from here on."""
        self.found += 1
        self._dead_ends.clear()


NO_TYPE = -1
# Tries left; bandwidth left on links; bandwidth left on adapters; hops
After = tuple[int, list[float], list[float], int]


class FailedSearches:
    """Searches of one system that found nothing better, with what each left. The same search would find nothing
    again."""

    def __init__(self, system: System) -> None:
        self.system = system
        inside = (DeviceKind.GPU, DeviceKind.NVS)
        self._intra_types = {type_ for kind in inside for type_ in self._types(kind, inside)}
        self._inter_types = {
            *self._types(DeviceKind.GPU, (DeviceKind.NET,)),
            *self._types(DeviceKind.NET, (DeviceKind.GPU,)),
        }
        self._after: dict[Hashable, After] = {}

    def _types(self, kind: DeviceKind, to: tuple[DeviceKind, ...]) -> set[int]:
        nodes = self.system.nodes[kind]
        return {path.type for node in nodes for far in to for path in node.paths.get(far, ())}

    def key(self, trial: Trial, best: Trial, links: Sequence[float], nets: Sequence[float]) -> Hashable:
        """The key of a search: everything that its result depends on.

        If no path has the type up to which paths are allowed, the next nearer type that some path has stands in the
        key, because both allow the same paths.
        """
        speeds = trial.bw_intra, trial.bw_inter, trial.min_channels, trial.cross_nic
        to_beat = best.pattern, best.cross_nic, best.channels, best.bw_intra, best.bw_inter, best.hops
        intra = max((type_ for type_ in self._intra_types if type_ <= trial.type_intra), default=NO_TYPE)
        inter = max((type_ for type_ in self._inter_types if type_ <= trial.type_inter), default=NO_TYPE)
        asked = trial.pattern, trial.in_network, trial.max_channels, trial.same_channels
        return speeds, to_beat, asked, intra, inter, trial.hops, tuple(links), tuple(nets)

    def known(self, key: Hashable) -> After | None:
        """How an earlier search with this key ended; None for a new search."""
        return self._after.get(key)

    def remember(self, key: Hashable, after: After) -> None:
        """Keeps how a search ended."""
        self._after[key] = after
