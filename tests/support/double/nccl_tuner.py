"""The command line of nccl-tuner with the backend double, which its wheel has not.

``python -m tests.support.double.nccl_tuner measure --backend double --machine dgx-h100 --nccl 2.28.9 --out run.jsonl``;
``decide`` measures such a file again. ``--process-per-rank`` starts a process for each rank, ``--fault`` plants faults.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import click

from tests.support.double import backend
from tests.support.double.settings import DoubleSettings, Fault, FaultKind
from tuner import cli
from tuner.bench import opened
from tuner.bench.backend import Backend, Options
from tuner.bench.workflow import Opener, topology_beside
from tuner.cli import measure
from tuner.cli.communicator_options import CommunicatorOptions
from tuner.times.measured.header import DOUBLE
from tuner.times.measured.samples import Measurements, check_same

_FAULTS, _PROCESSES = f"{__name__}.faults", f"{__name__}.processes"


def _keep(key: str) -> Callable[[click.Context, click.Parameter, object], None]:
    """A callback that keeps an option's value where :func:`_open` finds it: the command itself knows nothing of it."""

    def kept(ctx: click.Context, param: click.Parameter, value: object) -> None:
        ctx.meta[key] = value

    return kept


_OPTIONS = [
    click.Option(["--process-per-rank"], is_flag=True, expose_value=False, callback=_keep(_PROCESSES)),
    click.Option(
        ["--fault"],
        multiple=True,
        metavar="KIND:rank=N,after=N,...",
        help=", ".join(FaultKind),
        expose_value=False,
        callback=_keep(_FAULTS),
    ),
]


def _open(communicator: CommunicatorOptions, seed: int, unplanted: bool, on_gpus: Options) -> Opener:
    said = click.get_current_context().meta
    settings = DoubleSettings(
        communicator.scenario(),
        seed,
        planted=not unplanted,
        process_per_rank=said[_PROCESSES],
        faults=tuple(map(Fault.parsed, said[_FAULTS])),
    )

    def opener(out: Path, blocks: int) -> Backend:
        return backend.Double(settings, replace(on_gpus, topology=topology_beside(out)))

    return opener


def _again(path: Path, measurements: Measurements) -> Backend:
    double = backend.from_header(measurements.header)
    try:
        check_same(path, measurements, double.describe())
    except BaseException:
        double.close()
        raise
    return double


@contextmanager
def installed() -> Iterator[None]:
    """The backend as one of the command line's."""
    own = measure.command.params
    with (
        patch.dict(measure.BACKENDS, {DOUBLE: _open}),
        patch.dict(opened.REOPENERS, {DOUBLE: _again}),
        patch.object(measure.command, "params", [*own, *_OPTIONS]),
    ):
        yield


if __name__ == "__main__":
    with installed():
        cli.main()
