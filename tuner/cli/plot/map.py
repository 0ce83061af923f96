"""``nccl-tuner plot map``: what NCCL picks over sizes and node counts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tuner.answers.choices import choices
from tuner.cli import options
from tuner.cli.plot import shared
from tuner.cli.plot.records import PicturedCall, PicturedMachine, PicturedMap, PicturedPicks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="map", cls=options.Command)
@options.under("Sizes and nodes", "--points", "--nodes-list")
@shared.over_nodes
def command(
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """What NCCL picks for COLLECTIVE over sizes and node counts: algorithm as colour, protocol as hatch.

    \b
    nccl-tuner plot map allreduce --machine dgx-h100 --nccl 2.28.9 --to-nodes 64 --out map.png
    nccl-tuner plot map allgather --machine dgx-h100 --nodes-list 1,2,4,8,16 --from 1K --to 1G --points 100 --json
    """
    asked = shared.asked(given)
    described, request = asked.scenario, asked.request
    with shared.bar_of_nodes(asked.nodes) as bar:
        drawn = choices(described, request, asked.sizes, asked.nodes, progress=lambda: bar.update(1))

    def record() -> PicturedMap:
        where, picks = PicturedMachine.of(described), PicturedPicks.of(drawn)
        return PicturedMap(PicturedCall.of(request), where, tuple(drawn.nodes), drawn.bytes, picks)

    def draw() -> "Figure":
        from tuner.cli.charts import choicemap

        return choicemap.figure(drawn, f"{request.title}: what NCCL picks", shared.nodes_alike(described))

    def says() -> str:
        picks = np.stack([drawn.algorithm, drawn.protocol], axis=2)[drawn.algorithm >= 0]
        number = len(np.unique(picks, axis=0))
        return f"{number} combinations on {len(drawn.nodes)} node counts at {len(drawn.bytes)} sizes"

    shared.deliver(out, as_json, record, draw, says)
