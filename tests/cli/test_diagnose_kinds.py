"""``nccl-tuner diagnose`` of what tools beside NCCL print: RAS, NVLinks, ports, configuration files, tuner files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import report
from tests.support.command_line import run_to_any_end
from tests.support.diagnoses import found
from tuner.jobs.diagnosis.diagnose import READERS, reader_of
from tuner.jobs.diagnosis.records import FileKind
from tuner.machine import catalogue

COUNTS = ("Broadcast", "AllReduce")


def ras(counts: list[int], moment: str = "10:00", missing: list[dict[str, Any]] | None = None, **status: Any) -> str:
    """A report in JSON of ranks with these counts of AllReduce; ``status`` is of the last rank."""
    well = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {
            "rank": rank,
            "host": "h",
            "pid": 1,
            "cuda_dev": rank,
            "status": {**well, **(status if rank == len(counts) - 1 else {})},
            "collective_counts": {"Broadcast": 0, "AllReduce": count},
        }
        for rank, count in enumerate(counts)
    ]
    communicator = {"hash": "0xab", "size": len(counts) + len(missing or ()), "ranks": ranks}
    communicator["missing_ranks"] = missing or []
    return json.dumps({"nccl_version": "2.28.9", "timestamp": moment, "communicators": [communicator]})


def test_one_report_of_a_rank_behind_is_not_judged_and_two_that_agree_are_a_hang(tmp_path: Path) -> None:
    first, second, later = tmp_path / "1.json", tmp_path / "2.json", tmp_path / "3.json"
    first.write_text(ras([6, 6, 5]))
    second.write_text(ras([6, 6, 5], "10:05"))
    later.write_text(ras([9, 9, 8], "10:05"))
    code, (finding, *_) = found(first)
    assert (code, finding["code"], finding["facts"]["ranks"]) == (3, "ras.behind", [2])
    code, (finding, *_) = found(first, second)
    assert (code, finding["code"], finding["facts"]["ahead"]) == (1, "ras.hang", 6)
    assert found(first, later)[0] == 3  # it moved on
    assert found(first, first)[0] == 3  # a report is no second one of itself


@pytest.mark.parametrize(
    ("status", "missing", "code", "finding"),
    [
        ({}, [], 0, "ras.sound"),
        ({"async_error": 1}, [], 1, "ras.failed"),
        ({"abort_flag": True}, [], 1, "ras.stage"),
        ({"destroy_flag": True}, [], 3, "ras.stage"),
        ({}, [{"rank": 3, "status": {"unresponsive": True, "considered_dead": False}}], 3, "ras.missing"),
        ({}, [{"rank": 3, "status": {"unresponsive": True, "considered_dead": True}}], 1, "ras.missing"),
    ],
)
def test_states_of_ranks_in_a_report(
    tmp_path: Path, status: dict[str, Any], missing: list[dict[str, Any]], code: int, finding: str
) -> None:
    (tmp_path / "ras.json").write_text("SERVER PROTOCOL 2\nOK\n" + ras([5, 5, 5], missing=missing, **status))
    exited, (first, *others) = found(tmp_path / "ras.json")
    assert (exited, first["code"]) == (code, finding)
    assert "ras.not_counted" in {each["code"] for each in others}


def test_a_report_that_is_cut_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(ras([5, 5])[:-30])
    code, (finding, *_) = found(tmp_path / "ras.json")
    assert code == 3
    assert "cut" in finding["text"]


EXCERPT = """\
#0-0 (ed342fc9523261dd) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 6
  Rank 3 has launched up to operation {count} -- GPU 3 managed by process 4242 on node node-a
