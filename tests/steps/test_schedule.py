"""Schedules: what is sent is what an execution of the steps sends, and as much as the collective must move."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tests.support import device_steps, drawn_works
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.connect import summarize
from tuner.steps.schedule import Step, schedule, wire_bytes

MOVES = {  # how often each element of the count goes over a wire, by number of ranks
    Collective.AllReduce: lambda ranks: 2 * (ranks - 1),
    Collective.ReduceScatter: lambda ranks: ranks * (ranks - 1),
    Collective.AllGather: lambda ranks: ranks * (ranks - 1),
    Collective.Reduce: lambda ranks: ranks - 1,
    Collective.Broadcast: lambda ranks: ranks - 1,
}


def all_steps(drawn: drawn_works.Drawn) -> list[Step]:
    across = summarize(drawn.connected)
    return [step for rank in range(len(drawn.connected.ranks)) for step in schedule(drawn.work, across, rank)]


def sent(steps: list[Step]) -> dict[tuple[int, int, int], list[int]]:
    """Elements of the messages by channel, sender and receiver, in their order."""
    found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for step in steps:
        for receiver in step.send_to:
            found[step.channel, step.rank, receiver].append(step.elements)
    return found


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_sends_what_the_blocks_send(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = drawn_works.drawn(random, collective)
    ranks, count = len(drawn.connected.ranks), drawn.work.count
    steps = all_steps(drawn)
    whole = count * (ranks if collective is Collective.ReduceScatter else 1)
    inputs = [drawn_works.numbers(random, whole) for _ in range(ranks)]
    _, wires = device_steps.execute(drawn.work, [rank.channels for rank in drawn.connected.ranks], inputs)
    executed: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for *wire, elements in wires.sent:
        executed[wire[0], wire[1], wire[2]].append(elements)
    assert sent(steps) == executed
    assert sum(step.elements * len(step.send_to) for step in steps) == MOVES[collective](ranks) * count


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("seed", range(6, 9))
def test_what_is_received_is_what_was_sent_from_the_same_elements(collective: Collective, seed: int) -> None:
    drawn = drawn_works.drawn(np.random.default_rng(seed), collective)
    messages: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for step in all_steps(drawn):
        for receiver in step.send_to:
            messages[step.channel, step.rank, receiver].append((step.first, step.elements))
        for sender in step.receive_from:
            received[step.channel, sender, step.rank].append((step.first, step.elements))
    assert messages == received


def test_the_switch_has_no_schedule() -> None:
    drawn = drawn_works.drawn(np.random.default_rng(0), Collective.AllReduce)
    with pytest.raises(BadInput, match="of Ring and Tree, not of NVLS"):
        list(schedule(replace(drawn.work, algorithm=Algorithm.NVLS), summarize(drawn.connected), 0))


def test_flags_are_counted_on_the_wire() -> None:
    assert [wire_bytes(protocol, 100) for protocol in Protocol] == [208, 2048, 100]
