"""The recipes of docs/examples/deploy, run as they are: what one rank lacks keeps the job from starting, or ends it.

Ranks are processes of the real libnccl. The launcher is a stand-in for srun, with its option that ends the others.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.available_releases import HERE
from tests.support.command_line import COMMAND, TREE
from tests.support.plugin_tables import table_of
from tuner import plugin
from tuner.base.records import sha256
from tuner.oracle import library
from tuner.oracle.preloaded import preloaded
from tuner.oracle.process import SIM
from tuner.scenario.describe import describe

ROOT = Path(__file__).parents[2]
DEPLOY = TREE / "docs" / "examples" / "deploy"
RANKS = 4
RELEASES = [name for name in ("2.22.3", "2.23.4", "2.27.7", "2.28.9", "2.30.7", "2.32.3") if name in HERE][-5:]
NCCL_TUNER = str(COMMAND)
SRUN = r"""
import contextlib, os, signal, subprocess, sys, time
words = sys.argv[1:]
kills = "--kill-on-bad-exit=1" in words
words = [word for word in words if not word.startswith("--kill-on-bad-exit")]
ranks, said = int(os.environ["SRUN_RANKS"]), os.environ["SRUN_BROKEN"]
broken = dict(each.split("=", 1) for each in said.split(";") if each)
running = []
for rank in range(ranks):
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    env = {**os.environ, **{name: str(value) for name, value in numbers.items()}, **(broken if rank == 1 else {})}
    running.append(subprocess.Popen(words, env=env, start_new_session=True))
worst = 0
while running:
    for one in [one for one in running if one.poll() is not None]:
        running.remove(one)
        worst = worst or one.returncode
        if one.returncode and kills:
            for other in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(other.pid, signal.SIGKILL)
    time.sleep(0.02)
sys.exit(1 if worst else 0)
"""
# What a node lacks, as variables of the rank there: a path at which nothing is, as on a node that was left out.
LACKS = {
    "plugin": {"NCCL_TUNER_PLUGIN": "/nowhere/libnccl_tuner_plugin.so"},
    "table": {"NCCL_TUNER_TABLE": "/nowhere/pod.table"},
    "hash": {"NCCL_TUNER_TABLE_SHA256": ""},
}

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("program") / "all_reduce"
    source = ROOT / "docs" / "examples" / "all_reduce.c"
    subprocess.run([compiler, source, library.find(HERE[-1]).path, SIM, "-o", made], check=True)
    return made


def started(
    words: list[str], nccl: str, folder: Path, lacks: Mapping[str, str], timeout_s: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """What it says; TimeoutExpired where it has not ended by then."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "srun").write_text(f"#!{sys.executable}\n{SRUN}")
    (folder / "bin" / "srun").chmod(0o755)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_", "SLURM_"))}
    own |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SRUN_RANKS": str(RANKS)}
    own |= {"SRUN_BROKEN": ";".join(f"{name}={value}" for name, value in lacks.items()), **env}
    described = describe(machine="dgx-h100", nccl=nccl, gpus_per_node=RANKS)
    with preloaded(described.oracle_configuration()) as prepared:
        with subprocess.Popen(
            words,
            env=prepared.variables(own),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=timeout_s)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(words, process.returncode, said)


def job(folder: Path, nccl: str, lacks: Mapping[str, str], program: Path) -> tuple[int, str, bool]:
    """The recipe's exit code, what it says, and whether the job's program was started."""
    table = table_of(folder, "allreduce -> tree/simple channels=1")
    marks = folder / "started"
    done = started(
        ["sh", str(DEPLOY / "job.sh"), "sh", "-c", f'touch "{marks}"; exec "{program}" 1048576 "{folder}/id"'],
        nccl,
        folder,
        lacks,
        NCCL_TUNER=f"env -u LD_PRELOAD {NCCL_TUNER}",  # the simulation has a tuner of its own
        TABLE=str(table),
        NCCL=nccl,
        MACHINE="dgx-h100",
        COLLECTIVES="allreduce",
        RECORDS=str(folder / "records"),
        LIBRARY=str(library.find(nccl).path),
    )
    return done.returncode, done.stdout, marks.exists()


