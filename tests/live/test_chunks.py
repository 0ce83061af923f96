"""The time model's chunks of NVLS against those that libnccl gives its first channel."""

import numpy as np
import pytest

import tuner
from tests.support.available_releases import HERE
from tuner.api import request
from tuner.base.names import Algorithm, Protocol
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration
from tuner.times.timemodel import features
from tuner.times.timemodel.form import nvls_chunk_bytes

pytestmark = pytest.mark.live
NVLS = {"NCCL_ALGO": "NVLS"}
# Powers of two, at some of which the chunk changes, and an eighth less and more: nearer to these the channels of a
# call have different chunks, as their shares are whole cells.
POWERS = [1 << power for power in range(20, 34)]
SIZES = sorted({size + more for size in POWERS for more in (-(size >> 3), 0, size >> 3)})


@pytest.mark.parametrize("nccl", [each for each in HERE if tuple(map(int, each.split("."))) >= (2, 23)])
@pytest.mark.parametrize(("machine", "gpus"), [("dgx-h100", 8), ("dgx-b200", 8), ("dgx-h100", 4)])
def test_chunks_of_nvls(machine: str, gpus: int, nccl: str) -> None:
    kind = request("allreduce", dtype="float16")
    selection = tuner.communicator(machine, gpus_per_node=gpus, nccl=nccl, env=NVLS).selection
    topology = catalogue.load(machine).topology_xml
    with Oracle(OracleConfiguration(topology, 1, gpus, release=nccl, env=NVLS)) as oracle:
        launched = oracle.launch(kind, SIZES)
    assert {each.algorithm for each in launched} == {Algorithm.NVLS}
    sizes = np.array([each.bytes for each in launched], np.uint64)
    calls = features.of_algo_proto(selection, kind, sizes, (Algorithm.NVLS, Protocol.Simple))
    assert [each.channels for each in launched] == calls.channels.tolist()
    own = [each.chunk_bytes for each in launched]
    assert set(own) == {16384, 32768, 65536, 131072}
    assert dict(zip(SIZES, nvls_chunk_bytes(calls).tolist(), strict=True)) == dict(zip(SIZES, own, strict=True))
