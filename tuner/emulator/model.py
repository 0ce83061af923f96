"""NCCL's tuning model: latency, bandwidth, threads and thread thresholds of every cell, for one communicator.

The model is one straight pipeline; releases differ in the rules that ``tables/nccl`` names. Source of the order of its
steps: ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.base import trace
from tuner.base.dataclass import dataclass
from tuner.base.expressions import expression
from tuner.base.frames import Column, Framed, NamedColumn
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import Float, f32
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.rules import enabled
from tuner.emulator.rules.call import ModelPoint
from tuner.release.environment import Environment
from tuner.release.schema import Threads, given

NUMBER = expression(r"\s*([+-]?\d+)", re.ASCII)
SHAPE = (len(Collective), len(Algorithm), len(Protocol))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tables(Framed):
    """The four tables of a communicator, indexed by NCCL's numbers [collective][algorithm][protocol].

    ``bandwidth_gbs`` (1e9 B/s) is 0 if a cell does not exist or is off; ``reasons`` says why, by cell. ``backup_gbs``
    [collective][protocol] is the bandwidth of Ring for a collective for which no other cell is left; 0 without such a
    backup. Latencies and bandwidths are float32; ``max_threads`` and ``thread_thresholds_bytes`` are int64 arrays
    [algorithm][protocol].
    """

    latency_us: NDArray[np.float32]
    bandwidth_gbs: NDArray[np.float32]
    max_threads: NDArray[np.int64]
    thread_thresholds_bytes: NDArray[np.int64]
    backup_gbs: NDArray[np.float32]
    reasons: dict[tuple[Collective, Algorithm, Protocol], str]

    def columns(self) -> dict[str, Column]:
        """One row per cell: names, latency_us, bandwidth_gbs, max_threads, thread_threshold_bytes, and the reason if
        the bandwidth is 0."""
        collective, algorithm, protocol = (index.ravel() for index in np.indices(SHAPE))
        return {
            "collective": NamedColumn(Collective, collective),
            "algorithm": NamedColumn(Algorithm, algorithm),
            "protocol": NamedColumn(Protocol, protocol),
            "latency_us": self.latency_us.ravel(),
            "bandwidth_gbs": self.bandwidth_gbs.ravel(),
            "max_threads": self.max_threads[algorithm, protocol],
            "thread_threshold_bytes": self.thread_thresholds_bytes[algorithm, protocol],
            "reason": [self.reasons.get((Collective(c), Algorithm(a), Protocol(p))) for c, a, p in np.ndindex(SHAPE)],
        }


def tables(communicator: Comm) -> Tables:
    """The tables that NCCL computes at the end of a communicator's init."""
    result = empty(communicator)
    for collective in Collective:
        fill(result, communicator, collective)
    return result


def empty(communicator: Comm) -> Tables:
    """The tables before latencies and bandwidths are filled in, with the parts that do not depend on a collective."""
    return Tables(
        latency_us=np.zeros(SHAPE, np.float32),
        bandwidth_gbs=np.zeros(SHAPE, np.float32),
        max_threads=_max_threads(communicator),
        thread_thresholds_bytes=_thread_thresholds_bytes(communicator),
        backup_gbs=np.zeros((len(Collective), len(Protocol)), np.float32),
        reasons={},
    )


def fill(result: Tables, communicator: Comm, collective: Collective) -> None:
    """Adds one collective to the tables."""
    for algorithm in communicator.rules.exists[collective]:
        for protocol in Protocol:
            _fill(result, ModelPoint(communicator, collective, algorithm, protocol))
    _back_up(result, communicator, collective)


def _back_up(result: Tables, communicator: Comm, collective: Collective) -> None:
    """In releases that have it, keeps the bandwidth of Ring from before NCCL_ALGO, for collectives that have no other
    bandwidth."""
    rules = communicator.rules.ring_backup
    if not rules:
        return
    for protocol in Protocol:
        point = ModelPoint(communicator, collective, Algorithm.Ring, protocol)
        result.backup_gbs[collective, protocol] = 0 if _first_reason(point, rules) else bandwidth_gbs(point)
    if not result.bandwidth_gbs[collective].any():
        result.bandwidth_gbs[collective, Algorithm.Ring] = result.backup_gbs[collective]


