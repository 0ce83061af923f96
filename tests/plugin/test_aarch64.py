"""The plugin for aarch64: `make plugin` with a cross compiler, and its code run by qemu."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc" / "plugin"
CHECKS = SOURCES / "check"
SEEDS = sorted((CHECKS / "seeds" / "table").iterdir())

LOADER = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *object = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        puts(dlerror());
        return 1;
    }
    for (int at = 2; at < count; at++) {
        if (!dlsym(object, words[at])) {
            puts(words[at]);
            return 1;
        }
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def cross() -> str:
    return shutil.which("aarch64-linux-gnu-gcc") or pytest.skip(
        "no aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu): the plugin is not built for aarch64"
    )


@pytest.fixture(scope="module")
def run_there() -> list[str]:
    """The command before a program of aarch64."""
    qemu = shutil.which("qemu-aarch64") or pytest.skip(
        "no qemu-aarch64 (Debian: qemu-user): the plugin is not run for aarch64"
    )
    return [qemu, "-L", "/usr/aarch64-linux-gnu"]


@pytest.fixture(scope="module")
def built(cross: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = shutil.which("make") or pytest.skip("no make")
    file = tmp_path_factory.mktemp("aarch64") / "libnccl_tuner_plugin.so"
    subprocess.run([make, "-C", ROOT, "plugin", f"CC={cross}", f"PLUGIN={file}"], check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def driver(cross: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("driver") / "driver"
    parts = (CHECKS / f"{part}.c" for part in ("driver", "checks", "scan", "source"))
    sources = [*sorted(SOURCES.glob("*.c")), SOURCES.parent / "call" / "versions.c", *parts]
    subprocess.run([cross, "-std=c11", "-O2", *sources, "-lpthread", "-ldl", "-o", program], check=True)
    return program


def section(elf: ELFFile, name: str) -> Any:
    found = elf.get_section_by_name(name)
    assert found is not None, name
    return found


def drive(
    run_there: list[str], driver: Path, *words: str, table: Path | None = None, standard_input: bytes = b""
) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
    env |= {"NCCL_TUNER_TABLE": str(table)} if table else {}
    command = [*run_there, str(driver), *words]
    ran = subprocess.run(command, env=env, input=standard_input, capture_output=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    return ran.stdout.decode()


@pytest.mark.slow
def test_make_builds_it_for_any_glibc_from_2_17_on(built: Path) -> None:
    with built.open("rb") as file:
        elf = ELFFile(file)
        assert elf.get_machine_arch() == "AArch64"
        needed = [
            tuple(map(int, version.name.removeprefix("GLIBC_").split(".")))
            for _, versions in section(elf, ".gnu.version_r").iter_versions()
            for version in versions
        ]
        tags = {tag.entry.d_tag for tag in section(elf, ".dynamic").iter_tags()}
    assert needed
    assert max(needed) <= (2, 17)
    assert not tags & {"DT_RPATH", "DT_RUNPATH"}


@pytest.mark.slow
def test_the_object_loads_and_has_every_version(built: Path, cross: str, run_there: list[str], tmp_path: Path) -> None:
    (tmp_path / "loader.c").write_text(LOADER)
    subprocess.run([cross, tmp_path / "loader.c", "-ldl", "-o", tmp_path / "loader"], check=True)
    versions = [f"ncclTunerPlugin_v{version}" for version in range(1, 8)]
    command = [*run_there, str(tmp_path / "loader"), str(built), *versions]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    missing = subprocess.run([*command, "ncclTunerPlugin_v99"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (1, "ncclTunerPlugin_v99\n")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bytes", "calls", "threads"])
def test_random_tables_and_calls(driver: Path, run_there: list[str], what: str) -> None:
    count = {"bytes": "2000", "calls": "2000", "threads": "20"}[what]
    for seed_file in SEEDS[:1] if what == "bytes" else SEEDS:
        drive(run_there, driver, what, "1", count, table=seed_file)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 1, 55, 64, 119, 60000])
def test_the_hash(driver: Path, run_there: list[str], length: int) -> None:
    content = bytes(number * 7 % 251 for number in range(length))
    said = drive(run_there, driver, "hash", standard_input=content).strip()
    assert hashlib.sha256(content).hexdigest().startswith(said)
    assert len(said) >= 12
