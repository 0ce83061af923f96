"""Which GPUs ranks are on: one each, in order, none newer than NCCL; and a log held against the machine asked for."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.available_releases import HERE
from tests.support.cases import report
from tests.support.diagnoses import found
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.logs import reader
from tuner.scenario.logs.lines import split_lines

HEAD = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n#\n# Using devices\n"
DEVICE = "#  Rank {rank:2} Group  0 Pid {pid} on {host} device {device:2} [{bus_id}] {gpu}\n"
TABLE = """#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608       2097152     float     sum      -1    220.1   38.3   57.00      0    220.5   38.3   57.00      0
"""
A100 = "NVIDIA A100-SXM4-80GB"


def device(rank: int, bus: int, host: str = "h0", pid: int = 1, gpu: str = A100) -> str:
    return DEVICE.format(rank=rank, pid=pid, host=host, device=rank, bus_id=f"0000:{bus:02x}:00", gpu=gpu)


def of(tmp_path: Path, text: str, *options: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the facts of the findings with their severity by code."""
    file = tmp_path / "run.log"
    file.write_text(text)
    code, findings = found(file, *options)
    return code, {each["code"]: {**each["facts"], "severity": each["severity"]} for each in reversed(findings)}


@pytest.mark.parametrize("rows", ["", TABLE])
def test_lists_of_rank_0_alone_are_programs_without_mpi(tmp_path: Path, rows: str) -> None:
    several = "".join(HEAD + device(0, 23, host=host, pid=pid) for host in ("h0", "h1") for pid in (4, 5))
    code, codes = of(tmp_path, several + rows)
    assert code == 1
    assert codes["diagnose.single_ranks"]["processes"] == 4
    _, codes = of(tmp_path, HEAD + device(0, 23) + device(1, 24, pid=2) + rows)
    assert "diagnose.single_ranks" not in codes
    _, codes = of(tmp_path, HEAD + device(0, 23) + rows)
    assert "diagnose.single_ranks" not in codes


def test_two_ranks_on_one_gpu_are_named(tmp_path: Path) -> None:
    listed = device(0, 23) + device(1, 23, pid=2) + device(2, 23, host="h1", pid=3) + device(3, 24, host="h1", pid=4)
    code, codes = of(tmp_path, HEAD + listed + "h0:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n")
    twice = codes["diagnose.gpu_twice"]
    assert (code, twice["host"], twice["ranks"], twice["severity"]) == (1, "h0", [0, 1], "fault")
    _, codes = of(tmp_path, HEAD + listed + TABLE)  # a run of several ranks on a GPU, as from 2.30.3 on it may be
    assert codes["diagnose.gpu_twice"]["severity"] == "unlike"
    parts = HEAD + "".join(device(rank, 23, gpu=f"{A100} MIG 1g.10gb", pid=rank) for rank in (0, 1))
    assert "diagnose.gpu_twice" not in of(tmp_path, parts + TABLE)[1]


PREFIX = "{host}:{pid}:{pid} [0] NCCL INFO "
INIT = (
    PREFIX + "ncclCommInitRank comm 0x{rank}1 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId {bus:x}000 "
    "commId 0x5 - Init {what}\n"
)
CHANNELS = (
    PREFIX + "16 coll channels, 16 collnet channels, {nvls} nvls channels, 16 p2p channels, 2 p2p channels per peer\n"
)
VERSION = "h0:1:1 [0] NCCL INFO NCCL version {nccl}+cuda{cuda}\n"


def log(
    order: list[int], nvls: int = 16, nccl: str = "2.28.9", own: str = "", complete: bool = True, cuda: str = "12.9"
) -> str:
    """A log of one node whose ranks are on GPUs of these bus ids."""
    text = VERSION.format(nccl=nccl, cuda=cuda) + own
    for rank, bus in enumerate(order):
        facts = {"host": "h0", "pid": rank + 1, "rank": rank, "ranks": len(order), "bus": bus}
        text += INIT.format(what="START", **facts)
        if complete:
            text += CHANNELS.format(nvls=nvls, **facts) + INIT.format(what="COMPLETE", **facts)
    return text


