"""Makes calibrations from measured tables: the shipped ones, and those from a user's own files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement, TunerError
from tuner.base.spelling import option
from tuner.emulator.communicator import Comm
from tuner.machine import catalogue
from tuner.machine.topology import Topology
from tuner.times import measured as measured_tables
from tuner.times.calibration import plausible, time_fit
from tuner.times.calibration.measured_calls import MeasuredCalls, joined, of_table, splits_file, table_of_one_way
from tuner.times.calibration.time_fit import softened
from tuner.times.measured import Problem, formats
from tuner.times.measured.checks import nearest_release
from tuner.times.measured.formats import Given
from tuner.times.measured.header import Header, MeasuredLaunch, MeasuredRun
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import Site
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel import point_to_point
from tuner.times.timemodel.calibration import Calibration, ExchangeCalibration, MeasuredFile
from tuner.times.timemodel.features import Array, Ints, Which
from tuner.times.timemodel.form import believed
from tuner.times.timemodel.intervals import BELIEVED_SCATTER, Factors, Sizes, Surface, shared
from tuner.times.timemodel.point_to_point import MODELLED, PARAMETERS, Exchanges
from tuner.times.timemodel.sites import rows_of

_SCATTER = 0.05  # distance of a measured time from the form from which it counts less, natural logarithm
_BELIEVED_SCATTER, _BELIEVED_ROWS = 0.06, 10


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredExchanges:
    """Measured sends and receives: the calls, their times in us, and the GPUs per node, with one element per row."""

    rows: tuple[SampleBlock, ...]
    calls: Exchanges
    times_us: Array
    gpus_per_node: Ints

    def __getitem__(self, which: Which) -> "MeasuredExchanges":
        chosen = np.arange(len(self.rows))[which]
        rows = tuple(self.rows[at] for at in chosen.tolist())
        return MeasuredExchanges(rows, self.calls[which], self.times_us[which], self.gpus_per_node[which])


def exchanges_of_tables(tables: Sequence[Measurements], sites: Sequence[Site]) -> MeasuredExchanges | None:
    """The AllToAll rows that the model covers, each table on its site; None if there are no such rows."""
    rows: list[SampleBlock] = []
    calls: list[Exchanges] = []
    for table, site in zip(tables, sites, strict=True):
        communicators: dict[tuple[int, int], Comm | None] = {}
        for row in table.blocks:
            key = row.nodes, row.gpus_per_node
            if row.point.name not in MODELLED or row.point.in_place:
                continue
            if key not in communicators:
                try:
                    communicators[key] = site.selection(*key, {}).communicator
                except TunerError:
                    communicators[key] = None
            if (communicator := communicators[key]) is not None:
                rows.append(row)
                sizes = np.array([row.point.bytes], np.uint64)
                calls.append(point_to_point.of_communicator(communicator, sizes))
    if not rows:
        return None
    together = Exchanges(*(np.concatenate([getattr(each, name) for each in calls]) for name in Exchanges.__slots__))
    return MeasuredExchanges(
        tuple(rows),
        together,
        np.array([row.median_us for row in rows]),
        np.array([row.gpus_per_node for row in rows], np.int64),
    )


def fit_exchanges(measured: MeasuredExchanges) -> Mapping[str, float]:
    """The parameters that fit the times and priors best.

    The fit minimises softened absolute differences of logarithms.
    """
    names = list(PARAMETERS)
    believed = np.log([PARAMETERS[name].median for name in names])
    widths = np.array([PARAMETERS[name].log_sd for name in names])

    def residuals(vector: Array) -> Array:
        values = dict(zip(names, np.exp(vector).tolist(), strict=True))
        off = np.log(point_to_point.times_us(values, measured.calls) / measured.times_us) / _SCATTER
        return np.concatenate([softened(off), (vector - believed) / widths])

    from scipy.optimize import least_squares  # takes long to load

    return dict(zip(names, np.exp(least_squares(residuals, believed).x).tolist(), strict=True))


def exchange_scatter(measured: MeasuredExchanges, parameters: Mapping[str, float]) -> float:
    """Mean absolute logarithm of modelled over measured times, averaged with the usual value.

    The usual value has the weight of a fixed number of rows.
    """
    off = np.abs(np.log(point_to_point.times_us(parameters, measured.calls) / measured.times_us))
    return float((off.sum() + _BELIEVED_ROWS * _BELIEVED_SCATTER) / (len(off) + _BELIEVED_ROWS))


FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """The tables from which a shipped calibration is made. ``machine`` is empty if the tables name the machine.

    ``base``: for a site, the calibration that supplies the part inside nodes. Without ``base``, rows between nodes are
    left out unless ``site`` says that the machine is a single site. ``instances``: names of the instance type, if all
    tables are from machines of one such type. These tables are healthy runs of several clusters, placed as
    ``tables/splits.toml`` says.
    """

    name: str
    tables: tuple[str, ...]
    machine: str = ""
    base: str = ""
    site: bool = False
    instances: tuple[str, ...] = ()


def sources() -> tuple[CalibrationSource, ...]:
    """The shipped calibrations' tables, as ``tables/calibrations/sources.toml`` lists them."""
    return tuple(
        CalibrationSource(
            name, **{**entry, "tables": tuple(entry["tables"]), "instances": tuple(entry.get("instances", ()))}
        )
        for name, entry in tables.toml(tables.folder() / "calibrations" / "sources.toml").items()
    )


