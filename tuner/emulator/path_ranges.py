"""The size ranges in which the answer stays the same, of calls that may bypass the algorithms as well."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.errors import BadInput, NoAlgorithm, TooManyRanges
from tuner.base.numerics import SizeArray
from tuner.emulator.ranges import (
    FOLLOWED_BYTES,
    Ranges,
    classic_combinations,
    classic_launches,
    combinations,
    ends,
    launches,
)
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Selection

Answer = TypeVar("Answer")
NOTHING = -1  # no algorithm


def answers(
    selection: Selection,
    request: Request,
    low: int | None = None,
    high: int = FOLLOWED_BYTES,
    whole: bool = True,
) -> Ranges:
    """:func:`tuner.emulator.ranges.launches` of any call, or, if not ``whole``, its ``combinations``.

    The ranges end before sizes at which classic channels change too often to be followed.
    Errors: those of :func:`tuner.emulator.ranges.launches` and of :meth:`Selection.non_classic_paths`.
    """
    if not selection.may_leave_classic_path(request):
        return followed(selection, request, low, high) if whole else combinations(selection, request, low, high)

    def asked(size: int) -> object:
        (path,) = selection.non_classic_paths(request, size)
        return path or selection.classic_pick(request, size)

    low, high = ends(low, high, request.unit_bytes(selection.communicator.ranks), asked)
    try:
        most = ends(low, high, low, lambda size: selection.classic_pick(request, size))[1]
        picks = classic_combinations(selection, request, low, most).from_bytes
    except NoAlgorithm:  # of any of these sizes
        picks = np.zeros(0, np.uint64)
    starts = np.union1d(_starts(selection, request, (low, high), picks), picks)
    found = _ranges(selection, request, starts, high)
    return _with_launches(selection, request, found) if whole else found.merged(whole=False)


def followed(selection: Selection, request: Request, low: int | None, high: int) -> Ranges:
    """:func:`launches` as far as they can be followed."""
    while True:
        try:
            return launches(selection, request, low, high)
        except TooManyRanges as error:
            if low is not None and error.last < low:
                raise
            high = error.last


def goes_on(selection: Selection, request: Request, last: int, high: int) -> bool:
    """Whether :func:`answers` ends with ``last`` though NCCL takes a call of more bytes, up to ``high``."""
    more = last + request.unit_bytes(selection.communicator.ranks)
    try:
        if more <= high:
            selection.classic_pick(request, more)
        return more <= high
    except NoAlgorithm:
        return False


def _with_launches(selection: Selection, request: Request, found: Ranges) -> Ranges:
    """The ranges, cut where channels or threads of the classic path change; it ends where those cannot be followed."""
    starts = [found.from_bytes]
    for start, end, kernel in zip(found.from_bytes.tolist(), found.to_bytes.tolist(), found.bypass_kernel, strict=True):
        try:
            if kernel is None:
                starts.append(classic_launches(selection, request, start, end).from_bytes)
        except BadInput:
            if start == found.from_bytes[0]:
                raise
            known = np.unique(np.concatenate(starts))
            return _ranges(selection, request, known[known < start], start - 1)
    return _ranges(selection, request, np.unique(np.concatenate(starts)), int(found.to_bytes[-1]))


def _ranges(selection: Selection, request: Request, starts: SizeArray, high: int) -> Ranges:
    """The answers at these sizes, the first of each range, to ``high``; neighbours that are alike are one range."""
    paths = selection.non_classic_paths(request, starts)
    stays = np.array([path is None for path in paths])
    algorithm, protocol = np.full(len(starts), NOTHING, np.int8), np.full(len(starts), NOTHING, np.int8)
    channels = np.array([path.blocks if path else 0 for path in paths], np.int64)
    threads = np.array([path.threads if path else 0 for path in paths], np.int64)
    if stays.any():
        picks = selection.classic_pick(request, starts[stays])
        algorithm[stays], protocol[stays] = picks.algorithm, picks.protocol
        channels[stays], threads[stays] = picks.channels, picks.threads
    last = np.append(starts[1:] - np.uint64(1), np.uint64(high))
    names = tuple(path.name if path else None for path in paths)
    return Ranges(starts, last, algorithm, protocol, channels, threads, names).merged()


def _starts(selection: Selection, request: Request, between: tuple[int, int], breaks: SizeArray) -> SizeArray:
    """The sizes ``between`` these two, both among them, at which kernel, blocks or threads change.

    ``breaks`` are sizes at which the classic pick changes, on which the paths may depend.
    """
    weighed = _Numbered(lambda sizes: [_weighed(selection, request, size) for size in sizes.tolist()])
    paths = _Numbered(lambda sizes: selection.non_classic_paths(request, sizes))

    def ranked(sizes: SizeArray) -> NDArray[np.int64]:
        # All kernels in their order on the blocks of the model, so that no crossing hides between two sizes.
        return np.column_stack([paths.of(sizes), weighed.of(sizes)])

    ranks = breakpoints.find(ranked, *between, breaks, steps=0)
    most = max((kernels[0][1] for kernels in weighed.seen if kernels), default=0)
    looked = np.concatenate([ranks, _cells(selection, request, most)])
    return breakpoints.find(paths.of, *between, looked)


def _weighed(selection: Selection, request: Request, size: int) -> tuple[tuple[str, int], ...]:
    """The kernels that can do the call with the blocks of NCCL's model, the one that it prefers first.

    Of equals that is the one with the most blocks.
    """
    kernels = symmetric.weighed(selection.communicator, request, size)
    return tuple((each.kernel, each.blocks) for each in sorted(kernels, key=lambda each: (each.score, -each.blocks)))


def _cells(selection: Selection, request: Request, most: int) -> SizeArray:
    """The first size of each cell, as long as ``most`` blocks may come out of different use with every cell more."""
    communicator = selection.communicator
    each = communicator.release.symmetric.cell_bytes * request.parts(communicator.ranks)
    return np.arange(most * most, dtype=np.uint64) * np.uint64(each) + np.uint64(request.unit_bytes(communicator.ranks))


class _Numbered(Generic[Answer]):
    """Answers to sizes as numbers, equal where they are: places among those ``seen``."""

    def __init__(self, answers: Callable[[SizeArray], list[Answer]]) -> None:
        self.seen: list[Answer] = []
        self._answers, self._numbers = answers, dict[Answer, int]()

    def of(self, sizes: SizeArray) -> NDArray[np.int64]:
        """[size]."""
        return np.array([self._number(answer) for answer in self._answers(sizes)], np.int64)

    def _number(self, answer: Answer) -> int:
        if answer not in self._numbers:
            self._numbers[answer] = len(self.seen)
            self.seen.append(answer)
        return self._numbers[answer]
