"""``nccl-tuner whatif``: what a change of hardware, counts or variables does."""

from collections.abc import Sequence
from typing import Any

import click

from tuner.analysis.changes import KEYS, changed
from tuner.analysis.diff import Side, diff
from tuner.analysis.whatif import AtSize, at_sizes
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.cli import options
from tuner.cli.diff import SAME_COMBINATION, percent, pick_name, print_changes
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.cli.renamed import Change
from tuner.emulator.request import Request


class CollectiveOrChange(options.Named):
    """A change is what has a ``=``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "=" in str(value):
            return Change().convert(value, param, ctx)
        return super().convert(value, param, ctx)


@click.command(name="whatif")
@click.argument(
    "words", nargs=-1, type=CollectiveOrChange(Collective, "collective"), metavar="[COLLECTIVE]... CHANGE..."
)
@options.bytes_option
@options.scenario_options
@options.request_options
@options.json_option
def command(
    words: tuple[Collective | str, ...], sizes: list[int], dtype: DataType, op: Op, as_json: bool, **scenario: Any
) -> None:
    """What NCCL picks for COLLECTIVE (all five by default) before and after each CHANGE, and where the pick changes.

    A CHANGE is KEY=VALUE. Of every node: nic-gbps (speed of all adapters, 1e9 bits per second), nics (how many of the
    adapters), nvlinks (links per GPU), pcie (generation of all links, and lanes, as in 5 or 4x8); libnccl of the
    release then searches the graphs. Otherwise: nccl, machine, nodes, gpus-per-node, constants, or a NCCL variable.

    \b
    nccl-tuner whatif allreduce nic-gbps=200 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner whatif allgather nodes=8 NCCL_PROTO=Simple --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    """
    described = options.scenario_of(**scenario)
    after = changed(described, [word for word in words if not isinstance(word, Collective)])
    if after == described:
        raise BadInput(f"nothing differs; valid: KEY=VALUE, with the keys {', '.join(KEYS)}, or a NCCL variable")
    old, new = Side(described), Side(after)
    collectives = [word for word in words if isinstance(word, Collective)]
    requests = options.runnable(
        {"before": old.selection, "after": new.selection}, collectives, Request(Collective.AllReduce, dtype, op)
    )
    found = [(at_sizes(old, new, request, sizes), diff(old, new, request)) for request in requests]
    if as_json:
        print_json(
            {
                "before": described.heading,
                "after": after.heading,
                "sizes": [one for ones, _ in found for one in ones],
                "changes": [change for _, changes in found for change in changes],
            }
        )
        return
    click.echo(f"before: {described.heading}\nafter:  {after.heading}\n")
    for request, (ones, changes) in zip(requests, found, strict=True):
        print_table(request.collective.name, COLUMNS, _rows(ones))
        print_changes(f"{request.collective.name}: where the pick changes", changes)
        if not changes:
            click.echo(f"{request.collective.name}: {SAME_COMBINATION} at every size\n")


COLUMNS = ("size", "before", "after", "before us", "after us", "time", "before busbw GB/s", "after busbw GB/s")


def _rows(ones: Sequence[AtSize]) -> list[tuple[object, ...]]:
    return [
        (
            human_bytes(one.bytes),
            pick_name(one.before),
            pick_name(one.after),
            f"{one.before.time_us:.2f}",
            f"{one.after.time_us:.2f}",
            percent(one.ratio),
            f"{one.busbw_gbs_before:.3f}",
            f"{one.busbw_gbs_after:.3f}",
        )
        for one in ones
    ]
