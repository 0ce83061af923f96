"""The ranks' files of a job, joined: of each call the least time over the ranks is the transfer, the rest is waiting.

A rank's kernel of a collective also waits for the last rank to come, and all end at about the same time. So the rank
whose kernel is shortest came last. Calls are told apart by communicator, function and NCCL's number of the call among
those of its function, which all ranks count alike (comm->seqNumber, src/plugin/profiler.cc, v2.28.9-1).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count as numbers_from
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.base import extras
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.jobs.inside.files import HOST_CLOCK, MOST_US, JobFile, files_of, read_any
from tuner.jobs.traces.calls import nbytes
from tuner.plugin.table.records import MAX_CHANNELS
from tuner.scenario.logs import choice
from tuner.times.records.samples import Combination

if TYPE_CHECKING:
    import polars

AT_ONCE = 500_000  # records: 50 bytes each are in memory, and some copies of them
_RANK_BITS = 20
MOST_SIZE = (1 << 63) - 1  # bytes of a call
_MOST_SHOWN = 5  # broken files that are named
_TICKS = 1000  # a time is kept in ns


@dataclass(frozen=True, slots=True)
class JobCommunicator:
    """A communicator as its ranks' files have it: ``ranks`` are as many as it has, ``seen`` those that have a file.

    ``rank_names`` says rank by rank who it is: the launcher's rank and the host. ``nodes`` is None where NCCL does not
    say it.
    """

    id: int
    name: str
    ranks: int
    nodes: int | None
    rank_names: Mapping[int, str]

    @property
    def seen(self) -> int:
        """Ranks that have a file."""
        return len(self.rank_names)


@dataclass(frozen=True, slots=True)
class JobCall:
    """Kind of call, and what ran, None where the file does not say it.

    ``bytes`` is NCCL's nBytes, ``warps`` are those of a channel.
    """

    collective: Collective
    bytes: int
    dtype: DataType
    executed: Combination | None
    warps: int


@dataclass(frozen=True, slots=True)
class JoinedCalls:
    """The calls of one communicator that all its ranks have, in the order of their ends: arrays are [call].

    ``at_s`` is the wall clock at the end; ``waiting_us`` the sum over all ranks of what their kernels waited, ``last``
    the rank that came last. ``calls`` are told by ``call``, the place in ``kinds``; ``sequence`` is NCCL's number.
    ``incomplete`` are calls that some ranks have no record of; ``parted`` those of which ranks ran something else.
    """

    communicator: JobCommunicator
    kinds: tuple[JobCall, ...]
    call: NDArray[np.int64]
    sequence: NDArray[np.int64]
    transfer_us: NDArray[np.float64]
    waiting_us: NDArray[np.float64]
    last: NDArray[np.int64]
    at_s: NDArray[np.float64]
    incomplete: int
    parted: int


@dataclass
class _Gathered:
    """Heads of all files, put together."""

    communicators: dict[int, tuple[Any, dict[int, str]]] = field(default_factory=dict)
    files: dict[int, list[tuple[JobFile, int]]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The files of a job. ``lost``: calls without room in the plugin; every 2**``thinned``-th call has a record."""

    files: tuple[JobFile, ...]
    lost: int
    thinned: int
    host_clock: bool
    left_out: tuple[str, ...]

    @property
    def releases(self) -> tuple[str, ...]:
        """Releases of NCCL, as the files say."""
        return tuple(sorted({file.nccl for file in self.files if file.nccl}))

    @property
    def processes(self) -> int:
        """Number of processes that wrote files."""
        return len({(file.host, file.pid) for file in self.files})


def read_folder(folder: Path) -> JobFolder:
    """Heads and kinds of all files; records are read when they are joined.

    BadInput where there is none, or none that can be read; a file that is broken is left out and named.
    """
    extras.require("polars", f"{folder}: joining ranks")
    files, broken = [], []
    for path in files_of(folder):
        try:
            files.append(read_any(path))
        except BadInput as error:
            broken.append(str(error))
    if not files:
        valid = "valid: the folder that NCCL_TUNER_JOB named, or of the Inspector's JSON"
        more = [f"and {len(broken) - _MOST_SHOWN} more"] * (len(broken) > _MOST_SHOWN)
        raise BadInput("; ".join([*broken[:_MOST_SHOWN], *more]) or f"{folder}: no file of a job; {valid}")
    last = {(file.host, file.pid): file for file in files}  # counts of a process go on from file to file
    return JobFolder(
        tuple(files),
        sum(file.lost for file in last.values()),
        max(file.thinned for file in files),
        any(_has_host_clock(file) for file in files),
        (*broken, *_impossible(files)),
    )


