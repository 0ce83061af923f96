"""Checks a tuner plugin: runs it in the real libnccl on simulated GPUs, over releases, shapes and calls."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Choice
from tuner.base.numerics import is_time
from tuner.base.records import json_form, sha256
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.oracle import library, process
from tuner.oracle.api import Oracle
from tuner.oracle.launches import PluginQuestion, TunedCall
from tuner.plugin import loading
from tuner.scenario import Scenario

SIZES = tuple(1 << power for power in range(10, 31, 2))  # 1 KiB to 1 GiB
MOST_CHANNELS = 64  # that any release has: MAXCHANNELS in src/include/device.h
SLOW_US = 100  # for one question: the calls that it is asked for take from 10 us on
LATER_S = 12_345_677  # how far clocks are ahead, for a plugin that reads them
INTERFACE = expression(r"ncclTunerPlugin_v(\d+)")
OLDEST_WITH_COSTS = 3  # of NCCL's tuner interfaces

IGNORED_US = -1.0  # of a cell that NCCL itself does not consider
Answers: TypeAlias = Mapping[Operation, tuple[TunedCall, TunedCall]]  # without the tuner, and with it

# Codes of what makes ranks choose differently; a call counts for the first that explains it.
DRIFTS, BY_RANK, BY_ORDER, BY_PLACE, BY_CLOCK = "repeat", "rank", "order", "place", "clock"


@dataclass(frozen=True, slots=True)
class ChangedCall:
    """A call that the tuner changes: NCCL's choices without and with the tuner, and how much longer the latter takes by
    NCCL's times.

    ``percent`` is negative if the choice with the tuner takes less time, and None if NCCL has no time for it.
    """

    collective: Collective
    bytes: int
    own: Choice = field(metadata=json_form("nccl"))
    tuned: Choice = field(metadata=json_form("with_tuner"))
    percent: float | None = field(metadata=json_form("percent_by_nccl"))


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """The tuner on one shape with one release. ``interface``: the version of the tuner interface through which NCCL
    calls the tuner, None if NCCL never calls it.

    ``least_questions`` to ``most_questions``: how often NCCL asks the tuner about one call. ``query_us`` is the median
    time of a question, ``slowest_query_us`` the longest. ``new_here``: how many calls this release runs differently
    with the tuner than the release before it on the same shape, although both run them in the same way without the
    tuner.
    """

    nccl: str
    nodes: int
    ranks: int
    interface: int | None
    calls: int = 0
    least_questions: int | None = None
    most_questions: int | None = None
    query_us: float | None = None
    slowest_query_us: float | None = None
    changes: tuple[ChangedCall, ...] = ()
    new_here: int | None = None

    @property
    def place(self) -> str:
        """The release, the ranks and the nodes of this run, as text for findings."""
        return f"NCCL {self.nccl} on {self.ranks} ranks of {self.nodes} node{'s' * (self.nodes > 1)}"


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of checking a tuner's library. ``interfaces``: the versions of NCCL's tuner interface that it exports."""

    library: Path
    sha256: str
    interfaces: tuple[int, ...]
    runs: tuple[AuditedRun, ...]
    findings: tuple[Finding, ...]

    @property
    def asked(self) -> bool:
        """Whether any release asks the tuner at all."""
        return any(run.interface is not None for run in self.runs)

    @property
    def sound(self) -> bool:
        """Whether all findings are notes."""
        return all(each.severity is Severity.NOTE for each in self.findings)


def interfaces(file: Path) -> tuple[int, ...]:
    """Versions of NCCL's tuner interface that a library exports. BadInput if the file is not a library, or not a tuner.

    The file is not loaded.
    """
    process.check_platform()
    try:
        names = library.exported(file)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None
    found = sorted(int(match[1]) for name in names if (match := INTERFACE.fullmatch(name)))
    if not found:
        raise BadInput(f"{file} exports none of ncclTunerPlugin_v1 to v6: give the shared object of a tuner plugin")
    return tuple(found)


def taken_by(nccl: str, offered: Sequence[int]) -> int | None:
    """The interface through which a release asks a library that offers these versions; None if the release uses none of
    them.
    """
    loaded = release.load(nccl)
    if not loading.has_plugins(loaded):
        return None
    newest = loading.interface(loaded).version
    fits = [each for each in offered if each == newest or OLDEST_WITH_COSTS - 1 <= each < newest > 2]
    return max(fits, default=None)


