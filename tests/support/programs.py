"""C programs and objects that tests build: once for all processes of a run, and for later runs until a source changes.

They lie under build/tests, by a hash of the compiler, the command and all of csrc; `make clean` removes them.
"""

import fcntl
import functools
import hashlib
import os
import runpy
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "csrc" / "plugin"
CHECKS = PLUGIN / "check"
FOLDER = ROOT / "build" / "tests"
# That a program links which has what the flags want of it.
_PROBE = "int main(void) { return 0; } void __sanitizer_cov_trace_pc(void); void __sanitizer_cov_trace_pc(void) {}\n"
_FUZZ_PROBE = "int LLVMFuzzerTestOneInput(const char *bytes, long size) { return 0 * (bytes[0] + size); }\n"


def compiler() -> str:
    """The C compiler of this computer."""
    found = shutil.which("cc") or shutil.which("gcc")
    assert found, "the tests compile C: a compiler has to be there"
    return found


def clang() -> str | None:
    """The newest clang."""
    versions = [f"clang-{version}" for version in range(30, 11, -1)]
    return next(filter(None, map(shutil.which, ["clang", *versions])), None)


def compiled(program: str, words: Sequence[str | Path], *, text: str = "", suffix: str = "") -> Path:
    """What ``program WORDS -o FILE`` writes; with ``text``, that is compiled as well.

    CalledProcessError where it fails; nothing is kept then.
    """
    command = [program, *map(str, words)]
    key = hashlib.sha256("\0".join([_version(program), _sources(), text, suffix, *command]).encode()).hexdigest()[:24]
    folder = FOLDER / key
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"made{suffix}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            begun = folder / f"begun{suffix}"
            if text:
                (folder / "text.c").write_text(text)
                command.append(str(folder / "text.c"))
            subprocess.run([*command, "-o", begun], check=True, capture_output=True)
            begun.rename(made)
    return made


def checker(
    name: str,
    flags: Sequence[str],
    program: str | None = None,
    link: Sequence[str] = (),
    more: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Path:
    """The plugin and ``check/NAME.c`` in one program; skips where the compiler lacks what the flags need.

    Programs of the same flags share their objects; those of ``link`` are the linker's alone, those of ``more`` are
    further ones of single sources, by their names.
    """
    program = program or compiler()
    flags = ["-std=c11", "-g", *flags]
    try:
        compiled(program, flags, text=_FUZZ_PROBE if "fuzzer" in "".join(flags) else _PROBE)
    except subprocess.CalledProcessError:
        pytest.skip(f"{program} cannot link with {' '.join(flags)} here")
    checks = (CHECKS / f"{part}.c" for part in (name, "checks", "scan", "source"))
    sources = [*sorted(PLUGIN.glob("*.c")), PLUGIN.parent / "call" / "versions.c", *checks]
    objects = [compiled(program, [*flags, *more.get(each.name, ()), "-c", each], suffix=".o") for each in sources]
    return compiled(program, [*flags, *link, *objects, "-lpthread", "-ldl"])


def sanitized_object(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """A shared object of the wheel (``picks``), made in ``folder`` under the sanitizers of addresses and undefined
    behaviour.

    With it the variables of a process that loads it; skips where there is no gcc with its own.
    """
    gcc = shutil.which("gcc")
    asked = [gcc or "false", "-print-file-name=libasan.so"]
    own = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if gcc is None or not Path(own).is_absolute():
        pytest.skip("no gcc with its address sanitizer")
    macro = "-D{}={}".format(*runpy.run_path(str(ROOT / "csrc" / "sources.py"))["macro"](ROOT / "csrc"))
    made = folder / f"libnccl_tuner_{name}.so"
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([gcc, macro, f"@csrc/{name}.args", *flags, "-o", made], cwd=ROOT, check=True)
    return made, {"LD_PRELOAD": own, "ASAN_OPTIONS": "detect_leaks=0"}


@functools.cache
def _version(program: str) -> str:
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return f"{os.path.realpath(program)} {found}"


@functools.cache
def _sources() -> str:
    digest = hashlib.sha256()
    for file in sorted((ROOT / "csrc").rglob("*.[ch]")):
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()
