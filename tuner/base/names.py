"""NCCL's names and numbers: collectives, algorithms, protocols, data types, operations, paths, windows.

Spelling and numbers are those of ``nccl.h`` and ``src/include/{nccl_common,device,graph}.h`` (v2.28.9-1); nothing in
this module depends on a release. A window is memory that all ranks register together (ncclCommWindowRegister).
"""

from collections.abc import Sequence
from enum import Enum, IntEnum, IntFlag
from functools import lru_cache
from typing import TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.spelling import option

Name = TypeVar("Name", bound=Enum)


class NamedNumber(IntEnum):
    """A number of NCCL that prints as its name, in sentences, on pages and at Python's prompt."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, specification: str) -> str:
        return format(int(self) if specification.endswith("d") else self.name, specification)


class Collective(NamedNumber):
    """The five collectives for which NCCL has tuning rows, with the numbers of ``ncclFunc_t``."""

    Broadcast = 0
    Reduce = 1
    AllGather = 2
    ReduceScatter = 3
    AllReduce = 4


class PeerCall(NamedNumber):
    """Sends and receives, and the calls that NCCL makes from them between pairs of ranks. The numbers are those of
    ``ncclFunc_t`` from 2.28 on.
    """

    Send = 6
    Recv = 7
    AllToAll = 8
    Scatter = 9
    Gather = 10


class P2pOperation(NamedNumber):
    """Operations that nccl-tests makes from sends and receives; their numbers sort them after the collectives."""

    AllToAll = 8
    SendRecv = 11
    Gather = 10
    Scatter = 9
    Hypercube = 12


class Algorithm(NamedNumber):
    """Algorithms with the numbers of ``NCCL_ALGO_*``."""

    Tree = 0
    Ring = 1
    CollNetDirect = 2
    CollNetChain = 3
    NVLS = 4
    NVLSTree = 5
    PAT = 6


class Protocol(NamedNumber):
    """Protocols with the numbers of ``NCCL_PROTO_*``."""

    LL = 0
    LL128 = 1
    Simple = 2


AlgoProto = tuple[Algorithm, Protocol]
ALGO_PROTOS: list[AlgoProto] = [
    (algorithm, protocol) for algorithm in Algorithm for protocol in Protocol
]  # in NCCL's order


class Pattern(NamedNumber):
    """Channel graph patterns with the numbers of ``NCCL_TOPO_PATTERN_*``."""

    BalancedTree = 1
    SplitTree = 2
    Tree = 3
    Ring = 4
    NVLS = 5
    CollNetDirect = 6


class DataType(NamedNumber):
    """Data types with the numbers of ``ncclDataType_t``."""

    int8 = 0
    uint8 = 1
    int32 = 2
    uint32 = 3
    int64 = 4
    uint64 = 5
    float16 = 6
    float32 = 7
    float64 = 8
    bfloat16 = 9
    float8e4m3 = 10
    float8e5m2 = 11

    @property
    def size_bytes(self) -> int:
        """The bytes of one element."""
        return _TYPE_BYTES[self]


_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


class Op(NamedNumber):
    """Reduction operations with the numbers of ``ncclRedOp_t``."""

    sum = 0
    prod = 1
    max = 2
    min = 3
    avg = 4


class Buffers(NamedNumber):
    """How the two buffers of a call are registered."""

    plain = 0
    registered = 1  # registered by ncclCommRegister
    window = 2  # registered by ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC
    graph = 3  # registered by NCCL itself when the call is captured into a CUDA graph


# The names of paths and links as NCCL prints them. Their order depends on the release (tables/nccl).
PATH_NAMES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
# The paths that NCCL's file of graphs has no word for (kvDictLinkType, src/graph/search.cc, the same up to 2.30.7).
PATHS_WITHOUT_WORD = ("C2C", "NET", "DIS")
CPU_ARCHS = ("x86_64", "arm64", "ppc64", "mixed")
CPU_VENDORS = ("GenuineIntel", "AuthenticAMD", "CentaurHauls", "  Shanghai  ", "mixed")


# The names that C, nccl-tests, PyTorch, JAX and XLA use for NCCL's data types, in lower case and without "_". There are
# two 8-bit floating-point types, for which NCCL chooses the same; "fp8" means the one that weights and activations use.
TYPE_ALIASES = {
    **dict.fromkeys(("char", "s8", "i8"), DataType.int8),
    **dict.fromkeys(("byte", "bool", "u8"), DataType.uint8),
    **dict.fromkeys(("int", "s32", "i32"), DataType.int32),
    "u32": DataType.uint32,
    **dict.fromkeys(("long", "s64", "i64"), DataType.int64),
    "u64": DataType.uint64,
    **dict.fromkeys(("half", "fp16", "f16"), DataType.float16),
    **dict.fromkeys(("float", "single", "fp32", "f32"), DataType.float32),
    **dict.fromkeys(("double", "fp64", "f64"), DataType.float64),
    "bf16": DataType.bfloat16,
    **dict.fromkeys(("fp8", "fp8e4m3", "f8e4m3", "e4m3", "float8e4m3fn", "f8e4m3fn"), DataType.float8e4m3),
    **dict.fromkeys(("fp8e5m2", "f8e5m2", "e5m2"), DataType.float8e5m2),
}


def peer_call(value: object) -> PeerCall | None:
    """The call made from sends and receives that has this name, in any case, also as ``all_to_all``; None for any other
    name."""
    return value if isinstance(value, PeerCall) else _peer_call(str(value))


@lru_cache(256)  # callers that ask for one pick after the other ask this each time
def _peer_call(name: str) -> PeerCall | None:
    word = _compared(name)
    return next((call for call in PeerCall if call.name.lower() == word), None)


def _compared(name: str) -> str:
    """The form in which names are compared: lower case, without ``_``, ``-`` and NCCL's prefix ``nccl``."""
    return name.strip().lower().replace("_", "").replace("-", "").removeprefix("nccl")


