"""What rank 0 lets every process do, and what each says of it, as messages of :mod:`tuner.bench.gpu.rendezvous`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from tuner.base.dataclass import dataclass
from tuner.base.errors import MeasuringFailed
from tuner.base.names import Collective, DataType, Op
from tuner.times.records.samples import Point

Message: TypeAlias = Mapping[str, Any]  # JSON on its way between processes
CLOSE: Message = {"do": "close"}
RENEW: Message = {"do": "renew"}  # as close; fresh processes will meet again


@dataclass(frozen=True, slots=True)
class Order:
    """One point to run under a ``table``, its data drawn by ``seed``: once checked, then timed ``repeats`` times."""

    point: Point
    table: str | None
    repeats: int
    seed: int

    def message(self) -> Message:
        """To be shared."""
        return {"do": "run", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one process measured: its times in us, how many of its results were wrong.

    ``host_us`` is the least that it took to start one call; None without a time. ``whole_us`` is what all calls
    together took each of its ranks, us.
    """

    times_us: tuple[float, ...]
    wrong: int
    host_us: float | None = None
    whole_us: tuple[float, ...] = ()

    def message(self) -> Message:
        """To be gathered."""
        said = {"times_us": list(self.times_us), "wrong": self.wrong, "host_us": self.host_us}
        return {**said, "whole_us": list(self.whole_us)}


def failed(rank: int, error: Exception) -> Message:
    """To be gathered in the place of an answer."""
    return {"error": f"rank {rank}: {error}"}


def order(message: Message) -> Order | None:
    """What was shared; None where the communicator is to be closed."""
    if message["do"] in (CLOSE["do"], RENEW["do"]):
        return None
    point = message["point"]
    return Order(
        Point(
            Collective(point["collective"]),
            point["bytes"],
            DataType(point["dtype"]),
            Op(point["op"]),
            point["in_place"],
            point["graph"],
        ),
        message["table"],
        message["repeats"],
        message["seed"],
    )


def answer(message: Message) -> Answer:
    """What was gathered. MeasuringFailed where the process says that it failed."""
    if "error" in message:
        raise MeasuringFailed(message["error"])
    return Answer(tuple(message["times_us"]), message["wrong"], message["host_us"], tuple(message.get("whole_us", ())))
