"""``nccl-tuner plot measured``: measured times against the model's."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.bench.series import Series, series
from tuner.cli import options
from tuner.cli.arm_options import arm_option, runs_there
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.plot import shared
from tuner.cli.plot.records import PicturedMachine, PicturedMeasurements, PicturedSeries
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.comparison.compared import Comparison
from tuner.times.comparison.model import Model
from tuner.times.readers import measured_table
from tuner.times.readers.any_file import read_any
from tuner.times.records import header
from tuner.times.records.samples import Measurements, Point
from tuner.times.regret.measurements import of_communicator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(name="measured", cls=options.Command)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--collective",
    type=options.Named(Collective, "collective"),
    help="Only this collective; also the collective of a nccl-tests text that does not name it. [default: all]",
)
@arm_option
@of_all_ranks
@options.communicator_options()
@shared.out_option
@options.json_option
def command(
    files: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    collective: Collective | None,
    out: Path | None,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Times in FILEs, of 'nccl-tuner measure' or nccl-tests, against what NCCL's model predicts, and their ratio.

    A file of nccl-tests does not say where it was measured: --machine, --topology or --log, --nodes and --nccl do.
    Several FILEs, and those of --arm, are runs of one communicator; each says by NCCL_ALGO and NCCL_PROTO, or by NAME,
    what it forced.

    \b
    nccl-tuner plot measured run.jsonl --collective allreduce --out measured.png
    nccl-tuner plot measured all_reduce_perf.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out measured.svg
    nccl-tuner plot measured plain.log --arm Ring=ring.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out arms.svg
    """
    if not files and not labelled:
        raise click.UsageError("Missing argument 'FILE...'.")
    file, described, measurements = _read(files, labelled, collective, communicator)
    if collective is not None:
        blocks = tuple(block for block in measurements.blocks if block.point.collective is collective)
        if not blocks:
            raise BadMeasurement(f"{file}: no {collective.name} in it")
        measurements = replace(measurements, blocks=blocks)
    given = measurements.header
    comparison = Comparison(measurements, Model(Selection(described.communicator())))
    if not comparison.kinds:
        why = comparison.skipped[0].reason if comparison.skipped else "no times that count"
        raise BadMeasurement(f"{file}: nothing to draw: {why}")

    def record() -> list[PicturedMeasurements]:
        return [_pictured(described, kind, series(comparison, kind)) for kind in comparison.kinds]

    def draw() -> "Figure":
        from tuner.cli.charts import measured

        simulated = ", simulated times" if given.is_simulated else ""
        return measured.figure([comparison], [f"{file.name}: {described.heading}{simulated}"])

    def says() -> str:
        kinds = comparison.kinds
        names = ", ".join(sorted({kind.collective.name for kind in kinds}))
        return f"{sum(map(len, kinds.values()))} points of {names}, {given.origin}"

    shared.deliver(out, as_json, record, draw, says)


def _read(
    files: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    collective: Collective | None,
    communicator: options.CommunicatorOptions,
) -> tuple[Path, Scenario, Measurements]:
    """A file, the communicator, and the times; of several files together, and of one that forces something, by arms."""
    described_there = any(communicator[name] for name in ("machine", "topology", "log"))
    if described_there and (labelled or len(files) > 1 or measured_table.forces(files[0])):
        placed, described = runs_there(files, {**communicator.given, "labelled": labelled})
        return files[0] if files else labelled[0][1], described, of_communicator(placed, described)
    if labelled or len(files) > 1:
        raise BadInput("--arm, and several FILEs: valid with --machine NAME, --topology FILE or --log FILE, and --nccl")
    measurements = read_any(files[0], collective)
    return files[0], _scenario(files[0], measurements, communicator), measurements


def _scenario(file: Path, measurements: Measurements, communicator: options.CommunicatorOptions) -> Scenario:
    """What the options describe, or else the header of the file."""
    given = measurements.header
    if not communicator.says_where:
        if given.scenario is None:
            raise BadInput(f"{file} does not say where it was measured; valid: --machine NAME --nodes N --nccl RELEASE")
        if said := [name for name in communicator.given if _said(name)]:
            option = f"--{said[0].replace('_', '-')}"
            raise BadInput(f"{option}: {file} says its own communicator; valid: with --machine or --topology, or none")
        return given.scenario
    described = communicator.scenario(nccl=communicator["nccl"] or given.nccl)
    header.check(file, given, described)
    return described


def _said(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _pictured(scenario: Scenario, kind: Point, drawn: list[Series]) -> PicturedMeasurements:
    return PicturedMeasurements(
        kind.collective,
        kind.dtype,
        kind.op,
        kind.in_place,
        kind.graph,
        PicturedMachine.of(scenario),
        scenario.nodes,
        scenario.ranks,
        tuple(map(PicturedSeries.of, drawn)),
    )
