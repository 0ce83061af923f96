"""``nccl-tuner job``: collectives of a job, measured while it runs."""

import click

from tuner.cli.command import LazyGroup

VERBS = {
    "read": "joins what the ranks of a job measured: transfer, waiting, stragglers",
    "plan": "a table whose arms a job explores: few, where most of its time is",
    "decide": "which arms are faster in the job, and the table of those",
}


@click.group(name="job", cls=LazyGroup, verbs=VERBS, package="tuner.cli.job")
def command() -> None:
    """Collectives of a job, measured while it runs by the profiler that is in the tuner plugin.

    \b
    export NCCL_PROFILER_PLUGIN=$NCCL_TUNER_PLUGIN NCCL_TUNER_JOB=/shared/job
    nccl-tuner job read /shared/job
    nccl-tuner job plan /shared/job --machine dgx-h100 --out explore.table
    nccl-tuner job decide /shared/job --out pod.table
    """
