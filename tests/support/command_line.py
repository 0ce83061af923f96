"""The command line in a process of its own, as a user runs it."""

import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("nccl-tuner")


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done
