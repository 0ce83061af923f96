"""Where what a verb writes comes from."""

import shlex
import sys
from datetime import UTC, datetime


def command_line() -> str:
    """This very call."""
    return shlex.join(["nccl-tuner", *sys.argv[1:]])


def today() -> str:
    return datetime.now(UTC).date().isoformat()
