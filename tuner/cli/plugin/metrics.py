"""``nccl-tuner plugin metrics``: the counts of running jobs for Prometheus."""

import os
from pathlib import Path

import click

from tuner.base.files import write_text
from tuner.cli import options
from tuner.plugin import live


@click.command(name="metrics", cls=options.Command)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.prom",
    help="A file that is replaced at once, in the folder of the node exporter's textfile collector.",
)
def command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Prints the counts that lie in DIR as Prometheus reads them; DIR is what NCCL_TUNER_LIVE names in the job.

    \b
    nccl-tuner plugin metrics /dev/shm/nccl-tuner --out /var/lib/node_exporter/nccl_tuner.prom
    """
    text = live.metrics(live.read(folders))
    if out is None:
        click.echo(text, nl=False)
    else:
        begun = out.with_name(f".{out.name}.{os.getpid()}")  # the collector reads *.prom
        write_text(begun, text)
        begun.replace(out)
