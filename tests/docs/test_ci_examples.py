"""docs/ci.md: the workflow, the hook and the container file for other projects do what the page says."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import doc_sessions
from tests.support.command_line import COMMAND, TREE, run
from tuner import release
from tuner.base.extras import EXTRAS
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.plugin.live import LiveCounts, metrics

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
    assert run(*words, str(files[0])).stdout.splitlines()[0].endswith("0 warnings and errors, 1 note")


def test_the_container_file_installs_what_check_and_oracle_need() -> None:
    text = (EXAMPLES / "Containerfile").read_text("utf-8")
    assert set(re.findall(r"NCCL=(\S+)", text)) <= set(release.names())
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", text)
    assert {each.name: each.gives for each in EXTRAS}[extra].startswith("check, oracle")
    assert f"{library.WHEELS[library.BUILD]}==${{NCCL}}" in text


def commented(folder: Path, **said: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """The last step of action.yml with a stand-in for gh, and the comment that it is handed."""
    (folder / "gh").write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\ncp "$1" comment\n', "utf-8")
    (folder / "gh").chmod(0o755)
    action = yaml.safe_load((TREE / "action.yml").read_text("utf-8"))
    step = action["runs"]["steps"][-1]
    given = {name: each.get("default", "") for name, each in action["inputs"].items()} | said
    environment = {"GITHUB_ACTION_PATH": str(TREE), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    for name, value in step["env"].items():
        key = re.sub(r"^\$\{\{ inputs\.(.*) \}\}$", r"\1", value)
        environment[name] = given.get(key, "https://example.org/pull/1")
    environment |= {"GH_TOKEN": "a", "PATH": f"{folder}:{COMMAND.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", step["run"]], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    comment = folder / "comment"
    return done, comment.read_text("utf-8") if comment.exists() else ""


@pytest.mark.slow
def test_the_action_comments_what_an_upgrade_changes(tmp_path: Path) -> None:
    said = {"before": "2.28.9", "after": "2.29.2", "machines": "aws-p6-b200", "nodes": "1 2"}
    done, comment = commented(tmp_path, **said, **{"fail-above": "5%"})
    assert done.returncode == 1, done.stderr
    # By its first line a later run finds its own comment.
    assert comment.startswith(
        "<!-- nccl-tuner upgrade 2.28.9 to 2.29.2 -->\n### NCCL 2.28.9 to 2.29.2: picks that change\n"
    )
    assert comment.count("<details>") == 2
    assert "<summary>1 nodes of aws-p6-b200: **slower than 5% allows**</summary>" in comment
    assert (tmp_path / "summary").read_text("utf-8") == comment
    done, comment = commented(tmp_path, **said)
    assert done.returncode == 0, done.stderr
    assert "slower than" not in comment


def test_the_action_may_allow_no_change(tmp_path: Path) -> None:
    said = {"after": "2.29.2", "machines": "aws-p6-b200", "nodes": "1", "fail-on-change": "true"}
    done, comment = commented(tmp_path, before="2.28.9", **said)
    assert done.returncode == 1, done.stderr
    assert "<summary>1 nodes of aws-p6-b200: **a pick changes**</summary>" in comment
    done, comment = commented(tmp_path, before="2.29.2", **(said | {"after": "2.29.3"}))
    assert done.returncode == 0, done.stderr
    assert "a pick changes" not in comment


def test_the_action_says_what_is_wrong_and_comments_nothing(tmp_path: Path) -> None:
    done, comment = commented(tmp_path, before="2.28.9", after="2.99.9", machines="dgx-h100", nodes="1")
    assert done.returncode == 2
    assert "no table for NCCL 2.99.9" in done.stderr
    assert comment == ""


@pytest.mark.slow
def test_the_action_judges_every_line_of_its_machines(tmp_path: Path) -> None:
    said = {"before": "2.28.9", "after": "2.29.2", "machines": "dgx-h100\n\n  aws-p6-b200\r\n", "nodes": "1\n2"}
    done, comment = commented(tmp_path, **said, **{"fail-above": "5%"})
    assert done.returncode == 1, done.stderr
    assert re.findall(r"<summary>(\S+) nodes of ([\w-]+)", comment) == [
        (nodes, machine) for machine in ("dgx-h100", "aws-p6-b200") for nodes in "12"
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"machines": " \n"},
        {"nodes": ""},
        {"fail-on-change": "yes"},
        {"before": "--help"},
        {"after": "2.29.2 --json"},
        {"machines": "--help"},
    ],
    ids=str,
)
def test_the_action_passes_nothing_that_it_did_not_judge(tmp_path: Path, said: dict[str, str]) -> None:
    done, comment = commented(
        tmp_path, **({"before": "2.28.9", "after": "2.29.2", "machines": "dgx-h100", "nodes": "1"} | said)
    )
    assert (done.returncode, comment) == (2, ""), done.stdout


def test_the_actions_comment_has_room_for_its_text(tmp_path: Path) -> None:
    """GitHub refuses a comment of more than 65,536 characters; what else changes is counted."""
    (tmp_path / "nccl-tuner").write_text("#!/bin/sh\nyes 'a row of the table, \u00fc' | head -n 400\n", "utf-8")
    (tmp_path / "nccl-tuner").chmod(0o755)
    done, comment = commented(tmp_path, before="2.28.9", after="2.29.2", machines="a b c d", nodes="1 2 3 4 5")
    assert done.returncode == 0, done.stderr
    assert 40_000 < len(comment) <= 65_536
    left = 20 - comment.count("<details>")
    assert f"\n{left} more in the run's log" in comment
    assert done.stdout.count("<details>") == left


COUNTED = LiveCounts(
    host="node01",
    pid=7,
    rank=0,
    communicator=5,
    ranks=16,
    nodes=2,
    started_s=0,
    nccl="2.28.9",
    build="1",
    table="/job/pod.table",
    sha256="ab",
    refused=None,
    runs=True,
    calls=9,
    decided={2: 5},
    could_not_run={3: 1},
    costs={4: 2},
)
BOARD = json.loads((doc_sessions.ROOT / "docs" / "examples" / "grafana.json").read_text("utf-8"))
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_the_board_is_one_of_grafana() -> None:
    """What the models of Grafana's own schema read is all that there is in the file."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(BOARD)))
    assert list(lost(BOARD, read)) == []


