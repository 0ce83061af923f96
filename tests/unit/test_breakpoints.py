"""Breakpoints of a function that is constant in pieces, against looking at every size."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.names import Collective
from tuner.base.numerics import SizeArray
from tuner.emulator.selection import Selection
from tuner.plugin import compile
from tuner.scenario import Scenario


def steps(*at: int) -> breakpoints.Labels:
    def labels(sizes: SizeArray) -> NDArray[np.int64]:
        return np.searchsorted(np.array(at, np.uint64), sizes, side="right")

    return labels


@pytest.mark.parametrize(
    "at", [(), (2,), (2, 3, 4), (1000, 1001), (2**24 + 1,), (2**40 + 3,), (2**53 + 1, 2**60 + 1, 2**62)]
)
def test_finds_every_step(at: tuple[int, ...]) -> None:
    assert breakpoints.find(steps(*at), 1, 2**62).tolist() == [1, *at]


def test_a_step_at_a_break_that_would_hide() -> None:
    hidden = 2**30 + 2**20 + 12345  # there and back within a sixteenth
    assert breakpoints.find(steps(hidden, hidden + 1), 1, 2**62).tolist() == [1, hidden, hidden + 1]

    def there_and_back(sizes: SizeArray) -> NDArray[np.int64]:
        return np.asarray(steps(hidden, hidden + 1)(sizes) % 2, np.int64)

    assert breakpoints.find(there_and_back, 1, 2**62, [hidden]).tolist() == [1, hidden, hidden + 1]


def test_ends_belong_to_it() -> None:
    assert breakpoints.find(steps(7, 9), 7, 9).tolist() == [7, 9]
    assert breakpoints.find(steps(7, 10), 7, 9).tolist() == [7]


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nccl", "machine", "nodes", "gpus"),
    [
        ("2.28.9", "dgx-h100", 2, 8),
        ("2.28.9", "dgx-b200", 1, 8),
        ("2.21.5", "dgx-a100", 2, 2),
        ("2.32.3", "dgx-b200", 1, 8),
    ],
)
@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
def test_no_size_is_decided_otherwise(nccl: str, machine: str, nodes: int, gpus: int, collective: Collective) -> None:
    """Every size to 4 MiB, and every float32 of 2**24 to 2**26 and around each edge, where roundings meet."""
    selection = Selection(Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus).communicator())
    rows = compile.decisions(selection, [collective])
    starts = np.array([max(row.bytes.low, 1) for row in rows], np.uint64)
    around = np.concatenate([np.arange(max(int(s) - 50_000, 1), int(s) + 50_000, dtype=np.uint64) for s in starts])
    sizes = np.concatenate(
        [
            np.arange(1, 4 << 20, dtype=np.uint64),
            np.arange(1 << 24, 1 << 26, 8, dtype=np.uint64),
            around,
        ]
    )
    wanted = np.array([[*one.choices[0].algo_proto] for one in rows], np.int8)
    for part in np.array_split(sizes, 64):  # what is computed of a part stays in the processor's cache
        with np.errstate(divide="ignore"):  # channels of calls smaller than their type, which are none
            picks = selection.pick(compile.request(collective), part)
        row = np.searchsorted(starts, part, side="right") - 1
        assert (wanted[row, 0] == picks.algorithm).all()
        assert (wanted[row, 1] == picks.protocol).all()
    assert len(rows) > 1
