"""docs/ci.md: the workflow, the hook and the container file for other projects do what the page says."""

import re
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import doc_sessions
from tests.support.command_line import COMMAND, run
from tuner import release
from tuner.base.extras import EXTRAS
from tuner.machine import catalogue
from tuner.oracle import library

EXAMPLES = doc_sessions.ROOT / "docs" / "examples" / "ci"
WORKFLOW: dict[str, Any] = yaml.safe_load((EXAMPLES / "nccl-upgrade.yml").read_text("utf-8"))["jobs"]["picks"]
(HOOK,) = yaml.safe_load((doc_sessions.ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
HEAD, ROW = "nccl-tuner-table 1\n", "allreduce bytes=..1M -> ring/simple\n"


def upgraded(folder: Path, before: str, after: str) -> subprocess.CompletedProcess[str]:
    """The workflow's last step, where a commit writes ``after`` over ``before``."""
    for version in (before, after):
        (folder / "nccl-version.txt").write_text(f"{version}\n", "utf-8")
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", version)):
            who = ("-c", "user.name=a", "-c", "user.email=a@b")
            subprocess.run(["git", *who, *words], cwd=folder, check=True)
    step = WORKFLOW["steps"][-1]["run"].replace("nccl-tuner ", f"{shlex.quote(str(COMMAND))} ")
    for key, value in {"machine": "aws-p6-b200", "nodes": "1"}.items():
        step = step.replace("${{ matrix." + key + " }}", value)
    return subprocess.run(["bash", "-e", "-c", step], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "code"), [("2.28.9", "2.29.2", 1), ("2.29.2", "2.29.3", 0)])
def test_the_workflow_fails_where_an_upgrade_makes_picks_slower(
    tmp_path: Path, before: str, after: str, code: int
) -> None:
    done = upgraded(tmp_path, before, after)
    assert done.returncode == code, done.stderr
    assert ("--fail-above allows 5 %" in done.stderr) == bool(code)


def test_the_workflow_names_machines_that_are_known() -> None:
    matrix = WORKFLOW["strategy"]["matrix"]
    for machine, nodes in product(matrix["machine"], matrix["nodes"]):
        assert catalogue.load(machine).name == machine
        assert nodes >= 1


def test_the_hook_looks_at_each_file(tmp_path: Path) -> None:
    files = [tmp_path / "a.table", tmp_path / "b.table"]
    files[0].write_text(HEAD + ROW, "utf-8")
    files[1].write_text(HEAD + ROW + ROW, "utf-8")  # the second never decides
    command, *words = shlex.split(HOOK["entry"])
    assert command == COMMAND.name
    assert all(re.search(HOOK["files"], file.name) for file in files)
    assert [file.name in run(*words, *map(str, files), code=1).stdout for file in files] == [True, True]
    assert run(*words, str(files[0])).stdout.endswith("0 warnings and errors, 1 notes\n")


def test_the_container_file_installs_what_check_and_oracle_need() -> None:
    text = (EXAMPLES / "Containerfile").read_text("utf-8")
    assert set(re.findall(r"NCCL=(\S+)", text)) <= set(release.names())
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", text)
    assert {each.name: each.gives for each in EXTRAS}[extra].startswith("check, oracle")
    assert f"{library.WHEELS[library.BUILD]}==${{NCCL}}" in text
