"""Finds faults of a decision table for one release of NCCL, and on one of its communicators."""

from collections.abc import Iterator

from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Span
from tuner.base.sizes import ranks_on_nodes
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.bounds import NVLS
from tuner.emulator.rules.candidate import COLLNET
from tuner.emulator.selection import Selection
from tuner.plugin import headers, loading
from tuner.plugin.headers import ERROR, NOTE, WARNING, TableFinding
from tuner.plugin.lint import cells, exists, name
from tuner.plugin.table import boxes
from tuner.plugin.table.records import ANY_BYTES, ANY_COUNT, Conditions, CostRow, Decision, Table, TableChoice
from tuner.release import Release

SUMS = (Collective.ReduceScatter, Collective.AllReduce)
UNCHECKED = "NCCL_TUNER_UNCHECKED=1"


def check_release(table: Table, release: Release) -> list[TableFinding]:
    """Finds what does not work in this release on any communicator."""
    if not loading.has_plugins(release):
        return [TableFinding(1, ERROR, f"NCCL {release.name} loads no tuner plugin")]
    return [
        *headers.check_release(table, release.name),
        *_constants(table, release),
        *_missing(table, release),
        *_settings(table, release),
        *_domains(table, release),
    ]


def check_communicator(table: Table, communicator: Comm, dtype: DataType, op: Op) -> list[TableFinding]:
    """Finds rows that NCCL cannot follow on this communicator, for calls of this type and operation. Rows for other
    communicators are skipped."""
    if not loading.has_plugins(communicator.release):
        return []
    selection = Selection(communicator)
    excluded = {one: selection.excluded(Request(one, dtype, op)) for one in Collective}
    findings: list[TableFinding] = []
    for row in _rows(table):
        if not _applies(row, communicator):
            shape = ranks_on_nodes(communicator.ranks, communicator.nodes)
            findings.append(TableFinding(row.line, NOTE, f"does not apply to this communicator of {shape}"))
            continue
        for algo_proto in cells(row):
            known = exists(row.collective, *algo_proto) and algo_proto[0] in _algorithms(
                communicator.release, row.collective
            )
            if known and algo_proto in excluded[row.collective]:
                reason = excluded[row.collective][algo_proto]
                findings.append(TableFinding(row.line, WARNING, f"{name(algo_proto)} cannot run here: {reason}"))
        if isinstance(row, Decision):
            findings.extend(_channels(row, communicator))
    return findings


def check_types(table: Table, communicator: Comm) -> list[TableFinding]:
    """Notes, at the first row for Ring, if rows for Ring have no effect on sums of 8-bit floats (fp8) here."""
    if not {timing.deep_fp8_ring, timing.deep_fp8_ring_where_available}.intersection(communicator.rules.penalty):
        return []
    for row in table.decisions:
        rings = any(choice.algorithm is Algorithm.Ring for choice in row.named)
        if rings and row.collective in SUMS and communicator.ranks > 8 and _applies(row, communicator):
            reason = (
                "no effect on 8-bit sums (fp8) of more than 8 ranks, for which NCCL "
                f"{communicator.release.name} puts Ring last: the plugin keeps that"
            )
            return [TableFinding(row.line, NOTE, reason)]
    return []


def _rows(table: Table) -> list[Decision | CostRow]:
    return [*table.decisions, *table.costs]


def _applies(row: Conditions, communicator: Comm) -> bool:
    ranks, nodes = communicator.ranks, communicator.nodes
    domains = ANY_COUNT
    if loading.interface(communicator.release).says_domains:
        domains = Span(nodes, nodes)  # in NCCL's own count, as in tuner.plugin.asked
    here = Decision(row.collective, (), ranks=Span(ranks, ranks), nodes=Span(nodes, nodes), nvlink_domains=domains)
    mine, other = boxes.of(row), boxes.of(here)
    return mine is not None and other is not None and boxes.common(mine, other) is not None


def _constants(table: Table, release: Release) -> Iterator[TableFinding]:
    interface = loading.interface(release)
    if interface.hands_constants and interface.keeps_constants:
        return
    since = loading.first(lambda interface: interface.hands_constants)
    lost = "writes its own constants over those that a plugin sets"
    why = lost if interface.hands_constants else f"hands constants to no plugin; valid: {since} and later"
    for constant in table.constants:
        yield TableFinding(constant.line, WARNING, f"NCCL {release.name} {why}")


