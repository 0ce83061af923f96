"""Groups measured rows into curves: the times of one kind of call on one communicator, by size."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.names import DataType, Op
from tuner.base.numerics import SizeArray
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import CostOperation
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import FP8, SOCKETS, ConfiguredShape, searched_otherwise, variables_of
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.point_to_point import MODELLED


@dataclass(frozen=True, slots=True)
class Exchange:
    """AllToAll or SendRecv, which are made of sends and receives: NCCL picks nothing for them."""

    dtype: DataType
    collective: CostOperation = CostOperation.AllToAll

    @property
    def title(self) -> str:
        """The call in words, like the title of a request."""
        return f"{self.collective.name} {self.dtype.name}"


@dataclass(frozen=True, slots=True)
class CurveKind:
    """The properties that all rows of a curve share. ``sockets``: whether the calls used TCP sockets between nodes."""

    shape: ConfiguredShape
    request: Request | Exchange
    in_place: bool = False
    sockets: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The times of one kind of call, one element per size, in ascending order of sizes. If a size was measured several
    times, its time is the median.

    ``bytes`` is NCCL's nBytes, ``lines`` has the rows' lines in ``file``. ``worst``: the longest time of each size,
    None if none was measured more than once.
    """

    file: str
    kind: CurveKind
    bytes: SizeArray
    time_us: Array
    lines: tuple[tuple[int, ...], ...]
    worst: Array | None = None

    @property
    def worst_us(self) -> Array:
        """The longest time per size, us."""
        return self.time_us if self.worst is None else self.worst


def of_table(table: Measurements, file: str, scenario: Scenario) -> tuple[list[Curve], Counter[str]]:
    """Curves of a table's rows, in place and out of place separately, and how many rows were left out, by reason."""
    skipped = Counter[str]()
    kinds: dict[CurveKind, list[SampleBlock]] = defaultdict(list)
    for row in table.blocks:
        settings = _settings(table, row, scenario)
        why = _skipped(row) if isinstance(settings, dict) else settings
        if why is not None:
            skipped[why] += 1
            continue
        assert isinstance(settings, dict)
        dtype = row.point.dtype
        request: Request | Exchange
        if row.point.is_point_to_point:
            request = Exchange(dtype, CostOperation[row.point.operation.name])
        else:
            request = Request(row.point.collective, dtype, Op.sum)
        shape = ConfiguredShape(row.nodes, row.gpus_per_node, tuple(sorted(settings.items())))
        kinds[CurveKind(shape, request, bool(row.point.in_place), table.network_of(row) == SOCKETS)].append(row)
    return [_curve(file, kind, rows) for kind, rows in kinds.items()], skipped


def _curve(file: str, kind: CurveKind, rows: list[SampleBlock]) -> Curve:
    by_size: dict[int, list[SampleBlock]] = defaultdict(list)
    for row in rows:
        by_size[row.point.bytes].append(row)
    sizes = sorted(by_size)
    repeated = any(len(each) > 1 for each in by_size.values())
    return Curve(
        file,
        kind,
        np.array(sizes, np.uint64),
        np.array([median(row.median_us for row in by_size[size]) for size in sizes]),
        tuple(tuple(row.line for row in by_size[size]) for size in sizes),
        np.array([max(row.median_us for row in by_size[size]) for size in sizes]) if repeated else None,
    )


def _skipped(row: SampleBlock) -> str | None:
    if row.point.is_point_to_point and row.point.name not in (*MODELLED, "sendrecv"):
        return f"of {row.point.name}: no time is expected of it"
    return "8-bit floats, which NCCL's model was not measured with" if row.point.dtype in FP8 else None


def _settings(table: Measurements, row: SampleBlock, scenario: Scenario) -> dict[str, str] | str:
    """The row's variables that NCCL's model reads; or the reason why the model cannot answer for the row."""
    given = scenario.environment or {}
    own = catalogue.load(scenario.machine).environment if scenario.machine else {}
    nccl = release.load(scenario.nccl)
    of_run: Mapping[str, str] = {**table.environment_of(row), **given}
    if (other := searched_otherwise(of_run, nccl, own, given)) is not None:
        return f"{other}: another search than the machine's; valid: {option('env')} {other}"
    return variables_of(row, of_run, nccl, own, given)
