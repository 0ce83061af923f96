"""Options that say of files of measured times what these do not say themselves."""

import click

from tuner.cli.command import F, stacked
from tuner.scenario import MOST_NODES
from tuner.times.readers.measured_table import Given


def measured_file_options(function: F) -> F:
    """The options that :func:`given_of_files` takes."""
    return stacked(
        function,
        click.option(
            "--nodes",
            type=click.IntRange(1, MOST_NODES),
            metavar="N",
            help="How many nodes took part, where the files do not say it.",
        ),
        click.option(
            "--gpus-per-node", type=click.IntRange(1), metavar="N", help="How many GPUs of each did, or of each tray."
        ),
        click.option(
            "--trays", type=click.IntRange(1), metavar="N", help="Instead of --nodes: trays of one NVLink domain."
        ),
        click.option("--collective", "program", default="", metavar="NAME", help="What was run, likewise."),
    )


def given_of_files(nodes: int | None, gpus_per_node: int | None, trays: int | None, program: str) -> Given:
    """What these options say of files."""
    return Given(nodes=nodes or trays, gpus_per_node=gpus_per_node, collective=program)
