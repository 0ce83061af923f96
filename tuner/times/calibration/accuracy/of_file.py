"""Measures the errors of calibrated times on a file of measured times."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.base.records import to_json
from tuner.base.sizes import plural
from tuner.machine import catalogue
from tuner.times.calibration import calibrate, plausible
from tuner.times.calibration.accuracy.evaluate import coverage, half_width, mean_absolute_error, predicted_times
from tuner.times.calibration.calibrate import MeasuredExchanges
from tuner.times.calibration.measured_calls import MeasuredCalls, of_table
from tuner.times.measured import Kind, Problem
from tuner.times.measured.formats import Given
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import Site, point_to_point_reason
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.point_to_point import MODELLED
from tuner.times.timemodel.predict import CalibratedTimes, CalibrationChoice, choose, exchange_times, with_instance_type


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean absolute errors as shares (|predicted / measured - 1|), and the share of times within the 90 % intervals.

    Means are over ``rows`` rows. ``half_width_90`` is the mean of half the 90 % interval, as a share of the time.
    ``nccl_model_error`` is the error of NCCL's own prediction. ``extrapolated`` counts the rows that the calibration
    has to extrapolate for.
    """

    rows: int
    extrapolated: int
    mean_absolute_error: float
    coverage_90: float
    half_width_90: float
    nccl_model_error: float | None


_NO_ROWS = {each.name: 0 if each.type is int else None for each in fields(Accuracy)}


