"""Streams with a virtual clock each: what was put on them is done as soon as everything it waits for is known."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

NOT_READY = 600  # cudaErrorNotReady


class Work(Protocol):
    """One thing on a stream."""

    def done_us(self, start_us: float) -> float | None:
        """Does it; when it ends if it begins at ``start_us``. None where that cannot be known yet."""


@dataclass(slots=True)
class Own:
    """What only concerns its own device: done at once."""

    do: Callable[[], None]

    def done_us(self, start_us: float) -> float:
        """It takes no time: what is timed are collectives."""
        self.do()
        return start_us


@dataclass(slots=True, eq=False)
class Mark:
    """An event, recorded."""

    at_us: float | None = None

    def done_us(self, start_us: float) -> float:
        """Its time is when everything before is done."""
        self.at_us = start_us
        return start_us


@dataclass(slots=True, eq=False)
class Stream:
    """``captured`` is the work of the graph that is being made of it; None where it runs."""

    device: int
    at_us: float = 0.0
    error: int = 0  # of CUDA, which stays
    captured: list[Work] | None = None
    _waiting: deque[tuple[Work, float]] = field(default_factory=deque)

    def put(self, work: Work, issued_us: float) -> None:
        """It begins when the work before is done, and not before the host has issued it."""
        if self.captured is not None:
            self.captured.append(work)
        else:
            self._waiting.append((work, issued_us))

    @property
    def busy(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._waiting)

    def go_on(self) -> bool:
        """Does what can be done; whether that is all."""
        while self._waiting and not self.error:
            work, issued_us = self._waiting[0]
            try:
                done_us = work.done_us(max(self.at_us, issued_us))
            except PlantedError as planted:
                self.error = planted.status
                return False
            if done_us is None:
                return False
            self.at_us = done_us
            self._waiting.popleft()
        return not self._waiting


class PlantedError(Exception):
    """An error of CUDA ends the stream's work."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
