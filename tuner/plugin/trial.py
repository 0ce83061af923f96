"""Tries a decision table on one communicator: for each size, NCCL's own pick and the pick with the table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import is_time, shortest
from tuner.base.records import json_form
from tuner.emulator.group import GroupPlan, Operation, Tuned, plan, scheduled_channels
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Selection
from tuner.plugin.asked import AskedPlugin, opened
from tuner.plugin.dry_run import DecidingRows, LogLine


class Say(Enum):
    """How much of a call's choice a tuner can decide: nothing, its protocol, or all of it."""

    none = "no say"  # NCCL asks no tuner, or ignores the answer
    protocol = "its protocol"  # NCCL uses a symmetric kernel only if the answer is LL
    choice = "its choice"  # the call is carried by an algorithm


@dataclass(frozen=True, slots=True)
class Bypass:
    """The symmetric kernel or copy engine that carries a call instead of an algorithm.

    ``channels`` is the kernel's number of blocks.

    ``time_us`` comes from NCCL's model of symmetric kernels, which is another one than that of algorithms; None for
    copy engines.
    """

    name: str
    channels: int
    threads: int
    time_us: float | None


def bypass_of(selection: Selection, request: Request, size: int, path: NonClassicPath) -> Bypass:
    """Describes ``path``, by which a call of ``size`` bytes (nBytes) bypasses the algorithms."""
    times_us = (
        shortest(each.time_us)
        for each in symmetric.weighed(selection.communicator, request, size)
        if each.kernel == path.kernel
    )
    return Bypass(path.name, path.blocks, path.threads, next(times_us, None))


class ProtocolOfTuner:
    """Answers which protocol a call would use after the plugin's answer if an algorithm carried it (the classic path).

    Some releases of NCCL determine this protocol before they give a call to a low-latency symmetric kernel.
    """

    def __init__(self, asked: AskedPlugin) -> None:
        self._asked = asked
        self._question: tuple[Request, int] | None = None

    def __call__(self, request: Request, size: int) -> Protocol | None:
        """The protocol for ``size`` bytes (nBytes); None if the classic path has no algorithm for the call."""
        self._question = request, size
        try:
            return self._asked(request, size).algo_proto[1]
        except NoAlgorithm:
            return None

    def say(self, path: NonClassicPath | None) -> Say:
        """How much of the last call's choice the tuner could decide, if NCCL runs the call by ``path``.

        None stands for the classic path: an algorithm.
        """
        if path is None:
            return Say.choice
        return Say.none if self._question is None else Say.protocol

    def rows(self) -> DecidingRows:
        """The rows that decided the protocol; empty if NCCL did not ask for the protocol."""
        if self._question is None:
            return DecidingRows()
        (costs_us,) = self._asked.selection.cost_table(*self._question)
        return self._asked.rows(self._asked.call(*self._question), costs_us)


def _known(time_us: float) -> float | None:
    return time_us if time_us >= 0 else None


@dataclass(frozen=True, slots=True)
class TrialPick:
    """A pick in a trial.

    ``time_us`` is negative if NCCL computes no time for the combination. If NCCL computes a value, but never picks the
    combination by itself, :func:`tuner.base.numerics.is_time` is false for that value.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    time_us: float = field(metadata=json_form(convert=_known))


@dataclass(frozen=True, slots=True)
class FittedPick(TrialPick):
    """NCCL's own pick with the time that fitted constants give, compared with the time of the pick with the table.

    ``saved_percent``: how much less time the table's pick takes; negative if it takes more, None if a time is unknown.
    """

    saved_percent: float | None


@dataclass(frozen=True, slots=True)
class TableTrial:
    """A trial of one size.

    ``decision`` is the line of the row that names the pick with the table; ``cost`` is the line of the row that gives
    the time of this pick.

    ``unavailable`` is the line of the first matching row, if NCCL can run none of its choices here and no other row
    decides. Channels that the table sets are an upper bound.

    If symmetric kernels or copy engines may run calls, ``tuner`` says what a tuner can still decide about this call.
    ``own_bypass`` is the call's path without the table, ``bypass`` its path with the table; None if an algorithm is
    used.
    """

    bytes: int
    own: TrialPick | None = field(metadata=json_form("nccl"))
    picked: TrialPick | None = field(metadata=json_form("table"))
    decision: int | None = field(default=None, metadata=json_form("decision_line"))
    cost: int | None = field(default=None, metadata=json_form("cost_line"))
    unavailable: int | None = field(default=None, metadata=json_form("unavailable_line"))
    # The pick with fitted constants alone
    fitted: FittedPick | None = field(default=None, metadata=json_form(optional=True))
    tuner: Say | None = field(default=None, metadata=json_form(optional=True))
    own_bypass: Bypass | None = field(default=None, metadata=json_form("nccl_bypass", optional=True))
    bypass: Bypass | None = field(default=None, metadata=json_form("table_bypass", optional=True))


@dataclass(frozen=True, slots=True)
class Trials:
    """Answers of a plugin that was asked for each size."""

    interface: int  # version of NCCL's tuner interface
    sizes: tuple[TableTrial, ...]
    log: tuple[LogLine, ...]  # lines of the plugin in NCCL's log
    ignored: str | None = field(default=None, metadata=json_form(optional=True))  # why the plugin ignores the table


def run(
    table: Path,
    selection: Selection,
    request: Request,
    sizes: Sequence[int],
    settings: Mapping[str, str] | None = None,
) -> Trials:
    """Asks the plugin's own code about each size, with the emulated cost table.

    ``settings`` are the plugin's own variables, NCCL_TUNER_*. BadTable if the plugin cannot use the table, BadInput for
    a release without plugins, NoAlgorithm if NCCL finds no algorithm.
    """
    with opened(table, selection, settings) as asked:
        if selection.may_leave_classic_path(request):
            trials = tuple(_may_bypass(asked, request, sizes))
        else:
            trials = tuple(_trials(asked, request, sizes))
    return Trials(asked.interface.version, trials, () if asked.ignored else tuple(asked.plugin.log), asked.ignored)


def against_nccl(trials: Trials, nccl: Selection, fitted: Selection, request: Request) -> Trials:
    """Adds NCCL's own picks to trials that were made with fitted constants: ``nccl`` is the selection with NCCL's
    constants, ``fitted`` that with the fitted ones."""
    return replace(trials, sizes=tuple(_against_nccl(each, nccl, fitted, request) for each in trials.sizes))


def _against_nccl(trial: TableTrial, nccl: Selection, fitted: Selection, request: Request) -> TableTrial:
    if trial.picked is None or trial.own is None:
        return trial
    (path,) = nccl.non_classic_paths(request, [trial.bytes])
    if path is not None:
        return replace(trial, own=None, own_bypass=bypass_of(nccl, request, trial.bytes, path))
    (own,) = _own(nccl, request, [trial.bytes])
    time_us = shortest(fitted.cost_table(request, [trial.bytes])[0][own.algorithm, own.protocol])
    known = time_us > 0 and trial.picked.time_us >= 0 and is_time(trial.picked.time_us)
    saved_percent = 100 * (1 - trial.picked.time_us / time_us) if known else None
    return replace(trial, fitted=FittedPick(own.algorithm, own.protocol, own.channels, time_us, saved_percent))


@dataclass(frozen=True, slots=True)
class GroupTrial:
    """A group of equal calls: the number of blocks in each kernel's grid, without the table and with it."""

    bytes: int  # size of each call
    calls: int
    own: tuple[int, ...] = field(metadata=json_form("nccl"))
    tuned: tuple[int, ...] = field(metadata=json_form("table"))


