"""Learns a release from a libnccl.so.2 that has no release file: reads tables from the library's data, and finds values
and rules by asking it.

The library is asked once, on a few machines. The release with the most similar answers becomes the parent, whatever its
number. For the remaining differences it tries values and rules of other releases, and numbers that follow from single
cells. What no trial explains is reported as a difference, with the smallest case that shows it.
"""

import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.sections import SymbolTableSection
from numpy.typing import NDArray

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import OracleFailed, OracleUnavailable, TunerError, UnknownRelease
from tuner.base.files import sha256
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.base.numerics import shortest
from tuner.emulator import full_launch
from tuner.emulator.build import build
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.graphs import searched
from tuner.machine import catalogue
from tuner.machine.graphs import OrderedGraph
from tuner.oracle import library
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import launched_values
from tuner.oracle.conformance.check import (
    ALL_COLLECTIVES,
    as_ranks_go_on,
    check,
    compare_cells,
    compare_picks,
    compare_tables,
)
from tuner.oracle.conformance.check import name as check_name
from tuner.oracle.conformance.mismatches import Comparing, MatchReport, Mismatch
from tuner.oracle.facts import Facts, OracleTables
from tuner.oracle.launches import IssuedCall, LaunchInFull
from tuner.oracle.search import net_gbs, ordered_graphs
from tuner.oracle.symbols import opened, own_name
from tuner.release import ALGORITHM_KEYS, HARDWARE, PROTOCOL_KEYS, Release, learnt, reader
from tuner.release.convert import WrongValue
from tuner.release.environment import Environment
from tuner.scenario import Scenario
from tuner.scenario.p2p import heads_of

# Machine, number of nodes, GPUs per node: every generation and processor, one node and several, one rank per node,
# several adapters at a GPU, a network that reduces.
REDUCES = "collnet"
PROBES: tuple[tuple[str, int, int, *tuple[str, ...]], ...] = (
    ("dgx-h100", 2, 4),
    ("dgx-a100", 2, 3),
    ("dgx-b200", 1, 8),
    ("dgx-h100", 1, 8),
    ("dgx-h100", 1, 2),
    ("dgx-b200", 2, 4),
    ("dgx-b200", 3, 2),
    ("dgx-h100", 4, 2),
    ("dgx-h100", 5, 1),
    ("dgx-a100", 1, 8),
    ("a100-4x-2nic", 3, 4),
    ("hgx-h100-amd", 2, 2),
    ("gh200-4x", 2, 2),
    ("pcie-l40s", 1, 4),
    ("dgx-1v", 1, 8),
    ("dgx-1v", 2, 4),
    ("aws-p5", 2, 4),
    ("dgx-h100", 3, 2, REDUCES),
)
HELD_OUT: tuple[tuple[str, int, int, *tuple[str, ...]], ...] = (  # nothing is learnt from these
    ("hgx-h200", 2, 3),
    ("aws-p4d", 2, 5),
    ("aws-p6-b300", 1, 6),
    ("aws-p5en", 2, 8),
    ("dgx-b200", 2, 2, REDUCES),
)
QUICK = 4  # the parent is found with this number of them
SIZES = [1 << power for power in range(6, 35, 2)] + [3 * 5 << power for power in range(5, 30, 4)]
EIGHT_BITS = Request(Collective.AllReduce, DataType.float8e4m3, Op.sum)
LIMIT_S = 420.0  # time for trials
ANSWER_S = 60.0  # time for each answer of the library
ASKED_IN_VAIN = 2  # if this number of communicators fails at the beginning, the others would fail, too
REACHING_S = 60.0  # additional time to find what the answers that still differ depend on
FAILED = 1 << 30  # counted as the differences of a trial whose values cannot occur together
MOST_KEPT = 4  # most changes that improve one communicator and are then tried on all
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """Recorded answers of libnccl on one communicator, with an oracle's methods. Cost tables are in us, indexed
    [size][algorithm][protocol]."""

    scenario: Scenario
    tables: OracleTables
    facts: Facts
    ordered: Mapping[str, OrderedGraph]
    slowest_gbs: float | None
    cost_tables: Mapping[Request, NDArray[np.float32]]  # [S, A, 3], us
    launches: Mapping[Request, list[OracleLaunch]]
    sizes: Mapping[Request, list[int]]
    in_full: Mapping[Operation, LaunchInFull]  # for some sizes: chunks and everything else that a launch receives

    def costs(self, request: Request, sizes: Sequence[int]) -> NDArray[np.float32]:
        """Cost tables of the sizes that the library was asked about: float32 array [size][algorithm][protocol] in
        us."""
        return self.cost_tables[request]

    def launch(self, request: Request, sizes: Sequence[int]) -> list[OracleLaunch]:
        """Launches of the sizes that the library was asked about."""
        return self.launches[request]


