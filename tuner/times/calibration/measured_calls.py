"""Measured times as calls that the time model knows: each row on the communicator that it was measured on."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from tuner import release
from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement, TunerError
from tuner.base.names import DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue, skeleton
from tuner.release import Release
from tuner.scenario import Scenario
from tuner.scenario.describe import Description, describe
from tuner.times import measured
from tuner.times.calibration.time_fit import Measured
from tuner.times.measured import MeasuredRow, MeasuredTable
from tuner.times.timemodel import features
from tuner.times.timemodel.features import Ints
from tuner.times.timemodel.intervals import Place

WITHOUT_COLLNET = "aws-ofi-nccl"  # a network plugin that has none
FORCED = {"algorithm": "NCCL_ALGO", "protocol": "NCCL_PROTO"}


class OfTrays(TypedDict):
    """NVLink domains, of so many trays each, with so many GPUs of a tray."""

    nodes: int
    trays: int
    gpus_per_node: int


def of_trays(nodes: int, gpus: int, gpus_per_tray: int, trays: int) -> OfTrays:
    """Domains of ``trays``, as results count them: by host, a tray of which has ``gpus``, or by domain. BadInput."""
    if gpus > gpus_per_tray and gpus % gpus_per_tray == 0 and gpus // gpus_per_tray <= trays:
        return {"nodes": nodes, "trays": gpus // gpus_per_tray, "gpus_per_node": gpus_per_tray}
    if gpus <= gpus_per_tray and (nodes <= trays or nodes % trays == 0):
        return {"nodes": max(nodes // trays, 1), "trays": min(nodes, trays), "gpus_per_node": gpus}
    raise BadInput(
        f"{nodes} x {gpus} GPUs: not of NVLink domains of {trays} trays with {gpus_per_tray} GPUs; valid: up to "
        f"{trays} hosts or a multiple of {trays}, with --trays"
    )


def nearest_release(name: str) -> tuple[str, str]:
    """The release of the catalogue that stands for ``name``, and what is said of it where it is another one.

    A patch release that the catalogue does not have is taken for the nearest of its minor release. Errors:
    UnknownRelease where there is none of that.
    """
    known = release.names()
    minor, _, patch = name.rpartition(".")
    near = [each for each in known if each.rpartition(".")[0] == minor]
    if name in known or not near or not patch.isdigit():
        return release.load(name).name, ""
    nearest = min(near, key=lambda each: abs(int(each.rpartition(".")[2]) - int(patch)))
    return nearest, f"NCCL {name} is not in the catalogue: the nearest, {nearest}, stands for it"


@dataclass(frozen=True, slots=True)
class Site:
    """Where rows are placed: a machine of the catalogue, a topology file or the node of a log, and a release.

    ``words`` are further ones that describe it, as ``tuner.scenario.describe`` takes them: ``log``, ``gpu``.
    """

    machine: str | None
    nccl: str
    topology: Path | None = None
    words: tuple[tuple[str, Any], ...] = ()

    def scenario(self, nodes: int, gpus_per_node: int, variables: Mapping[str, str]) -> Scenario:
        """A communicator there. Errors: those of ``describe``."""
        given: Description = {
            "topology": self.topology,
            "nodes": nodes,
            "gpus_per_node": gpus_per_node,
            "nccl": self.nccl,
            "env": dict(variables),
        }
        there = catalogue.load(self.machine) if self.machine else None
        if there is not None and there.trays:
            of = of_trays(nodes, gpus_per_node, there.gpus_per_node, there.trays)
            given |= {"nodes": of["nodes"], "trays": of["trays"], "gpus_per_tray": of["gpus_per_node"]}
            del given["gpus_per_node"]
        return describe(self.machine, **given, **dict(self.words))

    def selection(self, nodes: int, gpus_per_node: int, variables: Mapping[str, str]) -> Selection:
        """Of a communicator there. Errors: those of a scenario's communicator."""
        return Selection(self.scenario(nodes, gpus_per_node, variables).communicator())

    @property
    def name(self) -> str | None:
        """What the machine is called: by the catalogue, or by its topology file or log."""
        if "log" in dict(self.words) and self.topology is None and self.machine is None:
            return str(dict(self.words)["log"])
        return skeleton.name_of(self.topology) if self.topology and not self.machine else self.machine

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the machine itself sets for NCCL's search."""
        return catalogue.load(self.machine).environment if self.machine else {}


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCalls:
    """Rows with what the emulator knows of their calls, an element a row; ``skipped`` counts the others by reason.

    ``nccl`` is each row's release, ``nccl_us`` what NCCL's own model says. ``dtype`` and ``gpus_per_node`` are there to
    choose rows by.
    """

    rows: tuple[MeasuredRow, ...]
    machine: str | None
    generation: str
    nccl: tuple[str, ...]
    measured: Measured
    nccl_us: features.Array
    dtype: Ints
    gpus_per_node: Ints
    skipped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> "MeasuredCalls":
        """Those of a mask."""
        return replace(
            self,
            rows=tuple(compress(self.rows, which.tolist())),
            nccl=tuple(compress(self.nccl, which.tolist())),
            measured=self.measured[which],
            nccl_us=self.nccl_us[which],
            dtype=self.dtype[which],
            gpus_per_node=self.gpus_per_node[which],
        )

    def places(self) -> list[Place]:
        """Where each row was measured."""
        calls = self.measured.calls
        columns = zip(
            self.nccl,
            calls.collective.tolist(),
            calls.algo_proto.tolist(),
            self.gpus_per_node.tolist(),
            calls.nodes.astype(int).tolist(),
            strict=True,
        )
        return [Place(*each) for each in columns]

    def scope(self) -> frozenset[Place]:
        """Where any row was measured."""
        return frozenset(self.places())


