"""``nccl-tuner plot map``: what NCCL picks over sizes and node counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tuner.answers.choices import choices
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.cli import options
from tuner.cli.plot import shared
from tuner.cli.plot.records import PicturedCall, PicturedMachine, PicturedMap, PicturedPicks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.cli.charts.choicemap import RegretMark


@click.command(name="map", cls=options.Command)
@options.under("Sizes and nodes", "--points", "--nodes-list")
@shared.over_nodes
@click.option(
    "--measured",
    metavar="NAME|FILE",
    help="Mark the points at which a measured table has the pick and something else forced, with what the pick loses.",
)
def command(
    measured: str | None,
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """What NCCL picks for COLLECTIVE over sizes and node counts: algorithm as colour, protocol as hatch.

    \b
    nccl-tuner plot map allreduce --machine dgx-h100 --nccl 2.28.9 --to-nodes 64 --out map.png
    nccl-tuner plot map allgather --machine dgx-h100 --nodes-list 1,2,4,8,16 --from 1K --to 1G --points 100 --json
    nccl-tuner plot map allreduce --machine dgx-b200 --measured b200-8x-64n__2.29.7__together --out map.png
    """
    asked = shared.asked(given)
    described, request = asked.scenario, asked.request
    with shared.bar_of_nodes(asked.nodes) as bar:
        drawn = choices(described, request, asked.sizes, asked.nodes, progress=lambda: bar.update(1))

    marks = [] if measured is None else _marks(measured, drawn.nodes, request.collective)

    def record() -> PicturedMap:
        where, picks = PicturedMachine.of(described), PicturedPicks.of(drawn)
        return PicturedMap(PicturedCall.of(request), where, tuple(drawn.nodes), drawn.bytes, picks)

    def draw() -> "Figure":
        from tuner.cli.charts import choicemap

        return choicemap.figure(drawn, f"{request.title}: what NCCL picks", shared.nodes_alike(described), marks)

    def says() -> str:
        picks = np.stack([drawn.algorithm, drawn.protocol], axis=2)[drawn.algorithm >= 0]
        number = len(np.unique(picks, axis=0))
        loses = sum(mark.loses for mark in marks)
        points = f"; the pick loses at {loses} of {len(marks)} measured points" if marks else ""
        return f"{number} combinations on {len(drawn.nodes)} node counts at {len(drawn.bytes)} sizes{points}"

    shared.deliver(out, as_json, record, draw, says)


def _marks(measured: str, nodes: Sequence[int], collective: Collective) -> "list[RegretMark]":
    """The points of a measured table at the numbers of nodes that are drawn. Errors: BadInput where there is none."""
    from tuner.cli.charts.choicemap import RegretMark
    from tuner.times.regret import workflow
    from tuner.times.regret.judged import Verdict

    file = Path(measured)
    asked = workflow.Asked(files=(file,)) if file.exists() else workflow.Asked(tables=(measured,))
    marks = [
        RegretMark(nodes.index(one.nodes), one.bytes, one.regret, one.verdict is Verdict.loses)
        for one in workflow.of_arms(workflow.read(asked)).sizes
        if one.collective is collective and one.nodes in nodes and one.regret is not None
    ]
    if not marks:
        raise BadInput(f"{measured}: no pick of {collective.name} against a forced run on these numbers of nodes")
    return marks
