"""Which options go with which is data of a command: every rule names options that the command has."""

import click
import pytest

from tests.support.command_line import subcommands
from tuner.base.errors import BadInput
from tuner.cli import everything
from tuner.cli.command import Command, excludes, flag, has, lacks, needs, only, option

RULED = [each for each in subcommands(everything) if isinstance(each, Command) and each.rules]


def test_several_commands_have_rules() -> None:
    assert len(RULED) >= 10


@pytest.mark.parametrize("command", RULED, ids=lambda each: str(each.name))
def test_rules_name_parameters_of_their_command(command: Command) -> None:
    names = {each.name for each in command.params}
    for rule in command.rules:
        assert {*rule.names} <= names, rule.words


@click.command(
    cls=Command,
    rules=(
        excludes("--fast", "slow", "pace", when=has("fast")),
        needs("--slow", "pace", when=lacks("slow")),
        only("--alone", "alone", when=has("alone")),
    ),
)
@flag("--fast", "Fast.")
@flag("--slow", "Slow.")
@flag("--alone", "Alone.")
@option("--pace", "Pace.", type=int, default=1)
def command(**_: object) -> None:
    """A command."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fast",), None),
        (("--slow", "--pace", "2"), None),
        (("--alone",), None),
        (("--fast", "--slow"), "--slow cannot be used with --fast: remove it"),
        (("--fast", "--slow", "--pace", "2"), "--slow, --pace cannot be used with --fast: remove them"),
        (("--pace", "1"), "--pace only applies with --slow: add --slow, or remove it"),
        (("--alone", "--slow"), "--slow cannot be used with --alone; these options can: --alone"),
    ],
)
def test_what_stands_on_the_command_line_is_looked_at(words: tuple[str, ...], said: str | None) -> None:
    if said is None:
        command.main(words, standalone_mode=False)
        return
    with pytest.raises(BadInput) as error:
        command.main(words, standalone_mode=False)
    assert str(error.value) == said