"""


def test_an_excerpt_of_the_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(EXCERPT.format(count=5))
    (tmp_path / "b.txt").write_text("some words of a ticket\n" + EXCERPT.format(count=5))
    (tmp_path / "c.txt").write_text(EXCERPT.format(count=4))
    code, (finding, *others) = found(tmp_path / "a.txt")
    assert (code, finding["code"], finding["facts"]["counts"]) == (3, "ras.behind", [5])
    assert "ras.excerpt" in {each["code"] for each in others}
    assert found(tmp_path / "a.txt", tmp_path / "b.txt")[0] == 1
    assert found(tmp_path / "a.txt", tmp_path / "c.txt")[0] == 3


def test_reports_that_nccl_printed() -> None:
    behind = [report(f"RAS/behind-2.32.3.{form}") for form in ("json", "txt")]
    for each in behind:
        code, (finding, *_) = found(each)
        assert (code, finding["code"], finding["facts"]["ranks"]) == (3, "ras.behind", [3])
    assert found(*behind)[0] == 1
    assert found(report("RAS/healthy-2.32.3.json"))[0] == 0
    assert found(report("F11/dead.txt"))[0] == 1
    assert found(report("F11/ras.json"))[0] == 3


GPU = "GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n"


def links(*states: str) -> str:
    return "".join(f"\t Link {link}: {state}\n" for link, state in enumerate(states))


@pytest.mark.parametrize(
    ("gpus", "code", "finding"),
    [
        ((["26.562 GB/s"] * 18,) * 2, 0, "node.nvlinks_well"),
        ((["26.562 GB/s"] * 18, ["26.562 GB/s"] * 17 + ["<inactive>"]), 1, "node.nvlinks_down"),
        ((["26.562 GB/s"] * 18, ["26.562 GB/s"] * 17), 1, "node.nvlinks_fewer"),
        ((["26.562 GB/s"] * 18, ["26.562 GB/s"] * 17 + ["13.281 GB/s"]), 1, "node.nvlinks_slow"),
        ((["<inactive>"] * 18,) * 2, 1, "node.nvlinks_off"),
    ],
)
def test_nvlinks_of_nvidia_smi(tmp_path: Path, gpus: tuple[list[str], ...], code: int, finding: str) -> None:
    text = "".join(GPU.format(n=number) + links(*states) for number, states in enumerate(gpus))
    (tmp_path / "nvlink.txt").write_text(text)
    exited, (first, *_) = found(tmp_path / "nvlink.txt")
    assert (exited, first["code"]) == (code, finding)


def test_ports_that_are_down_are_said_and_no_port_is_a_fault(tmp_path: Path) -> None:
    line = "mlx5_{n} port 1 ==> eth{n} ({state})\n"
    for states, code, finding in (
        (("Up", "Up"), 0, "node.ports_up"),
        (("Up", "Down"), 0, "node.ports_down"),
        (("Down", "Down"), 1, "node.ports_none"),
    ):
        (tmp_path / "ports.txt").write_text("".join(line.format(n=n, state=state) for n, state in enumerate(states)))
        exited, (first, *_) = found(tmp_path / "ports.txt")
        assert (exited, first["code"]) == (code, finding)


IBSTAT = "CA 'mlx5_{n}'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {physical}\n{more}"
IBSTATUS = (
    "Infiniband device 'mlx5_{n}' port 1 status:\n\tdefault gid:\t fe80::1\n\tsm lid:\t\t 0x1\n"
    "\tstate:\t\t {state}\n\tphys state:\t {physical}\n\trate:\t\t {rate} Gb/sec (4X NDR)\n\n"
)
IBLINK = (
    "CA: node{n} mlx5_0:\n      0x{n:016x}     {n}    1[  ]"
    " ==( 4X      {rate} Gbps {state}/  LinkUp)==>       3    3[  ]\n"
)


@pytest.mark.parametrize(
    ("text", "code", "finding", "down"),
    [
        (IBSTAT.format(n=0, state="Down", physical="Disabled", more=""), 1, "node.ports_none", ["mlx5_0"]),
        (
            IBSTAT.format(n=0, state="Active", physical="LinkUp", more="\t\tRate: 400\n")
            + IBSTAT.format(n=1, state="Initializing", physical="LinkUp", more="\t\tRate: 400\n"),
            0,
            "node.ports_down",
            ["mlx5_1"],
        ),
        (IBSTATUS.format(n=3, state="1: DOWN", physical="3: Disabled", rate=10), 1, "node.ports_none", ["mlx5_3"]),
        (IBSTATUS.format(n=3, state="4: ACTIVE", physical="5: LinkUp", rate=400), 0, "node.ports_up", []),
        (
            "".join(
                IBSTATUS.format(n=n, state="4: ACTIVE", physical="5: LinkUp", rate=400 - 200 * (n == 2))
                for n in range(4)
            ),
            0,
            "node.ports_slow",
            None,
        ),
        ("".join(IBLINK.format(n=n, rate=106.25, state="Active") for n in range(3)), 0, "node.ports_up", []),
        (
            "".join(IBLINK.format(n=n, rate=106.25, state="Active" if n else "Down") for n in range(3)),
            0,
            "node.ports_down",
            ["node0 mlx5_0"],
        ),
        (
            "mlx5_0   port  1  ==>  eth0   (Up)   # front\nmlx5_1   port  1  ==>  eth1   (Down)\n",
            0,
            "node.ports_down",
            ["mlx5_1"],
        ),
    ],
)
def test_ports_of_every_tool(tmp_path: Path, text: str, code: int, finding: str, down: list[str] | None) -> None:
    (tmp_path / "ports.txt").write_text(text)
    exited, (first, *_) = found(tmp_path / "ports.txt")
    assert (exited, first["code"]) == (code, finding)
    assert down is None or first["facts"]["down"] == down


def test_ip_over_infiniband_that_is_down_on_all_ports_says_nothing_of_the_ports(tmp_path: Path) -> None:
    ports = [f"mlx5_{n} port 1 ==> ib{n} (Down)\n" for n in range(4)]
    (tmp_path / "ports.txt").write_text("".join(ports) + "mlx5_4 port 1 ==> eth0 (Up)\n")
    exited, (first, *others) = found(tmp_path / "ports.txt")
    assert (exited, first["code"], first["facts"]["down"]) == (3, "node.ports_over_ip", [f"mlx5_{n}" for n in range(4)])
    assert others[0]["code"] == "node.ports_up"
    (tmp_path / "ports.txt").write_text("".join(ports[:3]) + "mlx5_3 port 1 ==> ib3 (Up)\n")
    exited, (first, *_) = found(tmp_path / "ports.txt")
    assert (exited, first["code"], len(first["facts"]["down"])) == (0, "node.ports_down", 3)


def test_an_adapter_that_a_tool_cannot_read_is_a_fault(tmp_path: Path) -> None:
    text = IBSTAT.format(n=7, state="Active", physical="LinkUp", more="")
    (tmp_path / "ports.txt").write_text(f"{text}ibpanic: [71] main: stat of IB device 'mlx5_8' failed: No such file\n")
    exited, (first, *_) = found(tmp_path / "ports.txt")
    assert (exited, first["code"], first["facts"]["adapters"]) == (1, "node.ports_unread", ["mlx5_8"])


QUERY = """
==============NVSMI LOG==============

