"""Groups that name their commands, and such as know their one-liners without importing them."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from tuner.base.errors import did_you_mean, one_of
from tuner.cli.command import Command, Help, bold, note


class Group(Help, click.Group):
    """A group that answers an unknown command with those that there are.

    ``former`` maps names that commands had to those that they have now, from the outermost group on.
    """

    command_class = Command

    def __init__(self, *args: Any, former: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = former or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a name, of a former one with a note; BadParameter that says which there are for others."""
        if args[0] in self.former:
            return self._former(ctx, args)
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            valid = self.list_commands(ctx)
            raise click.UsageError(f"no command {args[0]!r}{did_you_mean(args[0], valid)}; {one_of(valid)}", ctx)
        return super().resolve_command(ctx, args)

    def _former(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        path = [each.info_name or "" for each in _upwards(ctx)][::-1][1:]
        now = self.former[args[0]]
        note(" ".join([*path, args[0]]), now)
        command: click.Command = ctx.find_root().command
        for name in now.split():
            assert isinstance(command, click.Group)
            found = command.get_command(ctx, name)
            assert found is not None, now
            command = found
        return now, command, args[1:]


def _upwards(ctx: click.Context | None) -> list[click.Context]:
    return [] if ctx is None else [ctx, *_upwards(ctx.parent)]


class LazyGroup(Group):
    """``verbs`` maps a name to its one-liner; the module of that name in ``package`` has it as ``command``.

    ``sections`` are the same verbs below the headings of the help. ``default`` completes arguments that begin with none
    of the commands.
    """

    def __init__(
        self,
        *args: Any,
        verbs: dict[str, str],
        package: str,
        sections: dict[str, dict[str, str]] | None = None,
        default: Callable[[list[str]], list[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs
        self.package = package
        self.sections = sections or {"Commands": verbs}
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments as click does, after the default command has been put before them where none is named."""
        own = {*self.list_commands(ctx), *self.former, *ctx.help_option_names}
        if self.default is not None and args and args[0] not in own:
            args = self.default(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.verbs]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.verbs:
            return super().get_command(ctx, name)
        with _one_thread():
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes as click does, but from the one-liners: click would import every command for its help."""
        says = {name: command.get_short_help_str() for name, command in self.commands.items()} | self.verbs
        names = [CompletionItem(name, help=text) for name, text in says.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
        width = max(map(len, [*self.verbs, *self.commands]))
        for heading, verbs in self.sections.items():
            with formatter.section(bold(heading)):
                rows = [(name.ljust(width), text) for name, text in [*own, *verbs.items()]]
                formatter.write_dl(rows)
            own = []


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy's OpenBLAS, while it loads, starts no thread for each core: no answer multiplies matrices of any size."""
    if (given := "OPENBLAS_NUM_THREADS") in os.environ:
        yield
        return
    os.environ[given] = "1"
    try:
        yield
    finally:
        del os.environ[given]  # programs that a command starts have their own say
