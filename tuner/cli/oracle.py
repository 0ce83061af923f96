"""``nccl-tuner oracle``: the real libnccl on simulated GPUs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.answers import library
from tuner.cli import options
from tuner.cli.command import FILE, Group
from tuner.cli.output import json_wanted, print_json, progress, show

if TYPE_CHECKING:
    from tuner.oracle.conformance.learn import AnsweredBefore, Learning

VERBS = {
    "run": "runs an unchanged program that calls NCCL on simulated GPUs",
    "learn": "learns the constants and rules of an unknown libnccl",
}


@click.group(name="oracle", cls=Group, verbs=VERBS, modules="oracle")
def command() -> None:
    """Runs the real libnccl of a release without a GPU, on simulated devices.

    With --libnccl, pick, graphs and table show its answers, and diff shows what only it knows.

    \b
    nccl-tuner oracle run --machine dgx-h100 --nccl 2.28.9 -- ./all_reduce_perf -g 8 -c 0
    """


@click.command(name="run", cls=options.Command, context_settings={"ignore_unknown_options": True})
@options.communicator_options(without=["graphs", "constants", "ranks", "shared"], build=True)
@options.option(
    "--processes-per-node",
    "With several nodes: how many processes of the program run on each node. [default: one per GPU]",
    type=click.IntRange(min=1),
)
@lambda function: options.json_option(function, "Print JSON; the program's own output then goes to stderr.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(
    program: tuple[str, ...],
    processes_per_node: int | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Runs an unchanged program that calls NCCL on simulated GPUs, and exits with its exit code. No kernel runs.

    \b
    nccl-tuner oracle run --machine dgx-h100 --nccl 2.28.9 -- ./all_reduce_perf -g 8 -c 0
    """
    described = communicator.scenario()
    ended = library.run(described, program, processes_per_node, to_stderr=json_wanted())
    if json_wanted():
        print_json(ended)
    click.get_current_context().exit(ended.exit_code)


@click.command(name="learn", cls=options.Command)
@click.argument("path", metavar="LIBNCCL", type=FILE)
@options.json_option
def learn_command(path: Path) -> None:
    """Learns the constants and rules of a libnccl that nccl-tuner does not know: a new release, a vendor's build, your
    own patch.

    Finds the nearest known release, reads the tables that the library contains as data, and searches for values and
    rules with which the emulator gives the library's answers. What was learnt is kept, so that you can use LIBNCCL as a
    release (--nccl LIBNCCL). If answers for this release were derived from its source or from neighbouring releases
    until now, it says how many of them were right. Exit code 1 if something differs that no known rule explains; each
    such case is shown.

    \b
    nccl-tuner oracle learn /usr/lib/x86_64-linux-gnu/libnccl.so.2
    """
    from tuner.oracle.conformance.learn import learn

    learning = learn(path, progress=progress)
    show(learning, print_learning)
    if not learning.exact:
        click.get_current_context().exit(1)


def print_learning(learning: "Learning") -> None:
    """Prints the verdict, what differs from the parent, and each case that no trial explains."""
    compared, equal = sum(learning.compared.values()), sum(learning.matched.values())
    verdict = "exact" if learning.exact else "differs"
    click.echo(f"{verdict}: learnt from {learning.parent}; {equal:,} of {compared:,} compared values are equal")
    click.echo(f"NCCL {learning.name}, {learning.file}")
    for key, value in learning.changes.items():
        click.echo(f"  {key} = {value}")
    if learning.before is not None:
        _print_before(learning.before)
    for each in learning.differing:
        click.echo(f"\n{each.part}, {each.cases:,} cases; the smallest: {each.communicator}, {each.where}")
        click.echo(f"  emulator {each.emulator}, libnccl {each.libnccl}")
        for step in each.steps:
            click.echo(f"    {step}")
        if each.rules:
            click.echo(f"  one of these rules differs: {', '.join(each.rules)}")
        for source in each.sources:
            click.echo(f"  read {source}")


def _print_before(before: "AnsweredBefore") -> None:
    """Prints how many of the previous answers for this release were right."""
    compared, equal = sum(before.compared.values()), sum(before.matched.values())
    click.echo(
        f"\nuntil now, answers for this release were given {before.standing}: {equal:,} of {compared:,} were right"
    )
    for each in before.wrong:
        click.echo(f"  wrong on {each}")
    for each in before.refused:
        click.echo(f"  no answer on {each}")
    for key, (said, has) in before.values.items():
        click.echo(f"  {key}: the answer was {said}, and the library has {has}")
