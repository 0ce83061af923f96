"""A program that talks to NCCL's RAS server: four ranks of one process make five AllReduces, and some a sixth.

    python reporting_program.py (healthy|behind) FILE LINE...

FILE.1 and FILE.2 get what the server answers to the LINEs, asked twice. NCCL_RAS_ADDR says where it listens. Runs
without this project.
"""

import os
import socket
import sys
from ctypes import CDLL, byref, c_int, c_size_t, c_void_p
from pathlib import Path

RANKS, BYTES, FLOAT32, SUM = 4, 1 << 20, 7, 0


def check(result: int) -> None:
    if result:
        raise SystemExit(f"error {result}")


def reduce_among(ranks: range, comms: list[int], buffers: list[c_void_p], streams: list[c_void_p]) -> None:
    check(NCCL.ncclGroupStart())
    for rank in ranks:
        buffer, count = buffers[rank], c_size_t(BYTES // 4)
        check(NCCL.ncclAllReduce(buffer, buffer, count, FLOAT32, SUM, c_void_p(comms[rank]), streams[rank]))
    check(NCCL.ncclGroupEnd())


def answer(lines: list[str]) -> bytes:
    host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
    with socket.create_connection((host, int(port)), 30) as server:
        server.sendall("".join(f"{line}\n" for line in lines).encode())
        server.settimeout(60)
        return b"".join(iter(lambda: server.recv(1 << 16), b""))


def main() -> None:
    what, file, *lines = sys.argv[1:]
    comms = (c_void_p * RANKS)()
    check(NCCL.ncclCommInitAll(comms, c_int(RANKS), None))
    buffers, streams = [c_void_p() for _ in range(RANKS)], [c_void_p() for _ in range(RANKS)]
    for rank in range(RANKS):
        check(NCCL.cudaSetDevice(rank))
        check(NCCL.cudaMalloc(byref(buffers[rank]), c_size_t(BYTES)))
        check(NCCL.cudaStreamCreate(byref(streams[rank])))
    for _ in range(5):
        reduce_among(range(RANKS), list(comms), buffers, streams)
    if what == "behind":
        reduce_among(range(RANKS - 1), list(comms), buffers, streams)
    for number in (1, 2):
        Path(f"{file}.{number}").write_bytes(answer(lines))
    os._exit(0)  # no rank waits for the one that lacks a call


NCCL = CDLL(None)
main()
