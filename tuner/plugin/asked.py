"""Asks the plugin with a decision table about one emulated communicator, as a release of NCCL would ask it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTable
from tuner.base.names import ALGO_PROTOS, Algorithm
from tuner.base.nouns import Span
from tuner.base.numerics import FloatArray, SizeArray
from tuner.base.records import sha256
from tuner.emulator.communicator import Comm
from tuner.emulator.group import Tuned
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, registered
from tuner.emulator.selection import Selection
from tuner.emulator.tuner_plugin import ChunkQuestion, TunerAnswers, TunerPlugin, TunerQuestion
from tuner.plugin import headers, loading
from tuner.plugin.dry_run import CommunicatorSize, DecidingRows, DryRun, PluginRefused, TunerCall
from tuner.plugin.formats import convert
from tuner.plugin.loading import Interface
from tuner.plugin.table.records import Table


@contextmanager
def opened(table: Path, selection: Selection, settings: Mapping[str, str] | None = None) -> Iterator["AskedPlugin"]:
    """Opens the plugin for the selection's communicator; ``settings`` are the plugin's own variables, NCCL_TUNER_*.

    A table for other releases is ignored, as in a job: the result's ``ignored`` says why.

    BadTable if the plugin cannot use the table, BadInput for a release without plugins.
    """
    communicator = selection.communicator
    interface = loading.interface(communicator.release)
    masks = {name: communicator.environment.values.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    env = {**(settings or {}), **{name: text for name, text in masks.items() if text}}
    ignored = of_other_releases(table, communicator.release.name)
    if ignored is not None and env.get("NCCL_TUNER_STRICT") == "1":
        raise BadTable(ignored)
    if ignored is None:
        env |= strict(table)
    used = table if ignored is None else None
    try:
        plugin = DryRun.of(used, size(communicator, interface), version=interface.version, env=env)
    except PluginRefused as refused:
        raise BadTable(refused.why) from None
    with plugin:
        yield AskedPlugin(plugin, interface, selection, ignored)


def of_other_releases(table: Path, running: str) -> str | None:
    """Why the plugin ignores a table in this release of NCCL: the table names other releases (csrc/plugin/tuner.c).

    None if the plugin uses the table. Also None for a file that cannot be read: the plugin itself reports that.
    """
    others = other_releases(table, running)
    if others is None:
        return None
    return f"{table} is for NCCL {others}, and this is {running}: the plugin ignores the whole table"


def other_releases(table: Path, running: str) -> str | None:
    """The releases that a table names, if ``running`` is not among them. None if it is, if the table names no release,
    or if it cannot be read.
    """
    try:
        named = convert.read(table).table.provenance.get(headers.NCCL)
    except BadTable:
        return None
    return None if not named or running in [word.strip() for word in named.split(",")] else named


def strict(table: Path) -> dict[str, str]:
    """Variables that make the plugin refuse a table that has a mistake, or that changes after this call."""
    pinned = {"NCCL_TUNER_TABLE_SHA256": sha256(table)} if table.is_file() else {}
    return {"NCCL_TUNER_STRICT": "1", **pinned}


def size(communicator: Comm, interface: Interface) -> CommunicatorSize:
    """Size of the communicator as NCCL reports it to plugins.

    As NVLink domains, NCCL reports the number of nodes (initNvlDomainInfo, init.cc, v2.28.9-1).
    """
    domains = communicator.nodes if interface.says_domains else None
    return CommunicatorSize(communicator.ranks, communicator.nodes, domains)


@dataclass(frozen=True, slots=True)
class AskedPlugin:
    """An open plugin, the interface by which NCCL calls it, and the selection that computes NCCL's cost tables."""

    plugin: DryRun
    interface: Interface
    selection: Selection
    ignored: str | None = None  # why the plugin ignores the table

    def __call__(self, request: Request, size: int) -> Tuned:
        """Answers for a call in a group, as a :data:`tuner.emulator.group.Tuner`. BadInput for releases before 2.21, in
        which groups with a table are not emulated."""
        if not self.interface.says_who_asks:
            release = self.selection.communicator.release.name
            raise BadInput(f"groups with a table are not emulated for NCCL {release}: use 2.21 or later")
        tuned = self.answer(self.call(request, size), self.selection.cost_table(request, size)[0])
        if tuned is None:
            picks = self.selection.classic_pick(request, size)
            return Tuned(picks.algo_protos()[0], picks.time_us[0])
        return tuned

    def call(self, request: Request, size: int) -> TunerCall:
        """Describes a call of ``size`` bytes (nBytes) as NCCL describes it to the plugin."""
        communicator = self.selection.communicator
        return TunerCall(
            request.collective,
            size,
            pipelined=request.pipelined,
            registered=self.interface.knows_registered and registered.keeps(communicator, request),
            collnet=candidate.collnet_supports_operation(communicator, request, Algorithm.CollNetDirect) is None,
            nvls=candidate.nvls_reduces_every_operation(communicator, request, Algorithm.NVLS) is None,
        )

    def answer(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """What NCCL runs after the plugin's answer; None if it runs its own pick.

        ``cost_us`` is NCCL's cost table in us, indexed `[algorithm][protocol]`.
        """
        return self._by_costs(call, cost_us) if self.interface.hands_costs else self._by_name(call, cost_us)

    def answers(self, request: Request, nbytes: SizeArray, costs_us: FloatArray) -> TunerAnswers:
        """:meth:`answer` for many sizes. ``costs_us`` has the cost tables in us, indexed
        [size][algorithm][protocol]."""
        answers = TunerAnswers.none(len(nbytes))
        if not len(nbytes):
            return answers
        first = self.call(request, int(nbytes[0]))
        calls = [replace(first, bytes=size) for size in nbytes.tolist()]
        if not self.interface.hands_costs:
            for at, (call, cost_us) in enumerate(zip(calls, costs_us, strict=True)):
                if (tuned := self._by_name(call, cost_us)) is not None:
                    answers.cell[at], answers.channels[at] = ALGO_PROTOS.index(tuned.algo_proto), tuned.channels
            return answers
        left_us, channels = self._left(calls, costs_us)
        own = ~(costs_us >= 0).any(axis=(1, 2)) & (left_us == costs_us).all(axis=(1, 2))
        if not own.all():
            answers.cell[~own], _ = self.selection.pick_by(left_us[~own], costs_us[~own])
            answers.channels[~own] = channels[~own]
        return answers

    def rows(self, call: TunerCall, cost_us: FloatArray) -> DecidingRows:
        """The rows of the table that decide the call. ``cost_us`` is NCCL's cost table in us, indexed
        [algorithm][protocol]."""
        return self.plugin.rows(call, cost_us[: self._algorithms])

    def _by_costs(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """What NCCL runs by the changed cost table. None if no algorithm had a cost and the plugin changed nothing:
        NCCL falls back on Ring."""
        left_us, channels = self._left([call], cost_us[None])
        if not (cost_us >= 0).any() and np.array_equal(left_us[0], cost_us):
            return None
        best, time_us = self.selection.pick_by(left_us, cost_us[None])
        # NCCL_CTA_POLICY, which may have moved NCCL's own pick, counts for nothing once a tuner is loaded.
        return Tuned(ALGO_PROTOS[best[0]], time_us[0], int(channels[0]))

    def _left(self, calls: Sequence[TunerCall], costs_us: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
        """The cost tables as the plugin changed them, in us, indexed [call][algorithm][protocol], and the channels that
        it asks for."""
        count = self._algorithms
        left_us, channels = costs_us.copy(), np.zeros(len(calls), np.int64)
        for at, call in enumerate(calls):
            answer = self.plugin.ask(call, costs_us[at, :count])
            left_us[at, :count], channels[at] = answer.cost_us, answer.channels
        return left_us, channels

    def _by_name(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """The algorithm and protocol that the plugin names, with the time that NCCL computes for them; None if it names
        none."""
        choice, channels = self.plugin.name(call)
        return None if choice is None else Tuned(choice, cost_us[choice], channels)

    @property
    def _algorithms(self) -> int:
        """Number of algorithms in a cost table of this release."""
        return self.selection.communicator.release.limits.algorithms


LOOKED_UP_SINCE = 2  # first interface of the releases in which NCCL looks for tuners that are not named


@dataclass(frozen=True)  # no slots, because the table is read once and kept
class FileTuner:
    """This project's plugin with a file of the format ``table`` or ``nvidia``.

    For calls that the file does not decide, the plugin asks the tuner ``following``. If ``by_default`` is false,
    NCCL_TUNER_NEXT names that tuner. If it is true, it is the tuner that NCCL would have loaded without this plugin;
    2.19 and 2.20 look for none, so there the plugin asks nobody.
    """

    format: str
    file: Path
    following: TunerPlugin | None = None
    by_default: bool = False

    @property
    def title(self) -> str:
        """Name in the form in which users ask for it: ``table:pod.table``."""
        own = f"{self.format}:{self.file}"
        return own if self.following is None else f"{own}, then {self.following.title}"

    @property
    def settings(self) -> Mapping[str, str]:
        """The NCCL variables that the following tuner sets."""
        return {} if self.following is None else self.following.settings

    @cached_property
    def _table(self) -> Table:
        read = convert.read(self.file)
        if read.format != self.format:
            raise BadTable(f"{self.file}: of the format {read.format}, not {self.format}; valid: {read.format}:FILE")
        return read.table

    def _followed_by(self, communicator: Comm) -> TunerPlugin | None:
        version = loading.interface(communicator.release).version
        return None if self.by_default and version < LOOKED_UP_SINCE else self.following

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        """The algorithms, protocols and channels that the file chooses. BadTable for a mistake in the file, BadInput
        for a release without plugins."""
        _ = self._table  # raises the error that says what is wrong with the file
        answers = TunerAnswers.none(len(question.nbytes))
        following = self._followed_by(question.communicator)
        undecided = np.zeros(len(question.nbytes), np.bool_)
        selection = Selection(replace(question.communicator, tuner=None))
        costs_us = question.cost_table_us
        with opened(self.file, selection) as asked:
            if following is not None:
                for at, size in enumerate(question.nbytes.tolist()):
                    undecided[at] = asked.rows(asked.call(question.request, size), costs_us[at]).undecided
            own = asked.answers(question.request, question.nbytes[~undecided], costs_us[~undecided])
            answers.cell[~undecided], answers.channels[~undecided] = own.cell, own.channels
        if following is not None and undecided.any():
            theirs = following.answers(question)
            answers.cell[undecided], answers.channels[undecided] = theirs.cell[undecided], theirs.channels[undecided]
        return answers

    def breaks(self, communicator: Comm, request: Request) -> Sequence[int]:
        """The sizes in bytes at which the tuner's answer may change.

        These are the sizes at which a row of the file begins or ends, the sizes just before, and the breaks of the
        following tuner.
        """
        rows = (*self._table.decisions, *self._table.costs)
        starts = {start for row in rows for start in _starts(row.bytes, 1)}
        starts |= {start for row in rows for start in _starts(row.bytes_per_rank, communicator.ranks)}
        ends = {start + more for start in starts for more in (-1, 0) if 0 < start + more < 2**62}
        following = self._followed_by(communicator)
        return sorted(ends if following is None else ends.union(following.breaks(communicator, request)))

    def may_flicker(self, communicator: Comm, request: Request) -> bool:
        """Whether rounding decides some answers of the tuner that is asked after the table.

        It decides none of the table's own, whose rows are ranges of sizes.
        """
        following = self._followed_by(communicator)
        return following is not None and following.may_flicker(communicator, request)

    def why_not(self, communicator: Comm) -> str | None:
        """Why the plugin ignores the file, if the file is for other releases and no tuner follows; else None."""
        return of_other_releases(self.file, communicator.release.name) if self.following is None else None

    def ignored_by(self, release: str) -> str | None:
        """The releases that the file is for, if ``release`` is none of them; else None.

        The plugin ignores a file that is for other releases.
        """
        return other_releases(self.file, release)

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        """The chunk size in bytes that the deciding row sets, or else the following tuner.

        None if neither sets it, or if NCCL does not ask for it.
        """
        communicator, request = question.communicator, question.request
        if not loading.interface(communicator.release).asks_chunks:
            return None
        following = self._followed_by(communicator)
        theirs = None if following is None else following.chunk_bytes(question)
        if theirs is None and not self._has_chunks:
            return None
        selection = Selection(replace(communicator, tuner=None))
        costs_us = selection.cost_table(request, question.call_bytes)[0]
        with opened(self.file, selection) as asked:
            call = asked.call(request, question.call_bytes)
            if theirs is not None and asked.rows(call, costs_us).undecided:
                return theirs
            asked.answer(call, costs_us)
            return asked.plugin.chunk_bytes(request.collective, *question.algo_proto, question.chunk_bytes)

    def chunks_follow_choices(self, communicator: Comm) -> bool:
        """Whether a row of the file or the following tuner may set chunk sizes."""
        asks = loading.interface(communicator.release).asks_chunks
        return asks and (self._has_chunks or self._followed_by(communicator) is not None)

    @property
    def _has_chunks(self) -> bool:
        return any(choice.chunk_bytes for row in self._table.decisions for choice in row.choices)


def _starts(interval: Span, ranks: int) -> list[int]:
    ends = [] if interval.high is None else [(interval.high + 1) * ranks]
    return [interval.low * ranks, *ends]