def by_default() -> list[str]:
    """The releases that an audit uses by default. Releases differ in the tuner interface and in how they read a tuner's
    answer; of each kind, the newest available release that passes its costs to tuners is used.
    """
    newest: dict[object, str] = {}
    for name in release.names():
        plugin = release.load(name).plugin
        if plugin is not None and plugin.api >= OLDEST_WITH_COSTS and library.is_here(name):
            newest[plugin.api, plugin.negative_excludes] = name
    return list(newest.values())


def audit(
    file: Path,
    scenarios: Sequence[Scenario],
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    timeout_s: float,
    begun: Callable[[Scenario], None] = lambda _: None,
) -> Audit:
    """Checks the tuner of a library on each communicator; scenarios of the same shape must be sorted from old to new
    releases.

    ``begun`` is called before each communicator. BadInput if the file is not a tuner, or if a release passes no costs
    to tuners. OracleUnavailable if libnccl cannot be run, OracleFailed if it fails without the tuner.
    """
    offered = interfaces(file)
    faults = _Faults()
    runs: list[AuditedRun] = []
    before: dict[tuple[int, int], Answers] = {}
    for scenario in scenarios:
        if loading.interface(release.load(scenario.nccl)).version < OLDEST_WITH_COSTS:
            first = loading.first(lambda each: each.hands_costs)
            raise BadInput(
                f"NCCL {scenario.nccl} passes no costs to a tuner, so that it cannot be audited: use {first} or later"
            )
        begun(scenario)
        nodes = sum(kind.nodes for kind in scenario.kinds)
        run = AuditedRun(scenario.nccl, nodes, scenario.ranks, taken_by(scenario.nccl, offered))
        if run.interface is None:
            faults.of("not_taken", Severity.UNLIKE, run, offered=list(offered))
            runs.append(run)
            continue
        asked = _Run(file, scenario, run, timeout_s, faults)
        made, shape = asked.made(collectives, sizes), (run.nodes, run.ranks)
        changed = _new(before.get(shape), asked.answers)
        runs.append(made if changed is None else replace(made, new_here=len(changed)))
        if changed:
            faults.of("by_release", Severity.NOTE, run, changed)
        before[shape] = asked.answers
    return Audit(file, sha256(file), offered, tuple(runs), tuple(faults.findings()))


class _Faults:
    """Collects faults as they are seen; each code becomes one finding."""

    def __init__(self) -> None:
        self._runs: dict[str, list[AuditedRun]] = defaultdict(list)
        self._calls: dict[str, list[Operation]] = defaultdict(list)
        self._kinds: dict[str, tuple[Severity, dict[str, object]]] = {}

    def of(
        self, name: str, severity: Severity, run: AuditedRun, calls: Sequence[Operation] = (), **facts: object
    ) -> None:
        """Records that the ``calls`` of a run show the fault ``name``. If a fault is recorded several times, its
        finding keeps the severity and ``facts`` of the first time.
        """
        self._kinds.setdefault(name, (severity, facts))
        self._runs[name].append(run)
        self._calls[name].extend(calls)

    def findings(self) -> Iterator[Finding]:
        """Yields a finding for each kind of fault, the worst first."""
        for severity in Severity:
            for name, (kind, facts) in self._kinds.items():
                if kind is severity:
                    yield Finding(f"audit.{name}", kind, {**facts, **self._where(name)})

    def _where(self, name: str) -> dict[str, object]:
        runs, calls = self._runs[name], self._calls[name]
        where: dict[str, object] = {
            "releases": list(dict.fromkeys(run.nccl for run in runs)),
            "ranks": list(dict.fromkeys(run.ranks for run in runs)),
        }
        if calls:
            first = calls[0]
            where |= {"calls": len(calls), "collective": first.request.collective.name, "bytes": first.bytes}
        return where


class _Stopped(Exception):
    """A process with the tuner ended, so the rest of this release and shape cannot be asked."""


