"""Graphs that were searched before, kept on disk by all that they depend on: request, rules, and the code."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.errors import BadInput, BadTopology
from tuner.base.extras import NotBuilt, shared_object
from tuner.base.files import cache_folder, recall_own, remember
from tuner.base.records import from_json, to_json
from tuner.graphs.request import SearchRequest, SearchResult, request_of
from tuner.machine.catalogue import Machine
from tuner.machine.graphs import COLLNET_GRAPHS, WITH_COLLNET, Graph, GraphTable, OrderedGraph, Shape
from tuner.release import load


def find(request: SearchRequest, nccl: str) -> Mapping[str, OrderedGraph]:
    """The graphs with channels that NCCL ``nccl`` finds, by name; a request is searched once.

    Errors: those of :func:`tuner.graphs.graphs.search`.
    """
    return {name: found for name, found in searched(request, nccl).graphs.items() if found.graph.channels}


@cache
def _searched(key: str, request: str, nccl: str) -> SearchResult:
    try:
        result: SearchResult = from_json(SearchResult, kept(key))
        return result
    except (OSError, ValueError, KeyError, TypeError):
        from tuner.graphs.graphs import search  # not where the answer is there

        found = search(request_of(request), nccl)
        keep(key, to_json(found))
        return found


def searched(request: SearchRequest, nccl: str) -> SearchResult:
    """All of it, with the graphs that have no channels. Errors: those of :func:`tuner.graphs.graphs.search`."""
    text = json.dumps(asdict(request), sort_keys=True)
    return _searched(key_of(text, rules_of(nccl)), text, nccl)


def key_of(*asked: str) -> str:
    """The name under which the answer to a question is kept, whose texts, with the code, are all that it goes by."""
    return _sha256("\n".join([*asked, _code()]))


def kept(key: str) -> Any:
    """An answer that this user kept, as JSON has it: users share a cache, and none may answer for another.

    KeyError where there is none; ValueError, KeyError or TypeError where it is not as it was kept.
    """
    text = recall_own(folder() / f"{key}.json")
    if text is None:
        raise KeyError(key)
    kept = json.loads(text)
    if kept["sha256"] != _sha256(kept["answer"]):
        raise ValueError("changed since it was written")
    return json.loads(kept["answer"])


def keep(key: str, answer: object) -> None:
    """Keeps an answer, for every process of this user, where the folder can be written to."""
    text = json.dumps(answer)
    remember(folder() / f"{key}.json", json.dumps({"sha256": _sha256(text), "answer": text}))


@cache
def rules_of(nccl: str) -> str:
    """The sha256 of what the search reads of a release; releases with the same one find the same graphs."""
    loaded = release.load(nccl)
    search = {part.name: getattr(loaded.search, part.name) for part in fields(loaded.search) if part.name != "dump"}
    read = search, loaded.limits.max_channels, loaded.paths.types, loaded.environment.non_numeric_is_default
    return _sha256(json.dumps(to_json(read), sort_keys=True))


def folder() -> Path:
    """Folder of kept graphs: below NCCL_TUNER_CACHE, or the user's cache folder."""
    return cache_folder() / "graphs"


@cache
def _code() -> str:
    """The sha256 of what searches: Python, C, and what both are built on."""
    folders = files("tuner.graphs"), files("tuner.graphs") / "explain", files("tuner.base")
    modules = [module for folder in folders for module in folder.iterdir() if module.name.endswith(".py")]
    contents = [module.read_bytes() for module in sorted(modules, key=str)]
    with suppress(OSError, NotBuilt):  # a wheel without objects searches in Python
        contents.append(shared_object("nccl_tuner_picks").read_bytes())
    return hashlib.sha256(b"".join(contents)).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Found = tuple[dict[str, Graph], float]


def find_all(machine: Machine, releases: Iterable[str], processes: int | None = None) -> GraphTable:
    """The machine's table of graphs with these releases searched anew; others that are in it stay.

    Shapes that NCCL refuses, or takes for several nodes, are left out. ``processes``: as many as processors.
    """
    kept = machine.graph_table
    graphs, net_gbs = dict(kept.graphs), dict(kept.net_gbs)
    alike: dict[str, list[str]] = {}
    for name in releases:
        alike.setdefault(rules_of(name), []).append(name)
    of_trays = [machine.gpus_per_node * trays for trays in machine.tray_counts]
    counts = [*of_trays, *range(machine.gpus_per_node, 0, -1)]  # the longest searches first
    shapes: list[Shape] = [(names[0], *shape) for names in alike.values() for shape in product(counts, (False, True))]
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        for (first, gpus, several), found in zip(shapes, pool.map(partial(of_shape, machine), shapes), strict=True):
            for name in alike[rules_of(first)]:
                shape = name, gpus, several
                graphs.pop(shape, None), net_gbs.pop(shape, None)
                if found is not None:
                    graphs[shape], net = found
                    if load(name).search.routing.net_gbs != "unknown":
                        net_gbs[shape] = net
    return GraphTable(machine.topology_sha256, graphs, net_gbs)


def of_shape(machine: Machine, shape: Shape) -> Found | None:
    """The graphs of one shape as :class:`GraphTable` has them, and the adapters' bandwidth; None for none."""
    release, gpus, several = shape
    try:
        plain, with_collnet = (
            searched(replace(_request(machine, gpus, several, variables), network_reduces=bool(variables)), release)
            for variables in ({}, {"NCCL_COLLNET_ENABLE": "1"})
        )
    except (BadInput, BadTopology):
        return None
    if plain.parts > 1:
        return None
    graphs = _with_channels(plain)
    for name, graph in _with_channels(with_collnet).items():
        if graph != graphs.get(name):
            graphs[name if name in COLLNET_GRAPHS else f"{name}{WITH_COLLNET}"] = graph
    return graphs, plain.net_gbs


def _with_channels(found: SearchResult) -> dict[str, Graph]:
    return {name: each.graph for name, each in found.graphs.items() if each.graph.channels}


def _request(machine: Machine, gpus: int, several: bool, variables: dict[str, str]) -> SearchRequest:
    """GPUs of a host, or of whole trays where the GPUs are more than one has."""
    environment, of_host = {**machine.environment, **variables}, min(gpus, machine.gpus_per_node)
    allowed = machine.peer_to_peer
    return SearchRequest(machine.topology_xml, of_host, several, environment, allowed, hosts=gpus // of_host)
