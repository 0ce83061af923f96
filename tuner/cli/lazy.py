"""Groups that name their commands, and such as know their one-liners without importing them."""

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from tuner.base.errors import did_you_mean, one_of
from tuner.cli.command import Command


class Group(click.Group):
    """A group that answers an unknown command with those that there are."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown command is an error that says which there are."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            valid = self.list_commands(ctx)
            raise click.UsageError(f"no command {args[0]!r}{did_you_mean(args[0], valid)}; {one_of(valid)}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """``verbs`` maps a name to its one-liner; the module of that name in ``package`` has it as ``command``.

    ``sections`` are the same verbs below the headings of the help.
    """

    def __init__(
        self,
        *args: Any,
        verbs: dict[str, str],
        package: str,
        sections: dict[str, dict[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs
        self.package = package
        self.sections = sections or {"Commands": verbs}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.verbs]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.verbs:
            return super().get_command(ctx, name)
        module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does, but from the one-liners: click would import every command for its help."""
        says = {name: command.get_short_help_str() for name, command in self.commands.items()} | self.verbs
        names = [CompletionItem(name, help=text) for name, text in says.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
        for heading, verbs in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([*own, *verbs.items()])
            own = []
