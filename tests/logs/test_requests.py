"""What was asked for and not had: each named with the line that asks, and what was followed is no fault."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import report
from tests.support.diagnoses import found
from tuner.base.findings import Finding, Severity
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import LogAdditions

HEAD = "h0:1:1 [0] NCCL INFO NCCL version {nccl}+cuda12.9\n"
RANK = "{host}:{pid}:{pid} [0] NCCL INFO "
COMM = "ncclCommInitRank comm 0x{rank}1 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x5 - Init "


def log(
    tmp_path: Path,
    *own: str,
    hosts: int = 1,
    channels: str = "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    mnnvl: int = 0,
    nccl: str = "2.28.9",
) -> list[Finding]:
    """Findings of a log of two ranks a host; each rank prints its ``own`` lines after its start."""
    lines = [HEAD.format(nccl=nccl)]
    ranks = 2 * hosts
    for rank in range(ranks):
        prefix = RANK.format(host=f"h{rank // 2}", pid=rank + 1)
        said = [
            COMM.format(rank=rank, ranks=ranks) + "START",
            *own,
            f"comm 0x{rank}1 rank {rank} nRanks {ranks} nNodes {hosts} localRanks 2 localRank {rank % 2} MNNVL {mnnvl}",
            channels,
            COMM.format(rank=rank, ranks=ranks) + "COMPLETE",
        ]
        lines += [f"{prefix}{each}\n" for each in said]
    file = tmp_path / "nccl.log"
    file.write_text("".join(lines))
    return list(importer.read(file, LogAdditions()).evidence.findings)


def of_requests(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.code.startswith("requests.")]


NO_COLLNET = "16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer"
NO_NVLS = "16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer"
FABRIC = "MNNVL busId 0x1b000 fabric UUID aa.bb cliqueId 0x7 state {state} healthMask 0x{mask}"
WELL = FABRIC.format(state=3, mask="1aa")


@pytest.mark.parametrize(
    ("lines", "options", "code", "severity"),
    [
        (("NCCL_COLLNET_ENABLE set by environment to 1.",), {"channels": NO_COLLNET}, "collnet", "fault"),
        (("Comm config Collnet enable set to 1",), {"channels": NO_COLLNET}, "collnet", "fault"),
        (("NCCL_ALGO set by environment to CollnetDirect",), {"channels": NO_COLLNET}, "collnet", "fault"),
        (("NCCL_NVLS_ENABLE set by environment to 1.",), {"channels": NO_NVLS}, "nvls", "fault"),
        (("Comm config nvlsCTAs set to 8",), {"channels": NO_NVLS}, "nvls", "fault"),
        (("NCCL_ALGO set by environment to NVLS",), {"hosts": 2}, "nvls_of_one_node", "fault"),
        ((WELL, "NCCL_CUMEM_ENABLE set by environment to 0."), {"hosts": 2}, "mnnvl_switched_off", "fault"),
        ((WELL, "NCCL_MNNVL_ENABLE set by environment to 0."), {"hosts": 2}, "mnnvl_switched_off", "unlike"),
        ((WELL,), {"hosts": 2}, "mnnvl_unused", "fault"),
        ((FABRIC.format(state=1, mask="0"),), {"hosts": 2}, "fabric_state", "fault"),
        ((FABRIC.format(state=3, mask="1a9"),), {"hosts": 2, "mnnvl": 1}, "fabric_health", "fault"),
        ((FABRIC.format(state=3, mask="19a"),), {"hosts": 2, "mnnvl": 1}, "fabric_health", "fault"),
        ((FABRIC.format(state=3, mask="5aa"),), {"hosts": 2, "mnnvl": 1}, "fabric_health", "fault"),
        (
            ("NCCL_TUNER_PLUGIN set by environment to libx.so", "TUNER/Plugin: Could not find: libx.so"),
            {},
            "plugin_not_found",
            "fault",
        ),
        (
            (
                "TUNER/Plugin: Plugin name set by env to libx.so",
                "TUNER/Plugin: Failed to find ncclTunerPlugin_v2 symbol, using internal tuner instead.",
            ),
            {"nccl": "2.23.4"},
            "plugin_not_found",
            "fault",
        ),
        (
            ("NCCL_NET_PLUGIN set by environment to gIB", "NET/Plugin: Could not find: gIB libnccl-net-gIB.so."),
            {},
            "plugin_not_found",
            "fault",
        ),
        (
            (
                "NCCL_PROFILER_PLUGIN set by environment to p",
                "PROFILER/Plugin: Could not find: p libnccl-profiler-p.so",
            ),
            {},
            "plugin_not_found",
            "fault",
        ),
        (("NCCL_TUNER_PLUGIN set by environment to libx.so",), {}, "tuner_not_shown", "note"),
        (("NCCL_NET set by environment to IB", "Using network Socket"), {}, "network", "fault"),
        (
            ("NCCL_IB_HCA set to mlx5_1", "NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_10:1/IB [RO]; OOB eth0:1.1.1.1<0>"),
            {},
            "adapters_by_prefix",
            "unlike",
        ),
        (
            ("NCCL_IB_HCA set to mlx5_1,mlx5_7", "NET/IB : Using [0]mlx5_1:1/IB [RO]; OOB eth0:1.1.1.1<0>"),
            {},
            "adapters_missing",
            "fault",
        ),
        (("Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0",), {}, "network_inside", "fault"),
        (
            (
                "NCCL_P2P_DISABLE set by environment to 1.",
                "NCCL_SHM_DISABLE set by environment to 1.",
                "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0",
            ),
            {},
            "network_inside",
            "unlike",
        ),
        (
            ("NCCL_NET_GDR_LEVEL set by environment to SYS", "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0"),
            {"hosts": 2},
            "gpudirect",
            "fault",
        ),
        (("NCCL_MIN_NCHANNELS set by environment to 24.",), {}, "channels", "fault"),
    ],
)
def test_what_was_asked_for_and_not_had_is_named_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], options: dict[str, Any], code: str, severity: str
) -> None:
    (first, *_) = [each for each in of_requests(log(tmp_path, *lines, **options)) if each.code == f"requests.{code}"]
    assert first.severity == severity
    line = first.facts.get("line") or first.facts.get("fabric_line")
    if line is None:  # nothing asks for connections over the network inside a node
        assert code == "network_inside"
        return
    text = (tmp_path / "nccl.log").read_text().splitlines()[line - 1]
    assert any(each in text for each in lines)


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ((), {}),
        (("NCCL_COLLNET_ENABLE set by environment to 1.",), {}),
        (("NCCL_COLLNET_ENABLE set by environment to 0.",), {"channels": NO_COLLNET}),
        (("NCCL_NVLS_ENABLE set by environment to 0.",), {"channels": NO_NVLS}),
        (("NCCL_NVLS_ENABLE set by environment to 2.",), {"channels": NO_NVLS}),
        (("NCCL_ALGO set by environment to NVLSTree",), {"hosts": 2}),
        ((WELL,), {"hosts": 2, "mnnvl": 1}),
        ((WELL, "NCCL_CUMEM_ENABLE set by environment to 0."), {"hosts": 1}),
        (("NCCL_TUNER_PLUGIN set by environment to none", "TUNER/Plugin: Could not find: libnccl-tuner.so"), {}),
        (("TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",), {}),
        (("NCCL_NET set by environment to ib", "Using network IB"), {}),
        (("NCCL_IB_HCA set to =mlx5_1", "NET/IB : Using [0]mlx5_1:1/IB [RO]; OOB eth0:1.1.1.1<0>"), {}),
        (("NCCL_IB_HCA set to mlx5", "NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_10:1/IB [RO]; OOB eth0:1.1.1.1<0>"), {}),
        (("NCCL_IB_HCA set to ^mlx5_2", "NET/IB : Using [0]mlx5_1:1/IB [RO]; OOB eth0:1.1.1.1<0>"), {}),
        (("NCCL_MIN_NCHANNELS set by environment to 16.",), {}),
    ],
)
def test_what_was_followed_or_not_asked_for_is_no_finding(
    tmp_path: Path, lines: tuple[str, ...], options: dict[str, Any]
) -> None:
    assert of_requests(log(tmp_path, *lines, **options)) == []


def test_a_tuner_that_stepped_back_chooses_nothing(tmp_path: Path) -> None:
    own = "TUNER/Plugin: Using nccl_ofi_tuner (v3)"
    back = "NET/OFI NCCL_OFI_TUNER is not available for platform : g7e.8xlarge, Fall back to NCCL's tuner"
    codes = {each.code for each in log(tmp_path, own, back)}
    assert "requests.tuner_stepped_back" in codes
    assert "diagnose.tuner_chooses" not in codes
    assert "diagnose.tuner_chooses" in {each.code for each in log(tmp_path, own)}


def test_ranks_with_different_networks(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    log(tmp_path)
    text = file.read_text().splitlines()
    text[2:2] = ["h0:1:1 [0] NCCL INFO Using network IB", "h0:2:2 [0] NCCL INFO Using network Socket"]
    file.write_text("\n".join(text) + "\n")
    (first,) = of_requests(list(importer.read(file, LogAdditions()).evidence.findings))
    assert (first.code, first.facts["used"], first.facts["lines"]) == (
        "requests.networks_differ",
        ["IB", "Socket"],
        [3, 4],
    )


@pytest.mark.parametrize(("gpus", "crashes"), [(32, False), (36, True)])
def test_a_release_that_crashes_with_so_many_gpus(tmp_path: Path, gpus: int, crashes: bool) -> None:
    line = f"comm 0x01 rank 0 nRanks {gpus} nNodes 1 localRanks {gpus} localRank 0 MNNVL 1"
    codes = {each.code for each in log(tmp_path, line, nccl="2.21.5")}
    assert ("requests.release_crashes" in codes) == crashes
    assert "requests.release_crashes" not in {each.code for each in log(tmp_path, line)}


SETTING = "NCCL_P2P_DISABLE set by environment to 1."


def test_a_setting_that_was_followed_is_said_and_no_fault(tmp_path: Path) -> None:
    said = log(tmp_path, SETTING, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
    assert any("NCCL_P2P_DISABLE=1" in str(each.facts) for each in said)
    assert Severity.FAULT not in {each.severity for each in said}


DIAGNOSTIC = "h:1 NCCL DIAG [{tag}]   {text}\n"


@pytest.mark.parametrize(
    ("text", "code", "exit_code"),
    [
        ("ECC: no uncorrected volatile errors across 2 ranks in comm 0x5", "diagnostics.well", 0),
        ("ECC: unavailable via NVML across 2 ranks in comm 0x5", "diagnostics.not_run", 0),
        ("ECC: uncorrected volatile errors on rank(s) 1 (worst=3) across 2 ranks in comm 0x5", "diagnostics.found", 1),
        ("NVLink: inactive link(s) on rank(s) 0-1 across 2 ranks in comm 0x5", "diagnostics.found", 1),
        ("net bw: write rank 1 (h): 90.0 Gbit/s, >30% off median 380.0 Gbit/s in comm 0x5", "diagnostics.found", 1),
        ("NCCL environment: 2 NCCL_* env var(s) differ across ranks in comm 0x5", "diagnostics.found", 1),
    ],
)
def test_nccls_own_diagnostics(tmp_path: Path, text: str, code: str, exit_code: int) -> None:
    log(tmp_path)
    file = tmp_path / "nccl.log"
    file.write_text(file.read_text() + DIAGNOSTIC.format(tag="INFO", text=text))
    exited, findings = found(file)
    assert code in {each["code"] for each in findings}
    assert exited == exit_code


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("I05/cumem0.log", "requests.mnnvl_switched_off", {3}),
        ("I05/nofabric.log", "requests.fabric_state", {6}),
        ("I04/one-degraded.log", "requests.fabric_health", {38}),
        ("I21/uccl.log", "requests.plugin_not_found", {11}),
        ("IK/collnet-miss.log", "requests.collnet", {68}),
        ("RAS/diag-2.32.3.log", "diagnostics.found", {20}),
        ("F10/fault.log", "diagnose.few_channels", {None}),
    ],
)
def test_logs_that_people_brought(name: str, code: str, lines: set[int]) -> None:
    exited, (first, *_) = found(report(name))
    assert (exited, first["code"]) == (1, code)
    assert first["facts"].get("line") in lines
