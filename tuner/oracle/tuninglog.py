"""NCCL's log lines about one collective: which algorithm and protocol it took."""

import re
from dataclasses import dataclass

from tuner.errors import OracleFailed
from tuner.names import Algorithm, Collective, Protocol

# 2.24 and later, when the collective is put into a plan
_PLANNED = re.compile(
    rb"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}",
)
# 2.18 to 2.23, when it is picked; numbers
_PICKED = re.compile(rb"(\d+) Bytes -> Algo (\d+) proto (\d+) time ([0-9.eE+-]+)")
# 2.27 and later, of a kernel on symmetric windows
_SYMMETRIC = re.compile(rb"\[Symmetric\]: \d+ Bytes -> Kernel (\w+) nchannels (\d+) nthreads (\d+)")


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
class Choice:
    bytes: int  # as logged: count times type size, per rank for AllGather and ReduceScatter
    algorithm: Algorithm
    protocol: Protocol
    channel_lo: int | None
    channel_hi: int | None
    collective: Collective | None = None


def choices(log: bytes) -> list[Choice]:
    """Every choice in a piece of NCCL's log, in its order; the later and fuller kind of line where there are both."""
    planned = [
        Choice(
            int(m[2]), algorithm(m[3].decode()), protocol(m[4].decode()), int(m[5]), int(m[6]),
            Collective[m[1].decode()],
        )
        for m in _PLANNED.finditer(log)
    ]
    if planned:
        return planned
    return [Choice(int(m[1]), Algorithm(int(m[2])), Protocol(int(m[3])), None, None) for m in _PICKED.finditer(log)]


def symmetric_kernel(log: bytes) -> str | None:
    """The symmetric kernel a piece of NCCL's log names; None where there is none."""
    match = _SYMMETRIC.search(log)
    return None if match is None else match[1].decode()


def algorithm(text: str) -> Algorithm:
    """By NCCL's spelling in logs and kernel names: ``COLLNET_DIRECT``, ``NVLS_TREE``, ``NVLSTree`` ..."""
    wanted = text.replace("_", "").lower()
    for candidate in Algorithm:
        if candidate.name.lower() == wanted:
            return candidate
    raise OracleFailed(f"NCCL named an algorithm this project does not know: {text}")


def protocol(text: str) -> Protocol:
    """By NCCL's spelling, in any case."""
    for candidate in Protocol:
        if candidate.name.lower() == text.lower():
            return candidate
    raise OracleFailed(f"NCCL named a protocol this project does not know: {text}")
