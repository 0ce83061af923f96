"""Finds the communicator on which each row was measured, with the variables that NCCL reads there."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, CannotBeJudged, TunerError
from tuner.base.names import DataType, Op
from tuner.base.nouns import Shape
from tuner.base.sizes import plural
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue, skeleton
from tuner.machine.topology import Topology
from tuner.release import Release
from tuner.scenario import Scenario
from tuner.scenario.describe import Description, describe
from tuner.times.measured.checks import nearest_release
from tuner.times.measured.header import MeasuredAdapters
from tuner.times.measured.samples import Measurements, SampleBlock

Key = TypeVar("Key")
SOCKETS = "sockets"  # name of the network in tables of measured times
FP8 = (DataType.float8e4m3, DataType.float8e5m2)  # NCCL's model was not measured with these types
_WITHOUT_COLLNET = "aws-ofi-nccl"  # a network plugin without CollNet


class OfTrays(TypedDict):
    """The shape of a communicator on NVLink domains: the numbers of domains (``nodes``), of trays per domain, and of
    GPUs per tray (``gpus_per_node``)."""

    nodes: int
    trays: int
    gpus_per_node: int


def of_trays(nodes: int, gpus: int, gpus_per_tray: int, trays: int) -> OfTrays:
    """NVLink domains of up to ``trays`` trays for results whose nodes are trays (with ``gpus`` each) or domains.

    Hosts that do not fill domains are divided equally into as few domains as possible: 32 trays in racks of 18 are two
    domains of 16. BadInput if the hosts cannot be divided equally.
    """
    if gpus > gpus_per_tray and gpus % gpus_per_tray == 0 and gpus // gpus_per_tray <= trays:
        return {"nodes": nodes, "trays": gpus // gpus_per_tray, "gpus_per_node": gpus_per_tray}
    fewest = -(-nodes // trays)
    domains = next((count for count in range(fewest, 2 * fewest + 1) if nodes % count == 0), 0)
    if gpus <= gpus_per_tray and domains:
        return {"nodes": domains, "trays": nodes // domains, "gpus_per_node": gpus}
    raise BadInput(
        f"{nodes} x {gpus} GPUs cannot be divided into equal NVLink domains of up to {trays} trays with "
        f"{gpus_per_tray} GPUs each: use up to {trays} hosts, or a number that racks share evenly, with "
        f"{option('trays')}"
    )


@dataclass(frozen=True, slots=True)
class Site:
    """Where rows were measured: a machine of the catalogue, a topology file or the node of a log, and a release.

    A field that is None or empty is not known yet. ``words`` are further keys of the site's description, as
    ``tuner.scenario.describe`` takes them: ``log``, ``gpu``. ``stands_for`` is the measured release if this package
    does not know it, so that ``nccl`` is the nearest known release. ``nic_gbps`` is the speed of each adapter in 1e9
    bits per second, if it differs from the machine's.
    """

    machine: str | None = None
    nccl: str = ""
    topology: Path | None = None
    words: tuple[tuple[str, Any], ...] = ()
    stands_for: str = ""
    nic_gbps: float | None = None

    def with_adapters(self, adapters: MeasuredAdapters) -> "Site":
        """The site with the adapter speed of a table, if the catalogue's machine has the same number of adapters with
        another speed.
        """
        if self.machine is None or self.words or adapters.gbps is None:
            return self
        gbps = [net.speed_mbps / 1000 for net in catalogue.load(self.machine).topology.nets]
        if len(gbps) != adapters.count or all(each == adapters.gbps for each in gbps):
            return self
        return replace(self, nic_gbps=adapters.gbps)

    @property
    def log(self) -> Path | None:
        """The log that shows the communicator."""
        return dict(self.words).get("log")

    def completed(self, tables: Sequence[Measurements]) -> "Site":
        """The site, completed by the tables; an unknown release is replaced by the nearest one of its minor release.

        BadInput if machine or release are missing or contradictory. UnknownMachine or UnknownRelease for an unknown
        name.
        """
        machine = self.machine or (None if self.topology or self.log else _one("machine", tables))
        nccl = self.nccl
        if not nccl and self.log and not any(table.header.nccl for table in tables):
            nccl = describe(machine, topology=self.topology, **dict(self.words)).nccl
        name = catalogue.load(machine).name if machine else None
        said = nccl or _one("nccl", tables)
        nearest, stand_in = nearest_release(said)
        return Site(name, nearest, self.topology, self.words, said if stand_in else "")

    @property
    def stand_in(self) -> str:
        """A note on the release that stands in for the measured release; empty if the measured release is known."""
        return nearest_release(self.stands_for)[1] if self.stands_for else ""

    @property
    def node(self) -> tuple[Topology | None, int | None]:
        """The node's topology, whose links limit which times can be true (None for a log), and the number of trays per
        domain.
        """
        if self.machine is not None:
            return catalogue.load(self.machine).topology, catalogue.load(self.machine).trays
        if self.topology is None:
            return None, None
        words = dict(self.words)
        return describe(None, topology=self.topology, nccl=self.nccl or None, **words).resolve().own.topology, None

    def scenario(self, nodes: int, gpus_per_node: int, variables: Mapping[str, str]) -> Scenario:
        """A communicator at the site. BadInput if it cannot be described."""
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
        described = describe(self.machine, **given, **dict(self.words))
        return described if self.nic_gbps is None else replace(described, hardware={"nic-gbps": f"{self.nic_gbps:g}"})

    def selection(self, nodes: int, gpus_per_node: int, variables: Mapping[str, str]) -> Selection:
        """The selection of a communicator at the site. BadInput if it cannot be described or emulated."""
        return Selection(self.scenario(nodes, gpus_per_node, variables).communicator())

    @property
    def name(self) -> str | None:
        """Name of the machine in the catalogue, or of its topology file or log."""
        if self.log and self.topology is None and self.machine is None:
            return str(self.log)
        return skeleton.name_of(self.topology) if self.topology and not self.machine else self.machine

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the machine itself sets for NCCL's search."""
        return catalogue.load(self.machine).environment if self.machine else {}


