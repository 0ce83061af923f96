"""Functions of a loaded library that are redirected, however short they are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.both_builds import CROSS, THERE

CODE = """
int one(void) { return 801; }
int two(void) { return 802; }
int other(void) { return 7; }
int sum(int n) { int all = 0; for (int i = 0; i < n; i++) all += i * i ^ n; return all; }
"""
SCRIPT = """
import sys
from cffi import FFI
from tuner._native._sim import ffi, lib
library = FFI()
library.cdef("int one(void); int two(void); int other(void); int sum(int);")
loaded = library.dlopen(sys.argv[1])
address = lambda name: ffi.cast("void *", int(library.cast("uintptr_t", library.addressof(loaded, name))))
other = address("other")
print(loaded.one(), loaded.two(), loaded.sum(3))
print(lib.sim_redirect(address("one"), 6, other), loaded.one(), loaded.two())
print(lib.sim_redirect(address("two"), 6, other), loaded.one(), loaded.two())
print(lib.sim_redirect(address("sum"), 16, other), loaded.sum(3))
print(lib.sim_redirect(other, 4, other) != 0, loaded.other())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the native parts are built on Linux only")
def test_functions_of_six_bytes_are_redirected(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, target = tmp_path / "short.c", tmp_path / "libshort.so"
    source.write_text(CODE)
    flags = ["-O2", "-fcf-protection=none", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(target)], check=True)
    command = [sys.executable, "-c", SCRIPT, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["801 802 12", "0 7 802", "0 7 7", "0 7", "True 7"]


ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "moved_functions.c"


@pytest.mark.parametrize(("compiler", "before"), [("cc", ()), (CROSS, THERE)])
def test_moved_or_left_alone(compiler: str, before: tuple[str, ...], tmp_path: Path) -> None:
    for needed in (compiler, *before[:1]):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} (Debian: gcc, gcc-aarch64-linux-gnu, qemu-user)")
    parts = [PROGRAM, *(ROOT / "csrc" / "sim" / name for name in ("trampoline.c", "redirect.c"))]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", *warnings, f"-I{ROOT / 'csrc'}", *parts, "-o", tmp_path / "program"], check=True
    )
    ran = subprocess.run([*before, str(tmp_path / "program")], capture_output=True, text=True, check=True)
    result, added, error, brief, *others = ran.stdout.splitlines()
    assert (result, added, error, brief) == (str(100 + 3 * 7), str(100 + 40 + 2), "0", "42 2")
    assert len(others) >= 8
    assert [line for line in others if not line.endswith(" refused")] == []
