"""Diagnosis of whatever files there are of a cluster or a job: what is wrong, and what shows it.

Files say different things of one machine: a topology or a listing which it is, a log its release and nodes, results how
fast it was, a trace what ran. What one of them says goes for the others, and what a user says goes before that.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from tuner import release
from tuner.answers.doctor.examine import DoctorOptions, Examination, examine
from tuner.answers.doctor.records import UNLIKE, WRONG
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTopology, TunerError
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes, plural
from tuner.emulator.ranges import FOLLOWED_BYTES
from tuner.emulator.request import Request
from tuner.jobs.check_run import check as check_run
from tuner.jobs.inside import files as job_files
from tuner.jobs.inside import joined as job
from tuner.jobs.inside.report import report as job_report
from tuner.jobs.preflight import reading
from tuner.jobs.preflight.alone import SizeBounds
from tuner.jobs.preflight.workflow import PreflightQuery, RanksVerdict
from tuner.jobs.preflight.workflow import check as check_preflight
from tuner.jobs.traces import flight_recorder, nsight
from tuner.jobs.traces import read as traces
from tuner.jobs.traces.calls import CallList, WantedCalls
from tuner.machine import catalogue, described, gpus, listings
from tuner.machine.listings import ListingAdditions, complete, completed
from tuner.machine.listings.shape import of_listing
from tuner.machine.skeleton import read_complete
from tuner.machine.topology.xml import MAX_BYTES
from tuner.plugin.formats import convert
from tuner.plugin.table.records import HEADER
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.logs import importer
from tuner.scenario.logs.evidence import NEVER_NVLS, NO_NVLS
from tuner.scenario.logs.imported import Imported, LogAnswer, Weight
from tuner.scenario.logs.imported import LogAdditions as GivenOfLog
from tuner.times.acceptance import accept as acceptance
from tuner.times.acceptance.expected import OTHER_LINKS
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import Verdict
from tuner.times.measured import Kind
from tuner.times.measured.formats import NCCL_TESTS, FileFormat, Given, MeasurementFile

UNKNOWN_MACHINE = "the machine is not known; valid: `machine` NAME, or its topology beside it"
NVLINK = "NVL"  # NCCL's word for paths over it
ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
PRICED_SIZES = (8, 64 << 10, 1 << 20, 64 << 20, 1 << 30)
MOST_EVIDENCE = 8  # lines of one file; its own command has all
OF_LOGS = (b" NCCL INFO ", b" NCCL WARN ", b"NCCL error in: ", b"Watchdog caught collective operation timeout")
OF_RAS = b"Communicators... ("  # src/ras/client_support.cc
_OF_GROUP = re.compile(r" *\d+(?: +[\d-]+){5} +\w\S* +(\w\S*)")  # of communicators: their errors
KNOWN_FILES = (
    "valid: a log of NCCL, a topology that it dumped, what nccl-tests, ncclras, nvidia-smi topo or lstopo printed, "
    "a trace or counters of a job, a folder of preflight records, of Flight Recorder dumps or of NCCL_TUNER_JOB"
)
MOST_NAMES = 3  # of files in a folder that is no kind


class DiagnosisSeverity(StrEnum):
    """Weight of a finding, the gravest first."""

    fault = "fault"
    not_judged = "cannot be judged"
    unlike = "unlike"  # otherwise than usual, which may be meant
    sound = "nothing wrong"


class FileKind(StrEnum):
    """Kinds of files, in the order in which they are looked at: the first say what the later ones need."""

    topology = "topology"
    listing = "listing of a node"
    log = "log of NCCL"
    graphs = "graphs of NCCL"
    preflight = "preflight records"
    job = "files of a job's ranks"
    ras = "report of ncclras"
    recorder = "Flight Recorder dumps"
    results = "results of nccl-tests"
    trace = "trace or counters of a job"
    table = "decision table"
    unknown = "no kind that is known"


@dataclass(frozen=True, slots=True)
class DiagnosisOptions:
    """Facts that a user gives of all files; None leaves them to the files. With ``gpu`` listings are topologies, too.

    ``net_gbps`` and ``net_latency_us`` are of adapters that a topology only places.
    """

    machine: str | None = None
    nodes: int | None = None
    nccl: str | None = None
    gpu: str | None = None
    net_gbps: float | None = None
    net_latency_us: float | None = None


@dataclass(frozen=True, slots=True)
class FileDiagnosis:
    """A file's finding in a sentence, and lines that show it; machine, nodes and release as far as they are known.

    ``examined`` is all of a topology, None of other files.
    """

    file: str
    kind: FileKind
    severity: DiagnosisSeverity
    finding: str
    evidence: tuple[str, ...]
    machine: str | None
    nodes: int | None
    nccl: str | None
    examined: Examination | None = field(default=None, metadata=json_form(optional=True))


@dataclass(slots=True)
class _Known:
    """Facts of the machine so far, and which file says them."""

    machine: str | None
    nodes: int | None
    nccl: str | None
    given: DiagnosisOptions  # by the user, whom files have to agree with; of a machine, topologies keep their nearest
    results: list[Path]
    topology: Path | None = None  # the first that is whole
    links_of: str | None = None  # a topology or log that shows by itself which links or channels are fewer
    said_by: list[str] = field(default_factory=list, metadata=json_form(omitted=True))

    def learn(self, file: Path, **facts: str | int | None) -> None:
        """Fills in what nothing said before."""
        fresh = {name: value for name, value in facts.items() if value is not None and getattr(self, name) is None}
        for name, value in fresh.items():
            setattr(self, name, value)
        if fresh:
            self.said_by.append(f"{', '.join(f'{name} {value}' for name, value in fresh.items())}: as {file} says")

    def scenario(self) -> Scenario:
        """Nodes of the machine, else of the topology. Errors: BadInput where neither is known."""
        if self.machine is None and self.topology is not None:
            return describe(topology=str(self.topology), nodes=self.nodes or 1, nccl=self.nccl)
        if self.machine is None:
            raise BadInput(UNKNOWN_MACHINE)
        return describe(self.machine, nodes=self.nodes, nccl=self.nccl)


def diagnose(files: Sequence[Path], options: DiagnosisOptions) -> list[FileDiagnosis]:
    """Diagnosis of each file, the gravest first; two of a log that has results in it. Errors: BadInput where none is
    there, or of ``describe`` for a machine or release that is not known.

    A file that cannot be read by its kind, or is of none, cannot be judged, which its diagnosis says.
    """
    kinds = [(kind, file) for file in files for kind in kinds_of(file)]
    if options.gpu is not None:
        kinds = [(FileKind.topology if kind is FileKind.listing else kind, file) for kind, file in kinds]
    results = [file for kind, file in kinds if kind is FileKind.results]
    known = _Known(options.machine, options.nodes, options.nccl, options, results)
    if options.machine is not None:
        known.scenario()  # whatever the files are, no mistake in a name goes unsaid
    found = []
    for kind, file in sorted(kinds, key=lambda each: list(FileKind).index(each[0])):
        said = len(known.said_by)
        try:
            one = _OF_KIND[kind](file, known)
        except TunerError as error:
            if isinstance(error, importer.NothingLogged) and (FileKind.results, file) in kinds:
                continue
            says = _cut(file) if kind in (FileKind.topology, FileKind.graphs) else None
            says = says or str(error).removeprefix(f"{file}: ").removeprefix(f"{DiagnosisSeverity.not_judged}: ")
            one = _diagnosis(file, kind, DiagnosisSeverity.not_judged, says, (), known)
        found.append(replace(one, evidence=(*one.evidence, *known.said_by[said:])))
    return sorted(found, key=lambda each: list(DiagnosisSeverity).index(each.severity))


def kinds_of(file: Path) -> tuple[FileKind, ...]:
    """The kinds of a file by its content, one but for a log with results. Errors: BadInput where it cannot be read."""
    if file.is_dir():
        return (_kind_of_folder(file),)
    start = read_bytes(file, BadInput)
    if start.startswith(HEADER.encode()):
        return (FileKind.table,)
    if start.startswith(job_files.MAGIC):
        return (FileKind.job,)
    if reading.is_record(file):
        return (FileKind.preflight,)
    if start.lstrip()[:1] == b"<":
        if b"<graphs" in start[:4096]:
            return (FileKind.graphs,)
        return (FileKind.topology if b"<system" in start[:4096] else FileKind.listing,)
    try:
        if len(start) <= MAX_BYTES and listings.read(file) is not None:  # logs and traces may be larger
            return (FileKind.listing,)
    except BadTopology:
        return (FileKind.listing,)
    logged: tuple[FileKind, ...] = (FileKind.ras,) if OF_RAS in start else ()
    logged += (FileKind.log,) if any(part in start for part in OF_LOGS) else ()
    try:
        measured = MeasurementFile(file)
        if measured.format in NCCL_TESTS or (measured.format is FileFormat.columns and b"time_us" in start):
            return (*logged, FileKind.results)
    except TunerError:
        pass
    if logged:
        return logged
    with suppress(TunerError, UnicodeDecodeError):
        if start.lstrip()[:1] not in (b"{", b"[") and convert.format_of(start.decode(), str(file)):
            return (FileKind.table,)
    return (FileKind.trace,)


def _kind_of_folder(folder: Path) -> FileKind:
    try:
        if any(map(reading.is_record, folder.glob("*.json"))):
            return FileKind.preflight
        of_job = [job_files.is_of_job(each) for each in job_files.files_of(folder)]
        if 2 * sum(of_job) > len(of_job):
            return FileKind.job
        if _dumps(folder):
            return FileKind.recorder
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from None
    return FileKind.unknown


def _dumps(folder: Path) -> list[Path]:
    """The Flight Recorder's dumps of ranks in a folder."""
    found = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and flight_recorder.rank_of(file) is not None:
            with file.open("rb") as opened:  # others may be large
                found += [file] if flight_recorder.is_pickle(opened.read(2)) else []
    return found