Driver Version                            : 570.1
Attached GPUs                             : 1
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 2
    Remapped Rows
        Pending                           : No
        Remapping Failure Occurred        : No
    Fabric
        State                             : Completed
        Status                            : Success
"""


@pytest.mark.parametrize(
    ("was", "now", "code", "finding"),
    [
        ("", "", 0, "node.gpus_listed"),
        ("State                             : Completed", "State : In Progress", 1, "node.gpu_fabric"),
        ("Status                            : Success", "Status : Initialization Failure", 1, "node.gpu_fabric"),
        ("Current                   : 16x", "Current : 4x", 1, "node.gpu_link_width"),
        ("DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 3", 1, "node.gpus_ecc"),
        (
            "Pending                           : No",
            "Pending                           : Yes",
            1,
            "node.gpu_reset_pending",
        ),
        ("Occurred        : No", "Occurred        : Yes", 1, "node.gpu_remap_failed"),
        ("Thermal Slowdown           : Not Active", "Thermal Slowdown           : Active", 1, "node.gpu_slowed"),
        (
            "Current                           : Disabled",
            "Current                           : Enabled",
            0,
            "node.gpu_mig",
        ),
    ],
)
def test_a_query_of_nvidia_smi(tmp_path: Path, was: str, now: str, code: int, finding: str) -> None:
    assert was in QUERY
    (tmp_path / "smi.txt").write_text(QUERY.replace(was, now, 1) if was else QUERY)
    exited, (first, *_) = found(tmp_path / "smi.txt")
    assert (exited, first["code"]) == (code, finding)


ROW = """|   {n}  {name:<28}  On  |   00000000:0{n}:00.0 Off |                 {ecc:>4} |
| N/A   34C    P0             61W /  400W |       4MiB /  81920MiB |      {load:>4}      Default |
+-----------------------------------------+------------------------+----------------------+
"""


@pytest.mark.parametrize(
    ("rows", "code", "finding"),
    [
        ([("NVIDIA A100-SXM4-80GB", "0", "0%"), ("NVIDIA A100-SXM4-80GB", "N/A", "9%")], 0, "node.gpus_listed"),
        ([("NVIDIA A100-SXM4-80GB", "0", "0%"), ("ERR!", "ERR!", "ERR!")], 1, "node.gpus_lost"),
        ([("NVIDIA A100-SXM4-80GB", "7", "0%")], 1, "node.gpus_ecc"),
    ],
)
def test_the_table_of_nvidia_smi(tmp_path: Path, rows: list[tuple[str, str, str]], code: int, finding: str) -> None:
    head = "| NVIDIA-SMI 550.54.15      Driver Version: 550.54.15      CUDA Version: 12.4     |\n"
    body = "".join(ROW.format(n=n, name=name, ecc=ecc, load=load) for n, (name, ecc, load) in enumerate(rows))
    (tmp_path / "smi.txt").write_text(head + body)
    exited, (first, *_) = found(tmp_path / "smi.txt")
    assert (exited, first["code"]) == (code, finding)


@pytest.mark.parametrize(
    ("text", "code", "finding"),
    [
        ("max locked memory       (kbytes, -l) 64\nopen files (-n) 1024\n", 1, "node.memlock"),
        ("max locked memory           (kbytes, -l) unlimited\n", 0, "node.memlock_unlimited"),
        ("\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+\n", 1, "node.acs_on"),
        ("\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-\n", 0, "node.acs_off"),
        ("Device=0 CANNOT Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n", 0, "node.peers_without"),
        ("Device=0 CAN Access Peer Device=1\nDevice=1 CAN Access Peer Device=0\n", 0, "node.peers_well"),
        ("        GPU0    GPU1\n GPU0   X       CNS\n GPU1   CNS     X\n", 0, "node.peers_without"),
        ("        GPU0    GPU1\n GPU0   X       OK\n GPU1   OK      X\n", 0, "node.peers_well"),
    ],
)
def test_limits_and_peer_access_of_a_host(tmp_path: Path, text: str, code: int, finding: str) -> None:
    (tmp_path / "host.txt").write_text(text)
    exited, (first, *_) = found(tmp_path / "host.txt")
    assert (exited, first["code"]) == (code, finding)


def test_the_output_of_several_tools_in_one_file_is_read_by_each(tmp_path: Path) -> None:
    table = "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV18    0-31\nGPU1    NV18     X      0-31\n"
    (tmp_path / "node.txt").write_text(IBSTAT.format(n=0, state="Down", physical="Polling", more="") + "\n" + table)
    exited, findings = found(tmp_path / "node.txt")
    assert (exited, findings[0]["code"]) == (1, "node.ports_none")


def test_an_error_that_names_a_variable_sets_none(tmp_path: Path) -> None:
    says = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
    (tmp_path / "out.txt").write_text(f"ERROR [core.py:5] cupy.cuda.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: {says}\n")
    exited, (first, *_) = found(tmp_path / "out.txt")
    assert (exited, first["code"]) == (1, "ending.nccl_error")


def test_a_configuration_file_is_read_as_nccl_reads_it(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("# ours\nNCCL_ALGO=Ring\nNCCL_IB_TC=106 # class\n")
    code, (first, *_) = found(tmp_path / "nccl.conf")
    assert (code, first["facts"]["settings"]) == (0, ["NCCL_ALGO=Ring", "NCCL_IB_TC=106"])
    for line in ("NCCL_ALGO = Ring", " NCCL_ALGO=Ring", "export NCCL_ALGO=Ring"):
        (tmp_path / "nccl.conf").write_text(f"NCCL_DEBUG=INFO\n{line}\n")
        code, (first, *_) = found(tmp_path / "nccl.conf")
        assert (code, first["code"], first["facts"]["line"]) == (1, "node.setting_unread", 2)
        assert first["facts"]["text"] == line  # with the blanks that are wrong


@pytest.mark.parametrize(
    "lines", ['TOKEN="hidden"', "TOKEN= hidden # mine", "TOKEN=hidden\nTOKEN=other", " TOKEN=hidden"]
)
def test_a_configuration_files_other_variables_keep_their_values_to_themselves(lines: str, tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text(f"NCCL_DEBUG=INFO\n{lines}\n")
    assert "hidden" not in run_to_any_end("diagnose", str(tmp_path / "nccl.conf"), "--json").stdout


@pytest.mark.parametrize(
    ("line", "code", "settings"),
    [
        ("NCCL_NTHREADS= 128", None, ["NCCL_NTHREADS=128"]),
        ("NCCL_NTHREADS=128 # few", None, ["NCCL_NTHREADS=128"]),
        ("NCCL_ALGO=Ring # ours", "node.setting_odd", None),
        ("NCCL_ALGO= Ring", "node.setting_odd", None),
        ("NCCL_ALGO=Ring ", "node.setting_odd", None),
        ("NCCL_ALGO='Ring'", "node.setting_odd", None),
        ('NCCL_NTHREADS="128"', "node.setting_odd", None),
        ("NCCL_ALGO=Ring\r", None, ["NCCL_ALGO=Ring"]),
        ("NCCL_ALGO=Ring\nNCCL_ALGO=Tree", "node.setting_repeated", None),
        ("NCCL_ALGO =Ring", "node.setting_unread", None),
    ],
)
def test_lines_that_do_not_do_what_they_look_like(
    line: str, code: str | None, settings: list[str] | None, tmp_path: Path
) -> None:
    """By what libnccl 2.32.3 does with each (tests/live/test_configuration_file.py)."""
    (tmp_path / "nccl.conf").write_bytes(f"{line}\n".encode())
    _, findings = found(tmp_path / "nccl.conf")
    assert {each["code"] for each in findings if each["code"].startswith("node.setting_")} == (
        {code} if code else set()
    )
    if settings is not None:
        assert findings[0]["facts"]["settings"] == settings


@pytest.mark.parametrize("header", ["# collective,minBytes,maxBytes,algorithm,protocol,channels\n", ""])
def test_a_tuner_file_of_six_columns_is_read_and_said_to_be_left_out(tmp_path: Path, header: str) -> None:
    (tmp_path / "six.conf").write_text(f"{header}allreduce,0,98304,tree,ll,-1\nallreduce,98305,-1,ring,simple,-1\n")
    code, (first, *_) = found(tmp_path / "six.conf")
    assert (code, first["code"], first["facts"]["rows"], first["facts"]["columns"]) == (
        0,
        "diagnose.table_unread",
        2,
        6,
    )
    row = "colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks\nallreduce,0,-1,tree,ll,-1,-1,-1\n"
    (tmp_path / "header.conf").write_text(row)
    code, (first, *_) = found(tmp_path / "header.conf")
    assert (code, first["facts"]["header"]) == (0, 1)


def test_a_trace_says_what_it_shows_and_is_not_held_against_a_larger_machine() -> None:
    trace = report("F17/kineto.json")
    code, (first, *_) = found(trace)
    assert (code, first["code"], first["facts"]["ranks"]) == (0, "diagnose.trace", [2])
    assert "NCCL 2.17.1" in first["text"]
    assert "A100" in first["facts"]["gpu"]
    code, findings = found(trace, "--machine", "dgx-a100")
    assert code == 0
    assert "diagnose.trace_of_a_part" in {each["code"] for each in findings}


def test_results_of_a_job_that_crashed_say_how_and_what_the_release_has_no_room_for() -> None:
    code, findings = found(report("I23/abort.log"))
    assert code == 1
    by_code = {each["code"]: each for each in findings}
    assert by_code["requests.release_crashes"]["facts"]["gpus"] == 40
    assert any(name.startswith("ending.") for name in by_code)


AMD = """\
# Using devices
#   Rank  0 Pid   1234 on  h device  0 [0000:0c:00.0] AMD Instinct MI300X
#   Rank  1 Pid   1235 on  h device  1 [0000:22:00.0] AMD Instinct MI300X
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    30.00   34.95   34.95   {wrong}    30.00   34.95   34.95      0
# Out of bounds values : 0 OK
"""


def test_results_of_amds_gpus_say_what_they_are_and_wrong_ones_are_a_fault_anywhere(tmp_path: Path) -> None:
    (tmp_path / "rccl.log").write_text(AMD.format(wrong=0))
    code, (first, *_) = found(tmp_path / "rccl.log")
    assert (code, first["code"]) == (3, "diagnose.amd_results")
    (tmp_path / "rccl.log").write_text(AMD.format(wrong=7))
    assert found(tmp_path / "rccl.log")[0] == 1
    code, (first, *_) = found(report("F06/wrong.log"))
    assert (code, first["code"]) == (1, "accept.wrong_results")
    assert (first["facts"]["calls"], first["facts"]["most"]) == (11, 951005)


def test_verdicts_on_times_topologies_and_strangers_files_have_codes_of_their_own(tmp_path: Path) -> None:
    times = AMD.format(wrong=0).replace("AMD Instinct MI300X", "NVIDIA H100 80GB HBM3")
    (tmp_path / "slow.log").write_text(times.replace("   30.00   34.95   34.95", "90000.00    0.01    0.01"))
    code, findings = found(tmp_path / "slow.log", "--machine", "dgx-h100", "--nodes", "1", "--nccl", "2.28.9")
    assert (code, findings[0]["code"]) == (1, "diagnose.times_fail")
    facts = findings[0]["facts"]
    assert (facts["collective"], facts["bytes"], facts["time_us"]) == ("AllReduce", 1 << 20, 90000)
    assert facts["expected_us"] < 1000
    (tmp_path / "words.txt").write_text("a list of things to buy\nbread\n")
    code, findings = found(tmp_path / "words.txt")
    assert (code, [each["code"] for each in findings]) == (3, ["diagnose.nothing_of_nccl"])
    (tmp_path / "node.xml").write_text(catalogue.load("dgx-h100").topology_xml)
    code, findings = found(tmp_path / "node.xml")
    assert (code, findings[0]["code"]) == (0, "diagnose.topology_without_notes")


def test_each_kind_that_is_read_by_itself_has_a_reader() -> None:
    """Readers are loaded by name, for such a file alone: a wrong name would show with the first such file."""
    together = {FileKind.log, FileKind.output}
    assert set(READERS) == set(FileKind) - together
    assert all(callable(reader_of(kind)) for kind in READERS)
