"""``nccl-tuner plugin``: the tuner plugin."""

import click

from tuner.cli.command import Group

VERBS = {
    "env": "prints the variables that make NCCL load the plugin, for a shell",
    "path": "prints the path of the plugin's shared object, for NCCL_TUNER_PLUGIN",
    "switch": "turns the plugin's table off or on, for jobs that begin from now on",
    "convert": "converts a decision table from or to NVIDIA's and NCCLX's formats",
    "lint": "finds what is wrong with a decision table: in itself, or on a machine",
    "dry-run": "shows what a table decides for sizes, by the plugin's own code",
    "compile": "writes a table that picks as a release does, or by measured times",
    "audit": "examines any tuner plugin in the real libnccl for what it does wrong",
    "stats": "shows which rows decided in running or ended jobs, and whether ranks differ",
}
MODULES = {
    **dict.fromkeys(("env", "path", "switch"), "plugin.rollout"),
    **dict.fromkeys(("convert", "lint", "compile"), "plugin.tables"),
    "dry-run": "plugin.trials",
    "audit": "plugin.audit",
    "stats": "plugin.counters",
}


@click.group(
    name="plugin",
    cls=Group,
    verbs=VERBS,
    modules=MODULES,
)
def command() -> None:
    """The tuner plugin that NCCL loads to apply a decision table.

    \b
    NCCL_TUNER_PLUGIN=$(nccl-tuner plugin path) NCCL_TUNER_TABLE=$PWD/my.table torchrun train.py
    """
