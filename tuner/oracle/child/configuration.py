"""Makes ncclConfig_t and ncclCollConfig_t structs; these and their texts stay in memory until the process ends.

Layouts: src/nccl.h.in, v2.18.1-1 to v2.30.7-1, and nccl.h of the wheels of 2.31.2 and 2.32.3. Newer releases only add
fields at the end of these structs, and NCCL reads only the fields that it knows.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tuner._native._sim import ffi, lib

UNDEFINED, MAGIC = -(2**31), 0xCAFEBEEF
# "q" stands for texts, which are pointers
COMMUNICATOR = (
    ("blocking", "i"),
    ("cgaClusterSize", "i"),
    ("minCTAs", "i"),
    ("maxCTAs", "i"),
    ("netName", "q"),
    ("splitShare", "i"),
    ("trafficClass", "i"),
    ("commName", "q"),
    ("collnetEnable", "i"),
    ("CTAPolicy", "i"),
    ("shrinkShare", "i"),
    ("nvlsCTAs", "i"),
    ("nChannelsPerNetPeer", "i"),
    ("nvlinkCentricSched", "i"),
    ("graphUsageMode", "i"),
    ("numRmaCtx", "i"),
    ("maxP2pPeers", "i"),
    ("graphStreamOrdering", "i"),
    ("launchOrderImplicit", "i"),
    ("numRmaSig", "i"),
    ("rmaEagerInit", "i"),
    ("hostCftMode", "i"),
    ("nvlsHostMode", "i"),
)
CALL = (
    ("ext", "q"),
    ("minCTAs", "i"),
    ("maxCTAs", "i"),
    ("nvlsCTAs", "i"),
    ("cgaClusterSize", "i"),
    ("algSelection", "q"),
    ("forceAlgSelection", "i"),
    ("CTAPolicy", "i"),
    ("userProfilerTag", "q"),
    ("launchCompletionEvent", "q"),
)
_kept: list[Any] = []  # kept alive, because libnccl may point to them


def of_communicator(given: Sequence[tuple[str, int | str]], version: int) -> Any:
    """The ``ncclConfig_t`` of a communicator; a null pointer if nothing is set."""
    return _struct(COMMUNICATOR, dict(given), version, {}) if given else ffi.NULL


def of_call(given: Sequence[tuple[str, int | str]], version: int) -> int:
    """Address of a call's ``ncclCollConfig_t``; 0 if nothing is set."""
    if not given:
        return 0
    made = _struct(CALL, dict(given), version, {"forceAlgSelection": 1})
    return int(ffi.cast("uintptr_t", made))


def version() -> int:
    """The version of the loaded library, as NCCL encodes it."""
    said = ffi.new("int *")
    ffi.cast("int (*)(int *)", lib.sim_nccl_function(b"ncclGetVersion"))(said)
    return int(said[0])


def _struct(
    layout: Sequence[tuple[str, str]], given: Mapping[str, int | str], version: int, defaults: Mapping[str, int]
) -> Any:
    values = [_number(given.get(name, defaults.get(name, UNDEFINED if kind == "i" else 0))) for name, kind in layout]
    form = "@QIi" + "".join(kind for _, kind in layout) + "0q"
    size = struct.calcsize(form)
    made = ffi.from_buffer("char[]", bytearray(struct.pack(form, size, MAGIC, version, *values)))
    _kept.append(made)
    return ffi.cast("void *", made)


def _number(value: int | str) -> int:
    if not isinstance(value, str):
        return value
    text = ffi.new("char[]", value.encode())
    _kept.append(text)
    return int(ffi.cast("uintptr_t", text))
