"""Tests that install the real writers and readers of files, pinned, which takes minutes and a network: `make writers`.

Without NCCL_TUNER_WRITERS nothing of this folder is collected.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("NCCL_TUNER_WRITERS") else ["test_*.py"]
ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "writers"  # environments that were made once


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Python with PyTorch's CPU build."""
    folder = KEPT / "torch-2.13.0"
    python = folder / "bin" / "python"
    if not (folder / "made").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        wanted = ["torch==2.13.0+cpu", "numpy==2.4.6"]
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *wanted], check=True)
        (folder / "made").touch()
    return python


@pytest.fixture(scope="session")
def deepspeed(torch_python: Path) -> Path:
    """Folder with DeepSpeed's Python source, for ``torch_python``, which gets what it imports."""
    folder = KEPT / "deepspeed-0.19.8"
    if not (folder / "made").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        imports = ["hjson", "py-cpuinfo", "psutil", "tqdm", "pydantic", "packaging", "msgpack", "einops", "ninja"]
        subprocess.run([torch_python, "-m", "pip", "install", "--quiet", *imports], check=True)
        words = [
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary=deepspeed",
            "--dest",
            str(folder),
            "deepspeed==0.19.8",
        ]
        subprocess.run([torch_python, "-m", "pip", *words], check=True)
        (packed,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(packed, folder, filter="data")
        (folder / "made").touch()
    return folder / "deepspeed-0.19.8"


@pytest.fixture(scope="session")
def hwloc() -> Path:
    """Folder with hwloc 2.9.0 as Debian 12 has it, unpacked."""
    return _unpacked("hwloc-2.9.0", "hwloc=2.9.0-1", "libhwloc15=2.9.0-1", "libxml2", "libpciaccess0", "libltdl7")


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker, as Debian 12 has it."""
    return _unpacked("prometheus-2.42.0", "prometheus") / "usr" / "bin" / "promtool"


def _unpacked(name: str, *packages: str) -> Path:
    """Folder with these packages of Debian unpacked; nothing is installed."""
    folder = KEPT / name
    if not (folder / "made").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "--quiet", *packages], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
        (folder / "made").touch()
    return folder / "root"
