"""PAT's messages and orders against its device code on numbers, bit for bit."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.random import Generator

from tests.support import pat_steps, scheduled_numbers
from tests.support.drawn_works import numbers
from tests.support.ordered_calls import added
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.launches import ChannelShare, ProxyOperation, Sharing, Work
from tuner.emulator.steps import pat
from tuner.emulator.steps.orders import pat_term
from tuner.emulator.steps.records import Schedule

KINDS = {Collective.ReduceScatter: pat_steps.ReduceScatter, Collective.AllGather: pat_steps.AllGather}


@dataclass(frozen=True)
class Drawn:
    """One channel of a call."""

    ranks: int
    work: Work

    @property
    def share(self) -> ChannelShare:
        return self.work.shares[0]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.share.chunk, self.share.offset, self.share.offset + self.share.count, self.work.count


def drawn(random: Generator, collective: Collective, whole: bool = False) -> Drawn:
    ranks = int(random.integers(2, 40))
    count = int(random.integers(1, 300))
    low = 0 if whole else int(random.integers(0, count))
    high = count if whole else int(random.integers(low + 1, count + 1))
    chunk = int(random.integers(1, 10)) * 16
    share = ChannelShare(3, 0, low, high - low, chunk, None, ProxyOperation("", 0, 1, 1, 0, 1 << 20))
    kind = collective, DataType.float32, Op.sum, Algorithm.PAT, Protocol.Simple
    work = Work(0, *kind, None, count, 20, 0, False, 0, Sharing.ranges, (share,))
    return Drawn(ranks, work)


@pytest.mark.parametrize("seed", range(25))
def test_each_part_is_added_as_claimed(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, Collective.ReduceScatter)
    count, low, high = case.work.count, case.sizes[1], case.sizes[2]
    inputs = [numbers(random, count * case.ranks) for _ in range(case.ranks)]
    results, _ = pat_steps.execute(pat_steps.ReduceScatter, case.sizes, inputs)
    for owner, result in enumerate(results):
        term = pat_term(case.work, case.share, case.ranks, owner)
        expected = added(term, inputs, slice(owner * count + low, owner * count + high))
        assert result[low:high].tobytes() == expected.tobytes()


@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("seed", range(25, 40))
def test_messages_are_those_of_the_device_code(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, collective)
    reduces = collective is Collective.ReduceScatter
    inputs = [numbers(random, case.work.count * (case.ranks if reduces else 1)) for _ in range(case.ranks)]
    _, wires = pat_steps.execute(KINDS[collective], case.sizes, inputs)
    away = 1 if reduces else -1
    for rank in range(case.ranks):
        sent: dict[object, list[int]] = defaultdict(list)
        received: dict[object, list[int]] = defaultdict(list)
        for step in pat.steps(case.work, case.share, rank, case.ranks):
            for ends, peers in ((sent, step.send_to), (received, step.receive_from)):
                for peer in peers:
                    ends[peer].append(step.elements + step.unused)
        for bit in range((case.ranks - 1).bit_length()):
            to, whence = ((rank + way * away * (1 << bit)) % case.ranks for way in (1, -1))
            assert sent[to] == wires[rank, bit].log
            assert received[whence] == wires[whence, bit].log


@pytest.mark.slow
@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("seed", range(40, 50))
def test_every_rank_gets_what_the_collective_gives(collective: Collective, seed: int) -> None:
    random = np.random.default_rng(seed)
    case = drawn(random, collective, whole=True)
    found = Schedule(case.ranks, (3,), 1, 1, 4, lambda rank: pat.steps(case.work, case.share, rank, case.ranks))
    nodes = tuple((rank,) for rank in range(case.ranks))
    run = scheduled_numbers.of_collective(random, found, collective, case.work.count, nodes)
    assert run.sent_elements[0] == case.ranks * (case.ranks - 1) * case.work.count
