"""Makes reports from a job's files: transfer, waiting, who comes last; and measured times in the form that all commands
read."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path

import numpy as np

from tuner.base import extras
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import replacing
from tuner.jobs.inside.files import INSPECTOR
from tuner.jobs.inside.joined import JobCall, JobFolder, JoinedCalls, no_call
from tuner.scenario import Scenario
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock

BACKEND = "job"  # of measurements that were made inside a job
STRETCH_S = 60.0  # calls of a kind within it are one sample block
MOST_TIMES = 500  # of a sample block; evenly taken
BEYOND = 5.0  # standard deviations above its share: a straggler is no accident
AND_TIMES = 2.0  # times its share


@dataclass(frozen=True, slots=True)
class JobRow:
    """Calls of one kind on communicators of one size: median times, and the share of the kernels' time that is
    waiting."""

    ranks: int
    nodes: int | None
    call: JobCall
    calls: int
    transfer_us: float
    spread_us: float  # between the quartiles
    waiting: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that comes last more often than by accident; ``waiting_s`` is how long the others waited in these
    calls."""

    name: str
    calls: int
    last: int
    share: float  # that it would have by accident
    waiting_s: float


@dataclass(frozen=True, slots=True)
class JobReport:
    """A report on a job. ``mismatched`` counts calls that ranks executed differently; there should be none, as the job
    would hang. ``untimed`` counts calls without a time, which ``notes`` explain.
    """

    processes: int
    communicators: int
    releases: tuple[str, ...]
    calls: int
    transfer_s: float  # of all ranks
    waiting_s: float
    rows: tuple[JobRow, ...]
    stragglers: tuple[Straggler, ...]
    mismatched: int
    incomplete: int
    untimed: int
    notes: tuple[str, ...]

    @property
    def waiting(self) -> float:
        """The share of the kernels' time that is waiting."""
        whole = self.transfer_s + self.waiting_s
        return self.waiting_s / whole if whole else 0.0


@dataclass()
class _Counts:
    calls: int = 0
    last: int = 0
    accident: float = 0.0
    variance: float = 0.0
    waiting_us: float = 0.0


def report(folder: JobFolder, joined: Iterable[JoinedCalls]) -> JobReport:
    """Makes the report in one pass over the joined calls of all communicators."""
    rows: list[JobRow] = []
    ranks: dict[str, _Counts] = {}
    transfer = waiting = 0.0
    calls = mismatched = incomplete = communicators = 0
    for each in joined:
        communicators += 1
        calls, mismatched, incomplete = (
            calls + len(each.call),
            mismatched + each.mismatched,
            incomplete + each.incomplete,
        )
        transfer += float(each.transfer_us.sum()) * each.communicator.ranks
        waiting += float(each.waiting_us.sum())
        rows += _rows(each)
        _count_last(each, ranks)
    return JobReport(
        folder.processes,
        communicators,
        folder.releases,
        calls,
        transfer / 1e6,
        waiting / 1e6,
        tuple(sorted(rows, key=lambda row: -row.calls * row.transfer_us)),
        tuple(sorted(_stragglers(ranks), key=lambda each: -each.waiting_s)),
        mismatched,
        incomplete,
        folder.untimed.total(),
        tuple(_notes(folder, incomplete)),
    )


def _rows(each: JoinedCalls) -> Iterable[JobRow]:
    for place, call in enumerate(each.kinds):
        own = each.call == place
        if own.any():
            low, middle, high = np.percentile(each.transfer_us[own], (25, 50, 75))
            kernels = float(each.transfer_us[own].sum()) * each.communicator.ranks
            wait = float(each.waiting_us[own].sum())
            part = wait / (wait + kernels) if wait + kernels else 0.0
            one = each.communicator
            yield JobRow(one.ranks, one.nodes, call, int(own.sum()), float(middle), float(high - low), part)


def _count_last(each: JoinedCalls, ranks: dict[str, _Counts]) -> None:
    count = np.bincount(each.last, minlength=each.communicator.ranks)
    waited = np.bincount(each.last, weights=each.waiting_us, minlength=each.communicator.ranks)
    share, calls = 1 / each.communicator.ranks, len(each.call)
    for rank, name in each.communicator.rank_names.items():
        one = ranks.setdefault(name, _Counts())
        if 0 <= rank < len(count):
            one.calls, one.last = one.calls + calls, one.last + int(count[rank])
            one.accident += calls * share
            one.variance += calls * share * (1 - share)
            one.waiting_us += float(waited[rank])


def _stragglers(ranks: dict[str, _Counts]) -> Iterable[Straggler]:
    for name, one in ranks.items():
        if one.last > AND_TIMES * one.accident and one.last - one.accident > BEYOND * sqrt(one.variance):
            yield Straggler(name, one.calls, one.last, one.accident / one.calls, one.waiting_us / 1e6)


def _notes(folder: JobFolder, incomplete: int) -> Iterable[str]:
    if any(file.build == INSPECTOR for file in folder.files):
        yield (
            "the Inspector records no data types, so calls are taken as calls of bytes; before NCCL 2.31 it does "
            "not record what ran"
        )
        yield (
            "from NCCL 2.31 on, its times after a broadcast are those of the previous call, unless "
            "NCCL_ALLGATHERV_ENABLE=0"
        )
    if folder.host_clock:
        yield (
            "NCCL 2.26 does not time kernels itself: the times are when NCCL's thread on the host noticed their "
            "start and end"
        )
    if folder.lost:
        yield f"{folder.lost} calls were lost, as the plugin had no room for them"
    if folder.thinned:
        yield f"only every {2**folder.thinned}th call of an hour has a record, the same calls on all ranks"
    if incomplete:
        yield f"{incomplete} calls are left out: not every rank has a record of them"
    yield from folder.notes


