"""Diagnosis of whatever files there are of a cluster or a job: what is wrong, and what shows it.

Files say different things of one machine: a topology or a listing which it is, a log its release and nodes, results how
fast it was, a trace what ran. What one of them says goes for the others, and what a user says goes before that.

To read one more kind of file: its name in :class:`FileKind`, how it is known in :mod:`kinds`, and a function in
``READERS`` that returns its :class:`FileDiagnosis`, whose findings have their words in ``tables/findings``. To look for
one more thing in a log: a function and its entry in :mod:`tuner.scenario.logs.checks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.base.errors import IncompleteTopology, TunerError
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.folders import of_job, of_preflight, of_unknown
from tuner.jobs.diagnosis.kinds import cut, kinds_of
from tuner.jobs.diagnosis.log import of_log
from tuner.jobs.diagnosis.node_tools import of_nvlinks, of_ports, of_settings
from tuner.jobs.diagnosis.ras import of_ras
from tuner.jobs.diagnosis.recorder import of_recorder
from tuner.jobs.diagnosis.records import DiagnosisOptions, FileDiagnosis, FileKind, KnownFacts, found_in, in_words
from tuner.jobs.diagnosis.results import of_results
from tuner.jobs.diagnosis.topology import of_graphs, of_listing, of_topology
from tuner.jobs.diagnosis.trace import of_table, of_trace
from tuner.scenario.logs import importer

READERS: dict[FileKind, Callable[[Path, KnownFacts], FileDiagnosis]] = {
    FileKind.topology: of_topology,
    FileKind.listing: of_listing,
    FileKind.log: of_log,
    FileKind.graphs: of_graphs,
    FileKind.preflight: of_preflight,
    FileKind.job: of_job,
    FileKind.ras: of_ras,
    FileKind.recorder: of_recorder,
    FileKind.nvlinks: of_nvlinks,
    FileKind.ports: of_ports,
    FileKind.settings: of_settings,
    FileKind.results: of_results,
    FileKind.trace: of_trace,
    FileKind.table: of_table,
    FileKind.unknown: of_unknown,
}


def diagnose(files: Sequence[Path], options: DiagnosisOptions) -> list[FileDiagnosis]:
    """Diagnosis of each file, the gravest first; two of a log that has results in it. Errors: BadInput where none is
    there, or of ``describe`` for a machine or release that is not known.

    A file that cannot be read by its kind, or is of none, cannot be judged, which its diagnosis says.
    """
    kinds = [(kind, file) for file in files for kind in kinds_of(file)]
    if options.gpu is not None:
        kinds = [(FileKind.topology if kind is FileKind.listing else kind, file) for kind, file in kinds]
    results = [file for kind, file in kinds if kind is FileKind.results]
    known = KnownFacts(options.machine, options.nodes, options.nccl, options, results)
    if options.machine is not None:
        known.scenario()  # whatever the files are, no mistake in a name goes unsaid
    found = []
    for kind, file in sorted(kinds, key=lambda each: list(FileKind).index(each[0])):
        learnt = len(known.learnt)
        try:
            one = READERS[kind](file, known)
        except TunerError as error:
            if isinstance(error, importer.NothingLogged) and (FileKind.results, file) in kinds:
                continue
            one = found_in(file, kind, [_not_read(file, kind, error)], known)
        found.append(replace(one, findings=(*one.findings, *known.learnt[learnt:])))
    return sorted(found, key=lambda each: list(Severity).index(each.severity))


def _not_read(file: Path, kind: FileKind, error: TunerError) -> Finding:
    """The finding of a file that its reader refused."""
    if kind in (FileKind.topology, FileKind.graphs) and (ends := cut(file)) is not None:
        return ends
    if isinstance(error, IncompleteTopology):
        facts = {"gpus": error.gpus, "of": error.of, "adapters": error.adapters or None}
        return Finding("diagnose.incomplete_topology", Severity.UNKNOWN, facts)
    return in_words(Severity.UNKNOWN, str(error).removeprefix(f"{file}: ").removeprefix("cannot be judged: "))
