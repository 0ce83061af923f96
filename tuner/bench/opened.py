"""GPUs in a fresh process, and the backend that a file was measured with, once more."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tuner.base.errors import BadMeasurement, TunerError
from tuner.bench import simulated
from tuner.bench.backend import Backend, Options, options_of
from tuner.bench.double import backend as double
from tuner.bench.exchange import OwnProcess, serve
from tuner.bench.gpu import backend as gpu
from tuner.bench.gpu import opening
from tuner.bench.gpu.rendezvous import RankAddress, own_address
from tuner.times.records.header import Header
from tuner.times.records.samples import Measurements, check_same

_PATIENCE = 4.0  # limits of a step: ranks meet, NCCL's init, a block, and what comes before


def fresh(options: Options) -> Backend | None:
    """The GPUs, in a process of its own that can be renewed: of this computer, or with those that a launcher started.

    None on ranks other than 0 of these, which have served until rank 0 was done. Errors: those of ``open_gpus``.
    """
    here = own_address()
    if here.rank == 0:
        return OwnProcess(partial(opening.open_at, here, options), _PATIENCE * options.limit_s)
    serve(partial(_served, here, options))
    return None


def _served(here: RankAddress, options: Options) -> bool:
    return opening.open_at(here, options).serve()


class OtherRank(TunerError):
    """This process of a launcher has served another, which has the result."""


def serves(headers: Iterable[Header]) -> bool:
    """Whether this process only serves where these are measured again."""
    return any(header.backend == gpu.NAME for header in headers) and own_address().rank != 0


def again(path: Path, measurements: Measurements) -> Backend | None:
    """BadMeasurement where it cannot be had here, or is another by now. None as of :func:`fresh`."""
    name = measurements.header.backend
    if name == simulated.NAME:
        return simulated.from_header(measurements.header, after=len(measurements.blocks))
    if name == double.NAME:
        again = double.from_header(measurements.header)
        check_same(path, measurements, again.describe())
        return again
    if name != gpu.NAME:
        valid = f"{gpu.NAME}, {double.NAME}, {simulated.NAME}, or `no_gate`"
        raise BadMeasurement(f"{path}: unknown backend {name!r}; valid: {valid}")
    opened = fresh(options_of(measurements.header))
    if opened is None:
        return None
    check_same(path, measurements, opened.describe())
    return opened
