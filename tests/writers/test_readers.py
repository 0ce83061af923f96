"""What is written for other programs, read by the real ones: metrics by promtool."""

import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run

INSPECTOR = Path(__file__).parents[2] / "docs" / "examples" / "inspector.log"

pytestmark = pytest.mark.live  # else it connects to no other computer


def test_promtool_takes_the_metrics(promtool: Path) -> None:
    text = run("budget", str(INSPECTOR), "--machine", "dgx-h100", "--nodes", "2", "--prometheus").stdout
    words = [str(promtool), "check", "metrics"]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    # It would have seconds for microseconds; it finds nothing else.
    assert all('use base unit "seconds"' in line for line in (done.stdout + done.stderr).splitlines()), done
    broken = subprocess.run(words, input=text.replace('"} ', '" ', 1), capture_output=True, text=True)
    assert "error while linting" in broken.stderr
