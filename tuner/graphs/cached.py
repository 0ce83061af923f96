"""Keeps graphs that were found on disk, under a key made from everything that they depend on: request, rules and
code."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.extras import NotBuilt, shared_object
from tuner.base.files import cache_folder, recall_answer, remember_answer, sha256_of_text
from tuner.base.records import from_json, to_json
from tuner.graphs.request import SearchRequest, SearchResult, request_of
from tuner.machine.graphs import OrderedGraph

# the JSON has the right checksum, but is no answer
OF_ANOTHER_FORM = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


def find(request: SearchRequest, nccl: str) -> Mapping[str, OrderedGraph]:
    """The graphs with channels that NCCL release ``nccl`` finds, by name.

    A request is searched only once; after that, its result is kept.

    Raises BadTopology for a wrong topology, and BadInput if NCCL refuses the request.
    """
    return {name: found for name, found in searched(request, nccl).graphs.items() if found.graph.channels}


@cache
def _searched(key: str, request: str, nccl: str) -> SearchResult:
    try:
        result: SearchResult = from_json(SearchResult, kept(key))
        return result
    except (OSError, *OF_ANOTHER_FORM):
        from tuner.graphs.graphs import search  # imported only if the answer is not on disk

        found = search(request_of(request), nccl)
        keep(key, to_json(found))
        return found


def searched(request: SearchRequest, nccl: str) -> SearchResult:
    """The result of the search, which has all graphs, also those without channels.

    BadTopology if the topology is invalid, BadInput if NCCL refuses the request.
    """
    text = json.dumps(asdict(request), sort_keys=True)
    return _searched(key_of(text, rules_of(nccl)), text, nccl)


def key_of(*asked: str) -> str:
    """Cache key: a hash of the question's texts and of the code that answers it."""
    return sha256_of_text("\n".join([*asked, _code()]))


def kept(key: str) -> Any:
    """An answer that this user cached, as JSON. Users may share a cache folder, but no user is given another's answers.

    KeyError if there is no answer, ValueError if the answer is damaged.
    """
    return json.loads(recall_answer(folder() / f"{key}.json"))


def keep(key: str, answer: object) -> None:
    """Keeps an answer for later processes of this user, if the folder can be written to."""
    remember_answer(folder() / f"{key}.json", json.dumps(answer))


@cache
def rules_of(nccl: str) -> str:
    """The sha256 of everything that the search reads from a release's tables. Releases with the same sha256 find the
    same graphs."""
    loaded = release.load(nccl)
    search = {part.name: getattr(loaded.search, part.name) for part in fields(loaded.search) if part.name != "dump"}
    read = search, loaded.limits.max_channels, loaded.paths.types, loaded.environment.non_numeric_is_default
    return sha256_of_text(json.dumps(to_json(read), sort_keys=True))


def folder() -> Path:
    """The folder of kept graphs, below NCCL_TUNER_CACHE or the user's cache folder."""
    return cache_folder() / "graphs"


@cache
def _code() -> str:
    """The sha256 of the code that searches: the Python, the C, and what both depend on."""
    folders = files("tuner.graphs"), files("tuner.graphs") / "explain", files("tuner.base")
    modules = [module for folder in folders for module in folder.iterdir() if module.name.endswith(".py")]
    contents = [module.read_bytes() for module in sorted(modules, key=str)]
    with suppress(OSError, NotBuilt):  # an installation without compiled objects searches in Python
        contents.append(shared_object("nccl_tuner_picks").read_bytes())
    return hashlib.sha256(b"".join(contents)).hexdigest()
