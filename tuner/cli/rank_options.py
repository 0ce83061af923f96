"""The options that take some ranks of a communicator for one of their own."""

from functools import wraps
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.ranges import from_ranges
from tuner.cli.stacked import F, stacked


class Ranks(click.ParamType):  # type: ignore[type-arg]
    """Ranks as ranges with strides, such as 0-7:2; with ``counts`` a number alone is how many ranks."""

    name = "ranks"

    def __init__(self, counts: bool = False) -> None:
        self.counts = counts

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.counts and value.strip().isdecimal() and int(value) > 0:
            return int(value)
        return from_ranges(value, "--ranks")


def of_all_ranks(function: F) -> F:
    """A command with :func:`part_options` that is of communicators of all ranks: it hides and refuses them."""

    @wraps(function)
    def whole(*given: Any, ranks: tuple[int, ...] | None, shared: bool, **others: Any) -> Any:
        if ranks is not None or shared:
            raise BadInput("--ranks, --shared: not for this command; valid for: pick, explain, edges, budget, check")
        return function(*given, **others)

    for option in getattr(whole, "__click_params__", ()):
        option.hidden = option.hidden or option.name in ("ranks", "shared")
    return whole  # type: ignore[return-value]


def part_options(function: F) -> F:
    """Some ranks of what the other options describe; without ``--ranks`` where the command has one of its own."""
    own = any("--ranks" in each.opts for each in getattr(function, "__click_params__", ()))
    ranks = click.option(
        "--ranks",
        type=Ranks(),
        metavar="RANGES",
        help="Ranks that have a communicator of their own (ncclCommSplit, ncclCommShrink, or one made of them alone): "
        "0-7:2 is 0, 2, 4, 6; 0-3,8-11. [default: all]",
    )
    shared = click.option(
        "--shared",
        is_flag=True,
        help="It shares the resources of the communicator of all ranks: splitShare or shrinkShare of ncclConfig_t.",
    )
    return stacked(function, *([] if own else [ranks]), shared)
