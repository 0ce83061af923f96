"""Opens GPUs in a fresh process, and reopens the backend with which a file was measured."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tuner.base.errors import BadMeasurement, TunerError, one_of
from tuner.base.spelling import option
from tuner.bench import simulated
from tuner.bench.backend import Backend, Options, options_of
from tuner.bench.exchange import OwnProcess, serve
from tuner.bench.gpu.rendezvous import RankAddress, own_address
from tuner.times.measured.header import DOUBLE, GPU, Header
from tuner.times.measured.samples import Measurements, check_same

_PATIENCE = 4.0  # as a multiple of the limits of a step: ranks meet, NCCL's init, a block, and what comes before


def fresh(options: Options) -> Backend | None:
    """The GPUs of this computer, or of a launcher's processes, opened in a process that can be renewed.

    Returns None on ranks other than 0, after they have served until rank 0 was done. BadInput for what cannot be
    measured here, MeasuringFailed if the GPUs cannot be opened.
    """
    from tuner.bench.gpu import opening  # this needs packages of an extra; files of other programs do not

    here = own_address()
    if here.rank == 0:
        return OwnProcess(partial(opening.open_at, here, options), _PATIENCE * options.limit_s)
    serve(partial(_served, here, options))
    return None


def _served(here: RankAddress, options: Options) -> bool:
    from tuner.bench.gpu import opening

    return opening.open_at(here, options).serve()


class OtherRank(TunerError):
    """Raised on a launcher's process that only served rank 0, which has the result."""


def serves(headers: Iterable[Header]) -> bool:
    """Whether this process would only serve rank 0 if one of these files were measured again.

    That is so on ranks other than 0 if a file was measured on GPUs.
    """
    return any(REOPENERS.get(header.backend or "") is _gpus_again for header in headers) and own_address().rank != 0


def _gpus_again(path: Path, measurements: Measurements) -> Backend | None:
    opened = fresh(options_of(measurements.header))
    if opened is not None:
        check_same(path, measurements, opened.describe())
    return opened


def _simulated_again(path: Path, measurements: Measurements) -> Backend:
    return simulated.from_header(measurements.header, after=len(measurements.blocks))


Reopener = Callable[[Path, Measurements], Backend | None]
# By the backend in the header. The GPUs of a double (tests/support/double) exist where its files were measured.
REOPENERS: dict[str, Reopener] = {GPU: _gpus_again, DOUBLE: _gpus_again, simulated.NAME: _simulated_again}


def again(path: Path, measurements: Measurements) -> Backend | None:
    """The backend with which a file was measured; None on ranks that only serve.

    BadMeasurement if the backend is not available here, or has changed.
    """
    name = measurements.header.backend or ""
    if name not in REOPENERS:
        raise BadMeasurement(f"{path}: unknown backend {name!r}; {one_of([*REOPENERS, option('no_gate')])}")
    return REOPENERS[name](path, measurements)
