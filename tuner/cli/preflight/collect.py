"""``nccl-tuner preflight collect``: the record of one rank."""

import os
from pathlib import Path

import click

from tuner.base.errors import BadInput
from tuner.jobs.preflight import collect


@click.command(name="collect")
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="DIR")
@click.option(
    "--library", type=click.Path(path_type=Path), metavar="FILE", help="The libnccl.so.2 that the job loads, if known."
)
@click.option("--script", is_flag=True, help="Print the one file that does the same with Python alone.")
def command(folder: Path | None, library: Path | None, script: bool) -> None:
    """Writes what this rank would give NCCL to choose by into DIR, which all ranks share.

    Run it as the job runs, on every rank: in its container, with its variables. The rank is the launcher's (torchrun,
    mpirun, srun). No GPU is asked and no library loaded. Where nccl-tuner is not installed, copy the script there.

    \b
    srun nccl-tuner preflight collect /shared/preflight
    nccl-tuner preflight collect --script > preflight_collect.py
    torchrun --nproc-per-node 8 preflight_collect.py /shared/preflight
    """
    if script:
        click.echo(Path(collect.__file__).read_text("utf-8"), nl=False)
        return
    if folder is None:
        raise BadInput("no DIR; valid: a folder that all ranks share, or --script")
    made = collect.record(collect.Host(os.environ), None if library is None else str(library))
    try:
        click.echo(collect.written(str(folder), made))
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: {error.strerror}") from error
