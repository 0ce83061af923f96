"""Diagnoses a log of NCCL: how it ended, and what its lines show."""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.base.errors import BadInput, TunerError
from tuner.base.findings import Finding, Severity, worst
from tuner.jobs.diagnosis.kinds import is_large
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, Progress, found_in, refused
from tuner.machine import gpus
from tuner.scenario import Scenario
from tuner.scenario.logs import importer
from tuner.scenario.logs.checks import endings, timeouts, warnings
from tuner.scenario.logs.checks.communication import GDRDMA, NO_GPUDIRECT
from tuner.scenario.logs.imported import Imported, LogAdditions, Reading, ShownByLog
from tuner.scenario.logs.lines import Lines, Thread, joined
from tuner.scenario.logs.reader import NcclLog, RankLog, parse, sort_of
from tuner.scenario.logs.thinned import read_thinned

ROOT_CAUSES = ("requests.release_crashes", "diagnose.newer_gpu")  # of an ending that they explain
ENDS = ("diagnose.ends_orderly", "diagnose.ends_after_init", "diagnose.ends_after_calls")


def of_logs(
    files: Sequence[Path], outputs: Sequence[Path], known: KnownFacts, progress: Progress
) -> list[FileDiagnosis]:
    """The findings on logs and other output of jobs; the files of each job are diagnosed together."""
    read = {file: read_thinned(file, sort_of, progress) for file in (*files, *outputs)}
    for file in known.results:
        if file in read and is_large(file):
            known.large_logs[file] = b"".join(line for _, line in read[file].raw())
    found = []
    parsed = {file: parse(lines) for file, lines in read.items()}
    for job in _jobs(parsed):
        name, kind = str(job[0]), FileKind.output if set(job) <= set(outputs) else FileKind.log
        lines = read[job[0]] if len(job) == 1 else joined([(file.name, read[file]) for file in job])
        try:
            learnt = len(known.learnt)
            log = parsed[job[0]] if len(job) == 1 else _of_ranks(lines, [parsed[file] for file in job])
            one = _of_job(name, kind, lines, log, known)
            hosts = {thread.host for file in job for thread in lines_threads(parsed[file])}
            hosts |= {each.host for file in job for each in parsed[file].endings if each.host is not None}
            findings = (*one.findings, *known.learnt[learnt:])
            found.append(
                replace(one, findings=findings, hosts=tuple(sorted(hosts)), other_files=tuple(map(str, job[1:])))
            )
        except TunerError as error:
            found.append(refused(Path(name), FileKind.log, error, known))
    return found


def _of_ranks(lines: Lines, files: Sequence[NcclLog]) -> NcclLog:
    """The records of a job's joined files: in a file of one rank, an ending that says no process is that rank's."""
    log, starts = parse(lines), [start for start, _ in lines.files]
    owners = [_rank_of_file(each) for each in files]
    for number, each in enumerate(log.endings):
        owner = owners[bisect_right(starts, each.line) - 1]
        if owner is not None and each.source == (None, None, None) and each.gpu is None:
            log.endings[number] = replace(each, rank=owner.rank, host=owner.thread.host, pid=owner.thread.pid)
    return log


def _rank_of_file(log: NcclLog) -> RankLog | None:
    """The rank, in its largest communicator, of the one process that wrote a file's lines of NCCL, if it is one."""
    ranks = [each for each in log.ranks if each.rank is not None]
    if len({each.thread.process for each in log.ranks}) != 1:
        return None
    return max(ranks, key=lambda each: each.ranks or 0, default=None)


def lines_threads(log: NcclLog) -> Iterator[Thread]:
    """Yields the threads that wrote a log's lines about ranks, warnings, variables or the network. For lines about
    variables or the network, thread 0 stands for the whole process.
    """
    yield from (each.thread for each in log.ranks)
    yield from (each.thread for each in log.warnings.values())
    yield from (Thread(*process, 0) for process in log.environment.keys() | log.networks.keys())


def _jobs(read: Mapping[Path, NcclLog]) -> list[list[Path]]:
    """Groups files by job: logs with the same communicator are one job. If there is only one job, files without a
    communicator belong to it.
    """
    jobs: list[tuple[set[str], list[Path]]] = []
    others = []
    for file, log in read.items():
        if not (names := {each.group for each in log.ranks if each.group is not None}):
            others.append(file)
            continue
        same = [job for job in jobs if job[0] & names]
        jobs = [job for job in jobs if job not in same]
        jobs.append((names.union(*(job[0] for job in same)), [*(each for job in same for each in job[1]), file]))
    if len(jobs) > 1 or not jobs:
        return [*(files for _, files in jobs), *([each] for each in others)]
    return [[*jobs[0][1], *others]]