def _cut(file: Path) -> str | None:
    """The finding that XML of NCCL ends before its end; None where it does not, or is no XML."""
    content = read_bytes(file, BadInput)
    if content.lstrip()[:1] != b"<":
        return None
    tag = b"system" if b"<system" in content else b"graphs"
    if b"</" + tag + b">" in content:
        return None
    line = len(content.splitlines())
    return f"cut: it ends in line {line} without </{tag.decode()}>; valid: the whole file"


def _topology(file: Path, known: _Known) -> FileDiagnosis:
    nccl = release.load(known.nccl or release.names()[-1]).name
    asked = DoctorOptions(nccl, known.nodes or 2, ALLREDUCE, PRICED_SIZES)
    seen = examine(str(file), _complete(file, known.given), known.given.machine, asked)
    if seen.nearness is not None and seen.nearness.identified and not seen.nearness.differs:
        known.learn(file, machine=seen.nearness.machine)
    if known.given.gpu is None:
        known.topology = known.topology or file
    grave = [each for each in seen.findings if each.severity == WRONG]
    shown = grave or [each for each in seen.findings if each.severity == UNLIKE]
    if not shown:
        says = f"no fault among {len(seen.findings)} notes" if seen.findings else "no fault found"
        return replace(_diagnosis(file, FileKind.topology, DiagnosisSeverity.sound, says, (), known), examined=seen)
    first, *others = shown
    evidence = [f"on {', '.join(first.devices)}"] if first.devices else []
    evidence += [f"do: {first.do}"] if first.do != "nothing" else []
    evidence += [*_cost(seen), *(f"also {each.kind}: {each.says}" for each in others)]
    if any(each.kind == "nvlinks" for each in grave):
        known.links_of = known.links_of or str(file)
    severity = DiagnosisSeverity.fault if grave else DiagnosisSeverity.unlike
    found = _diagnosis(file, FileKind.topology, severity, f"{first.kind}: {first.says}", evidence, known)
    return replace(found, examined=seen)


