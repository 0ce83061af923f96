"""Calibrations that are made up: what was believed before any measurement, with half-widths that tests know."""

from collections.abc import Mapping
from pathlib import Path

from tuner.base.names import ALGO_PROTOS, Collective
from tuner.timemodel import calibration
from tuner.timemodel.calibration import Calibration
from tuner.timemodel.intervals import CarriedOver, Place, Regime
from tuner.timemodel.parameters import believed
from tuner.timemodel.surface import Surface

NAME, MACHINE, RELEASE = "made-up", "dgx-h100", "2.28.9"
# Half an interval around the logarithm of a time, by what is carried over; alike for all regimes.
HALF_WIDTHS = {kind: 0.05 + 0.03 * at for at, kind in enumerate(CarriedOver)}
MEASURED = ("Ring/LL", "Ring/LL128", "Ring/Simple", "Tree/LL", "Tree/LL128")


def made_up(parameters: Mapping[str, float] | None = None) -> Calibration:
    """Of dgx-h100 with 1 and 2 nodes, all collectives with the combinations of ``MEASURED``."""
    numbers = [ALGO_PROTOS.index(each) for each in ALGO_PROTOS if f"{each[0].name}/{each[1].name}" in MEASURED]
    scope = {
        Place(RELEASE, collective, number, 8, nodes)
        for collective in Collective
        for number in numbers
        for nodes in (1, 2)
    }
    return Calibration(
        name=NAME,
        machine=MACHINE,
        generation="hopper",
        launch="a process a GPU",
        measured=(),
        parameters={**believed(), **(parameters or {})},
        surface=Surface([]),
        half_widths={kind: dict.fromkeys(Regime, width) for kind, width in HALF_WIDTHS.items()},
        scope=frozenset(scope),
    )


def file(folder: Path, parameters: Mapping[str, float] | None = None) -> Path:
    """The same as a file."""
    path = folder / f"{NAME}.json"
    path.write_text(calibration.text(made_up(parameters)), "utf-8")
    return path
