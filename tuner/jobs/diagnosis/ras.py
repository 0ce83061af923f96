"""Diagnoses reports of NCCL's RAS: JSON and text of ncclras or of its server, and excerpts of the text.

If ranks are at different operations, a single report may show a passing moment; two reports with the same counts show a
hang.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.records import MOST_EVIDENCE, FileDiagnosis, FileKind, KnownFacts, RanksBehind, found_in
from tuner.scenario.logs.checks.warnings import RESULTS

# src/ras/client_support.cc: headings of the text, and what it says of ranks
SUMMARY = b"Communicators... ("
_EXCERPT = expression(
    rb"^#\d+-\d+ \([0-9a-f]+\) [A-Z]+ *$|Communicator ranks have different \w+ (?:operation counts|status)"
    rb"|considered dead \(unreachable via the RAS|No communicator data collected!"
    rb"|Missing communicator data from \d+ job",
    re.M,
)
_JSON_KEYS = (b'"communicators"', b'"nccl_version"')
_OF_GROUP = expression(r" *\d+(?: +[\d-]+){5} +\w\S* +(\w\S*)")  # of communicators: their errors
_HEADING = expression(r"[A-Z]+|#\d+-\d+ \([0-9a-f]+\) [A-Z]+")
_COMMUNICATOR = expression(r"#\d+-\d+ \(([0-9a-f]+)\)")
_COUNTS_OF = expression(r"Communicator ranks have different (\w+) operation counts")
_MANY = expression(r"\d+ ranks have (?:launched up to operation (\d+)|not launched any)")
_ONE = expression(r"Rank (\d+) has (?:launched up to operation (\d+)|not launched any)")
_WARNINGS = ("MISMATCH", "TIMEOUT")  # what the section "Warnings" has; all else is an error


def is_report(content: bytes) -> bool:
    """Whether the content is a report of RAS, or a part of one."""
    start = content[: 1 << 20]
    return SUMMARY in start or _json_at(start) is not None or _EXCERPT.search(start) is not None


def _json_at(content: bytes) -> int | None:
    """Index at which a report's JSON begins, after the answers to a client's first commands; None if it has no JSON."""
    at = content.find(b"{")
    before = content[:at].split() if at >= 0 else []
    plain = at >= 0 and all(part in (b"SERVER", b"PROTOCOL", b"OK") or part.isdigit() for part in before)
    return at if plain and all(key in content for key in _JSON_KEYS) else None


def of_ras(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on a report; if another report is known, they also say whether the ranks have moved on in between.

    BadInput if the file is cut off or no report.
    """
    content = read_bytes(file, BadInput)
    at = _json_at(content)
    if at is not None:
        try:
            report = json.loads(content[at:])
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file} is cut off or not JSON: {error}; give the whole report") from None
        if not isinstance(report, dict):
            raise BadInput(f"{file} is not a report of RAS, as it has no JSON object; give what ncclras -f json prints")
        nccl = report.get("nccl_version")
        known.learn(file, nccl=nccl if isinstance(nccl, str) else None)
        found, behind = list(_of_json(report)), tuple(_behind_in_json(report))
    else:
        lines = [line.rstrip() for line in content.decode("utf-8", "replace").splitlines()]
        found, behind = list(_of_text(lines)), tuple(_behind_in_text(lines))
    found += _behind(file, behind, known)
    if all(each.severity is Severity.NOTE for each in found):
        found.insert(0, Finding("ras.sound", Severity.NOTE, {}))
    found.append(Finding("ras.not_counted", Severity.NOTE, {}))
    return found_in(file, FileKind.ras, found, known)


def _behind(file: Path, behind: tuple[RanksBehind, ...], known: KnownFacts) -> Iterator[Finding]:
    """Finds ranks that others wait for; it is a hang if another report shows the same."""
    others = [each for name, each in known.ras_reports.items() if name != file.resolve()]
    known.ras_reports[file.resolve()] = behind
    for one in behind:
        same = any(one in other for other in others)
        facts = {
            "communicator": one.communicator,
            "operation": one.operation,
            "ranks": [rank for rank, _ in one.ranks],
            "counts": sorted({count for _, count in one.ranks}),
            "ahead": one.ahead,
            "steps": one.ahead - min(count for _, count in one.ranks),
        }
        yield Finding("ras.hang" if same else "ras.behind", Severity.FAULT if same else Severity.UNKNOWN, facts)


