"""Diagnoses any files of a cluster or a job: what is wrong, and what shows it.

Files say different things about one machine: a topology or a listing says which machine it is, a log says the release
and the nodes, results of nccl-tests say how fast it was, and a trace says what ran. What one file says is used to judge
the others, unless the user says something else.

To add a kind of file, name it in :class:`FileKind`, recognise it in :mod:`kinds`, and add a function to ``READERS``
that returns its :class:`FileDiagnosis`; write the sentences of its findings in ``tables/findings``. To add a check of
logs, see :mod:`tuner.scenario.logs.checks`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path

from tuner.base.errors import BadInput, TunerError
from tuner.base.findings import Severity
from tuner.jobs.diagnosis.kinds import cut, kinds_of
from tuner.jobs.diagnosis.log import of_logs
from tuner.jobs.diagnosis.records import (
    DiagnosisOptions,
    FileDiagnosis,
    FileKind,
    KnownFacts,
    Progress,
    found_in,
    refused,
)

MOST_FILES = 4096  # of a folder

READERS: dict[FileKind, str] = {  # module and function, which are loaded for such a file
    FileKind.topology: "topology.of_topology",
    FileKind.listing: "topology.of_listing",
    FileKind.graphs: "topology.of_graphs",
    FileKind.engine: "engine.of_engine",
    FileKind.preflight: "folders.of_preflight",
    FileKind.job: "folders.of_job",
    FileKind.ras: "ras.of_ras",
    FileKind.recorder: "folders.of_recorder",
    FileKind.nvlinks: "node_tools.of_nvlinks",
    FileKind.ports: "node_tools.of_ports",
    FileKind.gpus: "host_tools.of_gpus",
    FileKind.host: "host_tools.of_host",
    FileKind.settings: "node_tools.of_settings",
    FileKind.environment: "node_tools.of_environment",
    FileKind.results: "results.of_results",
    FileKind.trace: "trace.of_trace",
    FileKind.table: "trace.of_table",
    FileKind.packages: "packages.of_packages",
    FileKind.unknown: "folders.of_unknown",
}


def reader_of(kind: FileKind) -> Callable[[Path, KnownFacts], FileDiagnosis]:
    """The function that reads files of a kind."""
    module, _, name = READERS[kind].partition(".")
    reader: Callable[[Path, KnownFacts], FileDiagnosis] = getattr(import_module(f"{__package__}.{module}"), name)
    return reader


def diagnose(
    files: Sequence[Path], options: DiagnosisOptions, progress: Progress = lambda read_bytes: None
) -> list[FileDiagnosis]:
    """Diagnoses each file; the gravest diagnosis comes first. A log with results in it has two diagnoses, as a log and
    as results. BadInput if no file is given; also raises what ``describe`` raises for an unknown machine or release.

    Logs and other output of one job are diagnosed together; a folder of no known kind stands for all its files. If a
    file has no known kind, or its reader refuses it, its diagnosis is that it cannot be judged. ``progress`` is called
    while logs are read.
    """
    kinds = [(kind, file) for file in _unfolded(files) for kind in kinds_of(file)]
    if options.gpu is not None:
        kinds = [(FileKind.topology if kind is FileKind.listing else kind, file) for kind, file in kinds]
    results = [file for kind, file in kinds if kind is FileKind.results]
    known = KnownFacts(options.machine, options.nodes, options.nccl, options, results)
    if options.machine is not None:
        known.scenario()  # whatever the files are, no mistake in a name goes unsaid
    found = []
    for kind in FileKind:
        of_kind = [file for each, file in kinds if each is kind]
        if kind is FileKind.log:
            outputs = [file for each, file in kinds if each is FileKind.output]
            also = {file for file in (*of_kind, *outputs) if (FileKind.results, file) in kinds}
            found += [
                each
                for each in of_logs(of_kind, outputs, known, progress)
                if not (each.kind is FileKind.output and Path(each.file) in also)
            ]
        elif kind is not FileKind.output:
            found += [_of_file(file, kind, known) for file in of_kind]
    return sorted(found, key=lambda each: list(Severity).index(each.severity))


def _unfolded(files: Sequence[Path]) -> Iterator[Path]:
    """The files, with folders of no known kind replaced by the files in them. BadInput if there are too many."""
    for file in files:
        if not file.is_dir() or kinds_of(file) != (FileKind.unknown,):
            yield file
            continue
        inside = sorted(each for each in islice(file.rglob("*"), MOST_FILES + 1) if each.is_file())
        if len(inside) > MOST_FILES:
            raise BadInput(f"{file}: more than {MOST_FILES} files: give the files of one job")
        known = [each for each in inside if kinds_of(each) not in ((FileKind.trace,), (FileKind.unknown,))]
        yield from known or [file]


def _of_file(file: Path, kind: FileKind, known: KnownFacts) -> FileDiagnosis:
    """The diagnosis of a file as one kind; ``known`` gets the facts that other files' diagnoses use."""
    learnt = len(known.learnt)
    try:
        one = reader_of(kind)(file, known)
    except TunerError as error:
        if kind in (FileKind.topology, FileKind.graphs) and (ends := cut(file)) is not None:
            one = found_in(file, kind, [ends], known)
        else:
            one = refused(file, kind, error, known)
    return replace(one, findings=(*one.findings, *known.learnt[learnt:]))
