"""Places from which channels were laid in vain: what led there another way need not be tried again.

A search comes to the same GPU with the same links taken in many orders, and finds nothing better each time. How many
tries that cost NCCL is known then, so they are counted without being made. What is tried from a place goes by the links
and adapters that are left, the GPUs of the channel, and its adapters, and by those of the last one where channels
alternate; by the order of the channel's GPUs only where the next channel repeats it: then a place within the channel is
not remembered, and one between both goes by that order, too. What refused on the way is counted once more each time.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tuner.base.names import Pattern
from tuner.graphs.load import Load
from tuner.graphs.nets import Nets
from tuner.graphs.recorded import Counts, Recorder
from tuner.graphs.trial import Trial

NOWHERE = -1
# After so many looks in searches of a kind, each has to have saved so many tries, or no more are made.
LOOKS, WORTH = 2048, 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a channel was gone on from, and what was when the search came there."""

    key: Hashable
    links: tuple[float, ...]
    adapters: tuple[float, ...]
    left: int  # tries
    found: int  # better graphs so far
    channel: int
    repeated: int | None  # how often the order of the channel's GPUs was; None where the key has all that may be
    refused: Counts | None  # so far, where it is written down


@dataclass(frozen=True, slots=True)
class _InVain:
    """What it takes to find nothing better from a place, and what refused there."""

    tries: int
    latency_us: float
    refused: Counts | None


class Seen:
    """The places of one search at a time, on one system."""

    def __init__(self, load: Load, nets: Nets, net_left: list[float]) -> None:
        self.load, self.nets, self.net_left = load, nets, net_left
        self.looks, self.saved = Counter[Hashable](), Counter[Hashable]()  # tries, by the kind of search
        self.trial: Trial
        self.recorder: Recorder | None = None

    def begin(self, trial: Trial) -> None:
        """Forgets all places, for another search."""
        self.trial = trial
        self.kind = trial.pattern, trial.cross_nic
        self.repeated = Counter[int]()  # how often the order of a channel's GPUs was, by channel
        self.found = 0  # better graphs
        self._in_vain: dict[Hashable, _InVain] = {}

    @property
    def worth_it(self) -> bool:
        """Whether looking saves more than it costs."""
        looks = self.looks[self.kind]
        return looks < LOOKS or self.saved[self.kind] > WORTH * looks

    def place(self, state: tuple[int, ...], left: int) -> Place:
        """The place of a state of the channel that is laid."""
        trial, channel = self.trial, self.trial.channels
        entered, exited = trial.inter[channel]
        first = trial.intra[channel][0] if state[1] else NOWHERE
        has_exited = state[2] < 0 or (trial.pattern is Pattern.BalancedTree and state[1] > 0)
        return self._place((state, first, entered, exited if has_exited else NOWHERE), left, self.repeated[channel])

    def between_channels(self, left: int, repeats: bool) -> Place:
        """The place where one channel is done and the next, which may repeat its order of GPUs, is not begun."""
        last = self.trial.channels - 1
        if not repeats:
            return self._place(None, left, None)
        self.repeated[last] += 1  # as it is, or was when the search was there before
        return self._place(tuple(self.trial.intra[last]), left, None)

    def _place(self, of_channel: Hashable, left: int, repeated: int | None) -> Place:
        trial, channel = self.trial, self.trial.channels
        last = tuple(trial.inter[channel - 1]) if self.nets.alternates(trial) else None
        links, adapters = tuple(self.load.left), tuple(self.net_left)
        key = of_channel, channel, last, trial.hops, links, adapters
        refused = self.recorder.counts() if self.recorder else None
        return Place(key, links, adapters, left, self.found, channel, repeated, refused)

    def tries(self, place: Place) -> int | None:
        """How many tries it takes to find nothing better from there; None where that is not known."""
        self.looks[self.kind] += 1
        known = self._in_vain.get(place.key)
        if known is None or known.tries > place.left:
            return None
        self.saved[self.kind] += known.tries
        self.trial.latency_us = known.latency_us  # as the last adapter that was tried leaves it
        if self.recorder and known.refused:
            self.recorder.again(known.refused)
        return known.tries

    def leave(self, place: Place, left: int) -> None:
        """Remembers a place when all was tried from there, in vain, and all is again as it was."""
        repeated = place.repeated is not None and self.repeated[place.channel] != place.repeated
        if left <= 0 or self.found != place.found or repeated:
            return
        if place.links == tuple(self.load.left) and place.adapters == tuple(self.net_left):
            refused = self.recorder.since(place.refused) if self.recorder and place.refused else None
            self._in_vain[place.key] = _InVain(place.left - left, self.trial.latency_us, refused)

    def better(self) -> None:
        """A better graph was found: all is to be compared with that one from here on."""
        self.found += 1
        self._in_vain.clear()
