"""Reads arms from files and tables: which rows NCCL chose by itself, which rows were forced, and what was executed."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement, CannotBeJudged
from tuner.base.names import ALGO_PROTOS, Collective, DataType, Op
from tuner.base.records import json_form
from tuner.base.sizes import plural
from tuner.base.spelling import option
from tuner.scenario import Scenario
from tuner.times.measured.formats import BY_MEASURE, SIMULATED_TRAP
from tuner.times.measured.header import SIMULATED, Header
from tuner.times.measured.samples import (
    ALGO,
    ALGORITHMS,
    DEFAULT,
    LEAST,
    MOST,
    PROTO,
    PROTOCOLS,
    Combination,
    Forced,
    Measurements,
    Point,
    SampleBlock,
    forced_by_variables,
)
from tuner.times.placement import Placement, Site


@dataclass(frozen=True, slots=True, order=True)
class ArmCall:
    """Call that was measured; ``bytes`` is NCCL's nBytes. ``setting`` is the run's network and its other variables."""

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    in_place: bool
    setting: str
    bytes: int

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def curve(self) -> tuple[object, ...]:
        """A key that is equal for calls that differ only in size."""
        return (self.collective, self.dtype, self.nodes, self.gpus_per_node, self.in_place, self.setting)


@dataclass(frozen=True)
class Arm:
    """Times of one call, us: by NCCL's own choice (``label`` default), or with what the label names forced.

    ``combination`` is what NCCL executed according to its log, else as emulated with the arm's variables; its channels
    are the forced number, else 0. ``logged`` is what NCCL's log says, with its channels; None if there is no log.
    """

    label: str
    combination: Combination = field(metadata=json_form(convert=str))
    times_us: tuple[float, ...]
    logged: Combination | None = field(metadata=json_form(convert=lambda logged: logged and str(logged)))

    @property
    def is_default(self) -> bool:
        """Whether NCCL chose by itself."""
        return self.label == DEFAULT

    @cached_property
    def log_us(self) -> float:
        """Logarithm of the typical time: the median of the repeats."""
        return float(np.median(np.log(self.times_us)))

    @property
    def time_us(self) -> float:
        """The typical time, us."""
        return float(np.exp(self.log_us))


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """All arms of a call. ``pick`` is NCCL's pick with its channels, emulated with the variables ``environment``."""

    call: ArmCall
    pick: Combination
    default: Arm | None
    forced: tuple[Arm, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms, the default first."""
        return (*([self.default] if self.default else []), *self.forced)


@dataclass(frozen=True, slots=True)
class MeasuredArms:
    """All calls of one machine and release, sorted. ``skipped`` counts rows that could not be placed, by reason.

    ``noise_percent`` is the source's noise, by the number of nodes from which it holds. ``simulated`` are the files
    with simulated times.
    """

    site: Site
    calls: tuple[MeasuredCall, ...]
    skipped: Mapping[str, int]
    noise_percent: Mapping[str, float]
    simulated: tuple[str, ...] = ()


FORCING = (ALGO, PROTO, LEAST, MOST)


def by_label(label: str) -> Forced:
    """What a label forces: ``default``, ``Ring``, ``LL128``, ``Ring/LL``, or ``Ring/LL/8`` with channels. BadInput for
    other labels.
    """
    if label.lower() == DEFAULT:
        return Forced()
    algorithm, protocol, channels = "", "", 0
    for word in label.split("/"):
        if (name := ALGORITHMS.get(word.lower())) and not algorithm:
            algorithm = name
        elif (name := PROTOCOLS.get(word.lower())) and not protocol:
            protocol = name
        elif word.isdigit() and int(word) and not channels:
            channels = int(word)
        else:
            names = f"an algorithm ({', '.join(ALGORITHMS.values())}), a protocol ({', '.join(PROTOCOLS.values())})"
            raise BadInput(
                f"arm {label!r}: give {DEFAULT}, or what was forced: {names}, a number of channels, with / between "
                "them, as in Ring/LL/8"
            )
    return Forced(algorithm, protocol, channels)


def of_row(table: Measurements, row: SampleBlock) -> Forced:
    """What a row of a table forced: as its run's variables say, else as its columns say.

    In a run whose name is ``default`` or the table's name, the columns force nothing: they show NCCL's choice according
    to its log.
    """
    forced = forced_by_variables(table.environment_of(row))
    by_log = row.requested is None or row.run in (DEFAULT, table.name)
    return forced if forced != Forced() or by_log else row.took


# These variables remove algorithms from NCCL's choice: runs with one setting are made to differ by them, in addition to
# the variables above.
SWITCHES = ("NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE")
NO_NVLS = "NCCL_NVLS_ENABLE=0"


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table. ``path``: the table's file, if it is not a shipped table. ``said``: what all its rows forced, if the
    user said so; files for which the user said this are assumed to share their settings.
    """

    table: Measurements
    path: Path | None = None
    said: Forced | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A row of a call that NCCL tunes: its call and arm, what was executed according to the log, and the variables for
    NCCL's own pick.
    """

    row: SampleBlock
    call: ArmCall
    label: str
    forced: Forced
    logged: Combination | None
    unforced: Mapping[str, str]


# A row, and the combination that runs according to the emulator, with its channels
_Emulated = tuple[_Read, Combination]


def of_sources(sources: Sequence[TableSource], site: Site) -> MeasuredArms:
    """All arms of one machine.

    BadInput if a file names another arm than the user. CannotBeJudged if no row can be placed on the machine.
    """
    times: dict[ArmCall, dict[str, list[_Emulated]]] = defaultdict(lambda: defaultdict(list))
    picks: dict[ArmCall, _Emulated] = {}
    skipped: Counter[str] = Counter()
    failed: CannotBeJudged | None = None
    for source in sources:
        read = _read(source)
        placement, is_placed = _placement(source, read, site), False
        for _, _, emulated, keys in placement.picks():
            is_placed = True
            numbers = zip(emulated.combinations.tolist(), emulated.channels.tolist(), keys, strict=True)
            for number, channels, (one, asks_for_pick) in numbers:
                found = one, replace(Combination(*ALGO_PROTOS[number]), channels=int(channels))
                if not asks_for_pick:
                    times[one.call][one.label].append(found)
                elif one.call not in picks or one.label == DEFAULT:
                    picks[one.call] = found
        if is_placed:
            skipped.update(placement.skipped)
        else:
            failed = placement.nothing(source.table)
    if not times:
        reasons = "; ".join(f"{plural(rows, 'row')}: {why}" for why, rows in skipped.items())
        raise failed or CannotBeJudged(f"no row for which NCCL's model has a time; {reasons}")
    noise = {nodes: value for source in sources for nodes, value in source.table.header.noise_percent.items()}
    calls = tuple(_measured_call(call, times[call], picks[call]) for call in sorted(times) if call in picks)
    simulated = [source for source in sources if SIMULATED_TRAP in source.table.header.traps]
    names = dict.fromkeys(str(source.path or source.table.name) for source in simulated)
    return MeasuredArms(site, calls, dict(skipped), noise, tuple(names))


def _measured_call(call: ArmCall, times: Mapping[str, Sequence[_Emulated]], pick: _Emulated) -> MeasuredCall:
    arms = {label: _arm(label, its) for label, its in sorted(times.items())}
    default = arms.pop(DEFAULT, None)
    return MeasuredCall(call, pick[1], default, tuple(arms.values()), tuple(sorted(pick[0].unforced.items())))


def _arm(label: str, repeats: Sequence[_Emulated]) -> Arm:
    first, emulated = repeats[0]
    ran = replace(first.logged or emulated, channels=first.forced.channels)
    return Arm(label, ran, tuple(one.row.median_us for one, _ in repeats), first.logged)


def _read(source: TableSource) -> list[_Read]:
    """The rows of calls that NCCL tunes."""
    table = source.table
    tuned = [(row, _forced(source, row)) for row in table.blocks if not row.point.is_point_to_point]
    without_nvls = {_is_without_nvls(table, row) for row, what in tuned if what == Forced()}
    read = []
    for row, what in tuned:
        environment, label = table.environment_of(row), what.label
        away = FORCING if label == DEFAULT else (*FORCING, *SWITCHES)
        if label == DEFAULT and len(without_nvls) == 2 and _is_without_nvls(table, row):
            label = NO_NVLS
        logged = _logged(table, row)
        unforced = {name: value for name, value in environment.items() if name not in away}
        read.append(_Read(row, _call(source, row), label, what, logged, unforced))
    return read


def _forced(source: TableSource, row: SampleBlock) -> Forced:
    settings = of_row(source.table, row)
    if source.said is None or settings == source.said or _says_its_arms(source.table, settings):
        return settings
    both = zip(settings.parts, source.said.parts, strict=True)
    if any(one and other and one != other for one, other in both) or (source.said == Forced() and settings != Forced()):
        raise BadInput(
            f"{source.path}:{row.line}: {settings.label} was forced, but {option('arm')} says {source.said.label}"
        )
    return Forced(*(one or other for one, other in zip(settings.parts, source.said.parts, strict=True)))  # type: ignore[arg-type]


def _says_its_arms(table: Measurements, settings: Forced) -> bool:
    """Whether the row is NCCL's own choice although the user named a forced arm: `measure` writes both to one file."""
    return settings == Forced() and table.header.how_measured.startswith(BY_MEASURE)


def _logged(table: Measurements, row: SampleBlock) -> Combination | None:
    return None if row.requested is not None or row.took == of_row(table, row) else row.executed


def _is_without_nvls(table: Measurements, row: SampleBlock) -> bool:
    return table.environment_of(row).get("NCCL_NVLS_ENABLE") == "0"


def _call(source: TableSource, row: SampleBlock) -> ArmCall:
    place = (row.nodes, row.gpus_per_node, bool(row.point.in_place))
    is_one_run = {row.run} <= {source.table.name, f"{source.table.name}-forced"}  # from nccl-tests or `measure`
    setting = "" if is_one_run or source.said is not None else _setting(source.table, row)
    return ArmCall(row.point.collective, row.point.dtype, *place, setting, row.point.bytes)


def _setting(table: Measurements, row: SampleBlock) -> str:
    """Settings of a table's run besides what it forced; rows with different settings are not arms of the same call."""
    run = table.header.runs.get(row.run)
    if run is None:
        return ""
    own = {name: value for name, value in run.environment.items() if name not in (*FORCING, *SWITCHES)}
    devices = f"GPUs {','.join(map(str, run.devices))}" if run.devices else ""
    return ", ".join(filter(None, (run.network, *(f"{name}={value}" for name, value in sorted(own.items())), devices)))


def _placement(source: TableSource, read: Sequence[_Read], site: Site) -> Placement[tuple[_Read, bool]]:
    """Places every row with what it forced, and per call one more row, marked True, for NCCL's own pick."""
    placement = Placement[tuple[_Read, bool]](site)
    asked: dict[ArmCall, _Read] = {}  # one of NCCL's own choices if there is one
    for one in read:
        if one.call not in asked or (one.label == DEFAULT and asked[one.call].label != DEFAULT):
            asked[one.call] = one
        environment = source.table.environment_of(one.row)
        forced = None if forced_by_variables(environment) != Forced() else one.forced
        placement.add(_out_of_place(one.row, forced), environment, source.table.network_of(one.row), (one, False))
    for one in asked.values():
        placement.add(_out_of_place(one.row, None), one.unforced, source.table.network_of(one.row), (one, True))
    return placement


def _out_of_place(row: SampleBlock, forced: Forced | None) -> SampleBlock:
    return replace(row, point=replace(row.point, in_place=False), requested=forced, executed=None)


BACKEND = "arms"  # for files of any kind that are put together


def of_arms(placed: MeasuredArms) -> list[Measurements]:
    """The arms as measurements, one for each communicator and setting. Each repeat of an arm counts as a round. What
    NCCL's own choice executed is as logged, or as emulated.
    """
    together: dict[tuple[int, int, str, tuple[tuple[str, str], ...]], list[MeasuredCall]] = defaultdict(list)
    for one in placed.calls:
        together[one.call.nodes, one.call.gpus_per_node, one.call.setting, one.environment].append(one)
    made = []
    for (nodes, gpus, _, environment), calls in together.items():
        scenario = placed.site.scenario(nodes, gpus, dict(environment))
        backend = SIMULATED if placed.simulated else BACKEND
        header = Header(backend, scenario=scenario, ranks=nodes * gpus, nodes=nodes, nccl=placed.site.nccl)
        made.append(Measurements(header, tuple(block for one in calls for block in _blocks(one))))
    return made


def of_communicator(placed: MeasuredArms, scenario: Scenario) -> Measurements:
    """The measurements on ``scenario``'s communicator. BadMeasurement if there are no such measurements, or if they
    have several settings.
    """
    nodes = sum(kind.nodes for kind in scenario.kinds)
    own = [each for each in of_arms(placed) if (each.header.nodes, each.header.ranks) == (nodes, scenario.ranks)]
    if len(own) != 1:
        there = sorted({(one.call.nodes, one.call.ranks) for one in placed.calls})
        have = ", ".join(f"{ranks} ranks on {count} nodes" for count, ranks in there)
        why = "files of several settings" if own else f"measured on {have}"
        raise BadMeasurement(f"{why}: give measurements of {scenario.title} with one setting")
    return own[0]


def _blocks(one: MeasuredCall) -> Iterator[SampleBlock]:
    call, rounds = one.call, Counter[Combination | None]()
    point = Point(call.collective, call.bytes, call.dtype, Op.sum, call.in_place)
    for arm in one.arms:
        requested = None if arm.is_default else arm.combination
        executed = arm.logged or (arm.combination if arm.is_default else None)
        for time_us in arm.times_us:
            yield SampleBlock(point, requested, executed, (time_us,), round=rounds[requested])
            rounds[requested] += 1
