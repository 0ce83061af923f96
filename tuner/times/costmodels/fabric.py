"""Projection of an AllReduce on nodes of tiled GPUs with their own links, adapters and PCIe, described in a file.

The equations are numbered as in the text (Khalid, "Communication Benchmark Projection", 2025).

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tuner.base.bounds import ReaderBounds, factor
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.files import contents
from tuner.base.records import json_form
from tuner.base.sizes import named_bytes
from tuner.base.spelling import option
from tuner.base.view import as_ms, as_percent, column
from tuner.times.costmodels.operations import Array, part, positive, whole

PATHS = ("direct", "pcie", "host")


def _parts_ms(parts_us: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {us / 1000:.1f}" for name, us in parts_us.items())


@dataclass(frozen=True, slots=True)
class Projected:
    """The time of an AllReduce, and its parts by the links that it passes.

    If there is a measured time, ``efficiency`` is the share of it that the model explains, and ``effective_nic_gbs`` is
    the bandwidth of an adapter that it implies.
    """

    bytes: int = field(metadata=column("size", text=named_bytes))
    nodes: int = field(metadata=column("nodes"))
    ranks_per_node: int = field(metadata=column("ranks per node"))
    path: str
    time_us: float = field(metadata=column("model ms", text=as_ms(".1f")))
    parts_us: Mapping[str, float] = field(metadata=column("made of, ms", text=_parts_ms))
    measured_us: float | None = field(
        default=None, metadata={**json_form(optional=True), **column("measured ms", text=as_ms("g"))}
    )
    efficiency: float | None = field(
        default=None, metadata={**json_form(optional=True), **column("efficiency", text=as_percent(".1f"))}
    )
    effective_nic_gbs: float | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class ProjectedTable:
    """A measured table of the fabric's file, with the model's times."""

    title: str
    rows: tuple[Projected, ...]


@dataclass(frozen=True, slots=True)
class Fabric:
    """A node, with bandwidths in GB/s in one direction. ``nic_share`` is the share of the adapters' bandwidth that is
    reached.
    """

    mdfi_gbs: float  # between the two tiles of a GPU
    xe_gbs: float  # of a link between GPUs
    d2h_gbs: float
    h2s_gbs: float
    s2n_gbs: float
    nic_gbs: float
    memory_gbs: float
    pcie_gbs: float
    gpus_per_node: int
    tiles_per_gpu: int
    nics_per_node: int
    nic_share: float

    def parts_us(
        self,
        nbytes: ArrayLike,
        nodes: ArrayLike,
        ranks_per_node: ArrayLike,
        path: str = "direct",
        one_tile_per_gpu: bool = False,
    ) -> dict[str, Array]:
        """Times of an AllReduce, us, by the resource that takes them; the sum is the time.

        ``direct`` is reduce-scatter in the node, AllReduce between nodes, allgather in the node: equations 4 and 5, and
        10 on one node. ``pcie`` adds copies to the host and back in both phases: equation 6. ``host`` moves the whole
        size through host memory, step by step: equation 1, and 7 on one node. BadInput for more ranks than tiles, or an
        unknown path.
        """
        z, q, r = positive("bytes", nbytes), whole("nodes", nodes), whole("ranks_per_node", ranks_per_node)
        whole("ranks in all", q * r, least=2)
        most = self.gpus_per_node * (1 if one_tile_per_gpu else self.tiles_per_gpu)
        if np.any(r > most):
            raise BadInput(f"ranks_per_node {np.max(r):g}: valid are 1 to {most}, one on each tile that is used")
        if path not in PATHS:
            raise BadInput(f"unknown path {path!r}; {one_of(PATHS)}")
        if path == "host":
            return self._host(z, q, r)
        parts = {**self._inside(z, q, r, one_tile_per_gpu), "NIC": self._network(z, q, r)}
        if path == "pcie":
            # Into the host and out of it, once in each of the two phases.
            parts["PCIe"] = np.where(q > 1, 2 * 2 * z / (r * self.pcie_gbs), 0.0) / 1000
        return parts

    def time_us(
        self,
        nbytes: ArrayLike,
        nodes: ArrayLike,
        ranks_per_node: ArrayLike,
        path: str = "direct",
        one_tile_per_gpu: bool = False,
    ) -> Array:
        """The time of an AllReduce, us: the sum of :meth:`parts_us`."""
        time: Array = sum(
            self.parts_us(nbytes, nodes, ranks_per_node, path, one_tile_per_gpu).values(), start=np.asarray(0.0)
        )
        return time

    def effective_nic_gbs(
        self, measured_us: ArrayLike, nbytes: ArrayLike, nodes: ArrayLike, ranks_per_node: ArrayLike
    ) -> Array:
        """The rate in GB/s that each adapter would have in one direction if nothing else had taken time.

        ``nic_share`` is not used.
        """
        q, adapters = whole("nodes", nodes, least=2), self._adapters(whole("ranks_per_node", ranks_per_node))
        crossing = 2 * positive("bytes", nbytes) * (q - 1) / q
        gbs: Array = crossing / adapters / positive("measured_us", measured_us) / 1000
        return gbs

    def projected(
        self, run: tuple[int, int, int], path: str, one_tile_per_gpu: bool, measured_ms: float | None
    ) -> Projected:
        """Projects the AllReduce of ``run``: bytes, nodes and ranks per node. Compares it with a measured time, if
        given.
        """
        nbytes, nodes, ranks_per_node = run
        parts_us = {name: float(us) for name, us in self.parts_us(*run, path, one_tile_per_gpu).items()}
        time_us = float(self.time_us(*run, path, one_tile_per_gpu))
        found = Projected(*run, path, time_us, {name: us for name, us in parts_us.items() if us})
        if measured_ms is None:
            return found
        measured_us = 1000 * measured_ms
        nic_gbs = float(self.effective_nic_gbs(measured_us, nbytes, nodes, ranks_per_node)) if nodes > 1 else None
        return replace(found, measured_us=measured_us, efficiency=time_us / measured_us, effective_nic_gbs=nic_gbs)

    def _inside(self, z: Array, q: Array, r: Array, one_tile_per_gpu: bool) -> dict[str, Array]:
        """Time of the two phases in a node, in each of which every rank moves its part: over Xe-links, and over MDFI
        between tiles.

        Between nodes, transfers over MDFI are hidden behind those over Xe-links, if there are any.
        """
        tiles = np.minimum(r, 1 if one_tile_per_gpu else self.tiles_per_gpu)
        xe = np.where(r > tiles, 2 * z / r / self.xe_gbs, 0.0)
        mdfi = np.where(tiles > 1, 2 * z / r / self.mdfi_gbs, 0.0)
        return {"Xe-link": xe / 1000, "MDFI": np.where((q > 1) & (xe > 0), 0.0, mdfi) / 1000}

    def _network(self, z: Array, q: Array, r: Array) -> Array:
        reached = self.nic_share * self._adapters(r) * self.nic_gbs
        time: Array = 2 * z / reached * (q - 1) / q / 1000
        return time

    def _adapters(self, r: Array) -> Array:
        """How many adapters the ranks of a node use: one per rank, as long as there are enough."""
        return np.minimum(r, self.nics_per_node)

    def _host(self, z: Array, q: Array, r: Array) -> dict[str, Array]:
        """Time by equation 1: 2 (n - 1) transfers of the whole size over one path; by equation 7, over one Xe-link."""
        times = 2 * (q * r - 1)
        several = q > 1
        over = {"D2H": 1 / self.d2h_gbs, "H2S": 1 / self.h2s_gbs, "NIC": 1 / self.nic_gbs, "H2D": 1 / self.d2h_gbs}
        parts = {name: np.where(several, z * us * times, 0.0) / 1000 for name, us in over.items()}
        parts["Xe-link"] = np.where(several, 0.0, z / self.xe_gbs * times) / 1000
        parts["GPU memory"] = z / self.memory_gbs * times / 1000
        return parts


FILE = ReaderBounds("a fabric", file_bytes=1 << 20)


def read(name: str) -> Mapping[str, Any]:
    """Reads a fabric's file: a name in ``tables/fabrics``, or a path that ends with .toml. BadInput if there is no such
    file."""
    folder = files("tuner.tables") / "fabrics"
    own = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    try:
        if name.endswith(".toml"):
            return tomllib.loads(contents(Path(name), int((FILE.file_bytes or 0) * factor())).decode("utf-8"))
        return tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"no fabric {name!r}; {one_of([*own, 'a FILE.toml'])}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{name}: {error}") from None


def projected_tables(described: Fabric, table: Mapping[str, Any]) -> list[ProjectedTable]:
    """The file's tables of measured AllReduces, with the model's times for each row. BadInput if the file has no table,
    or an incomplete one."""
    try:
        tables = [(one["title"], list(_measured_rows(one))) for one in table.get("tables", ())]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"tables: {error!r}: each needs title, path, bytes, and rows of nodes, ranks per node and ms"
        ) from None
    if not tables:
        raise BadInput(f"the fabric's file has no tables: add {option('bytes')}, or tables to the file")
    return [ProjectedTable(title, tuple(described.projected(*row) for row in rows)) for title, rows in tables]


def _measured_rows(table: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int, int], str, bool, float]]:
    """Yields the arguments of :meth:`Fabric.projected` for each row of a table. ``one_tile_per_gpu`` lists the numbers
    of ranks per node in rows that use one tile of each GPU."""
    path, nbytes, of_one_tile = table["path"], table["bytes"], tuple(table.get("one_tile_per_gpu", ()))
    for nodes, ranks, ms in table["rows"]:
        yield (nbytes, nodes, ranks), path, ranks in of_one_tile, float(positive("measured ms", ms))


def _profile(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    profiles = table.get("profiles")
    if not isinstance(profiles, Mapping) or not isinstance(profiles.get(name), Mapping):
        raise BadInput(f"no profile {name!r}; {one_of(profiles if isinstance(profiles, Mapping) else ['none'])}")
    profile: Mapping[str, Any] = profiles[name]
    return profile


def fabric(table: Mapping[str, Any], profile: str, **other: float | None) -> Fabric:
    """The fabric of a profile in a file, with some values replaced by ``other`` ones. BadInput names what is wrong or
    missing.
    """
    values = _profile(table, profile)
    values = {**table, **(_profile(table, values["parent"]) if "parent" in values else {}), **values}
    values.update({name: value for name, value in other.items() if value is not None})
    names = [each.name for each in fields(Fabric)]
    if missing := [name for name in names if name not in values]:
        raise BadInput(f"profile {profile!r} lacks {', '.join(missing)}: it needs all of {', '.join(names)}")
    for name in names:
        (whole if name in ("gpus_per_node", "tiles_per_gpu", "nics_per_node") else positive)(name, values[name])
    part("nic_share", values["nic_share"])
    return Fabric(**{name: values[name] for name in names})
