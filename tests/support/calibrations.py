"""Calibrations that are made up: what was believed before any measurement, with intervals that tests know."""

import math
from collections.abc import Mapping
from pathlib import Path

from tuner.base.names import ALGO_PROTOS, Collective
from tuner.times.timemodel import calibration
from tuner.times.timemodel.calibration import Calibration
from tuner.times.timemodel.form import believed
from tuner.times.timemodel.intervals import BEYOND, ON_ONE_NODE, WITH_FACTOR, CarriedOver, Place, Regime, Surface

NAME, MACHINE, RELEASE = "made-up", "dgx-h100", "2.28.9"
# Half an interval around the logarithm of a time is the scatter, alike for all regimes, times these.
SCATTER = 0.05
FACTORS = {kind: (0.1 if kind in BEYOND else 1) * (1 + 0.6 * at) for at, kind in enumerate(WITH_FACTOR)}
MEASURED = ("Ring/LL", "Ring/LL128", "Ring/Simple", "Tree/LL", "Tree/LL128")


def half_width(*kinds: CarriedOver) -> float:
    """Half the interval around the logarithm of a time on one node that carries these over, beside sizes: their errors
    add up as independent ones."""
    of = {**dict.fromkeys(ON_ONE_NODE, SCATTER), **dict.fromkeys(BEYOND, 1.0)}
    return math.hypot(*(FACTORS[kind] * of[kind] for kind in (CarriedOver.sizes, *kinds)))


def made_up(parameters: Mapping[str, float] | None = None) -> Calibration:
    """Of one dgx-h100, all collectives with the combinations of ``MEASURED``."""
    numbers = [ALGO_PROTOS.index(each) for each in ALGO_PROTOS if f"{each[0].name}/{each[1].name}" in MEASURED]
    scope = {Place(RELEASE, collective, number, 8, 1) for collective in Collective for number in numbers}
    return Calibration(
        name=NAME,
        machine=MACHINE,
        gpu="H100 SXM5",
        generation="hopper",
        launch="a process a GPU",
        measured=(),
        parameters={**believed(), **(parameters or {})},
        surface=Surface([]),
        scatter=dict.fromkeys(Regime, SCATTER),
        spread=Surface([]),
        factors=FACTORS,
        scope=frozenset(scope),
        exchange=None,
    )


def file(folder: Path, parameters: Mapping[str, float] | None = None) -> Path:
    """The same as a file."""
    path = folder / f"{NAME}.json"
    path.write_text(calibration.text(made_up(parameters)), "utf-8")
    return path
