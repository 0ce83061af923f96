"""What a communicator that was split off another may use at most, where it shares the resources of that one.

Without splitShare or shrinkShare of ncclConfig_t nothing here holds: NCCL makes the communicator as any other.
Source: ncclTopoPostset, src/graph/connect.cc; ncclNvlsSetup, src/transport/nvls.cc; ncclTopoComputeP2pChannels,
src/graph/paths.cc; computeBuffSizes, src/init.cc, v2.28.9-1.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput
from tuner.base.numerics import parse_long

if TYPE_CHECKING:
    from tuner.emulator.communicator import Communicator

VARIABLES = {"split": "NCCL_COMM_SPLIT_SHARE_RESOURCES", "shrink": "NCCL_COMM_SHRINK_SHARE_RESOURCES"}
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT


def shares(by: str, configured: bool, variables: Mapping[str, str]) -> bool:
    """Whether resources are shared: the variable counts before the configuration, and what is not 1 is 0."""
    given = variables.get(VARIABLES[by])
    number = UNDEFINED if given is None else parse_long(given)
    return configured if number in (None, UNDEFINED) else number == 1


def check(communicator: "Communicator") -> None:
    """BadInput where NCCL crashes: it sets no chunk of NVLS that is shared, which nodes of as many ranks do."""
    whole, chunk = communicator.shared, communicator.rules.nvls_chunk
    if whole is None or not chunk.unset_where_shared or not whole.nvls or not communicator.nvls:
        return
    if whole.local_ranks == communicator.local_ranks:
        raise BadInput(
            f"NCCL {communicator.release.name} crashes in NVLS that is shared with the communicator of all ranks, "
            "on as many ranks of a node; valid: NCCL_NVLS_ENABLE=0, or resources of its own"
        )


def channels(whole: "Communicator | None", count: int) -> int:
    """No more channels than the whole has."""
    return count if whole is None else min(count, whole.channels)


def channels_with_nvls(whole: "Communicator | None", count: int) -> int:
    """Channels once more after NVLS may have raised them, where the whole has NVLS."""
    return channels(whole, count) if whole is not None and whole.nvls else count


def nvls_channels(whole: "Communicator | None", count: int) -> int:
    """No more channels of NVLS than the whole has, where it has any."""
    return min(count, whole.nvls_channels) if whole is not None and whole.nvls else count