def grouped(
    table: Path,
    selection: Selection,
    groups: Sequence[Sequence[Operation]],
    settings: Mapping[str, str] | None = None,
) -> tuple[GroupTrial, ...]:
    """Plans each group with and without the table.

    BadTable if the plugin cannot use the table, BadInput if the group is not emulated, NoAlgorithm if NCCL finds no
    algorithm.
    """
    with opened(table, selection, settings) as asked:
        return tuple(
            GroupTrial(
                operations[0].bytes,
                len(operations),
                _grids(plan(selection, operations)),
                _grids(plan(selection, operations, asked)),
            )
            for operations in groups
        )


def _grids(group: GroupPlan) -> tuple[int, ...]:
    return tuple(len(kernel.channels) for kernel in group.kernels)


def _may_bypass(asked: AskedPlugin, request: Request, sizes: Sequence[int]) -> Iterator[TableTrial]:
    """Tries calls that may bypass the algorithms; for some of them the tuner decides whether they do."""
    selection = asked.selection
    for size, own_path in zip(sizes, selection.non_classic_paths(request, sizes), strict=True):
        protocol = ProtocolOfTuner(asked)
        (path,) = selection.non_classic_paths(request, [size], protocol)
        if path is None:
            (trial,) = _trials(asked, request, [size])
        else:
            decision = None if own_path == path else protocol.rows().decision
            taken = bypass_of(selection, request, size, path)
            trial = TableTrial(size, None, None, decision, bypass=taken)
        if own_path is not None:
            trial = replace(trial, own=None, own_bypass=bypass_of(selection, request, size, own_path))
        elif path is not None:
            trial = replace(trial, own=_own(selection, request, [size])[0])
        yield replace(trial, tuner=protocol.say(path))


def _own(selection: Selection, request: Request, sizes: Sequence[int]) -> list[TrialPick]:
    """NCCL's own picks, one per size."""
    picks = selection.classic_pick(request, sizes)
    columns = zip(picks.algo_protos(), picks.channels.tolist(), picks.time_us, strict=True)
    return [TrialPick(*algo_proto, channels, shortest(time_us)) for algo_proto, channels, time_us in columns]


def _trials(asked: AskedPlugin, request: Request, sizes: Sequence[int]) -> Iterator[TableTrial]:
    selection = asked.selection
    picks, costs_us = _own(selection, request, sizes), selection.cost_table(request, sizes)
    for size, own, cost_us in zip(sizes, picks, costs_us, strict=True):
        call = asked.call(request, int(size))
        tuned = asked.answer(call, cost_us)
        picked = own if tuned is None else _launched(selection, request, call.bytes, tuned)
        yield _with_rows(TableTrial(call.bytes, own, picked), asked.rows(call, cost_us))


def _launched(selection: Selection, request: Request, size: int, tuned: Tuned) -> TrialPick:
    own = selection.channels(request, size, tuned.algo_proto)
    channels = scheduled_channels(selection, Operation(request, size), tuned) if tuned.channels else own
    return TrialPick(*tuned.algo_proto, channels, shortest(tuned.time_us))


def _with_rows(trial: TableTrial, rows: DecidingRows) -> TableTrial:
    """Adds the lines of the rows that decided."""
    picked = trial.picked
    if picked is None or picked is trial.own:  # the same object means NCCL's own pick, whatever the rows say
        return replace(trial, unavailable=rows.unavailable)
    cost = rows.costs.get((picked.algorithm, picked.protocol))
    return replace(trial, decision=rows.decision, cost=cost, unavailable=rows.unavailable)
