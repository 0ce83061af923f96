"""What the verbs of ``plot`` share: options of sizes and node counts, headings, and writing what was asked for."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tuner.base.errors import BadInput
from tuner.base.numerics import SizeArray
from tuner.cli import options
from tuner.cli.command import F, stacked
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.output import print_json
from tuner.emulator.request import Request
from tuner.scenario import MOST_NODES, Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 1024

out_option = options.out_option("FILE", "The picture to write: .png, .svg or .pdf.", required=False)


def size_options(function: F) -> F:
    """Parameters ``from_bytes``, ``to_bytes`` and ``points``."""
    return stacked(
        function,
        click.option(
            "--from",
            "from_bytes",
            type=options.size_bytes,
            default="8",
            show_default=True,
            metavar="SIZE",
            help="The smallest size.",
        ),
        click.option(
            "--to",
            "to_bytes",
            type=options.size_bytes,
            default="16G",
            show_default=True,
            metavar="SIZE",
            help="The largest size.",
        ),
        click.option(
            "--points",
            type=click.IntRange(2, 100_000),
            default=400,
            show_default=True,
            help="Sizes between them, at equal ratios.",
        ),
    )


def sizes_of(from_bytes: int, to_bytes: int, points: int) -> SizeArray:
    if from_bytes >= to_bytes:
        raise BadInput(f"--from {from_bytes} --to {to_bytes}: valid: --from below --to")
    return np.unique(np.geomspace(from_bytes, to_bytes, points).round().astype(np.uint64))


def node_options(function: F) -> F:
    """Parameters ``to_nodes`` and ``nodes_list``."""
    return stacked(
        function,
        click.option(
            "--to-nodes",
            type=click.IntRange(1, MOST_ROWS),
            metavar="N",
            help="Every number of nodes up to this one. [default: 64]",
        ),
        click.option("--nodes-list", metavar="N,N,...", help="These numbers of nodes instead: 1,2,4,8,512."),
    )


def over_nodes(function: F) -> F:
    """What a picture over sizes and node counts takes: parameters ``out``, ``as_json``, and those of :func:`asked`."""
    return stacked(
        function,
        options.collective_argument,
        size_options,
        node_options,
        of_all_ranks,
        options.communicator_options(without=["nodes", "node"]),
        options.call_options(in_place=False, windows=False),
        out_option,
        options.json_option,
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A picture over sizes and node counts: of which call, and on which machine."""

    scenario: Scenario
    request: Request
    sizes: SizeArray
    nodes: list[int]


def asked(given: Mapping[str, Any]) -> Asked:
    """From the parameters of :func:`over_nodes`. Errors: BadInput for sizes or node counts that are none."""
    communicator: options.CommunicatorOptions = given["communicator"]
    call: options.CallOptions = given["call"]
    described = communicator.scenario()
    return Asked(
        described,
        call.request(given["collective"]),
        sizes_of(given["from_bytes"], given["to_bytes"], given["points"]),
        nodes_of(described, given["to_nodes"], given["nodes_list"]),
    )


def bar_of_nodes(nodes: Sequence[int]) -> Any:
    """A bar on stderr, on a terminal, that ends after so many node counts."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(length=len(nodes), label="numbers of nodes", file=sys.stderr, hidden=hidden)


def nodes_of(scenario: Scenario, to_nodes: int | None, nodes_list: str | None) -> list[int]:
    """Ascending. BadInput also where the scenario itself says how many nodes there are."""
    if scenario.others or (scenario.nodes != 1 and scenario.from_log is None):
        raise BadInput("--nodes and --node: the picture is over node counts; valid: --to-nodes N, --nodes-list N,N,...")
    if nodes_list is None:
        most = to_nodes or 64
        fewest = max(scenario.node_counts[0], 1 if scenario.local_ranks() > 1 else 2)  # one rank has nothing to choose
        most = min(most, scenario.node_counts[1])
        return list(range(min(most, fewest), most + 1))
    words = nodes_list.split(",")
    if to_nodes is not None or len(words) > MOST_ROWS or not all(map(_is_count, words)):
        raise BadInput(
            f"--nodes-list {nodes_list}: valid: up to {MOST_ROWS} numbers from 1 to {MOST_NODES}, no --to-nodes"
        )
    return sorted(set(map(int, words)))


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and 1 <= int(word) <= MOST_NODES


def nodes_alike(scenario: Scenario) -> str:
    """Machine, release and settings in words, whatever the number of nodes."""
    resolved, gpus = scenario.resolve(), scenario.gpus()
    each = f"{gpus} GPU{'s' * (gpus > 1)} per node{resolved.own.sharing}{resolved.each_in_words}"
    constants = [f"constants {scenario.fitted_constants.file}"] if scenario.fitted_constants else []
    return ", ".join([scenario.name, each, f"NCCL {scenario.nccl}", *constants, *scenario.settings])


def deliver(
    out: Path | None, as_json: bool, record: Callable[[], Any], draw: Callable[[], "Figure"], says: Callable[[], str]
) -> None:
    """Writes the picture, and prints the record or what the picture ``says`` in a line."""
    if out is None and not as_json:
        raise BadInput("nothing to do; valid: --out FILE.png (.svg, .pdf) for a picture, --json for what it would show")
    if out is not None:
        from tuner.cli.charts import save

        save(draw(), out)
    if as_json:
        print_json(record())
    else:
        click.echo(f"{out}: {says()}")
