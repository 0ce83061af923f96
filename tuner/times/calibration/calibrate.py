"""Calibrations from measured tables: the shipped ones, and those of files of one's own."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from tuner import release
from tuner.base.errors import BadInput, BadMeasurement
from tuner.machine import catalogue, skeleton
from tuner.times.calibration import plausible, point_to_point_fit, time_fit
from tuner.times.calibration.accuracy.splits import table_of_one_way
from tuner.times.calibration.measured_calls import Site, joined, of_table
from tuner.times.measured import MeasuredTable
from tuner.times.measured import named_or_read as table_file
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel.calibration import Calibration, ExchangeCalibration, MeasuredFile
from tuner.times.timemodel.intervals import Factors
from tuner.times.timemodel.parameters import believed
from tuner.times.timemodel.point_to_point import MODELLED

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


@dataclass(frozen=True, slots=True)
class Widths:
    """How wide intervals are by what is carried over: of collectives, and of AllToAll."""

    collectives: Factors
    exchanges: Factors


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured where files do not say it: a machine or a topology file, and a release."""

    machine: str | None = None
    topology: Path | None = None
    nccl: str | None = None


def shipped(source: CalibrationSource, widths: Widths) -> Calibration:
    """A shipped calibration, made anew."""
    tables = [table_of_one_way(name) for name in source.tables]
    return of_tables(source.name, tables, Measured(source.machine or tables[0].header.machine), widths)


def of_tables(name: str, tables: Sequence[MeasuredTable], measured: Measured, widths: Widths) -> Calibration:
    """A calibration of a machine from tables that say their release. BadInput where they hold too few rows."""
    launches = list(dict.fromkeys(table.header.launch for table in tables))
    sites = [_site(table, measured) for table in tables]
    placed = [
        of_table(table, site, launch=launches.index(table.header.launch))
        for table, site in zip(tables, sites, strict=True)
    ]
    everything = joined(placed)
    if len(everything) < FEWEST_ROWS:
        raise BadInput(f"{len(everything)} rows that NCCL's model can be asked about; valid: {FEWEST_ROWS} or more")
    beliefs = believed(everything.generation)
    fitted = time_fit.fit(everything.measured, beliefs)
    uncertainty = time_fit.uncertainty(everything.measured, fitted, beliefs)
    own = zip(tables, placed, strict=True)
    return Calibration(
        name=name,
        machine=sites[0].name or "",
        gpu=catalogue.load(sites[0].machine).gpu if sites[0].machine else "",
        generation=everything.generation,
        launch=tables[0].header.launch.value,
        measured=tuple(MeasuredFile(table.name, len(rows)) for table, rows in own),
        parameters=fitted.parameters,
        surface=fitted.surface,
        scatter=uncertainty.scatter,
        spread=uncertainty.spread,
        factors=widths.collectives,
        scope=everything.scope(),
        exchange=_exchange(tables, sites, widths.exchanges),
    )


def of_paths(paths: Sequence[Path], measured: Measured, name: str) -> Calibration:
    """A calibration of files; ``measured`` stands for what these do not say.

    Errors: BadMeasurement for a file that is none, is of other GPUs, says another release or has times that cannot be
    true; BadInput where machine or release are not known; BadTopology for a topology that is none.
    """
    if measured.machine is not None and measured.topology is not None:
        raise BadInput("`machine` and `topology`: one node has one of them")
    tables = [_of_release(path, table_file(path), measured.nccl) for path in paths]
    if measured.topology is not None:
        topology = skeleton.read_complete(measured.topology)[1]
        where = measured
    else:
        machine = measured.machine or tables[0].header.machine
        if not machine:
            raise BadInput(f"{paths[0]}: which machine was measured is not said; valid: `machine`, `topology`")
        there = catalogue.load(machine)
        topology, where = there.topology, Measured(there.name)
        for path, table in zip(paths, tables, strict=True):
            said = table.header.machine
            if said and catalogue.load(said).gpu != there.gpu:
                raise BadMeasurement(f"{path}: of {said}, and the calibration is of {there.name}, which has other GPUs")
    for path, table in zip(paths, tables, strict=True):
        plausible.refuse(table, topology, str(path))
    return of_tables(name, tables, where, known_widths())


def known_widths() -> Widths:
    """Those of the shipped calibrations, which the frozen splits say."""
    return Widths(calibrations.load(calibrations.names()[0]).factors, calibrations.shipped_exchange_factors())


def _of_release(path: Path, table: MeasuredTable, nccl: str | None) -> MeasuredTable:
    """With the release that is given, where the table says none."""
    if nccl is None:
        return table
    given, said = release.load(nccl).name, table.header.nccl
    if said and said != given:
        raise BadMeasurement(f"{path}: says NCCL {said}, not {given}; valid: no `nccl`, or a file that says {given}")
    return replace(table, header=replace(table.header, nccl=given))


def _exchange(tables: Sequence[MeasuredTable], sites: Sequence[Site], factors: Factors) -> ExchangeCalibration | None:
    """Of AllToAll, from the tables that were launched as the first that has it; between nodes, from the others too."""
    pairs = list(zip(tables, sites, strict=True))
    having = [(table, site) for table, site in pairs if any(row.collective in MODELLED for row in table.rows)]
    alike = [
        replace(table, rows=tuple(row for row in table.rows if row.nodes > 1 or _alike(table, having[0][0])))
        for table, _ in having
    ]
    rows = point_to_point_fit.of_tables(alike, [site for _, site in having])
    if rows is None:
        return None
    parameters = point_to_point_fit.fit(rows)
    scope = frozenset((row.nodes, row.gpus_per_node) for row in rows.rows)
    scatter = point_to_point_fit.scatter(rows, parameters)
    return ExchangeCalibration(parameters, scatter, factors, len(rows.rows), scope)


def _alike(table: MeasuredTable, first: MeasuredTable) -> bool:
    return table.header.launch == first.header.launch


def _site(table: MeasuredTable, measured: Measured) -> Site:
    if not table.header.nccl:
        raise BadInput(f"{table.name}: which release of NCCL was measured is not known; valid: `nccl`")
    return Site(measured.machine, table.header.nccl, measured.topology)
