"""The tuning table in the layout NCCL prints it in at NCCL_DEBUG_SUBSYS=TUNING."""

from collections.abc import Callable

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

# latency_us and bandwidth_gbs, [collective][algorithm][protocol]
Numbers = tuple[NDArray[np.float32], NDArray[np.float32]]
PrintRule = Callable[[Communicator, Tables], Numbers]
PRINT_RULES: Registry[PrintRule] = Registry()


def printed(communicator: Communicator, tables: Tables) -> Numbers:
    """The latencies and bandwidths a communicator's release prints, us and GB/s [collective][algorithm][protocol].

    They are not what a call may use, in some releases.
    """
    return communicator.rules.printed_table(communicator, tables)


@PRINT_RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def as_used(communicator: Communicator, tables: Tables) -> Numbers:
    """The numbers that the model uses, us and GB/s [collective][algorithm][protocol]."""
    return tables.latency_us, tables.bandwidth_gbs


@PRINT_RULES(nccl.TUNING_INIT(since="2.31.2"))
def before_exclusions(communicator: Communicator, tables: Tables) -> Numbers:
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
    return latency_us, bandwidth_gbs


def lines(tables: Tables, algorithms: int) -> list[str]:
    """NCCL's lines: blocks of three of its ``algorithms``; latency in us / bandwidth in GB/s a cell."""
    there = list(Algorithm)[:algorithms]
    blocks = [there[start : start + 3] for start in range(0, len(there), 3)]
    return [line for block in blocks for line in _block(tables, block)]


def _block(tables: Tables, block: list[Algorithm]) -> list[str]:
    names = "".join(f" {'':>14}   {algorithm.name:>14}   {'':>14} |" for algorithm in block)
    # sic: the protocols are printed for three algorithms even where the last block has fewer
    protocols = "".join(f" {protocol.name:>14} |" for _ in range(3) for protocol in Protocol)
    threads = "".join(f" {tables.max_threads[a, p]:>14} |" for a in block for p in Protocol)
    return [
        f"  Algorithm   |{names}",
        f"  Protocol    |{protocols}",
        f" Max NThreads |{threads}",
        *(f"{collective.name:>13} |{_cells(tables, collective, block)}" for collective in Collective),
    ]


def _cells(tables: Tables, collective: Collective, block: list[Algorithm]) -> str:
    at = [(collective, algorithm, protocol) for algorithm in block for protocol in Protocol]
    return "".join(f"{tables.latency_us[point]:8.1f}/{tables.bandwidth_gbs[point]:6.1f} |" for point in at)
