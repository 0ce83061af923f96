"""The options that describe a call besides its collective and sizes, stated once, and the object that commands take."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tuner.base.dataclass import dataclass
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.windows import WindowFlag, Windows, flag_words, flags_of, windows_of
from tuner.cli.command import F, option, stacked
from tuner.cli.named import Named
from tuner.emulator.request import Request

CALL = "The call"
_DEFAULT = Request(Collective.AllReduce, DataType.float32, Op.sum)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Values of :func:`call_options`; what a command has no option for is as NCCL's plain calls have it."""

    dtype: DataType = _DEFAULT.dtype
    op: Op = _DEFAULT.op
    buffers: Buffers = _DEFAULT.buffers
    in_place: bool = _DEFAULT.in_place
    windows: Windows = _DEFAULT.windows

    def request(self, collective: Collective = Collective.AllReduce, pipelined: int = 1) -> Request:
        """The call of this collective, with ``pipelined`` operations that NCCL counts together."""
        return Request(
            collective,
            self.dtype,
            self.op,
            pipelined=pipelined,
            buffers=self.buffers,
            in_place=self.in_place,
            windows=self.windows,
        )


class Flags(click.ParamType):  # type: ignore[type-arg]
    """Flags of windows, with commas between them."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WindowFlag:
        return flags_of(value)


def call_options(buffers: bool = True, in_place: bool = True, windows: bool = True) -> Callable[[F], F]:
    """Options for type and operation, and unless they are off for ``buffers``, in place, and windows.

    The command takes them as the parameter ``call``.
    """

    def decorated(function: F) -> F:
        @wraps(function)
        def with_call(*arguments: Any, dtype: DataType, op: Op, **given: Any) -> Any:
            said: dict[str, Any] = {"dtype": dtype, "op": op}
            if buffers:
                said["buffers"] = given.pop("buffers")
            if in_place:
                said["in_place"] = given.pop("in_place")
            if windows:
                said["windows"] = windows_of(said["buffers"], given.pop("windows"), given.pop("window_flags"))
            return function(*arguments, call=CallOptions(**said), **given)

        made: F = with_call  # type: ignore[assignment]
        return stacked(
            made,
            option(
                "--dtype",
                type=Named(DataType, "type"),
                default="float32",
                show_default=True,
                heading=CALL,
                help="Data type, NCCL's name.",
            ),
            option(
                "--op",
                type=Named(Op, "operation"),
                default="sum",
                show_default=True,
                heading=CALL,
                help="Reduction operation.",
            ),
            *([_BUFFERS] if buffers else ()),
            *(_WINDOWS if windows else ()),
            *([_IN_PLACE] if in_place else ()),
        )

    return decorated


_BUFFERS = option(
    "--buffers",
    type=Named(Buffers, "kind of buffers"),
    default="plain",
    show_default=True,
    metavar="KIND",
    heading=CALL,
    help="How the buffers are registered: plain (not at all), registered (ncclCommRegister), window "
    "(ncclCommWindowRegister, symmetric), graph (by NCCL, as the call is captured into a CUDA graph).",
)
_WINDOWS = (
    option(
        "--windows",
        type=click.Choice(("send", "receive", "both")),
        heading=CALL,
        help="Which buffers are in windows, with --buffers window; the other is plain. [default: both]",
    ),
    option(
        "--window-flags",
        type=Flags(),
        metavar="FLAG[,FLAG...]",
        heading=CALL,
        help=f"Flags of these windows, NCCL_WIN_*: {', '.join(map(flag_words, WindowFlag.__members__.values()))}. "
        "[default: coll-symmetric]",
    ),
)
_IN_PLACE = option(
    "--in-place",
    is_flag=True,
    heading=CALL,
    help="What is received replaces what is sent; only calls on registered buffers differ.",
)