def _fill(result: Tables, point: ModelPoint) -> None:
    at = (point.collective, point.algorithm, point.protocol)
    reason = _first_reason(point, point.rules.fills[point.algorithm])
    if reason is None:
        result.latency_us[at] = latency_us(point)
        reason = _first_reason(point, point.rules.enabled)
        result.bandwidth_gbs[at] = 0 if reason else bandwidth_gbs(point)
    if reason is None and result.bandwidth_gbs[at] == 0:
        reason = _no_bandwidth(point)
    if reason is not None:
        result.reasons[at] = reason


def _no_bandwidth(point: ModelPoint) -> str:
    """Why the bandwidth of a cell is 0, from the first rule that makes it so."""
    if not point.graph.channels:
        return enabled.too_few_channels(point)
    with trace.tracing(point.release.read_as) as steps:
        bandwidth_gbs(point)
    return next(f"no bandwidth is left: {step.says.rstrip('.')}" for step in steps if step.after == 0)


def latency_us(point: ModelPoint) -> Float:
    """Latency of a cell in us, float32: the release's rules for its algorithm, applied in order."""
    return _applied(point.rules.latency[point.algorithm], point, "latency", "us")


def bandwidth_gbs(point: ModelPoint) -> Float:
    """Algorithm bandwidth of a cell, 1e9 B/s as float32: the release's rules for its algorithm, applied in order."""
    return _applied(point.rules.bandwidth[point.algorithm], point, "bandwidth", "GB/s")


def _applied(
    rules: Iterable[Callable[[Float, ModelPoint], Float]], point: ModelPoint, quantity: str, unit: str
) -> Float:
    value, listening = f32(0), trace.listening()
    for rule in rules:
        before, value = value, rule(value, point)
        if listening:
            trace.step(quantity, unit, rule, before, value)
    return value


def _first_reason(point: ModelPoint, rules: Iterable[enabled.EnabledRule]) -> str | None:
    for rule in rules:  # a loop takes half the time of an expression, and every cell needs this
        if reason := rule(point):
            return reason
    return None


def _max_threads(communicator: Comm) -> NDArray[np.int64]:
    """Threads of a block, [algorithm][protocol], before small sizes reduce them; 0 if NCCL has no number."""
    threads = np.zeros(SHAPE[1:], np.int64)
    for algorithm, rows in communicator.release.threads.items():
        for protocol, row in rows.items():
            default = row.default
            if row.slow_gbs is not None:
                ring = communicator.graphs[Algorithm.Ring]
                slow = f32(ring.bw_intra_gbs) * f32(ring.channels) <= f32(row.slow_gbs)
                default = given(row.slow_default, "threads.slow_default") if slow else default
            threads[algorithm, protocol] = _requested_threads(communicator, row, default)
    return threads


def _requested_threads(communicator: Comm, row: Threads, default: int) -> int:
    """A thread count from the environment, or ``default``.

    NCCL replaces a count that is not a multiple of a warp's size by the largest count (sic).
    """
    requested = -2 if row.env is None else communicator.environment.c_int(row.env, -2)
    if requested <= 0:
        return default
    most = given(row.max, "threads.max")
    if requested % communicator.release.limits.warp_size or requested > most:
        return most
    return max(requested, given(row.min, "threads.min"))


def _thread_thresholds_bytes(communicator: Comm) -> NDArray[np.int64]:
    table = communicator.release.thread_threshold_bytes
    thresholds = np.empty(SHAPE[1:], np.int64)
    thresholds[:] = [table.ll, table.ll128, table.simple]
    thresholds[Algorithm.Ring, Protocol.LL] *= communicator.ranks
    for algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain):
        thresholds[algorithm, Protocol.Simple] = table.collnet_simple
    for at, requested in zip(
        np.ndindex(2, len(Protocol)), _requested_thresholds(communicator.environment), strict=False
    ):
        if requested >= 0:
            thresholds[at] = requested
    return thresholds


def _requested_thresholds(environment: Environment) -> list[int]:
    """NCCL_THREAD_THRESHOLDS: up to six numbers, first for Tree, then for Ring. As with sscanf, reading stops at the
    first text that is no number."""
    text = environment.text("NCCL_THREAD_THRESHOLDS") or ""
    numbers: list[int] = []
    while len(numbers) < 6 and (match := NUMBER.match(text)):
        numbers.append(min(int(match[1]), 2**63 - 1))
        text = text[match.end() :]
    return numbers


