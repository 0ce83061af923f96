"""Processes that this project starts run nothing that lies in the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND
from tests.support.planted_modules import plant, that_ran
from tuner.base import children

SOURCES = sorted(Path(children.__file__).parents[1].rglob("*.py"))


def test_one_place_starts_python() -> None:
    starting = [str(path) for path in SOURCES if "sys.executable" in path.read_text("utf-8")]
    assert starting == [children.__file__]


def ran_from(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0", **variables}
    return subprocess.run(
        [*command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_planted_modules_are_seen_where_they_run(tmp_path: Path) -> None:
    plant(tmp_path, names=("pip",))
    ran_from(tmp_path, sys.executable, "-c", "import pip")
    assert that_ran(tmp_path) == ["pip"]


@pytest.mark.parametrize("path", ["", "."], ids=["plain", "a path with the current folder"])
def test_fetching_runs_nothing_of_the_current_folder(path: str, tmp_path: Path) -> None:
    plant(tmp_path, names=("pip", "sitecustomize", "usercustomize") if not path else ("pip",))
    cache = tmp_path / "cache"
    done = ran_from(tmp_path, COMMAND, "fetch-nccl", "2.28.9", NCCL_TUNER_CACHE=str(cache), PYTHONPATH=path)
    assert that_ran(tmp_path) == []
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot download nvidia-nccl-cu12==2.28.9" in done.stderr
    assert not list(cache.rglob("fetch-*"))


@pytest.mark.parametrize("program", children.PROGRAMS)
def test_each_program_imports_nothing_of_the_current_folder(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under every name that the standard library, what is installed, and the program itself have."""
    plant(tmp_path)
    variables = {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "pip.py"), "PYTHONINSPECT": "1"}
    with monkeypatch.context() as context:
        context.chdir(tmp_path)
        command = children.command(program, "--version" if program == children.PIP else "99")
        environment = children.environment({**os.environ, **variables})
    assert not [name for name in environment if name.startswith("PYTHON")]
    done = ran_from(tmp_path, *command, **variables)
    assert that_ran(tmp_path) == []
    if program == children.PIP:
        assert done.stdout.startswith("pip ")
    elif program == children.SERVING:
        assert "JSONDecodeError" in done.stderr  # it came to read its input, which is empty
    else:
        assert "Bad file descriptor" in done.stderr  # it came to ask its socket


COMMANDS = {
    "pick": "pick allreduce --machine dgx-h100 --nodes 2 --bytes 1M --libnccl",
    "check": "check allreduce --machine dgx-h100 --nodes 2",
    "memory": "memory --machine dgx-h100 --nodes 2",
    "graphs": "graphs --machine dgx-h100 --nodes 2 --libnccl",
    "run": "oracle run --machine dgx-h100 -- true",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_start_children_run_nothing_of_the_current_folder(command: str, tmp_path: Path) -> None:
    plant(tmp_path)
    done = ran_from(tmp_path, COMMAND, *COMMANDS[command].split(), PYTHONPATH="")
    assert that_ran(tmp_path) == []
    assert done.returncode in (0, 3), done.stderr


def test_names_of_files_reach_a_child_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.so").touch()
    given = {
        "NCCL_TUNER_TABLE": "a.table",
        "NCCL_TUNER_PLUGIN": "./own.so",
        "NCCL_NET_PLUGIN": "own.so",
        "NCCL_TOPO_FILE": "/x/topology.xml",
        "NCCL_DEBUG_FILE": "stdout",
        "NCCL_ALGO": "Ring",
        "LD_LIBRARY_PATH": ":lib:/usr/lib:",
        "HOME": "there",
    }
    assert children.environment(given) == {
        **given,
        "NCCL_TUNER_TABLE": str(tmp_path / "a.table"),
        "NCCL_TUNER_PLUGIN": str(tmp_path / "own.so"),
        "LD_LIBRARY_PATH": f"{tmp_path / 'lib'}:/usr/lib",
    }
