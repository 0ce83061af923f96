"""``nccl-tuner job``: collectives of a job, measured while it runs."""

import click

from tuner.cli.command import LazyGroup

VERBS = {
    "read": "joins what the ranks of a job measured: transfer, waiting, stragglers",
}


@click.group(name="job", cls=LazyGroup, verbs=VERBS, package="tuner.cli.job")
def command() -> None:
    """Collectives of a job, measured while it runs by the profiler that is in the tuner plugin.

    \b
    export NCCL_PROFILER_PLUGIN=$NCCL_TUNER_PLUGIN NCCL_TUNER_JOB=/shared/job
    nccl-tuner job read /shared/job
    """
