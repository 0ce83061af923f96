"""Where what a verb writes comes from."""

import shlex
import sys


def command_line() -> str:
    """This very call."""
    return shlex.join(["nccl-tuner", *sys.argv[1:]])
