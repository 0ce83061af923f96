"""Checks of the ranks' GPUs: each rank has its own, they are in order, and none is newer than NCCL."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tuner import release
from tuner.base.findings import Finding, Severity, listed
from tuner.base.names import Collective
from tuner.base.sizes import as_ranges
from tuner.machine import gpus
from tuner.scenario.logs.endings import ORDERLY, failures
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.reader import NcclLog

MOST_SHOWN = 8
# The last release whose AllGather by NVLS depends on the order of ranks on one node, nccl#1906
LAST_IN_ORDER = "2.21.5"
OF_NVLS = (Collective.AllGather, Collective.ReduceScatter)


def single_ranks(shown: ShownByLog) -> Iterator[Finding]:
    """Finds processes that each made a communicator of one rank, as happens if a program is built or started without
    MPI."""
    log = shown.reading.log
    made = [rank for rank in log.ranks if rank.ranks is not None]
    processes = {rank.thread.process for rank in made}
    if {rank.ranks for rank in made} == {1} and len(processes) > 1:
        yield Finding("diagnose.single_ranks", Severity.FAULT, {"processes": len(processes)})
    elif not made:
        yield from listed_alone(log)


def listed_alone(log: NcclLog) -> Iterator[Finding]:
    """Finds the same as :func:`single_ranks` in nccl-tests' lists of devices, each of which then only has a rank 0."""
    processes = {(each.host, each.pid) for each in log.device_lines}
    if {each.rank for each in log.device_lines} == {0} and len(processes) > 1:
        yield Finding("diagnose.single_ranks", Severity.FAULT, {"processes": len(processes)})


def gpu_twice(shown: ShownByLog) -> Iterator[Finding]:
    """Finds ranks of one communicator on the same GPU of a host, unless NCCL accepted them."""
    yield from listed_twice(shown.reading.log)


def listed_twice(log: NcclLog) -> Iterator[Finding]:
    """Finds the same as :func:`gpu_twice` in NCCL's lines and in nccl-tests' list of devices. MIG instances of a GPU,
    which share a bus id, do not count."""
    places: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    for rank in log.ranks:
        if None not in (rank.rank, rank.bus_id, rank.group) and rank.thread.host and not rank.complete:
            places[f"{rank.group}", rank.thread.host, f"{rank.bus_id:x}"].setdefault(rank.rank or 0, rank.line)
    for each in log.device_lines:
        if each.host is not None and ":" in each.bus_id and " MIG " not in log.devices.get(each.rank, ""):
            places["", each.host, each.bus_id].setdefault(each.rank, each.line)
    found: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
    for (_, host, bus_id), ranks in places.items():
        if len(ranks) > 1:
            found.setdefault((host, tuple(sorted(ranks))), (bus_id, min(ranks.values())))
    # NCCL accepted it, which is possible from 2.30.3 on
    severity = Severity.UNLIKE if log.result_rows else Severity.FAULT
    for (host, numbers), (bus_id, line) in list(found.items())[:1]:
        facts = {"host": host, "ranks": list(numbers), "bus_id": bus_id, "line": line, "place": log.place(line)}
        yield Finding("diagnose.gpu_twice", severity, {**facts, "more": len(found) - 1 or None})


def newer_than_release(shown: ShownByLog) -> Iterator[Finding]:
    """Finds GPUs that NCCL's build has no code for, or that its release does not know."""
    log, nccl = shown.reading.log, shown.nccl
    capabilities = {name: gpus.capability_of_product(name) for name in dict.fromkeys(log.devices.values())}
    known = {name: each for name, each in capabilities.items() if each is not None}
    if not known or nccl is None:
        return
    newest = max(known.values())
    facts = {
        "nccl": nccl.name,
        "gpus": [name for name, each in known.items() if each == newest],
        "capability": f"{newest // 10}.{newest % 10}",
    }
    needs = gpus.first_cuda(newest)
    # A build that the user made runs there
    runs = bool(log.result_rows) or any(each.role == ORDERLY for each in log.endings)
    if log.cuda is not None and log.cuda < needs and not runs:
        of_cuda = {"cuda": f"{log.cuda[0]}.{log.cuda[1]}", "needs": f"{needs[0]}.{needs[1]}"}
        yield Finding("diagnose.newer_gpu", Severity.FAULT, facts | of_cuda)
    elif nccl.generation(newest) != (last := release.load(release.names()[-1])).generation(newest):
        first = next(
            each for each in release.names() if release.load(each).generation(newest) == last.generation(newest)
        )
        yield Finding("diagnose.newer_gpu_runs", Severity.UNLIKE, facts | {"first": first})