@dataclass(frozen=True, slots=True)
class Widths:
    """Factors of interval widths by kind of extrapolation: for collectives, and for AllToAll."""

    collectives: Factors
    exchanges: Factors


def shipped(source: CalibrationSource, widths: Widths) -> Calibration:
    """Makes a shipped calibration from its tables. BadMeasurement or BadInput if a table does not fit."""
    tables = [table_of_one_way(name) for name in source.tables]
    if source.instances:
        return _of_instance(source, tables, widths)
    measured = Site(source.machine or tables[0].header.machine)
    if source.base:
        (of_nodes,) = (each for each in sources() if each.name == source.base)
        made = of_site(shipped(of_nodes, widths), source.name, tables, measured, widths)
        return replace(made, base=source.base)
    if not source.site:
        tables = [replace(table, blocks=tuple(row for row in table.blocks if row.nodes == 1)) for table in tables]
    return of_tables(source.name, tables, measured, widths)


def _of_instance(source: CalibrationSource, tables: Sequence[Measurements], widths: Widths) -> Calibration:
    (of_nodes,) = (each for each in sources() if each.name == source.base)
    nodes = shipped(of_nodes, widths)
    entries = (entry for site in splits_file()["sites"].values() for entry in site["tables"])
    places = {table: Site(machine, nccl) for table, machine, nccl in entries}
    placed = [of_table(table, places[table.name]) for table in tables]
    return replace(
        updated(nodes, joined(placed)),
        name=source.name,
        measured=_files(tables, placed),
        site=source.name,
        network=_networks(tables),
        base=source.base,
        instances=source.instances,
    )


def of_site(
    nodes: Calibration, name: str, tables: Sequence[Measurements], measured: Site, widths: Widths
) -> Calibration:
    """The calibration ``nodes`` with the rows of a site's tables added; one row is enough.

    BadInput if no row is between nodes, or if the release or machine is not known. CannotBeJudged if a table has no row
    that NCCL's model can answer for.
    """
    sites = [_site(table, measured) for table in tables]
    placed = [of_table(table, site) for table, site in zip(tables, sites, strict=True)]
    made = updated(nodes, joined(placed))
    if made.between is nodes.between:
        raise BadInput(
            "none of the rows is between nodes, and rows cannot update the part inside nodes, which was fitted: give "
            "rows between nodes"
        )
    return replace(
        made,
        name=name,
        launch=tables[0].header.launch.value if nodes.between is None else nodes.launch,
        measured=_files(tables, placed),
        exchange=_exchange(tables, sites, widths.exchanges) or nodes.exchange,
        site=_site_name(tables) or name,
        network=_networks(tables),
        base="",
    )


def of_tables(name: str, tables: Sequence[Measurements], measured: Site, widths: Widths) -> Calibration:
    """Makes a machine's calibration from tables that name their release. BadInput if the tables have too few rows."""
    launches = list(dict.fromkeys(table.header.launch for table in tables))
    sites = [_site(table, measured) for table in tables]
    placed = [
        of_table(table, site, launch=launches.index(table.header.launch))
        for table, site in zip(tables, sites, strict=True)
    ]
    everything = joined(placed)
    if len(everything) < FEWEST_ROWS:
        raise BadInput(
            f"NCCL's model has a time for only {len(everything)} rows: give files with {FEWEST_ROWS} or more"
        )
    fitted = of_calls(everything, widths.collectives)
    return replace(
        fitted,
        name=name,
        machine=sites[0].name or "",
        gpu=catalogue.load(sites[0].machine).gpu if sites[0].machine else "",
        launch=tables[0].header.launch.value,
        measured=_files(tables, placed),
        exchange=_exchange(tables, sites, widths.exchanges),
        site=(_site_name(tables) or name) if fitted.between is not None else "",
        network=_networks(tables),
    )


def _files(tables: Sequence[Measurements], placed: Sequence[MeasuredCalls]) -> tuple[MeasuredFile, ...]:
    return tuple(MeasuredFile(table.name, len(rows)) for table, rows in zip(tables, placed, strict=True))


