"""Values of options that are names of NCCL's: members of the enumerations in :mod:`tuner.base.names`."""

from typing import Any

import click

from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.names import Collective, PeerCall, by_name, peer_call

TAKING_ANY_CALL = "pick, group, diff, whatif, schedule"


class Named(click.ParamType):  # type: ignore[type-arg]
    """A member of one of the enumerations, by NCCL's name in any case."""

    def __init__(self, members: Any, name: str) -> None:
        self.members = members
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.members is Collective and (call := peer_call(value)) is not None:
            raise BadInput(
                f"{call.name}: NCCL makes it of sends and receives, and picks no algorithm; valid for it: "
                f"{TAKING_ANY_CALL}; valid here: {', '.join(each.name for each in Collective)}"
            )
        return by_name(self.members, value, self.name)


class AnyCall(Named):
    """A collective, or a call that NCCL makes of sends and receives, for which it picks no algorithm."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if (call := peer_call(value)) is not None:
            return call
        if str(value).lower().replace("_", "").replace("-", "") == "alltoallv":
            raise BadInput(f"{value}: AllToAll with unequal parts; valid: alltoall, and its parts by `pick --parts`")
        try:
            return super().convert(value, param, ctx)
        except BadInput:
            names = [each.name for kind in (Collective, PeerCall) for each in kind]
            raise BadInput(f"unknown {self.name} {value!r}{did_you_mean(str(value), names)}; {one_of(names)}") from None
