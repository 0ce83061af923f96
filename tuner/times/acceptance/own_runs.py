"""Keeps healthy runs of the user in addition to the public ones; ``accept`` compares with both.

The folder ``runs`` in the user's data folder has each run's table, and its curves for comparison.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.base.errors import BadInput, one_of
from tuner.base.expressions import expression
from tuner.base.files import write_text
from tuner.scenario import Scenario
from tuner.times import measured
from tuner.times.acceptance import public_runs
from tuner.times.acceptance.accept import AcceptOptions, accept
from tuner.times.acceptance.curves_of_runs import of_table
from tuner.times.acceptance.in_findings import RunVerdict
from tuner.times.acceptance.public_runs import PublicCurve
from tuner.times.measured.formats import Given
from tuner.times.measured.header import MeasuredHealth
from tuner.times.measured.samples import Measurements

_NAME = expression(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder() -> Path:
    """The folder of kept runs: ``nccl-tuner/runs`` of XDG_DATA_HOME, else of ``~/.local/share``."""
    return public_runs.own_folder()


def names() -> tuple[str, ...]:
    """Names of the kept runs."""
    return tuple(sorted(each.stem for each in folder().glob("*.csv")))


def keep(name: str, table: Measurements, scenario: Scenario, files: Sequence[Path]) -> tuple[PublicCurve, ...]:
    """Keeps the table of a healthy run under a name; returns its curves, which ``accept`` compares with from now on.

    BadInput if the name is taken or not a plain word, if the run itself fails, or if the files cannot be written.
    BadMeasurement and CannotBeJudged as ``accept`` raises them.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a run: use letters, digits, '.', '_' and '-'")
    if name in (*names(), *measured.names()):
        raise BadInput(f"there is a run {name!r} already; forget it first, or use another name")
    found = accept(list(files), AcceptOptions(scenario, Given(nodes=None)))
    if found.verdict is RunVerdict.fails:
        raise BadInput(f"{name}: a run that fails is not kept as a healthy one; 'nccl-tuner accept' says why")
    header = replace(table.header, health=MeasuredHealth.healthy, health_note="Kept by its owner as healthy.")
    kept = replace(table, header=replace(header, site=header.site or name), name=name)
    curves = tuple(of_table(kept, scenario, own=True))
    if not curves:
        raise BadInput(f"{name}: the run has no call that can be compared")
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder()}: {error.strerror}") from None
    measured.write(folder() / f"{name}.csv", kept)
    write_text(folder() / f"{name}.json", public_runs.text_of(curves))
    public_runs.own.cache_clear()
    return curves


def load(name: str) -> Measurements:
    """The table of a kept run. BadInput if no run has this name."""
    _check_kept(name)
    return measured.read(folder() / f"{name}.csv")


def forget(name: str) -> None:
    """Removes a kept run. BadInput if no run has this name."""
    _check_kept(name)
    for ending in ("json", "csv"):
        (folder() / f"{name}.{ending}").unlink(missing_ok=True)
    public_runs.own.cache_clear()


def _check_kept(name: str) -> None:
    kept = names()
    if name not in kept:
        raise BadInput(f"no kept run {name!r}; {one_of(kept) if kept else 'none is kept'}")
