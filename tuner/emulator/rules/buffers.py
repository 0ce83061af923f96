"""Buffers of connections, and the steps in which a call goes through them."""

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import int32
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules.call import Call

VARIABLES = {Protocol.LL: "NCCL_LL_BUFFSIZE", Protocol.LL128: "NCCL_LL128_BUFFSIZE", Protocol.Simple: "NCCL_BUFFSIZE"}
UNSET = -2
LL128_LINE, LL128_DATA = 16, 15  # numbers of 8 bytes in a line, and how many of them are data
STEPPING = (Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce)


def buffer_bytes(communicator: Communicator, protocol: Protocol) -> int:
    """The buffer of a connection. Source: computeBuffSizes, src/init.cc, v2.28.9-1."""
    limits = communicator.release.limits
    requested = int32(communicator.environment.number(VARIABLES[protocol], UNSET))
    if requested != UNSET:
        return requested
    if protocol is Protocol.LL:
        return limits.ll_buffer_bytes
    if protocol is Protocol.LL128:
        return limits.ll128_buffer_bytes
    on_arm = limits.simple_buffer_bytes_on_arm
    return on_arm if on_arm is not None and communicator.cpu_arch == "arm64" else limits.simple_buffer_bytes


def step_bytes(communicator: Communicator, protocol: Protocol) -> int:
    """One of the steps that a buffer has."""
    return buffer_bytes(communicator, protocol) // communicator.release.limits.buffer_steps


def chunk_and_slice_steps(call: Call) -> tuple[int, int]:
    """Steps of a chunk, and of a slice of it: more than one for Ring/Simple where every rank has its own part.

    Source: src/include/collectives.h, v2.28.9-1.
    """
    several = call.algo_proto == (Algorithm.Ring, Protocol.Simple) and call.request.collective in STEPPING
    steps = call.limits.buffer_steps
    return (steps // 2, steps // 4) if several else (1, 1)


def grain_bytes(protocol: Protocol, warp_size: int) -> int:
    """What chunks are multiples of. Source: ncclProtoGrainSize, src/include/device.h, v2.28.9-1."""
    if protocol is Protocol.LL:
        return 16
    return warp_size * 8 // LL128_LINE * LL128_DATA * 8 if protocol is Protocol.LL128 else 512