def _networks(tables: Sequence[Measurements]) -> str:
    """The networks between nodes that the tables name."""
    return ", ".join(dict.fromkeys(table.header.network for table in tables if table.header.network))


def of_calls(calls: MeasuredCalls, factors: Factors) -> Calibration:
    """Makes a calibration from one machine's rows: rows on one node show NVLinks, rows between nodes show a site's
    network.
    """
    beliefs = believed(calls.generation)
    on_one = calls.chosen(calls.measured.calls.nodes == 1)
    parameters: Mapping[str, float] = beliefs
    empty = Surface(())
    fitted = None
    if len(on_one):
        fitted = time_fit.fit(on_one.measured, beliefs)
        parameters = fitted.parameters
    scatter, spread = BELIEVED_SCATTER, empty
    if fitted is not None:
        scatter, curves = time_fit.uncertainty(on_one.measured, fitted, beliefs)
        spread = shared(curves, on_one.scope())
    made = Calibration(
        name="",
        machine=calls.machine or "",
        gpu="",
        generation=calls.generation,
        launch="",
        measured=(),
        parameters=parameters,
        surface=fitted.surface if fitted is not None else empty,
        scatter=scatter,
        spread=spread,
        factors=factors,
        scope=on_one.scope(),
        exchange=None,
        sizes=_sizes(on_one),
    )
    return updated(made, calls)


def updated(calibration: Calibration, calls: MeasuredCalls) -> Calibration:
    """The calibration with the rows between nodes added to the rows of its site; rows on one node change nothing."""
    between = calls.chosen(calls.measured.calls.nodes > 1)
    if not len(between):
        return calibration
    if calibration.instances:  # its rows come from other clusters
        calibration = replace(calibrations.load(calibration.base), instance_type=calibration.name)
    rows = rows_of(between.measured.calls, between.measured.times_us, dict(calibration.parameters))
    known = calibration.between
    return replace(
        calibration,
        between=rows if known is None else known.joined(rows),
        between_releases=tuple(sorted({*calibration.between_releases, *between.nccl})),
        site=calibration.site or "own",
    )


def _sizes(calls: MeasuredCalls) -> Sizes:
    """The least and the most bytes that were measured, by collective and combination, both as their numbers."""
    limits: dict[tuple[int, int], tuple[float, float]] = {}
    features = calls.measured.calls
    columns = features.collective.tolist(), features.algo_proto.tolist(), features.bytes.tolist()
    for collective, algo_proto, size in zip(*columns, strict=True):
        least, most = limits.get((collective, algo_proto), (size, size))
        limits[collective, algo_proto] = min(least, size), max(most, size)
    return limits


def _site_name(tables: Sequence[Measurements]) -> str:
    return next((table.header.site for table in tables if table.header.site), "")


def read_table(path: Path, given: Given) -> Measurements:
    """Reads a shipped table by its name, or a file in any format of measured times; ``given`` adds what it does not
    say.

    BadMeasurement if the file is not one of measured times, or contradicts ``given``.
    """
    return (
        measured_tables.load(str(path))
        if str(path) in measured_tables.names()
        else formats.read(measured_tables.file_of(path), given)
    )


def of_paths(
    paths: Sequence[Path], measured: Site, name: str, update: str | None = None, given: Given | None = None
) -> tuple[Calibration, tuple[str, ...]]:
    """Makes a calibration from files; also returns a note on every release that stands in for an unknown one.

    ``measured`` and ``given`` supply what the files do not say.

    ``update``: the calibration that the rows are added to, by its name or file; without it, the part inside nodes is
    fitted.

    BadMeasurement if a file has no measurements, is from other GPUs, names another release or has times that cannot be
    true. BadInput if the machine or release is not known. BadTopology if the topology file is invalid.
    """
    if measured.machine is not None and measured.topology is not None:
        raise BadInput(f"{option('machine')} and {option('topology')} both describe the node: give one of them")
    tables = [_of_release(path, read_table(path, given or Given()), measured.nccl) for path in paths]
    where = measured.completed(tables[:1])
    there = catalogue.load(where.machine) if where.machine else None
    topology, trays = where.node
    for path, table in zip(paths, tables, strict=True):
        said = table.header.machine
        if there and said and catalogue.load(said).gpu != there.gpu:
            raise BadMeasurement(
                f"{path} was measured on {said}, but the calibration is for {there.name}, which has other GPUs"
            )
        plausible.refuse(table, topology, str(path), trays)
    stand_ins = dict.fromkeys(_site(table, where).stand_in for table in tables)
    if update is not None:
        made = of_site(calibrations.load(update), name, tables, where, known_widths())
    else:
        made = of_tables(name, tables, where, known_widths())
    return made, tuple(filter(None, stand_ins))


