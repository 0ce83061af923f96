"""NCCL's own choices on a GPU, not a simulated one: those of docs/one-gpu.md, at every size, with channels."""

from pathlib import Path

import pytest

import nccl_tuner
from tuner.base.names import Algorithm, Protocol
from tuner.times import measured
from tuner.times.measured.samples import Combination

TABLE = measured.load("h200-1x__2.30.7__nccl-tuner")
FOLDER = Path(__file__).parent / "one_gpu"
CHOICES = {"own-2": 140, "own-3": 138, "own-4": 138, "own-6": 136, "own-8": 136, "no-p2p-2": 140, "sockets-2": 120}


@pytest.mark.parametrize("run", CHOICES)
def test_the_emulator_picks_what_nccl_ran(run: str) -> None:
    rows = [row for row in TABLE.blocks if row.run == run]
    assert len(rows) == CHOICES[run]
    ranks = rows[0].ranks
    communicator = nccl_tuner.communicator(
        nccl=TABLE.header.nccl,
        topology=FOLDER / f"{ranks}-ranks.xml",
        ranks_per_gpu=ranks,
        env=TABLE.environment_of(rows[0]),
    )
    for row in rows:
        picked = communicator.pick(row.point.collective, row.point.bytes)
        names = Algorithm(int(picked.algorithm[0])), Protocol(int(picked.protocol[0])), int(picked.channels[0])
        assert Combination(*names) == row.took.combination, row
