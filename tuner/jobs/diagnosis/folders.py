"""Diagnoses folders: preflight records, files of a job's ranks, Flight Recorder dumps, and anything else."""

from dataclasses import replace
from pathlib import Path

from tuner.base.findings import Finding, Severity, in_words
from tuner.base.names import Collective
from tuner.base.nouns import Span
from tuner.jobs.diagnosis.kinds import dumps
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in
from tuner.jobs.diagnosis.topology import ALLREDUCE
from tuner.jobs.inside import joined as job
from tuner.jobs.inside.report import report as job_report
from tuner.jobs.preflight.workflow import PreflightQuery, RanksVerdict
from tuner.jobs.preflight.workflow import check as check_preflight
from tuner.jobs.traces import recorder_comparison

MOST_NAMES = 3  # of files in a folder that is no kind


def _of_one(file: Path, kind: FileKind, known: KnownFacts) -> FileDiagnosis:
    """Finds that the file of a single rank or host says nothing without the files of the others."""
    return found_in(file, kind, [Finding("diagnose.part_of_folder", Severity.UNKNOWN, {})], known)


def of_job(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on the files of a job's ranks; ``waiting`` is in % of the time in collectives."""
    if not folder.is_dir():
        return _of_one(folder, FileKind.job, known)
    files = job.read_folder(folder)
    seen = job_report(files, job.joined(files))
    facts = {"waiting": round(100 * seen.waiting), "calls": seen.calls, "mismatched": seen.mismatched}
    code, severity = "job_alike", Severity.NOTE
    if seen.mismatched:
        code, severity = "job_mismatched", Severity.FAULT
    elif not seen.calls:
        code, severity = "job_without_calls", Severity.UNKNOWN
    elif seen.stragglers:
        code, severity = "job_stragglers", Severity.UNLIKE
    late = [
        Finding("diagnose.job_late", Severity.NOTE, {"name": each.name, "last": each.last, "calls": each.calls})
        for each in seen.stragglers
    ]
    notes = [in_words(Severity.NOTE, each) for each in seen.notes]
    return found_in(folder, FileKind.job, [Finding(f"diagnose.{code}", severity, facts), *late, *notes], known)


def of_recorder(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on the Flight Recorder dumps of all ranks, which are in one folder or in a folder for each host.

    The findings name ranks that called something else than the others, or did not make the call in which others wait.

    BadInput for two dumps of one rank, and if no dump is complete.
    """
    return found_in(folder, FileKind.recorder, recorder_comparison.findings_of(dumps(folder)), known)


def of_unknown(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """Finds that a folder has no known kind, and names files in it."""
    names = sorted(each.name for each in folder.iterdir())
    found = Finding("diagnose.folder_empty", Severity.UNKNOWN, {})
    if names:
        facts = {"names": names[:MOST_NAMES], "more": len(names[MOST_NAMES:]) or None}
        found = Finding("diagnose.folder_of_no_kind", Severity.UNKNOWN, facts)
    return found_in(folder, FileKind.unknown, [found], known)


def of_preflight(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on the records of a preflight: whether the ranks would choose the same, and which of them would not
    use their table."""
    if not folder.is_dir():
        return _of_one(folder, FileKind.preflight, known)
    requests = tuple(replace(ALLREDUCE, collective=each) for each in Collective)
    report = check_preflight(folder, PreflightQuery(requests, Span()))
    same = Severity.NOTE if report.cost is None else Severity.UNLIKE
    severity = {RanksVerdict.same: same, RanksVerdict.unknown: Severity.UNKNOWN}.get(report.verdict, Severity.FAULT)
    facts: dict[str, object] = {"ranks": report.records, "verdict": report.verdict.value}
    code = "preflight_verdict"
    if report.verdict is RanksVerdict.same and (cost := report.cost) is not None:
        code = "preflight_cost"
        facts |= {"collective": cost.collective.name, "bytes": cost.bytes, "ratio": cost.ratio}
        facts |= {"cost_percent": 100 * (cost.ratio - 1)}
    found = [Finding(f"diagnose.{code}", severity, facts)]
    found += [
        Finding("diagnose.preflight_refused", Severity.NOTE, {"kind": each.kind, "ranks": each.ranks, "why": each.why})
        for each in report.refused
    ]
    found += [Finding("diagnose.preflight_differs", Severity.NOTE, {"what": each.what}) for each in report.differences]
    return found_in(folder, FileKind.preflight, found, known)
