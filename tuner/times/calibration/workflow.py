"""Fits NCCL's constants, or the textbook's alpha and beta, to files of measurements."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from os import PathLike
from pathlib import Path

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.files import write_text
from tuner.base.frames import Column, Framed, of_records
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.base.records import Files, json_form, paths, to_json, today
from tuner.base.view import column, shown
from tuner.emulator import fitted_constants
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.request import MessageSizes
from tuner.plugin.table import parse
from tuner.plugin.table.records import CostLine, CostRow, Table
from tuner.times.calibration import fit as model
from tuner.times.calibration import observations
from tuner.times.calibration.fit import AT_LEAST, KEPT_ALIKE, Fit, Fitted
from tuner.times.calibration.observations import HostFloor, ObservationGroup, Observations
from tuner.times.costmodels import line
from tuner.times.measured.samples import Measurements

LARGEST_DEVIATION = 0.25  # largest deviation of a value that counts as known


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The line ``alpha_us + bytes / (1000 * beta_gbs)``; alpha and beta with their standard deviations.

    ``known``: whether the sizes determine both; small sizes do not show bandwidths, large sizes do not show latencies.
    ``r2`` refers to logarithms of times, with outliers weighted as in the fit; errors are mean absolute ones in
    percent.
    """

    collective: Collective = field(metadata=column("collective"))
    algorithm: Algorithm
    protocol: Protocol
    ranks: int = field(metadata=column("ranks"))
    nodes: int = field(metadata=column("nodes"))
    calls: int = field(metadata=column("calls"))
    alpha_us: float = field(metadata=column("alpha us", digits=2))
    alpha_deviation_us: float = field(metadata=column("+-", digits=2))
    beta_gbs: float = field(metadata=column("beta GB/s", digits=2))
    beta_deviation_gbs: float = field(metadata=column("+-", digits=2))
    r2: float = field(metadata=column("R2", digits=4))
    error_percent: float = field(metadata=column("error %", digits=2))
    held_out_error_percent: float | None = field(metadata=column("held out %", digits=2))
    known: bool

    @property
    @shown("combination")
    def combination(self) -> str:
        """Algorithm and protocol: ``Ring/LL``."""
        return f"{self.algorithm.name}/{self.protocol.name}"


def alpha_betas(observations: Observations) -> tuple[list[AlphaBeta], list[str]]:
    """The fits of all groups with enough sizes, then the names of the groups with too few sizes."""
    fits, without = [], []
    for group in _of_all_types(observations.groups):
        if len(np.unique(group.sizes.nbytes[~group.held_out])) < line.LEAST_SIZES:
            name = f"{group.request.collective.name} {group.algo_proto[0].name}/{group.algo_proto[1].name}"
            without.append(f"{name}: too few sizes; needed: {line.LEAST_SIZES} that are not held out")
        else:
            fits.append(_fit(group))
    return fits, without


def alpha_beta_table(fits: Iterable[AlphaBeta], provenance: dict[str, str]) -> Table:
    """A table for the plugin with fitted times instead of NCCL's, for the measured shapes."""
    costs = tuple(
        CostRow(
            one.collective,
            one.algorithm,
            one.protocol,
            CostLine(one.alpha_us, one.beta_gbs),
            ranks=Span(one.ranks, one.ranks),
            nodes=Span(one.nodes, one.nodes),
        )
        for one in fits
        if one.known
    )
    return Table(costs=costs, provenance=provenance)


def _of_all_types(groups: Iterable[ObservationGroup]) -> Iterable[ObservationGroup]:
    """Merges groups over data types and reductions, which the textbook model does not distinguish."""
    same: dict[object, list[ObservationGroup]] = {}
    for group in groups:
        same.setdefault((id(group.communicator), group.request.collective, group.algo_proto), []).append(group)
    for first, *others in same.values():
        every = [first, *others]
        yield replace(
            first,
            sizes=MessageSizes(np.concatenate([group.sizes.nbytes for group in every])),
            median_us=np.concatenate([group.median_us for group in every]),
            deviation=np.concatenate([group.deviation for group in every]),
            held_out=np.concatenate([group.held_out for group in every]),
        )


def _fit(group: ObservationGroup) -> AlphaBeta:
    used = ~group.held_out
    fitted = line.fit(group.sizes.nbytes, group.median_us, group.deviation, used)
    request, shape, error = group.request, group.communicator, 100 * np.abs(fitted.error)
    return AlphaBeta(
        request.collective,
        *group.algo_proto,
        shape.ranks,
        shape.nodes,
        int(used.sum()),
        fitted.fixed_us,
        fitted.fixed_deviation_us,
        fitted.gbs,
        fitted.gbs_deviation,
        fitted.r2,
        float(error[used].mean()),
        float(error[~used].mean()) if (~used).any() else None,
        max(fitted.fixed_deviation_us / fitted.fixed_us, fitted.gbs_deviation / fitted.gbs) <= LARGEST_DEVIATION,
    )


