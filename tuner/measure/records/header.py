"""The communicator in the header of a file of measurements, as every backend writes it under ``case``."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tuner.base.errors import BadMeasurement
from tuner.scenario import Scenario

CASE = "case"
_PATHS = ("topology", "graphs")


def scenario_record(scenario: Scenario) -> dict[str, Any]:
    """The scenario as JSON holds it; paths are absolute."""
    record = asdict(replace(scenario, fitted_constants=None))
    del record["fitted_constants"]  # of what was measured before: no part of a communicator
    del record["build"]  # of the libnccl that is asked without GPUs
    record.update({name: str(path.resolve()) for name in _PATHS if (path := getattr(scenario, name)) is not None})
    others = [scenario_record(other) for other in scenario.others]
    return {**record, "environment": scenario.environment or {}, "others": others}


def scenario_of(header: Mapping[str, Any]) -> Scenario:
    """The scenario of a header; BadMeasurement where it has none."""
    if CASE not in header:
        raise BadMeasurement(f"the header does not say which communicator was measured: no '{CASE}' in it")
    return _scenario(header[CASE])


def check(file: Path, header: Mapping[str, Any], scenario: Scenario) -> None:
    """BadMeasurement where the header says another communicator than ``scenario``, or another number of ranks."""
    valid = f"valid: measurements of {scenario.title}"
    if CASE in header:
        theirs = scenario_of(header)
        alike = None in (theirs.machine, scenario.machine) or theirs.machine == scenario.machine
        if not alike or (theirs.nodes, theirs.ranks) != (scenario.nodes, scenario.ranks):
            raise BadMeasurement(f"{file}: measured on {theirs.title}; {valid}")
    elif header.get("ranks") not in (None, scenario.ranks):
        raise BadMeasurement(f"{file}: measured on {header['ranks']} ranks; {valid}")


def _scenario(record: Mapping[str, Any]) -> Scenario:
    paths = {name: Path(record[name]) for name in _PATHS if record.get(name) is not None}
    try:
        return Scenario(**{**record, **paths, "others": tuple(map(_scenario, record["others"]))})
    except (KeyError, TypeError) as error:
        raise BadMeasurement(f"the header's '{CASE}' describes no communicator: {error!r}") from None
