"""What the simulated GPUs record is read as the compiler laid it out, and an object of other sources is refused."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

from tuner.oracle.messages import compiled

ROOT = Path(__file__).parents[2]
STRUCT = "struct item {{ {} }}; struct record {{ int count; struct item first; }};"
FIELDS = {"wide": "uint64_t wide;", "cells_us": "float cells_us[3];", "rank": "int rank;", "mask": "unsigned mask;"}
ORDERS = [list(FIELDS), list(reversed(FIELDS)), ["rank", "wide", "mask", "cells_us"]]

linux = pytest.mark.skipif(sys.platform != "linux", reason="the native parts are built on Linux only")


def dtype(ffi: Any, name: str) -> np.dtype[Any]:
    """The numpy type of a struct, made from what the child process sends."""
    return np.dtype(compiled(ffi, name))


def declared(order: list[str]) -> cffi.FFI:
    ffi = cffi.FFI()
    ffi.cdef(STRUCT.format(" ".join(FIELDS[name] for name in order)))
    return ffi


@pytest.mark.parametrize("order", ORDERS)
def test_python_follows_the_order_of_fields(order: list[str]) -> None:
    ffi = declared(order)
    item = {"wide": 1 << 63, "cells_us": [1.5, -1.0, 2.5], "rank": -3, "mask": 0xFFFFFFFF}
    record = ffi.new("struct record *", {"count": 7, "first": item})
    read = np.frombuffer(ffi.buffer(record), dtype(ffi, "struct record"))[0]
    assert read["count"] == 7
    assert {name: read["first"][name].tolist() for name in FIELDS} == item


def test_python_follows_the_size_of_a_struct() -> None:
    ffi = cffi.FFI()
    ffi.cdef("struct item { char padding; uint64_t wide; char last; };")
    items = ffi.new("struct item[]", [{"wide": number} for number in (5, 6, 7)])
    read = np.frombuffer(ffi.buffer(items), dtype(ffi, "struct item"))
    assert read["wide"].tolist() == [5, 6, 7]


def test_a_field_that_is_gone_is_an_error() -> None:
    ffi = declared(["wide", "rank"])
    read = np.frombuffer(ffi.buffer(ffi.new("struct record *")), dtype(ffi, "struct record"))
    with pytest.raises((KeyError, ValueError), match="cells_us"):
        read["first"]["cells_us"]


@linux
@pytest.mark.parametrize("name", ["answer", "kernel", "operation", "question"])
def test_records_have_the_size_that_c_gives_them(name: str) -> None:
    from tuner._native._sim import ffi

    assert dtype(ffi, f"struct sim_{name}").itemsize == ffi.sizeof(f"struct sim_{name}")


def changed(folder: Path) -> Path:
    """The C sources with two fields of what is recorded in another order."""
    sources = Path(shutil.copytree(ROOT / "csrc", folder / "csrc"))
    header = sources / "sim" / "observed.h"
    text = header.read_text()
    swapped = text.replace("    int collective;\n    int pipe_ops;\n", "    int pipe_ops;\n    int collective;\n")
    assert swapped != text
    header.write_text(swapped)
    return sources


@pytest.mark.slow
@linux
def test_an_object_of_other_sources_is_refused(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    sources = runpy.run_path(str(ROOT / "csrc" / "sources.py"))
    now, stale = sources["macro"](ROOT / "csrc"), sources["macro"](changed(tmp_path))
    assert stale != now
    for macro, refused in ((stale, True), (now, False)):
        folder = tmp_path / str(refused)
        folder.mkdir()
        target = folder / "libnccl_tuner_sim.so"
        command = [compiler, "-D{}={}".format(*macro), "@csrc/sim.args", "-O0", "-o", str(target)]
        subprocess.run(command, cwd=tmp_path if refused else ROOT, check=True)
        done = subprocess.run(
            [sys.executable, "-c", "from tuner.oracle.child.world import check_build; check_build()"],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)},  # the module finds this one first
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) is refused, done.stderr
        assert ("the simulated GPUs are of another build than this program" in done.stderr) is refused