EVERY = 3  # every third session is held out


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean absolute errors in percent of ``calls`` calls that were not fitted, with NCCL's constants and with constants
    fitted to all other calls. ``what`` names the held-out calls: ``sessions``, or a communicator.
    """

    what: str = field(metadata=column("held out of a fit to all others"))
    calls: int = field(metadata=column("calls"))
    nccl_percent: float = field(metadata=column("NCCL there", digits=2))
    fitted_percent: float = field(metadata=column("fitted there", digits=2))


def held_out(observations: Observations) -> tuple[HeldOut, ...]:
    """Errors on calls that were held out of separate fits.

    Held out are every third session of communicators with three or more sessions, and each communicator if there are
    several.
    """
    return tuple(_sessions(observations)) + tuple(_shapes(observations))


def _sessions(observations: Observations) -> Iterable[HeldOut]:
    sessions: dict[int, set[int | None]] = {}
    for group in observations.of_sessions:
        sessions.setdefault(group.shape, set()).add(group.session)
    if all(len(those) < EVERY for those in sessions.values()):
        return
    several = [group for group in observations.of_sessions if len(sessions[group.shape]) >= EVERY]
    whole = [group for group in observations.groups if len(sessions.get(group.shape, ())) < EVERY]
    out = [group for group in several if group.session is not None and group.session % EVERY == EVERY - 1]
    rest = [group for group in several if group not in out]
    yield _error("sessions", observations, [*rest, *whole], out)


def _shapes(observations: Observations) -> Iterable[HeldOut]:
    shapes = list(dict.fromkeys(group.shape for group in observations.groups))
    titles = list(dict.fromkeys(scenario.title for scenario in observations.cases))
    for shape in shapes if len(shapes) > 1 else ():
        out = [group for group in observations.groups if group.shape == shape]
        rest = [group for group in observations.groups if group.shape != shape]
        yield _error(titles[shape], observations, rest, out)


def _error(
    what: str, observations: Observations, fitted: Sequence[ObservationGroup], out: Sequence[ObservationGroup]
) -> HeldOut:
    def marked(groups: Sequence[ObservationGroup], are_out: bool) -> list[ObservationGroup]:
        return [replace(group, held_out=np.full(len(group.median_us), are_out)) for group in groups]

    *_, all_errors = model.fit(replace(observations, groups=(*marked(fitted, False), *marked(out, True)))).errors
    assert all_errors.nccl_held_out_percent is not None
    assert all_errors.fitted_held_out_percent is not None
    return HeldOut(
        what, all_errors.held_out_calls, all_errors.nccl_held_out_percent, all_errors.fitted_held_out_percent
    )


_DTYPES = {
    **dict.fromkeys(("collective", "algorithm", "protocol", "ranks", "nodes", "calls"), np.int64),
    "known": np.bool_,
}


@dataclass(frozen=True, slots=True)
class FittedFiles:
    """What was read from the files: release, titles of communicators, number of calls. ``left_out`` counts other calls
    by reason.

    ``times`` says where the times come from: ``measured`` or ``simulated``, or both. ``floors`` says for which calls
    the host's time hid the GPUs' time.
    """

    nccl: str
    communicators: tuple[str, ...]
    calls: int
    left_out: Mapping[str, int]
    times: str
    floors: tuple[HostFloor, ...]


@dataclass(frozen=True, slots=True)
class FitReport(Framed):
    """Answer of :func:`fit`: ``out`` is the file that was written, or None. As a data frame, it has one row per
    constant.

    ``held_out``: errors on sessions and communicators that were left out of a separate fit.
    """

    out: Path | None
    files: FittedFiles = field(metadata=json_form(merged=True))
    fit: Fit = field(metadata=json_form(merged=True))
    held_out: tuple[HeldOut, ...]

    @property
    def fitted(self) -> tuple[Fitted, ...]:
        """The constants that were fitted, without those that keep NCCL's value."""
        return tuple(one for one in self.fit.constants if one.low is not None or one.status == AT_LEAST)

    def columns(self) -> dict[str, Column]:
        """Columns with one element per constant: name, nccl, value, low, high (NaN: no interval), status. The numbers
        are in each constant's unit.
        """
        numbers = dict.fromkeys(("nccl", "value", "low", "high"), np.float64)
        return of_records(self.fit.constants, name=str, **numbers, status=str)


