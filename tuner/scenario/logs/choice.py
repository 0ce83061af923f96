"""Reads NCCL's log lines about one collective: which algorithm and protocol it used.

Sources: topoGetAlgoInfo (v2.20.5-1 to v2.23.4-1) and scheduleCollTasksToPlan (v2.24.3-1 and later), src/enqueue.cc.
"""

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

from tuner.base.expressions import expression
from tuner.base.names import Algorithm, Collective, Protocol

E = TypeVar("E", bound=IntEnum)

# 2.24 and later: printed when the collective is put into a plan
_PLANNED = expression(r"\b(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
# 2.20 to 2.23: printed when NCCL picks, with numbers; 2.23 also names the collective
_PICKED = expression(r"(?:\b(\w+): )?(?<!\d)(\d+) Bytes -> Algo (\d+) proto (\d+) time ([0-9]+\.[0-9]{6})")


class PrintedChoice(NamedTuple):
    """The choice that a line prints, with NCCL's names; None for what the release does not print."""

    # For a planned collective, count times type size, so per rank for AllGather and ReduceScatter; else nBytes
    bytes: int
    algorithm: str
    protocol: str
    collective: str | None = None
    channel_lo: int | None = None
    channel_hi: int | None = None
    time_us: str | None = None

    @property
    def planned(self) -> bool:
        """Whether the line has the longer form of later releases, which has the channels."""
        return self.channel_hi is not None


@lru_cache(maxsize=4096)  # jobs print the same few lines a million times
def printed(text: str) -> PrintedChoice | None:
    """The choice that a line prints; None if it prints none."""
    if match := _PLANNED.search(text):
        collective, size, algorithm, protocol, low, high = match.groups()
        return PrintedChoice(int(size), algorithm, protocol, collective, int(low), int(high))
    if match := _PICKED.search(text):
        collective, size, algorithm, protocol, time_us = match.groups()
        return PrintedChoice(int(size), algorithm, protocol, collective, time_us=time_us)
    return None


def algorithm(text: str) -> Algorithm | None:
    """The algorithm with this number, or with this name in NCCL's logs or kernels: ``COLLNET_DIRECT``, ``NVLS_TREE``,
    ``NVLSTree``. None for any other text.
    """
    return _named(Algorithm, text)


def protocol(text: str) -> Protocol | None:
    """The protocol with this number or NCCL's name, in upper or lower case; None for any other text."""
    return _named(Protocol, text)


def collective(text: str) -> Collective | None:
    """The collective with this number or NCCL's name, in upper or lower case; None for any other text."""
    return _named(Collective, text)


@lru_cache(maxsize=256)  # traces contain the same few names a million times
def _named(members: type[E], text: str) -> E | None:
    wanted = text.replace("_", "").lower()
    return next((m for m in members if wanted in (m.name.lower(), str(m.value))), None)
