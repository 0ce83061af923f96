"""One kind of call, as rules see it and as Python users describe it, and what can carry it instead of the
algorithms."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypedDict, Unpack

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.names import SYMMETRIC, Buffers, Collective, DataType, Op, Sides, Windows, by_name, windows_of
from tuner.base.numerics import FloatArray, IntArray, SizeArray, log2i_array

# Operations that scale: ncclDevPreMulSum for floats, ncclDevSumPostDiv for integers.
SCALING_OPS = (Op.avg,)
FP8 = (DataType.float8e4m3, DataType.float8e5m2)


@dataclass(frozen=True, slots=True)
class CallConfiguration:
    """A call's own configuration, NCCL's ncclCollConfig_t (2.31.2 and later); a field is None if it is not set."""

    alg_selection: str | None = None
    force_alg_selection: int | None = None  # if not set, it counts as 1: a selection that cannot be met is an error
    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_ctas: int | None = None

    @property
    def alone(self) -> bool:
        """Whether NCCL chooses for the call and launches it separately from the other calls of its group."""
        return bool(self.alg_selection) or any(
            number is not None for number in (self.min_ctas, self.max_ctas, self.nvls_ctas)
        )

    @property
    def falls_back(self) -> bool:
        """Whether NCCL makes its own choice if it cannot meet the call's selection."""
        return self.force_alg_selection == 0


CALL_FIELDS = {
    "algSelection": "alg_selection",
    "forceAlgSelection": "force_alg_selection",
    "minCTAs": "min_ctas",
    "maxCTAs": "max_ctas",
    "nvlsCTAs": "nvls_ctas",
}
WITHOUT_EFFECT = ("cgaClusterSize", "userProfilerTag")  # fields that affect no choice
FIELDS = (*CALL_FIELDS, *WITHOUT_EFFECT)


INT32 = range(-(2**31), 2**31)


def parse_call_configuration(given: Mapping[str, str | int]) -> CallConfiguration | None:
    """The configuration of calls, from its fields by NCCL's names; None if no field is set.

    BadInput for an unknown field, and for a value with which the call fails.
    """
    if not given:
        return None
    values: dict[str, str | int] = {}
    for name, value in given.items():
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS)
            raise BadInput(f"field {name} of a call's configuration is unknown or not emulated{hint}; {one_of(FIELDS)}")
        values[name] = str(value) if name == "algSelection" else _integer(name, value)
    forced = values.get("forceAlgSelection", 1)
    if forced not in (0, 1):
        raise BadInput(
            f"with forceAlgSelection={forced} in its configuration the call returns ncclInvalidArgument: valid are 0 "
            "and 1"
        )
    return CallConfiguration(**{CALL_FIELDS[name]: value for name, value in values.items() if name in CALL_FIELDS})  # type: ignore[arg-type]


def _integer(name: str, value: str | int) -> int:
    try:
        number = int(str(value), 0)
    except ValueError:
        raise BadInput(f"{name}={value} in a call's configuration has to be a whole number") from None
    if number not in INT32:
        raise BadInput(f"{name}={value} in a call's configuration: valid are {INT32.start} to {INT32.stop - 1}")
    return number


