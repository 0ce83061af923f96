"""Diagnoses traces and counters of a job, and tables of a tuner plugin."""

import re
from collections import Counter
from pathlib import Path

from tuner.base.errors import BadInput, BadTable
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity, in_words
from tuner.jobs.check_run import check as check_run
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in
from tuner.jobs.traces import flight_recorder, nsight
from tuner.jobs.traces import read as traces
from tuner.jobs.traces.calls import CallList, WantedCalls
from tuner.plugin.formats import convert
from tuner.scenario import Scenario

MOST_NAMES = 6  # of collectives
MOST_OF_START = 1 << 20  # bytes in which a trace says its devices
_DEVICE_NAME = expression(rb'"deviceProperties".{0,400}?"name": "([^"]{1,80})"', re.S)


def of_table(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding on a table of a tuner plugin: how many rows it has, or its mistake."""
    content = read_bytes(file, BadInput)
    try:
        table = convert.from_content(content, str(file))
        facts = {"rows": len(table.table.decisions), "format": table.format}
        return found_in(file, FileKind.table, [Finding("diagnose.table", Severity.NOTE, facts)], known)
    except BadTable as error:
        if (other := convert.other_nvidia(content, str(file))) is None:
            return found_in(file, FileKind.table, [in_words(Severity.FAULT, str(error))], known)
        facts = {"rows": other.rows, "columns": other.columns, "header": other.header or None, "line": other.header}
        facts |= {"short": other.columns < convert.REQUIRED or None, "least": convert.REQUIRED}
        return found_in(file, FileKind.table, [Finding("diagnose.table_unread", Severity.UNLIKE, facts)], known)


def of_trace(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on a list or trace of calls; BadInput if it is one, but cannot be read."""
    try:
        calls = traces.read(file, 1 if known.machine is None and known.topology is None else known.scenario().ranks)
    except BadInput as error:
        start = read_bytes(file, BadInput)[:4096].lstrip().lower()
        is_one = traces.JSON.match(start) or start.startswith(nsight.REPORT.lower())
        if not isinstance(error, traces.UnknownFormat) and (is_one or b"collective" in start.splitlines()[0]):
            raise
        return found_in(file, FileKind.unknown, [Finding("diagnose.nothing_of_nccl", Severity.UNKNOWN, {})], known)
    notes = [in_words(Severity.NOTE, each) for each in calls.notes]
    if calls.kind == flight_recorder.KIND:
        found = [Finding("diagnose.dump_alone", Severity.UNKNOWN, {}), *notes]
        return found_in(file, FileKind.trace, found, known)
    if not calls.calls:
        found = [Finding("diagnose.trace_without_calls", Severity.UNKNOWN, {"kind": calls.kind}), *notes]
        return found_in(file, FileKind.trace, found, known)
    shown = _shown(file, calls)
    if known.machine is None and known.topology is None:
        found = [shown, Finding("diagnose.trace_alone", Severity.NOTE, {})]
        return found_in(file, FileKind.trace, found, known)
    scenario = known.scenario()
    sizes = {call.ranks for call in calls.calls if call.ranks is not None}
    if sizes and scenario.ranks not in sizes and max(sizes) < scenario.ranks:
        # of a part of the machine, which the trace does not say: not compared with what all of it would do
        facts = {"ranks": sorted(sizes), "of": scenario.ranks, "most": max(sizes) - 1}
        return found_in(file, FileKind.trace, [shown, Finding("diagnose.trace_of_a_part", Severity.NOTE, facts)], known)
    known.learn(file, nccl=next(iter(calls.releases), None), nodes=_nodes_of(calls, scenario))
    scenario = known.scenario()
    seen = check_run([calls], scenario, WantedCalls(scenario.ranks, scenario.ranks))
    facts = {"agreeing": seen.agreeing_calls, "compared": seen.compared_calls, "on": str(seen.communicator)}
    severity = Severity.FAULT if seen.differing else Severity.NOTE
    found = [Finding("diagnose.calls_compared", severity, facts), shown]
    for each in seen.differing:
        picks = each.emulated_in_words or "nothing"
        facts = {"collective": each.collective.name, "bytes": each.bytes, "ran": each.executed_in_words, "picks": picks}
        found.append(Finding("diagnose.ran_otherwise", Severity.NOTE, facts))
    found += [in_words(Severity.NOTE, each) for each in seen.notes]
    return found_in(file, FileKind.trace, found, known)


def _shown(file: Path, calls: CallList) -> Finding:
    """The finding that says what a trace shows of its job: calls, ranks, release and GPU."""
    counts = Counter[str]()
    for call in calls.calls:
        counts[call.name] += round(call.calls)
    sizes = sorted({call.ranks for call in calls.calls if call.ranks is not None})
    start = read_bytes(file, BadInput)[:MOST_OF_START]
    gpu = _DEVICE_NAME.search(start) if b"deviceProperties" in start else None
    facts = {
        "kind": calls.kind,
        "calls": [f"{count} {name}" for name, count in counts.most_common(MOST_NAMES)],
        "more": len(counts) - MOST_NAMES if len(counts) > MOST_NAMES else None,
        "ranks": sizes or None,
        "releases": list(calls.releases) or None,
        "gpu": gpu[1].decode("utf-8", "replace") if gpu else None,
    }
    return Finding("diagnose.trace", Severity.NOTE, facts)


def _nodes_of(calls: CallList, of_node: Scenario) -> int | None:
    """Number of nodes of the largest communicator whose calls say what ran; None if the calls do not say their
    ranks.
    """
    ranks = max((call.ranks or 0 for call in calls.executed), default=0)
    return ranks // of_node.ranks if ranks and ranks % of_node.ranks == 0 else None
