"""``nccl-tuner plugin``: the tuner plugin."""

import click

from tuner.cli.command import Group

VERBS = {
    "env": "the variables that make NCCL load the plugin, for a shell",
    "path": "the plugin's shared object, for NCCL_TUNER_PLUGIN",
    "switch": "the plugin's table off or on, for jobs that begin from now on",
    "convert": "a decision table from or to NVIDIA's and NCCLX's formats",
    "lint": "what is wrong with a decision table: by itself, there, in libnccl",
    "dry-run": "what a table makes of sizes, through the plugin's own code",
    "compile": "a table that picks as another release does, or by measurements",
    "audit": "any tuner plugin, examined in the real libnccl: what it does wrong",
    "stats": "which rows decide, in jobs that ended or run, and where ranks differ",
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
