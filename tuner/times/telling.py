"""Finds the calls that should be measured first on a cluster: those whose times say most about the cluster's other
calls."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import Call, Shape
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.times.placement import Site
from tuner.times.timemodel import features, predict

COLLECTIVES = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
SIZES = tuple(1 << power for power in range(13, 35))
_PROGRAMS = {
    Collective.AllReduce: "all_reduce",
    Collective.AllGather: "all_gather",
    Collective.ReduceScatter: "reduce_scatter",
}
_TYPES = {DataType.float16: "half", DataType.float32: "float", DataType.float64: "double"}


@dataclass(frozen=True, slots=True)
class TellingCall:
    """A call to measure, with a command line of nccl-tests for it, one process per GPU.

    ``error_after``: the error that is expected for all calls once this call and the calls before it in the list are
    measured. It is a share of the times, as the median over calls.
    """

    call: Call = field(metadata=json_form(merged=True))
    shape: Shape = field(metadata=json_form(merged=True))
    command: str
    error_after: float


@dataclass(frozen=True, slots=True)
class TellingCalls:
    """Calls to measure, the best first; ``error_before``: the expected error of all calls before any is measured.

    ``calibration`` is the name of the calibration that the measured rows are to update.
    """

    calls: tuple[TellingCall, ...]
    error_before: float
    calibration: str


def telling_calls(
    site: Site,
    shape: Shape,
    count: int,
    *,
    dtype: DataType = DataType.float32,
    collectives: Sequence[Collective] = COLLECTIVES,
    sizes: Sequence[int] = SIZES,
    calibration: str | None = None,
) -> TellingCalls:
    """The ``count`` calls between ``shape``'s nodes, run by NCCL's own choice, that tell most about a site.

    BadInput on one node, which has a separate calibration, and if no calibration answers. BadCalibration if the named
    calibration is invalid.
    """
    if shape.nodes < 2:
        raise BadInput(
            f"calls on one node say nothing about the network between nodes: give {option('nodes')} 2 or more"
        )
    selection = site.selection(shape.nodes, shape.gpus_per_node, {})
    model = predict.of_communicator(selection, site.name, calibration, with_instance=True)
    bytes_of_all = np.array(sizes, np.uint64)
    requests = [Request(collective, dtype, Op.sum) for collective in collectives]
    parts = [features.of_picks(selection, request, selection.pick(request, bytes_of_all)) for request in requests]
    candidates = features.concatenated(parts)
    process = model.calibration.process
    chosen = process.telling(candidates, count)
    errors = process.errors_to_expect(candidates, chosen)
    calls = [Call(collectives[at // len(sizes)], dtype, Op.sum, sizes[at % len(sizes)]) for at in chosen]
    telling = tuple(
        TellingCall(call, shape, nccl_tests_command(call, shape), error)
        for call, error in zip(calls, errors[1:], strict=True)
    )
    return TellingCalls(telling, errors[0], model.calibration.name)


def nccl_tests_command(call: Call, shape: Shape) -> str:
    """The command line of nccl-tests that measures a call on a communicator of ``shape``."""
    program, dtype = _PROGRAMS[call.collective], _TYPES.get(call.dtype, call.dtype.name)
    size = short_size(call.bytes)
    return f"{launcher(shape)} {program}_perf -b {size} -e {size} -d {dtype} -g 1"


def launcher(shape: Shape) -> str:
    """The words that start one process per rank of a communicator of ``shape``."""
    return f"mpirun -np {shape.ranks} -N {shape.gpus_per_node}"


def short_size(nbytes: int) -> str:
    """A size as nccl-tests and the command line both read it, such as 64K."""
    size = human_bytes(nbytes).replace(" ", "")
    return size.removesuffix("iB") if size.endswith("iB") else str(nbytes)
