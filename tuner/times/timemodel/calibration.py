"""Calibrations: what was learnt from which measured times of one machine; the shipped ones, and a user's own files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from tuner.base.bounds import ReaderBounds, factor
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadCalibration, BadInput, nearest_of
from tuner.base.files import contents
from tuner.base.names import ALGO_PROTOS
from tuner.base.records import to_json
from tuner.base.spelling import option
from tuner.times.timemodel import point_to_point
from tuner.times.timemodel.form import PARAMETERS, Form, believed
from tuner.times.timemodel.intervals import (
    WITH_FACTOR,
    CarriedOver,
    Certainty,
    Factors,
    Place,
    Regime,
    Scatter,
    Sizes,
    Surface,
    SurfaceCurve,
    shared,
)
from tuner.times.timemodel.sites import MANY_ROWS, WIDENING, SiteProcess, SiteRows

FILE = ReaderBounds("a calibration", file_bytes=16 << 20)
VERSION = 6
_OF_SITE = ("name", "launch", "measured", "alltoall", "site", "network", "between_releases", "between")
EXCHANGES_CARRIED_OVER = (CarriedOver.sizes, CarriedOver.gpus, CarriedOver.machine)


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """One file of measured times that a calibration was fitted to."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class ExchangeCalibration:
    """Calibration of AllToAll. ``scatter``: mean absolute logarithm of measured over modelled times; ``factors``: half
    an interval in units of the scatter, by kind of extrapolation. ``scope``: measured pairs of numbers of nodes and of
    GPUs per node.
    """

    parameters: Mapping[str, float]
    scatter: float
    factors: Factors
    rows: int
    scope: frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)  # no slots, so that its process is factored only once
class Calibration:
    """Calibration of one machine, and where it holds.

    ``generation`` is that of the machine's GPUs, as NCCL's tables name it. ``launch`` says how the measured calls were
    launched; start_us applies to calls that are launched in this way. ``scope`` and ``sizes`` (the least and most bytes
    by collective and combination) say what was measured on one node. ``site`` is the cluster whose rows are in
    ``between``, ``network`` its network between nodes; both are empty, and ``between`` is None, if nothing was measured
    between nodes. ``base`` is the shipped calibration that supplies everything except the site's part.

    ``instances``: the names (machines of the catalogue, and others) of the instance type, if the rows in ``between``
    are an instance type's and not a site's. ``instance_type`` is the calibration of the site's type, if one was named;
    ``type_rows`` are that calibration's rows, from other clusters than the site.
    """

    name: str
    machine: str
    gpu: str
    generation: str
    launch: str
    measured: tuple[MeasuredFile, ...]
    parameters: Mapping[str, float]
    surface: Surface
    scatter: Scatter
    spread: Surface
    factors: Factors
    scope: frozenset[Place]
    exchange: ExchangeCalibration | None
    sizes: Sizes = field(default_factory=dict)
    site: str = ""
    network: str = ""
    between: SiteRows | None = None
    between_releases: tuple[str, ...] = ()
    base: str = ""
    instances: tuple[str, ...] = ()
    instance_type: str = ""
    type_rows: SiteRows | None = None

    @cached_property
    def process(self) -> SiteProcess:
        """The Gaussian process of times between nodes, conditioned on the site's rows if there are any."""
        many = self.factors[CarriedOver.nodes]
        return SiteProcess(self.parameters, self.between, {**WIDENING, MANY_ROWS: (many, many)}, self.type_rows)

    @cached_property
    def form(self) -> Form:
        """The form with the calibration's parameters."""
        return Form(self.parameters)

    @property
    def releases(self) -> tuple[str, ...]:
        """The NCCL releases with which the times were measured."""
        return tuple(sorted({*(place.nccl for place in self.scope), *self.between_releases}))

    def certainty(self, *, same_machine: bool) -> Certainty:
        """Certainty of the calibration's times."""
        return self._certainties[same_machine]

    @cached_property
    def _certainties(self) -> tuple[Certainty, Certainty]:
        """Certainties for another machine, and for the calibration's own machine."""
        another, own = (
            Certainty(self.scope, self.sizes, self.scatter, self.spread, self.factors, same) for same in (False, True)
        )
        return another, own

    @cached_property
    def measured_kinds(self) -> frozenset[tuple[int, int]]:
        """The collectives with their combinations, as numbers, that have any measured time on one node."""
        return frozenset((place.collective, place.algo_proto) for place in self.scope)


@cache
def names() -> tuple[str, ...]:
    """Names of the shipped calibrations."""
    folder = _folder()
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def of_site(site: str) -> str | None:
    """The name of the shipped calibration of a site, by the site's name; None if there is no such calibration."""
    return next((name for name in names() if site and _shipped(name).site == site), None)


