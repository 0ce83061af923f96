"""What a bundle does on the machine that it was carried to, with a small one."""

import hashlib
import json
import lzma
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from runpy import run_path

import pytest

MAIN = Path(__file__).parents[2] / "benchmarks" / "gpu_bundle_main.py"
LIBRARY = b"begin" + bytes(3 << 20) + b"end" + bytes(2 << 20)
LOOP = "import sys, inside; print(inside.WORD, *sys.argv[1:])"


def wheel(path: Path, module: str, text: str) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{module}.py", text)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    here = f"cp3{sys.version_info.minor}"
    path = tmp_path / "small.pyz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(MAIN, "__main__.py")
        packed.writestr("gpu_loop.py", LOOP)
        packed.writestr("libnccl.so.2.xz", lzma.compress(LIBRARY))
        packed.writestr(
            "bundle.json",
            json.dumps({"thinned_sha256": hashlib.sha256(LIBRARY).hexdigest(), "pythons": ["3.11"]}),
        )
        for name, module, text in (
            ("inside-1-cp311-abi3-linux_x86_64.whl", "inside", "WORD = 'unpacked'"),
            (f"cffi-1-{here}-{here}-manylinux_2_17_x86_64.whl", "cffi_inside", ""),
            ("other-1-cp39-cp39-manylinux_2_17_x86_64.whl", "other_inside", ""),
        ):
            packed.write(wheel(tmp_path / name, module, text), f"wheels/{name}")
    return path


def run(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(bundle), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def changed(bundle: Path, name: str, replaced: Mapping[str, bytes | None]) -> Path:
    """The bundle under another name, with other contents of what begins with these names; None: without it."""
    path = bundle.with_name(name)
    with zipfile.ZipFile(bundle) as packed, zipfile.ZipFile(path, "w") as out:
        for each in packed.namelist():
            own = [content for begin, content in replaced.items() if each.startswith(begin)]
            if (content := own[0] if own else packed.read(each)) is not None:
                out.writestr(each, content)
    return path


def test_it_unpacks_itself_once_and_runs_the_loop(bundle: Path) -> None:
    home = bundle.with_suffix("")
    for _ in range(2):
        done = run(bundle, "--out", "folder")
        assert done.stdout == f"unpacked --library {home}/libnccl.so.2 --out folder\n", done.stderr
    assert (home / "libnccl.so.2").read_bytes() == LIBRARY
    assert (home / "libnccl.so.2").stat().st_blocks * 512 < len(LIBRARY), "zeros take no room"
    assert (home / "site" / "cffi_inside.py").is_file()
    assert not (home / "site" / "other_inside.py").exists(), "of another Python"
    assert run(bundle, "-m", "inside").returncode == 0
    assert run(bundle, "pick", "--help").stdout.startswith("Usage: ")


def test_a_changed_bundle_takes_the_place_of_what_an_older_one_unpacked(bundle: Path, tmp_path: Path) -> None:
    older = bundle.with_suffix("") / "site" / "older.py"
    assert run(bundle).stdout.startswith("unpacked ")
    older.touch()
    assert run(bundle).stdout.startswith("unpacked ")
    assert older.exists(), "what is unpacked already stays as it is"
    inside = wheel(tmp_path / "inside.whl", "inside", "WORD = 'newer'").read_bytes()
    changed(bundle, "newer.pyz", {"wheels/inside": inside}).replace(bundle)
    assert run(bundle).stdout.startswith("newer ")
    assert not older.exists()


def test_from_a_checkout_it_runs_what_it_brings(bundle: Path, tmp_path: Path) -> None:
    """There, the current folder has packages of the same names, without what is built."""
    checkout = tmp_path / "checkout"
    (checkout / "inside").mkdir(parents=True)
    (checkout / "inside" / "__init__.py").write_text("raise SystemExit('the checkout was imported')")
    said = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import inside']).returncode)"
    loop = changed(bundle, "loop.pyz", {"gpu_loop.py": said.encode()})
    for words in (["--out", "folder"], ["-m", "inside"]):
        command = [sys.executable, str(loop), *words]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_library_that_is_another_is_refused(bundle: Path) -> None:
    done = run(changed(bundle, "broken.pyz", {"libnccl.so.2.xz": lzma.compress(b"other")}))
    assert done.returncode == 1
    assert "libnccl.so.2: sha256 " in done.stderr


def test_a_python_without_its_wheel_is_named(bundle: Path) -> None:
    done = run(changed(bundle, "poor.pyz", {"wheels/cffi": None}))
    assert done.returncode == 1
    assert done.stderr.startswith(f"no cffi for Python 3.{sys.version_info.minor} in ")


def test_beside_the_bundle_or_where_that_can_be_written(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_path(str(MAIN))["folder"]
    assert folder(bundle, "abc") == bundle.with_suffix("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert folder(bundle, "0123456789abcdef") == Path("/scratch/small-0123456789ab")


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("click-8.5.1-py3-none-any.whl", True),
        ("six-1.0-py2.py3-none-any.whl", True),
        ("nccl_tuner-0.1.0-cp311-abi3-linux_x86_64.whl", True),
        ("scipy-1.17-cp399-cp399-manylinux_2_28_x86_64.whl", False),
        ("later-1.0-cp399-abi3-linux_x86_64.whl", False),
    ],
)
def test_which_wheels_this_python_takes(name: str, fits: bool) -> None:
    assert run_path(str(MAIN))["fits"](name) is fits
