"""``nccl-tuner plugin``: the tuner plugin."""

import click

from tuner import plugin
from tuner.cli import options
from tuner.cli.lazy import LazyGroup
from tuner.cli.output import print_json

VERBS = {
    "convert": "a decision table from or to NVIDIA's and NCCLX's formats",
    "lint": "what is wrong with a decision table, by itself and on a communicator",
}


@click.group(name="plugin", cls=LazyGroup, verbs=VERBS, package="tuner.cli.plugin")
def command() -> None:
    """The tuner plugin that NCCL loads to apply a decision table.

    \b
    NCCL_TUNER_PLUGIN=$(nccl-tuner plugin path) NCCL_TUNER_TABLE=$PWD/my.table torchrun train.py
    """


@command.command()
@options.json_option
def path(as_json: bool) -> None:
    """Prints the path of the plugin's shared object, for NCCL_TUNER_PLUGIN.

    \b
    export NCCL_TUNER_PLUGIN=$(nccl-tuner plugin path)
    """
    found = str(plugin.path())
    if as_json:
        print_json({"path": found})
    else:
        click.echo(found)
