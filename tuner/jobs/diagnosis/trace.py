"""Diagnosis of what ran: traces and counters of a job; and of tables of a tuner plugin."""

from pathlib import Path

from tuner.base.errors import BadInput, BadTable
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity
from tuner.base.sizes import human_bytes
from tuner.jobs.check_run import check as check_run
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in, in_sentences
from tuner.jobs.traces import flight_recorder, nsight
from tuner.jobs.traces import read as traces
from tuner.jobs.traces.calls import CallList, WantedCalls
from tuner.plugin.formats import convert
from tuner.scenario import Scenario

KNOWN_FILES = (
    "valid: a log of NCCL, a topology that it dumped, what nccl-tests, ncclras, nvidia-smi topo or lstopo printed, "
    "a trace or counters of a job, a folder of preflight records, of Flight Recorder dumps or of NCCL_TUNER_JOB"
)


def of_table(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding of a table of a tuner plugin: how many rows it has, or its mistake."""
    content = read_bytes(file, BadInput)
    try:
        table = convert.from_content(content, str(file))
        facts = {"rows": len(table.table.decisions), "format": table.format}
        return found_in(file, FileKind.table, [Finding("diagnose.table", Severity.NOTE, facts)], known)
    except BadTable as error:
        if (other := convert.other_nvidia(content, str(file))) is None:
            return in_sentences(file, FileKind.table, Severity.FAULT, str(error), (), known)
        facts = {"rows": other.rows, "columns": other.columns, "header": other.header or None, "line": other.header}
        facts |= {"short": other.columns < convert.REQUIRED or None, "least": convert.REQUIRED}
        return found_in(file, FileKind.table, [Finding("diagnose.table_unread", Severity.UNLIKE, facts)], known)


def of_trace(file: Path, known: KnownFacts) -> FileDiagnosis:
    try:
        calls = traces.read(file, 1 if known.machine is None and known.topology is None else known.scenario().ranks)
    except BadInput as error:
        start = read_bytes(file, BadInput)[:4096].lstrip().lower()
        is_one = traces.JSON.match(start) or start.startswith(nsight.REPORT.lower())
        if not isinstance(error, traces.UnknownFormat) and (is_one or b"collective" in start.splitlines()[0]):
            raise
        says = f"nothing that NCCL or its tools write; {KNOWN_FILES}"
        return in_sentences(file, FileKind.unknown, Severity.UNKNOWN, says, (), known)
    if calls.kind == flight_recorder.KIND:
        says = "one rank's dump does not say what ran; valid: the folder of all ranks' dumps, which says who is behind"
        return in_sentences(file, FileKind.trace, Severity.UNKNOWN, says, calls.notes, known)
    if not calls.calls:
        says = f"no call of NCCL's in it: {calls.kind}; valid: one of a rank while it uses its GPU"
        return in_sentences(file, FileKind.trace, Severity.UNKNOWN, says, calls.notes, known)
    scenario = known.scenario()
    known.learn(file, nccl=next(iter(calls.releases), None), nodes=_nodes_of(calls, scenario))
    scenario = known.scenario()
    seen = check_run([calls], scenario, WantedCalls(scenario.ranks, scenario.ranks))
    compared = f"{seen.agreeing_calls:g} of {seen.compared_calls:g} calls ran as NCCL picks on {seen.communicator}"
    evidence = [
        f"{each.collective.name} of {human_bytes(each.bytes)} ran {each.executed_in_words}; NCCL picks "
        f"{' or '.join(map(str, each.emulated)) or 'nothing'}"
        for each in seen.differing
    ]
    severity = Severity.FAULT if seen.differing else Severity.NOTE
    return in_sentences(file, FileKind.trace, severity, compared, [*evidence, *seen.notes], known)


def _nodes_of(calls: CallList, of_node: Scenario) -> int | None:
    """Nodes of the largest communicator whose calls say what ran; None where the calls do not say their ranks."""
    ranks = max((call.ranks or 0 for call in calls.executed), default=0)
    return ranks // of_node.ranks if ranks and ranks % of_node.ranks == 0 else None
