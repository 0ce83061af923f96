"""The door for Python: names in words, defaults, and the same answers as behind it."""

import numpy as np
import pytest

import tuner
from tuner import release
from tuner.case import Case
from tuner.errors import BadInput, UnknownMachine, UnknownRelease
from tuner.names import Buffers, Collective, DataType, Op
from tuner.ranges import launches
from tuner.rules.request import Request
from tuner.selection import Selection

SIZES = np.array([8, 1 << 20, 1 << 30])
CALL = Request(Collective.ReduceScatter, DataType.bfloat16, Op.avg, buffers=Buffers.registered)
WORDS = {"dtype": "bfloat16", "op": "AVG", "buffers": "registered"}


def test_answers_are_those_behind_the_door() -> None:
    door = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9", gpus_per_node=4, env={"NCCL_PROTO": "^LL"})
    case = Case("2.28.9", 2, "dgx-h100", gpus_per_node=4, environment={"NCCL_PROTO": "^LL"})
    behind = Selection(case.communicator())
    assert door.ranks == 8
    assert (door.tables.latency_us == behind.tables.latency_us).all()
    assert (door.cost_table("reduce_scatter", SIZES, **WORDS) == behind.cost_table(CALL, SIZES)).all()
    picks, own = door.pick("ReduceScatter", SIZES, **WORDS), behind.pick(CALL, SIZES)
    edges, ranges = door.edges("reduce-scatter", **WORDS, high=1 << 24), launches(behind, CALL, high=1 << 24)
    for name in ("algorithm", "protocol", "channels", "threads"):
        assert (getattr(picks, name) == getattr(own, name)).all()
        assert (getattr(edges, name) == getattr(ranges, name)).all()
    assert (edges.from_bytes == ranges.from_bytes).all()


def test_the_release_is_the_newest_unless_one_is_asked_for() -> None:
    assert tuner.communicator("dgx-h100").case.nccl == release.names()[-1]
    assert tuner.communicator("dgx-h100", nccl="2.18.1").case.nccl == "2.18.1"


def test_what_is_unknown_is_said() -> None:
    with pytest.raises(UnknownMachine, match="dgx-h101"):
        tuner.communicator("dgx-h101")
    with pytest.raises(UnknownRelease, match=r"2\.27\.1"):
        tuner.communicator("dgx-h100", nccl="2.27.1")
    with pytest.raises(BadInput, match="unknown type 'half'"):
        tuner.communicator("dgx-h100").pick("allreduce", 8, dtype="half")
    with pytest.raises(AttributeError, match="communicator"):
        tuner.comunicator  # noqa: B018
