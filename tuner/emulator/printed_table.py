"""The tuning table in the layout NCCL prints it in at NCCL_DEBUG_SUBSYS=TUNING."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.registry import Registry
from tuner.emulator import model
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.model import Tables
from tuner.emulator.rules import enabled
from tuner.emulator.rules.model_point import ModelPoint


class PrintedNumbers(NamedTuple):
    """What a release prints: us and GB/s [collective][algorithm][protocol], threads of a block [algorithm][protocol].

    ``max_threads`` is None where the release has no line for them.
    """

    latency_us: NDArray[np.float32]
    bandwidth_gbs: NDArray[np.float32]
    max_threads: NDArray[np.int64] | None


PrintRule = Callable[[Communicator, Tables], PrintedNumbers]
PRINT_RULES: Registry[PrintRule] = Registry()


def printed(communicator: Communicator, tables: Tables) -> PrintedNumbers:
    """The numbers that a communicator's release prints, which are not what a call may use in some releases."""
    return communicator.rules.printed_table(communicator, tables)


@PRINT_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def as_used(communicator: Communicator, tables: Tables) -> PrintedNumbers:
    """The numbers that the model uses, us and GB/s [collective][algorithm][protocol]."""
    return PrintedNumbers(tables.latency_us, tables.bandwidth_gbs, tables.max_threads)


@PRINT_RULES(nccl.TUNING_INIT(since="2.31.2"))
def before_exclusions(communicator: Communicator, tables: Tables) -> PrintedNumbers:
    """-1 where an algorithm does not do a collective; numbers also where NCCL_ALGO and the like exclude a cell.

    0 where an algorithm's model was never made, as without a network that reduces; -1 for PAT that was given up. us and
    GB/s, as :func:`as_used`, [collective][algorithm][protocol].
    """
    latency_us, bandwidth_gbs = np.zeros(model.SHAPE, np.float32), np.zeros(model.SHAPE, np.float32)
    for collective, algorithm, protocol in np.ndindex(*model.SHAPE):
        point = ModelPoint(communicator, Collective(collective), Algorithm(algorithm), Protocol(protocol))
        at = collective, algorithm, protocol
        if any(rule(point) for rule in point.rules.fills[point.algorithm]):
            if at[1:] == (Algorithm.PAT, Protocol.Simple) and enabled.pat_given_up(point):
                latency_us[at] = bandwidth_gbs[at] = -1
            continue
        if point.algorithm in point.rules.exists[point.collective]:
            latency_us[at], bandwidth_gbs[at] = model.latency_us(point), model.bandwidth_gbs(point)
        else:
            latency_us[at] = bandwidth_gbs[at] = -1
    return PrintedNumbers(latency_us, bandwidth_gbs, None)


def lines(numbers: PrintedNumbers, algorithms: int) -> list[str]:
    """NCCL's lines: blocks of three of its ``algorithms``; latency in us / bandwidth in GB/s a cell."""
    there = list(Algorithm)[:algorithms]
    blocks = [there[start : start + 3] for start in range(0, len(there), 3)]
    return [line for block in blocks for line in _block(numbers, block)]


def _block(numbers: PrintedNumbers, block: list[Algorithm]) -> list[str]:
    names = "".join(f" {'':>14}   {algorithm.name:>14}   {'':>14} |" for algorithm in block)
    # sic: the protocols are printed for three algorithms even where the last block has fewer
    protocols = "".join(f" {protocol.name:>14} |" for _ in range(3) for protocol in Protocol)
    printed = [f"  Algorithm   |{names}", f"  Protocol    |{protocols}"]
    if numbers.max_threads is not None:
        threads = "".join(f" {numbers.max_threads[a, p]:>14} |" for a in block for p in Protocol)
        printed.append(f" Max NThreads |{threads}")
    return [*printed, *(f"{collective.name:>13} |{_cells(numbers, collective, block)}" for collective in Collective)]


def _cells(numbers: PrintedNumbers, collective: Collective, block: list[Algorithm]) -> str:
    at = [(collective, algorithm, protocol) for algorithm in block for protocol in Protocol]
    return "".join(f"{numbers.latency_us[point]:8.1f}/{numbers.bandwidth_gbs[point]:6.1f} |" for point in at)
