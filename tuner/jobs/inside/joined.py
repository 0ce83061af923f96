"""Joins the files of a job's ranks: the shortest time of a call over the ranks is its transfer, the rest is waiting.

A rank's kernel of a collective also waits for the last rank to come, and all kernels end at about the same time. So the
rank with the shortest kernel came last. A call is identified by its communicator, its function, and NCCL's number of
the call for that function, which is the same on all ranks (comm->seqNumber, src/plugin/profiler.cc, v2.28.9-1).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, CannotBeJudged
from tuner.base.files import replacing
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.base.sizes import plural
from tuner.jobs.inside.files import HOST_CLOCK, MOST_US, JobFile, Untimed, files_of, read_any
from tuner.jobs.traces.calls import nbytes
from tuner.plugin.table.records import MAX_CHANNELS
from tuner.scenario.logs import choice
from tuner.times.measured.samples import Combination

AT_ONCE = 500_000  # records of calls that no rank had before
_RANK_BITS = 20
_NUMBER_BITS = np.uint64(32)  # of a key's end: NCCL's number of the call, after its function
_NUMBER = np.uint64((1 << 32) - 1)
NOTHING_RAN = (
    "no file says which algorithm calls ran (NCCL Inspector does not before NCCL 2.31); valid: files of this "
    "project's plugin, or of the Inspector of NCCL 2.31 and later"
)
MOST_SIZE = (1 << 63) - 1  # bytes of a call
_MOST_SHOWN = 5  # broken files that are named
_TICKS = 1000  # a time is kept in ns
_LATE_MS = 1000.0  # by which a call may be noted after its end
_WINDOW = 256  # calls in a row whose times cannot be longer together than what passed


@dataclass(frozen=True, slots=True)
class JobCommunicator:
    """A communicator as the files of its ranks describe it: ``ranks`` is its size, ``seen`` the number of ranks with a
    file.

    ``rank_names`` names each rank by the launcher's rank and the host. ``nodes`` is None if NCCL does not say it.
    """

    id: int
    name: str
    ranks: int
    nodes: int | None
    rank_names: Mapping[int, str]

    @property
    def seen(self) -> int:
        """Number of ranks that have a file."""
        return len(self.rank_names)


@dataclass(frozen=True, slots=True)
class JobCall:
    """A kind of call, and what was executed for it (None if the file does not say it).

    ``bytes`` is NCCL's nBytes; ``warps`` is the number per channel.
    """

    collective: Collective
    bytes: int
    dtype: DataType
    executed: Combination | None
    warps: int


@dataclass(frozen=True, slots=True)
class JoinedCalls:
    """The calls of one communicator that all its ranks have, in the order in which they ended; arrays are indexed
    [call].

    ``at_s`` is the wall clock at a call's end. ``waiting_us`` is the time that kernels waited, added up over all ranks;
    ``last`` is the rank that came last. ``call`` is the index into ``kinds``, ``sequence`` NCCL's number.
    ``incomplete`` counts calls that some ranks have no record of, ``mismatched`` those that ranks executed differently.
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
    mismatched: int


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The files of a job. ``lost`` is the number of calls that the plugin had no room for; only one in 2**``thinned``
    calls has a record.

    ``left_out`` says what cannot be read, and ``untimed`` counts, by reason, calls that ran on all ranks but have no
    time on some; :func:`joined` adds to both.
    """

    files: tuple[JobFile, ...]
    lost: int
    thinned: int
    host_clock: bool
    left_out: list[str]
    untimed: Counter[Untimed] = field(default_factory=Counter)

    @property
    def notes(self) -> Iterator[str]:
        """Sentences on which calls have no time, and what was left out."""
        for why, count in sorted(self.untimed.items()):
            yield f"without a time: {plural(count, 'call')} {why.why}"
        if not any(len(file.communicators) for file in self.files):
            yield (
                "no call was measured: NCCL 2.29 and later need NCCL_ALLGATHERV_ENABLE=0; if it was set, a warning "
                "in NCCL's log says why"
            )
        yield from self.left_out

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases of NCCL that the files name."""
        return tuple(sorted({file.nccl for file in self.files if file.nccl}))

    @property
    def processes(self) -> int:
        """Number of processes that wrote files."""
        return len({(file.host, file.pid) for file in self.files})


