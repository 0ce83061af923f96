"""How a row of a decision table is found, the straightforward way: the plugin's search in C is held to it."""

from collections.abc import Collection, Iterable

import numpy as np

from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.plugin.table.records import CostRow, Decision


def find(
    decisions: Iterable[Decision],
    collective: Collective,
    size_bytes: int,
    *,
    ranks: int,
    nodes: int,
    nvlink_domains: int | None = None,
    registered: bool = False,
    pipelined: int = 1,
) -> Decision | None:
    """The first row that matches."""
    for row in decisions:
        if (
            row.match(collective, size_bytes, ranks=ranks, nodes=nodes, nvlink_domains=nvlink_domains)
            and row.registered in (None, registered)
            and pipelined in row.pipelined
        ):
            return row
    return None


def find_runnable(
    decisions: Iterable[Decision],
    collective: Collective,
    size_bytes: int,
    *,
    ranks: int,
    nodes: int,
    runnable: Collection[AlgoProto],
    registered: bool = False,
    pipelined: int = 1,
) -> Decision | None:
    """The first row that matches and whose choice NCCL can run: of a table whose rows fall through."""
    could = (row for row in decisions if row.choices[0].algo_proto in runnable)
    return find(could, collective, size_bytes, ranks=ranks, nodes=nodes, registered=registered, pipelined=pipelined)


def find_cost(
    costs: Iterable[CostRow],
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: int,
    *,
    ranks: int,
    nodes: int,
) -> CostRow | None:
    """The first row of this algorithm and protocol that matches."""
    for row in costs:
        same = (row.algorithm, row.protocol) == (algorithm, protocol)
        if same and row.match(collective, size_bytes, ranks=ranks, nodes=nodes):
            return row
    return None


def cost_us(cost: CostRow, size_bytes: int, pipelined: int = 1) -> np.float32:
    """The row's time in float32, operation by operation; infinite for "never"."""
    if cost.time is None:
        return np.float32(np.inf)
    batches = -(-pipelined // cost.time.batch)
    latency_us = np.float32(cost.time.latency_us) * np.float32(batches)
    return latency_us + np.float32(size_bytes) / (np.float32(1000) * np.float32(cost.time.bandwidth_gbs))
