"""Records of a diagnosis: what a user says, what files say about the machine, and the findings on a file."""

from collections.abc import Callable, Iterable
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, IncompleteTopology, TunerError
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity, in_words, words
from tuner.base.frames import Column, Rows
from tuner.base.records import json_form
from tuner.base.spelling import spelled
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

if TYPE_CHECKING:  # which most kinds of files do without
    from tuner.answers.doctor.examine import Examination
    from tuner.times.acceptance.accept import Acceptance

UNKNOWN_MACHINE = "the machine is not known: add {option:machine} NAME, or give its topology as well"
Progress = Callable[[int], None]  # is called with the number of bytes that were read since
MOST_EVIDENCE = 8  # lines of one file; its own command has all


class FileKind(StrEnum):
    """Kinds of files, in the order in which they are read: files of earlier kinds supply facts for later ones."""

    topology = "topology"
    listing = "listing of a node"
    log = "log of NCCL"
    output = "output of a job"
    engine = "log of a serving engine"
    graphs = "graphs of NCCL"
    preflight = "preflight records"
    job = "files of a job's ranks"
    ras = "report of ncclras"
    recorder = "Flight Recorder dumps"
    nvlinks = "NVLinks of nvidia-smi"
    ports = "ports of adapters"
    gpus = "GPUs of nvidia-smi"
    host = "limits and devices of a host"
    settings = "configuration file of NCCL"
    environment = "variables of a job"
    results = "results of nccl-tests"
    trace = "trace or counters of a job"
    table = "decision table"
    packages = "environment of Python"
    unknown = "no kind that is known"


@dataclass(frozen=True, slots=True)
class DiagnosisOptions:
    """Facts that a user gives about all files; a fact that is None is read from the files.

    If ``gpu`` is given, listings of a node are read as topologies.

    ``net_gbps`` and ``net_latency_us`` describe adapters, if a topology only says where they are.
    """

    machine: str | None = None
    nodes: int | None = None
    nccl: str | None = None
    gpu: str | None = None
    net_gbps: float | None = None
    net_latency_us: float | None = None


@dataclass(frozen=True, slots=True)
class FileDiagnosis:
    """Findings on a file, the gravest first; machine, nodes and release as far as they are known.

    The first finding is the verdict; if it is a note, nothing is wrong. ``examined`` is the whole examination of a
    topology; None for other files.
    """

    file: str
    kind: FileKind
    findings: tuple[Finding, ...]
    machine: str | None
    nodes: int | None
    nccl: str | None
    examined: "Examination | None" = field(default=None, metadata=json_form(optional=True))
    other_files: tuple[str, ...] = field(default=(), metadata=json_form(optional=True))  # of the same job
    hosts: tuple[str, ...] = field(default=(), metadata=json_form(omitted=True))  # that a log names
    accepted: "Acceptance | None" = field(default=None, metadata=json_form(omitted=True))  # of results

    @property
    def severity(self) -> Severity:
        """Severity of the verdict."""
        return self.findings[0].severity


class DiagnosedFiles(Rows[FileDiagnosis]):
    """Diagnoses of the files of a job, the gravest first. As a frame it has a row for each finding."""

    __slots__ = ()

    @property
    def severity(self) -> Severity:
        """Severity of the gravest verdict."""
        return self.records[0].severity

    def columns(self) -> dict[str, Column]:
        """Columns file, kind, machine, nccl, severity, code and text, all in words; one row per [finding]."""
        rows = [
            (each.file, each.kind.value, each.machine, each.nccl, finding.severity.value, finding.code, words(finding))
            for each in self.records
            for finding in each.findings
        ]
        names = ("file", "kind", "machine", "nccl", "severity", "code", "text")
        return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def found_in(
    file: Path, kind: FileKind, found: Iterable[Finding], known: "KnownFacts", examined: "Examination | None" = None
) -> FileDiagnosis:
    """The diagnosis of a file with the findings ``found`` (at least one), sorted so that the gravest is the first."""
    order = list(Severity)
    findings = sorted(found, key=lambda each: order.index(each.severity))
    return FileDiagnosis(str(file), kind, tuple(findings), known.machine, known.nodes, known.nccl, examined)


def refused(file: Path, kind: FileKind, error: TunerError, known: "KnownFacts") -> FileDiagnosis:
    """The diagnosis of a file that its reader refused."""
    if isinstance(error, IncompleteTopology):
        facts = {"gpus": error.gpus, "of": error.of, "adapters": error.adapters or None}
        return found_in(file, kind, [Finding("diagnose.incomplete_topology", Severity.UNKNOWN, facts)], known)
    text = str(error).removeprefix(f"{file}: ").removeprefix("cannot be judged: ")
    return found_in(file, kind, [in_words(Severity.UNKNOWN, text)], known)


def note(name: str, **facts: object) -> Finding:
    """A finding whose severity is NOTE; its code is ``diagnose.`` followed by ``name``."""
    return Finding(f"diagnose.{name}", Severity.NOTE, facts)


def text_of(file: Path) -> str:
    """The text of a file. BadInput if it cannot be read."""
    return read_bytes(file, BadInput).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class RanksBehind:
    """Ranks of a communicator that have counted fewer calls of an operation than the rank that has counted the most.

    ``ranks`` are pairs (rank, count); ``ahead`` is the largest count.
    """

    communicator: str
    operation: str
    ahead: int
    ranks: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class KnownFacts:
    """Facts about the machine that are known so far, and which file says them."""

    machine: str | None
    nodes: int | None
    nccl: str | None
    given: DiagnosisOptions  # by the user, whom files have to agree with; of a machine, topologies keep their nearest
    results: list[Path]
    topology: Path | None = None  # the first that is whole
    without_gpudirect: str | None = None  # a topology whose devices have no GPUDirect RDMA
    links_of: str | None = None  # a topology or log that shows by itself which links or channels are fewer
    large_logs: dict[Path, bytes] = field(default_factory=dict, metadata=json_form(omitted=True))  # what counts of them
    ras_reports: dict[Path, tuple[RanksBehind, ...]] = field(default_factory=dict, metadata=json_form(omitted=True))
    learnt: list[Finding] = field(default_factory=list, metadata=json_form(omitted=True))

    def learn(self, file: Path, **facts: str | int | None) -> None:
        """Keeps those of ``facts`` that were not known before."""
        fresh = {name: value for name, value in facts.items() if value is not None and getattr(self, name) is None}
        for name, value in fresh.items():
            setattr(self, name, value)
        if fresh:
            said = [f"{name} {value}" for name, value in fresh.items()]
            self.learnt.append(Finding("diagnose.learnt", Severity.NOTE, {"facts": said, "file": str(file)}))

    def scenario(self) -> Scenario:
        """A scenario on the known machine or, if no machine is known, on the known topology. BadInput if neither is
        known."""
        if self.machine is None and self.topology is not None:
            return describe(topology=str(self.topology), nodes=self.nodes or 1, nccl=self.nccl)
        if self.machine is None:
            raise BadInput(spelled(UNKNOWN_MACHINE))
        return describe(self.machine, nodes=self.nodes, nccl=self.nccl)
