"""Excerpts as people paste them into reports: which line is the cause, and whether anything is wrong at all."""

import re
from pathlib import Path

import pytest

from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.diagnose import diagnose
from tuner.jobs.diagnosis.records import DiagnosisOptions

FAULT, UNKNOWN, UNLIKE, NOTE = Severity.FAULT, Severity.UNKNOWN, Severity.UNLIKE, Severity.NOTE


def of_text(folder: Path, *lines: str, name: str = "job.out") -> tuple[Finding, ...]:
    """All findings of a file, those of each kind that it is of, the gravest first."""
    (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return tuple(finding for one in diagnose([folder / name], DiagnosisOptions()) for finding in one.findings)


AT_WORK = "[rank{rank}]:[E101 10:00:0{rank}.5 ProcessGroupNCCL.cpp:1785] [PG ID 1 PG GUID 4(tp) Rank {rank}] "
CAUGHT = (
    "[rank{rank}]:[E101 10:00:0{rank}.4 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=1000) ran for 1001 "
    "milliseconds before timing out."
)
DETECTED = (
    AT_WORK + "Exception (either an error or timeout) detected by watchdog at work: 77, last enqueued NCCL work: 79"
)
SEQUENCE = AT_WORK + " failure detected by watchdog at work sequence id: 77 PG status: last enqueued work: 79"


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (DETECTED.format(rank=3), 77),
        (SEQUENCE.format(rank=3), 77),
        (AT_WORK.format(rank=3) + "Timeout at NCCL work: 78, last enqueued NCCL work: 79.", 78),
    ],
    ids=["detected", "sequence id", "timeout at"],
)
def test_what_the_watchdog_says_in_other_words_is_a_failure_of_its_rank(tmp_path: Path, line: str, call: int) -> None:
    started = (
        "trainer-0:40:41 [3] NCCL INFO comm 0x5500 rank 3 nranks 4 cudaDev 3 busId 9d000 commId 0x77 - Init COMPLETE"
    )
    for lines in ((line,), (started, line)):
        first = of_text(tmp_path, *lines)[0]
        assert (first.code, first.severity) == ("ending.watchdog_failure", FAULT)
        assert (first.facts["rank"], first.facts["number"]) == (3, call)


def test_a_rank_that_says_the_number_alone_waits_too(tmp_path: Path) -> None:
    """pytorch/pytorch prints both lines on each rank; a launcher may lose one."""
    found = of_text(tmp_path, CAUGHT.format(rank=0), DETECTED.format(rank=0), DETECTED.format(rank=2))
    assert found[0].code == "diagnose.timeout"
    assert found[0].facts["ranks"] == [0, 2]
    elsewhere = DETECTED.format(rank=2).replace("work: 77", "work: 12")
    assert of_text(tmp_path, CAUGHT.format(rank=0), elsewhere)[0].facts["ranks"] == [0]


def test_the_exception_that_the_watchdog_throws_is_not_the_cause(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of '{}'"
    caught = CAUGHT.format(rank=5)
    after = caught[caught.index("[Rank 5]") :]
    for kind in ("c10::DistBackendError", "std::runtime_error"):
        found = of_text(
            tmp_path, thrown.format(kind), f"  what():  [PG 3 Rank 5] thread terminated with exception: {after}"
        )
        assert found[0].code == "diagnose.timeout", kind


def test_the_xid_that_another_follows_from_is_the_cause(tmp_path: Path) -> None:
    first = of_text(
        tmp_path, "kernel: NVRM: Xid (PCI:0000:1b:00): 45, pid=77, name=python, Ch 00000004 caused by previous Xid 149"
    )[0]
    assert (first.code, first.facts["number"], first.facts["gpu"]) == ("ending.xid", 149, "0000:1b:00")


def test_the_process_of_torchruns_report_has_its_rank_and_host(tmp_path: Path) -> None:
    report = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-01-02_03:04:05",
        "  host      : trainer-7",
        "  rank      : 13 (local_rank: 5)",
        "  exitcode  : -9 (pid: 4100)",
    ]
    first = of_text(tmp_path, *report)[0]
    assert (first.code, first.facts["rank"], first.facts["host"]) == ("ending.killed", 13, "trainer-7")
    assert first.facts["pid"] == 4100


def torchruns_report(*, first: int, exit_code: int, ended: tuple[tuple[int, int], ...]) -> list[str]:
    """What torchrun says of ranks that it ended with their exit codes, and of the one that failed before them."""
    lines = ["ChildFailedError:", "Failures:"]
    for number, (rank, code) in enumerate((*ended, (first, exit_code))):
        lines += ["Root Cause (first observed failure):"] if rank == first else []
        lines += [f"[{number}]:", "  host      : trainer-7", f"  rank      : {rank} (local_rank: {rank})"]
        lines += [f"  exitcode  : {code} (pid: {4100 + rank})"]
        lines += [f"  traceback : Signal {-code} received by PID {4100 + rank}"] if code < 0 else []
    return lines


@pytest.mark.parametrize(("exit_code", "code"), [(1, "exit_code"), (-9, "killed"), (-11, "segmentation_fault")])
def test_ranks_that_torchrun_itself_killed_are_not_the_cause(tmp_path: Path, exit_code: int, code: str) -> None:
    first, *others = of_text(
        tmp_path, *torchruns_report(first=5, exit_code=exit_code, ended=((0, -9), (2, -15), (3, 1)))
    )
    assert (first.code, first.facts["rank"]) == (f"ending.{code}", 5)
    assert [each.facts["ranks"] for each in others if each.code == "diagnose.ranks_followed"] == [[0, 2, 3]]


def test_a_programs_own_exception_comes_before_its_exit_code(tmp_path: Path) -> None:
    exception = ["Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: no such file"]
    report = torchruns_report(first=5, exit_code=1, ended=((0, -9),))
    assert of_text(tmp_path, *exception, *report)[0].code == "ending.python_exception"


@pytest.mark.parametrize("prefix", ["[17] ", "17: ", ""])
def test_the_rank_that_pytorch_says_goes_before_a_number_in_front_of_it(tmp_path: Path, prefix: str) -> None:
    line = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert of_text(tmp_path, f"{prefix}[rank3]: {line}")[0].facts["rank"] == 3