@dataclass(frozen=True, slots=True)
class AlphaBetaReport(Framed):
    """Answer of :func:`fit_alpha_beta`: ``without`` names groups with too few sizes. As a data frame, it has one row
    per fit.
    """

    files: FittedFiles = field(metadata=json_form(merged=True))
    fits: tuple[AlphaBeta, ...]
    without: tuple[str, ...]

    def columns(self) -> dict[str, Column]:
        """Columns with one element per fit: collective, algorithm, protocol, ranks, nodes, calls, alpha_us, beta_gbs,
        deviations, r2, errors.
        """
        names = (each.name for each in dataclasses.fields(AlphaBeta))
        return of_records(self.fits, **{name: _DTYPES.get(name, np.float64) for name in names})


def fit(
    files: Files,
    *,
    out: str | PathLike[str] | None = None,
    command: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
    measured: Sequence[Measurements] | None = None,
) -> FitReport:
    """The constants of NCCL's model that explain measured times best, from files of one machine and one release.

    ``files`` are what ``nccl-tuner measure`` wrote; several numbers of nodes distinguish more constants. A constant
    that the files cannot determine keeps NCCL's value. Every fourth size is held out to measure the errors. Sessions
    and communicators are held out, too, each from a separate fit. ``out`` is a file of fitted constants to write, which
    ``communicator(constants=...)`` takes. ``command``: the command line that this file names as its origin.
    ``progress`` is called with each step, which may take a while, before it begins. ``measured`` is what was already
    read from files of other kinds. BadMeasurement for files with nothing to fit, or from several machines or releases.
    BadInput if ``out`` cannot be written.
    """
    progress("reading")
    observed = _observed(files, measured)
    progress(f"fitting to {observed.calls} calls")
    fitted = model.fit(observed)
    written = None if out is None else Path(out)
    if written is not None:
        write_text(written, fitted_constants.to_text(_constants(observed, fitted, command)))
    progress("fitting without what is held out, to see how far off it is there")
    return FitReport(written, _read(observed), fitted, held_out(observed))


def fit_alpha_beta(
    files: Files,
    *,
    cost_table: str | PathLike[str] | None = None,
    command: str | None = None,
    measured: Sequence[Measurements] | None = None,
) -> AlphaBetaReport:
    """Fits a latency and a bandwidth for each collective and combination, from files of one machine and one release.

    ``cost_table`` is a decision table to write, with the times as ``cost`` rows for the plugin. ``command``: the
    command line that this table names as its origin. ``measured`` is as for :func:`fit`. BadMeasurement if files have
    nothing to fit, or come from several machines or releases. BadInput if ``cost_table`` cannot be written.
    """
    observed = _observed(files, measured)
    fits, without = alpha_betas(observed)
    if cost_table is not None:
        provenance = {
            "machine": observed.cases[0].name,
            "nccl": observed.release.name,
            "measurements": " ".join(f"{name} sha256 {sha256}" for name, sha256 in observed.files),
            **({} if command is None else {"command": command}),
            "times": observed.times,
            "date": today(),
        }
        parse.write(Path(cost_table), alpha_beta_table(fits, provenance))
    return AlphaBetaReport(_read(observed), tuple(fits), tuple(without))


def _observed(files: Files, measured: Sequence[Measurements] | None) -> Observations:
    return observations.read(paths(files)) if measured is None else observations.of(paths(files), measured)


def _read(observed: Observations) -> FittedFiles:
    left_out = dict(observed.left_out)
    return FittedFiles(
        observed.release.name, observed.titles, observed.calls, left_out, observed.times, observed.floors
    )


def _constants(observed: Observations, fitted: Fit, command: str | None) -> FittedConstants:
    *_, all_errors = fitted.errors
    first = observed.cases[0]
    gpus = {scenario.gpus() for scenario in observed.cases}
    provenance = {
        "machine": first.machine,
        "topology": None if first.topology is None else first.topology.name,
        "gpus_per_node": gpus.pop() if len(gpus) == 1 else None,
        "nodes": [scenario.nodes for scenario in observed.cases],
        "measurements": [{"file": name, "sha256": sha256} for name, sha256 in observed.files],
        "times": observed.times,
        "date": today(),
        "command": command,
        "holdout_mape_percent": all_errors.fitted_held_out_percent,
        "nccl_holdout_mape_percent": all_errors.nccl_held_out_percent,
        "residuals": [_known(to_json(error)) for error in fitted.errors],
        "kept_as_alike": [one.name for one in fitted.constants if one.status == KEPT_ALIKE],
    }
    return FittedConstants(observed.release.name, fitted.tables, _known(provenance))


def _known(record: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if value is not None}
