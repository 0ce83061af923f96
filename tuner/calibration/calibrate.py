"""Calibrations from measured tables: the shipped ones, and those of files of one's own."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from tuner import measured, release
from tuner.base.errors import BadInput, BadMeasurement
from tuner.calibration import plausible, point_to_point_fit, time_fit
from tuner.calibration.accuracy.splits import table_of_one_way
from tuner.calibration.measured_calls import MeasuredCalls, Site, joined, of_table
from tuner.machine import catalogue
from tuner.measured import MeasuredTable
from tuner.timemodel import calibration as calibrations
from tuner.timemodel.calibration import Calibration, ExchangeCalibration, MeasuredFile
from tuner.timemodel.intervals import Factors
from tuner.timemodel.parameters import believed
from tuner.timemodel.point_to_point import MODELLED

FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """What a shipped calibration is made of. ``machine`` is empty where the tables say it."""

    name: str
    tables: tuple[str, ...]
    machine: str = ""


def sources() -> tuple[CalibrationSource, ...]:
    """The shipped calibrations' tables, as ``tables/calibrations/sources.toml`` lists them."""
    text = (files("tuner.tables") / "calibrations" / "sources.toml").read_text(encoding="utf-8")
    return tuple(
        CalibrationSource(name, tuple(entry["tables"]), entry.get("machine", ""))
        for name, entry in tomllib.loads(text).items()
    )


def shipped(source: CalibrationSource, factors: Factors) -> Calibration:
    """A shipped calibration, made anew."""
    tables = [table_of_one_way(name) for name in source.tables]
    return of_tables(source.name, tables, source.machine or tables[0].header.machine, factors)


def of_tables(name: str, tables: Sequence[MeasuredTable], machine: str, factors: Factors) -> Calibration:
    """A calibration of ``machine`` from tables that say their release. BadInput where they hold too few rows."""
    launches = list(dict.fromkeys(table.header.launch for table in tables))
    placed = [_placed(table, machine, launches.index(table.header.launch)) for table in tables]
    everything = joined(placed)
    if len(everything) < FEWEST_ROWS:
        raise BadInput(f"{len(everything)} rows that NCCL's model can be asked about; valid: {FEWEST_ROWS} or more")
    fitted = time_fit.fit(everything.measured, believed(everything.generation))
    own = zip(tables, placed, strict=True)
    return Calibration(
        name=name,
        machine=machine,
        gpu=catalogue.load(machine).gpu,
        generation=everything.generation,
        launch=tables[0].header.launch.value,
        measured=tuple(MeasuredFile(table.name, len(rows)) for table, rows in own),
        parameters=fitted.parameters,
        surface=fitted.surface,
        scatter=fitted.scatter,
        factors=factors,
        scope=everything.scope(),
        exchange=_exchange(tables, machine),
    )


def of_paths(paths: Sequence[Path], machine: str | None, nccl: str | None, name: str) -> Calibration:
    """A calibration of files; ``machine`` and ``nccl`` stand for what these do not say.

    Errors: BadMeasurement for a file that is none, is of other GPUs or has times that cannot be true; BadInput where
    machine or release are not known.
    """
    tables = [measured.named_or_read(path) for path in paths]
    if nccl is not None:
        own = release.load(nccl).name
        tables = [replace(table, header=replace(table.header, nccl=own)) for table in tables]
    site = machine or tables[0].header.machine
    if not site:
        raise BadInput(f"{paths[0]}: which machine was measured is not said; valid: --machine")
    there = catalogue.load(site)
    for path, table in zip(paths, tables, strict=True):
        said = table.header.machine
        if said and catalogue.load(said).gpu != there.gpu:
            raise BadMeasurement(f"{path}: of {said}, and the calibration is of {there.name}, which has other GPUs")
        plausible.refuse(table, there.topology, str(path))
    return of_tables(name, tables, there.name, known_factors())


def known_factors() -> Factors:
    """The factors of the shipped calibrations, which are those of the frozen splits."""
    return calibrations.load(calibrations.names()[0]).factors


def _exchange(tables: Sequence[MeasuredTable], machine: str) -> ExchangeCalibration | None:
    """Of AllToAll, from the tables that were launched as the first that has it; between nodes, from the others too."""
    having = [table for table in tables if any(row.collective in MODELLED for row in table.rows)]
    alike = [
        replace(table, rows=tuple(row for row in table.rows if row.nodes > 1 or _alike(table, having[0])))
        for table in having
    ]
    rows = point_to_point_fit.of_tables(alike, [Site(machine, table.header.nccl) for table in alike])
    if rows is None:
        return None
    parameters = point_to_point_fit.fit(rows)
    scope = frozenset((row.nodes, row.gpus_per_node) for row in rows.rows)
    return ExchangeCalibration(parameters, point_to_point_fit.scatter(rows, parameters), len(rows.rows), scope)


def _alike(table: MeasuredTable, first: MeasuredTable) -> bool:
    return table.header.launch == first.header.launch


def _placed(table: MeasuredTable, machine: str, launch: int) -> MeasuredCalls:
    if not table.header.nccl:
        raise BadInput(f"{table.name}: which release of NCCL was measured is not known; valid: --nccl")
    return of_table(table, Site(machine, table.header.nccl), launch=launch)