def of_instance(machine: str | None) -> str | None:
    """Name of the shipped calibration of an instance type, by a machine of the catalogue; None if there is no such
    calibration."""
    return next((name for name in names() if machine in _record(name).get("instances", ())), None)


def of_generation(generation: str) -> list[Calibration]:
    """The shipped calibrations of GPUs of a generation, as NCCL's tables name it."""
    return [_shipped(name) for name in names() if _generation(name) == generation]


def load(name: str) -> Calibration:
    """Loads a shipped calibration by its name, or one from a file. BadInput for an unknown name, BadCalibration if a
    file is not a calibration.
    """
    if name in names():
        return _shipped(name)
    path = Path(name)
    if path.suffix or path.exists():
        return read(path)
    if (beside := Path(f"{name}.json")).exists():  # a user's own calibration in the current folder
        return read(beside)
    raise BadInput(f"no calibration {name!r}; {nearest_of(name, names())}, or a file of 'nccl-tuner fit calibration'")


def read(path: Path) -> Calibration:
    """Reads a calibration. BadCalibration if the file cannot be read or is not a calibration."""
    try:
        return _parsed(_json(path))
    except KeyError as error:
        raise BadCalibration(f"{path}: not a calibration: {error} is missing") from None
    except ValueError as error:
        raise BadCalibration(f"{path}: not a calibration: {error}") from None
    except (TypeError, IndexError, AttributeError):
        raise BadCalibration(f"{path}: not a calibration: a value of another kind than it has") from None


def _json(path: Path) -> Any:
    hint = f"; fitted constants are another thing, for {option('constants')}" if path.suffix == ".toml" else ""
    try:
        return json.loads(contents(path, int((FILE.file_bytes or 0) * factor())))
    except OSError as error:
        raise BadCalibration(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError):  # also raised for bytes that are no text
        raise BadCalibration(f"{path}: not a calibration: not JSON{hint}") from None


def text(calibration: Calibration) -> str:
    """The file of a calibration: JSON, numbers with five digits."""
    beliefs = believed(calibration.generation)
    scope = sorted(calibration.scope, key=lambda place: (place.nccl, *_numbers(place)))
    record = {
        "calibration": VERSION,
        "name": calibration.name,
        "machine": calibration.machine,
        "gpu": calibration.gpu,
        "generation": calibration.generation,
        "launch": calibration.launch,
        "measured": to_json(calibration.measured),
        "parameters": {
            name: _rounded(value) for name, value in calibration.parameters.items() if value != beliefs[name]
        },
        "scatter": {regime.name: _rounded(calibration.scatter[regime]) for regime in Regime},
        "factors": {kind.name: _rounded(calibration.factors[kind]) for kind in WITH_FACTOR},
        "scope": [[place.nccl, *_numbers(place)] for place in scope],
        "sizes": [[*key, *limits] for key, limits in sorted(calibration.sizes.items())],
        "site": calibration.site,
        "network": calibration.network,
        "between_releases": list(calibration.between_releases),
        "between": [] if calibration.between is None else _between_records(calibration.between),
        "alltoall": _exchange_record(calibration.exchange),
        "surface": _curve_records({each.key: each for each in calibration.surface.curves}, 4),
        "spread": _curve_records({each.key[1:2]: each for each in calibration.spread.curves}, 2),
    }
    if calibration.base:
        record = {"calibration": VERSION, "base": calibration.base, **{key: record[key] for key in _OF_SITE}}
    if calibration.instances:
        record["instances"] = list(calibration.instances)
    if calibration.instance_type:
        record["instance_type"] = calibration.instance_type
    lines = (f"{json.dumps(key)}: {_value(value)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _curve_records(curves: Mapping[tuple[int, ...], SurfaceCurve], digits: int) -> list[dict[str, Any]]:
    return [
        {"key": key, "first": curve.first, "step": curve.step, "values": [round(v, digits) for v in curve.values]}
        for key, curve in curves.items()
    ]


def _curve(key: tuple[int, int, int], record: Mapping[str, Any]) -> SurfaceCurve:
    return SurfaceCurve(key, int(record["first"]), np.array(record["values"]), int(record["step"]))


def _between_records(rows: SiteRows) -> list[list[float]]:
    columns = [getattr(rows, each.name).tolist() for each in fields(SiteRows)]
    return [[round(value, 4) for value in row] for row in zip(*columns, strict=True)]


def _between(record: Sequence[Sequence[float]]) -> SiteRows | None:
    if not record:
        return None
    columns = np.array(record, np.float64).T
    whole = [column.astype(np.int64) for column in columns[:4]]
    return SiteRows(whole[0], whole[1], whole[2], whole[3], *columns[4:])


def _exchange_record(exchange: ExchangeCalibration | None) -> dict[str, Any] | None:
    if exchange is None:
        return None
    return {
        "parameters": {name: _rounded(value) for name, value in exchange.parameters.items()},
        "scatter": _rounded(exchange.scatter),
        "factors": {kind.name: _rounded(exchange.factors[kind]) for kind in EXCHANGES_CARRIED_OVER},
        "rows": exchange.rows,
        "scope": sorted(exchange.scope),
    }


def _exchange(record: Mapping[str, Any] | None) -> ExchangeCalibration | None:
    if record is None:
        return None
    factors = {kind: float(record["factors"][kind.name]) for kind in EXCHANGES_CARRIED_OVER}
    return ExchangeCalibration(
        {name: float(record["parameters"][name]) for name in point_to_point.PARAMETERS},
        float(record["scatter"]),
        factors,
        int(record["rows"]),
        frozenset((int(nodes), int(gpus)) for nodes, gpus in record["scope"]),
    )


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n]"
    return json.dumps(value)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _numbers(place: Place) -> tuple[int, int, int, int]:
    return place.collective, place.algo_proto, place.gpus_per_node, place.nodes


