"""Reads the channels of all ranks, and asks NCCL by which adapters they leave their nodes."""

from typing import Any

from tuner._native._sim import ffi
from tuner.oracle.child.memory import scalar, scalars
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import ChannelsMessage, RankMemory, ReadChannels

# Functions that answer with each host's own number of network devices (csrc/sim/merge.c). Without them, all hosts have
# as many as the host with the most, and the devices that a host lacks come before its own (csrc/sim/net.c).
COUNTS_OF_NETS = ("ncclTopoGetSharedState", "ncclNetGetDevCount")
ANY_PEER = 0  # NCCL's answer depends on the graph, not on the peer


def read(world: World, asked: ReadChannels) -> ChannelsMessage:
    """Reads the channels of every rank."""
    members, machine = world.start.comm.members, world.start.machine
    hosts = [machine.kind[kind] for kind in machine.kind_of_host]
    most = max(host.nets_per_host for host in hosts)
    counted_by_host = any(name in world.functions for name in COUNTS_OF_NETS)
    of_devices = [
        0 if counted_by_host else most - host.nets_per_host for host in hosts for _ in range(host.ranks_per_host)
    ]
    first_nets = [of_devices[device] for device in world.devices]
    nodes = ffi.cast("int *", scalar(world.comms[0], members["rankToNode"]))
    return ChannelsMessage(
        tuple(ffi.unpack(nodes, len(world.comms))),
        tuple(_Rank(world, asked, rank, first_net).memory() for rank, first_net in enumerate(first_nets)),
        tuple(scalars(comm, members) for comm in world.comms),
    )


class _Rank:
    def __init__(self, world: World, asked: ReadChannels, rank: int, first_net: int) -> None:
        self.world, self.asked, self.rank, self.first_net = world, asked, rank, first_net
        self.comm, self.members = world.comms[rank], world.start.comm.members

    def number(self, name: str) -> int:
        """The value of a member of the rank's communicator."""
        return int(scalar(self.comm, self.members[name]))

    def memory(self) -> RankMemory:
        """The rank's channels, and on several nodes its adapters."""
        at, nvls_channels = self.world.start.ring, self.number("nvlsChannels")
        count, start = max(self.number("nChannels"), nvls_channels), self.comm + at.channels
        channels = tuple(scalars(start + number * at.channel_bytes, self.asked.members) for number in range(count))
        if self.number("nNodes") == 1:
            return RankMemory(channels, {}, ())
        begins_nvls = [number < nvls_channels and channels[number][self.asked.head] >= 0 for number in range(count)]
        return RankMemory(
            channels,
            {
                name: tuple(
                    self.adapter(graph, number) if name != "nvls" or begins_nvls[number] else None
                    for number in range(count)
                )
                for name, graph in self.asked.graphs.items()
            },
            self.pat_channels(),
        )

    def pat_channels(self) -> tuple[tuple[int, int], ...]:
        """The channels that NCCL would connect for PAT, per peer, if each node has one rank. Nothing is connected
        here."""
        ranks = self.number("nRanks")
        if self.asked.connect_pat is None or self.number("maxLocalRanks") > 1:
            return ()
        connect = ffi.cast("int (*)(uintptr_t)", self.world.base + self.asked.connect_pat)
        if result := connect(self.comm):
            raise Failure(f"ncclTransportPatConnect of rank {self.rank} returned {self.world.error(result)}")
        noted = (ffi.cast("uint64_t *", self.number(name)) for name in ("connectSend", "connectRecv"))
        send, receive = (ffi.unpack(bits, ranks) for bits in noted)
        return tuple(zip(send, receive, strict=True))

    def adapter(self, algorithm: int, channel: int) -> tuple[int, int] | None:
        """The adapter on a channel of a graph, and the rank that sends to it; None if NCCL has no adapter there."""
        graph = self.world.graphs_of(self.rank)[0] + algorithm * self.world.start.graph.bytes
        identity, net, relay = (ffi.new(kind) for kind in ("int64_t *", "int *", "int *"))
        given: tuple[Any, ...] = (identity, net, relay) if self.asked.gives_id else (net, relay)
        types = ", ".join("int64_t *" if each is identity else "int *" for each in given)
        function = ffi.cast(
            f"int (*)(uintptr_t, int, uintptr_t, int, int, {types})", self.world.base + self.asked.adapter_of
        )
        result = function(self.comm, self.rank, graph, channel, ANY_PEER, *given)
        return None if result else (net[0] - self.first_net, relay[0])