def _complete(file: Path, given: DiagnosisOptions) -> str:
    """The topology in the file, completed where a GPU model is given."""
    if given.gpu is None:
        return read_complete(file)[0]
    return completed(file, ListingAdditions(given.gpu, given.net_gbps, given.net_latency_us)).topology


def _cost(seen: Examination) -> Iterator[str]:
    for last in seen.sizes[-1:]:
        now, repaired = last.busbw_gbs_before, last.busbw_gbs_after
        if now is not None and repaired is not None and now < repaired:
            wrong = sum(bool(each.changes) and each.severity == WRONG for each in seen.findings)
            together = f"all {wrong} together, " if wrong > 1 else ""
            yield (
                f"costs: {together}AllReduce of {human_bytes(last.bytes)} at {now:.1f} instead of {repaired:.1f} "
                "GB/s busbw, by NCCL's own prediction"
            )


def _listing(file: Path, known: _Known) -> FileDiagnosis:
    listing = listings.read(file)
    if listing is None:
        raise BadInput("XML that is neither a topology of NCCL nor of lstopo")
    ranked = complete.ranked(of_listing(listing, None))
    near = ranked[0]
    as_near = [each.machine for each in ranked if (each.agrees, each.differs) == (near.agrees, near.differs)]
    if near.identified and not near.differs and len(as_near) == 1:
        known.learn(file, machine=near.machine)
    severity = DiagnosisSeverity.unlike if near.differs else DiagnosisSeverity.sound
    says = f"nearest is {near.in_words}"
    others = f"as near, where the GPUs' model would tell: {', '.join(as_near[1:])}"
    return _diagnosis(file, FileKind.listing, severity, says, [others] if len(as_near) > 1 else (), known)


