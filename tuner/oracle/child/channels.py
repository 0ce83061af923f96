"""Reads the channels of all ranks, and asks NCCL by which adapters they leave their nodes."""

from typing import Any

from tuner._native._sim import ffi
from tuner.oracle.child.memory import channel, scalar, scalars
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import ChannelsMessage, RankMemory

# Functions that answer with each host's own number of network devices (csrc/sim/merge.c). Without them, all hosts have
# as many as the host with the most, and the devices that a host lacks come before its own (csrc/sim/net.c).
COUNTS_OF_NETS = ("ncclTopoGetSharedState", "ncclNetGetDevCount")
ANY_PEER = 0  # NCCL's answer depends on the graph, not on the peer
ADAPTER_OF = "ncclTopoGetNetDev"  # says by which adapter a rank leaves its node
HEAD = "nvls.headRank"  # -1 for ranks without an adapter of NVLS
MEMBERS = (
    "ring.prev",
    "ring.next",
    "tree.up",
    "tree.down",
    "collnetChain.up",
    "collnetChain.down",
    "collnetDirect.headRank",
    "collnetDirect.nHeads",
    "collnetDirect.up",
    "collnetDirect.down",
    "collnetDirect.shift",
    HEAD,
    "nvls.nHeads",
    "nvls.treeUp",
    "nvls.treeDown",
)
GRAPHS = {"ring": 1, "tree": 0, "nvls": 4}  # the graphs whose adapters are asked for: NCCL_ALGO_*


def read(world: World) -> ChannelsMessage:
    """Reads the channels of every rank."""
    symbols, machine = world.symbols, world.start.machine
    members = symbols.comm.members
    hosts = [machine.kind[kind] for kind in machine.kind_of_host]
    most = max(host.nets_per_host for host in hosts)
    counted_by_host = any(name in symbols.functions for name in COUNTS_OF_NETS)
    of_devices = [
        0 if counted_by_host else most - host.nets_per_host for host in hosts for _ in range(host.ranks_per_host)
    ]
    first_nets = [of_devices[device] for device in world.devices]
    nodes = ffi.cast("int *", scalar(world.comms[0], members["rankToNode"]))
    return ChannelsMessage(
        tuple(ffi.unpack(nodes, len(world.comms))),
        tuple(_Rank(world, rank, first_net).memory() for rank, first_net in enumerate(first_nets)),
        tuple(scalars(comm, members) for comm in world.comms),
    )


class _Rank:
    def __init__(self, world: World, rank: int, first_net: int) -> None:
        self.world, self.symbols, self.rank, self.first_net = world, world.symbols, rank, first_net
        self.comm, self.members = world.comms[rank], world.symbols.comm.members

    def number(self, name: str) -> int:
        """The value of a member of the rank's communicator."""
        return int(scalar(self.comm, self.members[name]))

    def memory(self) -> RankMemory:
        """The rank's channels, and on several nodes its adapters."""
        nvls_channels, members = self.number("nvlsChannels"), self.symbols.channel.members
        count, wanted = max(self.number("nChannels"), nvls_channels), {name: members[name] for name in MEMBERS}
        channels = tuple(scalars(channel(self.symbols, self.comm, number), wanted) for number in range(count))
        if self.number("nNodes") == 1:
            return RankMemory(channels, {}, ())
        begins_nvls = [number < nvls_channels and channels[number][HEAD] >= 0 for number in range(count)]
        return RankMemory(
            channels,
            {
                name: tuple(
                    self.adapter(graph, number) if name != "nvls" or begins_nvls[number] else None
                    for number in range(count)
                )
                for name, graph in GRAPHS.items()
            },
            self.pat_channels(),
        )

    def pat_channels(self) -> tuple[tuple[int, int], ...]:
        """The channels that NCCL would connect for PAT, per peer, if each node has one rank. Nothing is connected
        here."""
        ranks, function = self.number("nRanks"), "ncclTransportPatConnect"
        if function not in self.symbols.functions or self.number("maxLocalRanks") > 1:
            return ()
        connect = ffi.cast("int (*)(uintptr_t)", self.world.named(function))
        if result := connect(self.comm):
            raise Failure(f"{function} of rank {self.rank} returned {self.world.error(result)}")
        noted = (ffi.cast("uint64_t *", self.number(name)) for name in ("connectSend", "connectRecv"))
        send, receive = (ffi.unpack(bits, ranks) for bits in noted)
        return tuple(zip(send, receive, strict=True))

    def adapter(self, algorithm: int, channel: int) -> tuple[int, int] | None:
        """The adapter on a channel of a graph, and the rank that sends to it; None if NCCL has no adapter there."""
        graph = self.world.graphs_of(self.rank)[0] + algorithm * self.symbols.graph.bytes
        gives_id = any(ADAPTER_OF in name and "PlPi" in name for name in self.symbols.functions)
        identity, net, relay = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *"))
        given: tuple[Any, ...] = (identity, net, relay) if gives_id else (net, relay)
        types = ", ".join("int64_t *" if each is identity else "int *" for each in given)
        function = ffi.cast(f"int (*)(uintptr_t, int, uintptr_t, int, int, {types})", self.world.named(ADAPTER_OF))
        result = function(self.comm, self.rank, graph, channel, ANY_PEER, *given)
        return None if result else (net[0] - self.first_net, relay[0])
