"""The device functions of a release: their numbers in its table, their names, and the kernels that run them."""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import frexp, ldexp
from typing import TYPE_CHECKING, ClassVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.numerics import f32
from tuner.base.registry import Registry, Variant
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.rules.bounds import NVLS
from tuner.emulator.rules.candidate import NVLS_ANY_ORDER, NVLS_SUM_ONLY
from tuner.emulator.rules.schedule.task import CollectiveTask

if TYPE_CHECKING:
    from tuner.emulator.rules.resolved import Rules


SHORT_TYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2")
C_TYPES = (
    *("int8_t", "uint8_t", "int32_t", "uint32_t", "int64_t", "uint64_t"),
    *("half", "float", "double", "__nv_bfloat16"),
)
ALGORITHMS = {
    **{algorithm: algorithm.name.upper() for algorithm in Algorithm},
    Algorithm.CollNetDirect: "COLLNET_DIRECT",
    Algorithm.CollNetChain: "COLLNET_CHAIN",
    Algorithm.NVLSTree: "NVLS_TREE",
}
PROTOCOLS = {protocol: protocol.name.upper() for protocol in Protocol}
SPREADING = (Collective.AllGather, Collective.Broadcast)  # collectives that reduce nothing
INTEGERS = tuple(DataType)[:6]

# What a rule is told about the operations of device functions when it says which types share a function.
SUM, PROD, MIN_MAX, PRE_MUL_SUM, SUM_POST_DIV = OPS = ("Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv")
OF_RULE = {SUM: Op.sum, PROD: Op.prod, MIN_MAX: Op.max, PRE_MUL_SUM: Op.prod, SUM_POST_DIV: Op.avg}


class DeviceFunctions(Variant, ABC):
    """Names and numbers of device functions, and the kernels that run them."""

    EXCHANGES: ClassVar[str] = "ncclDevKernel_SendRecv"  # the kernel of sends and receives

    @abstractmethod
    def name(self, communicator: Comm, task: CollectiveTask) -> str:
        """The symbol of the device function that runs a task."""

    @abstractmethod
    def __call__(self, communicator: Comm, task: CollectiveTask) -> int:
        """The number in the device's table of the function that runs a task."""

    @abstractmethod
    def _kernel(self, communicator: Comm, task: CollectiveTask) -> tuple[str, bool]:
        """The kernel that is launched for a task, and whether the kernel is built for the task's function."""

    def kernel(self, communicator: Comm, tasks: Iterable[CollectiveTask]) -> str:
        """The symbol, without parameters, of the kernel that runs these tasks: the first one built for any of them."""
        name = ""
        for task in tasks:
            name, specialized = self._kernel(communicator, task)
            if specialized:
                break
        return name

    def kernel_with_exchanges(self, communicator: Comm, tasks: Iterable[CollectiveTask]) -> str:
        """The kernel if sends and receives follow: theirs, unless a kernel is built for one of the collectives."""
        made = (name for name, specialized in (self._kernel(communicator, task) for task in tasks) if specialized)
        return next(made, self.EXCHANGES)

    def broadcasts_together(self) -> str:
        """The kernel of broadcasts from several roots, built for LL. BadInput if the release has no such kernel."""
        raise BadInput("NCCL launches broadcasts from several roots one by one, which is not computed here")


RULES: Registry[DeviceFunctions] = Registry()