# --- measured times ---


def measurements(joined: Sequence[JoinedCalls], scenario: Scenario | None) -> Measurements:
    """The times in the form in which ``measure`` writes them, with a block for each kind of call and each minute.

    What most calls of a size executed counts as NCCL's own choice (or the table's); everything else counts as explored.
    The operation is not known, and assumed to be a sum. Only communicators with as many ranks as the scenario are used.
    Without ``scenario``, the number of ranks is the one whose communicators have the most time. BadInput if no
    communicator with that number of ranks has a call with a time, CannotBeJudged if no call has a time on every rank.
    """
    if not any(len(each.call) for each in joined):
        raise no_call(each.communicator for each in joined)
    if scenario is not None:
        own = [each for each in joined if each.communicator.ranks == scenario.ranks]
    else:
        sizes = Counter[int]()
        for each in joined:
            sizes[each.communicator.ranks] += int(each.transfer_us.sum())
        own = [each for each in joined if each.communicator.ranks == max(sizes, key=lambda size: sizes[size])]
    if not any(len(each.call) for each in own):
        there = ", ".join(sorted({str(each.communicator.ranks) for each in joined if len(each.call)}))
        wanted = f"; valid: of {scenario.title}" if scenario is not None else ""
        raise BadInput(f"the calls that have a time were made by communicators of {there} ranks{wanted}")
    one = own[0].communicator
    header = Header(
        BACKEND,
        scenario=scenario,
        ranks=one.ranks,
        nodes=one.nodes,
        nccl=scenario.nccl if scenario is not None else "",
    )
    begin_s = min(float(each.at_s[0]) for each in own if len(each.at_s))
    blocks = [block for process, each in enumerate(own) for block in _blocks(each, begin_s, process)]
    return Measurements(header, tuple(sorted(blocks, key=lambda block: block.at_s)))


def _blocks(each: JoinedCalls, begin_s: float, process: int) -> Iterable[SampleBlock]:
    most = _usual(each)
    stretch = ((each.at_s - begin_s) // STRETCH_S).astype(np.int64)
    order = np.lexsort((stretch, each.call))
    edges = np.flatnonzero(np.diff(each.call[order]) | np.diff(stretch[order])) + 1
    for part in np.split(order, edges):
        if not len(part):
            continue
        call = each.kinds[int(each.call[part[0]])]
        point = Point(call.collective, call.bytes, call.dtype)
        taken = part[np.linspace(0, len(part) - 1, min(len(part), MOST_TIMES)).astype(np.int64)]
        ended_s = float(each.at_s[part].max())
        block = SampleBlock(
            point,
            None if call.executed == most[point] else call.executed,
            call.executed,
            tuple(round(float(time), 3) for time in each.transfer_us[taken]),
            round=int(stretch[part[0]]),
            at_s=ended_s - begin_s,
            process=process,
        )
        yield replace(block, time=datetime.fromtimestamp(ended_s, UTC).isoformat(timespec="milliseconds"))


def _usual(each: JoinedCalls) -> dict[Point, Combination | None]:
    """The combination that most calls of each kind and size ran."""
    counts: dict[Point, Counter[Combination | None]] = {}
    for place, count in enumerate(np.bincount(each.call, minlength=len(each.kinds))):
        call = each.kinds[place]
        point = Point(call.collective, call.bytes, call.dtype)
        counts.setdefault(point, Counter())[call.executed] += int(count)
    return {point: count.most_common(1)[0][0] for point, count in counts.items()}


def write_parquet(folder: Path, joined: Iterable[JoinedCalls]) -> Iterator[JoinedCalls]:
    """Writes the calls of each communicator to ``communicator=ID/calls.parquet``, as partitioned Parquet, and yields
    the calls of each communicator after that.
    """
    extras.require("polars", f"{folder}: writing Parquet")
    import polars as pl

    for each in joined:
        kinds = each.kinds
        call = each.call
        columns = {
            "ranks": np.full(len(call), each.communicator.ranks),
            "collective": [kinds[k].collective.name for k in call],
            "bytes": np.array([kinds[k].bytes for k in call], np.int64),
            "dtype": [kinds[k].dtype.name for k in call],
            "algorithm": [None if (ran := kinds[k].executed) is None else ran.algorithm.name for k in call],
            "protocol": [None if (ran := kinds[k].executed) is None else ran.protocol.name for k in call],
            "channels": [None if (ran := kinds[k].executed) is None else ran.channels for k in call],
            "sequence": each.sequence,
            "transfer_us": each.transfer_us,
            "waiting_us": each.waiting_us,
            "last_rank": each.last,
            "at_s": each.at_s,
        }
        to = folder / f"communicator={each.communicator.id:016x}"
        to.mkdir(parents=True, exist_ok=True)
        with replacing(to / "calls.parquet") as path:
            pl.DataFrame(columns).write_parquet(path)
        yield each
