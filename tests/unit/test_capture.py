"""Functions of the simulated CUDA runtime: those of other arguments in CUDA 13 than in CUDA 12, and attributes."""

import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the native parts are built on Linux only", allow_module_level=True)

from itertools import count, takewhile
from typing import Any

from tuner._native._sim import ffi, lib


def replacements(name: str, cuda: int) -> list[Any]:
    """What a function of libnccl is redirected to where the runtime inside is of this major version."""
    found = []
    for table in takewhile(lambda rows: rows != ffi.NULL, map(lib.sim_redirects, count())):
        row = table
        while row.name != ffi.NULL:
            if ffi.string(row.name).decode() == name and row.cuda in (0, cuda):
                found.append(row.replacement)
            row += 1
    return found


def test_cuda_13_asks_for_the_nodes_of_a_capture_and_their_edges() -> None:
    (function,) = replacements("cudaStreamGetCaptureInfo", cuda=13)
    kind = "int (*)(void *, int *, unsigned long long *, void **, void **, void **, size_t *)"
    status, number, graph, nodes, edges, nodes_in = (
        ffi.new(each) for each in ("int *", "unsigned long long *", "void **", "void **", "void **", "size_t *")
    )
    status[0], nodes[0], edges[0], nodes_in[0] = 77, ffi.cast("void *", 8), ffi.cast("void *", 8), 99
    ask = ffi.cast(kind, function)
    stream = ffi.new("char[16]")
    assert ask(stream, status, number, graph, nodes, edges, nodes_in) == 0
    assert (status[0], nodes[0], edges[0], nodes_in[0]) == (0, ffi.NULL, ffi.NULL, 0)
    assert lib.sim_capture_begin(stream) == 0
    assert ask(stream, status, number, graph, nodes, edges, nodes_in) == 0
    ended = lib.sim_capture_end(stream)
    assert (status[0], graph[0]) == (1, ended)
    assert number[0] > 0
    lib.sim_graph_destroy(ended)


def test_cuda_12_asks_for_no_more_than_whether_it_captures() -> None:
    (function,) = replacements("cudaStreamGetCaptureInfo", cuda=12)
    status, number = ffi.new("int *", 77), ffi.new("unsigned long long *")
    assert ffi.cast("int (*)(void *, int *, unsigned long long *)", function)(ffi.NULL, status, number) == 0
    assert status[0] == 0


@pytest.mark.parametrize("cuda", [12, 13])
def test_a_function_is_redirected_once(cuda: int) -> None:
    names = set()
    for table in takewhile(lambda rows: rows != ffi.NULL, map(lib.sim_redirects, count())):
        row = table
        while row.name != ffi.NULL:
            names.add(ffi.string(row.name).decode())
            row += 1
    assert len(names) > 60
    assert [name for name in names if len(replacements(name, cuda)) > 1] == []


# CUDA C programming guide, technical specifications per compute capability: 163 KB of sm_80, 99 KB of sm_86 ...
SHARED_KIB = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}


def test_a_block_may_have_as_much_shared_memory_as_its_gpu_has() -> None:
    """In a process of its own, for the simulated machine is the process's."""
    code = """
from tests.unit.test_capture import SHARED_KIB, ffi, lib, replacements
from tuner.oracle.child.world import machine_struct
from tuner.oracle.messages import GpuMessage, NetMessage, SimulatedHost, SimulatedMachine

(function,) = replacements("cudaDeviceGetAttribute", cuda=12)
ask, value = ffi.cast("int (*)(int *, int, int)", function), ffi.new("int *")
found = {}
for capability in SHARED_KIB:
    gpu = GpuMessage("0000:01:00.0", capability, 0)
    host = SimulatedHost(1, 1, 1, 0, 0, 0, "/", (0,), (gpu,), (NetMessage("eth0", 1, 10000, 1, 8, 0, 0.0),), "")
    machine = SimulatedMachine(1, 1, 12040, 1, "net", (0,), (0,), (0,), (host,))
    assert lib.sim_configure(machine_struct(machine)) == 0
    assert ask(value, 97, 0) == 0  # cudaDevAttrMaxSharedMemoryPerBlockOptin
    found[capability] = value[0] >> 10
assert found == SHARED_KIB, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
