"""``nccl-tuner plot diff``: where another release or setting changes the pick."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.choices import changed, choices, ratio
from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.plot import shared
from tuner.cli.plot.records import PicturedCall, PicturedChange, PicturedMachine, PicturedPicks, PicturedSide, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="diff", cls=options.Command)
@options.under("Sizes and nodes", "--points", "--nodes-list", "--from", "--to")
@options.change_option
@shared.over_nodes
def command(
    assignments: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Where another release or setting changes what NCCL picks for COLLECTIVE: before, after, and the predicted times.

    \b
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.18.1 --change nccl=2.28.9 --out diff.png
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.28.9 --change NCCL_ALGO=Ring --to-nodes 16 --json
    """
    asked = shared.asked(given)
    first, request, sizes, nodes = asked.scenario, asked.request, asked.sizes, asked.nodes
    second = options.after(first, assignments)
    if second == first:
        raise BadInput("nothing differs; valid: --change KEY=VALUE, such as nccl=2.28.9 or NCCL_ALGO=Ring")
    if second.nodes != first.nodes:
        raise BadInput("--change nodes: the picture is over node counts; valid: another change")
    with shared.bar_of_nodes([*nodes, *nodes]) as bar:
        before, after = (choices(one, request, sizes, nodes, lambda: bar.update(1)) for one in (first, second))

    def record() -> PicturedChange:
        return PicturedChange(
            PicturedCall.of(request),
            nodes,
            sizes,
            PicturedSide(PicturedMachine.of(first), PicturedPicks.of(before)),
            PicturedSide(PicturedMachine.of(second), PicturedPicks.of(after)),
            changed(before, after),
            [known(row) for row in ratio(before, after)],
        )

    def draw() -> "Figure":
        from tuner.cli.charts import difference

        where = shared.nodes_alike(first), shared.nodes_alike(second)
        return difference.figure(before, after, f"{request.title}: what changes", where)

    def says() -> str:
        share = changed(before, after).mean()
        return f"the pick changes at {share:.2%} of {len(nodes)} node counts x {len(sizes)} sizes"

    shared.deliver(out, as_json, record, draw, says)
