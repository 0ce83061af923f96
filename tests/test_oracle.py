"""The real libnccl on simulated GPUs: its numbers are its own, and every way it can fail is reported."""

from pathlib import Path

import pytest

from tuner.errors import OracleUnavailable
from tuner.names import Collective, DataType
from tuner.oracle import library

RELEASE = "2.28.9"
SIZES = [4 << shift for shift in range(33)]  # 4 B to 16 GiB
AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
F32 = DataType.float32


@pytest.fixture(scope="session", autouse=True)
def nccl() -> library.Library:
    try:
        return library.find(RELEASE)
    except OracleUnavailable:
        return library.fetch(RELEASE)


def topology(name: str) -> str:
    return Path(f"tables/machines/{name}/topology.xml").read_text()
