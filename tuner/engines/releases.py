"""The releases of serving engines: their tables in ``tables/engines``, each of which completes its parent's."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, nearest_of, one_of

FOLDER = "engines"


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation of AllReduce: its ``name``, its ``title`` in words, and the conditions under which it takes a
    size.

    ``conditions`` are tables; each names in ``rule`` the rule that reads it. If ``nccl`` is true, NCCL itself carries
    the call: on plain buffers or, with ``windows``, on buffers in symmetric windows. If ``compared`` is true, the
    engine's own functions were run and agreed with the conditions; otherwise the conditions were only read in the
    engine's source. ``source`` is the engine's file that has the conditions. ``exchange`` says which collectives bring
    tokens to experts: ``allgather`` (and ReduceScatter back) or ``allreduce``. ``exchange`` is empty for an engine's
    own kernels; with ``pads_rows``, such kernels need the same number of rows on every rank. ``gathers`` is the kind of
    AllGather that the implementation carries; empty means any.
    """

    name: str
    title: str
    conditions: tuple[Mapping[str, Any], ...]
    source: str
    nccl: bool = False
    windows: bool = False
    compared: bool = True
    exchange: str = ""
    pads_rows: bool = False
    gathers: str = ""


@dataclass(frozen=True, slots=True)
class EngineRelease:
    """A release of an engine: its implementations in the order in which it tries them.

    ``experts`` are the implementations that bring tokens of data-parallel attention to experts and back, empty if they
    are not known. ``attention_dp`` says under ``scheme`` which collectives data-parallel attention makes
    (:mod:`tuner.answers.serving_calls`), and under ``group_without`` which implementations a group within data-parallel
    attention does not have. ``gathers`` are the implementations that may carry an AllGather in place of NCCL's.
    ``windows`` has the conditions under which buffers are in symmetric windows, and says for each collective which of
    its two buffers then are in one. ``gathered_embedding`` has the conditions under which embeddings are gathered
    instead of summed. ``without_split_experts`` are the implementations that the engine does not have if experts are
    split.

    ``variables`` and ``arguments`` are the switches that the engine reads, by name. ``limits`` are tables of sizes in
    bytes, by name. ``nccl_environment`` are the rules for the environment that the engine gives NCCL. The engine's own
    variables begin with ``prefix``. ``nccl`` is the release of NCCL with which the engine is built, None if it is not
    known. ``package`` is the package in the index from which the table was read, None if the index has none. If
    ``one_node`` is true, the engine can serve a model on one node only.
    """

    engine: str
    release: str
    package: str | None
    implementations: tuple[Implementation, ...]
    variables: Mapping[str, Mapping[str, Any]]
    arguments: Mapping[str, Mapping[str, Any]]
    limits: Mapping[str, Mapping[str, Any]]
    nccl_environment: tuple[Mapping[str, Any], ...]
    prefix: str
    nccl: str | None = None
    one_node: bool = False
    experts: tuple[Implementation, ...] = ()
    windows: Mapping[str, Any] | None = None
    attention_dp: Mapping[str, Any] | None = None
    gathered_embedding: tuple[Mapping[str, Any], ...] | None = None
    without_split_experts: tuple[str, ...] = ()
    gathers: tuple[Implementation, ...] = ()

    @property
    def name(self) -> str:
        """The engine and its release: ``vllm@0.33.0``."""
        return f"{self.engine}@{self.release}"

    @property
    def has_table(self) -> bool:
        """Whether the release has a table of its own."""
        return self.release in releases(self.engine)

    def named(self, implementation: str) -> Implementation:
        """The implementation of this name. KeyError if the release has no such implementation."""
        try:
            return next(each for each in self.implementations if each.name == implementation)
        except StopIteration:
            raise KeyError(implementation) from None

    @property
    def compared(self) -> bool:
        """Whether any implementation of the release was compared with the engine's own functions."""
        return any(each.compared and not each.nccl for each in self.implementations)


def engines() -> tuple[str, ...]:
    """Names of the engines, in order."""
    return tuple(sorted(each.name for each in _folder().iterdir() if each.is_dir() and not each.name.startswith("_")))


