"""``nccl-tuner plot map``: what NCCL picks over sizes and node counts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tuner.analysis.choices import choices
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli import options
from tuner.cli.plot import shared
from tuner.emulator.request import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="map")
@options.collective_argument
@shared.size_options
@shared.node_options
@options.scenario_options
@options.request_options
@options.buffers_option
@shared.out_option
@options.json_option
def command(
    collective: Collective,
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
    """What NCCL picks for COLLECTIVE over sizes and node counts: algorithm as colour, protocol as hatch.

    \b
    nccl-tuner plot map allreduce --machine dgx-h100 --nccl 2.28.9 --to-nodes 64 --out map.png
    nccl-tuner plot map allgather --machine dgx-h100 --nodes-list 1,2,4,8,16 --from 1K --to 1G --points 100 --json
    """
    described, request = options.scenario_of(**scenario), Request(collective, dtype, op, buffers=buffers)
    nodes = shared.nodes_of(described, to_nodes, nodes_list)
    found = choices(described, request, shared.sizes_of(from_bytes, to_bytes, points), nodes)

    def record() -> dict[str, Any]:
        return {
            **shared.request_record(request),
            **shared.scenario_record(described),
            "nodes": list(found.nodes),
            "bytes": found.bytes.tolist(),
            **shared.choices_record(found),
        }

    def draw() -> "Figure":
        from tuner.plot import choicemap

        return choicemap.figure(found, f"{request.title}: what NCCL picks", shared.nodes_alike(described))

    def says() -> str:
        picks = np.stack([found.algorithm, found.protocol], axis=2)[found.algorithm >= 0]
        return f"{len(np.unique(picks, axis=0))} combinations on {len(nodes)} node counts at {len(found.bytes)} sizes"

    shared.deliver(out, as_json, record, draw, says)