@pytest.mark.each_choice
@pytest.mark.parametrize("nccl", RELEASES)
@pytest.mark.parametrize("lacking", LACKS)
def test_a_job_of_which_one_rank_lacks_something_never_starts(
    program: Path, tmp_path: Path, nccl: str, lacking: str
) -> None:
    code, said, runs = job(tmp_path, nccl, LACKS[lacking], program)
    assert (code, runs) == (1, False), said
    assert "kind B (1 ranks): " in said


@pytest.mark.parametrize("nccl", RELEASES[-2:])
def test_a_job_that_lacks_nothing_starts(program: Path, tmp_path: Path, nccl: str) -> None:
    code, said, runs = job(tmp_path, nccl, {}, program)
    assert (code, runs, said.count("1 of 4 GPUs: done")) == (0, True, RANKS), said


def test_a_job_that_is_queued_again_starts_again(program: Path, tmp_path: Path) -> None:
    """Its number stays, and on other nodes its records have other names: those of the first start count for nothing."""
    (tmp_path / "records").mkdir()
    assert job(tmp_path, RELEASES[-1], {}, program)[0] == 0
    for record in [*(tmp_path / "records").rglob("rank-*")]:
        record.rename(record.with_name(f"{record.name.removesuffix('.json')}9.json"))  # as a rank that is not there now
    for made in ("started", "id"):
        (tmp_path / made).unlink()
    time.sleep(1.1)  # a start has a second of its own
    code, said, runs = job(tmp_path, RELEASES[-1], {}, program)
    assert (code, runs) == (0, True), said


@pytest.mark.each_choice
@pytest.mark.parametrize("nccl", RELEASES)
@pytest.mark.parametrize("lacking", ["table", "hash"])
def test_strict_and_the_launchers_option_end_all_ranks(program: Path, tmp_path: Path, nccl: str, lacking: str) -> None:
    """Without preflight: the rank fails, and the launcher ends those that would wait for it for ever."""
    table = table_of(tmp_path, "allreduce -> tree/simple channels=1")
    strict = {"NCCL_TUNER_PLUGIN": str(plugin.path()), "NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_STRICT": "1"}
    words = ["srun", "--kill-on-bad-exit=1", str(program), "1048576", str(tmp_path / "id")]
    done = started(words, nccl, tmp_path, LACKS[lacking], 30, **strict, NCCL_TUNER_TABLE_SHA256=sha256(table))
    assert done.returncode == 1
    assert "ncclCommInitRank" in done.stdout


def kubernetes(table: Path) -> list[dict[str, Any]]:
    """The recipe's objects for a table."""
    text = (DEPLOY / "kubernetes.yaml").read_text()
    lines = table.read_text().rstrip("\n").replace("\n", "\n    ")
    for word, value in {"    TABLE": f"    {lines}", "HASH12": sha256(table)[:12], "HASH": sha256(table)}.items():
        text = text.replace(word, value)
    return list(yaml.safe_load_all(text))


def test_what_pods_mount_is_there() -> None:
    table, daemons, pod = kubernetes(DEPLOY / "job.sh")  # any text
    for of in (daemons["spec"]["template"]["spec"], pod["spec"]):
        there = {volume["name"] for volume in of["volumes"]}
        for each in (*of.get("initContainers", ()), *of["containers"]):
            assert {mount["name"] for mount in each["volumeMounts"]} <= there
    assert table["metadata"]["name"] in [
        each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each
    ]


