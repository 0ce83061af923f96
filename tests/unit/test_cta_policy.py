"""NCCL_CTA_POLICY: picks that move to NVLS."""

import dataclasses

import numpy as np
import pytest

from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import CHUNK, Selection
from tuner.scenario import Scenario

REQUEST = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.registered)
SIZES = np.geomspace(1 << 10, 1 << 32, 2 * CHUNK + 100).astype(np.uint64)
NVLS = (Algorithm.NVLS, Protocol.Simple)


def selection(channels: int, policy: str = "EFFICIENCY") -> Selection:
    """Of one node whose NVLS graph has so many channels: with more than 32, NVLS is no candidate for AllGather."""
    environment = {"NCCL_CTA_POLICY": policy}
    communicator = Scenario("2.32.3", 1, machine="dgx-h100", environment=environment).communicator()
    nvls = dataclasses.replace(communicator.graphs[Algorithm.NVLS], channels=channels)
    return Selection(dataclasses.replace(communicator, graphs={**communicator.graphs, Algorithm.NVLS: nvls}))


@pytest.mark.parametrize("channels", [16, 40])
def test_many_sizes_are_picked_as_few_are(channels: int) -> None:
    """They are gone through in chunks: what moves in one must not show in the next."""
    moved = selection(channels)
    assert (NVLS in moved.candidates(REQUEST)) == (channels <= 32)
    together = moved.pick(REQUEST, SIZES)
    assert NVLS in together.algo_protos()
    assert (together.combinations != selection(channels, "DEFAULT").pick(REQUEST, SIZES).combinations).any()
    for part in np.array_split(np.arange(len(SIZES)), 7):
        few = moved.pick(REQUEST, SIZES[part])
        for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
            assert np.array_equal(getattr(few, name), getattr(together, name)[part]), name
