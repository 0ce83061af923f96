"""The channels of all ranks, computed here and in libnccl's memory, and what differs between both."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest

from tuner.emulator.connect import Connected
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario


def both(scenario: Scenario, timeout_s: float = 600.0) -> tuple[Connected, Connected]:
    """Computed here, and what libnccl has."""
    ours = scenario.resolve().connected
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        return ours, oracle.connected()


def count(connected: Connected) -> int:
    """Channels of all ranks, those of NVLS apart."""
    return sum(len(rank.channels) + len(rank.nvls) for rank in connected.ranks)


def differences(ours: Connected, theirs: Connected) -> Iterator[str]:
    """Every field of every channel of every rank that is not the same."""
    if ours.node_of_rank != theirs.node_of_rank:
        yield f"nodes of ranks: {ours.node_of_rank} here, {theirs.node_of_rank} in libnccl"
    for rank, (own, real) in enumerate(zip_longest(ours.ranks, theirs.ranks)):
        if own is None or real is None:
            yield f"rank {rank} is missing"
            continue
        if own.pat_peers != real.pat_peers:
            yield f"rank {rank}, PAT: {own.pat_peers} here, {real.pat_peers} in libnccl"
        for kind in ("channels", "nvls"):
            for number, pair in enumerate(zip_longest(getattr(own, kind), getattr(real, kind))):
                yield from (f"rank {rank}, {kind} {number}, {difference}" for difference in _between(*pair))


def _between(own: object, real: object) -> Iterator[str]:
    if own is None or real is None:
        yield f"{own} here, {real} in libnccl"
        return
    for field in fields(own):  # type: ignore[arg-type]
        here, there = getattr(own, field.name), getattr(real, field.name)
        if here != there:
            yield f"{field.name}: {here} here, {there} in libnccl"
