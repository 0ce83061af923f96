"""Issues collectives and returns what was observed."""

import os
from collections.abc import Sequence, Set
from dataclasses import astuple
from typing import Any

from tuner._native._sim import ffi, lib
from tuner.oracle.child import configuration, ring, works
from tuner.oracle.child.memory import channel, connectors, scalar
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import (
    Answers,
    CallMessage,
    CallsMessage,
    GroupAnswerMessage,
    GroupAnswers,
    GroupMessage,
    Groups,
    Read,
    RegistrationMessage,
    SetTable,
)


def issue(world: World, request: CallsMessage) -> Answers:
    """Issues the calls one by one, and stops at the first one that fails."""
    calls, how = _calls(request.calls), _how(world, request.simulated, request.captured)
    answers = ffi.new("struct sim_answer[]", len(calls))
    log_start = os.fstat(world.log_file).st_size
    _use_buffers(world, request.buffers)
    n = lib.sim_issue(how, calls, len(calls), answers)
    if n < 1:
        raise Failure("no address space for the buffers of the collective")
    failed = answers[n - 1].result
    return Answers(
        log_start=log_start,
        records=bytes(ffi.buffer(answers)),
        succeeded=n - (failed != 0),
        error=f"NCCL returned {world.error(failed)}" if failed else None,
    )


def issue_group(world: World, request: GroupMessage) -> GroupAnswerMessage:
    """Issues all calls in one group."""
    _use_buffers(world, request.buffers)
    connect(world, request.rank, request.peers)
    calls, how = _calls(request.calls), _how(world, captured=request.captured, rank=request.rank)
    lib.sim_keep_proxy_operations(world.symbols.operation.bytes if request.in_full else 0)
    answer = ffi.new("struct sim_answer *")
    log_start = os.fstat(world.log_file).st_size
    if lib.sim_issue_group(how, calls, len(calls), answer) != 0:
        raise Failure("no address space for the buffers of the collectives")
    record, failed = answer.record, answer.result
    return GroupAnswerMessage(
        log_start=log_start,
        log_end=answer.log_bytes,
        kernels=_copy(lib.sim_kernels(), record.kernels),
        operations=_copy(lib.sim_operations(), record.operations),
        questions=_copy(lib.sim_questions(), record.questions),
        works=works.read(world.symbols, world.base, record.kernels) if request.in_full else (),
        proxy_operations=_proxy_operations() if request.in_full else b"",
        error=f"NCCL returned {world.error(failed)}" if failed else None,
    )


def issue_groups(world: World, request: Groups) -> GroupAnswers:
    """Issues one group after the other, and stops at the first one that fails."""
    answers: list[GroupAnswerMessage] = []
    for group in request:
        answers.append(issue_group(world, group))
        if answers[-1].error is not None:
            break
    return tuple(answers)


def _calls(calls: Sequence[CallMessage]) -> Any:
    version = configuration.version()
    return ffi.new(
        "struct sim_call[]",
        [(*astuple(call)[:-1], configuration.of_call(call.configuration, version)) for call in calls],
    )


def _how(world: World, simulated: bool = False, captured: bool = False, rank: int = 0) -> Any:
    world.acknowledge_work(rank)
    comm = ffi.cast("void *", world.comms[rank])
    return ffi.new("struct sim_issue *", [comm, world.devices[rank], world.log_file, simulated, captured])


def release_buffers(world: World) -> None:
    """Deregisters all buffers and windows of the communicators."""
    for kind in (lib.SIM_REGISTERED, lib.SIM_WINDOW):
        _register(world, RegistrationMessage(kind, sides=0))


def _use_buffers(world: World, wanted: RegistrationMessage) -> None:
    if wanted.kind != lib.SIM_PLAIN:
        ring.connect(world)
    _register(world, wanted)


def _register(world: World, wanted: RegistrationMessage) -> None:
    comms = ffi.new("void *[]", [ffi.cast("void *", comm) for comm in world.comms])
    registration = ffi.new("struct sim_registration *", astuple(wanted))
    if (registered := lib.sim_use_buffers(comms, len(world.comms), registration)) > 0:
        raise Failure(f"registering the buffers returned {world.error(registered)}")