@dataclass(frozen=True, slots=True)
class Differing:
    """The smallest case of its kind that the learnt release answers differently from its library.

    ``part`` is the part of the emulator that gives the answer. ``rules`` are the rules that may cause the difference,
    with ``sources`` to read. ``steps`` are the emulator's steps, each with its result, followed by the library's
    number.
    """

    communicator: str
    part: str
    where: str
    cases: int
    emulator: str
    libnccl: str
    rules: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnsweredBefore:
    """How many answers for this release were right before its library was known. Such answers rest on the release's
    source, or are interpolated between two releases.

    ``standing`` says on which of the two the answers rest. ``wrong`` lists the communicators on which answers differ
    from the library's, each with what differs and how often. ``refused`` lists the communicators for which there was no
    answer, each with the reason. ``values`` maps the key of each value that was assumed wrongly to the assumed and the
    learnt value.
    """

    standing: str
    compared: Mapping[str, int]
    matched: Mapping[str, int]
    wrong: tuple[str, ...]
    refused: tuple[str, ...]
    values: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Learning:
    """Result of learning a library: the release's name, its parent, and how the release differs from the parent.

    ``before`` is None if the library's release has a compared table, or had no answers at all.
    """

    name: str
    library: str
    parent: str
    changes: Mapping[str, Any]
    tables: int  # number of changes that were read as data
    compared: Mapping[str, int]
    matched: Mapping[str, int]
    differing: tuple[Differing, ...]
    seconds: float
    file: str
    before: AnsweredBefore | None = None

    @property
    def exact(self) -> bool:
        """Whether everything that was compared was equal."""
        return self.compared == self.matched


def learn(
    path: Path, hidden: Sequence[str] = (), progress: Progress = lambda _: None, limit_s: float = LIMIT_S
) -> Learning:
    """Learns a library, and keeps its file.

    ``hidden``: releases to treat as unknown; ``limit_s``: time limit of trials.

    OracleUnavailable if the file is not a libnccl for this machine, or if it answers on no communicator.
    """
    began, path = time.monotonic(), path.resolve()
    library.check(path)
    said, digest = library.says_release(path), sha256(path)
    name = learnt.name_of(said, digest)
    learnt.check_kept()  # otherwise the work would be in vain
    found = data_tables(path)
    known = [each for each in release.names() if each not in hidden]
    progress(f"asking {path.name} ({said}) on {len(PROBES)} communicators")
    probes = _probes(path, _like(said, known), progress)
    found |= _limits(probes, found)
    candidates = [_Candidate.over(each, found) for each in known]
    progress(f"comparing with {len(candidates)} releases")
    nearest = _nearest(said)
    best = min(candidates, key=lambda each: (each.score(probes[:QUICK]), nearest(each)))
    progress(f"nearest: {best.parent}, {best.score(probes)} of {_asked(probes)} answers differ")
    best = _searching(best, candidates, probes, began + limit_s / 3, progress)
    for part, until in (OF_SEARCH, limit_s / 2), (OF_MODEL, limit_s), (OF_LAUNCHES, limit_s):
        best = _descend(best, known, probes, began + until, progress, part)
    nccl = best.release(name)
    reports: list[tuple[Probe | None, MatchReport]] = [(probe, _compare(nccl, probe)) for probe in probes]
    learnt.keep(name, learnt.text(name, best.parent, learnt.LearntFrom(str(path), digest, 0, 0), best.changes))
    reader.forget()
    progress(f"comparing in full on {len(HELD_OUT)} communicators that it was not learnt from")
    reports += [(None, report) for report in _in_full(name, progress)]
    compared, matched = Counter[str](), Counter[str]()
    for _, report in reports:
        compared.update(report.compared)
        matched.update(report.matched)
    origin = learnt.LearntFrom(str(path), digest, compared.total(), matched.total())
    file = learnt.keep(name, learnt.text(name, best.parent, origin, best.changes))
    reader.forget()
    differing = tuple(_differing(nccl, reports, partial(_reaching, best, known, began + limit_s + REACHING_S)))
    seconds = time.monotonic() - began
    tables = sum(key in best.data for key in best.changes)
    before = _answered_before(said, known, probes, nccl)
    return Learning(
        name,
        str(path),
        best.parent,
        best.changes,
        tables,
        dict(compared),
        dict(matched),
        differing,
        seconds,
        str(file),
        before,
    )