def test_a_bus_id_twice_in_nccls_own_lines(tmp_path: Path) -> None:
    code, codes = of(tmp_path, log([1, 2, 2, 3], complete=False))
    assert code == 1
    assert codes["diagnose.gpu_twice"]["ranks"] == [1, 2]
    assert "diagnose.gpu_twice" not in of(tmp_path, log([1, 2, 2, 3]))[1]  # NCCL took them
    assert "diagnose.gpu_twice" not in of(tmp_path, log([1, 2, 3, 4], complete=False))[1]


def test_ranks_out_of_bus_order_with_nvls(tmp_path: Path) -> None:
    chosen = "h0:1:1 [0] NCCL INFO AllGather: 4194304 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}\n"
    code, codes = of(tmp_path, log([2, 3, 4, 1]))
    assert (code, codes["diagnose.out_of_bus_order"]["severity"]) == (0, "unlike")
    code, codes = of(tmp_path, log([2, 3, 4, 1]) + chosen)
    assert (code, codes["diagnose.out_of_bus_order"]["severity"]) == (1, "fault")
    assert codes["diagnose.out_of_bus_order"]["chosen"] == ["AllGather"]
    for healthy in (log([1, 2, 3, 4]) + chosen, log([2, 3, 4, 1], nvls=0), log([2, 3, 4, 1], nccl="2.21.5")):
        assert "diagnose.out_of_bus_order" not in of(tmp_path, healthy)[1]