@dataclass(frozen=True, slots=True)
class _Kind:
    nodes: int
    gpus_per_node: int
    environment: tuple[tuple[str, str], ...]
    request: Request


def of_table(table: MeasuredTable, site: Site, *, launch: int = 0) -> MeasuredCalls:
    """The rows that the emulator can place on ``site``. ``launch`` numbers the way they were launched.

    In-place rows, sends and receives, and rows of another setting of the search or the network are skipped and counted.
    BadMeasurement where none is left.
    """
    nccl, skipped = release.load(site.nccl), Counter[str]()
    kinds: dict[_Kind, list[MeasuredRow]] = defaultdict(list)
    # In place alone counts where no such call was measured out of place.
    out_of_place = {(row.collective, row.nodes, row.gpus_per_node) for row in table.rows if not row.in_place}
    for row in table.rows:
        if row.in_place and (row.collective, row.nodes, row.gpus_per_node) not in out_of_place:
            row = replace(row, in_place=False)
        why = _skipped(row) or _elsewhere(table, row, nccl, site)
        if why is not None:
            skipped[why] += 1
            continue
        environment = _environment(table, row, nccl, site)
        collective = row.tuned_collective
        assert collective is not None
        kinds[_Kind(row.nodes, row.gpus_per_node, environment, Request(collective, row.dtype, Op.sum))].append(row)
    rows: list[MeasuredRow] = []
    calls, nccl_us, generation = [], [], ""
    for kind, its_rows in kinds.items():
        try:
            selection = site.selection(kind.nodes, kind.gpus_per_node, dict(kind.environment))
            picks = selection.pick(kind.request, np.array([row.bytes for row in its_rows], np.uint64))
        except TunerError as error:
            skipped[str(error)] += len(its_rows)
            continue
        rows += its_rows
        generation = selection.communicator.generation
        calls.append(features.of_picks(selection, kind.request, picks))
        nccl_us.append(picks.time_us.astype(np.float64))
    if not rows:
        raise BadMeasurement(f"{table.name}: no row that NCCL's model can be asked about; {_counted(skipped)}")
    times_us = np.array([row.time_us for row in rows])
    together = features.concatenated(calls)
    return MeasuredCalls(
        rows=tuple(rows),
        machine=site.machine,
        generation=generation,
        nccl=(site.nccl,) * len(rows),
        measured=Measured(together, times_us, np.full(len(rows), launch)),
        nccl_us=np.concatenate(nccl_us),
        dtype=np.array([row.dtype for row in rows], np.int64),
        gpus_per_node=np.round(together.ranks / together.nodes).astype(np.int64),
        skipped=dict(skipped),
    )


