"""Places from which channels were laid in vain: what led there another way need not be tried again.

A search comes to the same GPU with the same links taken in many orders, and finds nothing better each time. How many
tries that cost NCCL is known then, so they are counted without being made. What is tried from a place goes by the links
and adapters that are left, the GPUs of the channel, and the adapters of this channel and the last; by the order of the
channel's GPUs only where the next channel repeats it, and then the place is not remembered.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tuner.search.load import Load
from tuner.search.trial import Trial

NOWHERE = -1
LOOKS, WORTH = 4096, 3  # after so many looks, each has to have saved so many tries, or no more are made


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

    def __init__(self, load: Load, net_left: list[float]) -> None:
        self.load, self.net_left = load, net_left
        self.looks = self.saved = 0  # tries
        self.trial: Trial

    def begin(self, trial: Trial) -> None:
        """Forgets all places, for another search."""
        self.trial = trial
        self.repeated = Counter[int]()  # how often the order of a channel's GPUs was, by channel
        self.found = 0  # better graphs
        self._in_vain: dict[Hashable, tuple[int, float]] = {}

    @property
    def worth_it(self) -> bool:
        """Whether looking saves more than it costs."""
        return self.looks < LOOKS or self.saved > WORTH * self.looks

    def place(self, state: tuple[int, ...], left: int) -> Place:
        """The place of a state."""
        trial, channel = self.trial, self.trial.channels
        first = trial.intra[channel][0] if state[1] else NOWHERE
        inter = trial.inter[channel - 1 : channel + 1] if channel else trial.inter[:1]
        links, adapters = tuple(self.load.left), tuple(self.net_left)
        key = state, channel, first, tuple(map(tuple, inter)), trial.hops, links, adapters
        return Place(key, links, adapters, left, self.found, channel, self.repeated[channel])

    def tries(self, place: Place) -> int | None:
        """How many tries it takes to find nothing better from there; None where that is not known."""
        self.looks += 1
        known = self._in_vain.get(place.key)
        if known is None or known[0] > place.left:
            return None
        self.saved += known[0]
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