def _log(file: Path, known: _Known) -> FileDiagnosis:
    imported = importer.read(file, GivenOfLog(release=known.nccl, nodes=known.nodes))
    known.learn(file, nccl=imported.release if imported.emulated else None, nodes=imported.node_count)
    said = imported.evidence
    answers = list(said.answers[1:] if said.tuner_plugin is not None else said.answers)
    if known.machine is not None and not _has_nvls(known.scenario()):
        answers = [_never(each, known.machine) for each in answers]
    evidence = [_communicator(imported)]
    if said.tuner_plugin is not None:
        evidence.append(said.answers[0].text)
    evidence += [f"{plural(number, 'connection')} over {way}" for way, number in said.transports.items()]
    expected = [each.text for each in answers if each.weight is Weight.expected]
    grave = sorted((each for each in answers if each.weight is not Weight.expected), key=lambda each: each.weight)
    if not answers and imported.coll_channels is None and not any(each.graphs for each in imported.nodes):
        says = "neither graphs nor channels are printed: cut, or not with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        return _diagnosis(file, FileKind.log, DiagnosisSeverity.not_judged, says, evidence, known)
    if any(" channels, because: the ring has " in each.text and f" over {NVLINK} " in each.text for each in grave):
        known.links_of = known.links_of or str(file)
    if not grave:
        return _diagnosis(
            file, FileKind.log, DiagnosisSeverity.sound, "the log shows no fault", [*evidence, *expected], known
        )
    first, *others = grave
    severity = DiagnosisSeverity.fault if first.weight is Weight.fault else DiagnosisSeverity.unlike
    evidence = [*(each.text for each in others), *evidence, *expected]
    return _diagnosis(file, FileKind.log, severity, first.text, evidence, known)


def _never(answer: LogAnswer, machine: str) -> LogAnswer:
    """The answer why there is no NVLS, on a machine that has none; any other answer as it is."""
    if not answer.text.startswith(NO_NVLS):
        return answer
    return LogAnswer(f"no NVLS, as it should be with {machine}: {NEVER_NVLS}", Weight.expected)


def _has_nvls(scenario: Scenario) -> bool:
    """Whether any GPU of it may have NVLS; where they are not known, too."""
    return not scenario.gpu_names or any(name.upper() in gpus.multicast_chips() for name in scenario.gpu_names)


def _communicator(imported: Imported) -> str:
    sizes = [plural(count, what) for count, what in ((imported.ranks, "rank"), (imported.node_count, "node")) if count]
    return f"NCCL {imported.release or 'of an unknown release'}, {' on '.join(sizes) or 'ranks not shown'}"