class _Run:
    """Asks a tuner on one communicator in several processes: first as usual, then in reverse order, at a later time,
    and on another host.
    """

    def __init__(self, file: Path, scenario: Scenario, run: AuditedRun, timeout_s: float, faults: _Faults) -> None:
        self.run, self.timeout_s, self.faults = run, timeout_s, faults
        self.plain = replace(scenario.oracle_configuration(), plugin=None)
        self.recorded = replace(self.plain, plugin=Path(os.path.abspath(file)), record_plugin=True)
        self.answers: dict[Operation, tuple[TunedCall, TunedCall]] = {}  # without the tuner, and with it
        self._explained: set[Operation] = set()  # calls whose answers are known to differ

    def made(self, collectives: Sequence[Collective], sizes: Sequence[int]) -> AuditedRun:
        """Asks the tuner about all collectives and sizes in several processes, and returns the run with the results. If
        a process with the tuner ends early, the run has the answers up to then.
        """
        with Oracle(self.plain, self.timeout_s) as oracle:
            calls = _calls(oracle, collectives, sizes)
            own = {call: oracle.launch_tuned(call) for call in calls}
        first: dict[Operation, TunedCall] = {}
        with contextlib.suppress(_Stopped):
            self._at_home(calls, first)
            self._elsewhere(calls, first)
        self.answers = {call: (own[call], tuned) for call, tuned in first.items()}
        for tuned in first.values():
            self._answered(tuned)
        questions = [each for tuned in first.values() for each in tuned.questions]
        if not questions:
            return replace(self.run, calls=len(first))
        counts = [len(tuned.questions) for tuned in first.values()]
        took_us = [each.nanoseconds / 1000 for each in questions]
        if (usual := median(took_us)) > SLOW_US:
            self._found("slow", Severity.UNLIKE, query_us=usual, limit_us=SLOW_US)
        return replace(
            self.run,
            calls=len(first),
            least_questions=min(counts),
            most_questions=max(counts),
            query_us=usual,
            slowest_query_us=max(took_us),
            changes=tuple(_changes(self.answers.values())),
        )

    def _found(self, name: str, severity: Severity, *calls: Operation, **facts: object) -> None:
        self.faults.of(name, severity, self.run, calls, **facts)

    def _at_home(self, calls: Sequence[Operation], first: dict[Operation, TunedCall]) -> None:
        """Asks on rank 0, then repeats each call, asks it on every other rank, makes a second pass, and compares the
        answers.
        """
        with self._opened() as ask:
            again = []
            for call in calls:
                first[call] = ask(call, 0)
                again.append((call, ask(call, 0)))
            later = [(call, ask(call, 0)) for call in calls]
            others = []
            for rank, call in product(range(1, self.plain.asked_ranks), calls):
                others.append((call, ask(call, rank)))
                ask(call, rank)  # as often as rank 0
        self._compare(DRIFTS, first, again)
        self._compare(BY_ORDER, first, later)
        self._compare(BY_RANK, first, others)

    def _elsewhere(self, calls: Sequence[Operation], first: Mapping[Operation, TunedCall]) -> None:
        """Asks a new process the same calls in reverse order, at a later time and on another host."""
        for name, order, disguise in (
            (BY_ORDER, calls[::-1], None),
            (BY_CLOCK, calls, (LATER_S, False)),
            (BY_PLACE, calls, (0, True)),
        ):
            with self._opened(disguise) as ask:
                others = [(call, ask(call, 0)) for call in order]
            self._compare(name, first, others)

    def _compare(
        self, name: str, first: Mapping[Operation, TunedCall], others: Sequence[tuple[Operation, TunedCall]]
    ) -> None:
        differ = {call: None for call, tuned in others if _answer(tuned) != _answer(first[call])}
        fresh = [call for call in differ if call not in self._explained]
        if fresh:
            self._found(name, Severity.FAULT, *fresh)
            self._explained.update(fresh)

    @contextlib.contextmanager
    def _opened(self, disguise: tuple[int, bool] | None = None) -> Iterator[Callable[[Operation, int], TunedCall]]:
        """A process with the tuner. If it crashes, hangs or does not start, notes a fault and raises _Stopped."""
        asked: list[Operation] = []

        def ask(call: Operation, rank: int) -> TunedCall:
            asked[:] = [call]
            return oracle.launch_tuned(call, rank)

        try:
            with Oracle(replace(self.recorded, plugin_disguise=disguise), self.timeout_s, warned=True) as oracle:
                yield ask
        except OracleFailed as failed:
            kind = "crashes" if failed.ended else "hangs" if failed.silent else "init" if failed.returned else "fails"
            self._found(kind, Severity.FAULT, *asked, at_init=not asked, seconds=self.timeout_s, why=failed.what)
            raise _Stopped from None

    def _answered(self, tuned: TunedCall) -> None:
        """Notes the faults that a single answer shows."""
        if any(each.outside for each in tuned.questions):
            self._found("outside", Severity.FAULT, tuned.call)
        if not tuned.questions:
            return
        said = tuned.questions[-1]
        if said.result:
            self._found("refuses", Severity.FAULT, tuned.call, result=said.result)
            return
        before, after = said.before_us, said.after_us
        changed = _changed(said)
        runs = ~np.isnan(after) & (after >= 0)
        if tuned.error is not None:
            name = "call" if runs.any() else "nothing_left"
            self._found(name, Severity.FAULT, tuned.call, error=tuned.error)
        for name, where, severity in (
            ("negative", changed & (after < 0), Severity.FAULT),
            ("nan", changed & np.isnan(after), Severity.UNLIKE),
            ("impossible", changed & (before == IGNORED_US) & runs & np.isfinite(after), Severity.FAULT),
        ):
            if where.any():
                self._found(name, severity, tuned.call, cell=_name(*map(int, np.argwhere(where)[0])))
        least = runs & (after == after[runs].min()) if runs.any() else runs
        if least.sum() > 1 and (least & changed).any():
            cells = [_name(*map(int, each)) for each in np.argwhere(least)]
            self._found("tie", Severity.FAULT, tuned.call, cells=cells)
        if not 0 <= said.channels <= MOST_CHANNELS:
            self._found("channels", Severity.FAULT, tuned.call, channels=said.channels, most=MOST_CHANNELS)


