"""The emulator against the real library, on one communicator: every cell, pick, channel and thread, exactly."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.case import Case
from tuner.cfloat import shortest
from tuner.errors import NoAlgorithm, OracleFailed
from tuner.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.oracle import Launched, Oracle
from tuner.rules.request import Request
from tuner.selection import Selection


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, with both values."""

    what: str
    where: str
    emulator: object
    libnccl: object


@dataclass(slots=True)
class Report:
    """Numbers compared and the mismatches among them, by what was compared."""

    title: str
    compared: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def compare(self, what: str, where: str, emulator: object, libnccl: object) -> None:
        self.compared[what] = self.compared.get(what, 0) + 1
        if emulator != libnccl:
            self.mismatches.append(Mismatch(what, where, emulator, libnccl))

    def matched(self, what: str) -> int:
        return self.compared.get(what, 0) - sum(mismatch.what == what for mismatch in self.mismatches)


ALL_COLLECTIVES = tuple(Request(collective, DataType.float32, Op.sum) for collective in Collective)

TABLES = ("latency_us", "bandwidth_gbs", "max_threads", "thread_thresholds_bytes")

# What a report counts, in the order it prints them.
KINDS = ("tables", "cells", "picks", "channels", "threads")


def sizes_bytes(request: Request, ranks: int, most: int = 16 << 30) -> list[int]:
    """Sizes from the smallest possible to ``most``: powers of two, their neighbours, and odd ones in between.

    All are sizes a call can have: a count times the type's size (times the ranks for AllGather and ReduceScatter).
    """
    unit = request.dtype.size_bytes * (ranks if request.spreads else 1)
    wanted: set[int] = set()
    power = 4
    while power <= most:
        wanted |= {power - unit, power, power + unit, power * 5 // 4 + 7, power * 31 // 20 + 3}
        power *= 2
    return sorted({max(unit, size // unit * unit) for size in wanted if size <= most})


def check(
    case: Case,
    requests: Iterable[Request] = ALL_COLLECTIVES,
    sizes: Sequence[int] | None = None,
    timeout_s: float = 120.0,
) -> Report:
    """Compares one communicator; ``sizes`` default to :func:`sizes_bytes`. Errors are the oracle's and the case's.

    Where the emulator says that NCCL refuses a call, libnccl has to refuse it: that counts as one pick.
    """
    report = Report(case.title)
    selection = Selection(case.communicator())
    with Oracle(case.setup(), timeout_s=timeout_s) as oracle:
        _compare_tables(report, selection, oracle)
        for request in requests:
            chosen = sizes or sizes_bytes(request, selection.communicator.ranks)
            if _refused(selection, request, chosen[0]):
                report.compare("picks", name(request), "refused", _refused_or_picked(oracle, request, chosen[0]))
                continue
            _compare_cells(report, selection, oracle, request, chosen)
            _compare_picks(report, selection, oracle, request, chosen)
    return report


def _refused(selection: Selection, request: Request, size: int) -> bool:
    try:
        selection.pick(request, [size])
    except NoAlgorithm:
        return True
    return False


def _refused_or_picked(oracle: Oracle, request: Request, size: int) -> str:
    try:
        (launched,) = oracle.launch(request.collective, request.dtype, request.op, [size])
    except OracleFailed as error:
        if "NCCL returned" not in str(error):  # it crashed or hangs
            raise
        return "refused"
    return pick_name(launched)


def _compare_tables(report: Report, selection: Selection, oracle: Oracle) -> None:
    for name in TABLES:
        ours, theirs = getattr(selection.tables, name), getattr(oracle.tables, name)
        for at in np.ndindex(theirs.shape):  # an older release has fewer algorithms
            report.compare("tables", f"{name}{list(at)}", ours[at].item(), theirs[at].item())
    report.compare("tables", "channels", selection.communicator.channels, oracle.facts["n_channels"])
    report.compare("tables", "nvls_channels", selection.communicator.nvls_channels, oracle.facts["nvls_channels"])


def _compare_cells(
    report: Report, selection: Selection, oracle: Oracle, request: Request, sizes: Sequence[int]
) -> None:
    ours = selection.cost_table(request, sizes)
    theirs = oracle.costs(request.collective, request.dtype, request.op, sizes)
    ours = np.ascontiguousarray(ours[:, : theirs.shape[1]])  # an older release has fewer algorithms
    differ = ours.view(np.uint32) != theirs.view(np.uint32)
    report.compared["cells"] = report.compared.get("cells", 0) + differ.size
    for row, algorithm, protocol in np.argwhere(differ):
        where = f"{name(request)} {sizes[row]} B {Algorithm(algorithm).name}/{Protocol(protocol).name}"
        values = shortest(ours[row, algorithm, protocol]), shortest(theirs[row, algorithm, protocol])
        report.mismatches.append(Mismatch("cells", where, *values))


def _compare_picks(
    report: Report, selection: Selection, oracle: Oracle, request: Request, sizes: Sequence[int]
) -> None:
    picks = selection.pick(request, sizes)
    launched = oracle.launch(request.collective, request.dtype, request.op, sizes)
    for row, (size, real) in enumerate(zip(sizes, launched, strict=True)):
        where = f"{name(request)} {size} B"
        pick = f"{Algorithm(picks.algorithm[row]).name}/{Protocol(picks.protocol[row]).name}"
        report.compare("picks", where, pick, pick_name(real))
        report.compare("channels", where, int(picks.channels[row]), real.channels)
        report.compare("threads", where, int(picks.threads[row]), real.threads)


def name(request: Request) -> str:
    return f"{request.collective.name} {request.dtype.name} {request.op.name}"


def pick_name(launched: Launched) -> str:
    return f"{launched.algorithm.name}/{launched.protocol.name}"