def read_folder(folder: Path) -> JobFolder:
    """Reads the heads and kinds of all files in a folder; records are read when they are joined.

    BadInput if no file can be read; a single broken file is left out and named.
    """
    files, broken = [], []
    for path in files_of(folder):
        try:
            files.append(read_any(path))
        except BadInput as error:
            broken.append(str(error))
    if not files:
        valid = "valid: the folder that NCCL_TUNER_JOB named, or a folder with the Inspector's JSON"
        more = [f"and {len(broken) - _MOST_SHOWN} more"] * (len(broken) > _MOST_SHOWN)
        raise BadInput("; ".join([*broken[:_MOST_SHOWN], *more]) or f"{folder} has no file of a job; {valid}")
    last = {(file.host, file.pid): file for file in files}  # counts of a process go on from file to file
    return JobFolder(
        tuple(files),
        sum(file.lost for file in last.values()),
        max(file.thinned for file in files),
        any((file.communicators["version"] == HOST_CLOCK).any() for file in files),
        [*broken, *_impossible(files)],
    )


def _impossible(files: Iterable[JobFile]) -> Iterator[str]:
    for file in files:
        large = int(((file.kinds["channels"] > MAX_CHANNELS) | (file.kinds["count"] > MOST_SIZE)).sum())
        if large:
            yield (
                f"{file.path}: left out: {plural(large, 'kind')} of calls with an impossible number of channels or "
                "bytes"
            )


