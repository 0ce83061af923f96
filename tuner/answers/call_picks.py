"""The picks of one call, with what its frame shows beside them: bandwidths and the runner-up."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.frames import Column, Named
from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.base.numerics import FloatArray, SizeArray
from tuner.base.sizes import human_bytes
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.times.costmodels.bandwidth import bus_factor

NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class RunnersUp:
    """The fastest combination besides the pick, an element a size; ``time_us`` float32 [size].

    Where there is no other, ``algorithm`` and ``protocol`` are -1 and the time is not a number.
    """

    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    time_us: FloatArray


class CallPicks(Picks):
    """What NCCL picks for ``request``, an element a size: :class:`tuner.emulator.selection.Picks`, and beside them
    nccl-tests' bandwidths at the predicted time and the runner-up, computed when asked for.
    """

    def __init__(self, stored: tuple[NDArray[Any], ...], request: Request, selection: Selection) -> None:
        super().__init__(*stored)
        self.request, self.selection = request, selection

    def __repr__(self) -> str:
        if not len(self.bytes):
            return f"<{type(self).__name__}: {self.request.title}, no sizes>"
        names = dict.fromkeys(f"{a.name}/{p.name}" for a, p in self.algo_protos())
        ends = dict.fromkeys(human_bytes(int(size)) for size in (self.bytes.min(), self.bytes.max()))
        sizes = f"{len(self.bytes)} sizes, {' to '.join(ends)}" if len(self.bytes) > 1 else " ".join(ends)
        return f"<{type(self).__name__}: {self.request.title}, {sizes}: {', '.join(names)}>"

    @property
    def algbw_gbs(self) -> NDArray[np.float64]:
        """Size over predicted time, GB/s (1e9 bytes per second), [size]."""
        gbs: NDArray[np.float64] = self.bytes.astype(np.float64) / self.time_us / 1000
        return gbs

    @property
    def busbw_gbs(self) -> NDArray[np.float64]:
        """nccl-tests' bus bandwidth at the predicted time, GB/s, [size]."""
        return self.algbw_gbs * float(bus_factor(self.request.collective, self.selection.communicator.ranks))

    @cached_property
    def runners_up(self) -> RunnersUp:
        """The fastest combination besides each pick, by the cost table."""
        sizes: SizeArray = self.bytes
        table_us = self.selection.cost_table(self.request, sizes).reshape(len(sizes), len(ALGO_PROTOS))
        others_us = np.where(table_us >= 0, table_us, np.float32(np.inf))
        rows = np.arange(len(sizes))
        others_us[rows, self.combinations] = np.inf
        best = others_us.argmin(axis=1)
        time_us = others_us[rows, best]
        there = np.isfinite(time_us)
        algorithm, protocol = np.divmod(best, len(Protocol))
        return RunnersUp(
            np.where(there, algorithm, NOTHING).astype(np.int8),
            np.where(there, protocol, NOTHING).astype(np.int8),
            np.where(there, time_us, np.float32(np.nan)),
        )

    def columns(self) -> dict[str, Column]:
        """A row a size: those of Picks, algbw_gbs, busbw_gbs, and runner_up_algorithm, _protocol and _time_us."""
        second = self.runners_up
        return {
            **super().columns(),
            "algbw_gbs": self.algbw_gbs,
            "busbw_gbs": self.busbw_gbs,
            "runner_up_algorithm": Named(Algorithm, second.algorithm),
            "runner_up_protocol": Named(Protocol, second.protocol),
            "runner_up_time_us": second.time_us,
        }
