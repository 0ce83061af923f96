"""``nccl-tuner plugin env``, ``path``, ``switch``: how jobs load the plugin, and its table."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tuner import plugin, release
from tuner.base.errors import BadInput, one_of
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.communicator_options import release_option
from tuner.cli.output import shown_as_json
from tuner.plugin import headers, loading, rollout
from tuner.plugin.formats import convert as formats
from tuner.plugin.table.values import VALID


@click.command(name="path", cls=options.Command)
@options.json_option
def path_command() -> None:
    """Prints the path of the plugin's shared object, for NCCL_TUNER_PLUGIN.

    \b
    export NCCL_TUNER_PLUGIN=$(nccl-tuner plugin path)
    """
    installed = str(plugin.path())
    if not shown_as_json({"path": installed}):
        click.echo(installed)


@click.command(name="env", cls=options.Command)
@options.under(
    "Rolled out, decided once for the job",
    "--switch",
    "--canary",
    "--percent",
    "--canary-jobs",
    "--canary-hosts",
    "--job",
    "--job-hosts",
    "--signature",
    "--signers",
    "--identity",
)
@release_option("NCCL release. [default: the installed nvidia-nccl wheel's; without one, the newest]")
@options.file_option("--table", "FILE", "The decision table to apply.")
@options.flag("--strict", "Let a communicator fail if its table cannot be read.")
@options.option("--next", "following", "The tuner to ask if no row matches: a path, a name, or none.", metavar="TUNER")
@options.file_option("--live", "DIR", "A folder into which the plugin writes its counts while the job runs.")
@options.file_option("--switch", "FILE", "The file of the switch, which all ranks must see (see 'plugin switch').")
@options.file_option("--canary", "FILE", "A canary: another table that only some jobs get.")
@options.option(
    "--percent", "Percentage of jobs that get the canary's table, chosen by the job's name.", type=float, default=0.0
)
@options.file_option("--canary-jobs", "FILE", "Names of jobs that get the canary's table.")
@options.file_option("--canary-hosts", "FILE", "Hosts whose jobs get the canary's table.")
@options.option(
    "--job",
    "The job's name, which must be the same on all its ranks. [default: that of Slurm, torchrun ...]",
    metavar="NAME",
)
@options.option(
    "--job-hosts", "Names of the job's hosts, separated by blanks.", metavar="NAMES", default="", show_default=False
)
@options.file_option("--signature", "FILE", "The file with the table's signature.")
@options.file_option("--signers", "FILE", "A file with the allowed signers, or a public key.")
@options.option("--identity", "The one of the allowed signers that must have signed the table.", metavar="NAME")
@options.json_option
def env_command(nccl: str | None, table: Path | None, strict: bool, following: str | None, **given: Any) -> None:
    """Prints the variables that make a release of NCCL load the plugin, as lines for a shell.

    With --table it also prints the SHA-256 of the table, and the plugin then refuses any other table. Run it once per
    job, in the script whose variables all ranks share, because it decides whether the job gets the canary's table and
    records when the job began. If a signature is not valid, it prints nothing and the exit code is 1.

    \b
    eval "$(nccl-tuner plugin env --table my.table)"
    """
    chosen = release.load(nccl or _installed() or release.names()[-1])
    table, why = _table_of_job(table, **given)
    if why:
        click.echo(f"note: {table}: {why}", err=True)
    if given["signature"] is not None and table is not None:
        _check_signature(table, given["signature"], given["signers"], given["identity"])
    timed = False
    if table is not None:
        read = formats.read(table)
        if read.format not in formats.OF_THE_PLUGIN:
            raise BadInput(f"{table}: the plugin does not read {read.format} ({one_of(formats.OF_THE_PLUGIN)})")
        timed = VALID in read.table.provenance
        for finding in (*headers.check_release(read.table, chosen.name), *headers.check_who_asks(read.table, chosen)):
            click.echo(f"{read.place(finding.line)}: {finding.severity}: {finding.reason}", err=True)
    variables = loading.environment(chosen, plugin.path(), table, strict, following)
    variables.set.update(loading.job_settings(given["live"], given["switch"], timed))
    if not shown_as_json({"release": chosen.name, "set": variables.set, "prepend": variables.prepend}):
        click.echo("\n".join(variables.exports()))


def _table_of_job(
    table: Path | None,
    canary: Path | None,
    percent: float,
    canary_jobs: Path | None,
    canary_hosts: Path | None,
    job: str | None,
    job_hosts: str,
    **_: Any,
) -> tuple[Path | None, str | None]:
    if canary is None:
        return table, None
    name = job or rollout.job_name(os.environ)
    if name is None:
        known = one_of(rollout.JOB_VARIABLES)
        raise BadInput(
            f"a canary is chosen by the job's name, which must be the same on all ranks: give --job NAME, or {known}"
        )
    jobs, hosts = (rollout.names(path) if path else () for path in (canary_jobs, canary_hosts))
    why = rollout.gets_canary(rollout.Canary(canary, percent, jobs, hosts), name, job_hosts.split())
    return (canary, why) if why else (table, None)


def _check_signature(table: Path, signature: Path, signers: Path | None, identity: str | None) -> None:
    if signers is None:
        raise BadInput("--signature needs --signers")
    if wrong := rollout.verify(table, signature, signers, identity):
        click.echo(f"nccl-tuner: {table}: {wrong}", err=True)
        raise SystemExit(1)


@click.command(name="switch", cls=options.Command)
@click.argument("file", type=FILE)
@click.argument("state", type=click.Choice(["off", "on", "mend"]))
@options.option(
    "--margin",
    "margin_s",
    "Seconds from now until the switch takes effect: enough for all nodes to see the file, plus the difference "
    "of their clocks.",
    type=int,
    default=rollout.LEAST_MARGIN_S,
)
@options.option(
    "--reason",
    "why",
    "Why the table is switched on or off, in one line; it is written into FILE.",
    default="",
    show_default=False,
)
def switch_command(file: Path, state: str, margin_s: int, why: str) -> None:
    """Turns the plugin's table off, or on again, for jobs that begin from now on; also repairs the file of the switch.

    FILE is what NCCL_TUNER_SWITCH names, which all nodes see; it has to be there before the first job. Running jobs
    keep their state, since ranks that read the file at different moments would choose differently: restart jobs that
    must change. A line takes effect after the margin, or at the last line's time if that is later. `mend` repairs a
    file that the plugin refuses, and drops lines whose time is more than minutes ahead.

    \b
    nccl-tuner plugin switch /shared/nccl-tuner.switch off --reason "all-to-all slower since Monday"
    """
    if state == "mend":
        changes = rollout.mend(file)
        click.echo("\n".join(f"{file}: {each}" for each in changes) or f"{file}: nothing to repair")
        return
    asked_s = int(time.time()) + margin_s
    since_s = rollout.switch(file, state == "off", margin_s, why)
    if since_s > asked_s + 1:
        click.echo(
            "note: this is the time of the file's last line, which is later than your margin; `nccl-tuner "
            f"plugin switch {file} mend` removes that line",
            err=True,
        )
    click.echo(f"{file}: {state} for jobs that begin from {datetime.fromtimestamp(since_s, UTC):%Y-%m-%dT%H:%M:%SZ} on")


def _installed() -> str | None:
    from tuner.oracle import library

    return library.installed_release()
