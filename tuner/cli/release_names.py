"""Releases as options and arguments take them: in any spelling, a short one with a note on stderr."""

from collections.abc import Callable
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from tuner import release
from tuner.base.errors import UnknownRelease
from tuner.cli.command import F, note


def exact(text: str) -> str:
    """The release that ``text`` names, said on stderr, once a command, where it leaves out the last number.

    Errors: UnknownRelease.
    """
    name = release.named(text)
    said = click.get_current_context().meta.setdefault("tuner.cli.releases", set())
    if name.count(".") > text.count(".") and text not in said:
        said.add(text)
        click.echo(f"note: NCCL {text} is {name} here, the newest of {text}", err=True)
    return name


class ReleaseName(click.ParamType):  # type: ignore[type-arg]
    """A release that has a table, or where not ``only_known`` any other as it is spelled."""

    name = "release"

    def __init__(self, only_known: bool = True) -> None:
        self.only_known = only_known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # as options are that were not given
            return value
        try:
            return ",".join(map(exact, str(value).split(",")))  # budget takes several
        except UnknownRelease:
            if self.only_known:
                raise
            return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in release.names() if name.startswith(incomplete)]


def release_option(
    says: str, *names: str, only_known: bool = True, multiple: bool = False, default: str | None = None
) -> Callable[[F], F]:
    """``--nccl RELEASE``, as the parameter ``nccl`` or the one ``names`` gives."""
    kind = ReleaseName(only_known)
    return click.option("--nccl", *names, type=kind, metavar="RELEASE", multiple=multiple, default=default, help=says)


class Change(click.ParamType):  # type: ignore[type-arg]
    """KEY=VALUE; a former key becomes its own, and a short release its newest, each with a note."""

    name = "change"
    FORMER: ClassVar = {"layer": "constants"}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key, equals, given = str(value).partition("=")
        if key == "nccl" and given:
            return f"nccl={exact(given)}"
        if not equals or key not in self.FORMER:
            return str(value)
        note(f"{key}=", f"{self.FORMER[key]}=")
        return f"{self.FORMER[key]}={given}"