@cache
def prefixes() -> Mapping[str, str]:
    """The engines by the prefix of their own variables, according to their newest releases."""
    return {load(engine).prefix: engine for engine in engines()}


def releases(engine: str) -> tuple[str, ...]:
    """Releases of an engine that have a table, the oldest first."""
    return tuple(sorted((each.stem for each in (_folder() / engine).glob("*.toml")), key=_order))


def names() -> tuple[str, ...]:
    """``ENGINE@RELEASE`` of all tables."""
    return tuple(f"{engine}@{release}" for engine in engines() for release in releases(engine))


def load(name: str) -> EngineRelease:
    """The release of this name: ``vllm@0.33.0``, or ``vllm`` for the engine's newest release. BadInput if there is no
    such table."""
    engine, _, release = name.partition("@")
    if engine not in engines():
        raise BadInput(f"engine {engine!r} is not known{did_you_mean(engine, engines())}; {one_of(engines())}")
    known = releases(engine)
    if release and release not in known:
        raise BadInput(f"{engine} {release} has no table; the nearest: {_nearest(release, known)}; {_valid(engine)}")
    return _load(engine, release or known[-1])


def with_nearest_table(name: str) -> EngineRelease:
    """The release of this name. If it has no table of its own, it gets the table of the nearest release. BadInput if
    the engine is not known.

    Answers from another release's table are a guess, until they are compared with the engine's own functions.
    """
    engine, _, release = name.partition("@")
    if engine in engines() and release and release not in releases(engine):
        return replace(_load(engine, _nearest(release, releases(engine))), release=release)
    return load(name)


def _valid(engine: str) -> str:
    return nearest_of("", tuple(f"{engine}@{each}" for each in releases(engine)))


def nearest(engine: str, release: str | None) -> str:
    """The name of the table that answers for a release of an engine; the newest table's if ``release`` is None."""
    known = releases(engine)
    return f"{engine}@{known[-1] if release is None else _nearest(release, known)}"


def _nearest(release: str, known: tuple[str, ...]) -> str:
    """The newest known release that is not newer than ``release``; the oldest if all are newer."""
    return max((each for each in known if _order(each) <= _order(release)), key=_order, default=known[0])


def _order(release: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in release.split("."))


@cache
def _load(engine: str, release: str) -> EngineRelease:
    table = _merged(engine, release)
    return EngineRelease(
        engine,
        release,
        table.get("package"),
        tuple(_implementation(name, table["implementation"][name]) for name in table["order"]),
        table.get("variable", {}),
        table.get("argument", {}),
        table.get("limits", {}),
        tuple(table.get("nccl_environment", ())),
        table["prefix"],
        table.get("nccl"),
        table.get("one_node", False),
        tuple(_implementation(name, table["experts"][name]) for name in table.get("experts_order", ())),
        table.get("windows"),
        table.get("attention_dp"),
        table.get("gathered_embedding"),
        tuple(table.get("without_split_experts", ())),
        tuple(_implementation(name, table["gathers"][name]) for name in table.get("gathers_order", ())),
    )


def _implementation(name: str, given: Mapping[str, Any]) -> Implementation:
    return Implementation(
        name,
        given["title"],
        tuple(given.get("conditions", ())),
        given["source"],
        given.get("nccl", False),
        given.get("windows", False),
        given.get("compared", True),
        given.get("exchange", ""),
        given.get("pads_rows", False),
        given.get("gathers", ""),
    )


def _merged(engine: str, release: str) -> dict[str, Any]:
    """A release's table merged with its parent's: tables are merged key by key, other values replaced, and the keys in
    ``removed`` deleted."""
    table = tables.toml(_folder() / engine / f"{release}.toml")
    parent = table.pop("parent", None)
    return table if parent is None else _upon(_merged(engine, parent), table)


def _upon(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in below.items() if key not in above.get("removed", ())}
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _upon(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    merged.pop("removed", None)
    return merged


def _folder() -> Path:
    return tables.folder() / FOLDER