def known_widths() -> Widths:
    """The interval widths of the shipped calibrations, learnt on the frozen splits."""
    return Widths(calibrations.load(calibrations.names()[0]).factors, calibrations.shipped_exchange_factors())


def _of_release(path: Path, table: Measurements, nccl: str) -> Measurements:
    """The table, with the given release if it names none."""
    if not nccl:
        return table
    said = table.header.nccl
    if said and said != nccl:
        raise BadMeasurement(
            f"{path} says NCCL {said}, not {nccl}: remove {option('nccl')}, or give a file of NCCL {nccl}"
        )
    return replace(table, header=replace(table.header, nccl=nccl))


def _exchange(tables: Sequence[Measurements], sites: Sequence[Site], factors: Factors) -> ExchangeCalibration | None:
    """Calibrates AllToAll: on one node from tables that launch calls as the first table does, between nodes from all
    tables.
    """
    pairs = list(zip(tables, sites, strict=True))
    having = [(table, site) for table, site in pairs if any(row.point.name in MODELLED for row in table.blocks)]
    alike = [
        table
        if table.header.launch == having[0][0].header.launch
        else replace(table, blocks=tuple(row for row in table.blocks if row.nodes > 1))
        for table, _ in having
    ]
    rows = exchanges_of_tables(alike, [site for _, site in having])
    if rows is None:
        return None
    parameters = fit_exchanges(rows)
    scope = frozenset((row.nodes, row.gpus_per_node) for row in rows.rows)
    scatter = exchange_scatter(rows, parameters)
    return ExchangeCalibration(parameters, scatter, factors, len(rows.rows), scope)


def _site(table: Measurements, measured: Site) -> Site:
    return replace(measured, nccl="").completed([table])


_SAME = ("nccl", "gpu", "launch", "cuda_graph", "network")


def table_of(
    files: Sequence[Path], facts: Header, given: Given, topology: Topology | None
) -> tuple[Measurements, tuple[tuple[Path, Problem], ...]]:
    """Joins the rows of all files under one header; also returns each problem that refuses no row, with its file.

    The files supply what ``facts`` leaves empty. BadMeasurement if a file cannot be read, is refused (``plausible``),
    or has another release, GPU or way of launching than the other files. BadInput if a package that is needed to read a
    file is missing. UnknownRelease for a release that is not known here.
    """
    tables = []
    problems: list[tuple[Path, Problem]] = []
    for path in files:
        table = formats.read(path, given)
        trays = catalogue.load(facts.machine).trays if facts.machine else None
        problems += [(path, problem) for problem in plausible.refuse(table, topology, str(path), trays)]
        tables.append(table)
    head = _head(files, tables, facts)
    if head.nccl:
        nearest_release(head.nccl)
    rows: list[SampleBlock] = []
    runs: dict[str, MeasuredRun] = {}
    for table in tables:
        names = {run: _unused(run, runs) for run in table.header.runs}
        runs |= {names[run]: table.header.runs[run] for run in names}
        rows += [replace(row, run=names.get(row.run, "")) for row in table.blocks]
    return Measurements(replace(head, runs=runs), tuple(rows), name=facts.title), tuple(problems)


def _head(files: Sequence[Path], tables: Sequence[Measurements], facts: Header) -> Header:
    """The header ``facts``, completed from the files' headers, which have to agree."""
    heads = [table.header for table in tables]
    for name in _SAME:
        values = {getattr(head, name): path for path, head in zip(files, heads, strict=True) if getattr(head, name)}
        values.pop(MeasuredLaunch.unknown, None)
        if len(values) > 1:
            each = ", ".join(f"{value} in {path}" for value, path in values.items())
            raise BadMeasurement(f"the rows have several values of {name} ({each}): give a table for each")
        if values and getattr(facts, name) in ("", MeasuredLaunch.unknown, False):
            facts = replace(facts, **{name: next(iter(values))})
    first = heads[0]
    left_out: Counter[str] = Counter()
    for head in heads:
        left_out.update(head.left_out)
    return replace(
        facts,
        nccl_note=facts.nccl_note or first.nccl_note,
        machine_note=facts.machine_note or first.machine_note,
        how_measured=facts.how_measured or first.how_measured,
        variables={**first.variables, **facts.variables} if len(heads) == 1 else facts.variables,
        traps=facts.traps or first.traps,
        health=first.health if len(heads) == 1 else facts.health,
        health_note=first.health_note if len(heads) == 1 else facts.health_note,
        adapters=first.adapters if len(heads) == 1 else facts.adapters,
        left_out=dict(left_out),
    )


def _unused(name: str, used: dict[str, MeasuredRun]) -> str:
    number = 2
    unused = name
    while unused in used:
        unused, number = f"{name}-{number}", number + 1
    return unused
