"""Has NCCL make a communicator of some ranks of the one that there is."""

import os
from typing import TYPE_CHECKING

from tuner._native._sim import ffi, lib
from tuner.oracle.messages import PartOffsets

if TYPE_CHECKING:
    from tuner.oracle.child.world import World

SOCKET_BYTES = 4096  # more than any of NCCL's own records of a socket has
ADDRESS_BYTES = 64
KEPT: list[object] = []  # what NCCL was given pointers to


def make(world: "World", at: PartOffsets) -> list[int]:
    """Addresses of the communicators of its ranks."""
    ranks = world.start.ranks
    if at.shares:
        for rank in range(ranks):
            _init_proxy(world, at, rank)
    layout = ffi.new("struct sim_part_layout *", (at.bootstrap, at.whole_ranks, at.proxy, at.shares))
    lib.sim_locate_part(layout)
    comms = ffi.new("void *[]", [ffi.cast("void *", comm) for comm in world.comms])
    results = ffi.new("int[]", ranks)
    by = lib.SIM_BY_SHRINK if at.by_shrinking else lib.SIM_BY_SPLIT
    if lib.sim_make_part(comms, ranks, at.ranks, len(at.ranks), by, results) != 0:
        raise world.failure(f"no threads for {ranks} ranks")
    for rank, result in enumerate(results):
        if result != 0:
            call = "ncclCommShrink" if at.by_shrinking else "ncclCommSplit"
            raise world.failure(f"{call} of rank {rank} returned {world.error(result)}")
    return [int(ffi.cast("uintptr_t", comms[number])) for number in range(len(at.ranks))]


def _init_proxy(world: "World", at: PartOffsets, rank: int) -> None:
    """The state of the proxy, which ranks that share resources have together; nothing is ever sent to it."""
    ranks, function = world.start.ranks, world.base + at.init_proxy
    socket, addresses = ffi.new("char[]", SOCKET_BYTES), ffi.new("char[]", ADDRESS_BYTES * ranks)
    hashes = ffi.new("uint64_t[]", [os.getpid() << 16] * ranks)
    KEPT.extend((socket, addresses, hashes))
    given = [ffi.cast("uintptr_t", world.comms[rank]), socket, addresses]
    if at.with_uds:
        result = ffi.cast("int (*)(uintptr_t, char *, char *, uint64_t *)", function)(*given, hashes)
    else:
        result = ffi.cast("int (*)(uintptr_t, char *, char *)", function)(*given)
    if result != 0:
        raise world.failure(f"ncclProxyInit of rank {rank} returned {world.error(result)}")
