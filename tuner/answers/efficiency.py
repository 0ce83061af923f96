"""Compares measured times with NCCL's prediction, the alpha-beta model, the ideal and the links' capacity."""

from collections.abc import Iterator
from dataclasses import field, replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.base.nouns import TimeInterval
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes
from tuner.base.view import as_percent, column
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.calibration.plausible import Links
from tuner.times.calibration.sweep import Sweep
from tuner.times.costmodels import line, wires
from tuner.times.costmodels.algorithms import costs
from tuner.times.costmodels.alphabeta import Level, level
from tuner.times.costmodels.operations import CostOperation, bus_gbs
from tuner.times.costmodels.wires import Loads
from tuner.times.results import Result

LATENCY, INTRA, INTER = "latency", "links inside the node", "network"
ALPHA_INTRA_US, ALPHA_INTER_US = 1.0, 5.0  # the usual ones, where none were measured


@dataclass(frozen=True, slots=True)
class CalibratedRow:
    """The calibrated time of the pick, its error relative to the measured time, and whether its interval contains the
    measured time.
    """

    time: TimeInterval = field(metadata=json_form(merged=True))
    error: float = field(metadata=column("off", text=as_percent("+.0f")))
    holds: bool


@dataclass(frozen=True, slots=True)
class EfficiencyRow:
    """One size; busbws in GB/s, errors relative to the measured time.

    ``executed`` is what the file says was executed, ``pick`` what the emulator picks, and ``nccl_us`` that pick's
    predicted time. ``link_busbw_gbs`` is the bus bandwidth at which the data that the pick's algorithm sends fills the
    links; None if it is not known. ``alphabeta_algorithm`` is the fastest algorithm by the alpha-beta model. ``limit``
    is the resource that saturates first.
    """

    bytes: int = field(metadata=column("size", text=human_bytes))
    measured_us: float = field(metadata=column("us", digits=2))
    busbw_gbs: float = field(metadata=column("busbw GB/s", digits=3))
    executed: str | None
    pick: str = field(metadata=column("NCCL's pick"))
    nccl_us: float = field(metadata=column("NCCL us", digits=2))
    nccl_error: float = field(metadata=column("off", text=as_percent("+.0f")))
    nccl_class: str
    alphabeta_algorithm: str
    alphabeta_us: float = field(metadata=column("alpha-beta us", digits=2))
    alphabeta_error: float = field(metadata=column("off", text=as_percent("+.0f")))
    alphabeta_class: str
    ideal_busbw_gbs: float
    efficiency: float = field(metadata=column("of ideal", text=as_percent(".1f")))
    link_busbw_gbs: float | None = field(metadata=column("links full at", digits=1))
    limit: str = field(metadata=column("limit"))
    verdict: str = field(metadata=column("verdict"))
    causes: tuple[str, ...]
    calibrated: CalibratedRow | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class EfficiencyReport:
    """Efficiency of a sweep. ``intra`` and ``inter`` are the levels of the alpha-beta model, None without such a level.

    ``calibration`` says which calibration answered, or why none did; None if no calibrated times were wanted.
    """

    sweep: Sweep
    scenario: Scenario
    links: Links
    intra: Level | None
    inter: Level | None
    rows: tuple[EfficiencyRow, ...]
    calibration: CalibrationUsed | None = None


@dataclass(frozen=True, slots=True)
class Assumed:
    """Alphas and betas inside and between nodes that are assumed if none were measured.

    If ``beta_intra_gbs`` is None, the bandwidth of the links inside a node is assumed; if ``beta_inter_gbs`` is None, a
    GPU's share of the node's network bandwidth.
    """

    alpha_intra_us: float = ALPHA_INTRA_US
    alpha_inter_us: float = ALPHA_INTER_US
    beta_intra_gbs: float | None = None
    beta_inter_gbs: float | None = None


USUAL = Assumed()


def report(
    sweep: Sweep,
    scenario: Scenario,
    links: Links,
    assumed: Assumed = USUAL,
    times: TimesWanted | None = None,
) -> EfficiencyReport:
    """Compares measured times with NCCL's model, the alpha-beta model of ``assumed`` levels, the ideal and the links.

    Calibrated ``times`` are added if wanted. BadInput if the file's number of ranks is not the machine's, or if no
    calibration answers. BadCalibration if a calibration is invalid.
    """
    if sweep.ranks not in (None, scenario.ranks):
        raise BadInput(f"{sweep.path}: was measured on {sweep.ranks} ranks, but {scenario.title} has {scenario.ranks}")
    beta_intra_gbs, beta_inter_gbs = assumed.beta_intra_gbs, assumed.beta_inter_gbs
    if beta_inter_gbs is None and links.inter_gbs is not None:
        beta_inter_gbs = links.inter_gbs / scenario.gpus()
    if beta_intra_gbs is None:
        beta_intra_gbs = links.intra_gbs
    intra = None if links.intra_gbs is None or beta_intra_gbs is None else level(assumed.alpha_intra_us, beta_intra_gbs)
    inter = None if beta_inter_gbs is None else level(assumed.alpha_inter_us, beta_inter_gbs)
    rows = tuple(_rows(sweep, scenario, links, intra, inter))
    used = None
    if times is not None:
        rows, used = _calibrated(sweep, scenario, rows, times)
    return EfficiencyReport(sweep, scenario, links, intra, inter, rows, used)


