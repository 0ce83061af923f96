"""``nccl-tuner regressions``: upgrades after which people saw less performance, and what this tool says of each."""

import textwrap

import click

from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.layout import width_to_fit
from tuner.cli.output import print_json
from tuner.cli.release_names import exact
from tuner.release.regressions import between, regressions

VERDICTS = {
    "explains": "explains it",
    "partly": "explains it partly",
    "cannot": "cannot explain it",
}


@click.command(name="regressions", cls=options.Command)
@click.argument("releases", nargs=-1, metavar="[BEFORE AFTER]")
@options.json_option
def command(releases: tuple[str, ...], as_json: bool) -> None:
    """Upgrades after which people saw less performance: the thread, and what this tool says about it.

    With two releases those that AFTER has and BEFORE does not. Each names commands to try, with a machine like the
    thread's.

    \b
    nccl-tuner regressions
    nccl-tuner regressions 2.22.3 2.27.7 --json
    """
    if len(releases) not in (0, 2):
        raise BadInput(f"{len(releases)} releases; valid: none, or BEFORE AFTER")
    before_after = [exact(name) for name in releases]
    known = between(before_after[0], before_after[1]) if releases else list(regressions())
    if as_json:
        print_json(known)
        return
    width = width_to_fit() or 100
    for one in known:
        click.echo(f"{one.first}{f' to before {one.fixed}' if one.fixed else ''}: {one.title}\n  {one.thread}")
        for text in (f"thread: {one.says}", f"nccl-tuner {VERDICTS[one.verdict]}: {one.shows}"):
            click.echo(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    "))
        for run in one.runs:
            click.echo(f"  $ nccl-tuner {run.command}")
        click.echo()
    if not known:
        click.echo(f"none known that {releases[1]} has and {releases[0]} does not")