CLOSED = "host1:40:41 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer host0<4>"
FULL = "host0:50:51 [3] include/alloc.h:1 NCCL WARN Cuda failure 'out of memory'"
LATER_CAUSES = {
    "a warning": (FULL, "diagnose.warned"),
    "a killed process": ("[rank3]: ./run.sh: line 7: 50 Killed   python train.py", "ending.killed"),
    "a CUDA error": ("[rank3]: CUDA error: unspecified launch failure (719)", "ending.cuda_launch_failure"),
}


@pytest.mark.parametrize("name", LATER_CAUSES)
def test_a_lost_connection_is_not_the_cause_where_another_rank_says_its_own(tmp_path: Path, name: str) -> None:
    line, code = LATER_CAUSES[name]
    first = of_text(tmp_path, CLOSED, line)[0]
    assert (first.code, first.facts["line"]) == (code, 2)
    alone = of_text(tmp_path, CLOSED, "Traceback (most recent call last):", "RuntimeError: NCCL error in: x.cpp:1")[0]
    assert alone.facts["line"] == 1  # an exception of the program follows from it


@pytest.mark.parametrize(("tries", "of", "fault"), [(34, 34, True), (12, 34, False)])
def test_an_address_that_no_try_reached_is_a_fault(tmp_path: Path, tries: int, of: int, fault: bool) -> None:
    text = f"h:1:2 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying ({tries}/{of}) after x"
    found = of_text(tmp_path, "h:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.4<0>", text)
    assert (found[0].code == "diagnose.warned") == fault
    assert (found[0].severity is FAULT) == fault


MEANINGS_BEFORE_OTHERS = {
    "nvmlInit_v2() failed: Driver/library version mismatch": "kernel module",
    "hipIpcGetMemHandle failed : invalid argument": "HIP gives a process no handle",
    "Call to connect failed : Connection timed out": "does not reach the other",
}


@pytest.mark.parametrize("text", MEANINGS_BEFORE_OTHERS)
def test_a_text_of_a_driver_or_the_system_has_its_own_meaning(tmp_path: Path, text: str) -> None:
    warned = of_text(tmp_path, f"h:1:2 [0] src/x.cc:1 NCCL WARN {text}")[0]
    assert MEANINGS_BEFORE_OTHERS[text] in warned.facts["meaning"]


def connections(*hosts: tuple[str, str]) -> list[str]:
    """Connections to the network of a rank on each host, by the way that its lines name."""
    return [
        f"{host}:{rank}:{rank} [0] NCCL INFO Channel 00/0 : {rank}[0] -> {1 - rank}[0] [{side}] via {way}"
        for rank, (host, way) in enumerate(hosts)
        for side in ("send", "receive")
    ]


def test_gpudirect_that_one_host_of_a_pair_lacks_names_that_host(tmp_path: Path) -> None:
    lines = connections(("host0", "NET/IB/0/GDRDMA"), ("host1", "NET/IB/0"))
    found = {each.code: each for each in of_text(tmp_path, *lines)}
    assert found["diagnose.gpudirect_of_hosts"].facts["hosts"] == ["host1"]
    assert found["diagnose.gpudirect_of_hosts"].severity is FAULT
    alike = connections(("host0", "NET/IB/0/GDRDMA"), ("host1", "NET/IB/0/GDRDMA"))
    assert "diagnose.gpudirect_of_hosts" not in {each.code for each in of_text(tmp_path, *alike)}


COMPLETION = "NET/IB : Got completion from peer 10.9.0.3<4100> with status=12 opcode=0 len=0 vendor err 129 (Recv)"


@pytest.mark.parametrize(
    "lines",
    [
        ("RuntimeError: NCCL error: remote process exited, NCCL version 2.22.3 ncclRemoteError: A call failed. "
         f"Last error:    {COMPLETION}   Exception raised from f at g.cpp:1",),
        ("(Worker pid=7, ip=10.0.0.4) [rank1]: NCCL error: remote process exited or there was a network error",
         f"(Worker pid=7, ip=10.0.0.4) {COMPLETION}"),
    ],
    ids=["in one line", "without its announcement"],
)  # fmt: skip
def test_nccls_last_error_is_found_where_lines_were_joined_or_left_out(tmp_path: Path, lines: tuple[str, ...]) -> None:
    warned = [each for each in of_text(tmp_path, *lines) if each.code == "diagnose.warned"]
    assert [each.facts["text"] for each in warned] == [COMPLETION]
    assert warned[0].facts["meaning"] is not None


def test_an_empty_last_error_is_no_warning(tmp_path: Path) -> None:
    found = of_text(
        tmp_path, "NCCL error: unhandled system error, NCCL version 2.25.1", "Last error:", "", "frame #0: f()"
    )
    assert found[0].code == "ending.nccl_error"
    assert not any(each.code == "diagnose.warned" for each in found)


HOST = "trainer-0:40:4{rank} [{rank}] NCCL INFO "
COMPLETE = HOST + "comm 0x550{rank} rank {rank} nranks 2 cudaDev {rank} busId {rank}000 - Init COMPLETE"
CALL = HOST + (
    "{name}: opCount 0 sendbuff 0x7 recvbuff 0x7 count 8 datatype 7 op 0 root 0 comm 0x550{rank} [nranks=2] stream 0x2"
)


def test_a_log_that_shows_no_complete_communicator_is_not_healthy(tmp_path: Path) -> None:
    connecting = [
        HOST.format(rank=0) + "Channel 00/02 :    0   1",
        HOST.format(rank=1) + "Channel 00/0 : 1[1] -> 0[0] via P2P/IPC",
    ]
    assert of_text(tmp_path, *connecting)[0].code == "diagnose.ends_before_complete"
    ended = of_text(tmp_path, *connecting, *(COMPLETE.format(rank=rank) for rank in (0, 1)))
    assert ended[0].severity in (NOTE, UNLIKE)
    little = of_text(tmp_path, HOST.format(rank=0) + "Setting affinity for GPU 0 to ff")
    assert (little[0].code, little[0].severity) == ("diagnose.ends_before_init", UNKNOWN)


def test_a_rank_that_entered_no_collective_while_others_wait_is_named(tmp_path: Path) -> None:
    made = [COMPLETE.format(rank=rank) for rank in (0, 1)]
    first = of_text(tmp_path, *made, CALL.format(rank=0, name="Broadcast"))[0]
    assert (first.code, first.severity, first.facts["ranks"]) == ("diagnose.ranks_without_call", UNKNOWN, [1])
    both = of_text(tmp_path, *made, *(CALL.format(rank=rank, name="Broadcast") for rank in (0, 1)))
    assert both[0].severity in (NOTE, UNLIKE)


