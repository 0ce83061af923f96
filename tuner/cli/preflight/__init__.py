"""``nccl-tuner preflight``: whether all ranks of a job would choose the same, before it starts."""

import click

from tuner.cli.lazy import LazyGroup

VERBS = {
    "collect": "writes what this rank would give NCCL to choose by, as one JSON file; no GPU is asked",
    "check": "what differs between the ranks of a folder, and at which sizes they would part",
}


@click.group(name="preflight", cls=LazyGroup, verbs=VERBS, package="tuner.cli.preflight")
def command() -> None:
    """Whether all ranks would choose the same: ranks that do not, hang.

    \b
    srun nccl-tuner preflight collect /shared/preflight
    nccl-tuner preflight check /shared/preflight
    """
