"""Where no row of the table matches, libnccl launches what it launches without a tuner, fp8 included."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import BUILDS, HERE, WITH_PLUGINS
from tests.support.plugin_tables import table_of
from tuner import plugin, release
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.oracle import library
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall
from tuner.plugin import loading
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

SIZES = [*(64 << shift for shift in range(0, 28, 2)), (1 << 20) + 64, 3 << 20, 5 << 26]
ROWS = [
    "allreduce nodes=99 -> tree/simple channels=3",
    "allreduce ranks=3 bytes=1M.. -> ring/ll",
    "allgather bytes=7 -> ring/ll",
    "broadcast pipelined=77 -> ring/ll",
    "cost allreduce ranks=3 -> ring/ll never",
    "cost reducescatter nodes=99 -> ring/simple latency-us=0 bandwidth-gbs=900",
]
STEPS = 8  # of a buffer: NCCL_STEPS
CHUNKS_SINCE = 6  # version of the tuner interface
FP8_SINCE = 4  # version of the tuner interface: both came with 2.24


def asked(nccl: str) -> int:
    """The version of the tuner interface; 0 for a release that asks no tuner."""
    known = release.load(nccl)
    return loading.interface(known).version if known.plugin else 0


def requests(nccl: str) -> list[Request]:
    dtypes = [DataType.float32, DataType.bfloat16]
    if asked(nccl) >= FP8_SINCE:
        dtypes += [DataType.float8e4m3, DataType.float8e5m2]
    return [Request(collective, dtype, Op.sum) for collective in Collective for dtype in dtypes]


def launched(configuration: OracleConfiguration, asking: list[Request]) -> list[OracleLaunch]:
    with Oracle(configuration, timeout_s=600) as oracle:
        return [each for request in asking for each in oracle.launch(request, SIZES)]


@pytest.mark.each_choice
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-b200"])
@pytest.mark.parametrize(("nccl", "build"), [*((nccl, library.BUILD) for nccl in HERE), *BUILDS])
def test_nothing_changes(nccl: str, build: str, machine: str, tmp_path: Path) -> None:
    """Two nodes of eight GPUs: more ranks than those from which on NCCL guards sums of 8-bit floats."""
    if not asked(nccl):
        pytest.skip(f"{nccl} asks no tuner plugin")
    own = Scenario(nccl, 2, machine=machine, build=build).oracle_configuration()
    table = {"NCCL_TUNER_TABLE": str(table_of(tmp_path, *ROWS))}
    given = replace(own, plugin=plugin.path(), env={**own.env, **table})
    asking = requests(nccl)
    alone = launched(replace(own, without_tuner=True), asking)
    assert len(alone) == len(asking) * len(SIZES) >= 170
    changed = [was for was, now in zip(alone, launched(given, asking), strict=True) if was != now]
    assert changed == []


def chunks_bytes(configuration: OracleConfiguration, operations: list[Operation]) -> list[list[int]]:
    """Of each call, those of the network's operations."""
    calls = [[IssuedCall(each.request.collective, each.request.dtype, each.bytes // 4)] for each in operations]
    with Oracle(configuration) as oracle:
        return [each.operations["chunkSize"].tolist() for each in oracle.launch_groups_in_full(calls)]


@pytest.mark.parametrize("nccl", [name for name in WITH_PLUGINS if asked(name) >= CHUNKS_SINCE])
def test_chunks_stay_where_no_row_says_any(nccl: str, tmp_path: Path) -> None:
    """NCCL cuts what a tuner answers to a step of the buffer, even its own size; NVLSTree's chunks may be larger."""
    env = {"NCCL_BUFFSIZE": "65536", "NCCL_ALGO": "NVLSTree"}
    own = Scenario(nccl, 2, machine="dgx-h100", environment=env).oracle_configuration()

    def with_table(*rows: str) -> OracleConfiguration:
        table = {"NCCL_TUNER_TABLE": str(table_of(tmp_path, *rows))}
        return replace(own, plugin=plugin.path(), env={**own.env, **table})

    operations = [Operation(Request(Collective.AllReduce, DataType.float32, Op.sum), size) for size in SIZES[8:]]
    alone = chunks_bytes(replace(own, without_tuner=True), operations)
    assert max(map(max, alone)) > 65536 // STEPS
    assert chunks_bytes(own, operations) == alone, "the recorder"
    assert chunks_bytes(with_table(*ROWS, "allreduce ranks=16 -> nvlstree/simple"), operations) == alone
    said = chunks_bytes(with_table("allreduce -> nvlstree/simple chunk=4K"), operations)
    assert {size for of_call in said for size in of_call} == {4096}
