"""Text in nccl-tests' layout with times of one's own."""

import json
from collections.abc import Iterable
from pathlib import Path


def write(
    path: Path,
    times_us: Iterable[tuple[int, float]],
    nodes: int = 1,
    gpus: int = 8,
    program: str = "all_reduce_perf",
    nccl: int = 22809,
    in_place: float = 2.0,
) -> Path:
    """``times_us`` are pairs of size and time out of place; ``in_place`` it is so many times as long."""
    devices = [
        f"#  Rank {node * gpus + gpu:2} Group  0 Pid {node}  on node{node} device {gpu} [0000:{gpu:02}:00] NVIDIA H100"
        for node in range(nodes)
        for gpu in range(gpus)
    ]
    rows = [
        f"{size:>12} {size // 4:>13} float sum -1 {time_us:.6g} 1.00 1.00 0 {in_place * time_us:.6g} 1.00 1.00 0"
        for size, time_us in times_us
    ]
    text = [
        f"# nccl-tests version 2.19.6 nccl-headers={nccl} nccl-library={nccl}",
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0",
        *devices,
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
        "busbw  #wrong",
        *rows,
    ]
    path.write_text("\n".join(text) + "\n")
    return path


def write_json(
    path: Path, times_us: Iterable[tuple[int, float]], nodes: int = 1, variables: tuple[str, ...] = ()
) -> Path:
    """What all_reduce_perf writes with -J from 2.17 on, out of place, on 8 GPUs a node; ``variables`` as NAME=VALUE."""
    devices = [
        {"rank": 8 * node + gpu, "hostname": f"node{node}", "device": gpu, "device_info": "NVIDIA H100"}
        for node in range(nodes)
        for gpu in range(8)
    ]
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "out_of_place": {"time": time_us, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": "0"},
        }
        for size, time_us in times_us
    ]
    record = {
        "version": 1,
        "start_time": "2026-01-01T00:00:00Z",
        "args": ["all_reduce_perf", "-b", "1K", "-J", str(path)],
        "env": ["HOME=/root", *variables],
        "nccl_version": 22809,
        "config": {"devices": devices, "iterations": 20, "warmup_iters": 1, "graph": 0},
        "results": results,
    }
    path.write_text(json.dumps(record))
    return path
