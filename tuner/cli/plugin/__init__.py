"""``nccl-tuner plugin``: the tuner plugin."""

from pathlib import Path

import click

from tuner import plugin, release
from tuner.base.errors import BadInput, one_of
from tuner.cli import options
from tuner.cli.lazy import LazyGroup
from tuner.cli.output import print_json
from tuner.cli.release_names import release_option
from tuner.plugin import headers, loading
from tuner.plugin.formats import convert

VERBS = {
    "convert": "a decision table from or to NVIDIA's and NCCLX's formats",
    "lint": "what is wrong with a decision table, by itself and on a communicator",
    "dry-run": "what a decision table makes of sizes, through the plugin's own code",
    "compile": "a decision table that picks as another release does, or by measurements",
    "stats": "what the plugin counted in a job: rows, sizes that no row decides, ranks that disagree",
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
    installed = str(plugin.path())
    if as_json:
        print_json({"path": installed})
    else:
        click.echo(installed)


@command.command()
@release_option("NCCL release. [default: the installed nvidia-nccl wheel's; without one, the newest]")
@click.option("--table", type=click.Path(path_type=Path), metavar="FILE", help="The decision table to apply.")
@click.option("--strict", is_flag=True, help="A table that cannot be read fails the communicator.")
@click.option(
    "--next", "following", metavar="TUNER", help="The tuner to ask where no row matches: a path, a name, or none."
)
@options.json_option
def env(nccl: str | None, table: Path | None, strict: bool, following: str | None, as_json: bool) -> None:
    """Prints the variables that make a release of NCCL load the plugin, as lines for a shell.

    With --table also the SHA-256 of its content: the plugin then takes no other. Give every rank the same lines; where
    each node writes its own, the hash is of its own file.

    \b
    eval "$(nccl-tuner plugin env --table my.table)"
    """
    chosen = release.load(nccl or _installed() or release.names()[-1])
    if table is not None:
        read = convert.read(table)
        if read.format not in convert.OF_THE_PLUGIN:
            raise BadInput(f"{table}: the plugin does not read {read.format} ({one_of(convert.OF_THE_PLUGIN)})")
        for finding in headers.check_release(read.table, chosen.name):
            click.echo(f"{read.place(finding.line)}: {finding.severity}: {finding.reason}", err=True)
    variables = loading.environment(chosen, plugin.path(), table, strict, following)
    if as_json:
        print_json({"release": chosen.name, "set": variables.set, "prepend": variables.prepend})
    else:
        click.echo("\n".join(variables.exports()))


def _installed() -> str | None:
    from tuner.oracle import library

    return library.installed_release()
