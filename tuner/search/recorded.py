"""What is written down of a search, for an explanation."""

from collections import Counter
from dataclasses import dataclass

from tuner.search.trial import Trial


@dataclass(frozen=True, slots=True)
class Attempt:
    """One search; ``asked`` is what it asked for, as it was then."""

    asked: Trial
    allowed: int  # GPUs that might be tried
    left: int  # of these
    found: bool  # something better
    known: bool  # it was the same as one before
    channels: int  # of the best graph after it
    refused: Counter[int]  # links that had too little left, by number