def _times(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Records whose time can be one, [record]; NaN cannot."""
    with np.errstate(invalid="ignore"):
        return (records["time_us"] >= 0) & (records["time_us"] <= MOST_US)


def _has_host_clock(file: JobFile) -> bool:
    found = bool((file.communicators["version"] == HOST_CLOCK).any())
    file.release()
    return found


def _impossible(files: Iterable[JobFile]) -> Iterator[str]:
    for file in files:
        count = len(file.records) - int(_times(file.records).sum())
        large = int(((file.kinds["channels"] > MAX_CHANNELS) | (file.kinds["count"] > MOST_SIZE)).sum())
        file.release()
        if count:
            yield f"{file.path}: {count} records are left out: their times are negative, too long or no number"
        if large:
            yield f"{file.path}: {large} kinds of calls are left out: more channels or bytes than there can be"


Fold = Callable[[Iterable["polars.DataFrame"]], "polars.DataFrame"]


def joined(folder: JobFolder, fold: Fold | None = None) -> Iterator[JoinedCalls]:
    """Calls of each communicator, the one with most time first. What is joined at once is bounded.

    ``fold`` has one row for each call of the frames with a row for each rank's, such as :func:`by_dask`.
    """
    gathered = _gathered(folder)
    for number in sorted(gathered.files, key=lambda each: -_time_us(gathered.files[each])):
        yield _joined_one(gathered, number, fold or _folded)


def _gathered(folder: JobFolder) -> _Gathered:
    found = _Gathered()
    for file in folder.files:
        named = file.kinds["function"] != b""
        for place in np.unique(file.kinds["communicator"][named]):
            one = file.communicators[place]
            number = int(one["id"])
            name = f"rank {file.rank} on {file.host}" if file.rank is not None else f"process {file.pid} on {file.host}"
            found.communicators.setdefault(number, (one.copy(), {}))[1].setdefault(int(one["rank"]), name)
            found.files[number].append((file, int(place)))
        file.release()
    return found


def _time_us(files: Sequence[tuple[JobFile, int]]) -> float:
    whole_us = 0.0
    for file, place in files:
        whole_us += float(file.kinds["sum_us"][file.kinds["communicator"] == place].sum())
        file.release()
    return whole_us


def job_call(kind: Any, ranks: int) -> JobCall | None:
    """Kind of a file's struct job_kind; None for what is no collective that NCCL tunes, or cannot be."""
    words = {name: kind[name].decode(errors="replace") for name in ("function", "type", "algorithm", "protocol")}
    collective, algorithm = choice.collective(words["function"]), choice.algorithm(words["algorithm"])
    protocol = choice.protocol(words["protocol"])
    dtype = DataType.__members__.get(words["type"].removeprefix("nccl").lower())
    if collective is None or dtype is None:
        return None
    size = nbytes(collective, int(kind["count"]), dtype, max(ranks, 1))
    if kind["channels"] > MAX_CHANNELS or size > MOST_SIZE:
        return None
    executed = None
    if algorithm is not None and protocol is not None:
        executed = Combination(Algorithm(algorithm), Protocol(protocol), int(kind["channels"]))
    return JobCall(collective, size, dtype, executed, int(kind["warps"]))


def _frames(
    files: Sequence[tuple[JobFile, int]], places: Sequence[NDArray[np.int64]], functions: NDArray[np.int64]
) -> Iterator["polars.DataFrame"]:
    """The records of each file, as calls of one rank: a key of function and number, and what is kept of a call."""
    import polars as pl

    for (file, place), kind in zip(files, places, strict=True):
        rank = int(file.communicators[place]["rank"])
        of = kind[file.records["kind"]] if len(kind) else np.empty(0, np.int64)
        own = (of >= 0) & _times(file.records)
        records, of = file.records[own], of[own].astype(np.uint32)
        time_ns = np.round(records["time_us"].astype(np.float64) * _TICKS).astype(np.uint64)
        yield pl.DataFrame(
            {
                "key": functions[of].astype(np.uint64) << np.uint64(32) | records["sequence"].astype(np.uint64),
                "least": time_ns << np.uint64(_RANK_BITS) | np.uint64(max(rank, 0)),
                "time": time_ns,
                "ranks": np.ones(len(of), np.uint32),
                "sum": np.full(len(of), rank, np.int64),
                "squares": np.full(len(of), rank**2, np.int64),
                "kind": of,
                "other": of,
                "at": np.int64(file.started_ns // 1_000_000) + records["at_ms"].astype(np.int64),
            }
        )
        file.release()


# How the columns of a call's ranks become one; "key" tells calls apart.
_ONE_ROW = {
    "least": "min",
    "time": "sum",
    "ranks": "sum",
    "sum": "sum",
    "squares": "sum",
    "kind": "min",
    "other": "max",
    "at": "max",
}


def _folded(frames: Iterable["polars.DataFrame"]) -> "polars.DataFrame":
    """One row a call; no more records than AT_ONCE are in memory beside the calls."""
    import polars as pl

    def fold(several: list["polars.DataFrame"]) -> "polars.DataFrame":
        columns = [getattr(pl.col(name), how)() for name, how in _ONE_ROW.items()]
        grouped = pl.concat(several).lazy().group_by("key").agg(*columns)
        return grouped.select("key", *_ONE_ROW).collect(engine="streaming")

    waiting: list[polars.DataFrame] = []
    for frame in frames:
        waiting.append(frame)
        if len(waiting) > 1 and sum(map(len, waiting[1:])) >= AT_ONCE:
            waiting = [fold(waiting)]
    return fold(waiting)


def by_dask(to: Path, parts: int = 1) -> Fold:
    """Fold by the Dask cluster whose client is the current one: what is joined is kept in the new folder ``to``, as
    Parquet partitioned by communicator and rank. ``parts``: of how many partitions the calls of a communicator are.
    BadInput where Dask is not installed.
    """
    import polars as pl

    try:
        dask = import_module("dask.dataframe")
    except ImportError as error:
        raise BadInput(f"joining on a cluster: pip install 'dask[dataframe,distributed]' ({error})") from None
    numbers = numbers_from()

    def fold(frames: Iterable["polars.DataFrame"]) -> "polars.DataFrame":
        folder = to / f"communicator={next(numbers)}"
        for rank, frame in enumerate(frames):
            (folder / f"part={rank}").mkdir(parents=True)
            frame.write_parquet(folder / f"part={rank}" / "records.parquet")
        records = dask.read_parquet(folder, columns=["key", *_ONE_ROW])
        return pl.from_pandas(records.groupby("key").agg(_ONE_ROW, split_out=parts).compute().reset_index())

    return fold


def _joined_one(gathered: _Gathered, number: int, fold: Fold) -> JoinedCalls:
    import polars as pl

    one, names = gathered.communicators[number]
    ranks = int(one["ranks"]) or len(names)
    nodes = int(one["nodes"]) if 0 < one["nodes"] <= ranks else None
    name = one["name"].decode(errors="replace")
    communicator = JobCommunicator(number, name, ranks, nodes, dict(sorted(names.items())))
    kinds: dict[JobCall, int] = {}
    places = []
    for file, place in gathered.files[number]:
        calls = [
            job_call(kind, ranks) if kind["function"] and kind["communicator"] == place else None for kind in file.kinds
        ]
        places.append(np.array([-1 if call is None else kinds.setdefault(call, len(kinds)) for call in calls]))
        file.release()
    known = tuple(kinds)
    functions = np.array([int(call.collective) for call in known], np.int64)

    found = fold(_frames(gathered.files[number], places, functions)).sort("at", "key")
    # a rank that is there twice, or is none of it, shows in the sum of their numbers, or in that of the squares
    of_all = ranks * (ranks - 1) // 2, ranks * (ranks - 1) * (2 * ranks - 1) // 6
    whole = ((found["ranks"] == ranks) & (found["sum"] == of_all[0]) & (found["squares"] == of_all[1])).to_numpy()
    parted = (found["kind"] != found["other"]).to_numpy()
    kept = found.filter(pl.Series(whole & ~parted))
    transfer_ns = (kept["least"].to_numpy() >> np.uint64(_RANK_BITS)).astype(np.float64)
    return JoinedCalls(
        communicator,
        known,
        kept["kind"].to_numpy().astype(np.int64),
        (kept["key"].to_numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64),
        transfer_ns / _TICKS,
        (kept["time"].to_numpy().astype(np.float64) - ranks * transfer_ns) / _TICKS,
        (kept["least"].to_numpy() & np.uint64((1 << _RANK_BITS) - 1)).astype(np.int64),
        kept["at"].to_numpy() / 1e3,
        int((~whole).sum()),
        int((whole & parted).sum()),
    )
