"""Calls that may bypass the algorithms, where a tuner plugin is loaded: what it has a say in, and what NCCL runs."""

from dataclasses import field
from enum import Enum

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Protocol
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Selection
from tuner.plugin.asked import Asked
from tuner.plugin.dry_run import DecidingRows


class Say(Enum):
    """What of a call is a tuner's to decide."""

    none = "no say"  # NCCL asks none, or takes no notice of the answer
    protocol = "its protocol"  # NCCL takes a symmetric kernel only where the answer is LL
    choice = "its choice"  # the call takes the classic path


@dataclass(frozen=True, slots=True)
class Bypass:
    """What takes a call instead of an algorithm; ``channels`` are its blocks.

    ``time_us`` is by NCCL's model of symmetric kernels, which is another than that of algorithms: None of copy engines.
    """

    name: str = field(metadata=json_form("leaves_for"))
    channels: int
    threads: int
    time_us: float | None


def bypass_of(selection: Selection, request: Request, size: int, path: NonClassicPath) -> Bypass:
    """Of a call of ``size`` bytes (nBytes) that goes by ``path``."""
    times_us = (
        shortest(each.time_us)
        for each in symmetric.weighed(selection.communicator, request, size)
        if each.kernel == path.kernel
    )
    return Bypass(path.name, path.blocks, path.threads, next(times_us, None))


class ProtocolOfTuner:
    """The protocol that the classic path would take for one call by a plugin's answer, if NCCL asks for it.

    It does before it gives a call a symmetric kernel of low latency, in releases whose rule says so.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._question: tuple[Request, int] | None = None

    def __call__(self, request: Request, size: int) -> Protocol | None:
        """Of ``size`` bytes (nBytes), as NCCL asks; None where it has nothing for that on the classic path."""
        self._question = request, size
        try:
            return self._asked(request, size).algo_proto[1]
        except NoAlgorithm:
            return None

    def say(self, path: NonClassicPath | None) -> Say:
        """What of the call, which goes by ``path``, was the tuner's to decide."""
        if path is None:
            return Say.choice
        return Say.none if self._question is None else Say.protocol

    def rows(self) -> DecidingRows:
        """The rows by which the plugin said the protocol; none where it was not asked for."""
        if self._question is None:
            return DecidingRows()
        (costs_us,) = self._asked.selection.cost_table(*self._question)
        return self._asked.rows(self._asked.call(*self._question), costs_us)
