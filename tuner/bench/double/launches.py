"""What libnccl launched, from the record of the simulated CUDA: which collective, and by which combination."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner._native._sim import ffi
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.bench.double import machine
from tuner.oracle.answers import PATTERNS
from tuner.times.records.samples import Combination, Point

_REDUCING = (Collective.Reduce, Collective.ReduceScatter, Collective.AllReduce)
_SPREAD = (Collective.AllGather, Collective.ReduceScatter)


@dataclass(frozen=True, slots=True)
class Communicator:
    """One rank's part of a communicator; ``name`` is the same at all ranks."""

    name: str
    rank: int
    ranks: int
    device: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One collective at one rank. ``count`` is what its function took, addresses are the device's."""

    communicator: Communicator
    collective: Collective
    dtype: DataType
    op: Op
    root: int
    count: int
    send: int
    receive: int
    stream: int
    device: int
    combination: Combination

    @property
    def point(self) -> Point:
        """The call; whether in place or in a graph makes no difference to its planted time."""
        spread = self.communicator.ranks if self.collective in _SPREAD else 1
        return Point(self.collective, self.count * spread * self.dtype.size_bytes, self.dtype, self.op)


class Launches:
    """Reads the record: a kernel runs the call that its stream got last before."""

    def __init__(self) -> None:
        self._patterns = machine.machine().patterns
        self._communicators: dict[int, Communicator] = {}

    def new(self) -> list[Launch]:
        """What was launched since the last look. RuntimeError for launches that no call explains."""
        seen = machine.seen()
        for each in seen.joined:
            name = bytes(ffi.buffer(each.id)).hex()
            self._communicators[_int(each.comm)] = Communicator(name, each.rank, each.ranks, each.device)
        waiting: dict[int, list[Any]] = defaultdict(list)
        for each in seen.called:
            waiting[_int(each.stream)].append(each)
        found = []
        for number, kernel in enumerate(seen.kernels):
            calls = waiting[_int(kernel.stream)]
            here = [call for call in calls if call.kernels <= number]
            if len(here) != 1:
                raise RuntimeError(f"a kernel was launched for {len(here)} calls; valid: a launch for each call")
            (call,) = here
            calls.remove(call)
            until = calls[0].operations if calls else len(seen.operations)
            operations = [each for each in seen.operations[call.operations : until] if each.comm == call.comm]
            found.append(self._launch(call, kernel, self._combination(operations, kernel)))
        return found

    def _launch(self, call: Any, kernel: Any, combination: Combination) -> Launch:
        collective = Collective(call.collective)
        return Launch(
            communicator=self._communicators[_int(call.comm)],
            collective=collective,
            dtype=DataType(call.type),
            op=Op(call.op) if collective in _REDUCING else Op.sum,
            root=call.root,
            count=call.count,
            send=_int(call.send),
            receive=_int(call.receive),
            stream=_int(call.stream),
            device=kernel.device,
            combination=combination,
        )

    def _combination(self, operations: Sequence[Any], kernel: Any) -> Combination:
        """By the operations that NCCL prepares for its network, one a channel, whether they are needed or not."""
        chosen = {(self._patterns[str(each.pattern)], each.protocol) for each in operations}
        algorithms = {PATTERNS.get(pattern.removeprefix("ncclPattern")) for pattern, _ in chosen}
        protocols = {Protocol(protocol) for _, protocol in chosen}
        if len(algorithms) != 1 or len(protocols) != 1 or None in algorithms:
            raise RuntimeError(f"a kernel was launched for operations {sorted(chosen)}; valid: those of one collective")
        (algorithm,), (protocol,) = algorithms, protocols
        assert isinstance(algorithm, Algorithm)
        return Combination(algorithm, protocol, int(kernel.grid_x))


def _int(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