def _answered_before(
    said: str, known: Sequence[str], probes: Sequence[Probe], learned: Release
) -> AnsweredBefore | None:
    """How many answers were right that a release got without its own table; None if it got no answers, or has a
    table."""
    try:
        claimed = reader.uncompared(said, known)
    except UnknownRelease:
        return None
    standing = claimed.standing
    assert standing is not None
    compared, matched, wrong, refused = Counter[str](), Counter[str](), list[str](), list[str]()
    for probe in probes:
        at = probe.scenario
        title = f"{at.nodes} x {at.machine}, {at.gpus_per_node} GPUs each"
        try:
            with learnt.trying(claimed):
                _selection(claimed, replace(at, nccl=said), probe)
        except TunerError as error:
            refused.append(f"{title}: {error}")
            continue
        report = _compare(claimed, probe)
        compared.update(report.compared)
        matched.update(report.matched)
        if report.mismatches:
            counts = Counter(each.what for each in report.mismatches)
            wrong.append(f"{title}: {', '.join(f'{count:,} {what}' for what, count in counts.items())}")
    values = {each.key: (each.before, each.after) for each in release.differences(claimed, learned)}
    return AnsweredBefore(standing.words, dict(compared), dict(matched), tuple(wrong), tuple(refused), values)


def _limits(probes: Sequence[Probe], tables: Mapping[str, Any]) -> dict[str, int]:
    """Limits of the library: the number of data types (whether it accepted 8-bit ones), numbers of threads that are
    equal on all communicators, and the length of a table."""
    eight_bits = any(EIGHT_BITS in probe.sizes for probe in probes)
    found = {"limits.data_types": len(DataType) if eight_bits else int(DataType.float8e4m3)}
    threads = [probe.tables.max_threads for probe in probes]
    for row, algorithm in ALGORITHM_KEYS.items():
        for column, protocol in PROTOCOL_KEYS.items():
            most = {int(each[algorithm, protocol]) for each in threads if len(each) > algorithm}
            if len(most) == 1 and most != {0}:
                found[f"threads.{row}.{column}.default"] = most.pop()
    if corrections := tables.get("tree_correction.simple"):
        found["limits.nvls_tree_corrections"] = len(corrections)
    return found


def _like(said: str, known: Sequence[str]) -> str:
    """The known release whose layout the oracle uses to read a library: the newest one that is not newer than the
    library."""
    earlier = [name for name in known if reader.parts_of(name) <= reader.parts_of(said)]
    return (earlier or list(known[:1]))[-1]


def _nearest(said: str) -> Callable[["_Candidate"], Any]:
    """A sort key for candidates with equal answers: fewer changes first, then the nearer release number."""
    own = reader.parts_of(said)

    def order(candidate: "_Candidate") -> Any:
        parts = zip(reader.parts_of(candidate.parent), own, strict=True)
        return len(candidate.changes), [abs(ours - theirs) for ours, theirs in parts]

    return order


def _asked(probes: Sequence[Probe]) -> int:
    return sum(table.size for probe in probes for table in probe.cost_tables.values())


# Asking the library.


def _probes(path: Path, like: str, progress: Progress) -> list[Probe]:
    """The library's answers on all communicators on which it can be asked.

    OracleUnavailable if the first communicators give no answer: the library crashes, hangs, or is not NCCL.
    """
    found, failed = list[Probe](), list[str]()
    for machine, nodes, gpus, *reduces in PROBES:
        if like in catalogue.load(machine).crashes:
            continue
        scenario = _scenario(like, machine, nodes, gpus, bool(reduces))
        try:
            configuration = replace(scenario.oracle_configuration(), library=path)
            with Oracle(configuration, timeout_s=ANSWER_S) as oracle:
                found.append(_probe(scenario, oracle))
        except TunerError as error:
            failed.append(error.what if isinstance(error, OracleFailed) else str(error))
            if not found and len(failed) == ASKED_IN_VAIN:
                break
            progress(f"not asked on {nodes} x {machine}: {failed[-1]}")
    if not found:
        raise OracleUnavailable(f"{path} gave an answer on none of {len(failed)} communicators; the last: {failed[-1]}")
    return found


def _scenario(nccl: str, machine: str, nodes: int, gpus: int, reduces: bool) -> Scenario:
    asked_for = {"NCCL_COLLNET_ENABLE": "1"} if reduces else {}
    return Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus, collnet=reduces, environment=asked_for)


