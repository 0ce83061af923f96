"""``nccl-tuner plot diff``: where another release or setting changes the pick."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.analysis import changes
from tuner.analysis.choices import changed, choices, ratio
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli import options
from tuner.cli.plot import shared
from tuner.emulator.request import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="diff")
@options.collective_argument
@options.change_option
@shared.size_options
@shared.node_options
@options.scenario_options
@options.request_options
@options.buffers_option
@shared.out_option
@options.json_option
def command(
    collective: Collective,
    assignments: tuple[str, ...],
    from_bytes: int,
    to_bytes: int,
    points: int,
    to_nodes: int | None,
    nodes_list: str | None,
    dtype: DataType,
    op: Op,
    buffers: Buffers,
    out: Path | None,
    as_json: bool,
    **scenario: Any,
) -> None:
    """Where another release or setting changes what NCCL picks for COLLECTIVE: before, after, and the predicted times.

    \b
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.18.1 --change nccl=2.28.9 --out diff.png
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.28.9 --change NCCL_ALGO=Ring --to-nodes 16 --json
    """
    first, request = options.scenario_of(**scenario), Request(collective, dtype, op, buffers=buffers)
    second = changes.changed(first, assignments)
    if second == first:
        raise BadInput("nothing differs; valid: --change KEY=VALUE, such as nccl=2.28.9 or NCCL_ALGO=Ring")
    if second.nodes != first.nodes:
        raise BadInput("--change nodes: the picture is over node counts; valid: another change")
    nodes = shared.nodes_of(first, to_nodes, nodes_list)
    sizes = shared.sizes_of(from_bytes, to_bytes, points)
    before, after = (choices(one, request, sizes, nodes) for one in (first, second))

    def record() -> dict[str, Any]:
        return {
            **shared.request_record(request),
            "nodes": nodes,
            "bytes": sizes.tolist(),
            "before": {**shared.scenario_record(first), **shared.choices_record(before)},
            "after": {**shared.scenario_record(second), **shared.choices_record(after)},
            "changed": changed(before, after).tolist(),
            "ratio": [shared.known(row) for row in ratio(before, after)],
        }

    def draw() -> "Figure":
        from tuner.plot import difference

        where = shared.nodes_alike(first), shared.nodes_alike(second)
        return difference.figure(before, after, f"{request.title}: what changes", where)

    def says() -> str:
        share = changed(before, after).mean()
        return f"the pick changes at {share:.2%} of {len(nodes)} node counts x {len(sizes)} sizes"

    shared.deliver(out, as_json, record, draw, says)
