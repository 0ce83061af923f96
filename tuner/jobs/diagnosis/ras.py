"""Diagnosis of a report of NCCL's RAS."""

import re
from itertools import pairwise
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.base.findings import Severity
from tuner.jobs.diagnosis.records import MOST_EVIDENCE, FileDiagnosis, FileKind, KnownFacts, in_sentences

_OF_GROUP = re.compile(r" *\d+(?: +[\d-]+){5} +\w\S* +(\w\S*)")  # of communicators: their errors


def of_ras(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding of a report of NCCL's RAS as text: headings of errors and warnings, with indented lines below."""
    lines = read_bytes(file, BadInput).decode("utf-8", "replace").splitlines()
    found: dict[Severity, list[list[str]]] = {Severity.FAULT: [], Severity.UNKNOWN: []}
    section = None
    for before, line in pairwise(["", *map(str.rstrip, lines)]):
        if set(line) == {"="}:
            section = {"Errors": Severity.FAULT, "Warnings": Severity.UNKNOWN}.get(before)
        elif section is not None and line.startswith("  "):
            if not before.startswith("  "):
                found[section].append([before])
            found[section][-1].append(line.strip())
    severity = next((each for each, blocks in found.items() if blocks), Severity.NOTE)
    errors = [row[1] for row in map(_OF_GROUP.fullmatch, map(str.rstrip, lines)) if row]
    if severity is Severity.NOTE and set(errors) != {"OK"}:
        says = f"cut: no line on {', '.join(sorted(set(errors) - {'OK'})) or 'a communicator'}; valid: the whole report"
        return in_sentences(file, FileKind.ras, Severity.UNKNOWN, says, (), known)
    if severity is Severity.NOTE:
        says = "RAS saw no error, and all ranks at the same operations, when it was asked"
        return in_sentences(file, FileKind.ras, severity, says, (), known)
    first, *others = [
        f"{heading}: {'; '.join(says[:MOST_EVIDENCE])}" for blocks in found.values() for heading, *says in blocks
    ]
    moment = "ranks may differ for a moment: the same counts in a later report are a hang"
    others += [moment] if severity is Severity.UNKNOWN else []
    return in_sentences(file, FileKind.ras, severity, first, others, known)