def _ras(file: Path, known: _Known) -> FileDiagnosis:
    """The finding of a report of NCCL's RAS as text: headings of errors and warnings, with indented lines below."""
    lines = read_bytes(file, BadInput).decode("utf-8", "replace").splitlines()
    found: dict[DiagnosisSeverity, list[list[str]]] = {DiagnosisSeverity.fault: [], DiagnosisSeverity.not_judged: []}
    section = None
    for before, line in pairwise(["", *map(str.rstrip, lines)]):
        if set(line) == {"="}:
            section = {"Errors": DiagnosisSeverity.fault, "Warnings": DiagnosisSeverity.not_judged}.get(before)
        elif section is not None and line.startswith("  "):
            if not before.startswith("  "):
                found[section].append([before])
            found[section][-1].append(line.strip())
    severity = next((each for each, blocks in found.items() if blocks), DiagnosisSeverity.sound)
    errors = [row[1] for row in map(_OF_GROUP.fullmatch, map(str.rstrip, lines)) if row]
    if severity is DiagnosisSeverity.sound and set(errors) != {"OK"}:
        says = f"cut: no line on {', '.join(sorted(set(errors) - {'OK'})) or 'a communicator'}; valid: the whole report"
        return _diagnosis(file, FileKind.ras, DiagnosisSeverity.not_judged, says, (), known)
    if severity is DiagnosisSeverity.sound:
        says = "RAS saw no error, and all ranks at the same operations, when it was asked"
        return _diagnosis(file, FileKind.ras, severity, says, (), known)
    first, *others = [
        f"{heading}: {'; '.join(says[:MOST_EVIDENCE])}" for blocks in found.values() for heading, *says in blocks
    ]
    moment = "ranks may differ for a moment: the same counts in a later report are a hang"
    others += [moment] if severity is DiagnosisSeverity.not_judged else []
    return _diagnosis(file, FileKind.ras, severity, first, others, known)


def _recorder(folder: Path, known: _Known) -> FileDiagnosis:
    """The finding of all ranks' dumps: who did not call what others wait in."""
    dumped, absent, behind, untold = flight_recorder.laggards(_dumps(folder))
    evidence = [f"{plural(len(dumped), 'rank')} with a dump"]
    if absent:
        evidence.append(f"without a whole dump: {_ranks(absent)}: they ended, or hang where the recorder does not run")
    if untold:
        evidence.append(f"may be behind: {_ranks(untold)}: the recorder dropped its calls in a group where others wait")
    late = [
        f"rank {each.rank} {'has no call' if each.at is None else f'is at {each.at}'} in {each.group}, where "
        f"{_ranks(each.others)} {'is' if len(each.others) == 1 else 'are'} at {each.name} {each.other_at}"
        for each in behind
    ]
    if behind:
        which = _ranks([each.rank for each in behind])
        says = f"{which} did not call what others wait in: their stacks, their GPUs (dmesg, Xid), their own logs"
        return _diagnosis(folder, FileKind.recorder, DiagnosisSeverity.fault, says, [*late, *evidence], known)
    says = "no rank with a dump is behind the others of its process groups: a rank without one, a GPU or the network"
    if untold:
        says = f"whether {_ranks(untold)} called what others wait in; valid: a larger TORCH_NCCL_TRACE_BUFFER_SIZE"
    return _diagnosis(folder, FileKind.recorder, DiagnosisSeverity.not_judged, says, evidence, known)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_EVIDENCE]))
    return f"rank{'s' * (len(ranks) > 1)} {shown}{' ...' * (len(ranks) > MOST_EVIDENCE)}"


def _of_one(file: Path, kind: FileKind, known: _Known) -> FileDiagnosis:
    """The finding of one rank's or host's file, which says nothing by itself."""
    says = "one of several files that are read together; valid: the folder that it is in"
    return _diagnosis(file, kind, DiagnosisSeverity.not_judged, says, (), known)


def _job(folder: Path, known: _Known) -> FileDiagnosis:
    if not folder.is_dir():
        return _of_one(folder, FileKind.job, known)
    files = job.read_folder(folder)
    seen = job_report(files, job.joined(files))
    waiting = f"{100 * seen.waiting:.0f} % of the time of {plural(seen.calls, 'collective')} is waiting"
    severity, says = DiagnosisSeverity.sound, f"all ranks ran the same; {waiting}"
    if seen.mismatched:
        severity, says = DiagnosisSeverity.fault, f"ranks ran different things: {plural(seen.mismatched, 'call')}"
    elif not seen.calls:
        severity, says = DiagnosisSeverity.not_judged, "no call has a record of every rank"
    elif seen.stragglers:
        severity, says = DiagnosisSeverity.unlike, f"{waiting}, and one rank or more comes last too often"
    late = [f"{each.name} came last in {each.last} of {each.calls} calls" for each in seen.stragglers]
    return _diagnosis(folder, FileKind.job, severity, says, [*late, *seen.notes], known)