@dataclass(frozen=True, slots=True)
class FileAccuracy:
    """How accurate a calibration is on a file. ``collectives`` is None if the file only has sends and receives.

    ``skipped`` counts the rows left out, by reason; ``reason`` says why this calibration was chosen.

    ``problems`` are suspicious facts about rows that count. ``updated_by`` is the number of rows that updated the
    calibration first and are not judged. ``extrapolations`` counts the judged rows by kind of extrapolation.
    """

    file: str
    collectives: Accuracy | None
    point_to_point: Accuracy | None
    calibration: str
    reason: str
    skipped: Mapping[str, int]
    problems: tuple[str, ...] = ()
    updated_by: int = 0
    extrapolations: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As JSON: keys of the collectives at the top level, keys of sends and receives below ``point_to_point``."""
        return {
            **(to_json(self.collectives) if self.collectives else _NO_ROWS),
            "calibration": self.calibration,
            "reason": self.reason,
            "skipped": dict(self.skipped),
            "problems": list(self.problems),
            "updated_by": self.updated_by,
            "extrapolations": dict(self.extrapolations),
            "point_to_point": to_json(self.point_to_point),
        }


def of_path(
    path: Path, site: Site, given: Given | None = None, calibration: str | None = None, update: Path | None = None
) -> FileAccuracy:
    """Measures the accuracy on a file, for a ``site`` and a ``calibration``, or for the ones that match the file.

    ``update``: a file with rows of the same cluster; they update the calibration first. ``given``: what files do not
    say about their rows. Rows that the machine's links make impossible are left out. BadMeasurement if the file cannot
    be read or no row is left. BadInput if the file does not say what was measured.
    """
    given = given or Given()
    table = calibrate.read_table(path, given)
    site = site.completed([table])
    found = plausible.judge(table, *site.node)
    if not (judged := plausible.usable(table, found)).blocks:
        why = "; ".join(each.text for each in found if each.refused)
        raise BadMeasurement(f"{path}: no row is left to judge: {why}")
    rows = None if update is None else calibrate.read_table(update, given)
    result = of_file(judged, site, calibration, rows)
    refused, counted = dict[str, int](), set[int]()
    for each in found:
        if each.refused and (rest := set(each.lines) - counted):
            refused[each.text] = len(rest)
            counted |= rest
    said = tuple(f"{each.text} ({each.where})" for each in found if not each.refused and each.kind is not Kind.stand_in)
    said += tuple(_contradictions(table, site))
    skipped = {**result.skipped, **refused, **table.header.left_out}
    return replace(result, skipped=skipped, problems=(*result.problems, *said))


def _contradictions(table: Measurements, site: Site) -> Iterator[str]:
    """Yields contradictions between the file and the site."""
    head, machine = table.header, site.machine
    if site.stand_in:
        yield site.stand_in
    elif head.nccl and head.nccl != site.nccl:
        yield f"the file says NCCL {head.nccl}, and is held against {site.nccl}"
    if machine and head.machine and catalogue.load(head.machine).gpu != catalogue.load(machine).gpu:
        yield f"the file says {head.machine}, and is held against {machine}, which has other GPUs"


def of_file(
    table: Measurements, site: Site, calibration: str | None = None, update: Measurements | None = None
) -> FileAccuracy:
    """Compares the rows of a file that NCCL's model can answer for with the calibration of their machine.

    The rows of ``update`` update the calibration first and are not judged.

    BadMeasurement if no row is left to judge. BadInput and BadCalibration as :func:`choose` raises them.
    """
    given = {_call(row) for row in update.blocks} if update is not None else set()
    table = replace(table, blocks=tuple(row for row in table.blocks if _call(row) not in given))
    if not table.blocks:
        raise BadMeasurement(
            f"{table.name}: the calibration was updated with all of its rows, so that none is left to judge it"
        )
    exchanges = calibrate.exchanges_of_tables([table], [site])
    alone = exchanges is not None and all(row.point.is_point_to_point for row in table.blocks)
    calls = None if alone else of_table(table, site)
    placed = calls if calls is not None else exchanges
    assert placed is not None
    chosen = _chosen(table, placed.rows, site, calibration)
    if update is not None:
        rows = of_table(update, site)
        chosen = replace(
            chosen,
            calibration=calibrate.updated(chosen.calibration, rows),
            reason=f"{chosen.reason}, updated by {plural(len(rows), 'row')}",
        )
    most_nodes = max(row.nodes for row in table.blocks)
    chosen = with_instance_type(chosen, most_nodes, site.name, without=table.name)
    of_exchanges = _of_exchanges(exchanges, chosen)
    counted = {row.line for row in exchanges.rows} if exchanges and of_exchanges else set[int]()
    times = predicted_times(chosen.calibration, calls, same_machine=chosen.same_machine) if calls else None
    return FileAccuracy(
        table.name,
        _of_collectives(calls, times) if calls and times else None,
        of_exchanges,
        chosen.calibration.name,
        chosen.reason,
        _skipped(table, calls, counted),
        _all_off_alike(calls, times) if calls and times else (),
        updated_by=len(rows) if update is not None else 0,
        extrapolations=dict(Counter(filter(None, map(times.why, range(len(calls)))))) if calls and times else {},
    )


def _call(row: SampleBlock) -> SampleBlock:
    """The row without its run, which identifies it at any place in a file."""
    return replace(row, run="")


def _all_off_alike(calls: MeasuredCalls, times: CalibratedTimes) -> tuple[str, ...]:
    """A problem if all times are off by the same factor, with the lines. The rows count nevertheless."""
    ratios = calls.measured.times_us / times.time_us
    factor = plausible.common_factor(ratios, calls.measured.calls.bytes)
    if factor is None:
        return ()
    lines = tuple(row.line for row in calls.rows)
    text = f"all times are {factor:.3g} times what is expected, the smallest calls' as the largest's"
    return (f"{text}; {plausible.likely(factor)} ({Problem(Kind.scaled, lines, text).where})",)


def _skipped(table: Measurements, calls: MeasuredCalls | None, counted: Set[int]) -> Mapping[str, int]:
    """How many rows were left out, by reason; ``counted`` are lines of sends and receives that do count."""
    reasons = {point_to_point_reason(row.point.name) for row in table.blocks if row.point.is_point_to_point}
    skipped = Counter({why: count for why, count in (calls.skipped if calls else {}).items() if why not in reasons})
    for row in table.blocks:
        if row.point.is_point_to_point and row.line not in counted:
            in_place = row.point.in_place and row.point.name in MODELLED
            skipped["in place" if in_place else point_to_point_reason(row.point.name)] += 1
    return dict(skipped)


def _chosen(table: Measurements, rows: Sequence[SampleBlock], site: Site, calibration: str | None) -> CalibrationChoice:
    """The calibration for the largest communicator of the rows; the site's calibration if the table names a site."""
    if calibration is None and site.machine and any(row.nodes > 1 for row in rows):
        calibration = calibrations.of_site(table.header.site)
    row = max(rows, key=lambda each: (each.nodes, each.gpus_per_node))
    return choose(site.selection(row.nodes, row.gpus_per_node, {}).communicator, site.name, calibration)


def _of_exchanges(rows: MeasuredExchanges | None, chosen: CalibrationChoice) -> Accuracy | None:
    """The errors of the times of AllToAll; None if the file or the calibration has no AllToAll."""
    if rows is None or chosen.calibration.exchange is None:
        return None
    said = exchange_times(chosen.calibration, rows.calls, same_machine=chosen.same_machine)
    return _accuracy(said, rows.times_us, int((said.extrapolated > 0).sum()), None)


def _of_collectives(calls: MeasuredCalls, times: CalibratedTimes) -> Accuracy:
    measured_us, extrapolated = calls.measured.times_us, sum(1 for at in range(len(calls)) if times.why(at))
    return _accuracy(times, measured_us, extrapolated, mean_absolute_error(calls.nccl_us, measured_us))


def _accuracy(
    times: CalibratedTimes, measured_us: Array, extrapolated: int, nccl_model_error: float | None
) -> Accuracy:
    return Accuracy(
        rows=len(measured_us),
        extrapolated=extrapolated,
        mean_absolute_error=mean_absolute_error(times.time_us, measured_us),
        coverage_90=coverage(times, measured_us),
        half_width_90=half_width(times),
        nccl_model_error=nccl_model_error,
    )