@dataclass(frozen=True, slots=True)
class Request:
    """A collective on a type with an operation; ``pipelined`` is NCCL's numPipeOps.

    ``preset_channels``: the channels that old releases fix for several operations together before they pick; 0 if none.
    ``in_place``: what is received replaces what is sent, as in nccl-tests' in-place columns.
    """

    collective: Collective
    dtype: DataType
    op: Op
    pipelined: int = 1
    buffers: Buffers = Buffers.plain
    preset_channels: int = 0
    in_place: bool = False
    windows: Windows = SYMMETRIC  # for buffers in windows
    configuration: CallConfiguration | None = None

    @property
    def title(self) -> str:
        """The request in words, for headings: ``AllReduce, float32 sum``."""
        op = "" if self.moves_only else f" {self.op.name}"
        buffers = "" if self.buffers is Buffers.plain else f", {self.buffers.name} buffers{self.windows.words}"
        return f"{self.collective.name}, {self.dtype.name}{op}{buffers}{', in place' if self.in_place else ''}"

    @property
    def symmetric(self) -> Sides:
        """Which buffers are in symmetric windows, by the windows' flags."""
        return self.windows.symmetric if self.buffers is Buffers.window else Sides.none

    @property
    def moves_only(self) -> bool:
        """Whether the collective reduces nothing (AllGather, Broadcast). NCCL runs such a collective on bytes."""
        return self.collective in (Collective.AllGather, Collective.Broadcast)

    @property
    def device_dtype(self) -> DataType:
        """The type that the device sees: bytes if the collective only moves data."""
        return DataType.int8 if self.moves_only else self.dtype

    @property
    def scales(self) -> bool:
        """Whether the operation multiplies by a factor, as the average does."""
        return not self.moves_only and self.op in SCALING_OPS

    def traffic_per_byte(self, ranks: int) -> int:
        """Bytes a rank moves per byte of its count. Source: ncclFuncTrafficPerByte, src/enqueue.cc, v2.28.9-1."""
        if self.collective is Collective.AllReduce:
            return 2
        return ranks if self.spreads else 1

    @property
    def spreads(self) -> bool:
        """Whether nBytes counts the data of all ranks together (AllGather, ReduceScatter)."""
        return self.collective in (Collective.AllGather, Collective.ReduceScatter)

    def parts(self, ranks: int) -> int:
        """The number of parts in nBytes: one for each rank if nBytes covers all ranks together, else 1."""
        return ranks if self.spreads else 1

    def unit_bytes(self, ranks: int) -> int:
        """The nBytes of a call is a multiple of this number: one element in each part."""
        return self.dtype.size_bytes * self.parts(ranks)


def ring_steps(collective: Collective, ranks: int) -> int:
    """The steps of a ring for a collective (nsteps)."""
    if collective is Collective.AllReduce:
        return 2 * (ranks - 1)
    return ranks - 1 if collective in (Collective.AllGather, Collective.ReduceScatter) else ranks


class MessageSizes:
    """An array of nBytes with what several rules derive from it, computed once."""

    def __init__(self, nbytes: SizeArray) -> None:
        self.nbytes = nbytes

    @cached_property
    def as_float(self) -> FloatArray:
        """``nbytes`` as float32, [size]."""
        return self.nbytes.astype(np.float32)

    @cached_property
    def log_of_64_bytes(self) -> IntArray:
        """log2(nBytes / 64), [size], -1 below 64 bytes."""
        return log2i_array(self.nbytes >> np.uint64(6))


class CallKind(TypedDict, total=False):
    """The kind of a call, without its collective and size; by default float32, sum, plain buffers, out of place.

    ``config``: fields of ncclCollConfig_t, the call's own configuration. If ``buffers`` is "window", ``windows`` says
    which buffers are in windows ("send", "receive", "both"; the other is plain), and ``window_flags`` which flags these
    windows have, NCCL_WIN_* ("coll-symmetric").
    """

    dtype: DataType | str
    op: Op | str
    buffers: Buffers | str
    in_place: bool
    windows: str
    window_flags: str | Sequence[str]
    config: Mapping[str, str | int]


def request(collective: Collective | str, **kind: Unpack[CallKind]) -> Request:
    """A call described by NCCL's names. BadInput for an unknown name."""
    if unknown := sorted(kind.keys() - CallKind.__annotations__.keys()):
        raise BadInput(f"unknown {', '.join(unknown)}: valid are {', '.join(CallKind.__annotations__)}")
    buffers = by_name(Buffers, kind.get("buffers", Buffers.plain), "kind of buffers")
    return Request(
        by_name(Collective, collective, "collective"),
        by_name(DataType, kind.get("dtype", DataType.float32), "type"),
        by_name(Op, kind.get("op", Op.sum), "operation"),
        buffers=buffers,
        in_place=kind.get("in_place", False),
        windows=windows_of(buffers, kind.get("windows"), kind.get("window_flags")),
        configuration=parse_call_configuration(kind.get("config") or {}),
    )


# What carries a collective that bypasses the algorithms: no algorithm, protocol and channels, but a kernel of another
# kind or none.


@dataclass(frozen=True, slots=True)
class NonClassicPath:
    """The kernel or the copy engines that carry a call instead of an algorithm. Copy engines run no kernel."""

    kernel: str | None  # NCCL's name, such as "AllReduce_AGxLL_R"; None: copy engines
    blocks: int
    threads: int  # threads of a block

    @property
    def name(self) -> str:
        """The name of what carries the call, as commands print it."""
        return "copy engines" if self.kernel is None else f"symmetric kernel {self.kernel}"


COPY_ENGINES = NonClassicPath(None, 0, 0)
