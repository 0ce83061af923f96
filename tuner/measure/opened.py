"""The backend that a file was measured with, once more."""

import importlib
from pathlib import Path

from tuner.errors import BadMeasurement
from tuner.measure import simulated
from tuner.measure.backend import Backend
from tuner.measure.samples import Measurements, check_same


def again(path: Path, measurements: Measurements) -> Backend:
    """BadMeasurement where it cannot be had here, or is another by now."""
    name = measurements.header.get("backend")
    if name == simulated.NAME:
        return simulated.from_header(measurements.header, after=len(measurements.visits))
    if name != "gpu":
        raise BadMeasurement(f"{path}: nothing here measures as {name!r} did; valid: gpu, simulated, or --no-gate")
    try:
        backend: Backend = importlib.import_module("tuner.measure.gpu").Gpu()
    except ImportError as error:
        raise BadMeasurement(f"{path}: measured on GPUs, not to be used here: {error}; valid: --no-gate") from None
    check_same(path, measurements, backend.describe())
    return backend