def _listed(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _of_json(report: Mapping[str, Any]) -> Iterator[Finding]:
    communicators = _listed(report.get("communicators"))
    if not communicators:
        yield Finding("ras.no_communicator", Severity.UNKNOWN, {})
    for each in communicators:
        name = str(each.get("hash", "")).removeprefix("0x")
        ranks, missing = _listed(each.get("ranks")), _listed(each.get("missing_ranks"))
        for one in missing:
            said = one.get("status")
            status: dict[str, Any] = said if isinstance(said, dict) else {}
            dead = status.get("considered_dead") is True
            facts = {"communicator": name, "rank": one.get("rank"), "dead": dead, "not_joined": None}
            facts |= {key: one.get(key) for key in ("host", "pid", "cuda_dev")}
            if not dead and status.get("unresponsive") is False:
                facts["not_joined"] = True
            yield Finding("ras.missing", Severity.FAULT if dead else Severity.UNKNOWN, facts)
        shown, counted = len(ranks) + len(missing), each.get("size")
        if isinstance(counted, int) and shown < counted:
            yield Finding(
                "ras.ranks_not_shown", Severity.UNKNOWN, {"communicator": name, "shown": shown, "of": counted}
            )
        yield from _states(name, ranks)
    if isinstance(ras := report.get("ras"), dict) and ras.get("timeouts_count"):
        yield Finding("ras.timeouts", Severity.NOTE, {"count": ras["timeouts_count"]})


def _states(communicator: str, ranks: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Finds ranks that failed, and stages of a communicator's life that only some ranks have reached."""
    every = [(each.get("rank"), each["status"]) for each in ranks if isinstance(each.get("status"), dict)]
    for rank, status in every:
        codes = {status.get("async_error"), status.get("init_state")} - {0, None}
        for code in sorted(code for code in codes if isinstance(code, int) and 0 < code < len(RESULTS)):
            facts = {"communicator": communicator, "rank": rank, "result": RESULTS[code]}
            yield Finding("ras.failed", Severity.FAULT, facts)
    stages = {"abort_flag": "aborted", "destroy_flag": "destroyed", "finalize_called": "finalized"}
    for key, stage in stages.items():
        at = [rank for rank, status in every if status.get(key) is True]
        if at and (len(at) < len(every) or stage == "aborted"):
            facts = {"communicator": communicator, "ranks": at, "stage": stage, "of": len(every)}
            yield Finding("ras.stage", Severity.FAULT if stage == "aborted" else Severity.UNKNOWN, facts)


def _behind_in_json(report: Mapping[str, Any]) -> Iterator[RanksBehind]:
    for each in _listed(report.get("communicators")):
        counts: dict[str, dict[int, int]] = {}
        for one in _listed(each.get("ranks")):
            per_operation = one.get("collective_counts")
            for name, count in per_operation.items() if isinstance(per_operation, dict) else ():
                if isinstance(count, int) and isinstance(one.get("rank"), int):
                    counts.setdefault(name, {})[one["rank"]] = count
        for name, of_ranks in counts.items():
            most = max(of_ranks.values())
            late = tuple(sorted((rank, count) for rank, count in of_ranks.items() if count < most))
            if late:
                yield RanksBehind(str(each.get("hash", "")).removeprefix("0x"), name, most, late)


def _blocks(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the headings of errors and warnings in the text, each with the indented lines below it."""
    heading: str | None = None
    block: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("  ") and heading is not None:
            block.append(line.strip())
            continue
        if heading is not None and block:
            yield heading, block
        heading, block = (line, []) if _HEADING.fullmatch(line) else (None, [])


def _of_text(lines: list[str]) -> Iterator[Finding]:
    whole = any(SUMMARY.decode() in line for line in lines)
    blocks = list(_blocks(lines))
    for heading, block in blocks:
        kind = heading.split()[-1]
        if any(map(_COUNTS_OF.match, block)) and any(map(_ONE.match, block)):
            continue  # said with its counts
        severity = Severity.UNKNOWN if kind in _WARNINGS else Severity.FAULT
        yield Finding("ras.said", severity, {"heading": heading, "lines": block[:MOST_EVIDENCE]})
    if not whole:
        yield Finding("ras.excerpt", Severity.NOTE, {})
        return
    errors = [row[1] for row in map(_OF_GROUP.fullmatch, lines) if row]
    ends = any(set(line) == {"="} and before == "Warnings" for before, line in pairwise(["", *lines]))
    if not blocks and (set(errors) != {"OK"} or not ends):
        facts = {"missing": sorted(set(errors) - {"OK"}) or ["a communicator"]}
        yield Finding("ras.cut", Severity.UNKNOWN, facts)


def _behind_in_text(lines: list[str]) -> Iterator[RanksBehind]:
    communicator, operation = "", None
    many, late = list[int](), list[tuple[int, int]]()
    for line in [*lines, ""]:
        counts = _COUNTS_OF.match(line.strip())
        if operation is not None and (counts or not line.startswith("  ")):
            most = max([*many, *(count for _, count in late)], default=0)
            if behind := tuple(sorted(each for each in late if each[1] < most)):
                yield RanksBehind(communicator, operation, most, behind)
            operation, many, late = None, [], []
        if named := _COMMUNICATOR.match(line):
            communicator = named[1]
        if counts:
            operation = counts[1]
        elif operation is not None and (match := _MANY.match(line.strip())):
            many.append(int(match[1] or 0))
        elif operation is not None and (match := _ONE.match(line.strip())):
            late.append((int(match[1]), int(match[2] or 0)))
