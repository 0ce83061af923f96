"""A kind of call in words, as Python users describe it."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op, by_name
from tuner.base.windows import windows_of
from tuner.emulator.request import Request


class CallKind(TypedDict, total=False):
    """What describes a call besides collective and size: float32 sum, plain, out of place.

    Where ``buffers`` is "window", ``windows`` says which of them are in windows ("send", "receive", "both"), the other
    being plain, and ``window_flags`` which flags these have, NCCL_WIN_*: "coll-symmetric" by default.
    """

    dtype: DataType | str
    op: Op | str
    buffers: Buffers | str
    in_place: bool
    windows: str
    window_flags: str | Sequence[str]


def request(collective: Collective | str, **kind: Unpack[CallKind]) -> Request:
    """A call by NCCL's names. Errors: BadInput for an unknown one."""
    if unknown := sorted(kind.keys() - CallKind.__annotations__.keys()):
        raise BadInput(f"unknown {', '.join(unknown)}; valid: {', '.join(CallKind.__annotations__)}")
    buffers = by_name(Buffers, kind.get("buffers", Buffers.plain), "kind of buffers")
    return Request(
        by_name(Collective, collective, "collective"),
        by_name(DataType, kind.get("dtype", DataType.float32), "type"),
        by_name(Op, kind.get("op", Op.sum), "operation"),
        buffers=buffers,
        in_place=kind.get("in_place", False),
        windows=windows_of(buffers, kind.get("windows"), kind.get("window_flags")),
    )


# A collective off the classic path: no algorithm, protocol and channels, but a kernel of another kind or none.


@dataclass(frozen=True, slots=True)
class NonClassicPath:
    """How a call runs instead; a copy engine runs no kernel."""

    kernel: str | None  # NCCL's name, such as "AllReduce_AGxLL_R"; None: copy engines
    blocks: int
    threads: int  # of a block

    @property
    def name(self) -> str:
        """What takes the call, as commands print it."""
        return "copy engines" if self.kernel is None else f"symmetric kernel {self.kernel}"


COPY_ENGINES = NonClassicPath(None, 0, 0)
