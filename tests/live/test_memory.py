"""What a communicator takes of the devices: libnccl's requests, which follow channels and variables."""

import json
import mmap
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.oracle import library, process
from tuner.oracle.bill import MemoryStage, bill
from tuner.scenario import Scenario

pytestmark = pytest.mark.live
MIB = 1 << 20
LAZY = [name for name in HERE if tuple(map(int, name.split("."))) >= (2, 22)]
CALL = [(Request(Collective.AllReduce, DataType.float32, Op.sum), MIB)]
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0"}


def stages(nccl: str, variables: dict[str, str], gpus: int = 2) -> list[MemoryStage]:
    scenario = Scenario(machine="dgx-h100", nodes=1, nccl=nccl, gpus_per_node=gpus, environment=RING | variables)
    return bill(scenario.oracle_configuration(), CALL)


@pytest.mark.parametrize("nccl", HERE)
def test_all_ranks_connect_and_launch(nccl: str) -> None:
    init, call = stages(nccl, {})
    assert len(init.device_bytes) == len(call.device_bytes) == 2
    assert min(init.device_bytes) > 0
    assert set(init.blocks) == {0}
    assert len(set(call.blocks)) == 1
    assert call.blocks[0] >= 1
    assert all(peak >= now for peak, now in zip(call.peak_device_bytes, call.device_bytes, strict=True))


@pytest.mark.parametrize("nccl", LAZY)
def test_connections_are_made_by_the_first_call_unless_at_once(nccl: str) -> None:
    (init, call), (at_once, after) = stages(nccl, {}), stages(nccl, {"NCCL_RUNTIME_CONNECT": "0"})
    assert min(call.device_bytes) > max(init.device_bytes)
    assert at_once.device_bytes == after.device_bytes
    assert min(at_once.device_bytes) >= max(call.device_bytes)


@pytest.mark.parametrize("nccl", [name for name in HERE if tuple(map(int, name.split("."))) >= (2, 29, 7)])
@pytest.mark.parametrize("variables", [{}, {"NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": "NVLS"}, {"NCCL_PROTO": "LL128"}])
def test_it_is_what_nccl_counts_itself(nccl: str, variables: dict[str, str]) -> None:
    for stage in stages(nccl, variables):
        assert stage.counted_bytes == stage.device_bytes


@pytest.mark.parametrize("nccl", LAZY)
def test_connections_take_memory_by_the_channel(nccl: str) -> None:
    """A ring of twice as many channels connects for twice as much."""
    added = []
    for channels in ("4", "8"):
        init, call = stages(nccl, {"NCCL_MIN_NCHANNELS": channels, "NCCL_MAX_NCHANNELS": channels})
        added.append(call.device_bytes[0] - init.device_bytes[0])
    assert added[1] == 2 * added[0] > 0


def test_smaller_buffers_take_less() -> None:
    """Buffers of Simple, by default 4 MiB: of a quarter there are 3 MiB less for every channel."""
    channels = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
    _, whole = stages("2.28.9", channels)
    _, quarter = stages("2.28.9", channels | {"NCCL_BUFFSIZE": str(MIB)})
    less = whole.device_bytes[0] - quarter.device_bytes[0]
    assert less > 0
    assert less % (8 * MIB) == 0


def test_shared_memory_of_a_process_is_found() -> None:
    """So that nothing stays of a child that is ended while its ranks connect."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nccl-", suffix="") as other:
        file = Path("/dev/shm/nccl-test_1")
        Path(other.name).rename(file)
        try:
            other.truncate(mmap.PAGESIZE)
            with mmap.mmap(other.fileno(), mmap.PAGESIZE):
                assert file in process._shared_memory(os.getpid())
            assert file not in process._shared_memory(os.getpid())
        finally:
            file.rename(other.name)


def test_nodes_that_differ_are_refused() -> None:
    scenario = Scenario(machine="gb200-nvl72", nodes=1, nccl="2.28.9")
    with pytest.raises(BadInput, match="equal nodes without NVLink domains"):
        bill(scenario.oracle_configuration(), CALL)


def test_command() -> None:
    words = ["memory", "allreduce:1M", "--machine", "dgx-h100", "--gpus-per-node", "2", "--nccl", "2.28.9"]
    result = CliRunner().invoke(everything, [*words, "--json"])
    assert result.exit_code == 0, result.output
    init, call = json.loads(result.stdout)["stages"]
    assert (init["after"], init["collective"]) == ("initialisation", None)
    assert call["collective"] == "AllReduce"
    assert call["bytes"] == MIB
    printed = CliRunner().invoke(everything, words, env={"COLUMNS": "80"}).stdout
    assert "AllReduce of 1 MiB" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_libnccl_of_a_known_release_that_is_named_is_the_one_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sum says the release, and it is asked itself: neither the cache nor a wheel need have it."""
    nccl = next(name for name in reversed(HERE) if name != library.installed_release())
    (tmp_path / "own.so").symlink_to(library.find(nccl).path)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    words = ("memory", "allreduce:8", "--machine", "dgx-h100", "--gpus-per-node", "2")
    done = run(*words, "--nccl", str(tmp_path / "own.so"))
    assert f"NCCL {nccl}" in done.stdout
    assert "is the libnccl of NCCL" in done.stderr
    assert not (tmp_path / "cache" / nccl).exists()
