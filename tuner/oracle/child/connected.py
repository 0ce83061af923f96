"""Connects the ranks of a communicator as on the real machine, to count what libnccl requests from the devices.

This module runs as a separate program. Ranks meet over NCCL's sockets on the loopback device, and NCCL's transports and
proxies run. No data moves: network and devices only hand out resources.
"""

import sys
from dataclasses import astuple
from typing import Any

from tuner._native._sim import ffi, lib
from tuner.oracle.child import memory
from tuner.oracle.child.messages import Messages
from tuner.oracle.child.world import Failure, Loaded, check
from tuner.oracle.messages import CallMessage, Failed, RankBill, Read, Start

# Functions that other children replace because their ranks are never connected.
RUNS_HERE = frozenset(
    {
        "ncclTransportP2pSetup",
        "ncclTransportRingConnect",
        "ncclTransportTreeConnect",
        "ncclNvlsTreeConnect",
        "ncclNvlsBufferSetup",
        "ncclTransportCollNetSetup",
        "ncclCollNetChainBufferSetup",
        "ncclCollNetDirectBufferSetup",
        "ncclProxyCreate",
        "ncclProxyConnect",
        "ncclProxyCallBlocking",
        "ncclProxyShmUnlink",
        "ncclShmemAllgather",
    }
)
TOTAL = 3  # ncclStatGpuMemTotal (src/nccl.h.in, v2.29.7-1)


class ConnectedRanks(Loaded):
    """All ranks of one communicator, each in its own thread."""

    def __init__(self, start: Start) -> None:
        super().__init__(start, threads=False, kept=RUNS_HERE)
        self.record_operations()
        check(lib.sim_wait_for_peers(), "recv and accept")
        check(lib.sim_skip_zeros(), "memset and calloc")
        ranks = start.ranks
        self.comms, results = ffi.new("void *[]", ranks), ffi.new("int[]", ranks)
        if lib.sim_init_ranks(ranks, ffi.NULL, self.comms, results) != 0:
            raise Failure(f"no threads for {ranks} ranks")
        self.check(results, "ncclCommInitRank")

    def check(self, results: Any, what: str) -> None:
        """Raises Failure for the first rank whose result is an error."""
        for rank, result in enumerate(results):
            if result != 0:
                raise Failure(f"{what} of rank {rank} returned {self.error(result)}")

    def issue(self, call: CallMessage) -> list[int]:
        """Issues the call on all ranks; returns the number of blocks of each rank's kernel."""
        ranks = self.start.ranks
        results, blocks = ffi.new("int[]", ranks), ffi.new("int[]", ranks)
        issued = ffi.new("struct sim_call *", (*astuple(call)[:-1], 0))
        if lib.sim_issue_everywhere(self.comms, ranks, issued, results, blocks) != 0:
            raise Failure(f"no threads for {ranks} ranks")
        self.check(results, "the call")
        return list(blocks)

    def bill(self, blocks: list[int]) -> tuple[RankBill, ...]:
        """The current bill of every rank; ``blocks`` is indexed by rank."""
        bills = map(lib.sim_bill_of, range(self.start.ranks))
        return tuple(
            RankBill(bill.device_bytes, bill.peak_device_bytes, bill.host_bytes, self.counted(comm), own)
            for bill, comm, own in zip(bills, self.comms, blocks, strict=True)
        )

    def counted(self, comm: Any) -> int | None:
        """Bytes of device memory as NCCL itself counts them; None in releases up to 2.29.3, which do not count."""
        function = lib.sim_nccl_function(b"ncclCommMemStats")
        if function == ffi.NULL:
            return None
        value = ffi.new("uint64_t *")
        if result := ffi.cast("int (*)(void *, int, uint64_t *)", function)(comm, TOTAL, value):
            raise Failure(f"ncclCommMemStats returned {self.error(result)}")
        return int(value[0])


def serve(messages: Messages) -> None:
    """Serves requests: the first one initialises the ranks, each later one issues a call or reads connections."""
    world: ConnectedRanks | None = None
    while True:
        request = messages.receive()
        try:
            if world is None:
                world = ConnectedRanks(request)
                messages.send(world.bill([0] * request.ranks))
            elif request is Read.connections:
                comms = [int(ffi.cast("uintptr_t", comm)) for comm in world.comms]
                messages.send(memory.connections(world.symbols, comms))
            else:
                assert isinstance(request, CallMessage)
                messages.send(world.bill(world.issue(request)))
        except Failure as failure:
            messages.send(Failed(str(failure)))


if __name__ == "__main__":
    serve(Messages(int(sys.argv[1])))