def test_wrong_results_are_a_fault_of_a_table_that_is_not_whole(tmp_path: Path) -> None:
    lines = ["# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor)", "# Using devices",
             "#  Rank  0 Group  0 Pid   87 on  ws7 device  0 [0x01] NVIDIA GeForce GTX 950",
             " 8 2 float sum -1 9.5 0.00 0.00 1 9.5 0.00 0.00 1",
             "# Out of bounds values : {} {}", "# Avg bus bandwidth    : 0.5"]  # fmt: skip
    wrong = of_text(tmp_path, *(line.format(14, "FAILED") for line in lines))
    assert (wrong[0].code, wrong[0].facts["calls"]) == ("diagnose.out_of_bounds", 14)
    right = of_text(tmp_path, *(line.format(0, "OK") for line in lines))
    assert not any(each.code == "diagnose.out_of_bounds" for each in right)


@pytest.mark.parametrize(
    ("warning", "part"),
    [
        ("NET/IB : SHARP coll init error: Cannot create SHARP job(-11)", "without CollNet"),
        ("NET/OFI Only EFA provider is supported", "no EFA adapter"),
        ("NET/OFI Disabling shared memory failed: Protocol not available", "different EFA installers"),
        ("ncclSocketInit: connecting to address  with family 59 is neither AF_INET(2) nor AF_INET6(10)", "interface"),
        ("failed to open CUDA IPC handle : 217 peer access is not supported between these two devices", "no access"),
    ],
)
def test_warnings_that_people_brought_have_their_own_meaning(tmp_path: Path, warning: str, part: str) -> None:
    found = of_text(tmp_path, f"trainer-0:40:41 [0] misc/socket.cc:20 NCCL WARN {warning}")
    assert part in str(next(each for each in found if each.code == "diagnose.warned").facts["meaning"])


def test_a_job_whose_sharp_does_not_start_is_said(tmp_path: Path) -> None:
    asked = HOST.format(rank=0) + "NCCL_COLLNET_ENABLE set by environment to 1."
    found = of_text(tmp_path, asked, "[trainer-0:1:285 - context.c:415] ERROR sharp_get_local_data failed: no port")
    assert (found[0].code, found[0].severity) == ("ending.sharp_failed", FAULT)


def test_a_start_of_pytorch_alone_sets_no_variables(tmp_path: Path) -> None:
    started = ["[I ProcessGroupNCCL.cpp:672] [Rank 0] ProcessGroupNCCL initialized with following options:",
               "NCCL_ASYNC_ERROR_HANDLING: 1", "NCCL_BLOCKING_WAIT: 0", "TIMEOUT(ms): 1800000"]  # fmt: skip
    assert {each.severity for each in of_text(tmp_path, *started)} == {UNKNOWN}


@pytest.mark.parametrize(
    ("counters", "severity"),
    [
        (("Replay Errors: 0", "Recovery Errors: 0", "CRC Errors: 0"), NOTE),
        (("Replay Errors: 4", "Recovery Errors: 0", "CRC Errors: 9"), UNLIKE),
        (("Replay Errors: 4", "Recovery Errors: 2", "CRC Errors: 9"), FAULT),
        (("Tx packets: 400", "Rx Errors: 0", "Link recovery successful events: 3"), FAULT),
    ],
)
def test_error_counters_of_nvlinks(tmp_path: Path, counters: tuple[str, ...], severity: Severity) -> None:
    lines = ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", "\t Link 0: Replay Errors: 0"]
    lines += ["GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)", *(f"\t Link 5: {each}" for each in counters)]
    (found,) = of_text(tmp_path, *lines, name="nvlink.txt")
    assert found.severity is severity
    assert severity is NOTE or (found.facts["gpu"], found.facts["links"]) == (1, [5])


@pytest.mark.parametrize(
    ("line", "code", "facts"),
    [
        ("INTERNAL:  NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail.", "ending.nccl_error",
         {"result": "ncclSystemError"}),
        ("NCCL operation ncclCommInitRank(&comm, n, id, rank) failed: unhandled cuda error; current tracing scope",
         "ending.nccl_error", {"result": "ncclUnhandledCudaError"}),
        ("NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library.", "ending.missing_library", {}),
        ("RuntimeError: [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d: timeout",
         "ending.store_timeout", {"rank": 5, "number": 0}),
        ("(raylet) A worker died or was killed while executing a task. Worker IP address: 10.1.0.9 Worker port: 4 "
         "Worker PID: 66 There are some potential root causes. (1) SIGKILL by OOM killer (3) SIGSEGV",
         "ending.ray_worker_died", {"host": "10.1.0.9", "pid": 66}),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
         "ending.ray_out_of_memory", {}),
        ("[launch.py:324:sigkill_handler] ['python', 't.py'] exits with return code = -9", "ending.killed", {}),
        ("[trainer-1:77 :0:90] Caught signal 11 (Segmentation fault: address not mapped)", "ending.segmentation_fault",
         {"host": "trainer-1", "pid": 77}),
        ("RuntimeError: CUDA error: peer access is not supported between these two devices",
         "ending.cuda_no_peer_access", {}),
        ("10.1.0.9: [rank19]: CUDA error: unspecified launch failure", "ending.cuda_launch_failure",
         {"host": "10.1.0.9", "rank": 19}),
        ('raise RuntimeError(f"NCCL error: {e}")\nRuntimeError: NCCL error: unhandled cuda error', "ending.nccl_error",
         {"result": "ncclUnhandledCudaError", "line": 2}),
        ("2026-10-14 01:39:50 | ERROR | stderr | [rank3]: NCCL error: internal error", "ending.nccl_error",
         {"rank": 3}),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "ending.store_timeout", {}),
        ("error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected", "ending.recorder_mismatch",
         {"rank": 22, "detail": "SIZE_OR_SYNTAX_MISMATCH"}),
        ("UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory.", "ending.memory_not_registered", {}),
        ("infiniband mlx5_2: create_mkey_callback:131:(pid 0): async reg mr failed. status -12",
         "ending.memory_not_registered", {"detail": "mlx5_2"}),
        ("train-w-1  0/1  Init:Error  4 (2m ago)  5m", "ending.kubernetes_restarts", {"detail": "train-w-1"}),
        ("77.0   pretrain   hopper   OUT_OF_ME+   0:125", "ending.slurm_out_of_memory", {}),
        ("77.0   pretrain   TIMEOUT   0:0", "ending.slurm_time_limit", {}),
        ("77.0   pretrain   FAILED   3:0", "ending.slurm_failed", {"number": 3}),
        ("2m  Warning  FailedScheduling  pod/w-3  0/5 nodes are available: 5 Insufficient nvidia.com/gpu. no victims",
         "ending.kubernetes_not_scheduled", {"detail": "0/5 nodes are available: 5 Insufficient nvidia.com/gpu"}),
    ],
    ids=lambda each: each if isinstance(each, str) and each.startswith("ending.") else "",
)  # fmt: skip
def test_endings_that_people_brought(tmp_path: Path, line: str, code: str, facts: dict[str, object]) -> None:
    first = next(each for each in of_text(tmp_path, line) if each.code.startswith("ending."))
    assert (first.code, first.severity) == (code, FAULT)
    assert {name: first.facts[name] for name in facts} == facts


