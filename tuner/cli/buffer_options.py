"""Options that say which buffers a call has."""

from functools import wraps
from typing import Any

import click

from tuner.base.names import Buffers
from tuner.base.windows import WindowFlag, flag_words, flags_of, windows_of
from tuner.cli.named import Named
from tuner.cli.stacked import F, stacked

buffers_option = click.option(
    "--buffers",
    type=Named(Buffers, "kind of buffers"),
    default="plain",
    show_default=True,
    metavar="|".join(Buffers.__members__),
    help="How the buffers are registered: plain (not at all), registered (ncclCommRegister), window "
    "(ncclCommWindowRegister, symmetric), graph (by NCCL, as the call is captured into a CUDA graph).",
)
in_place_option = click.option(
    "--in-place", is_flag=True, help="What is received replaces what is sent; only calls on registered buffers differ."
)


class Flags(click.ParamType):  # type: ignore[type-arg]
    """Flags of windows, with commas between them."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WindowFlag:
        return flags_of(value)


def window_options(function: F) -> F:
    """What the windows of ``--buffers window`` are like, as the parameter ``windows``."""

    @wraps(function)
    def with_windows(*given: Any, windows: str | None, window_flags: WindowFlag | None, **others: Any) -> Any:
        return function(*given, windows=windows_of(others["buffers"], windows, window_flags), **others)

    decorated: F = with_windows  # type: ignore[assignment]
    return stacked(
        decorated,
        click.option(
            "--windows",
            type=click.Choice(("send", "receive", "both")),
            help="Which buffers are in windows, with --buffers window; the other is plain. [default: both]",
        ),
        click.option(
            "--window-flags",
            type=Flags(),
            metavar="FLAG[,FLAG...]",
            help=f"Flags of these windows, NCCL_WIN_*: {', '.join(map(flag_words, WindowFlag.__members__.values()))}. "
            "[default: coll-symmetric]",
        ),
    )
