"""GPUs in a fresh process, and the backend that a file was measured with, once more."""

import os
from functools import partial
from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.measure.backend import Backend
from tuner.measure.double import backend as double
from tuner.measure.gpu import backend as gpu
from tuner.measure.gpu import opening
from tuner.measure.gpu.options import Options, options_of
from tuner.measure.gpu.rendezvous import ALONE, place
from tuner.measure.own_process import OwnProcess
from tuner.measure.records.samples import Measurements, check_same
from tuner.measure.simulated import backend as simulated


def fresh(options: Options) -> Backend | None:
    """The GPUs: of this computer in a process of its own, which can be renewed; or of all processes of a launcher.

    None on ranks other than 0 of these, which have served until rank 0 was done. Errors: those of ``open_gpus``.
    """
    return OwnProcess(partial(_here, options)) if place(os.environ) == ALONE else opening.open_gpus(options)


def _here(options: Options) -> Backend:
    backend = opening.open_gpus(options)
    assert backend is not None  # rank 0, as there is no other
    return backend


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
    backend = fresh(options_of(measurements.header))
    if backend is None:
        raise BadMeasurement(f"{path}: measured by several processes; valid: --no-gate, or one process with all GPUs")
    check_same(path, measurements, backend.describe())
    return backend