def test_the_plugin_reaches_nodes_that_others_are_kept_from() -> None:
    """GPU nodes have a taint; and pods that are not root write into the folder of counts."""
    _, daemons, pod = kubernetes(DEPLOY / "job.sh")
    of = daemons["spec"]["template"]["spec"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in of["tolerations"]
    mounts = {mount["name"]: mount["mountPath"] for mount in of["containers"][0]["volumeMounts"]}
    (said,) = of["containers"][0]["args"]
    assert f"chmod 1777 {mounts['counts']}" in said.splitlines()[0]
    assert {"name": "NCCL_TUNER_LIVE", "value": mounts["counts"]} in pod["spec"]["containers"][0]["env"]


def test_what_root_changes_on_a_node_is_below_no_folder_that_everybody_may_write() -> None:
    """A user's link of that name there would be another folder, which root would open to everybody."""
    _, daemons, pod = kubernetes(DEPLOY / "job.sh")
    of_nodes = [
        volume["hostPath"]["path"]
        for each in (daemons["spec"]["template"]["spec"], pod["spec"])
        for volume in each["volumes"]
        if "hostPath" in volume
    ]
    of_nodes += re.findall(r":-(/[^}]*)", (DEPLOY / "slurm-prolog.sh").read_text())
    assert len(of_nodes) > 4
    assert not [path for path in of_nodes if path.startswith(("/dev/shm", "/tmp", "/var/tmp", "/dev/mqueue"))]


@pytest.mark.parametrize("lacking", [None, "table", "hash", "plugin", "library"])
def test_pods_start_only_where_all_are_alike(tmp_path: Path, lacking: str | None) -> None:
    """The initContainer of each of four ranks, with its mounts as folders; the second lacks something."""
    objects, ranks = kubernetes(table_of(tmp_path, "allreduce -> tree/simple channels=1")), []
    (init,) = objects[2]["spec"]["initContainers"]
    for rank in range(RANKS):
        here = tmp_path / str(rank)
        table, deployed, broken = here / "nccl", here / "opt", rank == 1 and lacking
        table.mkdir(parents=True)
        deployed.mkdir()
        for name, text in objects[0]["data"].items():
            (table / name).write_text(text + ("# other\n" if name == "pod.table" and broken == "table" else ""))
        if broken != "plugin":
            shutil.copy(plugin.path(), deployed / plugin.path().name)
        mounts = {"/etc/nccl": str(table), "/opt/nccl-tuner": str(deployed), "/shared": str(tmp_path)}

        def mounted(text: str, mounts: Mapping[str, str] = mounts) -> str:
            for path, folder in mounts.items():
                text = text.replace(path, folder)
            return text

        env = {each["name"]: mounted(each["value"]) for each in init["env"] if "value" in each} | {"RUN": "a1"}
        env |= {"NCCL_TUNER_TABLE_SHA256": ""} if broken == "hash" else {}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "JOB": "job", "MACHINE": "dgx-h100", "WAIT_S": "10"}
        env |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
        env |= {"LIBRARY": str(library.find(RELEASES[0 if broken == "library" else -1]).path)}
        words = [*init["command"], *map(mounted, init["args"])]
        path = f"{Path(NCCL_TUNER).parent}:{os.environ['PATH']}"
        ranks.append(
            subprocess.Popen(
                words, env={"PATH": path, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    said = [each.communicate(timeout=120)[0] for each in ranks]
    assert [each.returncode == 0 for each in ranks] == [lacking is None] * RANKS, said
    if lacking is None:  # a second job of this name, of which one pod has come: the first one's records are not its own
        alone = subprocess.run(
            words, env={"PATH": path, **env, "RUN": "b2", "WAIT_S": "1"}, capture_output=True, text=True
        )
        assert (alone.returncode, "rank 0 has not found all ranks alike" in alone.stderr) == (1, True)


@pytest.mark.parametrize("lacking", [None, "plugin", "table", "hash", "sum"])
def test_slurms_prolog_drains_a_node_that_lacks_something(tmp_path: Path, lacking: str | None) -> None:
    table = table_of(tmp_path, "allreduce -> tree/simple channels=1")
    table.rename(tmp_path / "current.table")
    sums = "" if lacking == "sum" else f"{'0' * 64 if lacking == 'hash' else sha256(tmp_path / 'current.table')}  x\n"
    (tmp_path / "current.table.sha256").write_text(sums)
    if lacking == "table":
        (tmp_path / "current.table").unlink()
    if lacking != "plugin":
        shutil.copy(plugin.path(), tmp_path / plugin.path().name)
    env = {**os.environ, "NCCL_TUNER_DEPLOY": str(tmp_path), "NCCL_TUNER_LIVE_DIR": str(tmp_path / "live")}
    done = subprocess.run(["sh", DEPLOY / "slurm-prolog.sh"], env=env, capture_output=True, text=True)
    assert ((done.returncode == 0), (tmp_path / "live").is_dir()) == (lacking is None, lacking is None), done.stderr
