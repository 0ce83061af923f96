"""Tests that install the real writers of files, pinned, which takes minutes and a package index: `make writers` alone.

Without NCCL_TUNER_WRITERS nothing of this folder is collected.
"""

import os
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
def hwloc() -> Path:
    """Folder with hwloc 2.9.0 as Debian 12 has it, unpacked."""
    folder = KEPT / "hwloc-2.9.0"
    if not (folder / "made").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        packages = ["hwloc=2.9.0-1", "libhwloc15=2.9.0-1", "libxml2", "libpciaccess0", "libltdl7"]
        subprocess.run(["apt-get", "download", "--quiet", *packages], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
        (folder / "made").touch()
    return folder / "root"