def _unknown(folder: Path, known: _Known) -> FileDiagnosis:
    """The finding of a folder of anything else: what there is of it."""
    names = sorted(each.name for each in folder.iterdir())
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    has = f"it has {', '.join(names[:MOST_NAMES])}{more}" if names else "it is empty"
    says = (
        f"a folder of neither preflight records nor a job's files (NCCL_TUNER_JOB): {has}; valid: files by their names"
    )
    return _diagnosis(folder, FileKind.unknown, DiagnosisSeverity.not_judged, says, (), known)


def _preflight(folder: Path, known: _Known) -> FileDiagnosis:
    if not folder.is_dir():
        return _of_one(folder, FileKind.preflight, known)
    requests = tuple(replace(ALLREDUCE, collective=each) for each in Collective)
    report = check_preflight(folder, PreflightQuery(requests, SizeBounds(None, FOLLOWED_BYTES)))
    same = DiagnosisSeverity.sound if report.cost is None else DiagnosisSeverity.unlike
    severity = {RanksVerdict.same: same, RanksVerdict.unknown: DiagnosisSeverity.not_judged}.get(
        report.verdict, DiagnosisSeverity.fault
    )
    says = f"{plural(report.records, 'rank')}: the ranks' choices are {report.verdict.value}"
    if report.verdict is RanksVerdict.same and report.cost is not None:
        says += f"; {report.cost.in_words}"
    evidence = [f"{each.kind}: {plural(each.ranks, 'rank')} without the table: {each.why}" for each in report.refused]
    evidence += [f"differs: {each.what}" for each in report.differences]
    return _diagnosis(folder, FileKind.preflight, severity, says, evidence, known)


def _results(file: Path, known: _Known) -> FileDiagnosis:
    opened = MeasurementFile(file)
    given = _given(opened, known)
    if known.machine is None:
        seen_there = _on_any_machine(opened, given, known)
        return _diagnosis(file, FileKind.results, DiagnosisSeverity.not_judged, *seen_there, known)
    asked = acceptance.AcceptOptions(known.scenario(), given)
    seen = acceptance.accept([opened], asked)
    of_others = [each.text for each in seen.problems if each.kind == Kind.mixed_machines]
    if of_others and known.given.machine is None:  # what another file shows is not this one's machine
        nowhere = replace(known, machine=None, nodes=asked.given.nodes, nccl=asked.given.nccl or None)
        return _diagnosis(file, FileKind.results, DiagnosisSeverity.not_judged, of_others[0], (), nowhere)
    failing = [each for each in seen.sizes if each.verdict.fails]
    evidence = [*_causes(seen, asked, known), *(f"{each.kind}: {each.text}" for each in seen.problems)]
    evidence += [f"expected times: {each}" for each in seen.expected_by]
    if not seen.judged:
        wanted = [f"would let it be judged: {each}" for each in seen.missing]
        slow = [each.in_words for each in seen.adapter_shares if each.looks_slow]
        says = f"it looks slow, though: {slow[0]}" if slow else "whether this is as fast as it should be"
        return _diagnosis(file, FileKind.results, DiagnosisSeverity.not_judged, says, [*wanted, *evidence], known)
    if seen.passes:
        says = f"as fast as it should be, at {len(seen.sizes)} of {len(seen.sizes)} sizes"
        return _diagnosis(file, FileKind.results, DiagnosisSeverity.sound, says, evidence, known)
    says = of_others[0] if of_others else "results that cannot be true"
    if seen.wrong_results:
        says = f"{plural(seen.wrong_results, 'call')} had wrong results"
    if failing:
        worst = max(failing, key=lambda each: each.bytes)
        says = (
            f"{worst.verdict.value} at {len(failing)} of {len(seen.sizes)} sizes: {worst.collective} of "
            f"{human_bytes(worst.bytes)} takes {worst.time_us:.0f} us, expected {worst.expected_us:.0f}"
        )
    return _diagnosis(file, FileKind.results, DiagnosisSeverity.fault, says, evidence, known)