def _calls(oracle: Oracle, collectives: Sequence[Collective], sizes: Sequence[int]) -> list[Operation]:
    """The calls to ask about: float32 sums, of the nearest sizes that each collective can have on the oracle's
    ranks.
    """
    fitting = dict.fromkeys(
        (kind, oracle.reachable(kind, DataType.float32, size)[0]) for kind, size in product(collectives, sizes)
    )
    return [Operation(Request(kind, DataType.float32, Op.sum), size) for kind, size in fitting]


def _changed(said: PluginQuestion) -> NDArray[np.bool_]:
    """Mask of the cells of the cost table that the tuner changed, compared bit by bit."""
    return np.asarray(said.before_us.view(np.uint32) != said.after_us.view(np.uint32))


def _answer(tuned: TunedCall) -> tuple[object, ...]:
    """Everything that a tuner answers for a call, for comparison."""
    return tuple(
        (each.channels, each.result, each.after_us[cells].tobytes(), cells.tobytes())
        for each in tuned.questions
        for cells in [_changed(each)]
    )


def _ran(tuned: TunedCall) -> tuple[object, ...] | None:
    """The launched algorithm, protocol and channels; the threads follow from these. None if no choice is known."""
    choice = tuned.choice
    return None if choice is None else (choice.algorithm, choice.protocol, choice.channels)


def _changes(answers: Iterable[tuple[TunedCall, TunedCall]]) -> Iterator[ChangedCall]:
    for own, tuned in answers:
        if own.choice is None or tuned.choice is None or _ran(own) == _ran(tuned):
            continue
        percent = None
        if own.questions:
            times_us = own.questions[-1].before_us
            own_us, tuned_us = (float(times_us[each.algo_proto]) for each in (own.choice, tuned.choice))
            if own_us > 0 and tuned_us > 0 and is_time(tuned_us):
                percent = 100 * (tuned_us / own_us - 1)
        yield ChangedCall(own.call.request.collective, own.call.bytes, own.choice, tuned.choice, percent)


def _new(before: Answers | None, now: Answers) -> list[Operation] | None:
    """Calls that run differently than under the previous release, although NCCL without the tuner runs them in the same
    way; None for the first release.
    """
    if before is None:
        return None
    both = [(call, before[call], now[call]) for call in now if call in before]
    return [call for call, old, new in both if _ran(old[0]) == _ran(new[0]) and _ran(old[1]) != _ran(new[1])]


def _name(algorithm: int, protocol: int) -> str:
    return f"{Algorithm(algorithm).name}/{Protocol(protocol).name}"