@pytest.mark.parametrize(
    ("gpu", "nccl", "cuda", "code"),
    [
        ("NVIDIA B200", "2.21.5", "12.4", "diagnose.newer_gpu"),
        ("NVIDIA B200", "2.26.2", "12.2", "diagnose.newer_gpu"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2.25.1", "12.2", "diagnose.newer_gpu"),
        ("NVIDIA H100 80GB HBM3", "2.18.1", "11.0", "diagnose.newer_gpu"),
        ("NVIDIA B200", "2.24.3", "12.8", "diagnose.newer_gpu_runs"),
        ("NVIDIA B200", "2.26.5", "12.9", None),
        ("NVIDIA H100 80GB HBM3", "2.21.5", "12.4", None),
        ("NVIDIA A100-SXM4-80GB", "2.18.1", "12.1", None),
    ],
)
def test_gpus_that_are_newer_than_nccl(tmp_path: Path, gpu: str, nccl: str, cuda: str, code: str | None) -> None:
    listed = HEAD + "".join(device(rank, rank + 1, pid=rank + 1, gpu=gpu) for rank in range(4))
    _, codes = of(tmp_path, listed + log([1, 2, 3, 4], nccl=nccl, cuda=cuda))
    assert {"diagnose.newer_gpu", "diagnose.newer_gpu_runs"} & codes.keys() == ({code} if code else set())
    if code == "diagnose.newer_gpu":
        assert codes[code]["severity"] == "fault"
        _, codes = of(tmp_path, listed + log([1, 2, 3, 4], nccl=nccl, cuda=cuda) + TABLE)  # a build of one's own runs
        assert code not in codes


def ways(way: str) -> str:
    lines = "".join(
        f"h{rank}:1:1 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/{way}\n" for rank in (0, 1)
    )
    rank = "h{0}:1:1 [0] NCCL INFO comm 0x{0}1 rank {0} nranks 2 cudaDev 0 busId 1000 commId 0x5 - Init COMPLETE\n"
    return VERSION.format(nccl="2.28.9", cuda="12.9") + rank.format(0) + rank.format(1) + lines


def test_gpudirect_of_a_log_against_the_machine_asked_for(tmp_path: Path) -> None:
    machine = ("--machine", "dgx-h100", "--nodes", "2")
    assert "diagnose.gpudirect_lacks" in of(tmp_path, ways("IB/0"), *machine)[1]
    assert "diagnose.gpudirect_lacks" not in of(tmp_path, ways("IB/0/GDRDMA"), *machine)[1]
    spark = ("--machine", "dgx-spark", "--nodes", "2")
    without = of(tmp_path, ways("IB/0/GDRDMA"), *spark)[1]
    assert "diagnose.gpudirect_unlike" in without
    assert "diagnose.gpudirect_unlike" not in of(tmp_path, ways("IB/0"), *spark)[1]


def test_gpus_of_a_log_against_the_machine_asked_for(tmp_path: Path) -> None:
    text = HEAD + "".join(device(rank, rank + 1, pid=rank + 1) for rank in range(4)) + log([1, 2, 3, 4])
    assert of(tmp_path, text, "--machine", "dgx-h100")[1]["diagnose.gpus_unlike"]["gpus"] == [A100]
    assert "diagnose.gpus_unlike" not in of(tmp_path, text, "--machine", "dgx-a100")[1]


@pytest.mark.live
@pytest.mark.parametrize("name", HERE)
def test_the_number_of_rings_is_that_of_the_channels(name: str) -> None:
    with Oracle(Scenario(nccl=name, machine="dgx-a100", nodes=1, gpus_per_node=8).oracle_configuration()) as oracle:
        log = reader.parse(split_lines(oracle.log_lines()))
    (channels,) = {each.channels[0] for each in log.ranks if each.channels is not None}
    assert set(log.ring_channels.values()) == {int(channels)}


def test_channels_are_known_by_the_rings_alone(tmp_path: Path) -> None:
    ring = "h0:1:1 [0] NCCL INFO Channel {0:02}/02 :    0   1\n"
    init = log([1, 2]).replace("16 coll channels", "lost")
    _, codes = of(tmp_path, init + ring.format(0) + ring.format(1))
    assert codes["diagnose.few_channels"]["channels"] == 2
    assert "diagnose.rings_cut" not in codes
    assert of(tmp_path, init + ring.format(0))[1]["diagnose.rings_cut"]["shown"] == 1


def test_releases_that_differ_in_one_communicator(tmp_path: Path) -> None:
    init = log([1, 2])
    other = "h0:{pid}:{pid} [0] NCCL INFO NCCL version {nccl}+cuda12.9\n"
    code, codes = of(tmp_path, init + other.format(pid=2, nccl="2.27.7"))
    assert (code, codes["diagnose.releases_differ"]["releases"]) == (1, ["2.27.7", "2.28.9"])
    assert codes["diagnose.releases_differ"]["users"] == ["2.27.7 on rank 1 (h0)", "2.28.9 on rank 0 (h0)"]
    for healthy in (other.format(pid=2, nccl="2.28.9"), other.format(pid=9, nccl="2.27.7")):  # of another job
        assert "diagnose.releases_differ" not in of(tmp_path, init + healthy)[1]
    both = "".join(other.format(pid=pid, nccl="2.27.7") for pid in (1, 2))  # an engine's library and PyTorch's
    assert "diagnose.releases_differ" not in of(tmp_path, both + init + other.format(pid=2, nccl="2.28.9"))[1]
    start = "".join(
        other.format(pid=pid, nccl=nccl).replace("h0", f"h{pid}") for pid, nccl in ((1, "2.27.7"), (2, "2.28.9"))
    )
    assert of(tmp_path, start)[1]["diagnose.releases_differ"]["users"] == ["2.27.7 on h1", "2.28.9 on h2"]


def test_a_library_of_the_adapters_that_is_too_old(tmp_path: Path) -> None:
    lacks = "h0:1:1 [0] NCCL INFO dlvsym failed on {0} - /lib/libmlx5.so: undefined symbol: {0}, version MLX5_1.25\n"
    text = log([1, 2]) + lacks.format("mlx5dv_reg_dmabuf_mr") + lacks.format("mlx5dv_get_data_direct_sysfs_path")
    code, codes = of(tmp_path, text)
    said = codes["diagnose.missing_symbol"]
    assert (code, said["severity"], said["library"], len(said["symbols"])) == (0, "note", "/lib/libmlx5.so", 2)
    _, codes = of(tmp_path, text + "RuntimeError: Assertion error (nccl.cu:87): type != NCCL_GIN_TYPE_NONE\n")
    assert codes["diagnose.missing_symbol"]["severity"] == "unlike"


def test_public_inputs_name_their_causes() -> None:
    codes = [each["code"] for each in found(report("I18/gin.log"))[1]]
    assert codes[:2] == ["ending.assertion", "diagnose.missing_symbol"]
    points = [each["facts"]["resource"] for each in found(report("I12/low.log"))[1] if "points" in each["code"]]
    assert "NVLS" in points
    assert next(each["code"] for each in found(report("I23/abort.log"))[1]) == "requests.release_crashes"
    code, findings = found(report("F12/g7e-ok.log"), report("F12/node.xml"))
    assert code == 0
    assert [each["code"] for each in findings if "gpudirect" in each["code"]] == ["diagnose.gpudirect_as_topology"]