def test_accounting_of_a_job_that_completed_is_well(tmp_path: Path) -> None:
    head = ["JobID    JobName    State  ExitCode", "-----  ---------  ---------  -----"]
    done = ["77       pretrain  COMPLETED      0:0", "77.0     torchrun  COMPLETED      0:0"]
    assert of_text(tmp_path, *head, *done)[0].code == "diagnose.ends_orderly"
    assert of_text(tmp_path, *head, *done, "77.1     torchrun  FAILED      1:0")[0].severity is FAULT


def test_the_warning_that_xla_repeats_is_read(tmp_path: Path) -> None:
    text = (
        "INTERNAL: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: internal error. Last NCCL "
        "warning(error) log entry (may be unrelated) 'Attribute busid of node nic not found'.; current"
    )
    warned = [each for each in of_text(tmp_path, text) if each.code == "diagnose.warned"]
    assert [each.facts["text"] for each in warned] == ["Attribute busid of node nic not found"]
    assert "topology file" in str(warned[0].facts["meaning"])


def test_what_amds_library_reports_is_read(tmp_path: Path) -> None:
    lines = ["RCCL version 2.18.3+hip5.5 develop:6ecf771+",
             'box:20:21 [0] init.cc:125 NCCL WARN Missing "amd_iommu=on" from kernel command line']  # fmt: skip
    assert {each.severity for each in of_text(tmp_path, *lines)} == {UNKNOWN}
    found = of_text(tmp_path, *lines, "box:20:21 [0] p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument")
    assert found[0].severity is FAULT
    assert any(each.code == "diagnose.of_amd" for each in found)


IBSTAT = (
    "CA '{name}'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {link}\n\t\tRate: {rate}"
)


@pytest.mark.parametrize(
    ("ports", "code"),
    [
        ((("Active", 400), ("Active", 400), ("Active", 400)), "node.ports_up"),
        ((("Active", 400), ("Down", 10), ("Active", 400)), "node.ports_down"),
        ((("Active", 400), ("Active", 200), ("Active", 400)), "node.ports_slow"),
        ((("Down", 10), ("Down", 10), ("Initializing", 400)), "node.ports_none"),
    ],
    ids=["all up", "one down", "one slow", "none"],
)
def test_ports_of_ibstat(tmp_path: Path, ports: tuple[tuple[str, int], ...], code: str) -> None:
    lines = [
        IBSTAT.format(name=f"mlx5_{number}", state=state, link="LinkUp" if state == "Active" else "Polling", rate=rate)
        for number, (state, rate) in enumerate(ports)
    ]
    assert code in {each.code for each in of_text(tmp_path, *lines, name="ibstat.txt")}


def test_ports_of_rdma_link(tmp_path: Path) -> None:
    lines = ["link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth2",
             "link mlx5_1/1 state DOWN physical_state DISABLED netdev eth3"]  # fmt: skip
    (found,) = of_text(tmp_path, *lines, name="rdma.txt")
    assert (found.code, found.facts["down"], found.facts["interfaces"]) == ("node.ports_down", ["mlx5_1"], ["eth3"])


def test_a_log_of_hosts_in_brackets_is_no_xml(tmp_path: Path) -> None:
    assert (
        of_text(tmp_path, "<node-a>:9:9 [5] NCCL INFO cudaDriverVersion 12010")[0].code == "diagnose.ends_before_init"
    )


@pytest.mark.parametrize(
    "line",
    [
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [trainer-0]:29500 (errno: 22).",
        "[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed before we destruct it. On "
        "normal program exit, the application should call destroy_process_group",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING: 1",
        "WARNING: Failed to import Apex, falling back to torch.nn.LayerNorm",
        "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so': cannot open shared object file",
        "slurmstepd: error: couldn't chdir to `/root/x': No such file or directory: going to /tmp instead",
        "[INFO] [launch.py:351:main] Process 1000 exits successfully.",
        "epoch 3: val_error=0.12, errors: 0, failed samples: 0, timeout 600 s",
        "WARNING custom_all_reduce.py:143] Custom allreduce is disabled: P2P test failed.",
        'INFO:     127.0.0.1:4444 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "Checkpoint saved, exit code: 0",
        "worker-0 exited with code 0",
        "[W socket.cpp:4] The server socket has failed to bind to [::]:2950 (errno: 98 - Address already in use)",
        "Thread 12 (idle): c10d::ProcessGroupNCCL::ncclCommWatchdog (libtorch_cuda.so)",
        "#8 0x7f11 in c10d::ProcessGroupNCCL::ncclCommWatchdog() from /opt/libtorch_cuda.so",
        "[2026-01-02 03:04:05 TP0] watchdog_timeout=300, disk quota 4 TB, 12 open files",
    ],
)
def test_what_a_healthy_job_prints_is_no_failure(tmp_path: Path, line: str) -> None:
    made = [COMPLETE.format(rank=rank) for rank in (0, 1)]
    assert of_text(tmp_path, *made, line)[0].severity in (NOTE, UNLIKE)
    assert of_text(tmp_path, line, *made)[0].severity in (NOTE, UNLIKE)