def lost(file: Any, read: Any, where: str = "") -> Iterator[str]:
    """Values of the file that were not read."""
    if isinstance(file, dict):
        for key, value in file.items():
            if isinstance(read, dict) and key in read:
                yield from lost(value, read[key], f"{where}.{key}")
            elif value is not None:
                yield f"{where}.{key}"
    elif isinstance(file, list):
        for number, (value, other) in enumerate(zip(file, read, strict=True)):
            yield from lost(value, other, f"{where}[{number}]")
    elif file != read:
        yield where


def test_the_board_asks_for_metrics_and_labels_that_there_are() -> None:
    inspector = (doc_sessions.ROOT / "docs" / "examples" / "inspector.prom").read_text("utf-8")
    words = ["budget", "docs/examples/inspector.log", "--machine", "dgx-h100", "--nodes", "2", "--prometheus"]
    budget = subprocess.run([str(COMMAND), *words], cwd=doc_sessions.ROOT, capture_output=True, text=True, check=True)
    plugin = metrics([COUNTED, replace(COUNTED, refused="cut")])
    labels: dict[str, set[str]] = {}
    for name, said in re.findall(r"^(\w+)\{(.*)\} \S+$", "\n".join([inspector, budget.stdout, plugin]), re.M):
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", said))
    for expression in EXPRESSIONS:
        names = re.findall(r"\bnccl_\w+", expression)
        assert names
        assert set(names) <= set(labels), expression
        wanted = {
            each.strip() for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for each in group.split(",")
        }
        assert wanted <= set.union(*(labels[name] for name in names)), expression
