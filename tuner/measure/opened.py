"""The backend that a file was measured with, once more."""

from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.measure.backend import Backend
from tuner.measure.double import backend as double
from tuner.measure.gpu import backend as gpu
from tuner.measure.gpu import opening
from tuner.measure.gpu.options import options_of
from tuner.measure.records.samples import Measurements, check_same
from tuner.measure.simulated import backend as simulated


def again(path: Path, measurements: Measurements) -> Backend:
    """BadMeasurement where it cannot be had here, or is another by now."""
    name = measurements.header.backend
    if name == simulated.NAME:
        return simulated.from_header(measurements.header, after=len(measurements.blocks))
    if name == double.NAME:
        again = double.from_header(measurements.header)
        check_same(path, measurements, again.describe())
        return again
    if name != gpu.NAME:
        valid = f"{gpu.NAME}, {double.NAME}, {simulated.NAME}, or --no-gate"
        raise BadMeasurement(f"{path}: unknown backend {name!r}; valid: {valid}")
    backend = opening.open_gpus(options_of(measurements.header))
    if backend is None:
        raise BadMeasurement(f"{path}: measured by several processes; valid: --no-gate, or one process with all GPUs")
    check_same(path, measurements, backend.describe())
    return backend
