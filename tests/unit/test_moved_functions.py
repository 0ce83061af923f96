"""Functions of libnccl that are redirected and still called (csrc/sim/trampoline.c), on both processors."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.both_builds import CROSS, THERE

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