def joined(several: Sequence[MeasuredCalls]) -> MeasuredCalls:
    """The rows of several tables of one machine."""
    first, rest = several[0], [each.measured for each in several]
    return MeasuredCalls(
        rows=tuple(row for each in several for row in each.rows),
        machine=first.machine,
        generation=first.generation,
        nccl=tuple(name for each in several for name in each.nccl),
        measured=Measured(
            features.concatenated(each.calls for each in rest),
            np.concatenate([each.times_us for each in rest]),
            np.concatenate([each.launch for each in rest]),
        ),
        nccl_us=np.concatenate([each.nccl_us for each in several]),
        dtype=np.concatenate([each.dtype for each in several]),
        gpus_per_node=np.concatenate([each.gpus_per_node for each in several]),
        skipped=dict(sum((Counter(each.skipped) for each in several), Counter[str]())),
    )


def _counted(skipped: Mapping[str, int]) -> str:
    return "; ".join(f"{count} rows: {why}" for why, count in skipped.items()) or "it has none"


def point_to_point_reason(collective: str) -> str:
    """Why rows of a collective that is made of sends and receives are skipped."""
    return f"{collective}: sends and receives"


def _skipped(row: MeasuredRow) -> str | None:
    if row.is_point_to_point:
        return point_to_point_reason(row.collective)
    if row.in_place:
        return "in place"
    if row.dtype in (DataType.float8e4m3, DataType.float8e5m2):
        return "8-bit floats"
    return None


def _elsewhere(table: MeasuredTable, row: MeasuredRow, nccl: Release, site: Site) -> str | None:
    """Why a row of another setting cannot be placed."""
    own, of_run = site.environment, table.environment_of(row)
    for name in sorted(of_run.keys() & set(nccl.environment.search)):
        if own.get(name, of_run[name]) != of_run[name]:
            return f"{name}={of_run[name]}: another search than the machine's"
    network = table.network_of(row)
    if network == "sockets" and row.nodes > 1:
        return "TCP sockets, which do not use the adapters as the topology has them"
    if of_run.get("NCCL_COLLNET_ENABLE", "0") != "0" and not network.startswith(WITHOUT_COLLNET):
        return "NCCL_COLLNET_ENABLE: whether the network has a CollNet plugin is not said"
    return None


def _environment(table: MeasuredTable, row: MeasuredRow, nccl: Release, site: Site) -> tuple[tuple[str, str], ...]:
    """The variables that NCCL's model reads."""
    own = site.environment
    forced = {
        variable: getattr(row, column).name for column, variable in FORCED.items() if getattr(row, column) is not None
    }
    if row.channels is not None:
        forced |= {"NCCL_MIN_NCHANNELS": str(row.channels), "NCCL_MAX_NCHANNELS": str(row.channels)}
    known = set(nccl.environment.known) - own.keys() - {"NCCL_COLLNET_ENABLE"}
    read = {name: value for name, value in table.environment_of(row).items() if name in known}
    return tuple(sorted({**read, **forced}.items()))


def splits_file() -> Any:
    """What ``tables/splits.toml`` holds, as a mapping."""
    return tables.toml(tables.folder() / "splits.toml")


@cache
def one_way_runs() -> Mapping[str, Sequence[str]]:
    """Of tables whose runs set the network up in several ways, by name, the runs that fits take."""
    runs: Mapping[str, Sequence[str]] = splits_file()["runs"]
    return runs


def table_of_one_way(name: str) -> MeasuredTable:
    """A table of ``tables/measured`` with the runs that set the network up in one way."""
    table, runs = measured.load(name), one_way_runs().get(name)
    return table if runs is None else replace(table, rows=tuple(row for row in table.rows if row.run in runs))
