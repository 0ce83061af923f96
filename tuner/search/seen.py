"""Places from which channels were laid in vain: what led there another way need not be tried again.

A search comes to the same GPU with the same links taken in many orders, and finds nothing better each time. How many
tries that cost NCCL is known then, so they are counted without being made. What is tried from a place goes by the links
and adapters that are left, the GPUs of the channel, and its adapters, and by those of the last one where channels
alternate; by the order of the channel's GPUs only where the next channel repeats it, and then the place is not
remembered.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tuner.base.names import Pattern
from tuner.search.load import Load
from tuner.search.nets import Nets
from tuner.search.trial import Trial

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
    repeated: int  # how often the order of the channel's GPUs was


class Seen:
    """The places of one search at a time, on one system."""

    def __init__(self, load: Load, nets: Nets, net_left: list[float]) -> None:
        self.load, self.nets, self.net_left = load, nets, net_left
        self.looks, self.saved = Counter[Hashable](), Counter[Hashable]()  # tries, by the kind of search
        self.trial: Trial

    def begin(self, trial: Trial) -> None:
        """Forgets all places, for another search."""
        self.trial = trial
        self.kind = trial.pattern, trial.cross_nic
        self.repeated = Counter[int]()  # how often the order of a channel's GPUs was, by channel
        self.found = 0  # better graphs
        self._in_vain: dict[Hashable, tuple[int, float]] = {}

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
        return self._place((state, first, entered, exited if has_exited else NOWHERE), left)

    def between_channels(self, left: int) -> Place:
        """The place where one channel is done and the next is not begun."""
        return self._place(None, left)

    def _place(self, of_channel: Hashable, left: int) -> Place:
        trial, channel = self.trial, self.trial.channels
        last = tuple(trial.inter[channel - 1]) if self.nets.alternates(trial) else None
        links, adapters = tuple(self.load.left), tuple(self.net_left)
        key = of_channel, channel, last, trial.hops, links, adapters
        return Place(key, links, adapters, left, self.found, channel, self.repeated[channel])

    def tries(self, place: Place) -> int | None:
        """How many tries it takes to find nothing better from there; None where that is not known."""
        self.looks[self.kind] += 1
        known = self._in_vain.get(place.key)
        if known is None or known[0] > place.left:
            return None
        self.saved[self.kind] += known[0]
        self.trial.latency_us = known[1]  # as the last adapter that was tried leaves it
        return known[0]

    def leave(self, place: Place, left: int) -> None:
        """Remembers a place when all was tried from there, in vain, and all is again as it was."""
        if left <= 0 or self.found != place.found or self.repeated[place.channel] != place.repeated:
            return
        if place.links == tuple(self.load.left) and place.adapters == tuple(self.net_left):
            self._in_vain[place.key] = place.left - left, self.trial.latency_us

    def better(self) -> None:
        """A better graph was found: all is to be compared with that one from here on."""
        self.found += 1
        self._in_vain.clear()
