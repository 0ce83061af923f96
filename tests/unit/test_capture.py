"""Functions of the CUDA runtime that take other arguments in CUDA 13 than in CUDA 12."""

import sys

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
