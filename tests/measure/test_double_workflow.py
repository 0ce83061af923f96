"""From measure to a decision table on the double, by the command line."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.measure.double.planted import Planted
from tuner.measure.double.settings import DoubleSettings
from tuner.scenario import Scenario

GPUS = ("--machine", "dgx-h100", "--gpus-per-node", "2", "--nccl", "2.28.9")
MEASURE = ("measure", "allreduce", "--backend", "double", *GPUS, "--rounds", "3", "--repeats", "3")

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("double") / "run.jsonl"
    said = run(*MEASURE, "--bytes", "1K,8K,64K,512K,4M,32M,256M", "--out", str(path)).stdout
    assert "backend double" in said
    return path


def test_the_same_command_goes_on(measured: Path) -> None:
    again = run(*MEASURE, "--bytes", "1K", "--json", "--out", str(measured)).stdout
    assert json.loads(again)["new_visits"] == 0
    assert json.loads(again)["backend"] == "double", "whoever reads the JSON alone knows that times are planted"


def test_a_file_that_was_moved_goes_on(measured: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.jsonl"
    shutil.copy(measured, moved)
    again = run(*MEASURE, "--bytes", "1K", "--json", "--out", str(moved)).stdout
    assert json.loads(again)["new_visits"] == 0


def test_another_machine_is_refused_and_changes_nothing(measured: Path) -> None:
    beside = measured.with_name(f"{measured.name}.topology.xml")
    before, topology = measured.read_bytes(), beside.read_bytes()
    other = ("--machine", "dgx-a100", "--bytes", "1K", "--out", str(measured))
    said = run(*MEASURE, *other, code=2).stderr
    assert 'double.scenario.machine "dgx-h100" there, "dgx-a100" now' in said
    assert (measured.read_bytes(), beside.read_bytes()) == (before, topology)
    said = run("measure", "--backend", "simulated", *GPUS, "--out", str(measured), code=2).stderr
    assert said == (
        f'nccl-tuner: {measured}: measured otherwise: backend "double" there, "simulated" now; '
        "valid: the same, or another --out\n"
    )


def test_verify_says_that_times_are_simulated(measured: Path) -> None:
    said = run("verify", str(measured)).stdout
    assert "simulated" in said
    assert "measured times" not in said


def test_fit_finds_what_is_planted(measured: Path, tmp_path: Path) -> None:
    found = json.loads(run("fit", str(measured), "--out", str(tmp_path / "constants.toml"), "--json").stdout)
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
    found = json.loads(run("fit", str(measured), str(same), *out, "--json").stdout)
    assert found["communicators"][0] == found["communicators"][1], "one communicator, measured twice"
    slower = dumped_elsewhere(measured, tmp_path, 'link_width="16"', 'link_width="8"')
    said = run("fit", str(measured), str(slower), *out, code=2).stderr
    assert "valid together: one machine, one release" in said


def test_decide_asks_the_double_again(measured: Path, tmp_path: Path) -> None:
    table = tmp_path / "decided.table"
    run("decide", str(measured), "--rounds", "3", "--repeats", "3", "--out", str(table))
    blocks = [json.loads(line) for line in table.with_name("decided.table.ab.jsonl").open()]
    assert blocks[0]["backend"] == "double"
    assert {block.get("table") for block in blocks[1:]} == {None, "candidate"}
    assert "# backend-1: double" in table.read_text()
    assert "-> tree/ll" in table.read_text()


def test_what_belongs_to_the_double_alone(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run.jsonl"))
    said = run("measure", "--backend", "simulated", *GPUS, "--fault", "hang", *out, code=2).stderr
    assert said == "nccl-tuner: --process-per-rank, --fault: not with --backend simulated; valid: double\n"
    said = run("measure", "--backend", "double", *GPUS, "--fault", "hangs", *out, code=2).stderr
    assert said.startswith("nccl-tuner: fault 'hangs'; valid: hang, error, ")
