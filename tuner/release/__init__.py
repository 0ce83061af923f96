"""A NCCL release: the constants and the names of the rules its model is made of, read from ``tables/nccl``."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import UnknownRelease, one_of
from tuner.base.names import Algorithm, Protocol

ALGORITHM_KEYS = {
    "tree": Algorithm.Tree,
    "ring": Algorithm.Ring,
    "collnet_direct": Algorithm.CollNetDirect,
    "collnet_chain": Algorithm.CollNetChain,
    "nvls": Algorithm.NVLS,
    "nvls_tree": Algorithm.NVLSTree,
    "pat": Algorithm.PAT,
}
PROTOCOL_KEYS = {"ll": Protocol.LL, "ll128": Protocol.LL128, "simple": Protocol.Simple}
HARDWARE = ("nvlink", "pci", "net")


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One release. Arrays are indexed by NCCL's numbers: [algorithm][protocol], [hardware][algorithm][protocol]."""

    name: str
    table: Mapping[str, Any]
    base_latency_us: NDArray[np.float32]
    hw_latency_us: NDArray[np.float32]
    tree_correction: NDArray[np.float32]

    def limit(self, name: str) -> int:
        """A number of ``[limits]``."""
        return int(self.table["limits"][name])

    def generation(self, comp_cap: int) -> str:
        """The row of a compute capability (90 for 9.0) in the tables by generation."""
        rows: dict[str, int] = self.table["generations"]
        return max((row for row, least in rows.items() if comp_cap >= least), key=rows.__getitem__)

    def rules(self, kind: str, key: Any = None) -> list[str]:
        """Names of the rules of one kind, of one algorithm (``key``) where they differ by algorithm."""
        names = self.table["rules"][kind]
        if key is not None:
            names = names.get(_algorithm_key(key), [])
        return [names] if isinstance(names, str) else list(names)

    @property
    def indifferent_variables(self) -> set[str]:
        """Those that reach no choice."""
        return {name for names in self.table["environment"]["indifferent"].values() for name in names}

    def unknown_variables(self, variables: Iterable[str]) -> list[str]:
        """Those that may reach a choice without this emulation knowing how."""
        told = self.table["environment"]["told_buffers"]
        return sorted(set(variables) - {*self.table["environment"]["known"], *told} - self.indifferent_variables)

    def path_rank(self, path_type: str) -> int:
        """The number NCCL gives a path type; smaller is nearer."""
        types: list[str] = self.table["paths"]["types"]
        return types.index(path_type)


def of_code(code: int) -> str:
    """What ncclGetVersion says, in words: ``22809`` is 2.28.9 (2.9 and later)."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def names() -> list[str]:
    """All releases with a table, oldest first."""
    found = (entry.name.removesuffix(".toml") for entry in files("tuner.tables").joinpath("nccl").iterdir())
    return sorted(found, key=lambda name: tuple(int(part) for part in name.split(".")))


@cache
def load(name: str) -> Release:
    """The release called ``name``; UnknownRelease lists the valid ones."""
    return _release(name, _read(name))


def changed(nccl: Release, change: Mapping[str, Any]) -> Release:
    """The release with the tables of ``change`` laid over its own; it keeps its name."""
    return _release(nccl.name, _merge(dict(nccl.table), dict(change)))


def _release(name: str, table: Mapping[str, Any]) -> Release:
    return Release(
        name=name,
        table=table,
        base_latency_us=_by_algorithm(table["base_latency_us"]),
        hw_latency_us=np.stack([_by_algorithm(table["hw_latency_us"][hw]) for hw in HARDWARE]),
        tree_correction=np.array([table["tree_correction"][key] for key in PROTOCOL_KEYS], dtype=np.float32),
    )


def _read(name: str) -> dict[str, Any]:
    path = files("tuner.tables").joinpath("nccl", f"{name}.toml")
    if name not in names():
        raise UnknownRelease(f"no table for NCCL {name}; {one_of(names())}")
    table = tomllib.loads(path.read_text("utf-8"))
    parent, without = table.pop("parent", None), table.pop("without", [])
    if not parent:
        return table
    return _merge({key: value for key, value in _read(parent).items() if key not in without}, table)


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the tables of ``change`` laid over it; lists and values are replaced whole."""
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _by_algorithm(rows: Mapping[str, Mapping[str, float]]) -> NDArray[np.float32]:
    array = np.zeros((len(Algorithm), len(Protocol)), dtype=np.float32)
    for key, row in rows.items():
        for protocol, value in row.items():
            array[ALGORITHM_KEYS[key], PROTOCOL_KEYS[protocol]] = value
    return array


def _algorithm_key(algorithm: Algorithm) -> str:
    return next(key for key, value in ALGORITHM_KEYS.items() if value is algorithm)