def by_name(members: type[Name], value: Name | str, what: str) -> Name:
    """The member of an enumeration with NCCL's name, in any case, also with the ``nccl`` prefix; a data type also by an
    alias.

    BadInput for another name; the message calls the value ``what``.
    """
    if isinstance(value, members):
        return value
    word = _compared(str(value))
    if members is DataType:
        word = word.removeprefix("torch.")
        word = TYPE_ALIASES[word].name if word in TYPE_ALIASES else word
    for member in members:
        if member.name.lower() == word:
            return member
    names = [member.name for member in members]
    raise BadInput(f"unknown {what} {value!r}{did_you_mean(word, names)}; {one_of(names)}")


class Sides(IntFlag):
    """The two buffers of a call: the send buffer and the receive buffer."""

    none = 0
    send = 1
    receive = 2
    both = 3


class WindowFlag(IntFlag):
    """Flags of windows, ``NCCL_WIN_*`` in nccl.h. Source: src/nccl.h.in, v2.30.7-1, and nccl.h of the wheel of
    2.32.3.
    """

    DEFAULT = 0
    COLL_SYMMETRIC = 1
    STRICT_ORDERING = 2
    GIN_ONLY = 4
    CFT_COUNTED = 8


@dataclass(frozen=True, slots=True)
class Windows:
    """Which buffers of a call are in windows, and the windows' flags; a buffer without a window is plain."""

    sides: Sides = Sides.both
    flags: WindowFlag = WindowFlag.COLL_SYMMETRIC

    @property
    def symmetric(self) -> Sides:
        """The buffers that are in symmetric windows according to the flags."""
        return self.sides if WindowFlag.COLL_SYMMETRIC in self.flags else Sides.none

    @property
    def words(self) -> str:
        """The buffers and flags that differ from the default, as a text for headings: `` of send, default``."""
        sides = "" if self.sides is Sides.both else f" of {self.sides.name}"
        flags = "" if self.flags == WindowFlag.COLL_SYMMETRIC else f", {flag_words(self.flags)}"
        return f"{sides}{flags}"


SYMMETRIC = Windows()  # both buffers are in windows with NCCL_WIN_COLL_SYMMETRIC


def flag_words(flags: WindowFlag) -> str:
    """Flags as options spell them: ``coll-symmetric,strict-ordering``."""
    return ",".join(_word(flag) for flag in flags) or _word(WindowFlag.DEFAULT)


def flags_of(words: WindowFlag | str | Sequence[str]) -> WindowFlag:
    """Flags by NCCL's names without NCCL_WIN_, in any case, separated by commas. BadInput if a name is not known."""
    if isinstance(words, WindowFlag):
        return words
    flags = WindowFlag.DEFAULT
    known = {_word(flag): flag for flag in WindowFlag.__members__.values()}
    for each in words.split(",") if isinstance(words, str) else words:
        word = each.strip().lower().replace("_", "-").removeprefix("nccl-win-")
        if word not in known:
            raise BadInput(f"unknown window flag {each!r}{did_you_mean(word, [*known])}; {one_of([*known])}")
        flags |= known[word]
    return flags


def _word(flag: WindowFlag) -> str:
    return (flag.name or str(int(flag))).lower().replace("_", "-")


def windows_of(buffers: Buffers, sides: str | None, flags: WindowFlag | str | Sequence[str] | None) -> Windows:
    """The windows that these names describe. If ``sides`` or ``flags`` is None, its default is used: both buffers,
    COLL_SYMMETRIC. BadInput if a name is not known, or if one is given although ``buffers`` are not in windows.
    """
    if buffers is not Buffers.window and (sides, flags) != (None, None):
        raise BadInput(f"{option('windows')} and {option('window_flags')} only apply with {option('buffers')} window")
    if sides not in (None, "send", "receive", "both"):
        raise BadInput(f"unknown windows {sides!r}; {one_of(['send', 'receive', 'both'])}")
    return Windows(Sides[sides or "both"], WindowFlag.COLL_SYMMETRIC if flags is None else flags_of(flags))
