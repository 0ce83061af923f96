"""Diagnosis of folders: preflight records, files of a job's ranks, and anything else."""

from dataclasses import replace
from pathlib import Path

from tuner.base.findings import Severity
from tuner.base.names import Collective
from tuner.base.sizes import plural
from tuner.emulator.ranges import FOLLOWED_BYTES
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, in_sentences
from tuner.jobs.diagnosis.topology import ALLREDUCE
from tuner.jobs.inside import joined as job
from tuner.jobs.inside.report import report as job_report
from tuner.jobs.preflight.alone import SizeBounds
from tuner.jobs.preflight.workflow import PreflightQuery, RanksVerdict
from tuner.jobs.preflight.workflow import check as check_preflight

MOST_NAMES = 3  # of files in a folder that is no kind


def _of_one(file: Path, kind: FileKind, known: KnownFacts) -> FileDiagnosis:
    """The finding of one rank's or host's file, which says nothing by itself."""
    says = "one of several files that are read together; valid: the folder that it is in"
    return in_sentences(file, kind, Severity.UNKNOWN, says, (), known)


def of_job(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """What the records of a job's ranks say; the share of waiting is in % of the collectives' time."""
    if not folder.is_dir():
        return _of_one(folder, FileKind.job, known)
    files = job.read_folder(folder)
    seen = job_report(files, job.joined(files))
    waiting = f"{100 * seen.waiting:.0f} % of the time of {plural(seen.calls, 'collective')} is waiting"
    severity, says = Severity.NOTE, f"all ranks ran the same; {waiting}"
    if seen.mismatched:
        severity, says = Severity.FAULT, f"ranks ran different things: {plural(seen.mismatched, 'call')}"
    elif not seen.calls:
        severity, says = Severity.UNKNOWN, "no call has a record of every rank"
    elif seen.stragglers:
        severity, says = Severity.UNLIKE, f"{waiting}, and one rank or more comes last too often"
    late = [f"{each.name} came last in {each.last} of {each.calls} calls" for each in seen.stragglers]
    return in_sentences(folder, FileKind.job, severity, says, [*late, *seen.notes], known)


def of_unknown(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding of a folder of anything else: what there is of it."""
    names = sorted(each.name for each in folder.iterdir())
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    has = f"it has {', '.join(names[:MOST_NAMES])}{more}" if names else "it is empty"
    says = (
        f"a folder of neither preflight records nor a job's files (NCCL_TUNER_JOB): {has}; valid: files by their names"
    )
    return in_sentences(folder, FileKind.unknown, Severity.UNKNOWN, says, (), known)


def of_preflight(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """Whether the ranks of a preflight chose the same, and which of them did not load the table."""
    if not folder.is_dir():
        return _of_one(folder, FileKind.preflight, known)
    requests = tuple(replace(ALLREDUCE, collective=each) for each in Collective)
    report = check_preflight(folder, PreflightQuery(requests, SizeBounds(None, FOLLOWED_BYTES)))
    same = Severity.NOTE if report.cost is None else Severity.UNLIKE
    severity = {RanksVerdict.same: same, RanksVerdict.unknown: Severity.UNKNOWN}.get(report.verdict, Severity.FAULT)
    says = f"{plural(report.records, 'rank')}: the ranks' choices are {report.verdict.value}"
    if report.verdict is RanksVerdict.same and report.cost is not None:
        says += f"; {report.cost.in_words}"
    evidence = [f"{each.kind}: {plural(each.ranks, 'rank')} without the table: {each.why}" for each in report.refused]
    evidence += [f"differs: {each.what}" for each in report.differences]
    return in_sentences(folder, FileKind.preflight, severity, says, evidence, known)
