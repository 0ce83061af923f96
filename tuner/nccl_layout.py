"""The tuning table in the layout NCCL prints it in at NCCL_DEBUG_SUBSYS=TUNING.

Source: ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1.
"""

from tuner.model import Tables
from tuner.names import Algorithm, Collective, Protocol


def lines(tables: Tables) -> list[str]:
    """NCCL's lines: blocks of three algorithms; latency in us / bandwidth in GB/s a cell."""
    algorithms = list(Algorithm)
    blocks = [algorithms[start : start + 3] for start in range(0, len(algorithms), 3)]
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
    return "".join(f"{tables.latency_us[cell]:8.1f}/{tables.bandwidth_gbs[cell]:6.1f} |" for cell in at)
