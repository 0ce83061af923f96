"""How much tests draw that compare random communicators and calls with the live libnccl."""

import zlib
from dataclasses import dataclass
from random import Random

import numpy as np


@dataclass(frozen=True)
class Draws:
    """``times`` as many as a test draws by itself; ``seed`` is always the same communicators and calls."""

    times: int
    seed: str

    def random(self, what: str) -> Random:
        """A generator of a test's own."""
        return Random(f"{self.seed} {what}")

    def generator(self, what: str) -> np.random.Generator:
        """The same as numpy has it."""
        return np.random.default_rng(zlib.crc32(f"{self.seed} {what}".encode()))
