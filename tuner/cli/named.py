"""Values of options that are names of NCCL's: members of the enumerations in :mod:`tuner.base.names`."""

from typing import Any

import click

from tuner.base.names import PeerCall, by_name


class Named(click.ParamType):  # type: ignore[type-arg]
    """A member of one of the enumerations, by NCCL's name in any case."""

    def __init__(self, members: Any, name: str) -> None:
        self.members = members
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return by_name(self.members, value, self.name)


class AnyCall(Named):
    """A collective, or a call that NCCL makes of sends and receives, for which it picks no algorithm."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        word = str(value).strip().lower().replace("_", "").replace("-", "")
        found = [call for call in PeerCall if call.name.lower() == word]
        return found[0] if found else super().convert(value, param, ctx)