def _of_job(name: str, kind: FileKind, lines: Lines, parsed: NcclLog | None, known: KnownFacts) -> FileDiagnosis:
    """The findings on a job's lines: those of the checks, and the communicator and connections that the lines show."""
    try:
        imported = importer.of_lines(lines, name, LogAdditions(release=known.nccl, nodes=known.nodes), parsed)
    except importer.NothingLogged:
        return found_in(Path(name), FileKind.output, [Finding("diagnose.no_nccl", Severity.UNKNOWN, {})], known)
    except BadInput:
        if found := _of_amd(parsed or parse(lines)):
            return found_in(Path(name), kind, found, known)
        raise
    file = Path(name)
    known.learn(file, nccl=imported.release if imported.emulated else None, nodes=imported.node_count)
    found = list(imported.evidence.findings)
    if known.machine is not None:
        scenario = known.scenario()
        if not _has_nvls(scenario):
            found = [_never(each, known.machine) for each in found]
        found += _unlike_machine(imported, scenario, known.machine)
    if known.without_gpudirect is not None:
        found = [_as_topology(each, known.without_gpudirect) for each in found]
    if any(each.code == "diagnose.few_channels" and each.facts["nvlink"] for each in found):
        known.links_of = known.links_of or str(file)
    shown = [_communicator(imported), *_connections(imported)] if imported.ranks or imported.release else []
    if lines.left_out:
        shown.append(Finding("diagnose.lines_left_out", Severity.NOTE, {"lines": lines.total}))
    if worst(found) in (None, Severity.NOTE):
        if not any(each.code in ENDS for each in found):
            return found_in(file, kind, [Finding("diagnose.log_unread", Severity.UNKNOWN, {}), *shown], known)
        found.sort(key=lambda each: each.code not in ENDS)
    else:
        began = any(_begins(each) for each in found)
        found.sort(key=lambda each: _in_time(each, began))
    return found_in(file, kind, [*found, *shown], known)


def _of_amd(log: NcclLog) -> list[Finding]:
    """Findings on what went wrong in a log of AMD's library; empty for any other log, and if nothing went wrong."""
    if log.rccl is None:
        return []
    shown = ShownByLog(Reading(log, LogAdditions(), None), {}, None, None)
    found = [*endings.ending(shown), *timeouts.timeouts(shown), *warnings.warnings(shown)]
    if worst(found) is not Severity.FAULT:
        return []
    began = any(_begins(each) for each in found)
    found.sort(key=lambda each: _in_time(each, began))
    return [*found, Finding("diagnose.of_amd", Severity.NOTE, {"rccl": log.rccl})]


def _begins(found: Finding) -> bool:
    """Whether a failure began with this finding: lost connections of other ranks are its consequences, even if they
    were logged first."""
    if found.severity is not Severity.FAULT or found.facts.get("after_another"):
        return False
    return (found.code == "diagnose.warned" and not found.facts.get("slower")) or bool(found.facts.get("began"))


def _in_time(found: Finding, began: bool) -> tuple[bool, bool, bool, bool, int]:
    """Sort key of findings: first those that explain how the job ended, then events by their line, then consequences of
    other events, then what only made the job slower. ``began``: one of the findings says where a failure began.
    """
    line = found.facts.get("line")
    line = line if isinstance(line, int) else sys.maxsize
    after = began and bool(found.facts.get("after_another"))
    follows, slower = bool(found.facts.get("follows")), bool(found.facts.get("slower"))
    return found.code not in ROOT_CAUSES, slower, follows, after, line


def _never(found: Finding, machine: str) -> Finding:
    """Replaces the finding that there is no NVLS by a note that this machine never has NVLS; returns any other finding
    unchanged.
    """
    if found.code != "diagnose.no_nvls":
        return found
    return Finding("diagnose.no_nvls_by_design", Severity.NOTE, {"machine": machine})


def _as_topology(found: Finding, topology: str) -> Finding:
    """Replaces the finding that there is no GPUDirect RDMA by a note that the topology says the same; returns any other
    finding unchanged.
    """
    if found.code != NO_GPUDIRECT:
        return found
    facts = {"file": topology, "plugin_says": found.facts.get("plugin_says")}
    return Finding("diagnose.gpudirect_as_topology", Severity.NOTE, facts)


def _unlike_machine(imported: Imported, scenario: Scenario, machine: str) -> Iterator[Finding]:
    """Finds GPUs of another model than that of the machine, and GPUDirect RDMA that only the log or only the machine
    has."""
    models, names = scenario.gpu_names, imported.hardware.gpu_names
    others = [name for name in names if not any(gpus.is_product(name, model) for model in models)]
    if models and others:
        yield Finding("diagnose.gpus_unlike", Severity.UNLIKE, {"gpus": others, "model": models[0], "machine": machine})
        return
    own = scenario.resolve().own.topology
    ways = {way: count for way, count in imported.evidence.transports.items() if way.startswith("NET/")}
    direct = sum(count for way, count in ways.items() if way.endswith(GDRDMA))
    able = [net for net in own.nets if net.gpu_direct] if any(gpu.gpu_direct for gpu in own.gpus) else []
    if direct and own.nets and not able:
        yield Finding("diagnose.gpudirect_unlike", Severity.UNLIKE, {"count": direct, "machine": machine})
    elif ways and not direct and own.nets and len(able) == len(own.nets):
        facts = {"count": sum(ways.values()), "machine": machine}
        yield Finding("diagnose.gpudirect_lacks", Severity.UNLIKE, facts)


def _has_nvls(scenario: Scenario) -> bool:
    """Whether any GPU may have NVLS; also true if the GPUs are not known."""
    return not scenario.gpu_names or any(name.upper() in gpus.multicast_chips() for name in scenario.gpu_names)


def _communicator(imported: Imported) -> Finding:
    facts = {"nccl": imported.release, "ranks": imported.ranks, "nodes": imported.node_count}
    return Finding("diagnose.communicator", Severity.NOTE, facts)


def _connections(imported: Imported) -> Iterator[Finding]:
    for way, count in imported.evidence.transports.items():
        yield Finding("diagnose.connections", Severity.NOTE, {"way": way, "count": count})