def _probe(scenario: Scenario, oracle: Oracle) -> Probe:
    ranks, costs, launches, sizes = scenario.ranks, {}, {}, {}
    for request in (*ALL_COLLECTIVES, EIGHT_BITS):
        unit = request.unit_bytes(ranks)
        asked = sorted({max(unit, size // unit * unit) for size in SIZES})
        try:
            costs[request] = oracle.costs(request, asked)
            launches[request] = oracle.launch(request, asked)
            sizes[request] = asked
        except TunerError:  # the release does not have the type, or nothing carries the call
            costs.pop(request, None)
    ordered = ordered_graphs(oracle)
    in_full = _in_full_of(oracle, ranks, sizes)
    return Probe(scenario, oracle.tables, oracle.facts, ordered, net_gbs(oracle), costs, launches, sizes, in_full)


def _in_full_of(oracle: Oracle, ranks: int, sizes: Mapping[Request, list[int]]) -> dict[Operation, LaunchInFull]:
    """Launches of every third size; empty if the library's work structures cannot be read."""
    operations = [Operation(each, size, 0) for each, asked in sizes.items() for size in asked[::3]]
    issued = [(each.request, each.bytes // each.request.unit_bytes(ranks)) for each in operations]
    calls = [[IssuedCall(each.collective, each.dtype, count, 0, each.op)] for each, count in issued]
    try:
        return dict(zip(operations, oracle.launch_groups_in_full(calls), strict=True))
    except TunerError:
        return {}


# Comparing a release with what was answered.

# Otherwise picks and channels already differ, which another comparison reports
LAUNCHED_ALIKE = ("kernels", ": symbol", ": blocks", ": threads")

CHOICES = ("graphs", "tables", "cells", "picks")


def _compare(nccl: Release, probe: Probe, parts: Sequence[str] = (*CHOICES, "launches")) -> MatchReport:
    """Compares the release's answers. The answers are computed from the graphs that the library found, so that
    differences of the search do not count."""
    comparing = Comparing()
    with learnt.trying(nccl):
        scenario = replace(probe.scenario, nccl=nccl.name)
        if "graphs" in parts:
            _compare_graphs(comparing, scenario, probe)
        if parts == ("graphs",):
            return comparing.report(scenario.title)
        try:
            selection = _selection(nccl, scenario, probe)
            if "tables" in parts:
                compare_tables(comparing, selection, probe.tables, probe.facts)
        except TunerError as error:
            for table in probe.cost_tables.values():
                comparing.add("cells", table.size, [Mismatch("cells", "all", str(error), "answered")] * table.size)
            return comparing.report(scenario.title)
        for request, sizes in probe.sizes.items():
            try:
                if "cells" in parts:
                    compare_cells(comparing, selection, probe, request, sizes)  # type: ignore[arg-type]
                if "picks" in parts:
                    compare_picks(comparing, selection, probe, request, sizes)  # type: ignore[arg-type]
            except TunerError as error:
                refused = Mismatch("picks", check_name(request), str(error), "answered")
                comparing.add("picks", len(sizes), [refused] * len(sizes))
        if "launches" in parts:
            _compare_in_full(comparing, selection, scenario, probe)
        return comparing.report(scenario.title)


def _compare_in_full(comparing: Comparing, selection: Selection, scenario: Scenario, probe: Probe) -> None:
    """Compares what kernels and proxies receive, for calls that the library launched in full."""
    heads = cache(lambda: heads_of(scenario.resolve()))
    for operation, theirs in probe.in_full.items():
        where = f"{check_name(operation.request)} {operation.bytes} B"
        try:
            values = launched_values.compare(full_launch.launch(selection, [operation], heads), theirs)
        except TunerError as error:
            comparing.compare("launches", where, str(error), "launched")
            continue
        alike = all(ours == real for key, (ours, real) in values.items() if key.endswith(LAUNCHED_ALIKE))
        for key, (ours, real) in values.items() if alike else ():
            comparing.compare("launches", f"{where}: {key}", ours, real)


def _selection(nccl: Release, scenario: Scenario, probe: Probe) -> Selection:
    """The release's model of the probe's communicator, with the graphs that the library found. BadInput for an
    impossible communicator."""
    graphs = {name: each.graph for name, each in probe.ordered.items() if each.graph.channels}
    own = scenario.resolve().own
    node = replace(own.without_graphs, graphs=graphs, net_gbs=probe.slowest_gbs or 0.0)
    environment = Environment(own.variables, frozenset(nccl.environment.search))
    return Selection(build(nccl, [(node, scenario.nodes)], environment))


def _compare_graphs(comparing: Comparing, scenario: Scenario, probe: Probe) -> None:
    try:
        found = searched(scenario.resolve().own.for_search(scenario.nodes > 1), scenario.nccl).graphs
    except TunerError as error:
        missing = [Mismatch("graphs", name, str(error), "found") for name in probe.ordered]
        comparing.add("graphs", len(missing), missing)
        return
    ours = as_ranks_go_on({name: each for name, each in found.items() if each.graph.channels})
    for name in sorted(ours.keys() | probe.ordered.keys()):
        comparing.compare("graphs", name, ours.get(name), probe.ordered.get(name))


def _in_full(name: str, progress: Progress) -> Iterator[MatchReport]:
    """Compares everything that conformance compares, including groups and channels across nodes, for a release whose
    file is kept."""
    for machine, nodes, gpus, *reduces in HELD_OUT:
        scenario = _scenario(name, machine, nodes, gpus, bool(reduces))
        try:
            selection = Selection(scenario.communicator())
            yield check(scenario, [each for each in ALL_COLLECTIVES if selection.usable(each)])
        except TunerError as error:
            progress(f"not compared on {nodes} x {machine}: {error}")


# Candidates: a known release with some changes.


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    parent: str
    changes: dict[str, object]  # by dotted key, as in a release's file
    data: frozenset[str]  # keys that were read as data, for which no other values are tried

    @classmethod
    def over(cls, parent: str, found: Mapping[str, object]) -> "_Candidate":
        """The known release ``parent`` as a candidate, changed to have the values ``found`` as data in a library."""
        own = _flat_of(parent)
        has = {key: value for key, value in found.items() if _has(own, key, value)}
        return cls(parent, {key: value for key, value in has.items() if not _same(own.get(key), value)}, frozenset(has))

    def with_change(self, key: str, value: object) -> "_Candidate":
        """The candidate with ``value`` for ``key``. If that is the parent's own value, the change of this key is taken
        back."""
        changes = {each: old for each, old in self.changes.items() if each != key}
        if not _same(_flat_of(self.parent).get(key), value):
            changes[key] = value
        return _Candidate(self.parent, changes, self.data)

    def release(self, name: str) -> Release:
        """The release that the candidate makes. BadReleaseFile if its values do not form a release."""
        nested: dict[str, Any] = {}
        for key, value in self.changes.items():
            *tables, last = key.split(".")
            place = nested
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = value
        return replace(release.changed(release.load(self.parent), nested), name=name)

    def score(self, probes: Sequence[Probe], parts: Sequence[str] = CHOICES) -> int:
        """Number of answers that differ."""
        return sum(_differ(self, probe, tuple(parts))[0] for probe in probes)

    def spoils(self, other: "_Candidate", probes: Sequence[Probe], parts: Sequence[str]) -> bool:
        """Whether this candidate gets an answer wrong that ``other`` gets right: a change must not make right answers
        wrong."""
        compared = tuple(dict.fromkeys((*OF_MODEL.compared, *parts)))
        return any(_differ(self, probe, compared)[1] - _differ(other, probe, compared)[1] for probe in probes)


def _has(own: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value that was found in a library belongs to a release: the release has its key, or may leave it
    out."""
    if key == "limits.nvls_tree_corrections":
        return bool(value > own["limits.tree_corrections"])
    return key in own or (key.startswith("threads.") and f"{key.rpartition('.')[0]}.env" not in own)


_scores: dict[tuple[str, str, str, tuple[str, ...]], tuple[int, frozenset[tuple[str, str]]]] = {}


def _differ(candidate: _Candidate, probe: Probe, parts: tuple[str, ...]) -> tuple[int, frozenset[tuple[str, str]]]:
    """Number of answers that differ, and which: kind and place."""
    made = candidate.parent, repr(sorted(candidate.changes.items())), probe.facts.library_sha256 + probe.scenario.name
    key = (*made[:2], f"{made[2]} {probe.scenario.nodes} {probe.scenario.gpus_per_node}", parts)
    if key not in _scores:
        try:
            nccl = candidate.release(f"{candidate.parent}@try{len(_scores)}")
            with np.errstate(all="ignore"):  # some values occur together in no release
                mismatches = _compare(nccl, probe, parts).mismatches
            _scores[key] = len(mismatches), frozenset((each.what, each.where) for each in mismatches)
        except (TunerError, WrongValue, KeyError, TypeError, IndexError, ValueError, ArithmeticError, StopIteration):
            _scores[key] = FAILED, frozenset({("all", "failed")})
    return _scores[key]


def _flat_of(name: str) -> dict[str, object]:
    if name not in _flats:
        _flats[name] = reader.flat(release.load(name))
    return _flats[name]


_flats: dict[str, dict[str, object]] = {}


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs) and isinstance(ours, bool) == isinstance(theirs, bool)


def _searching(
    best: _Candidate,
    others: Sequence[_Candidate],
    probes: Sequence[Probe],
    until: float,
    progress: Progress,
) -> _Candidate:
    """The candidate with the search of another release, if that finds more of the library's graphs."""
    differing = [probe for probe in probes if best.score([probe], ("graphs",))]
    if not differing:
        return best
    own = _flat_of(best.parent)
    of_search = [key for key in own if key.startswith("search.")]
    for other in others:
        if time.monotonic() > until:
            break
        theirs = _flat_of(other.parent)
        tried = best
        for key in of_search:
            if key in theirs and key not in best.data:
                tried = tried.with_change(key, theirs[key])
        if tried.score(differing, ("graphs",)) < best.score(differing, ("graphs",)):
            best = _without_idle(best, tried, differing, probes)
            progress(f"the search of {other.parent} finds more of its graphs")
    return best


def _without_idle(
    best: _Candidate, tried: _Candidate, differing: Sequence[Probe], probes: Sequence[Probe]
) -> _Candidate:
    """The candidate ``tried`` without the changes that correct nothing."""
    fewest, fewer = tried.score(differing, ("graphs",)), tried
    for key in sorted(key for key, value in tried.changes.items() if best.changes.get(key, ...) != value):
        one_less = fewer.with_change(key, best.changes.get(key, _flat_of(best.parent)[key]))
        if one_less.score(differing, ("graphs",)) <= fewest:
            fewer = one_less
    return fewer if fewer.score(probes, ("graphs",)) <= tried.score(probes, ("graphs",)) else tried


# Values and rules, one by one.


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the emulator: answers that are compared together, and the values and rules that they may depend on."""

    compared: tuple[str, ...]
    keys: tuple[str, ...]  # the beginnings of the keys


OF_SEARCH = _Part(("graphs",), ("search.",))
OF_MODEL = _Part(
    ("tables", "cells", "picks"),
    ("rules.", "limits.", "threads.", "thread_threshold_bytes.", "nvls_channels.", "ring_plateau.", "net_overhead"),
)
OF_LAUNCHES = _Part(("launches",), ("rules.", "limits.", "nvls_", "registration.", "threads_divide"))  # includes chunks
NOT_COMPARED = ("rules.symmetric", "rules.windows", "rules.printed", "rules.cta_policy", "rules.domains", "rules.group")
# For these limits, neighbouring numbers are tried
SEARCH_LIMITS = ("search.loop.gpus_without_nvls", "search.merging.most")
SOLVED = ("ring_plateau.", "net_overhead_us.", "nvls_channels.", "thread_threshold_bytes.", "limits.min_")


def _descend(
    best: _Candidate,
    known: Sequence[str],
    probes: Sequence[Probe],
    until: float,
    progress: Progress,
    part: _Part,
) -> _Candidate:
    """Applies, one after the other, the change that leaves the fewest differences, until none helps; returns the
    candidate."""
    parts = part.compared
    while least := best.score(probes, parts):
        differing = sorted((each for each in probes if best.score([each], parts)), key=lambda each: each.scenario.ranks)
        chosen, left = None, least
        for probe in differing:
            if time.monotonic() > until:
                progress("the time for trials is over, the rest is not tried")
                return best
            tried = (trial for _, trial in _trials(best, known, probe, part))
            trials = sorted(tried, key=lambda each: each.score([probe], parts))[:MOST_KEPT]
            better = [each for each in trials if each.score([probe], parts) < best.score([probe], parts)]
            better = [each for each in better if not each.spoils(best, probes, parts)]
            chosen = min(better, key=lambda each: each.score(probes, parts), default=None)
            if chosen is not None and (left := chosen.score(probes, parts)) < least:
                break
            chosen = None
        if chosen is None:
            break
        both = {*chosen.changes, *best.changes}
        for key in (each for each in both if chosen.changes.get(each) != best.changes.get(each)):
            progress(f"{key} = {chosen.changes.get(key)!r}: {left} of {least} differences are left")
        best = chosen
    return best


def _trials(best: _Candidate, known: Sequence[str], probe: Probe, part: _Part) -> Iterator[tuple[str, _Candidate]]:
    """Trials, each a key and the candidate with that changed: first values of other releases, then numbers that a cell
    of the library requires."""
    now = {**_flat_of(best.parent), **best.changes}
    seen = set[str]()
    for name in known:
        for key, value in _flat_of(name).items():
            if not key.startswith(part.keys) or key.startswith(NOT_COMPARED) or key in best.data:
                continue
            if _same(now.get(key), value):
                continue
            if (said := f"{key}={value!r}") not in seen:
                seen.add(said)
                yield key, best.with_change(key, value)
    if part is OF_SEARCH:
        limits = {key: value for key, value in now.items() if key.startswith(SEARCH_LIMITS) and type(value) is int}
        yield from ((key, best.with_change(key, value + by)) for key, value in limits.items() for by in (1, -1))
    for key, value in now.items() if part is OF_MODEL else ():
        if key.startswith(SOLVED) and isinstance(value, int | float) and not isinstance(value, bool):
            yield from ((key, best.with_change(key, each)) for each in _solved(best, key, value, probe))


def _solved(best: _Candidate, key: str, value: float, probe: Probe) -> Iterator[float]:
    """Numbers to try instead of ``value``: those with which the emulator computes the library's number for the first
    differing cell that depends on it."""
    if isinstance(value, int):
        yield from (each for each in (value * 2, value // 2, value + 8, value - 8, value + 4, value - 4) if each > 0)
        return

    def cells(number: float) -> NDArray[np.float64]:
        nccl = best.with_change(key, number).release(f"{best.parent}@solve")
        return np.concatenate([table.ravel() for table in _cost_tables(nccl, probe)]).astype(np.float64)

    theirs = np.concatenate([table.ravel() for table in probe.cost_tables.values()]).astype(np.float64)
    ours, moved = cells(value), cells(value * 1.01 + 0.01)
    at = np.flatnonzero((ours != theirs) & (ours != moved) & (theirs > 0) & (moved > 0))
    if not at.size:
        return
    first, low, high = at[0], value, value * 1.01 + 0.01
    below, above = ours[first], moved[first]
    for _ in range(12):  # the secant method: cells are linear in such numbers, except for rounding
        if above == below:
            break
        low, high = high, high + (theirs[first] - above) * (high - low) / (above - below)
        if not 0 < high < 1e9:
            return
        below, above = above, cells(high)[first]
        if above == theirs[first]:
            break
    for digits in range(1, 5):  # constants in code have few digits; with more, the number would fit something else
        rounded = float(f"{high:.{digits}g}")
        if cells(rounded)[first] == theirs[first]:
            yield rounded
            return


def _cost_tables(nccl: Release, probe: Probe) -> Iterator[NDArray[np.float32]]:
    with learnt.trying(nccl):
        selection = _selection(nccl, replace(probe.scenario, nccl=nccl.name), probe)
        for request, table in probe.cost_tables.items():
            yield np.ascontiguousarray(selection.cost_table(request, probe.sizes[request])[:, : table.shape[1]])


# What no change explains.

Reaching = Callable[[Probe, _Part], tuple[str, ...]]


def _reaching(best: _Candidate, known: Sequence[str], until: float, probe: Probe, part: _Part) -> tuple[str, ...]:
    """The keys on which the differing answers of a communicator depend: another value changes how many differ."""
    own, keys = best.score([probe], part.compared), dict[str, None]()
    for key, trial in _trials(best, known, probe, part):
        if key not in keys and time.monotonic() < until and trial.score([probe], part.compared) not in (own, FAILED):
            keys[key] = None
    return tuple(keys)


def _differing(
    nccl: Release, reports: Sequence[tuple[Probe | None, MatchReport]], reaching: Reaching
) -> Iterator[Differing]:
    """One case for each part that differs: the one with the fewest ranks and the smallest size."""
    seen = dict[tuple[str, str], Differing]()
    named = dict[str, tuple[str, ...]]()
    for probe, report in sorted(reports, key=lambda pair: pair[0].scenario.ranks if pair[0] else math.inf):
        for each in report.mismatches:
            part, cell = _part_of(each)
            if (part, cell) in seen:
                old = seen[part, cell]
                seen[part, cell] = replace(old, cases=old.cases + 1)
                continue
            own = _of_cell(nccl, probe, each) if probe and each.what == "cells" else {}
            if probe and each.what in ("graphs", "launches"):
                if part not in named:
                    named[part] = reaching(probe, OF_SEARCH if each.what == "graphs" else OF_LAUNCHES)
                own = {"rules": named[part]}
            communicator = report.title.partition(", NCCL")[0]
            ours, theirs = str(each.emulator), str(each.libnccl)
            seen[part, cell] = Differing(communicator, part, each.where, 1, ours, theirs, **own)
    yield from seen.values()


def _part_of(each: Mismatch) -> tuple[str, str]:
    if each.what == "graphs":
        return "the search of graphs", each.where.split()[0]
    if each.what == "cells":
        return "the model of times", each.where.split()[-1]
    if each.what == "tables":
        return "the model's tables", each.where.partition("[")[0]
    if each.what == "launches":
        return "what a launch is handed", ""
    launched = {"channels": "channels of a launch", "threads": "threads of a launch", "groups": "groups of calls"}
    return launched.get(each.what, "the pick"), ""


def _of_cell(nccl: Release, probe: Probe, each: Mismatch) -> dict[str, tuple[str, ...]]:
    """The emulator's steps for a cell, with the library's latency and bandwidth, and the rules of these steps."""
    words = each.where.split()
    request = next((one for one in probe.sizes if words[:2] == [one.collective.name, one.dtype.name]), None)
    if request is None:  # the release refuses the communicator
        return {}
    algorithm, _, protocol = words[-1].partition("/")
    cell = Algorithm[algorithm], next(key for key in PROTOCOL_KEYS.values() if key.name == protocol)
    with learnt.trying(nccl):
        try:
            selection = _selection(nccl, replace(probe.scenario, nccl=nccl.name), probe)
            steps = selection.steps(request, int(words[-3]), cell)
        except (TunerError, LookupError):
            return {}
    at = request.collective, *cell
    real = {
        "bandwidth": float(probe.tables.bandwidth_gbs[at]),
        "latency": float(probe.tables.latency_us[at]),
    }
    last = {step.quantity: step for step in steps}
    lines = [f"{step.quantity}: {step.name} -> {step.after:g} {step.unit}" for step in steps if step.changes]
    lines += [
        f"{quantity}: {last[quantity].after:g} here, {value:g} in libnccl"
        for quantity, value in real.items()
        if quantity in last
    ]
    shared = {quantity: value for quantity, value in real.items() if quantity in last}
    off = [quantity for quantity, value in shared.items() if np.float32(last[quantity].after) != value] or ["time"]
    row = next(key for key, value in ALGORITHM_KEYS.items() if value is cell[0])
    named = reader.flat(nccl)
    found = [named.get(f"rules.{each}.{row}", named.get(f"rules.{each}", [])) for each in off]
    rules = tuple(str(name) for names in found for name in (names if isinstance(names, list) else [names]))
    sources = dict.fromkeys(str(step.source) for step in steps if step.quantity in off or step.name in rules)
    return {"rules": rules, "steps": tuple(lines), "sources": tuple(sources)}


# Tables that the library contains as data.

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
CAPS = {
    "llMaxBws": "cap_gbs.ll",
    "perChMaxRingLL128Bws": "cap_gbs.ring_ll128_per_channel",
    "perChMaxTreeLL128Bws": "cap_gbs.tree_ll128_per_channel",
    "perChMaxTreeBws": "cap_gbs.tree_per_channel",
    "perChMaxNVLSTreeBws": "cap_gbs.nvls_tree_per_channel",
}
SPEEDS = {"speedArray": "any", "sm90SpeedArray": "hopper", "sm100SpeedArray": "blackwell"}
DEFAULTS = "ncclTunerConstantsDefaults"


def data_tables(path: Path) -> dict[str, float | list[float]]:
    """Values that a libnccl holds as data, by dotted key: the constants that tuners receive, corrections, and
    bandwidths that the search tries."""
    found: dict[str, float | list[float]] = {}
    data = _objects(path)
    if DEFAULTS in data:
        numbers = list(struct.unpack(f"<{len(data[DEFAULTS]) // 8}d", data[DEFAULTS]))
        algorithms = (len(numbers) - 60) // 12
        found |= _latencies(numbers[: 12 * algorithms], algorithms)
        for number, key in enumerate(CAPS.values()):
            first = 12 * algorithms + 12 * number
            found |= _caps(key, numbers[first : first + 12])
    else:
        base, hardware = (_floats(data.get(name, b"")) for name in ("baseLat", "hwLat"))
        if base and hardware:
            found |= _latencies(base + hardware, len(base) // 3)
        for name, key in CAPS.items():
            found |= _caps(key, list(struct.unpack(f"<{len(data.get(name, b'')) // 8}d", data.get(name, b""))))
    for row, value in zip(GENERATIONS, _floats(data.get("nvlsEfficiency", b"")), strict=False):
        found[f"nvls_efficiency.{row}"] = value
    factors = _floats(data.get("treeCorrectionFactor", b""))
    for number, protocol in enumerate(PROTOCOL_KEYS):
        if each := len(factors) // 3:
            found[f"tree_correction.{protocol}"] = factors[number * each : (number + 1) * each]
    for prefix, row in SPEEDS.items():
        for end, key in (("Intra", "search.intra_gbs"), ("Inter", "search.inter_gbs")):
            if (name := f"{prefix}{end}") in data:
                found[f"{key}.{row}"] = _floats(data[name])
    return found


def _latencies(numbers: Sequence[float], algorithms: int) -> dict[str, float]:
    cells = [f"{algorithm}.{protocol}" for algorithm in list(ALGORITHM_KEYS)[:algorithms] for protocol in PROTOCOL_KEYS]
    tables = "base_latency_us", *(f"hw_latency_us.{each}" for each in HARDWARE)
    return dict(zip((f"{table}.{cell}" for table in tables for cell in cells), numbers, strict=True))


def _caps(key: str, numbers: Sequence[float]) -> dict[str, list[float]]:
    return {f"{key}.{GENERATIONS[at // 3]}": list(numbers[at : at + 3]) for at in range(0, len(numbers), 3)}


def _floats(data: bytes) -> list[float]:
    return [shortest(np.float32(value)) for value in struct.unpack(f"<{len(data) // 4}f", data)]


def _objects(path: Path) -> dict[str, bytes]:
    """The bytes of the tables in a library, by name."""
    wanted = {DEFAULTS, "baseLat", "hwLat", "nvlsEfficiency", "treeCorrectionFactor", *CAPS}
    wanted |= {f"{prefix}{end}" for prefix in SPEEDS for end in ("Intra", "Inter")}
    found: dict[str, bytes] = {}
    with opened(path) as elf:
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        segments = [each for each in elf.iter_segments() if each["p_type"] == "PT_LOAD"]
        for symbol in table.iter_symbols():
            name = own_name(symbol.name)
            if symbol["st_info"]["type"] != "STT_OBJECT" or name not in wanted or not symbol["st_size"]:
                continue
            at, size = symbol["st_value"], symbol["st_size"]
            for segment in segments:
                if segment["p_vaddr"] <= at < segment["p_vaddr"] + segment["p_filesz"]:
                    elf.stream.seek(segment["p_offset"] + at - segment["p_vaddr"])
                    found[name] = elf.stream.read(size)
    return found