MADE = [
    "node-a:90:9{r} [{r}] NCCL INFO NCCL version 2.28.9+cuda13.0",
    "node-a:90:9{r} [{r}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "node-a:90:9{r} [{r}] NCCL INFO ncclCommInitRank comm 0x55{r} rank {r} nranks 4 cudaDev {r} busId {r}8000 "
    "commId 0x37 - Init START",
    "node-a:90:9{r} [{r}] NCCL INFO comm 0x55{r} rank {r} nRanks 4 nNodes 1 localRanks 4 localRank {r} MNNVL 0",
    "node-a:90:9{r} [{r}] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels",
    "node-a:90:9{r} [{r}] NCCL INFO ncclCommInitRank comm 0x55{r} rank {r} nranks 4 cudaDev {r} busId {r}8000 "
    "commId 0x37 - Init COMPLETE",
]
STRIPS = {
    "host and numbers": (r"^\S+ (?=\[)", ""),
    "all before NCCL": (r"^\S+ \[\d\] ", ""),
    "NCCL too": (r"^\S+ \[\d\] NCCL INFO ", ""),
    "all but the level": (r"^\S+ \[\d\] NCCL ", ""),
    "NCCL alone, as of old": (r"NCCL INFO", "INFO"),
}


@pytest.mark.parametrize("strip", STRIPS.values(), ids=STRIPS)
def test_a_log_whose_prefix_was_taken_off_is_read_as_far_as_it_goes(tmp_path: Path, strip: tuple[str, str]) -> None:
    """A person, kubectl or a logger of JSON left a part of it, or nothing."""
    lines = [re.sub(*strip, line.format(r=rank)) for line in MADE for rank in range(4)]
    whole = of_text(tmp_path, *lines)
    assert "diagnose.ends_after_init" in {each.code for each in whole}
    assert whole[0].severity in (NOTE, UNLIKE)  # where the host is known, that nothing shows NVLS is said as well
    for end in (len(lines) - 1, len(lines) - 4, len(lines) - 9, 12):
        cut = of_text(tmp_path, *lines[:end])[0]
        assert (cut.code, cut.severity) == ("diagnose.ends_in_init", UNKNOWN)
        assert cut.facts["complete"] == max(0, end - len(lines) + 4)
        assert cut.facts["line"]
    failed = of_text(tmp_path, *lines, "WARN Call to ibv_create_qp failed", "Segmentation fault (core dumped)")
    assert failed[0].severity is FAULT


def test_a_warning_without_any_prefix_is_one(tmp_path: Path) -> None:
    assert of_text(tmp_path, "NCCL WARN NET/IB : Got async event : port error")[0].severity is FAULT
    assert of_text(tmp_path, "WARN the validation set is small", "INFO Using 4 workers")[0].severity is UNKNOWN


def test_a_log_without_init_says_what_is_missing(tmp_path: Path) -> None:
    tuned = [HOST.format(rank=0) + "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}"]
    first = of_text(tmp_path, *tuned, HOST.format(rank=0) + "NCCL_DEBUG_SUBSYS set by environment to TUNING,ENV")[0]
    assert (first.code, first.severity) == ("diagnose.without_init", UNKNOWN)
    assert first.facts == {"shows": ["choices"], "subsystems": "TUNING,ENV"}


CHILD = """[{number}]:
  time      : 2026-01-02_03:04:05
  host      : trainer-{number}
  rank      : {number} (local_rank: 0)
  exitcode  : {code} (pid: 70{number})
  error_file: <N/A>
  traceback : Signal {signal} received by PID 70{number}"""


@pytest.mark.parametrize(("code", "signal"), [(-6, "6 (SIGABRT)"), (-11, "11 (SIGSEGV)"), (-9, "9 (SIGKILL)")])
def test_the_root_cause_that_torchrun_names_comes_before_children_that_ended_alike(
    tmp_path: Path, code: int, signal: str
) -> None:
    others = [CHILD.format(number=number, code=code, signal=signal) for number in (1, 2)]
    root = CHILD.format(number=3, code=code, signal=signal)
    first = of_text(tmp_path, "Failures:", *others, "Root Cause (first observed failure):", root)[0]
    assert (first.severity, first.facts["rank"], first.facts["host"]) == (FAULT, 3, "trainer-3")


def test_a_report_that_begins_with_a_bracket_is_no_xml_and_no_json(tmp_path: Path) -> None:
    root = CHILD.format(number=4, code=-6, signal="6 (SIGABRT)")
    first = of_text(tmp_path, "  <NO_OTHER_FAILURES>", "Root Cause (first observed failure):", root)[0]
    assert (first.code, first.facts["rank"]) == ("ending.aborted", 4)
    first = of_text(tmp_path, "  [[node step/all_reduce]]", "  (2) INTERNAL:  NCCL: unhandled system error.")[0]
    assert (first.code, first.facts["result"]) == ("ending.nccl_error", "ncclSystemError")


FRAMES = ('  File "/app/model.py", line 12, in forward', "    return self.part(x)")
LOGGED = "(Worker pid=91) ERROR 01-02 03:04:05 [executor.py:9] "


def test_a_part_of_a_traceback_tells_a_failure_where_its_exception_or_an_errors_tag_is_with_it(tmp_path: Path) -> None:
    first = of_text(tmp_path, *(LOGGED + line for line in FRAMES))[0]
    assert (first.code, first.severity, first.facts["pid"]) == ("ending.python_traceback", FAULT, 91)
    first = of_text(tmp_path, *FRAMES, "KeyError: 'weights'")[0]
    assert (first.code, first.facts["detail"]) == ("ending.python_exception", "KeyError")
    far = of_text(tmp_path, *FRAMES, *(f"step {number}" for number in range(20)), "caught KeyError: 'weights'")
    assert not any(each.severity is FAULT for each in far)  # a stack that was printed for another reason


WAITS = (
    "(EngineCore pid=5) INFO 01-02 03:0{minute}:00 [shm_broadcast.py:1] No available shared memory broadcast block "
    "found in 60 seconds."
)


def test_an_engine_that_waits_again_and_again_is_not_judged_healthy(tmp_path: Path) -> None:
    first = of_text(tmp_path, *(WAITS.format(minute=minute) for minute in range(3)))[0]
    assert (first.code, first.severity, first.facts["times"]) == ("ending.engine_waits", UNKNOWN, 3)
    failed = of_text(tmp_path, *(WAITS.format(minute=minute) for minute in range(3)), "KeyboardInterrupt")[0]
    assert failed.code == "ending.interrupted"