def _proxy_operations() -> bytes:
    size = ffi.new("uint64_t *")
    operations = lib.sim_proxy_operations(size)
    return bytes(ffi.buffer(operations, size[0])) if size[0] else b""


def _copy(items: Any, n: int) -> bytes:
    """The ``n`` items that a pointer points to, as bytes."""
    return bytes(ffi.buffer(items, n * ffi.sizeof(ffi.typeof(items).item))) if n else b""


# Marks a rank's connections to the peers of sends and receives as NCCL's transports would: over the network, or not.
# NCCL asks a connection for its transport, and whether it has a buffer for LL. NCCL's own transports are asked whether
# ranks can reach each other without the network. Connections over the network share one buffer, which is that of
# Simple.

CONNECTION = 1  # number of the connection for sends and receives; 0 is for collectives
LL = 0
WITHOUT_NETWORK = ("p2p", "shm")  # NCCL's transports within a node, in the order in which it asks them


def connect(world: World, rank: int, peers: Set[int]) -> None:
    """Marks the connections to these peers as made, in all channels for sends and receives."""
    symbols, comm = world.symbols, world.comms[rank]
    channels = scalar(comm, symbols.comm.members["p2pnChannels"])
    transport, connection = symbols.works["ncclTransport"], symbols.connector.members
    own_buffers = os.environ.get("NCCL_NET_SHARED_BUFFERS") == "0"  # ncclParamNetSharedBuffers, src/transport/net.cc
    network_has_ll = own_buffers or scalar(comm, symbols.comm.members["allocP2pNetLLBuffers"])
    for peer in sorted(peers - {rank}):
        by_network = not any(_reaches(world, f"{name}CanConnect", rank, peer) for name in WITHOUT_NETWORK)
        for number in range(channels):
            for end in ("send", "recv"):
                connector = connectors(symbols, channel(symbols, comm, number), peer, end)
                connector += CONNECTION * symbols.connector.bytes
                network = world.base + symbols.objects["netTransport"] + transport.structs[end]
                _write(connector + connection["transportComm"].offset, network if by_network else 1)
                has_ll = network_has_ll if by_network else True
                _write(connector + connection["conn.buffs"].offset + LL * ffi.sizeof("void *"), int(has_ll))


def _write(address: int, value: int) -> None:
    ffi.cast("uintptr_t *", address)[0] = value


def _reaches(world: World, can_connect: str, rank: int, peer: int) -> bool:
    """Asks one of NCCL's transports whether it can connect two ranks."""
    symbols, comm = world.symbols, world.comms[rank]
    function = ffi.cast("int (*)(int *, uintptr_t, void *, uintptr_t, uintptr_t)", world.named(can_connect))
    asks_communicator = any(name.startswith("_Z13p2pCanConnectPiP8ncclComm") for name in symbols.functions)
    asked = comm if asks_communicator else scalar(comm, symbols.comm.members["topo"])
    infos, info_bytes = scalar(comm, symbols.comm.members["peerInfo"]), symbols.works["ncclPeerInfo"].size_bytes
    answer = ffi.new("int *")
    result = function(answer, asked, ffi.NULL, infos + rank * info_bytes, infos + peer * info_bytes)
    if result:
        raise Failure(f"asking how rank {peer} is reached returned {world.error(result)}")
    return bool(answer[0])


# The forcing plugin, which NCCL has loaded: sets another table if one is given, and reports what the plugin did.


def force(request: SetTable | Read) -> bytes:
    """Sets the table of the forcing plugin, whose state exists once per process; returns its counts."""
    from tuner._native._force import ffi, lib

    if isinstance(request, SetTable):
        text = b"" if request.text is None else request.text.encode()
        wrong = lib.nccl_tuner_use_table(ffi.NULL if request.text is None else text, len(text))
        if wrong != ffi.NULL:
            raise Failure(f"table: {ffi.string(wrong).decode(errors='replace')}")
    seen = ffi.new("struct nccl_tuner_seen *")
    lib.nccl_tuner_see(seen)
    return bytes(ffi.buffer(seen))
