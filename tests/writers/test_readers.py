"""What is written for other programs, read by the real ones: schedules by LogGOPSim, metrics by promtool."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run

HOP_NS = 1000
RANKS = 16  # of two nodes
FREE = ("-L", str(HOP_NS), "-o", "0", "-g", "0", "-G", "0", "-O", "0", "-S", "1000000000")  # a message: a hop, no more
INSPECTOR = Path(__file__).parents[2] / "docs" / "examples" / "inspector.log"

pytestmark = pytest.mark.live  # else it connects to no other computer


@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_log_gops_sim_runs_a_schedule_to_its_end(
    algorithm: str, log_gops_sim: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    (tools, env), schedule, binary = log_gops_sim, tmp_path / "made.goal", tmp_path / "made.bin"
    words = ("allreduce", "--bytes", "40K", "--machine", "dgx-h100", "--nodes", "2", "--env", f"NCCL_ALGO={algorithm}")
    run("export", *words, "--format", "goal", "--out", str(schedule))
    subprocess.run([tools / "txt2bin", "-i", schedule, "-o", binary], env=env, check=True, capture_output=True)
    said = subprocess.run(
        [tools / "LogGOPSim", "-f", binary, *FREE], env=env, check=True, capture_output=True, text=True
    ).stdout
    (events,) = re.findall(r"Events: (\d+)", said)
    sends = len(re.findall(r"^l\d+: send ", schedule.read_text(), re.M))
    assert int(events) == 3 * sends  # sent, under way, received: none is left
    ends_ns = [int(each) for each in re.findall(r"^Host \d+: (\d+)", said, re.M)]
    assert len(ends_ns) == RANKS
    assert min(ends_ns) > 0
    if algorithm == "Ring":  # every part goes round twice, but for a hop each time, and all of them at once
        assert set(ends_ns) == {2 * (RANKS - 1) * HOP_NS}


def test_promtool_takes_the_metrics(promtool: Path) -> None:
    text = run("budget", str(INSPECTOR), "--machine", "dgx-h100", "--nodes", "2", "--prometheus").stdout
    words = [str(promtool), "check", "metrics"]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    # It would have seconds for microseconds; it finds nothing else.
    assert all('use base unit "seconds"' in line for line in (done.stdout + done.stderr).splitlines()), done
    broken = subprocess.run(words, input=text.replace('"} ', '" ', 1), capture_output=True, text=True)
    assert "error while linting" in broken.stderr