def test_who_ended_is_what_the_launcher_says_if_it_names_one_process(tmp_path: Path) -> None:
    lines = (
        "terminate called without an active exception",
        "Sending process 806 closing signal SIGTERM",
        "failed (exitcode: -6) local_rank: 0 (pid: 805) of binary: /usr/bin/python",
    )
    first = of_text(tmp_path, *lines)[0]
    assert (first.code, first.facts["pid"]) == ("ending.cpp_exception", 805)
    two = of_text(tmp_path, *lines, "failed (exitcode: -11) local_rank: 1 (pid: 806) of binary: /usr/bin/python")
    assert {each.facts.get("pid") for each in two if each.code == "ending.cpp_exception"} <= {None}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("Exit code: -11", "ending.segmentation_fault"),
        ("Child process unexpectedly failed with exitcode=-9. pid=8", "ending.killed"),
        ("api.py:869] failed (exitcode: -7) local_rank: 6 (pid", "ending.bus_error"),
        ("Watchdog caught collective operation timeout:", "ending.collective_timeout"),
        ("direct.cc:2: Failing tasks waiting for death info, size=1, actor_id=a2", "ending.ray_worker_died"),
    ],
)
def test_lines_of_an_end_in_forms_that_launchers_write_or_terminals_break(tmp_path: Path, line: str, code: str) -> None:
    assert of_text(tmp_path, line)[0].code == code


def test_a_lost_connection_is_named_before_the_proxy_that_failed_by_it(tmp_path: Path) -> None:
    head = "node-1:60:{thread} [1] {place} NCCL WARN "
    first = of_text(
        tmp_path,
        head.format(thread=62, place="misc/socket.cc:9")
        + "Net : Call to recv from 10.0.0.2<51000> failed : Broken pipe",
        head.format(thread=62, place="proxy.cc:9")
        + "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 6",
    )[0]
    assert first.facts["line"] == 1


