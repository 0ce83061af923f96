"""Diagnosis of a log of NCCL: how it ended, and what its lines show."""

import sys
from collections.abc import Iterator
from pathlib import Path

from tuner.base.findings import Finding, Severity, worst
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in
from tuner.machine import gpus
from tuner.scenario import Scenario
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import Imported, LogAdditions

ENDS = ("diagnose.ends_orderly", "diagnose.ends_after_init", "diagnose.ends_after_calls")


def of_log(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings of a log: those of its checks, and which communicator and connections it shows."""
    imported = importer.read(file, LogAdditions(release=known.nccl, nodes=known.nodes))
    known.learn(file, nccl=imported.release if imported.emulated else None, nodes=imported.node_count)
    found = list(imported.evidence.findings)
    if known.machine is not None and not _has_nvls(known.scenario()):
        found = [_never(each, known.machine) for each in found]
    if any(each.code == "diagnose.few_channels" and each.facts["nvlink"] for each in found):
        known.links_of = known.links_of or str(file)
    shown = [_communicator(imported), *_connections(imported)]
    if worst(found) in (None, Severity.NOTE):
        if not any(each.code in ENDS for each in found):
            return found_in(file, FileKind.log, [Finding("diagnose.log_unread", Severity.UNKNOWN, {}), *shown], known)
        found.sort(key=lambda each: each.code not in ENDS)
    else:
        found.sort(key=_in_time)
    return found_in(file, FileKind.log, [*found, *shown], known)


def _in_time(found: Finding) -> tuple[bool, int]:
    """Order of findings: events by their line, those that followed from others last of them, then all else."""
    line = found.facts.get("line")
    return (bool(found.facts.get("follows")), line if isinstance(line, int) else sys.maxsize)


def _never(found: Finding, machine: str) -> Finding:
    """The finding why there is no NVLS, on a machine that has none; any other as it is."""
    if found.code != "diagnose.no_nvls":
        return found
    return Finding("diagnose.no_nvls_by_design", Severity.NOTE, {"machine": machine})


def _has_nvls(scenario: Scenario) -> bool:
    """Whether any GPU of it may have NVLS; where they are not known, too."""
    return not scenario.gpu_names or any(name.upper() in gpus.multicast_chips() for name in scenario.gpu_names)


def _communicator(imported: Imported) -> Finding:
    facts = {"nccl": imported.release, "ranks": imported.ranks, "nodes": imported.node_count}
    return Finding("diagnose.communicator", Severity.NOTE, facts)


def _connections(imported: Imported) -> Iterator[Finding]:
    for way, count in imported.evidence.transports.items():
        yield Finding("diagnose.connections", Severity.NOTE, {"way": way, "count": count})
