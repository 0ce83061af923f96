"""The additions of symmetric kernels, as each rank's threads make them, on NumPy's numbers.

It follows src/device/symmetric/*.cuh and src/include/nccl_device/impl/ll_a2a__funcs.h, v2.28.9-1, and uses nothing of
tuner.emulator.steps. Sums of numbers of 16 bits are kept in float32 (ncclSymkAccumType), others in their own type.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


def all_reduce_low_latency(inputs: list[Numbers]) -> list[Numbers]:
    """AllReduce_AGxLL_R: every rank has everyone's numbers in slots, by rank, and adds them itself."""
    return [_receive_and_reduce(inputs) for _ in inputs]


def reduce_scatter_low_latency(inputs: list[Numbers]) -> list[Numbers]:
    """ReduceScatter_LL: each rank sends each other one its part, into the slot of the sender."""
    parts = [np.split(each, len(inputs)) for each in inputs]
    return [_receive_and_reduce([part[rank] for part in parts]) for rank in range(len(inputs))]


def reduce_scatter_by_loads(inputs: list[Numbers], unroll_peers: int) -> list[Numbers]:
    """ReduceScatter_LD: each rank loads its part from everyone, itself first (reduceDeep)."""
    ranks, results = len(inputs), []
    for rank in range(ranks):
        loaded = [np.split(each, ranks)[rank] for each in inputs]
        total = _accumulated(loaded[rank])
        r = (rank + 1) % ranks
        total = total + _accumulated(loaded[r])
        r = (r + 1) % ranks
        done = 2
        while done + unroll_peers <= ranks:
            total, r, done = _some(total, loaded, r, unroll_peers), (r + unroll_peers) % ranks, done + unroll_peers
        total = _some(total, loaded, r, ranks - done)
        results.append(total.astype(inputs[0].dtype))
    return results


def _some(total: Numbers, loaded: list[Numbers], r: int, count: int) -> Numbers:
    for _ in range(count):
        total = total + _accumulated(loaded[r])
        r = 0 if r + 1 == len(loaded) else r + 1
    return total


def _receive_and_reduce(slots: list[Numbers], unroll: int = 8) -> Numbers:
    """recvReduce: eight slots at a time, then the rest."""
    total: Numbers | None = None
    at = 0
    while at + unroll <= len(slots):
        first = _accumulated(slots[at])
        total = first if total is None else total + first
        for each in slots[at + 1 : at + unroll]:
            total = total + _accumulated(each)
        at += unroll
    for each in slots[at:]:
        total = _accumulated(each) if total is None else total + _accumulated(each)
    assert total is not None
    return total.astype(slots[0].dtype)


def _accumulated(numbers: Numbers) -> Numbers:
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers
