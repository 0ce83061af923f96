"""From measure to a decision table on the double, by the command line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.double import nccl_tuner
from tests.support.double.machine import Planted
from tests.support.double.settings import DoubleSettings
from tuner.scenario import Scenario
from tuner.times.measured.samples import read

GPUS = ("--machine", "dgx-h100", "--gpus-per-node", "2", "--nccl", "2.28.9")
MEASURE = ("measure", "allreduce", "--backend", "double", *GPUS, "--rounds", "3", "--repeats", "3")

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def with_the_double() -> Iterator[None]:
    with nccl_tuner.installed():
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("double") / "run.jsonl"
    said = run(*MEASURE, "--bytes", "1K,8K,64K,512K,4M,32M,256M", "--out", str(path)).stdout
    assert "backend double" in said
    return path


def test_the_same_command_goes_on(measured: Path) -> None:
    again = run(*MEASURE, "--bytes", "1K", "--json", "--out", str(measured)).stdout
    assert json.loads(again)["new_blocks"] == 0
    assert json.loads(again)["backend"] == "double", "whoever reads the JSON alone knows that times are planted"


def test_a_file_that_was_moved_goes_on(measured: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.jsonl"
    shutil.copy(measured, moved)
    again = run(*MEASURE, "--bytes", "1K", "--json", "--out", str(moved)).stdout
    assert json.loads(again)["new_blocks"] == 0


def test_another_machine_is_refused_and_changes_nothing(measured: Path) -> None:
    beside = measured.with_name(f"{measured.name}.topology.xml")
    before, topology = measured.read_bytes(), beside.read_bytes()
    other = ("--machine", "dgx-a100", "--bytes", "1K", "--out", str(measured))
    said = run(*MEASURE, *other, code=2).stderr
    assert 'double.scenario.machine "dgx-h100" there, "dgx-a100" now' in said
    assert (measured.read_bytes(), beside.read_bytes()) == (before, topology)
    said = run("measure", "--backend", "simulated", *GPUS, "--out", str(measured), code=2).stderr
    assert said == (
        f'nccl-tuner: {measured} was measured otherwise: backend "double" there, "simulated" now: '
        "measure in the same way, or use another --out\n"
    )


def test_verify_says_that_times_are_simulated(measured: Path) -> None:
    said = run("verify", str(measured)).stdout
    assert "simulated" in said
    assert "measured times" not in said


def test_fit_finds_what_is_planted(measured: Path, tmp_path: Path) -> None:
    found = json.loads(
        run("fit", "constants", str(measured), "--out", str(tmp_path / "constants.toml"), "--json").stdout
    )
    assert found["times"] == "simulated"
    fitted = {each["name"]: each["value"] for each in found["constants"]}
    planted = Planted(DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100", gpus_per_node=2))).truth(2).change
    assert fitted["efficiency.ring.ll"] == pytest.approx(planted["efficiency"]["ring"]["ll"], rel=0.02)
    assert fitted["base_latency_us.tree.ll128"] == pytest.approx(planted["base_latency_us"]["tree"]["ll128"], rel=0.05)


def dumped_elsewhere(measured: Path, folder: Path, pattern: str, value: str) -> Path:
    """The same file as a run on another node would have written it."""
    line, blocks = measured.read_text().split("\n", 1)
    header = json.loads(line)
    header["topology_xml"], changes = re.subn(pattern, value, header["topology_xml"])
    assert changes
    header["case"]["topology"] = str(folder / "elsewhere.jsonl.topology.xml")
    other = folder / "elsewhere.jsonl"
    other.write_text(json.dumps(header) + "\n" + blocks)
    return other


def test_fit_takes_files_of_one_topology_together(measured: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "constants.toml"))
    same = dumped_elsewhere(measured, tmp_path, 'host_hash="[^"]*"', 'host_hash="0x7"')
    found = json.loads(run("fit", "constants", str(measured), str(same), *out, "--json").stdout)
    assert found["communicators"][0] == found["communicators"][1], "one communicator, measured twice"
    slower = dumped_elsewhere(measured, tmp_path, 'link_width="16"', 'link_width="8"')
    said = run("fit", "constants", str(measured), str(slower), *out, code=2).stderr
    assert "give files of one machine and one release" in said


def test_decide_asks_the_double_again(measured: Path, tmp_path: Path) -> None:
    table = tmp_path / "decided.table"
    run("decide", str(measured), "--rounds", "3", "--repeats", "3", "--out", str(table))
    blocks = [json.loads(line) for line in table.with_name("decided.table.ab.jsonl").open()]
    assert blocks[0]["backend"] == "double"
    assert {block.get("table") for block in blocks[1:]} == {None, "candidate"}
    assert "# backend-1: double" in table.read_text()
    assert "-> tree/ll" in table.read_text()


def test_a_fault_that_is_none(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run.jsonl"))
    said = run("measure", "--backend", "double", *GPUS, "--fault", "hangs", *out, code=2).stderr
    assert said.startswith("nccl-tuner: fault 'hangs'; valid: hang, error, ")


def test_a_rehearsed_crash_goes_on_without_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    small = (*MEASURE, "--bytes", "1K,1M", "--out", str(path))
    said = run(*small, "--fault", "killed:rank=1,after=200", code=2).stderr
    assert "was killed by SIGKILL" in said
    before = read(path).blocks
    again = json.loads(run(*small, "--json").stdout)
    assert again["new_blocks"] > 0
    assert read(path).blocks[: len(before)] == before != ()
    said = run(*small, "--fault", "slow:rank=1", code=2).stderr
    assert "measured otherwise: double.faults" in said


def test_titles_have_the_machine_s_name_and_wrong_results_are_no_success(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    ran = run(*MEASURE, "--bytes", "1K", "--fault", "wrong:rank=1", "--out", str(path), code=1)
    first, title, *_ = ran.stdout.splitlines()
    assert first == "8 of 8 rows have wrong results: a GPU, a link or libnccl is faulty"
    assert title == "1 x dgx-h100, 2 GPUs each, NCCL 2.28.9; backend double"
    assert "of what had no wrong results" in ran.stdout.splitlines()[-1]
    assert "8 of 8 rows have wrong results" in ran.stderr
    assert read(path).header.origin == "simulated times of 1 x dgx-h100, 2 GPUs each, NCCL 2.28.9"


def test_some_wrong_results_are_no_success_either(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    ran = run(*MEASURE, "--bytes", "1K", "--fault", "wrong:rank=1,after=600", "--out", str(path), "--json", code=1)
    wrong = [bool(row["wrong"]) for row in json.loads(ran.stdout)["results"]]
    assert {block.wrong for block in read(path).blocks} == {0, 1}
    assert f"{sum(wrong)} of {len(wrong)} rows have wrong results" in ran.stderr


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    """All ranks wait for it in every call, so that their times are alike: only at the end are others done first."""
    path = tmp_path / "run.jsonl"
    eight = ("measure", "allreduce", "--backend", "double", "--machine", "dgx-h100", "--nccl", "2.28.9")
    words = (*eight, "--bytes", "1M,64M", "--rounds", "1", "--repeats", "2", "--warmup", "0")
    ran = run(*words, "--fault", "slow:rank=5", "--out", str(path))
    blocks = read(path).blocks
    assert ran.stdout.startswith(
        f"rank 5 is late: in {len(blocks)} of {len(blocks)} sample blocks it ends after the median rank by 0.50 of "
    )
    assert {block.late_us[0][0] for block in blocks} == {5}
    assert all(len(block.late_us) == 8 for block in blocks)
    none = json.loads(run(*words, "--out", str(tmp_path / "none.jsonl"), "--json").stdout)
    assert none["late_ranks"] == []


@pytest.mark.parametrize("words", [(), ("--process-per-rank",)])
def test_scancel_leaves_nothing_behind(tmp_path: Path, words: tuple[str, ...]) -> None:
    """SIGTERM is Ctrl-C: what was measured is kept, and folder and processes of the double go."""
    temporary, path = tmp_path / "temporary", tmp_path / "run.jsonl"
    temporary.mkdir()
    program = [sys.executable, "-m", "tests.support.double.nccl_tuner"]
    command = [*program, *MEASURE, *words, "--bytes", "1K,1M", "--rounds", "1000", "--out", str(path)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        try:
            until_s = time.monotonic() + 120
            while not (path.exists() and path.stat().st_size > 10_000) and time.monotonic() < until_s:
                time.sleep(0.05)
            assert [each.name for each in temporary.iterdir() if each.name.startswith("nccl-tuner-double-")]
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.decode().endswith(f"interrupted; {path} keeps what was measured; the same command continues\n")
    assert read(path).blocks
    assert not list(temporary.iterdir())
    assert not [link for link in Path("/proc").glob("[0-9]*/environ") if _names(link, str(temporary))]


def _names(environ: Path, text: str) -> bool:
    """Whether a process has this in its environment."""
    try:
        return text.encode() in environ.read_bytes()
    except OSError:
        return False
