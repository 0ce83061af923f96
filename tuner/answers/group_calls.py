"""The calls of a group as Python users describe them."""

from collections.abc import Sequence
from typing import Unpack

from tuner.base.names import Collective, DataType, Op
from tuner.base.sizes import whole
from tuner.emulator.call_kind import CallKind, request
from tuner.emulator.group import Operation

# A collective and its nBytes; then a type; then an operation.
GroupCall = (
    tuple[Collective | str, int]
    | tuple[Collective | str, int, DataType | str]
    | tuple[Collective | str, int, DataType | str, Op | str]
)


def operations(calls: Sequence[GroupCall], **kind: Unpack[CallKind]) -> list[Operation]:
    """The calls of a group; ``kind`` is what they leave out. Errors: those of :func:`request`; BadInput for a size."""
    made = []
    for call in calls:
        described: CallKind = {**kind}
        if len(call) != 2:
            described["dtype"] = call[2]
        if len(call) == 4:
            described["op"] = call[3]
        made.append(Operation(request(call[0], **described), whole(call[1], "size")))
    return made
