"""Options and output that the cost commands share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.command import F, stacked
from tuner.times.costmodels.algorithms import Levels, loggp
from tuner.times.costmodels.alphabeta import Level
from tuner.times.costmodels.operations import CostOperation, divides, not_negative, part, positive, share, whole

Check = Callable[[str, Any], Any]


class Number(click.ParamType):  # type: ignore[type-arg]
    """A click type: a number that passes a check of :mod:`tuner.times.costmodels.operations`; the error has the
    option's name."""

    name = "number"

    def __init__(self, check: Check) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(self.check(_name(param), value))
        except OverflowError:
            self.fail(f"{str(value)[:20]}... is not a possible value: too large, or not a number", param, ctx)


class Count(Number):
    """A click type: a number, also in the forms in which people write a model's size: 70e9, 70B, 1.5T."""

    name = "count"
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        unit = self.units.get(text[-1:].upper())
        return super().convert(value, param, ctx) if unit is None else unit * super().convert(text[:-1], param, ctx)


class CheckedNumbers(click.ParamType):  # type: ignore[type-arg]
    """A click type: a comma-separated list of numbers, each of which passes the check."""

    name = "numbers"

    def __init__(self, check: Check, kind: type[int] | type[float] = float) -> None:
        self.check = check
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        if isinstance(value, list):
            return value
        try:
            numbers = [self.kind(word) for word in str(value).split(",")]
            self.check(_name(param), numbers)
        except OverflowError:
            self.fail(f"{str(value)[:20]}... has a value that is not possible: too large, or not a number", param, ctx)
        except ValueError:
            what, said = "whole numbers" if self.kind is int else "numbers", str(value)[:40]
            raise BadInput(f"{_name(param)} {said}: not {what}; valid: {what}, with commas between them") from None
        return numbers


def _name(param: click.Parameter | None) -> str:
    return param.opts[-1] if param else "value"


POSITIVE, NOT_NEGATIVE, SHARE = map(Number, (positive, not_negative, share))
us_option = partial(options.option, type=NOT_NEGATIVE, metavar="US")
gbs_option = partial(options.option, type=POSITIVE, metavar="GBS")
POSITIVES, PARTS, WHOLES = CheckedNumbers(positive), CheckedNumbers(part), CheckedNumbers(whole, int)


operation_argument = click.argument("operation", type=options.Named(CostOperation, "operation"), metavar="OPERATION")
ranks_option = options.option(
    "--ranks",
    "Number of ranks; several numbers separated by commas.",
    type=CheckedNumbers(partial(whole, least=2), int),
    required=True,
)


def level_options(function: F) -> F:
    """Options for ``alpha_us`` and ``beta_gbs`` of the only network, or of that inside nodes, with a second pair for
    that between nodes."""
    return stacked(
        function,
        us_option("--alpha-us", "Latency of a step, in us; with --gpus-per-node, of a step inside a node."),
        gbs_option(
            "--beta-gbs",
            "Bandwidth of a rank in one direction, in GB/s (1e9 bytes per second); with --gpus-per-node, its "
            "bandwidth inside a node.",
        ),
        us_option("--inter-alpha-us", "Latency of a step between nodes, in us."),
        gbs_option("--inter-beta-gbs", "Bandwidth of a GPU between nodes, in GB/s."),
        options.option("--gpus-per-node", "GPUs per node. [default: one network for all ranks]", type=int),
    )


def levels(given: Mapping[str, Any], overhead_us: float = 0.0, gap_us: float = 0.0) -> Levels:
    """The levels inside a node (or of the only network) and between nodes, from the values of :func:`level_options`.

    With LogP's overhead or gap, each alpha is the latency of LogP. BadInput if half of a pair is given, or a network
    between nodes without GPUs per node.
    """
    if given["gpus_per_node"] is None and (given["inter_alpha_us"], given["inter_beta_gbs"]) != (None, None):
        raise BadInput("--inter-alpha-us and --inter-beta-gbs describe the network between nodes: add --gpus-per-node")

    def level(prefix: str) -> Level | None:
        alpha_us, beta_gbs = given[f"{prefix}alpha_us"], given[f"{prefix}beta_gbs"]
        if (alpha_us is None) != (beta_gbs is None):
            option = f"--{prefix.replace('_', '-')}"
            raise BadInput(f"{option}alpha-us and {option}beta-gbs only apply together: give both")
        return None if alpha_us is None else loggp(alpha_us, overhead_us, gap_us, beta_gbs)

    return level(""), level("inter_")


def shape(ranks: int, gpus_per_node: int | None) -> tuple[int, int]:
    """The number of GPUs per node (by default all ranks), and the number of nodes."""
    gpus = int(whole("--ranks", ranks, least=2)) if gpus_per_node is None else gpus_per_node
    return gpus, int(divides("--gpus-per-node", gpus, "--ranks", ranks))


def floats(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}