class PrintedNumbers(NamedTuple):
    """The table that a release prints: us and GB/s as arrays [collective][algorithm][protocol], and threads.

    ``max_threads`` is an array [algorithm][protocol].

    ``max_threads`` is None if the release has no line for them.
    """

    latency_us: NDArray[np.float32]
    bandwidth_gbs: NDArray[np.float32]
    max_threads: NDArray[np.int64] | None


PrintRule = Callable[[Comm, Tables], PrintedNumbers]
PRINT_RULES: Registry[PrintRule] = Registry()


def printed(communicator: Comm, tables: Tables) -> PrintedNumbers:
    """The numbers that a communicator's release prints; in some releases they differ from those that calls use."""
    return communicator.rules.printed_table(communicator, tables)


@PRINT_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def as_used(communicator: Comm, tables: Tables) -> PrintedNumbers:
    """Latencies (us) and bandwidths (GB/s) that the model uses, arrays [collective][algorithm][protocol]."""
    return PrintedNumbers(tables.latency_us, tables.bandwidth_gbs, tables.max_threads)


@PRINT_RULES(nccl.TUNING_INIT(since="2.31.2"))
def before_exclusions(communicator: Comm, tables: Tables) -> PrintedNumbers:
    """This release prints -1 if an algorithm does not do a collective. Cells that NCCL_ALGO or similar variables
    exclude keep their numbers.

    It prints 0 for an algorithm that NCCL never computed, such as CollNet without a network that reduces. It prints -1
    for PAT if NCCL began to compute PAT and gave it up (:func:`tuner.emulator.rules.enabled.pat_given_up`). Units and
    shapes are those of :func:`as_used`.
    """
    latencies_us, bandwidths_gbs = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    for collective, algorithm, protocol in np.ndindex(*SHAPE):
        point = ModelPoint(communicator, Collective(collective), Algorithm(algorithm), Protocol(protocol))
        at = collective, algorithm, protocol
        if any(rule(point) for rule in point.rules.fills[point.algorithm]):
            if at[1:] == (Algorithm.PAT, Protocol.Simple) and enabled.pat_given_up(point):
                latencies_us[at] = bandwidths_gbs[at] = -1
            continue
        if point.algorithm in point.rules.exists[point.collective]:
            latencies_us[at], bandwidths_gbs[at] = latency_us(point), bandwidth_gbs(point)
        else:
            latencies_us[at] = bandwidths_gbs[at] = -1
    return PrintedNumbers(latencies_us, bandwidths_gbs, None)


def lines(numbers: PrintedNumbers, algorithms: int, together: int = 3) -> list[str]:
    """The lines that NCCL prints for the first ``algorithms``, with ``together`` of them in a block; cells are latency
    (us) / bandwidth (GB/s)."""
    there = list(Algorithm)[:algorithms]
    blocks = [there[start : start + together] for start in range(0, len(there), together)]
    return [line for block in blocks for line in _block(numbers, block, together)]


def _block(numbers: PrintedNumbers, block: list[Algorithm], together: int) -> list[str]:
    names = "".join(f" {'':>14}   {algorithm.name:>14}   {'':>14} |" for algorithm in block)
    # sic: the protocols are printed for three algorithms even if the last block has fewer
    protocols = "".join(f" {protocol.name:>14} |" for _ in range(together) for protocol in Protocol)
    printed = [f"  Algorithm   |{names}", f"  Protocol    |{protocols}"]
    if numbers.max_threads is not None:
        threads = "".join(f" {numbers.max_threads[a, p]:>14} |" for a in block for p in Protocol)
        printed.append(f" Max NThreads |{threads}")
    return [*printed, *(f"{collective.name:>13} |{_cells(numbers, collective, block)}" for collective in Collective)]


def _cells(numbers: PrintedNumbers, collective: Collective, block: list[Algorithm]) -> str:
    at = [(collective, algorithm, protocol) for algorithm in block for protocol in Protocol]
    return "".join(f"{numbers.latency_us[point]:8.1f}/{numbers.bandwidth_gbs[point]:6.1f} |" for point in at)
