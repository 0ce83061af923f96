"""``nccl-tuner check``: the emulator against what really was."""

import click

from tuner.cli.lazy import LazyGroup

VERBS = {
    "libnccl": "against the real library: every cell, pick, channel and thread",
    "log": "against what the run of a log printed",
    "run": "against what a job's traces and counters say that ran",
}


@click.group(
    name="check",
    cls=LazyGroup,
    verbs=VERBS,
    package="tuner.cli.check",
    default=lambda arguments: ["libnccl", *arguments],
)
def command() -> None:
    """Compares the emulator, exactly. Exit code 1 if anything differs. 'check' alone means 'check libnccl'.

    \b
    nccl-tuner check allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check log nccl.log --comp-cap 8.0
    nccl-tuner check run trace.json.gz --log nccl.log
    """