def _missing(table: Table, release: Release) -> Iterator[TableFinding]:
    """The algorithms that this release does not have for the collective."""
    for row in _rows(table):
        for algo_proto in cells(row):
            if exists(row.collective, *algo_proto) and algo_proto[0] not in _algorithms(release, row.collective):
                reason = f"NCCL {release.name} does not run {row.collective.name} by {algo_proto[0].name}"
                yield TableFinding(row.line, WARNING, reason)


def _algorithms(release: Release, collective: Collective) -> list[Algorithm]:
    return list(release.rules.exists[collective])


def _settings(table: Table, release: Release) -> Iterator[TableFinding]:
    interface = loading.interface(release)
    for row in table.decisions:
        if row.registered and not interface.knows_registered:
            since = loading.first(lambda interface: interface.knows_registered)
            reason = f"never matches: NCCL {release.name} does not report registered buffers; valid: {since} and later"
            yield TableFinding(row.line, WARNING, reason)
        if not interface.hands_costs and any(choice.protocol is Protocol.LL128 for choice in row.named):
            reason = f"NCCL {release.name} does not check that LL128 is safe; the plugin takes it only with {UNCHECKED}"
            yield TableFinding(row.line, WARNING, reason)
        if not interface.asks_chunks and any(choice.chunk_bytes is not None for choice in row.named):
            since = loading.first(lambda interface: interface.asks_chunks)
            reason = f"NCCL {release.name} asks no plugin for the chunk size; valid: {since} and later"
            yield TableFinding(row.line, WARNING, reason)
        if not interface.says_who_asks and any(choice.channels is not None for choice in row.named):
            reason = f"NCCL {release.name} does not check channels; the plugin passes them on only with {UNCHECKED}"
            yield TableFinding(row.line, WARNING, reason)
    if not interface.says_who_asks:
        for line, what in _shaped(table):
            reason = f"NCCL {release.name} does not say which communicator asks: {what}, unless {UNCHECKED}"
            yield TableFinding(line, WARNING, reason)
    if not interface.hands_costs:
        for cost in table.costs:
            reason = f"NCCL {release.name} hands no costs to a plugin: the table's compete with each other only"
            yield TableFinding(cost.line, NOTE, reason)


def _domains(table: Table, release: Release) -> Iterator[TableFinding]:
    if loading.interface(release).says_domains:
        return
    since = loading.first(lambda interface: interface.says_domains)
    for row in _rows(table):
        if row.nvlink_domains != ANY_COUNT:
            own = "the choice stays NCCL's there" if isinstance(row, Decision) else "the cost has no effect"
            reason = (
                f"NCCL {release.name} does not say how many NVLink domains there are: {own}; valid: {since} and later"
            )
            yield TableFinding(row.line, WARNING, reason)


def _shaped(table: Table) -> Iterator[tuple[int, str]]:
    """Yields the line of each row with conditions on ranks or nodes, and what the row does in a release that does not
    tell plugins these numbers."""
    for row in _rows(table):
        sized = row.bytes_per_rank != ANY_BYTES or row.ranks_per_node is not None
        if sized or row.ranks != ANY_COUNT or row.nodes != ANY_COUNT:
            yield row.line, "the choice stays NCCL's there" if isinstance(row, Decision) else "the cost has no effect"


def _channels(row: Decision, communicator: Comm) -> Iterator[TableFinding]:
    for choice in row.named:
        if choice.channels is None:
            continue
        if choice.algorithm in COLLNET or (choice.algorithm is Algorithm.NVLS and communicator.nodes > 1):
            reason = f"the plugin keeps NCCL's channels for {name(choice.algo_proto)} here: NCCL would not check others"
            yield TableFinding(row.line, WARNING, reason)
        elif choice.channels > (most := _most_channels(choice, communicator)):
            reason = f"channels={choice.channels} of {name(choice.algo_proto)}: this communicator has {most}"
            yield TableFinding(row.line, NOTE, reason)


def _most_channels(choice: TableChoice, communicator: Comm) -> int:
    return communicator.nvls_channels if choice.algorithm in NVLS else communicator.channels
