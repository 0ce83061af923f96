"""Options that got another name: the former one works for one release more, and a note on stderr says the new one."""

from collections.abc import Mapping
from typing import Any, ClassVar

import click
from click.core import ParameterSource

from tuner.cli.release_names import exact


def note(former: str, name: str) -> None:
    """Says on stderr that a name has changed."""
    click.echo(f"nccl-tuner: {former} is now {name}; the former name will go with the next release", err=True)


class Renamed(click.Option):
    """An option with a ``former`` name, which help does not show."""

    def __init__(self, *declarations: Any, former: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """The former name as well, under a key of its own."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [self.former], dest=self.former, nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """The former name's value where that was given."""
        if self.former not in opts:
            return super().consume_value(ctx, opts)
        note(self.former, self.opts[-1])
        return super().consume_value(ctx, {**opts, str(self.name): opts[self.former]})


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
