"""Machines by name: ``tables/machines/<name>`` holds one node's topology, where each fact comes from, and the graphs
that libnccl found on it.

``topology.xml`` and ``machine.toml`` are written by hand; ``graphs.toml`` by ``nccl-tuner machines capture <name>``.
``refused.toml`` says of machines that cannot be simulated why, and what there is instead; ``aliases.toml`` has other
names, such as clouds' instance types.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from typing import Any

import numpy as np

from tuner import release
from tuner.base.errors import BadInput, UnknownMachine, did_you_mean, one_of
from tuner.base.names import Pattern
from tuner.machine.graphs import Graph, Graphs
from tuner.machine.topology import Topology, read

Shape = tuple[str, int, bool]  # release, GPUs per node, several nodes


@dataclass(frozen=True, slots=True)
class Source:
    """A document, where in it, and what was taken from there."""

    document: str
    section: str
    facts: str


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """One kind of node. ``graphs_table`` is the parsed graphs.toml.

    ``gpu_counts`` are the GPUs per node whose graphs are captured: all, where NCCL's search does not take minutes.
    ``environment`` are the variables of NCCL's search that the machine's /etc/nccl.conf sets. ``crashes`` are the
    releases in which libnccl itself crashes there, and where.
    """

    name: str
    title: str
    vendor: str
    gpu: str
    gpus_per_node: int
    topology_xml: str
    topology: Topology
    notes: tuple[str, ...]
    sources: tuple[Source, ...]
    gpu_counts: tuple[int, ...]
    peer_to_peer_across_sockets: bool
    environment: Mapping[str, str]
    crashes: Mapping[str, str]
    graphs_table: Mapping[str, Any] = field(repr=False)
    _shapes: Mapping[Shape, Graphs] = field(repr=False)
    _net_gbs: Mapping[Shape, float] = field(repr=False)

    def graphs(self, release: str, gpus_per_node: int, several_nodes: bool) -> Graphs:
        """The graphs libnccl found on the first ``gpus_per_node`` GPUs; the same for 2 nodes and for more.

        Errors: BadInput where they are not in the catalogue.
        """
        if gpus_per_node not in self.gpu_counts:
            valid = one_of(map(str, self.gpu_counts))
            raise BadInput(f"{self.name}: graphs of {gpus_per_node} GPUs per node are not in the catalogue; {valid}")
        if release in self.crashes:
            raise BadInput(f"{self.name}: NCCL {release} crashes there: {self.crashes[release]}; valid: other releases")
        try:
            return self._shapes[release, gpus_per_node, several_nodes]
        except KeyError:
            raise BadInput(
                f"{self.name}: no graphs captured for NCCL {release}; {one_of(self.releases or ['none yet'])}; "
                f"'nccl-tuner machines capture {self.name} --nccl {release}' captures them"
            ) from None

    def net_gbs(self, release: str, gpus_per_node: int, several_nodes: bool) -> float:
        """Slowest path from a GPU to its own adapter, 1e9 bytes per second; 0 for a release that does not know it."""
        return self._net_gbs.get((release, gpus_per_node, several_nodes), 0.0)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases with captured graphs, oldest first."""
        return tuple(sorted({release for release, _, _ in self._shapes}, key=release_key))


def newest_release(machines: Iterable[str]) -> str:
    """The newest release that all of these machines have graphs for; of none the newest there is."""
    captured = [load(name).releases for name in machines]
    common = [name for name in release.names() if all(name in each for each in captured)]
    return (common or release.names())[-1]


def names() -> tuple[str, ...]:
    """Every machine of ``tables/machines``."""
    return tuple(sorted(entry.name for entry in folder().iterdir() if entry.joinpath("machine.toml").is_file()))


def aliases() -> dict[str, str]:
    """Other names of machines, such as clouds' instance types, and the machine's own name."""
    return {str(alias): str(name) for alias, name in tomllib.loads(_text(folder() / "aliases.toml")).items()}


@cache
def load(name: str) -> Machine:
    """A machine by its name or alias; UnknownMachine lists the valid ones, or says why there is none of that name."""
    valid = names()
    if name not in valid:
        name = {alias.lower(): own for alias, own in aliases().items()}.get(name.lower(), name)
    if name not in valid:
        refused = tomllib.loads(_text(folder() / "refused.toml"))
        if name in refused:
            raise UnknownMachine(f"{name}: {refused[name]['why']}; {one_of(refused[name]['instead'])}")
        raise UnknownMachine(f"no machine {name!r}{did_you_mean(name, valid)}; {one_of(valid)}")
    home = folder() / name
    facts = tomllib.loads(_text(home / "machine.toml"))
    graphs = tomllib.loads(_text(home / "graphs.toml")) if (home / "graphs.toml").is_file() else {}
    xml = _text(home / "topology.xml")
    return Machine(
        name=name,
        title=facts["title"],
        vendor=facts["vendor"],
        gpu=facts["gpu"],
        gpus_per_node=facts["gpus_per_node"],
        topology_xml=xml,
        topology=read(xml),
        notes=tuple(facts["notes"]),
        sources=tuple(Source(**source) for source in facts["source"]),
        gpu_counts=tuple(facts.get("gpu_counts", range(1, facts["gpus_per_node"] + 1))),
        peer_to_peer_across_sockets=facts.get("peer_to_peer_across_sockets", True),
        crashes=facts.get("crashes", {}),
        environment=facts.get("environment", {}),
        graphs_table=graphs,
        _shapes=shapes(graphs),
        _net_gbs=net_gbs(graphs),
    )


def net_gbs(table: Mapping[str, Any]) -> dict[Shape, float]:
    """The slowest path from a GPU to its own adapter, of a graphs.toml, for the releases that know it."""
    return {
        (release, gpus, nodes == "several"): float(np.float32(row["gbs"]))
        for row in table.get("adapters", {}).get("slowest_gbs", [])
        for release, gpus, nodes in product(row["releases"], row["gpus_per_node"], row["nodes"])
    }


def shapes(table: Mapping[str, Any]) -> dict[Shape, dict[str, Graph]]:
    """The graphs of a graphs.toml by release, GPUs per node and whether there are several nodes."""
    by_shape: dict[Shape, dict[str, Graph]] = {}
    for name, rows in table.get("graphs", {}).items():
        for row in rows:
            graph = _graph({column: row.get(column) for column in Graph.__dataclass_fields__})
            for nccl, gpus, nodes in product(row["releases"], row["gpus_per_node"], row["nodes"]):
                by_shape.setdefault((nccl, gpus, nodes == "several"), {})[name] = graph
    return by_shape


def release_key(release: str) -> tuple[int, ...]:
    """Sorts 2.9 before 2.28."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _graph(row: Mapping[str, Any]) -> Graph:
    """A row with its decimals back as the float32 they were printed from."""
    numbers = {name: float(np.float32(value)) for name, value in row.items() if isinstance(value, float)}
    heads = None if row["heads"] is None else tuple(row["heads"])
    return Graph(**{**row, **numbers, "pattern": Pattern[row["pattern"]], "heads": heads})


def folder() -> Traversable:
    """Where the machines are."""
    return files("tuner.tables") / "machines"


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