@dataclass(frozen=True, slots=True)
class RankCalls:
    """Calls of one rank that one file has; arrays are indexed [call].

    ``keys`` combine function and number; ``kinds`` are indices into the communicator's kinds. ``at_ms`` is the wall
    clock at the end, since 1970. ``untimed`` says why a call has no time (:class:`Untimed`); 0 if it has one.
    """

    rank: int
    keys: NDArray[np.uint64]
    time_ns: NDArray[np.uint64]
    kinds: NDArray[np.int64]
    at_ms: NDArray[np.int64]
    untimed: NDArray[np.int64]

    def part(self, own: NDArray[np.bool_]) -> "RankCalls":
        """A copy with only the calls of the mask ``own``, an array [call]."""
        return RankCalls(
            self.rank, self.keys[own], self.time_ns[own], self.kinds[own], self.at_ms[own], self.untimed[own]
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns to fold over all ranks, by their names in :data:`FOLDED`."""
        count = len(self.keys)
        return {
            "least": self.time_ns << np.uint64(_RANK_BITS) | np.uint64(max(self.rank, 0)),
            "time": self.time_ns,
            "ranks": np.ones(count, np.int64),
            "sum": np.full(count, self.rank, np.int64),
            "squares": np.full(count, self.rank**2, np.int64),
            "kind": self.kinds,
            "other": self.kinds,
            "at": self.at_ms,
            "untimed": self.untimed,
        }


# How what the ranks of a call have becomes one: a pandas word, what does it to an array, and what it begins with.
FOLDED: dict[str, tuple[str, np.ufunc, Any]] = {
    "least": ("min", np.minimum, np.uint64(2**64 - 1)),
    "time": ("sum", np.add, np.uint64(0)),
    "ranks": ("sum", np.add, np.int64(0)),
    "sum": ("sum", np.add, np.int64(0)),
    "squares": ("sum", np.add, np.int64(0)),
    "kind": ("min", np.minimum, np.int64(2**63 - 1)),
    "other": ("max", np.maximum, np.int64(-1)),
    "at": ("max", np.maximum, np.int64(-(2**63))),
    "untimed": ("max", np.maximum, np.int64(0)),
}

Columns = Mapping[str, NDArray[Any]]  # "key" and those of FOLDED, [call]
Fold = Callable[[Iterable[RankCalls]], Columns]


def joined(folder: JobFolder, fold: Fold | None = None) -> Iterator[JoinedCalls]:
    """Yields the joined calls of each communicator, the one with the most time first. Only one communicator's calls are
    in memory at a time.

    ``fold`` combines the calls of all ranks into columns (arrays [call], times in us); :func:`by_dask` makes such a
    function. If ``fold`` is None, the calls are combined in this process.
    """
    for number, files in _by_communicator(folder).items():
        yield _joined_one(_communicator(number, files), files, fold or _folded, folder)


def no_call(communicators: Iterable[JobCommunicator]) -> CannotBeJudged:
    """An error that says why no call of these communicators has a time on every rank."""
    absent = [f"only {each.seen} of {each.ranks} ranks have a file" for each in communicators if each.seen < each.ranks]
    why = "; ".join(absent[:_MOST_SHOWN]) or "nccl-tuner job read DIR says what is missing"
    return CannotBeJudged(f"no call has a time on every rank; {why}")


def largest(folder: JobFolder) -> JobCommunicator:
    """The communicator whose kernels took the most time over all ranks. BadInput if there is no communicator."""
    for number, files in _by_communicator(folder).items():
        return _communicator(number, files)
    raise BadInput("no call has a record of every rank")


def _by_communicator(folder: JobFolder) -> dict[int, list[tuple[JobFile, int]]]:
    """Files of each communicator, with its place in each, by its number; the one with the most kernel time first."""
    found = defaultdict[int, list[tuple[JobFile, int]]](list)
    for file in folder.files:
        for place in np.unique(file.kinds["communicator"]):
            found[int(file.communicators[place]["id"])].append((file, int(place)))
    return dict(sorted(found.items(), key=lambda each: -_time_us(each[1])))


def _communicator(number: int, files: Sequence[tuple[JobFile, int]]) -> JobCommunicator:
    """A communicator, as the files of all its ranks describe it."""
    names = dict[int, str]()
    for file, place in files:
        name = f"rank {file.rank}" if file.rank is not None else f"process {file.pid}"
        names.setdefault(int(file.communicators[place]["rank"]), f"{name} on {file.host}")
    first, place = files[0]
    one = first.communicators[place]
    ranks = int(one["ranks"]) or len(names)
    nodes = int(one["nodes"]) if 0 < one["nodes"] <= ranks else None
    return JobCommunicator(number, one["name"].decode(errors="replace"), ranks, nodes, dict(sorted(names.items())))


def _time_us(files: Sequence[tuple[JobFile, int]]) -> float:
    return sum(float(file.kinds["sum_us"][file.kinds["communicator"] == place].sum()) for file, place in files)


def job_call(kind: Any, ranks: int) -> JobCall | None:
    """The kind of call that a struct job_kind describes; None if the call is not a collective that NCCL tunes, or if
    the struct has impossible values."""
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


_IDENTITY = ["communicator", "channels", "warps", "count", "function", "type", "algorithm", "protocol"]


def _rank_calls(
    files: Sequence[tuple[JobFile, int]], kinds: dict[JobCall, int], ranks: int, left_out: list[str]
) -> Iterator[RankCalls]:
    """Yields the calls of a communicator, file by file; adds to ``kinds`` and ``left_out``."""
    seen: dict[tuple[Any, ...], int] = {}
    for file, place in files:
        known = np.full(int(file.places.max()) + 2, -1)  # the last one: what the file had not when it was read first
        for row, (at, (communicator, *words)) in enumerate(
            zip(file.places, file.kinds[_IDENTITY].tolist(), strict=True)
        ):
            if communicator == place and (named := tuple(words)) not in seen:
                call = job_call(file.kinds[row], ranks)
                seen[named] = -1 if call is None else kinds.setdefault(call, len(kinds))
            known[at] = seen[tuple(words)] if communicator == place else -1
        try:
            records = file.records()
        except BadInput as error:
            left_out += [str(error)] if str(error) not in left_out else []
            continue
        of = known[np.minimum(records["kind"], len(known) - 1)]
        untimed = np.select([records["time_us"] == -each for each in Untimed], list(map(int, Untimed)), 0)
        with np.errstate(invalid="ignore"):  # NaN is no time either
            possible = (untimed > 0) | (records["time_us"] >= 0) & (records["time_us"] <= MOST_US)
        if count := int(((of >= 0) & ~possible).sum()):
            left_out.append(
                f"{file.path}: left out: {plural(count, 'record')} whose time is negative, too long or not a number"
            )
        own = (of >= 0) & possible
        records, of, untimed = records[own], of[own], untimed[own]
        times_us = np.where(untimed > 0, 0, records["time_us"].astype(np.float64))
        untimed[overlapping(times_us, records["at_ms"].astype(np.float64)) & (untimed == 0)] = Untimed.overlap
        functions = np.array([int(call.collective) << 32 for call in kinds], np.uint64)
        yield RankCalls(
            int(file.communicators[place]["rank"]),
            functions[of] | records["sequence"].astype(np.uint64),
            np.round(np.where(untimed > 0, 0, times_us) * _TICKS).astype(np.uint64),
            of,
            file.started_ns // 1_000_000 + records["at_ms"].astype(np.int64),
            untimed,
        )


def overlapping(times_us: NDArray[np.float64], at_ms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Finds calls of one rank on one communicator whose kernels would have overlapped by their times.

    Returns an array [call] of bools, true for calls in stretches of time in which kernels together took longer than the
    stretch. This is impossible, as kernels of a communicator run one after the other. ``at_ms`` (array [call], in ms)
    is when each call was recorded, at or after its end; ``times_us`` (array [call], in us) is 0 for a call without a
    time.
    """
    found, order = np.zeros(len(at_ms), np.bool_), np.argsort(at_ms, kind="stable")
    if len(order) < 2:
        return found
    noted_ms = at_ms[order]
    beyond_ms = np.cumsum(times_us[order]) / 1e3 - noted_ms
    apart_ms = np.diff(noted_ms)
    limit_ms = _LATE_MS + float(np.median(apart_ms[apart_ms > 0])) if apart_ms.any() else _LATE_MS
    if not (beyond_ms - np.minimum.accumulate(beyond_ms) > limit_ms).any():
        return found
    before = np.concatenate([np.full(_WINDOW, np.inf), beyond_ms])
    windows = np.lib.stride_tricks.sliding_window_view(before, _WINDOW + 1)
    least = windows.argmin(axis=1)
    ends = np.flatnonzero(beyond_ms - windows.min(axis=1) > limit_ms)
    runs = np.zeros(len(order) + 1, np.int64)
    np.add.at(runs, ends + 1, -1)
    np.add.at(runs, ends - _WINDOW + least[ends] + 1, 1)
    found[order] = np.cumsum(runs)[:-1] > 0
    return found


class _CallTable:
    """A table of calls sorted by key, to which the calls of one rank after the other are added.

    Ranks almost always have the same calls. New calls wait until there are AT_ONCE of them, and are then inserted
    together.
    """

    def __init__(self) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            "key": np.empty(0, np.uint64),
            **{name: np.empty(0, start.dtype) for name, (_, _, start) in FOLDED.items()},
        }
        self.waiting: list[RankCalls] = []

    def add(self, calls: RankCalls) -> None:
        """Adds the calls of one rank, in any order."""
        at, new = self._places(calls.keys)
        if new.any():
            self.waiting.append(calls.part(new))
            calls, at = calls.part(~new), at[~new]
        for name, values in calls.columns().items():
            FOLDED[name][1].at(self.columns[name], at, values)
        if sum(len(each.keys) for each in self.waiting) >= AT_ONCE:
            self.admit()

    def _places(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row of each key, and which keys have no row yet; both are arrays [call].

        Numbers of calls of a function are consecutive unless records are thinned or lost, so that most rows follow from
        the number; the others are searched for.
        """
        keys = self.columns["key"]
        if not len(keys):
            return np.zeros(len(wanted), np.int64), np.ones(len(wanted), np.bool_)
        functions = (wanted >> _NUMBER_BITS).astype(np.int64)
        first = np.searchsorted(keys, np.arange(functions.max(initial=0) + 1, dtype=np.uint64) << _NUMBER_BITS)
        offset = first - (keys[np.minimum(first, len(keys) - 1)] & _NUMBER).astype(np.int64)
        at = np.clip(offset[functions] + (wanted & _NUMBER).astype(np.int64), 0, len(keys) - 1)
        other = np.flatnonzero(keys[at] != wanted)
        other = other[np.argsort(wanted[other])]  # keys in order are found faster
        at[other] = np.minimum(np.searchsorted(keys, wanted[other]), len(keys) - 1)
        return at, keys[at] != wanted

    def admit(self) -> None:
        """Inserts rows for the calls that wait for them, and then adds these calls."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            new = np.sort(np.concatenate([each.keys for each in waiting]))
            new = new[np.append(True, new[1:] != new[:-1])]  # np.unique hashes, which takes 100 times as long
            at = np.searchsorted(self.columns["key"], new)
            for name, column in self.columns.items():
                self.columns[name] = np.insert(column, at, new if name == "key" else FOLDED[name][2])
        for each in waiting:
            self.add(each)


def _folded(batches: Iterable[RankCalls]) -> Columns:
    """Folds the calls of all ranks into one row per call. Besides these rows, rarely many more than AT_ONCE records are
    in memory."""
    table = _CallTable()
    for calls in batches:
        table.add(calls)
    table.admit()
    return table.columns


def by_dask(to: Path, parts: int = 1) -> Fold:
    """Makes a fold that runs on the Dask cluster of the current client. It keeps the result in the new folder ``to``,
    as Parquet partitioned by communicator and rank. ``parts``: into how many partitions a communicator's calls are
    divided. Columns are arrays [call], times in us. BadInput if Dask is not installed.
    """
    try:
        pl = import_module("polars")
        dask = import_module("dask.dataframe")
    except ImportError as error:
        raise BadInput(
            f"joining on a cluster needs dask: pip install 'dask[dataframe,distributed]' ({error})"
        ) from None
    numbers = numbers_from()

    def fold(batches: Iterable[RankCalls]) -> Columns:
        folder = to / f"communicator={next(numbers)}"
        for part, calls in enumerate(batches):
            (folder / f"part={part}").mkdir(parents=True)
            frame = pl.DataFrame({"key": calls.keys, **calls.columns()})
            with replacing(folder / f"part={part}" / "records.parquet") as file:
                frame.write_parquet(file)
        records = dask.read_parquet(folder, columns=["key", *FOLDED])
        words = {name: word for name, (word, _, _) in FOLDED.items()}
        found = records.groupby("key").agg(words, split_out=parts).compute().reset_index()
        return {name: found[name].to_numpy() for name in ("key", *FOLDED)}

    return fold


def _joined_one(
    communicator: JobCommunicator, files: Sequence[tuple[JobFile, int]], fold: Fold, folder: JobFolder
) -> JoinedCalls:
    ranks = communicator.ranks
    kinds: dict[JobCall, int] = {}
    found = fold(_rank_calls(files, kinds, ranks, folder.left_out))
    # a rank that is there twice, or is none of it, shows in the sum of their numbers, or in that of the squares
    of_all = ranks * (ranks - 1) // 2, ranks * (ranks - 1) * (2 * ranks - 1) // 6
    whole = (found["ranks"] == ranks) & (found["sum"] == of_all[0]) & (found["squares"] == of_all[1])
    mismatched = found["kind"] != found["other"]
    untimed = np.where(whole & ~mismatched, found["untimed"], 0)
    folder.untimed.update({why: count for why in Untimed if (count := int((untimed == why).sum()))})
    own = np.flatnonzero(whole & ~mismatched & (untimed == 0))
    own = own[np.lexsort((found["key"][own], found["at"][own]))]
    least = found["least"][own]
    transfer_ns = (least >> np.uint64(_RANK_BITS)).astype(np.float64)
    return JoinedCalls(
        communicator,
        tuple(kinds),
        found["kind"][own],
        (found["key"][own] & _NUMBER).astype(np.int64),
        transfer_ns / _TICKS,
        (found["time"][own].astype(np.float64) - ranks * transfer_ns) / _TICKS,
        (least & np.uint64((1 << _RANK_BITS) - 1)).astype(np.int64),
        found["at"][own] / 1e3,
        int((~whole).sum()),
        int((whole & mismatched).sum()),
    )
