"""Findings of an acceptance as codes with facts: the verdict first, then what supports it, then causes and notes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tuner.base.findings import Finding, Severity, words
from tuner.times.acceptance.evidence import LogFacts
from tuner.times.acceptance.fabric import FabricCause
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import BANDWIDTH_BYTES, BEYOND_LINKS, IN_A_ROW, JudgedCurve, SizeVerdict
from tuner.times.acceptance.public_runs import RankedRun
from tuner.times.acceptance.shapes import CurveLoss

if TYPE_CHECKING:
    from tuner.times.acceptance.accept import Acceptance, JudgedSize, WrongResults

_FEW = 0.005  # a smaller difference to the lowest run is not mentioned
# Share of the expected speed that 99 % of healthy public curves exceed, whatever the expected time comes from
_LOOKS_SLOW = 2 / 3
_MANY = 8  # most names in a sentence
# A measured time over the time that NCCL prints beside its choice; no healthy run of a large call reaches this factor
_MODEL_OFF = 8.0
_LARGE_BYTES = 2**24


class RunVerdict(StrEnum):
    """The verdict on all results. A slower row or a wrong result never makes it better."""

    passes = "pass"
    not_judged = "cannot be judged"
    fails = "FAIL"


def in_findings(
    made: "Acceptance",
    *,
    wrong: Sequence["WrongResults"],
    ends_early: bool,
    curves: Sequence[JudgedCurve],
    losses: Sequence[tuple[JudgedCurve, CurveLoss]],
    logs: Sequence[LogFacts],
    other_links: Sequence[Finding],
    fabric: Mapping[tuple[str, ...], Sequence[FabricCause]],
) -> Iterator[Finding]:
    """All findings, the verdict first; only wrong results come before it.

    ``ends_early``: whether a file ends within a row. ``other_links``: findings that say that the machine's NVLinks
    differ from the calibration's. ``fabric``: the remaining causes of a loss; the key describes the calls in words.
    """
    yield from map(wrong_results, wrong)
    yield _verdict(made, losses, ends_early=ends_early)
    for problem in made.problems:
        severity = Severity.FAULT if problem.refused else Severity.NOTE
        lines = list(problem.lines[:_MANY])
        yield Finding(
            "accept.rows", severity, {"file": problem.file, "kind": problem.kind, "lines": lines, "text": problem.text}
        )
    yield from map(_rank, _of_interest(made.comparisons))
    yield from _causes(made, logs)
    several_shapes = len({(each.nodes, each.gpus_per_node) for each in made.sizes}) > 1
    yield from _losses(losses, several_shapes=several_shapes)
    yield from filter(None, map(_beyond_links, curves))
    yield from _of_fabric(fabric)
    if made.passes_as:
        yield Finding("accept.passes_as", Severity.UNLIKE, {"releases": list(made.passes_as)})
    yield from _notes(made, other_links)
    yield from _beside_model(made.sizes, logs)


def wrong_results(each: "WrongResults") -> Finding:
    """The finding that calls of a file have wrong results, with the numbers of calls out of place and in place."""
    where = [
        f"{count} {name}" for count, name in ((each.out_of_place, "out of place"), (each.in_place, "in place")) if count
    ]
    return Finding(
        "accept.wrong_results",
        Severity.FAULT,
        {
            "file": each.file,
            "calls": each.calls,
            "sizes": list(each.sizes),
            "most": each.most or None,
            "where": " and ".join(where) or None,
            "lines": list(each.lines),
            "out_of_bounds": each.out_of_bounds or None,
        },
    )


def calls_of(sizes: Iterable["JudgedSize"]) -> int:
    """Number of calls; a size in place and out of place counts as one call."""
    kinds = ((each.file, each.nccl, each.collective, each.dtype, each.shape_words, each.bytes) for each in sizes)
    return len(set(kinds))


def _verdict(made: "Acceptance", losses: Sequence[tuple[JudgedCurve, CurveLoss]], *, ends_early: bool) -> Finding:
    failing, sizes = made.calls_judged
    counts = {"failing": failing, "sizes": sizes}
    if made.passes:
        open_sizes = sorted({each.bytes for each in made.sizes if each.verdict is SizeVerdict.not_judged})
        slow_sizes = sorted({size for _, loss in losses for size in loss.sizes if len(loss.sizes) >= IN_A_ROW})
        slow = {"slow": slow_sizes, "slow_from": slow_sizes[0], "slow_to": slow_sizes[-1]} if slow_sizes else {}
        return Finding("accept.passes", Severity.NOTE, {**counts, **slow, "open": open_sizes})
    if not made.judged:
        code = "accept.ends_early" if ends_early else "accept.not_judged"
        open_count = calls_of(each for each in made.sizes if each.verdict is SizeVerdict.not_judged)
        facts_of = {**counts, "open": open_count, "missing": list(made.missing)}
        speed = _speed_of_large(made)
        if code == "accept.not_judged" and speed < _LOOKS_SLOW:
            code, facts_of["speed_percent"] = "accept.looks_slow", 100 * speed
        return Finding(code, Severity.UNKNOWN, facts_of)
    if not failing:
        return Finding("accept.refused", Severity.FAULT, counts if sizes else {"nothing": True})
    return Finding("accept.fails", Severity.FAULT, counts)


def _speed_of_large(made: "Acceptance") -> float:
    """The median share of the expected speed that large calls reach; 1 if no large call has an expected time."""
    large = [each for each in made.sizes if each.bytes >= BANDWIDTH_BYTES and each.expected_us > 0]
    return median(each.expected_us / each.time_us for each in large) if large else 1.0


def _of_interest(comparisons: Sequence[RankedRun]) -> Iterator[RankedRun]:
    """Yields one comparison per kind of call; of in place and out of place, the slower one."""
    slowest: dict[object, RankedRun] = {}
    for each in comparisons:
        key = each.collective, each.nodes, each.gpus_per_node, each.bytes
        if key not in slowest or each.own_gbs < slowest[key].own_gbs:
            slowest[key] = each
    yield from slowest.values()


def _rank(each: RankedRun) -> Finding:
    below = 1 - each.own_gbs / each.low_gbs
    lowest = each.rank == each.runs + 1
    facts = {
        "collective": each.collective,
        "bytes": each.bytes,
        "nodes": each.nodes,
        "gpus_per_node": each.gpus_per_node,
        "gpus": each.gpus,
        "adapters": each.adapters or None,
        "where": _where(each),
        "own_gbs": each.own_gbs,
        "low_gbs": each.low_gbs,
        "high_gbs": each.high_gbs,
        "rank": each.rank,
        "runs": each.runs,
        "of": each.runs + 1,
        "below_percent": 100 * below if below > _FEW else None,
        "tables": list(each.names),
    }
    if each.rank == 1:
        return Finding("accept.fastest", Severity.NOTE, facts)
    return Finding("accept.lowest" if lowest else "accept.rank", Severity.NOTE, facts)


def _where(each: RankedRun) -> str:
    nodes = f"{each.nodes} x {each.gpus_per_node}" if each.nodes > 1 else f"{each.gpus_per_node}"
    return f"{nodes} {each.gpus}{f' with {each.adapters}' if each.adapters else ''}"


def _losses(losses: Sequence[tuple[JudgedCurve, CurveLoss]], *, several_shapes: bool) -> Iterator[Finding]:
    """Yields the shape of each loss; only once if in place and out of place have the same shape. The words name the
    nodes and GPUs if the results are of ``several_shapes``.
    """
    said: set[object] = set()
    for judged, loss in losses:
        kind = judged.curve.kind
        key = kind.request.collective.name, kind.shape, loss.shape, loss.sizes
        if key in said:
            continue
        said.add(key)
        fails = not judged.passes
        yield Finding(
            f"accept.{loss.shape.value}",
            Severity.FAULT if fails else Severity.UNLIKE,
            {
                "collective": kind.request.collective.name,
                "placement": "in place" if kind.in_place else "out of place",
                "fails": fails,
                "sizes": list(loss.sizes),
                "first": loss.sizes[0],
                "last": loss.sizes[-1],
                "factor": loss.factor,
                "most": loss.most,
                "share_percent": 100 * loss.share,
                "nodes": kind.shape.nodes,
                "gpus_per_node": kind.shape.gpus_per_node,
                "shapes": True if several_shapes else None,
                "smaller": True if _passes_below(judged, loss.sizes[0]) else None,
            },
        )


def _passes_below(judged: JudgedCurve, nbytes: int) -> bool:
    """Whether sizes below ``nbytes`` were judged, and none of them fails."""
    below = [verdict for size, verdict in zip(judged.curve.bytes, judged.verdicts, strict=True) if size < nbytes]
    return SizeVerdict.passed in below and not any(verdict.fails for verdict in below)


def _beyond_links(judged: JudgedCurve) -> Finding | None:
    """The sizes that take far longer than the links alone need, and the most times what these need. None if there are
    no such sizes, or if the expected times fail them as well."""
    which = judged.beyond_links & (np.isnan(judged.expected.time_us) | judged.expected.open)
    if not which.any():
        return None
    kind, curve = judged.curve.kind, judged.curve
    calls = {
        "collective": kind.request.collective.name,
        "placement": "in place" if kind.in_place else "out of place",
        "sizes": list(map(int, curve.bytes[which])),
        "factor": float((curve.time_us[which] / judged.links_us[which]).max()),
    }
    return Finding("accept.beyond_links", Severity.FAULT, {**calls, "most": BEYOND_LINKS})


def _causes(made: "Acceptance", logs: Sequence[LogFacts]) -> Iterator[Finding]:
    """Yields the causes of a loss that no log refutes, the likeliest first."""
    sockets = any(each.lower().startswith("socket") for log in logs for each in log.networks)
    failing = any(each.verdict is SizeVerdict.slow for each in made.sizes)
    if failing and sockets:
        yield Finding("accept.sockets_seen", Severity.FAULT, {})
    for number, one in enumerate(made.diagnosis):
        if one.resource is Resource.sockets and sockets:
            continue
        cause = {"resource": one.resource.value, "what": one.what, "first": number == 0}
        yield Finding("accept.cause" if number == 0 else "accept.other_cause", Severity.FAULT, cause)
    if failing and not made.diagnosis and not sockets:
        yield Finding("accept.no_single_fault", Severity.NOTE, {})


def _of_fabric(found: Mapping[tuple[str, ...], Sequence[FabricCause]]) -> Iterator[Finding]:
    """Yields the remaining causes of each loss, each with what would show it."""
    for calls, causes in found.items():
        facts = {"calls": list(calls), "count": len(causes)}
        yield Finding("accept.one_cause" if len(causes) == 1 else "accept.one_of", Severity.NOTE, facts)
        for each in causes:
            yield Finding(f"accept.may_be_{each.value}", Severity.NOTE, {"calls": list(calls)})


def _notes(made: "Acceptance", other_links: Sequence[Finding]) -> Iterator[Finding]:
    yield from other_links
    said = {words(each) for each in other_links}
    for reason in made.expected_by:
        if reason in said:
            continue
        yield Finding("accept.expected_by", Severity.NOTE, {"text": reason})
    for start in made.start_extra:
        if start.extra_us and start.extra_us > 1:
            on = {"nodes": start.nodes, "gpus_per_node": start.gpus_per_node, "extra_us": start.extra_us}
            yield Finding("accept.starts_late", Severity.NOTE, on)
    open_sizes = sorted({each.bytes for each in made.sizes if each.verdict is SizeVerdict.not_judged})
    if made.judged and open_sizes:
        yield Finding("accept.open_sizes", Severity.NOTE, {"sizes": open_sizes, "count": len(open_sizes)})
    for reason, count in made.skipped.items():
        yield Finding("accept.skipped", Severity.NOTE, {"count": count, "reason": reason})
    otherwise = [each for each in made.sizes if each.executed not in (None, each.pick)]
    if otherwise:
        first = otherwise[0]
        yield Finding(
            "accept.ran_otherwise",
            Severity.UNLIKE,
            {
                "count": calls_of(otherwise),
                "of": calls_of(made.sizes),
                "collective": first.collective,
                "bytes": first.bytes,
                "executed": first.executed,
                "pick": first.pick,
            },
        )


def _beside_model(sizes: Sequence["JudgedSize"], logs: Sequence[LogFacts]) -> Iterator[Finding]:
    """Yields a finding if a row takes many times as long as the time that NCCL's log prints beside its choice."""
    model_us = {nbytes: time_us for log in logs for nbytes, time_us in log.model_us}
    off = [
        (each.time_us / model_us[each.bytes], each)
        for each in sizes
        if each.bytes >= _LARGE_BYTES and model_us.get(each.bytes, 0) > 0
    ]
    if off and (worst := max(off, key=lambda each: each[0]))[0] > _MODEL_OFF:
        factor, size = worst
        yield Finding(
            "accept.beside_model",
            Severity.UNLIKE,
            {
                "collective": size.collective,
                "bytes": size.bytes,
                "time_us": size.time_us,
                "model_us": model_us[size.bytes],
                "factor": factor,
            },
        )
