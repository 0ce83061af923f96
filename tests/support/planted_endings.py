"""Endings planted in healthy logs: as their programs print them, behind launchers' tags."""

# ruff: noqa: E501 - lines as they are printed

import random
from collections.abc import Callable
from typing import NamedTuple

from tests.support.plain_logs import plain

RELEASES = ("2.19.3", "2.21.5", "2.25.1", "2.28.9", "2.30.7")
MACHINES = {"dgx-a100": 1, "dgx-h100": 1, "dgx-h200": 2, "hgx-h800": 2, "dgx-b200": 1}  # nodes by machine


class At(NamedTuple):
    """The process that ends: its rank, host, process id, GPU of its host, and the GPU's bus id without its function."""

    rank: int
    host: str
    pid: int
    gpu: int
    bus_id: str


# By kind: what is printed, and whether it says by itself whose it is.
ENDINGS: dict[str, tuple[bool, Callable[[At], str]]] = {
    "cuda_illegal_access": (False, lambda at: "RuntimeError: CUDA error: an illegal memory access was encountered"),
    "cuda_out_of_memory": (
        True,
        lambda at: f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU {at.gpu} has a "
        "total capacity of 79.10 GiB of which 100.00 MiB is free.",
    ),
    "cuda_launch_failure": (False, lambda at: "CUDA error: unspecified launch failure (719)"),
    "cuda_ecc": (False, lambda at: "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    "cuda_device_assert": (False, lambda at: "RuntimeError: CUDA error: device-side assert triggered"),
    "segmentation_fault": (
        True,
        lambda at: f"[{at.host}:{at.pid}] *** Process received signal ***\n"
        f"[{at.host}:{at.pid}] Signal: Segmentation fault (11)\n[{at.host}:{at.pid}] Signal code: Address not mapped (1)",
    ),
    "bus_error": (False, lambda at: 'Fatal Python error: Bus error\n\nThread 0x00007f (most recent call first):'),
    "killed": (True, lambda at: f"/opt/run.sh: line 7: {at.pid} Killed                  python train.py"),
    "kernel_oom": (
        True,
        lambda at: f"[81234.567890] Out of memory: Killed process {at.pid} (python) total-vm:9kB, anon-rss:7kB",
    ),
    "slurm_out_of_memory": (
        False,
        lambda at: "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    ),
    "slurm_time_limit": (
        False,
        lambda at: f"slurmstepd: error: *** STEP 77.0 ON {at.host} CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***",
    ),
    "slurm_node_failure": (
        False,
        lambda at: f"srun: error: Node failure on {at.host}\nsrun: Job step aborted: Waiting up to 32 seconds",
    ),
    "kubernetes_out_of_memory": (False, lambda at: "  Last State: Terminated Reason: OOMKilled Exit Code: 137"),
    "kubernetes_evicted": (False, lambda at: "Status: Failed Reason: Evicted Message: The node was low on resource: memory"),
    "xid": (True, lambda at: f"[ 1234.5678] NVRM: Xid (PCI:{at.bus_id}): 79, pid={at.pid}, name=python, GPU has fallen off"),
    "nccl_tests_failure": (
        True,
        lambda at: f"{at.host}: Test NCCL failure all_gather.cu:61 'remote process exited or there was a network error / '\n"
        f" .. {at.host} pid {at.pid}: Test failure common.cu:404",
    ),
    "distributed_backend_error": (
        False,
        lambda at: "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    ),
    "python_exception": (
        False,
        lambda at: 'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    main()\n'
        "ValueError: too many values to unpack (expected 2)",
    ),
    "mpi_abort": (True, lambda at: f"MPI_ABORT was invoked on rank {at.rank} in communicator MPI_COMM_WORLD with errorcode 1."),
    "assertion": (False, lambda at: "train: src/queue.cpp:81: void push(int): Assertion `head < size' failed."),
    "heap_corruption": (False, lambda at: "double free or corruption (!prev)"),
    "missing_library": (False, lambda at: "python: symbol lookup error: /usr/lib/libfoo.so: undefined symbol: ncclSplit"),
    "collective_timeout": (
        True,
        lambda at: f"[Rank {at.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.",
    ),
}  # fmt: skip

# By launcher: what it puts before a line of a process, and whether that says the rank or the process.
WRAPPERS: dict[str, tuple[bool, Callable[[At], str]]] = {
    "srun --label": (True, lambda at: f"{at.rank}: "),
    "mpirun --tag-output": (True, lambda at: f"[1,{at.rank}]<stdout>:"),
    "torchrun": (True, lambda at: f"[default{at.rank}]:"),
    "ray": (True, lambda at: f"(RayWorkerWrapper pid={at.pid}, ip=10.0.0.{at.rank // 8 + 1}) "),
    "kubernetes": (False, lambda at: "2025-03-01T10:00:00.123456789Z stderr F "),
}
POSITIONS = ("before init", "in init", "after init", "after the end")


class Planted(NamedTuple):
    """A log with one ending in it; ``rank`` is None where nothing in it says the rank."""

    text: str
    kind: str
    rank: int | None


class HealthyLog(NamedTuple):
    """Lines of a log without a failure, each with its process; where init begins and ends, and where the job ends."""

    lines: list[tuple[At, str]]
    begins: int
    complete: int
    ends: int


def healthy(release: str, machine: str, nodes: int, drawn: random.Random) -> HealthyLog:
    """A log of a job, whose ranks print in any order; half of them say that they destroyed their communicators."""
    by_rank: dict[int, list[tuple[At, str]]] = {}
    closing = list[tuple[At, str]]()
    for line in plain(machine, nodes, nccl=release).splitlines():
        host, pid, rest = line.split(":", 2)
        rank = int(pid) - 10
        gpu = int(rest.partition("[")[2].partition("]")[0])
        at = At(rank, host, int(pid), gpu, "")
        if " busId " in line:
            digits = f"{int(line.partition(' busId ')[2].split()[0], 16):09x}"
            at = at._replace(bus_id=f"{digits[:-5].zfill(4)}:{digits[-5:-3]}:{digits[-3:-1]}")
        (closing if "Init COMPLETE" in line else by_rank.setdefault(rank, [])).append((at, line))
    lines = [by_rank[0].pop(0)]
    begins = len(lines)
    while any(by_rank.values()):
        rank = drawn.choice([rank for rank, left in by_rank.items() if left])
        lines.append(by_rank[rank].pop(0))
    drawn.shuffle(closing)
    lines += closing
    complete = len(lines)
    if drawn.random() < 0.5:
        lines += [(at, line.replace("Init COMPLETE", "Destroy COMPLETE")) for at, line in closing]
    return HealthyLog(lines, begins, complete, len(lines))


def wrapped(wrapper: str, at: At, text: str) -> str:
    return "".join(f"{WRAPPERS[wrapper][1](at)}{line}\n" for line in text.split("\n"))


def planted(kind: str, wrapper: str, position: str, release: str, seed: int) -> Planted:
    drawn = random.Random(seed)
    machine, nodes = drawn.choice(list(MACHINES.items()))
    log = healthy(release, machine, nodes, drawn)
    who, _ = drawn.choice([each for each in log.lines if each[0].bus_id])
    says_rank, printed = ENDINGS[kind]
    places = {
        "before init": log.begins,
        "in init": drawn.randrange(log.begins + 1, log.complete),
        "after init": log.complete,
        "after the end": log.ends,
    }
    parts = [wrapped(wrapper, at, line) for at, line in log.lines]
    parts.insert(places[position], wrapped(wrapper, who, printed(who)))
    known = says_rank or WRAPPERS[wrapper][0]
    return Planted("".join(parts), kind, who.rank if known else None)
