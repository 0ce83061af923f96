"""Variables that a release does not list: those that only other releases read, and those that are not emulated."""

from collections.abc import Iterable
from functools import cache

from tuner.base.errors import did_you_mean
from tuner.release.reader import load, names
from tuner.release.schema import Release

# Set by containers (NVIDIA's images set NCCL_VERSION), builds and frameworks: no release of NCCL reads any of them.
NOT_NCCLS = frozenset(
    {
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_ROOT",
        "NCCL_ROOT_DIR",
        "NCCL_INCLUDE_DIR",
        "NCCL_LIB_DIR",
        "NCCL_LIBRARY",
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
    }
)
# Which network the bytes go over; ranks of one communicator need the same.
OF_THE_NETWORK = frozenset({"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE"})


def ignored(nccl: Release, variables: Iterable[str]) -> list[str]:
    """Of ``variables`` those that other releases read and this one does not: it takes no notice of them.

    A test looks for their names in each release's libnccl, and finds none.
    """
    unlisted = set(variables) - nccl.listed_variables - set(nccl.environment.search)
    return sorted(unlisted & _listed_anywhere()) if unlisted else []


def not_emulated(nccl: Release, variables: Iterable[str]) -> list[str]:
    """Of ``variables`` those that may reach a choice in a way that is not emulated.

    The search's own are among them: who has searched with them takes them out before.
    """
    unlisted = set(variables) - nccl.listed_variables - NOT_NCCLS
    return sorted(unlisted - set(ignored(nccl, unlisted)))


def nearest(nccl: Release, variable: str) -> str:
    """``; did you mean NCCL_ALGO?``, what to give instead, or nothing."""
    if variable in OF_THE_NETWORK:
        return (
            " (the topology's adapters say which network is taken: `topology`, `net_gbps`, `net_latency_us`; for "
            "sockets a topology dumped with them, or without the variable `change` gpudirect=off and `change` "
            "nic-gbps=GBPS)"
        )
    return did_you_mean(variable, sorted({*nccl.listed_variables, *nccl.environment.search}))


@cache
def _listed_anywhere() -> frozenset[str]:
    releases = [load(name) for name in names()]
    return frozenset().union(*(each.listed_variables | set(each.environment.search) for each in releases))