def _parsed(record: Mapping[str, Any]) -> Calibration:
    if record["calibration"] != VERSION:
        raise ValueError(f"version {record['calibration']}, valid: {VERSION}; fit it anew with this version")
    if "base" in record:
        return replace(
            _shipped(str(record["base"])),
            name=str(record["name"]),
            launch=str(record["launch"]),
            measured=tuple(MeasuredFile(**each) for each in record["measured"]),
            exchange=_exchange(record["alltoall"]),
            base=str(record["base"]),
            **_site_part(record),
        )
    if unknown := sorted(record["parameters"].keys() - PARAMETERS.keys()):
        raise ValueError(f"unknown parameters {', '.join(unknown)}")
    parameters = {
        name: float(value) for name, value in {**believed(str(record["generation"])), **record["parameters"]}.items()
    }
    if wrong := [name for name, value in parameters.items() if not 0 < value < np.inf]:
        raise ValueError(f"{', '.join(wrong)}: not above 0")
    scope = frozenset(Place(str(nccl), *map(int, numbers)) for nccl, *numbers in record["scope"])
    if any(place.algo_proto >= len(ALGO_PROTOS) for place in scope):
        raise ValueError("an unknown algorithm or protocol in scope")
    return Calibration(
        name=str(record["name"]),
        machine=str(record["machine"]),
        gpu=str(record["gpu"]),
        generation=str(record["generation"]),
        launch=str(record["launch"]),
        measured=tuple(MeasuredFile(**each) for each in record["measured"]),
        parameters=parameters,
        surface=Surface(
            [_curve((int(a), int(b), int(c)), each) for each in record["surface"] for a, b, c in [each["key"]]]
        ),
        scatter={regime: float(record["scatter"][regime.name]) for regime in Regime},
        spread=shared([_curve((0, int(each["key"][0]), 0), each) for each in record["spread"]], scope),
        factors={kind: float(record["factors"][kind.name]) for kind in WITH_FACTOR},
        scope=scope,
        exchange=_exchange(record["alltoall"]),
        sizes={(int(a), int(b)): (float(least), float(most)) for a, b, least, most in record["sizes"]},
        **_site_part(record),
    )


def _site_part(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "site": str(record["site"]),
        "network": str(record["network"]),
        "between": _between(record["between"]),
        "between_releases": tuple(map(str, record["between_releases"])),
        "instances": tuple(map(str, record.get("instances", ()))),
        "instance_type": str(record.get("instance_type", "")),
    }


def shipped_exchange_factors() -> Factors:
    """Factors of the interval widths of AllToAll, which are equal in all shipped calibrations."""
    shipped = (_shipped(name).exchange for name in names())
    return next(exchange.factors for exchange in shipped if exchange is not None)


@cache
def _shipped(name: str) -> Calibration:
    return _parsed(_record(name))


@cache
def _record(name: str) -> Mapping[str, Any]:
    record: Mapping[str, Any] = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _generation(name: str) -> str:
    """Generation of a shipped calibration's GPUs; a site's comes from its base."""
    record = _record(name)
    return str(record["generation"]) if "generation" in record else _generation(record["base"])


def _folder() -> Traversable:
    return files("tuner.tables") / "calibrations"