def _on_any_machine(file: MeasurementFile, given: Given, known: _Known) -> tuple[str, list[str]]:
    """The finding and evidence of results of a machine that nobody names: what holds on each that has such GPUs.

    No verdict, for it may be a machine that the catalogue does not have, with other adapters.
    """
    gpu, machines = machines_with_such_gpus(file)
    evidence = [gpu] if gpu else []
    evidence += [f"machines with such GPUs: {', '.join(machines)}"] if machines else []
    if gpu and not machines:
        return f"no machine of the catalogue has {gpu}: {UNKNOWN_MACHINE}", evidence
    if alike := [machine for machine in machines if _has_bus_ids(machine, file)]:
        machines = alike
        evidence.append(f"with the bus ids of these GPUs: {', '.join(machines)}")
    seen = []
    for machine in machines:
        with suppress(TunerError):
            there = replace(known, machine=machine).scenario()
            seen.append(acceptance.accept([file], acceptance.AcceptOptions(there, given)))
    evidence += dict.fromkeys(why for each in seen for why in each.expected_by if why.startswith(OTHER_LINKS))
    slow = [[share for share in each.adapter_shares if share.looks_slow] for each in seen]
    if seen and all(each.judged and each.passes for each in seen):
        return f"it is as fast as each machine with such GPUs should be, but {UNKNOWN_MACHINE}", evidence
    late = [any(size.verdict is Verdict.slow for size in each.sizes) for each in seen]
    if seen and all(shares or too_slow for shares, too_slow in zip(slow, late, strict=True)):
        shares = [share for each in slow for share in each]
        how = f": {max(shares, key=lambda each: each.share).in_words}" if shares else ""
        return f"it looks slow on each machine with such GPUs{how}; {UNKNOWN_MACHINE}", evidence
    return UNKNOWN_MACHINE, evidence


_LISTED = re.compile(rb"\bdevice +\d+ \[([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\]")  # nccl-tests from 2.16 on


def _has_bus_ids(machine: str, file: MeasurementFile) -> bool:
    """Whether the bus ids of GPUs that nccl-tests lists are all of that machine; more than one has to be listed."""
    listed = {each.decode() for each in _LISTED.findall(read_bytes(file.path, BadInput))}
    return len(listed) > 1 and listed <= {gpu.busid.rpartition(".")[0] for gpu in catalogue.load(machine).topology.gpus}


def machines_with_such_gpus(file: MeasurementFile) -> tuple[str | None, list[str]]:
    """The GPUs of a node that results name, and the machines of the catalogue that have as many of them, else more.

    None and no machine where they do not say which GPUs, or how many of a node. Errors: BadMeasurement; BadInput
    for a file without times.
    """
    table = file.table(Given())
    if not table.blocks:
        raise BadInput(f"{file.path}: no times in it; valid: what nccl-tests printed")
    counts = {row.gpus_per_node for row in table.blocks if row.nodes}
    if not table.header.gpu or len(counts) != 1:
        return None, []
    (count,) = counts
    such = [
        each
        for each in map(catalogue.load, catalogue.names())
        if all(gpus.is_product(product, each.gpu) for product in table.header.gpu.split(", "))
    ]
    whole = [each.name for each in such if each.gpus_per_node == count]
    names = whole or [each.name for each in such if each.gpus_per_node > count]
    of_node, words = f"{count} x {table.header.gpu} a node", described.in_words(table.header.gpu, count)
    return of_node if names or words is None else f"{of_node} (in words, with your CPUs: {words})", names


def _given(file: MeasurementFile, known: _Known) -> Given:
    """Release and nodes: the user's, else what other files show where this one does not say them itself."""
    nccl, nodes = known.given.nccl, known.given.nodes
    own = None
    with suppress(TunerError):
        own = file.release
    given = Given(nccl=nccl or (known.nccl if own is None else "") or "", nodes=nodes)
    try:
        file.table(given)
    except TunerError:
        return replace(given, nodes=nodes or known.nodes)
    return given


