"""Diagnoses the Flight Recorder dumps of all ranks, in one folder or in a folder for each host."""

from pathlib import Path

from tuner.jobs.diagnosis.kinds import dumps
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in
from tuner.jobs.traces import recorder_comparison


def of_recorder(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on all ranks' dumps: ranks that called something else, or did not make the call in which others
    wait.

    BadInput for two dumps of one rank, and if no dump is complete.
    """
    return found_in(folder, FileKind.recorder, recorder_comparison.findings_of(dumps(folder)), known)