def operation(request: Request) -> str | None:
    """The device's operation by its name from 2.19 on; None if nothing is reduced."""
    if request.moves_only:
        return None
    if request.op is Op.avg:
        return SUM_POST_DIV if request.dtype in INTEGERS else PRE_MUL_SUM
    return {Op.sum: SUM, Op.prod: PROD}.get(request.op, MIN_MAX)


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A device function by the parts of its name, in the order by which the table is sorted; "" for a missing part."""

    collective: str
    op: str
    dtype: str
    algorithm: str
    protocol: str

    def symbol(self, prefix: str) -> str:
        """``prefix`` and the parts."""
        parts = self.collective, self.op, self.dtype, self.algorithm, self.protocol
        return "_".join([prefix, *filter(None, parts)])


SEND_AND_RECEIVE = Function("SendRecv", "", "", "", "")
ALL_GATHER_V = tuple(Function("AllGatherV", "", "", "RING", protocol) for protocol in PROTOCOLS.values())


@RULES.variant(nccl.GENERATE_ALL(since="2.19.3"))
class SortedByName(DeviceFunctions):
    """Numbers the built functions, sorted by name; kernels are built for sums of each type with LL by Ring and Tree."""

    further: tuple[Function, ...] = ()  # functions that no collective here runs

    def name(self, communicator: Comm, task: CollectiveTask) -> str:
        return _function(communicator.rules, operation(task.request), task).symbol("ncclDevFunc")

    def __call__(self, communicator: Comm, task: CollectiveTask) -> int:
        numbers = _sorted_numbers(communicator.rules, communicator.release.limits.data_types, self.further)
        return numbers[_function(communicator.rules, operation(task.request), task)]

    def _kernel(self, communicator: Comm, task: CollectiveTask) -> tuple[str, bool]:
        function = _function(communicator.rules, operation(task.request), task)
        if not function.op:
            best = Function(function.collective, "", "", "RING", "LL")
        else:
            plain = CollectiveTask(0, Request(task.request.collective, _type(function), Op.sum), 0, task.ranks)
            algorithm = "TREE" if function.algorithm == "TREE" else "RING"
            dtype = SHORT_TYPES[communicator.rules.function(plain, Op.sum)]
            best = Function(function.collective, SUM, dtype, algorithm, "LL")
        return self._kernel_name(best), best == function

    def _kernel_name(self, of: Function) -> str:
        return of.symbol("ncclDevKernel")


def _type(function: Function) -> DataType:
    return DataType(SHORT_TYPES.index(function.dtype))


def _function(rules: "Rules", op: str | None, task: CollectiveTask) -> Function:
    """The function that runs a task; it may be built for another type."""
    collective, (algorithm, protocol) = task.request.collective.name, task.algo_proto
    dtype = "" if op is None else SHORT_TYPES[rules.function(task, OF_RULE[op])]
    return Function(collective, op or "", dtype, ALGORITHMS[algorithm], PROTOCOLS[protocol])


@lru_cache(maxsize=64)
def _sorted_numbers(rules: "Rules", types: int, further: tuple[Function, ...]) -> Mapping[Function, int]:
    built = {SEND_AND_RECEIVE, *further, *_built(rules, tuple(DataType)[:types])}
    return {function: number for number, function in enumerate(sorted(built))}


def _built(rules: "Rules", types: Sequence[DataType]) -> Iterator[Function]:
    """The functions that are built.

    Source: required_cuda and enumerate_func_rows, src/device/generate.py, v2.28.9-1.
    """
    for collective in Collective:
        algorithms = [each for each in rules.exists[collective] if _has_code(collective, each)]
        ops: tuple[str | None, ...] = (None,) if collective in SPREADING else OPS
        for op, dtype, algorithm, protocol in product(ops, types if ops[0] else types[:1], algorithms, Protocol):
            if _exists(op, dtype, algorithm, protocol):
                yield _function(
                    rules, op, CollectiveTask(0, Request(collective, dtype, Op.sum), 0, 2, (algorithm, protocol))
                )


def _has_code(collective: Collective, algorithm: Algorithm) -> bool:
    """Whether any function runs the algorithm: the model of 2.31 has rows of CollNetChain for further collectives."""
    return algorithm is not Algorithm.CollNetChain or collective is Collective.AllReduce


def _exists(op: str | None, dtype: DataType, algorithm: Algorithm, protocol: Protocol) -> bool:
    if protocol is not Protocol.Simple and algorithm not in (Algorithm.Ring, Algorithm.Tree):
        return False
    if op is None:
        return True
    if op == SUM_POST_DIV and dtype not in INTEGERS:
        return False
    if algorithm in NVLS:
        return (dtype in NVLS_ANY_ORDER and op in (SUM, MIN_MAX)) or (dtype in NVLS_SUM_ONLY and op == SUM)
    return True


@RULES.variant(nccl.GENERATE_ALL(since="2.29.2"))
class SortedByNameWithAllGatherV(SortedByName):
    """Numbers of :class:`SortedByName`, with the functions that broadcast from several roots."""

    further = ALL_GATHER_V

    def broadcasts_together(self) -> str:
        return self._kernel_name(ALL_GATHER_V[Protocol.LL])


@RULES.variant(nccl.BINARY(".symtab", since="2.31.2"))
class SortedByNameWithShortKernelNames(SortedByNameWithAllGatherV):
    """Numbers of :class:`SortedByNameWithAllGatherV`; kernels are named by collective, type and algorithm only."""

    def _kernel_name(self, of: Function) -> str:
        return replace(of, op="", protocol="").symbol("ncclDevKernel")


@RULES.variant(nccl.FUNC_INDEX(since="2.18.1"))
class EveryRow(DeviceFunctions):
    """Numbers every combination, built or not; kernels are built for sums with LL, and moves of data use int8."""

    EXCHANGES = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"
    FIRST = 1  # the first number after send, receive, and a function of each type for a single rank

    def name(self, communicator: Comm, task: CollectiveTask) -> str:
        collective, op, dtype, algorithm, protocol = self._parts(task)
        return f"ncclFunction_{collective}_{algorithm}_{protocol}_{op}_{dtype}"

    def __call__(self, communicator: Comm, task: CollectiveTask) -> int:
        request, (algorithm, protocol) = task.request, task.algo_proto
        types, ops = communicator.release.limits.data_types, ("Sum", "Prod", "Max", "Min", "PreMulSum", "SumPostDiv")
        number = request.collective * len(ops) + ops.index(self._op(request))
        number = number * types + request.device_dtype
        number = number * communicator.release.limits.algorithms + algorithm
        return self.FIRST + types + number * len(Protocol) + protocol

    def _kernel(self, communicator: Comm, task: CollectiveTask) -> tuple[str, bool]:
        collective, op, dtype, algorithm, protocol = self._parts(task)
        specialized = op == SUM and protocol == PROTOCOLS[Protocol.LL]
        return f"ncclKernel_{collective}_{algorithm}_LL_Sum_{dtype}", specialized

    def _parts(self, task: CollectiveTask) -> tuple[str, str, str, str, str]:
        request, (algorithm, protocol) = task.request, task.algo_proto
        dtype = C_TYPES[request.device_dtype]
        return request.collective.name, self._op(request), dtype, ALGORITHMS[algorithm], PROTOCOLS[protocol]

    def _op(self, request: Request) -> str:
        named = operation(request) or SUM
        return request.op.name.capitalize() if named == MIN_MAX else named


SIGNED = (DataType.int8, DataType.int32, DataType.int64)
SHORT_FLOATS = {  # bits of the exponent and of the mantissa
    DataType.float16: (5, 10),
    DataType.bfloat16: (8, 7),
    DataType.float8e4m3: (4, 3),
    DataType.float8e5m2: (5, 2),
}
ARGUMENT_RULES: Registry[Callable[[Request, int], int]] = Registry()


@ARGUMENT_RULES(nccl.HOST_TO_DEV_RED_OP(since="2.18.1"))
def divisors(request: Request, ranks: int) -> int:
    """Averages of integers divide by the number of ranks, those of floats multiply by a factor.

    Other operations have no argument.
    """
    if request.moves_only or request.op is not Op.avg:
        return 0
    return ranks if request.dtype in INTEGERS else factor_bits(request.dtype, ranks)


@ARGUMENT_RULES(nccl.HOST_TO_DEV_RED_OP(since="2.19.3"))
def divisors_and_masks(request: Request, ranks: int) -> int:
    """Arguments as in :func:`divisors`; minimum and maximum have a mask that makes them one unsigned operation."""
    if request.moves_only or request.op not in (Op.max, Op.min):
        return divisors(request, ranks)
    every = (1 << 8 * request.dtype.size_bytes) - 1
    sign = every ^ every >> 1 if request.dtype in SIGNED else 0
    return sign ^ (every if request.op is Op.max else 0)


@ARGUMENT_RULES(nccl.HOST_TO_DEV_RED_OP(since="2.24.3"), nccl.HOST_TO_DEV_RED_OP_MOVED(since="2.31.2"))
def signed_divisors_and_masks(request: Request, ranks: int) -> int:
    """Arguments as in :func:`divisors_and_masks`; the last bit of a divisor says whether integers are signed."""
    if not request.moves_only and request.op is Op.avg and request.dtype in INTEGERS:
        return ranks << 1 | (request.dtype in SIGNED)
    return divisors_and_masks(request, ranks)


def factor_bits(dtype: DataType, ranks: int) -> int:
    """The bits of 1 / ``ranks`` as a float of this type, for types shorter than float64 rounded to float32 first."""
    if dtype is DataType.float64:
        return int.from_bytes(struct.pack("<d", 1.0 / ranks), "little")
    factor = float(f32(1.0 / ranks))
    if dtype is DataType.float32:
        return int.from_bytes(struct.pack("<f", factor), "little")
    return _short_bits(factor, *SHORT_FLOATS[dtype])


def _short_bits(value: float, exponent_bits: int, mantissa_bits: int) -> int:
    """The bits of a positive number of at most 1 as a short float, rounded to the nearest, ties to even."""
    bias = (1 << exponent_bits - 1) - 1
    exponent = max(frexp(value)[1] - 1, 1 - bias)
    units = round(ldexp(value, mantissa_bits - exponent))
    # Rounding up to a power of two carries into the exponent; a number without a leading bit is subnormal.
    return (exponent + bias - 1 << mantissa_bits) + units