def _causes(seen: acceptance.Acceptance, asked: acceptance.AcceptOptions, known: _Known) -> Iterator[str]:
    """Causes of slow times that no other file excludes: other results, or what shows the links themselves."""
    causes = seen.diagnosis
    if causes and len(known.results) > 1:
        with suppress(TunerError):  # of other nodes or machines: they say nothing of this one
            joint = acceptance.accept(known.results, asked)
            if not joint.problems and all(each.verdict is not Verdict.fast for each in joint.sizes):
                causes = joint.diagnosis
        if not causes:
            yield "no one cause explains these times and those of the other results"
    for each in causes:
        if each.resource is Resource.nvlinks and known.links_of is not None:
            yield f"{each.resource}: {known.links_of} shows what is left of them"
        else:
            yield f"{each.resource}: {each.what}"


def _graphs(file: Path, known: _Known) -> FileDiagnosis:
    says = "graphs of NCCL, taken by commands with `graphs` and `machine`; valid here: the topology or log of the run"
    return _diagnosis(file, FileKind.graphs, DiagnosisSeverity.not_judged, _cut(file) or says, (), known)


def _table(file: Path, known: _Known) -> FileDiagnosis:
    says = "a table of a tuner plugin: the plugin's own commands check, convert and try it"
    return _diagnosis(file, FileKind.table, DiagnosisSeverity.not_judged, says, (), known)


def _trace(file: Path, known: _Known) -> FileDiagnosis:
    try:
        calls = traces.read(file, 1 if known.machine is None and known.topology is None else known.scenario().ranks)
    except BadInput as error:
        start = read_bytes(file, BadInput)[:4096].lstrip().lower()
        is_one = traces.JSON.match(start) or start.startswith(nsight.REPORT.lower())
        if traces.VALID not in str(error) and (is_one or b"collective" in start.splitlines()[0]):
            raise
        says = f"nothing that NCCL or its tools write; {KNOWN_FILES}"
        return _diagnosis(file, FileKind.unknown, DiagnosisSeverity.not_judged, says, (), known)
    if calls.kind == flight_recorder.KIND:
        says = "one rank's dump does not say what ran; valid: the folder of all ranks' dumps, which says who is behind"
        return _diagnosis(file, FileKind.trace, DiagnosisSeverity.not_judged, says, calls.notes, known)
    if not calls.calls:
        says = f"no call of NCCL's in it: {calls.kind}; valid: one of a rank while it uses its GPU"
        return _diagnosis(file, FileKind.trace, DiagnosisSeverity.not_judged, says, calls.notes, known)
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
    severity = DiagnosisSeverity.fault if seen.differing else DiagnosisSeverity.sound
    return _diagnosis(file, FileKind.trace, severity, compared, [*evidence, *seen.notes], known)


def _nodes_of(calls: CallList, of_node: Scenario) -> int | None:
    """Nodes of the largest communicator whose calls say what ran; None where the calls do not say their ranks."""
    ranks = max((call.ranks or 0 for call in calls.executed), default=0)
    return ranks // of_node.ranks if ranks and ranks % of_node.ranks == 0 else None


def _diagnosis(
    file: Path, kind: FileKind, severity: DiagnosisSeverity, finding: str, evidence: Sequence[str], known: _Known
) -> FileDiagnosis:
    more = len(evidence) - MOST_EVIDENCE
    shown = [*evidence[:MOST_EVIDENCE], *([f"and {more} more"] if more > 0 else [])]
    return FileDiagnosis(str(file), kind, severity, finding, tuple(shown), known.machine, known.nodes, known.nccl)


_OF_KIND: dict[FileKind, Callable[[Path, _Known], FileDiagnosis]] = {
    FileKind.topology: _topology,
    FileKind.listing: _listing,
    FileKind.log: _log,
    FileKind.graphs: _graphs,
    FileKind.preflight: _preflight,
    FileKind.job: _job,
    FileKind.ras: _ras,
    FileKind.recorder: _recorder,
    FileKind.results: _results,
    FileKind.trace: _trace,
    FileKind.table: _table,
    FileKind.unknown: _unknown,
}
