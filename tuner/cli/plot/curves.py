"""``nccl-tuner plot curves``: predicted times of every combination over sizes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.answers.choices import curves
from tuner.base.names import Collective
from tuner.cli import options
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.plot import shared
from tuner.cli.plot.records import PicturedCall, PicturedCurves, PicturedMachine, PicturedRow, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="curves", cls=options.Command)
@options.collective_argument
@shared.size_options
@of_all_ranks
@options.communicator_options()
@options.call_options(in_place=False, windows=False)
@shared.out_option
@options.json_option
def command(
    collective: Collective,
    from_bytes: int,
    to_bytes: int,
    points: int,
    call: options.CallOptions,
    out: Path | None,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Predicted time and bus bandwidth of every combination that COLLECTIVE may use, and NCCL's pick.

    \b
    nccl-tuner plot curves allreduce --machine dgx-h100 --nodes 4 --nccl 2.28.9 --out curves.svg
    """
    described, request = communicator.scenario(), call.request(collective)
    drawn = curves(described, request, shared.sizes_of(from_bytes, to_bytes, points))

    def record() -> PicturedCurves:
        return PicturedCurves(
            PicturedCall.of(request),
            PicturedMachine.of(described),
            described.nodes,
            described.ranks,
            drawn.bytes,
            drawn.bus_factor,
            PicturedRow.of(drawn.picks, 0),
            {f"{a.name}/{p.name}": known(us) for (a, p), us in zip(drawn.algo_protos, drawn.time_us, strict=True)},
        )

    def draw() -> "Figure":
        from tuner.cli.charts import curves as picture

        what = f"{request.title}: predicted time and bus bandwidth"
        return picture.figure(drawn, what, described.heading)

    def says() -> str:
        return f"{len(drawn.algo_protos)} combinations at {len(drawn.bytes)} sizes"

    shared.deliver(out, as_json, record, draw, says)
