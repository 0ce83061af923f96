"""Buffers of connections, and the steps in which a call goes through them."""

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, Protocol
from tuner.base.numerics import int32
from tuner.base.windows import Sides, WindowFlag, Windows, flag_words
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import registered, symmetric_variables
from tuner.emulator.rules.call import Call
from tuner.release import first_with

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


# Which buffers of calls a communicator can have: those that the release knows and NCCL takes, and are emulated.


def check_buffers_of(communicator: Communicator, request: Request) -> None:
    """BadInput for buffers of a call that the release does not have or refuses, or that are not emulated here."""
    check_buffers(communicator, request.buffers, request.windows)
    if request.in_place and request.buffers is Buffers.window and request.windows.sides is not Sides.both:
        raise BadInput("in place both buffers are one, and so in a window; valid: windows both, or out of place")


def check_buffers(communicator: Communicator, buffers: Buffers, of: Windows) -> None:
    """Checks buffers of any call, whose windows are ``of`` such a kind. Errors: BadInput."""
    if buffers is Buffers.plain:
        return
    release, values = communicator.release, communicator.environment.values
    if said := registered.missing(release, buffers):
        raise BadInput(said)
    if not release.rules.registered:
        return  # NCCL 2.18 registers what CUDA graphs capture for CollNet alone, and only if asked to
    if reaching := sorted(set(release.environment.registered_buffers) & set(values) - symmetric_variables.EMULATED):
        names = ", ".join(reaching)
        raise BadInput(f"{names}: emulated for plain buffers only, not for {buffers.name} ones")
    if communicator.collnet:
        raise BadInput(f"buffers {buffers.name}: not with CollNet; valid there: plain")
    if reason := registered.not_on_nodes(communicator, buffers):
        raise BadInput(f"buffers {buffers.name}: not {reason}; valid there: plain")
    if buffers is Buffers.window:
        _check_flags(communicator, of.flags)


def _check_flags(communicator: Communicator, flags: WindowFlag) -> None:
    """Source: ncclCommWindowRegister, src/dev_runtime.cc, as the binary of 2.32.3 has it."""
    release = communicator.release
    known = release.symmetric.window_flags
    for flag in flags:
        word = str(flag.name)
        if word not in known:
            since = first_with(lambda later, word=word: word in later.symmetric.window_flags)  # type: ignore[misc]
            raise BadInput(f"NCCL {release.name} has no NCCL_WIN_{word}; valid: {since} and later")
    if WindowFlag.COLL_SYMMETRIC | WindowFlag.GIN_ONLY in flags:
        raise BadInput(f"window flags {flag_words(flags)}: NCCL refuses these two together; valid: one of them")
    if WindowFlag.CFT_COUNTED in flags and symmetric_variables.are_made(communicator):
        raise BadInput(
            "window flag cft-counted: NCCL refuses it where a communicator does not support it, and which do is not "
            "known; valid: without"
        )