def test_the_timeout_that_an_exception_of_the_watchdog_tells_is_the_ending(tmp_path: Path) -> None:
    """Releases of PyTorch that give no number, so that the call cannot be held against other ranks'."""
    raised = "terminate called after throwing an instance of 'std::runtime_error'"
    what = (
        "  what():  [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=9) ran"
    )
    first = of_text(tmp_path, raised, what)[0]
    assert (first.code, first.facts["rank"], first.facts["detail"]) == (
        "ending.collective_timeout",
        5,
        "OpType=ALLREDUCE",
    )
    late = of_text(tmp_path, raised, *(f"[rank1]: step {number}" for number in range(20)), what)[0]
    assert late.code == "ending.cpp_exception"  # which the others may have waited for


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (
            ["Exception raised from ncclCommWatchdog at Group.cpp:9 (most recent call first):"],
            "ending.watchdog_failure",
        ),
        (["Exception raised from launch at x.cu:9 (most recent call first):"], "ending.cpp_stack"),
        (["[4]<stderr>:" + line for line in (*FRAMES, *FRAMES)], "ending.python_traceback"),
        (["2026-01-02 03:04:05.6: W op.cc:1] Unknown: Horovod has been shut down."], "ending.horovod_shut_down"),
        (["errors_impl.UnknownError:  ncclCommInitRank failed: unhandled system error"], "ending.nccl_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pieces_of_what_other_frameworks_print(tmp_path: Path, lines: list[str], code: str) -> None:
    first = of_text(tmp_path, *lines)[0]
    assert (first.code, first.severity) == (code, FAULT)
    assert first.facts["rank"] == (4 if "<stderr>" in lines[0] else None)


def test_a_healthy_start_with_a_piece_of_a_stack_stays_healthy(tmp_path: Path) -> None:
    started = (
        "trainer-0:40:41 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 9d000 commId 0x77 - Init COMPLETE"
    )
    assert not any(each.severity is FAULT for each in of_text(tmp_path, started, *FRAMES, *FRAMES))


def test_an_xid_that_is_fatal_comes_before_those_that_are_not(tmp_path: Path) -> None:
    nonfatal = "NVRM: Xid (PCI:0000:1a:00): 144, SAW_MVB Nonfatal XC0 i0 Link 03 (0x1)"
    fatal = "NVRM: Xid (PCI:0000:2a:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x1)"
    assert of_text(tmp_path, nonfatal, fatal)[0].facts["gpu"] == "0000:2a:00"
    assert of_text(tmp_path, nonfatal)[0].severity is FAULT


def test_an_ending_in_the_log_of_one_rank_is_that_ranks(tmp_path: Path) -> None:
    """As NCCL_DEBUG_FILE, torchrun's log folders and srun's %t write them."""
    started = (
        "trainer-{host}:4{rank}:7 [{rank}] NCCL INFO comm 0x55 rank {rank} nranks 3 cudaDev {rank} busId 9d000 "
        "commId 0x77 - Init COMPLETE"
    )
    files = []
    for rank in range(3):
        lines = [started.format(rank=rank, host=rank // 2), "RuntimeError: CUDA error: unspecified launch failure"]
        files.append(tmp_path / f"rank{rank}.log")
        files[-1].write_text("".join(f"{line}\n" for line in lines[: 1 + (rank == 2)]), "utf-8")
    (one,) = diagnose(files, DiagnosisOptions())
    first = one.findings[0]
    assert (first.code, first.facts["rank"], first.facts["host"]) == ("ending.cuda_launch_failure", 2, "trainer-1")
    shared = "".join(file.read_text("utf-8") for file in files[1:])  # two ranks in one file
    files[1].write_text(shared, "utf-8")
    (one,) = diagnose(files[:2], DiagnosisOptions())
    assert one.findings[0].facts["rank"] is None


BROKEN = (  # by a terminal, in the middle of words
    "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ra",
    "y stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.",
)


@pytest.mark.parametrize(
    ("lines", "code", "rank"),
    [
        (BROKEN, "ending.ray_worker_died", None),
        (["s watchdog got stuck for 480 seconds without making progress"], "ending.watchdog_stuck", None),
        (
            [AT_WORK.format(rank=2) + "Received a dump signal due to a collective timeout from this local rank"],
            "ending.watchdog_failure",
            2,
        ),
        (["May 1, 2026 @ 20:46:57.8    [rank8]: with error: Connection reset by peer"], "ending.peer_lost", 8),
        (['(Worker pid=3)   File "/app/x.py", line 9 in start'] * 2, "ending.python_traceback", None),
    ],
    ids=["ray", "stuck", "dump", "kibana", "frames"],
)
def test_more_pieces_that_launchers_and_terminals_cut(
    tmp_path: Path, lines: list[str], code: str, rank: int | None
) -> None:
    first = of_text(tmp_path, *lines)[0]
    assert (first.code, first.severity, first.facts["rank"]) == (code, FAULT, rank)


NATIVE = "(Trainer pid=31) /opt/lib/lib{name}.so(+0x{at}) [0x7f11{at}] {function}"


@pytest.mark.parametrize(
    ("lines", "code", "facts"),
    [
        (
            [f"[2026-01-02 03:04:05 TP{rank}] Watchdog timeout (self.watchdog_timeout=300)" for rank in (3, 1)]
            + ["[2026-01-02 03:04:09] Received sigquit from a child process. It means the child failed.", "Killed"],
            "engine_stalled",
            {"rank": 3, "number": 300},
        ),
        (
            ["[2026-01-02 03:04:05 PP1 TP3] Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=False)"],
            "engine_stalled",
            {"rank": None, "number": 60},
        ),
        (
            ["(EngineCore pid=4) ERROR [core.py:1] Exception: WorkerProc initialization failed due to an exception",
             "(EngineCore pid=4) Traceback (most recent call last):"],
            "engine_failed",
            {"pid": 4},
        ),
        (
            ["(Worker pid=5) Traceback (most recent call last):", "(Worker pid=5) ValueError: no memory for blocks",
             "(EngineCore pid=4) RuntimeError: Engine core initialization failed. See root cause above."],
            "python_exception",
            {"pid": 5},
        ),
        (
            [NATIVE.format(name=name, at=f"a{number}", function="f()") for number, name in enumerate(("a", "b"))],
            "cpp_stack",
            {"pid": 31},
        ),
        (
            [NATIVE.format(name="torch", at="e5", function="c10d::ProcessGroupNCCL::ncclCommWatchdog()")],
            "watchdog_failure",
            {"pid": 31},
        ),
        (
            [NATIVE.format(name="torch", at="e5", function="c10d::ProcessGroupNCCL::ncclCommWatchdog()"),
             "(Trainer pid=31) CUDA error: unspecified launch failure"],
            "cuda_launch_failure",
            {"pid": 31},
        ),
        (
            ["[2026-01-02 03:04:05] Received sigquit from a child process.",
             "[2026-01-02 03:04:05 TP2] Scheduler hit an exception: Traceback (most recent call last):",
             'File "/app/scheduler.py", line 1, in run'],
            "python_traceback",
            {"rank": 2},
        ),
        (
            ["[2026-01-02 03:04:05 TP2] Scheduler hit an exception: Traceback (most recent call last):",
             '  File "/app/scheduler.py", line 1, in run', "    raise ValueError(", "ValueError: no such model"],
            "python_exception",
            {"rank": 2, "followers": []},
        ),
        (
            ["(Worker pid=3) Traceback (most recent call last):", "(Worker pid=3) KeyError: 1", *FRAMES, "",
             "AttributeError: of another process"],
            "python_exception",
            {"pid": 3},
        ),
        (
            ["Sending process 55 closing signal SIGTERM", "failed (exitcode: 1) local_rank: 1 (pid: 56) of binary: p"],
            "exit_code",
            {"pid": 56},
        ),
        (["Sending process 55 closing signal SIGTERM"], "terminated", {"pid": 55}),
        (
            ["[2026-01-02 03:04:05,1] [INFO] [launch.py:9:sigkill_handler] Killing subprocess 55"],
            "launcher_ended_others",
            {"pid": None},
        ),
        (
            ["[2026-01-02 03:04:05,1] [INFO] [launch.py:9:sigkill_handler] Killing subprocess 55",
             "[ERROR] [launch.py:9:sigkill_handler] ['python', 't.py'] exits with return code = 3"],
            "exit_code",
            {"number": 3},
        ),
    ],
    ids=["sglang", "pipelines", "engine", "cause of an engine's end", "stack", "watchdog's stack", "its cause",
         "aftermath first", "below a head", "two tracebacks", "exit code", "sigterm", "deepspeed", "deepspeed's code"],
)  # fmt: skip
def test_what_engines_and_stacks_report_of_other_processes(
    tmp_path: Path, lines: list[str], code: str, facts: dict[str, object]
) -> None:
    first = of_text(tmp_path, *lines)[0]
    assert (first.code, first.severity) == (f"ending.{code}", FAULT)
    assert {name: first.facts[name] for name in facts} == facts


RAY = "(raylet) A worker died or was killed while executing a task. Worker IP address: 10.1.0.9 Worker PID: {pid} End"


@pytest.mark.parametrize(("pid", "code"), [(66, "diagnose.timeout"), (67, "ending.ray_worker_died")])
def test_a_worker_of_ray_that_pytorchs_watchdog_ended_is_not_the_cause(tmp_path: Path, pid: int, code: str) -> None:
    timeout = "(RayWorker pid=66) " + CAUGHT.format(rank=0)
    assert of_text(tmp_path, RAY.format(pid=pid), timeout)[0].code == code


def test_a_report_of_torchrun_whose_spaces_were_lost_has_its_rank(tmp_path: Path) -> None:
    report = ["Root Cause (first observed failure):", "[0]:", "host : trainer-7", "rank : 3 (local_rank: 3)"]
    first = of_text(tmp_path, *report, "exitcode : 1 (pid: 41)")[0]
    assert (first.facts["rank"], first.facts["host"], first.facts["pid"]) == (3, "trainer-7", 41)


def test_a_start_of_an_old_release_is_one_of_nccl(tmp_path: Path) -> None:
    lines = ["node-4:45:73 [0] INFO Using internal Network IB", "node-5:19:14 [0] INFO NET/IB: [0] mlx4_0:1/IB"]
    assert of_text(tmp_path, *lines)[0].code == "diagnose.ends_before_init"


def test_spawned_processes_that_were_ended_are_not_the_cause(tmp_path: Path) -> None:
    ended = "W0101 spawn.py:169] Terminating process 19 via signal SIGTERM"
    assert of_text(tmp_path, ended, "Sending process 4 to x", "Process finished with exit code 3")[0].code == (
        "ending.exit_code"
    )


def test_a_timeout_that_no_watchdog_caught_is_one(tmp_path: Path) -> None:
    line = (
        "RuntimeError: [Rank {rank}] Caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Tensor"
    )
    first = of_text(tmp_path, *(line.format(rank=rank) for rank in (1, 3)))[0]
    assert (first.code, first.facts["ranks"]) == ("diagnose.timeout", [1, 3])


def test_threads_of_xla_that_wait_are_not_judged(tmp_path: Path) -> None:
    waits = "E rendezvous.cc:38] This thread has been waiting for `clique for rank 6` for 10 seconds and may be stuck."
    first = of_text(tmp_path, waits)[0]
    assert (first.code, first.severity) == ("ending.rendezvous_waits", UNKNOWN)
    assert of_text(tmp_path, waits, "Segmentation fault")[0].code == "ending.segmentation_fault"


def test_an_engine_that_names_only_itself_is_not_judged(tmp_path: Path) -> None:
    first = of_text(
        tmp_path, "[TensorRT-LLM] TensorRT-LLM version: 1.2.0", "[TensorRT-LLM][INFO] MPI size: 1, rank: 0"
    )[0]
    assert (first.code, first.severity) == ("engine_log.says_little", UNKNOWN)


def test_a_table_that_has_no_row_yet_is_not_judged(tmp_path: Path) -> None:
    made = [COMPLETE.format(rank=rank) for rank in (0, 1)]
    assert of_text(tmp_path, *made)[0].severity in (NOTE, UNLIKE)
    for head in (
        "#                                      out-of-place                       in-place",
        "#  size  count  type",
    ):
        first = of_text(tmp_path, *made, head)[0]
        assert (first.code, first.severity) == ("diagnose.ends_in_results", UNKNOWN)


def test_a_warning_that_is_cut_is_the_whole_one(tmp_path: Path) -> None:
    head = "[{device}] misc/socket.cc:518 NCCL WARN "
    whole = head.format(device=0) + "Net : Call to recv from 10.0.0.2<51000> failed : Connection reset by peer"
    warned = [
        each for each in of_text(tmp_path, whole, head.format(device=1) + "Net") if each.code == "diagnose.warned"
    ]
    assert [each.facts["line"] for each in warned] == [1]


SLOWER = "graph/search.cc:1 NCCL WARN Could not find a path for pattern 4, falling back to simple order"


@pytest.mark.parametrize(
    "line",
    ["graph/topo.h:2 NCCL WARN Could not find NET with id 3", "RuntimeError: NCCL error in: x.cpp:1, internal error"],
)
def test_what_only_makes_a_job_slower_comes_after_what_ended_it(tmp_path: Path, line: str) -> None:
    found = of_text(tmp_path, SLOWER, line)
    assert (found[0].facts["line"], found[0].severity) == (2, FAULT)
    assert of_text(tmp_path, SLOWER)[0].severity is FAULT


@pytest.mark.parametrize(
    ("line", "code", "facts"),
    [
        ("RuntimeError: unable to open shared memory object </torch_7_9> in read-write mode: Too many open files (24)",
         "shared_memory_full", {}),
        ("RuntimeError: DataLoader worker (pid 70) is killed by signal: Killed. ", "killed", {"pid": 70}),
        ("RuntimeError: DataLoader worker (pid(s) 70, 71) exited unexpectedly", "child_failed", {"pid": 70}),
        ("OSError: [Errno 28] No space left on device", "disk_full", {}),
        ("OSError: [Errno 24] Too many open files: '/data/7'", "too_many_files", {}),
        ("[rank0]: DistNetworkError: The server socket has failed to listen on any local network address. EADDRINUSE",
         "address_in_use", {"rank": 0}),
        ("There are not enough slots available in the system to satisfy the 16 slots", "launcher_failed", {}),
        ("ssh: connect to host node-7 port 22: No route to host", "launcher_failed", {"host": "node-7"}),
        ("slurmstepd: error: execve(): python: No such file or directory", "launcher_failed", {}),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: Fingerprint(X)",
         "collectives_differ", {"rank": 2}),
        ("RuntimeError: [Rank 0]: Ranks 5, 6 failed to pass monitoredBarrier in 9 ms", "barrier_missed", {"rank": 5}),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
         "cuda_out_of_memory", {}),
        ("RuntimeError: No CUDA GPUs are available", "cuda_no_device", {}),
        ("RuntimeError: DataLoader worker (pid 70) is killed by signal: Bus error. Details", "bus_error", {"pid": 70}),
        ("RuntimeError: DataLoader worker (pid 70) is killed by signal: Aborted.", "aborted", {"pid": 70}),
        ("Failed: Cuda error /src/custom.cuh:4 'an unknown error'", "cuda_error", {}),
        ("(APIServer pid=1) ERROR [async.py:7] AsyncLLM output_handler failed.", "engine_failed", {"pid": 1}),
        ("[node-4:71:1] Caught signal 11 (Segmentation fault)", "segmentation_fault", {"host": "node-4", "pid": 71}),
        ("/src/init.cu:9: non-zero status: 7 building transport map failed", "nvshmem_failed",
         {"detail": "building transport map failed"}),
        ("An MPI communication peer process has unexpectedly disconnected. *** Aborted at 7", "peer_lost", {}),
        ("               NVRM: fallen off the bus and is not responding to commands.", "gpu_lost", {}),
        ("RuntimeError: [Rank 4] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=9) ran",
         "collective_timeout", {"rank": 4}),
        ("F rendezvous.cc:9] Termination timeout for `call to collective 5` of 40 seconds exceeded. Exiting",
         "rendezvous_stuck", {}),
        ("XlaRuntimeError: INTERNAL: NCCL operation async_err failed: remote process exited or there was an error",
         "nccl_error", {"remote": True}),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuda_error", {}),
        ("-- Process 3 terminated with the following error:", "child_failed", {}),
        ("worker-0 exited with code 139", "segmentation_fault", {}),
    ],
    ids=lambda each: each if isinstance(each, str) and each.islower() else "",
)  # fmt: skip
def test_endings_of_hosts_launchers_and_data_loaders(
    tmp_path: Path, line: str, code: str, facts: dict[str, object]
) -> None:
    first = of_text(tmp_path, line)[0]
    assert (first.code, first.severity) == (f"ending.{code}", FAULT)
    assert {name: first.facts[name] for name in facts} == facts


def test_calls_that_failed_in_an_aborted_communicator_come_after_why_it_was_aborted(tmp_path: Path) -> None:
    returned = "node-1:60:62 [1] NCCL INFO misc/socket.cc:829 -> 3"
    assert of_text(tmp_path, returned)[0].code == "diagnose.nccl_returned"
    found = of_text(tmp_path, returned, SEQUENCE.format(rank=1))
    assert (found[0].code, found[0].facts["rank"]) == ("ending.watchdog_failure", 1)
    assert "diagnose.nccl_returned" in {each.code for each in found}
