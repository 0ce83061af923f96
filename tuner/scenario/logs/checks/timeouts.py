"""The check of collectives that timed out in PyTorch."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tuner.base.findings import Finding, Severity
from tuner.base.sizes import plural
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.reader import NcclLog, TimedOut

MOST_PLACES = 6
MOST_RANKS = 4
# Collectives whose ranks may have different sizes
UNEVEN = ("ALLTOALL", "GATHER", "SCATTER", "SEND", "RECV", "COALESCED")


def timeouts(shown: ShownByLog) -> Iterator[Finding]:
    """Finds ranks that waited in different collectives or with different sizes; if there are none, finds that some rank
    is missing."""
    log = shown.reading.log
    if not log.timed_out:
        return
    facts: dict[str, object] = {"line": min(each.line for each in log.timed_out.values())}
    facts["place"] = log.place(min(each.line for each in log.timed_out.values()))
    groups = _by_call(log)
    waiting = {rank for calls in groups.values() for rank, _ in calls}
    facts["ranks"] = sorted(waiting)
    unequal = [found for calls in groups.values() if (found := _unequal(calls)) is not None]
    for ranks, first, others, second in unequal:
        yield Finding(
            "diagnose.timeout_sizes",
            Severity.FAULT,
            {
                **facts,
                "collective": first.collective,
                "number": first.number,
                "of_ranks": ranks,
                "numel_in": first.numel_in,
                "numel_out": first.numel_out,
                "others": others,
                "others_numel_in": second.numel_in,
                "others_numel_out": second.numel_out,
            },
        )
    if unequal:
        return
    counts = Counter(group for group, *_ in groups)
    facts["calls"] = [
        f"{plural(len(calls), 'rank')} ({', '.join(str(rank) for rank, _ in calls[:MOST_RANKS])}"
        f"{' ...' * (len(calls) > MOST_RANKS)}) in {what} {number}"
        f"{f' of process group {group}' if len(counts) > 1 and group else ''}"
        for (group, number, what), calls in sorted(groups.items())
    ][:MOST_PLACES]
    if len(groups) == 1 or ("" not in counts and len(groups) == len(counts)):
        size = shown.reading.group.ranks if shown.reading.group else None
        absent = sorted(set(range(size or 0)) - waiting)
        yield Finding("diagnose.timeout", Severity.FAULT, {**facts, "absent": absent})
    else:
        unsure = all(count == 1 for group, count in counts.items() if group)
        yield Finding("diagnose.timeout_places", Severity.FAULT, {**facts, "unsure": unsure})


def _by_call(log: NcclLog) -> dict[tuple[str, int, str], list[tuple[int, TimedOut]]]:
    """Ranks keyed by process group, number and collective of their call; each process group has its own numbers."""
    found: dict[tuple[str, int, str], list[tuple[int, TimedOut]]] = defaultdict(list)
    said_of = log.process_groups
    at = {rank: (each.number, each.collective) for rank, each in log.timed_out.items()}
    likely = {at.get(rank): group for (rank, _), group in said_of.items()}
    for rank, each in sorted(log.timed_out.items()):
        # The process group of a rank that ended before it reported it
        group = said_of.get((rank, each.number)) or likely.get(at[rank], "")
        found[group, each.number, each.collective].append((rank, each))
    for (rank, number), group in said_of.items():  # these lines only have the number
        call = next((key for key in found if key[:2] == (group, number)), None)
        if rank not in log.timed_out and call is not None:
            found[call].append((rank, found[call][0][1]._replace(numel_in=None, numel_out=None)))
    return {key: sorted(calls, key=lambda each: each[0]) for key, calls in found.items()}


def _unequal(
    calls: Sequence[tuple[int, TimedOut]],
) -> tuple[list[int], TimedOut, list[int], TimedOut] | None:
    """The two groups of ranks whose sizes differ, each with one of its calls, the smaller group first; None if all
    sizes are equal, or are allowed to differ."""
    if any(part in calls[0][1].collective.upper().replace("ALLGATHER", "") for part in UNEVEN):
        return None
    by_size: dict[tuple[int | None, int | None], list[int]] = defaultdict(list)
    for rank, each in calls:
        if each.numel_in is not None:
            by_size[each.numel_in, each.numel_out].append(rank)
    if len(by_size) < 2:
        return None
    ordered = sorted(by_size.values(), key=len)
    of = dict(calls)
    fewest, most = ordered[0], ordered[-1]
    return fewest, of[fewest[0]], most, of[most[0]]
