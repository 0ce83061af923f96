"""``nccl-tuner diff --fail-above``: an exit code for those who upgrade NCCL by a program."""

import math
from collections.abc import Sequence
from typing import Any

import click

from tuner.answers.diff import Change, loss
from tuner.cli.output import human_bytes


class Percent(click.ParamType):  # type: ignore[type-arg]
    """``5%`` or ``5``, as a part of 1."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            part = float(str(value).removesuffix("%")) / 100
        except ValueError:
            part = math.nan
        if not 0 <= part < math.inf:
            self.fail(f"{value!r}: expected a percentage of 0 or more, such as 5% or 2.5", param, ctx)
        return part


fail_above_option = click.option(
    "--fail-above",
    type=Percent(),
    metavar="PERCENT",
    help="Exit with 1 where a new pick takes more than PERCENT longer than the old one, by measurements where there "
    "are some, else by NCCL's model of before.",
)


def fail_on_losses(changes: Sequence[Change], limit: float | None) -> None:
    """Name on stderr the ranges that lose more than ``limit``, a part of 1, and end with 1 if there are any.

    Ranges of few bytes that are only rounding are left out, as they are of the table.
    """
    if limit is None:
        return
    left = [change for change in changes if not change.is_rounding]
    losses = [loss(change) for change in left]
    above = [each for each in losses if each is not None and each.part > limit]
    if unknown := losses.count(None):
        click.echo(f"--fail-above: {unknown} changes are to or from what NCCL's models do not compare", err=True)
    for each in above:
        lost = each.change
        click.echo(
            f"{lost.collective} from {human_bytes(lost.from_bytes)} to {human_bytes(lost.to_bytes)}: "
            f"{lost.after.name} takes {100 * each.part:.1f} % longer than {lost.before.name} by {each.whose}; "
            f"--fail-above allows {100 * limit:g} %",
            err=True,
        )
    if above:
        click.get_current_context().exit(1)
