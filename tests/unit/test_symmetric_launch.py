"""How the cells of a symmetric kernel's calls are dealt to its blocks, without libnccl."""

import json
import random

import pytest

from tests.support.command_line import run
from tuner.emulator.full_launch import dealt, parts

CELL = 256  # elements of float32


@pytest.mark.parametrize("seed", range(40))
def test_blocks_move_every_element_once(seed: int) -> None:
    draw = random.Random(seed)
    counts = [int(2 ** draw.uniform(0, draw.choice((4, 12, 24)))) for _ in range(draw.randint(1, 12))]
    cells = sum(-(-count // CELL) for count in counts)
    share = -(-cells // draw.randint(1, 64))
    blocks = -(-cells // share)
    ends, together = dealt(counts, CELL, blocks, last=True)
    made = list(parts(counts, CELL, ends))
    assert len(made) == blocks
    assert len(together) == len(counts)
    for call, count in enumerate(counts):
        own = [part for block in made for part in block.parts if part.work == call]
        assert [part.offset for part in own] == [sum(each.count for each in own[:at]) for at in range(len(own))]
        assert sum(part.count for part in own) == count
        assert all(part.offset % CELL == 0 for part in own)


def test_a_call_behind_another_shares_no_block() -> None:
    """Blocks that do a call together begin with the first that has nothing else."""
    ends, together = dealt([1000, 262144, 77], CELL, 3, last=False)
    assert [call for call, _ in ends] == [1, 1, 2]
    assert together == [(0, 1), (1, 2), (2, 1)]  # the second begins on block 0, and ends a cell before the third
    assert dealt([1000, 262144, 77 * CELL], CELL, 3, last=True)[1] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize(("last", "blocks"), [(True, 2), (False, 1)])
def test_the_last_block_counts_where_nothing_follows(last: bool, blocks: int) -> None:
    assert dealt([CELL * 7, CELL * 20], CELL, 3, last)[1][0] == (0, 1)
    assert dealt([CELL * 12], CELL, 2, True)[1] == [(0, 2)]
    assert dealt([CELL * 15], CELL, 2, last)[1] == [(0, 2)]  # of 8 cells each one is left
    assert dealt([CELL * 13, CELL], CELL, 2, last) == ([(0, 35289), (1, 65536)], [(0, 2), (1, 1)])
    assert dealt([CELL * 21], CELL, 4, last)[1] == [(0, 3 + blocks - 1)]


def test_the_command_says_what_blocks_do() -> None:
    words = "pick", "allreduce", "--machine", "dgx-b200", "--nccl", "2.30.7", "--buffers", "window", "--bytes", "1M"
    (answer,) = json.loads(run(*words, "--launch", "--json").stdout)
    (kernel,) = answer["launch"]["kernels"]
    assert kernel["name"] == "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32"
    assert [block["parts"] for block in kernel["symmetric"]["blocks"]] == [
        [{"work": 0, "offset": 0, "count": 131072}],
        [{"work": 0, "offset": 131072, "count": 131072}],
    ]
    out = run(*words, "--launch").stdout
    assert "call 0: 262144 elements of float32, blocks 0-1 together" in out
    assert "are not told their parts" in run(*words[:5], "2.27.7", *words[6:], "--launch").stdout
