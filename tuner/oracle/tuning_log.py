"""NCCL's log lines about one collective: which algorithm and protocol it took."""

import re
from dataclasses import dataclass

from tuner.base.errors import OracleFailed
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.scenario.logs import choice

# 2.27 and later, of a kernel on symmetric windows
_SYMMETRIC = re.compile(rb"\[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels \d+ nthreads \d+(?: nWorks (\d+))?")

# Algorithms by ncclPattern_t, as NCCL 2.18 to 2.32 use it.
PATTERNS = {
    "Ring": Algorithm.Ring,
    "RingTwice": Algorithm.Ring,
    "PipelineFrom": Algorithm.Ring,
    "PipelineTo": Algorithm.Ring,
    "TreeUp": Algorithm.Tree,
    "TreeDown": Algorithm.Tree,
    "TreeUpDown": Algorithm.Tree,
    "CollnetChain": Algorithm.CollNetChain,
    "CollnetDirect": Algorithm.CollNetDirect,
    "Nvls": Algorithm.NVLS,
    "NvlsTree": Algorithm.NVLSTree,
    "PatUp": Algorithm.PAT,
    "PatDown": Algorithm.PAT,
}


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """A line of the log that says what NCCL chose for a call."""

    bytes: int  # as logged: count times type size, per rank for AllGather and ReduceScatter
    algorithm: Algorithm
    protocol: Protocol
    channel_lo: int | None
    channel_hi: int | None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class SymmetricKernel:
    """A line of the log about a symmetric kernel: its name, its calls' counts in bytes, added up, and their number."""

    name: str
    bytes: int
    calls: int


def choices(log: bytes) -> list[TunedChoice]:
    """Every choice in a piece of NCCL's log, in its order; the later and fuller kind of line where there are both."""
    lines = [made for line in log.decode(errors="replace").splitlines() if (made := choice.printed(line))]
    planned = [line for line in lines if line.planned]
    return [
        TunedChoice(
            line.bytes,
            algorithm(line.algorithm),
            protocol(line.protocol),
            line.channel_lo,
            line.channel_hi,
            None if line.collective is None else choice.collective(line.collective),
        )
        for line in planned or lines
    ]


def symmetric_kernels(log: bytes) -> list[SymmetricKernel]:
    """The symmetric kernels that a piece of NCCL's log names, in their order."""
    return [SymmetricKernel(match[2].decode(), int(match[1]), int(match[3] or 1)) for match in _SYMMETRIC.finditer(log)]


def algorithm(text: str) -> Algorithm:
    """An algorithm by number, or by NCCL's spelling in logs and kernel names; OracleFailed for any other.

    Such as ``COLLNET_DIRECT``, ``NVLS_TREE``, ``NVLSTree``.
    """
    known = choice.algorithm(text)
    if known is None:
        raise OracleFailed(f"NCCL named an algorithm this project does not know: {text}")
    return known


def protocol(text: str) -> Protocol:
    """A protocol by number, or by NCCL's spelling, in any case; OracleFailed for any other."""
    known = choice.protocol(text)
    if known is None:
        raise OracleFailed(f"NCCL named a protocol this project does not know: {text}")
    return known