def out_of_bus_order(shown: ShownByLog) -> Iterator[Finding]:
    """Finds NVLS on a node whose ranks are not in the order of their GPUs' bus ids: AllGather may then give wrong
    results.
    """
    nccl, logs = shown.nccl, shown.reading.logs
    if {each.nodes for each in logs} - {None, 1}:
        return
    if nccl is None or release.names().index(nccl.name) <= release.names().index(LAST_IN_ORDER):
        return
    if shown.channels is None or shown.channels[1] in (None, "0") or shown.variables.get("NCCL_NVLS_ENABLE") == "0":
        return
    hosts = {each.thread.host for each in logs}
    ordered = sorted((each.rank, each.bus_id) for each in logs if each.rank is not None and each.bus_id is not None)
    bus_ids = [bus_id for _, bus_id in ordered]
    if len(hosts) != 1 or bus_ids == sorted(bus_ids) or len(set(bus_ids)) < len(bus_ids):
        return
    chosen = {
        each.printed.collective
        for each in shown.reading.log.choices
        if each.printed.algorithm == "NVLS" and each.printed.collective in [one.name for one in OF_NVLS]
    }
    facts = {
        "host": next(iter(hosts)),
        "order": [f"{bus_id:x}" for bus_id in bus_ids[:MOST_SHOWN]],
        "chosen": sorted(filter(None, chosen)) or None,
    }
    yield Finding("diagnose.out_of_bus_order", Severity.FAULT if chosen else Severity.UNLIKE, facts)


def releases(shown: ShownByLog) -> Iterator[Finding]:
    """Finds ranks of one communicator whose processes have no NCCL release in common. Without communicators in the log,
    it compares all processes.

    A process may have two libraries, such as an engine's and PyTorch's; it then counts for both.
    """
    log = shown.reading.log
    ranks = dict[tuple[str, int], set[int | None]]()
    for each in shown.reading.logs:
        ranks.setdefault(each.thread.process, set()).add(each.rank)
    of = {process: found for process, found in log.releases_of.items() if process in ranks or not log.ranks}
    if len(of) < 2 or set.intersection(*of.values()):
        return
    users = dict[str, list[tuple[str, int]]]()
    for process, found in of.items():
        users.setdefault(" and ".join(sorted(found)), []).append(process)
    facts = {"releases": sorted(users), "users": [_used_by(name, each, ranks) for name, each in sorted(users.items())]}
    yield Finding("diagnose.releases_differ", Severity.FAULT, facts)


def _used_by(
    releases: str, processes: Sequence[tuple[str, int]], ranks: Mapping[tuple[str, int], set[int | None]]
) -> str:
    """A phrase on who uses these releases: the hosts, and the ranks if they are known."""
    numbers = sorted({rank for process in processes for rank in ranks.get(process, ()) if rank is not None})
    hosts = listed(list(dict.fromkeys(host for host, _ in processes))[:MOST_SHOWN])
    if not numbers:
        return f"{releases} on {hosts}"
    return f"{releases} on rank{'s' * (len(numbers) > 1)} {as_ranges(numbers)} ({hosts})"


def libraries(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that a library of adapters lacks a symbol for which NCCL looks: a note, or more if the job failed."""
    log = shown.reading.log
    severity = Severity.UNLIKE if failures(log.endings) else Severity.NOTE
    for library, (line, symbols) in log.missing_symbols.items():
        facts = {"library": library, "line": line, "symbols": symbols}
        yield Finding("diagnose.missing_symbol", severity, facts)


def rings(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that rings are missing: the log shows fewer rings than the number of rings that its lines print."""
    log = shown.reading.log
    of = max(log.ring_channels.values(), default=0)
    if log.rings and len(log.rings) < of and len(log.ring_channels) == 1:
        yield Finding("diagnose.rings_cut", Severity.NOTE, {"shown": len(log.rings), "of": of})