def _calibrated(
    sweep: Sweep, scenario: Scenario, rows: tuple[EfficiencyRow, ...], times: TimesWanted
) -> tuple[tuple[EfficiencyRow, ...], CalibrationUsed]:
    """Adds calibrated times to rows of one kind of call."""
    selection, point = Selection(scenario.communicator()), sweep.results[0].point
    model = calibrated.answering(times, scenario, selection)
    if isinstance(model, NoCalibration):
        return rows, calibrated.used(model)
    request, sizes = Request(sweep.collective, point.dtype, point.op), [row.bytes for row in rows]
    estimates = calibrated.estimates(model, request, selection.pick(request, sizes))
    with_times = tuple(
        replace(row, calibrated=_beside(each.time, row.measured_us)) for row, each in zip(rows, estimates, strict=True)
    )
    return with_times, calibrated.used(model, zip((row.pick for row in rows), estimates, strict=True))


def _beside(time: TimeInterval, measured_us: float) -> CalibratedRow:
    return CalibratedRow(time, line.error(time.time_us, measured_us), time.low_us <= measured_us <= time.high_us)


def _rows(
    sweep: Sweep, scenario: Scenario, links: Links, intra: Level | None, inter: Level | None
) -> Iterator[EfficiencyRow]:
    operation, gpus = CostOperation[sweep.collective.name], scenario.gpus()
    bound = wires.ideal(links.intra_gbs, links.inter_gbs, gpus, scenario.nodes)
    models = costs(operation, gpus, scenario.nodes, (intra, inter))
    models.pop("halving-doubling", None)  # NCCL has nothing like it
    selection = Selection(scenario.communicator())
    for result in sweep.results:
        assert result.estimate is not None
        size, measured_us = result.point.bytes, result.estimate.median_us
        request = Request(sweep.collective, result.point.dtype, result.point.op)
        picks = selection.pick(request, size)
        algorithm, protocol = Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0])
        nccl_us = float(picks.time_us[0])
        name = min(models, key=lambda each: float(models[each].time_us(size)))
        alphabeta_us = float(models[name].time_us(size))
        latency_share = float(models[name].fixed_us) / alphabeta_us
        busbw = float(bus_gbs(operation, size, measured_us, scenario.ranks))
        efficiency = float(bound.efficiency(busbw))
        judged = line.of_efficiency(efficiency, latency_share)
        carried = _carried(operation, algorithm, scenario)
        link_gbs = None if carried is None else _full_gbs(operation, carried, scenario, links, size)
        inter_limits = bound.inter_limits if carried is None else carried.inter_limits(*_given(links))
        errors = [line.error(predicted, measured_us) for predicted in (nccl_us, alphabeta_us)]
        yield EfficiencyRow(
            size,
            measured_us,
            busbw,
            _ran(result),
            f"{algorithm.name}/{protocol.name}",
            nccl_us,
            errors[0],
            line.of_error(errors[0]).name,
            name,
            alphabeta_us,
            errors[1],
            line.of_error(errors[1]).name,
            float(bound.busbw_gbs),
            efficiency,
            link_gbs,
            LATENCY if latency_share > 0.5 else INTER if inter_limits else INTRA,
            judged.name,
            judged.causes,
        )


def _ran(result: Result) -> str | None:
    return None if result.executed is None else f"{result.executed.algorithm.name}/{result.executed.protocol.name}"


def _carried(operation: CostOperation, algorithm: Algorithm, scenario: Scenario) -> Loads | None:
    """The bytes that the algorithm sends over each kind of link; None if not known."""
    try:
        return wires.loads(operation, algorithm.name, scenario.gpus(), scenario.nodes)
    except BadInput:
        return None


def _given(links: Links) -> tuple[float, float]:
    """The bandwidths of the links; 1 for links that do not exist."""
    return links.intra_gbs or 1.0, links.inter_gbs or 1.0


def _full_gbs(operation: CostOperation, carried: Loads, scenario: Scenario, links: Links, size: int) -> float:
    return float(bus_gbs(operation, size, carried.time_us(size, *_given(links)), scenario.ranks))
