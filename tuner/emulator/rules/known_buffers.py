"""Which buffers of calls a communicator can have: those that the release knows and NCCL takes, and are emulated."""

from tuner.base.errors import BadInput
from tuner.base.names import Buffers
from tuner.base.windows import Sides, WindowFlag, Windows, flag_words
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.rules import registered, symmetric_variables, windows
from tuner.release import first_with


def check_of(communicator: Communicator, request: Request) -> None:
    """BadInput for buffers of a call that the release does not have or refuses, or that are not emulated here."""
    check(communicator, request.buffers, request.windows)
    if request.in_place and request.buffers is Buffers.window and request.windows.sides is not Sides.both:
        raise BadInput("in place both buffers are one, and so in a window; valid: windows both, or out of place")


def check(communicator: Communicator, buffers: Buffers, of: Windows) -> None:
    """The same of any call, whose windows are ``of`` such a kind. Errors: BadInput."""
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
    if WindowFlag.CFT_COUNTED in flags and windows.are_made(communicator):
        raise BadInput(
            "window flag cft-counted: NCCL refuses it where a communicator does not support it, and which do is not "
            "known; valid: without"
        )
