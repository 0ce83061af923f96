"""Bytes of a kernel's arguments. Source: ncclCommInit, src/init.cc, and src/include/device.h, v2.28.9-1."""

from tuner.base.numerics import as_size_t
from tuner.emulator.communicator import Communicator

VARIABLE, MOST_BYTES = "NCCL_WORK_ARGS_BYTES", 4096  # ncclMaxKernelArgsSize


def argument_bytes(communicator: Communicator) -> int:
    """Bytes that the arguments of a kernel may have."""
    return min(as_size_t(communicator.environment.number(VARIABLE, MOST_BYTES)), MOST_BYTES)