def _one(what: str, tables: Sequence[Measurements]) -> str:
    """The value of ``what`` on which the tables agree. BadInput if no table has a value, or if tables differ."""
    names = list(dict.fromkeys(getattr(table.header, what) for table in tables if getattr(table.header, what)))
    if len(names) == 1:
        return str(names[0])
    of = names or dict.fromkeys(table.name for table in tables)
    says = f"{'files of several' if names else 'no file says it'} ({', '.join(of)})"
    valid = f"{option('machine')}, {option('topology')}" if what == "machine" else option(what)
    raise BadInput(f"{option(what)}: {says}: give {valid}, and files of one")


def read_by_model(nccl: Release, own: Mapping[str, str]) -> set[str]:
    """Variables that NCCL's model reads, without those that the machine sets itself.

    NCCL_COLLNET_ENABLE is not among them: only the user knows whether the network has a CollNet plugin.
    """
    return set(nccl.environment.known) - own.keys() - {"NCCL_COLLNET_ENABLE"}


def variables_of(
    row: SampleBlock, of_run: Mapping[str, str], nccl: Release, own: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Variables of a row's communicator: the run's variables that NCCL's model reads, the ``given`` ones, and variables
    that force what the row forced.

    ``own`` are the variables that the machine sets itself.
    """
    known = read_by_model(nccl, own)
    return {**{name: value for name, value in of_run.items() if name in known}, **given, **row.took.variables}


def searched_otherwise(
    of_run: Mapping[str, str], nccl: Release, own: Mapping[str, str], given: Mapping[str, str]
) -> str | None:
    """The first variable of a run, as NAME=VALUE, that makes NCCL's search differ from the machine's; None if no
    variable does.

    Variables that are in ``given`` are ignored.
    """
    for name in sorted(of_run.keys() & set(nccl.environment.search) - given.keys()):
        if own.get(name, of_run[name]) != of_run[name]:
            return f"{name}={of_run[name]}"
    return None


def point_to_point_reason(collective: str) -> str:
    """The reason why rows of a collective made from sends and receives are skipped."""
    return f"{collective}: sends and receives"


@dataclass(frozen=True, slots=True)
class ConfiguredShape(Shape):
    """A communicator of equal nodes; ``settings`` are the environment variables that NCCL's model reads."""

    settings: tuple[tuple[str, str], ...] = ()


class Placement(Generic[Key]):
    """Places rows on the communicators of a site on which they were measured; ``skipped`` counts other rows by reason.

    In-place rows, sends and receives, 8-bit floats, and rows of another setting of the search or the network are
    skipped.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._release, self._own = site, release.load(site.nccl), site.environment
        self._kinds: dict[tuple[ConfiguredShape, Request], list[tuple[int, Key]]] = defaultdict(list)
        self.skipped: Counter[str] = Counter()

    def add(self, row: SampleBlock, of_run: Mapping[str, str], network: str, key: Key) -> None:
        """Places a row whose run set the variables ``of_run`` and used ``network``; ``key`` identifies the row. A row
        that cannot be placed is counted in ``skipped``.
        """
        why = self._skipped(row, of_run, network)
        if why is not None:
            self.skipped[why] += 1
            return
        variables = variables_of(row, of_run, self._release, self._own, {})
        request = Request(row.point.collective, row.point.dtype, Op.sum)
        shape = ConfiguredShape(row.nodes, row.gpus_per_node, tuple(sorted(variables.items())))
        self._kinds[shape, request].append((row.point.bytes, key))

    def picks(self) -> Iterator[tuple[Selection, Request, Picks, list[Key]]]:
        """Yields NCCL's picks for each kind of call, one element per row, with the rows' keys.

        Kinds of calls that cannot be emulated are counted in ``skipped``.
        """
        for (shape, request), rows in self._kinds.items():
            try:
                selection = self._site.selection(shape.nodes, shape.gpus_per_node, dict(shape.settings))
                picks = selection.pick(request, np.array([size for size, _ in rows], np.uint64))
            except TunerError as error:
                self.skipped[str(error)] += len(rows)
                continue
            yield selection, request, picks, [key for _, key in rows]

    def nothing(self, table: Measurements) -> CannotBeJudged:
        """The error to raise if no row of a table could be placed."""
        reasons = {**self.skipped, **table.header.left_out}
        counted = "; ".join(f"{plural(count, 'row')}: {why}" for why, count in reasons.items()) or "it has none"
        return CannotBeJudged(f"{table.name}: no row for which NCCL's model has a time; {counted}")

    def _skipped(self, row: SampleBlock, of_run: Mapping[str, str], network: str) -> str | None:
        if row.point.is_point_to_point:
            return point_to_point_reason(row.point.name)
        if row.point.in_place:
            return "in place"
        if row.point.dtype in FP8:
            return "8-bit floats"
        if (other := searched_otherwise(of_run, self._release, self._own, {})) is not None:
            return f"{other}: another search than the machine's"
        if network == SOCKETS and row.nodes > 1:
            return "TCP sockets, which do not use the adapters as the topology has them"
        if of_run.get("NCCL_COLLNET_ENABLE", "0") != "0" and not network.startswith(_WITHOUT_COLLNET):
            return "NCCL_COLLNET_ENABLE: whether the network has a CollNet plugin is not said"
        return None
