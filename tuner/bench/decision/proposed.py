"""The rows that a file of measurements proposes, for as many nodes as NCCL tells its tuner plugin that there are."""

from dataclasses import replace
from pathlib import Path

from tuner.bench.decision.rows import Proposal
from tuner.emulator import fitted_constants
from tuner.emulator.selection import Selection
from tuner.times.comparison.compared import compare
from tuner.times.comparison.model import Model
from tuner.times.records.header import scenario_of


def proposed(path: Path, constants: Path | None = None) -> Proposal:
    """For the communicator of the file; with fitted ``constants`` rows end where these say.

    Errors: BadMeasurement for a file that cannot be judged; BadConstants.
    """
    comparison = compare(path)
    scenario = scenario_of(comparison.measurements.header)
    fitted = None
    if constants is not None:
        there = fitted_constants.read(constants)
        fitted = Model(Selection(replace(scenario, fitted_constants=there).communicator()))
    return Proposal(comparison, scenario.ranks, scenario.communicator().nodes, fitted)
