"""The size ranges in which NCCL's answer stays the same, to the byte."""

import bisect
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm, TooManyRanges
from tuner.base.frames import Column, Framed, arrays_of
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, Protocol
from tuner.base.nouns import Choice
from tuner.base.numerics import IntArray, SizeArray
from tuner.base.sizes import whole
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.rules import bounds, symmetric
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.launch import Piece
from tuner.emulator.selection import MAX_BYTES, Picks, Selection

FOLLOWED_BYTES = 1 << 40  # the largest size up to which ranges are followed
Labels = NDArray[np.int64]
Asked = Callable[[int], object]  # called with a size in bytes; raises NoAlgorithm if NCCL runs nothing
# Gets the channels that a tuner names
LaunchFunction = Callable[[RuleCall, Tables, SizeArray, int], tuple[IntArray, IntArray]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ranges(Framed):
    """Ranges of nBytes, [range], without gaps; both ends belong to a range.

    ``algorithm`` and ``protocol`` are NCCL's numbers. If ranges end only where one of these two changes, ``channels``
    and ``threads`` are those of the range's first size. ``bypass`` names the kernel or copy engine of calls that bypass
    the algorithms; their algorithm and protocol are -1, and their channels are blocks. It is None for other calls, and
    empty if no call can bypass the algorithms.
    """

    from_bytes: SizeArray
    to_bytes: SizeArray
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    channels: NDArray[np.int64]
    threads: NDArray[np.int64]
    bypass: tuple[str | None, ...] = ()

    def __len__(self) -> int:
        return len(self.from_bytes)

    def merged(self, whole: bool = True) -> "Ranges":
        """Merges equal neighbours; if not ``whole``, also neighbours that only differ in channels and threads."""
        numbers = (self.algorithm, self.protocol, *((self.channels, self.threads) if whole else ()))
        labels = list(zip(self.bypass or (None,) * len(self), *(each.tolist() for each in numbers), strict=True))
        kept = [row for row, label in enumerate(labels) if not row or label != labels[row - 1]]
        last = np.append(self.from_bytes[kept[1:]] - np.uint64(1), self.to_bytes[-1])
        return Ranges(
            self.from_bytes[kept],
            last,
            self.algorithm[kept],
            self.protocol[kept],
            self.channels[kept],
            self.threads[kept],
            tuple(self.bypass[row] for row in kept) if self.bypass else (),
        )

    def columns(self) -> dict[str, Column]:
        """One row per range: from_bytes, to_bytes, algorithm, protocol, channels, threads.

        If a symmetric kernel or copy engines may carry calls, the column bypass names which does.
        """
        columns = arrays_of(self, "from_bytes", "to_bytes", "algorithm", "protocol", "channels", "threads")
        return columns | ({"bypass": self.bypass} if self.bypass else {})

    def records(self, request: Request) -> "list[SizeRange]":
        """One record per range, as ``nccl-tuner edges --json`` prints them."""
        columns = (self.from_bytes, self.to_bytes, self.algorithm, self.protocol, self.channels, self.threads)
        kernels = self.bypass or (None,) * len(self)
        return [
            SizeRange(
                None if algorithm < 0 else Algorithm(algorithm),
                None if protocol < 0 else Protocol(protocol),
                channels,
                threads,
                request.collective,
                start,
                end,
                bypass=kernel,
            )
            for start, end, algorithm, protocol, channels, threads, kernel in zip(
                *(column.tolist() for column in columns), kernels, strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class SizeRange(Choice):
    """Sizes (nBytes) with one choice."""

    collective: Collective
    from_bytes: int
    to_bytes: int


def launches(selection: Selection, request: Request, low: int | None = None, high: int = FOLLOWED_BYTES) -> Ranges:
    """The ranges in which algorithm, protocol, channels and threads stay the same.

    ``low`` is by default one element (of each rank if nBytes covers all ranks), and ``high`` is lowered to the largest
    size that NCCL accepts. NoAlgorithm if NCCL picks nothing. BadInput for what is not emulated, for windows, and if
    channels change at too many sizes.
    """
    return classic_launches(selection, request, *_ends(selection, request, low, high))


def combinations(selection: Selection, request: Request, low: int | None = None, high: int = FOLLOWED_BYTES) -> Ranges:
    """The ranges in which algorithm and protocol stay the same; ends and errors as in :func:`launches`."""
    return classic_combinations(selection, request, *_ends(selection, request, low, high))


def classic_launches(selection: Selection, request: Request, low: int, high: int) -> Ranges:
    """The ranges of :func:`launches` if calls stayed on the classic path, whether or not they bypass it.

    NCCL has to accept the sizes ``low`` and ``high`` on that path.
    """
    picks = _combinations(selection, request, low, high, with_channels=True)
    starts, picked = picks.bytes, picks.combinations
    named = selection.tuner_answers(request, starts).channels

    def cells(sizes: SizeArray) -> tuple[Labels, Labels]:
        at = np.searchsorted(starts, sizes, side="right") - 1
        return picked[at], named[at]

    rule = selection.communicator.rules.launch

    def bound_of(call: RuleCall, tables: Tables, sizes: SizeArray, channels: int) -> tuple[IntArray, IntArray]:
        return rule.tuned_bounds(call, tables, sizes, channels) if channels else bounds.bounds(call, tables, sizes)

    def bounded(sizes: SizeArray) -> Labels:
        return _by_cell(selection, request, bound_of, (*cells(sizes), sizes))

    # Channels and threads may jump only at sizes where these change; in between, the rule says where they turn.
    pieces = breakpoints.find(bounded, low, high, starts, steps=0)
    ends = np.append(pieces[1:] - np.uint64(1), np.uint64(high))
    turning = [
        rule.turning(_call(selection, request, algo_proto), Piece(bound, threads, first, last))
        for (algo_proto, bound, threads), first, last in zip(
            bounded(pieces).tolist(), pieces.tolist(), ends.tolist(), strict=True
        )
    ]

    def launch_of(call: RuleCall, tables: Tables, sizes: SizeArray, channels: int) -> tuple[IntArray, IntArray]:
        return rule.tuned(call, tables, sizes, channels) if channels else rule(call, tables, sizes)

    def launched(sizes: SizeArray) -> Labels:
        return _by_cell(selection, request, launch_of, (*cells(sizes), sizes))

    changes = breakpoints.find(launched, low, high, np.concatenate([pieces, ends, *turning]), steps=0)
    return _ranges(changes, launched(changes), high)


def classic_combinations(selection: Selection, request: Request, low: int, high: int) -> Ranges:
    """The ranges of :func:`combinations` if calls stayed on the classic path, as in :func:`classic_launches`."""
    picks = _combinations(selection, request, low, high)
    return _ranges(picks.bytes, np.column_stack([picks.combinations, picks.channels, picks.threads]), high)


def largest(selection: Selection, request: Request, most: int = MAX_BYTES) -> int:
    """The largest size up to ``most`` that NCCL accepts; 0 if it accepts no size. Releases up to 2.28 accept a size
    only if its predicted time is less than an hour.
    """
    return _largest(lambda size: selection.pick(request, size), 1, most)


def _largest(asked: Asked, least: int, most: int) -> int:
    def refused(nbytes: int) -> bool:
        try:
            asked(nbytes)
        except NoAlgorithm:
            return True
        return False

    if not refused(most):
        return most
    return 0 if refused(least) else bisect.bisect_left(range(most), True, lo=least, key=refused) - 1


def breaks(selection: Selection) -> list[int]:
    """Sizes at which the model's corrections begin and end."""
    each = selection.communicator.channels * selection.communicator.ranks
    powers = [1 << shift for shift in range(MAX_BYTES.bit_length())]
    starts = [*powers, *(power * each for power in powers if power * each <= MAX_BYTES)]
    return [size + more for size in starts for more in (-1, 0) if 1 <= size + more <= MAX_BYTES]


def check_classic(selection: Selection, request: Request) -> None:
    """Raises BadInput if these calls may bypass the algorithms at some size."""
    if selection.may_leave_classic_path(request):
        windows = bool(request.symmetric)
        what = "buffers window" if windows else ", ".join(selection.communicator.release.environment.symmetric_kernels)
        valid = "plain, registered" if windows else "without"
        raise BadInput(f"{what} may leave the classic path at any size; valid: {valid}")


def ends(low: int | None, high: int, unit_bytes: int, asked: Asked) -> tuple[int, int]:
    """The first and the last size to look at: by default ``unit_bytes``, and the largest size for which ``asked`` does
    not raise NoAlgorithm.

    BadInput for invalid sizes, NoAlgorithm if ``asked`` raises it for every size.
    """
    low, high = whole(unit_bytes if low is None else low, "low"), whole(high, "high")
    if not 1 <= low <= high <= MAX_BYTES:
        raise BadInput(
            f"sizes from {low} to {high} bytes: valid are 1 to 2**62, and the first may not be above the last"
        )
    most = _largest(asked, min(low, unit_bytes), high)
    if not most:
        asked(low)  # raises the error that says why
    if low > most:
        raise BadInput(f"sizes from {low} bytes on: NCCL accepts at most {most} bytes here")
    return low, most


def _ends(selection: Selection, request: Request, low: int | None, high: int) -> tuple[int, int]:
    check_classic(selection, request)
    unit_bytes = request.unit_bytes(selection.communicator.ranks)
    return ends(low, high, unit_bytes, lambda size: selection.pick(request, size))


def _combinations(selection: Selection, request: Request, low: int, high: int, with_channels: bool = False) -> Picks:
    """The picks at ``low`` and where algorithm or protocol (``with_channels``: or a tuner's channels) change."""
    tuner = selection.communicator.tuner

    def ranked(sizes: SizeArray) -> Labels:
        # looks at all candidates in their order, so that no crossing hides between two sizes
        times_us, picked = selection.ranked(request, sizes)
        return np.column_stack([np.argsort(times_us, axis=1, kind="stable"), picked])

    def tuned(sizes: SizeArray) -> Labels:
        answers = selection.tuner_answers(request, sizes)
        return np.column_stack([answers.cell, answers.channels])

    near = selection.near.turns.get(request) if selection.near is not None else None
    guesses = np.array(breaks(selection), np.uint64)
    if near is not None:
        guesses = np.concatenate([guesses, near, np.maximum(near, np.uint64(2)) - np.uint64(1)])
    starts = selection.turns[request] = breakpoints.find(ranked, low, high, guesses)
    if tuner is not None:
        starts = np.union1d(starts, breakpoints.find(tuned, low, high, tuner.breaks(selection.communicator, request)))
    picks = selection.classic_pick(request, starts)
    labels = picks.combinations[:, None]
    if with_channels:
        labels = np.column_stack([labels, selection.tuner_answers(request, starts).channels])
    kept = np.append(True, (labels[1:] != labels[:-1]).any(axis=1))
    return Picks(*(each[kept] for each in picks.stored))


def _by_cell(
    selection: Selection, request: Request, rule: LaunchFunction, at: tuple[Labels, Labels, SizeArray]
) -> Labels:
    """One row for each size: its combination, and the channels and threads that the rule computes for this combination.

    ``at`` has the combination, the channels that a tuner names (0: none), and the size, each [size].
    """
    combination, named, sizes = at
    channels, threads = np.empty_like(combination), np.empty_like(combination)
    for index, count in np.unique(np.column_stack([combination, named]), axis=0).tolist():
        here = (combination == index) & (named == count)
        channels[here], threads[here] = rule(_call(selection, request, index), selection.tables, sizes[here], count)
    return np.column_stack([combination, channels, threads])


def _call(selection: Selection, request: Request, combination: int) -> RuleCall:
    return RuleCall(selection.communicator, request, ALGO_PROTOS[combination])


def _ranges(starts: SizeArray, labels: Labels, high: int) -> Ranges:
    algorithm, protocol = np.divmod(labels[:, 0], len(Protocol))
    return Ranges(
        starts,
        np.append(starts[1:] - np.uint64(1), np.uint64(high)),
        algorithm.astype(np.int8),
        protocol.astype(np.int8),
        labels[:, 1],
        labels[:, 2],
    )


Answer = TypeVar("Answer")
NOTHING = -1  # no algorithm


def answers(
    selection: Selection,
    request: Request,
    low: int | None = None,
    high: int = FOLLOWED_BYTES,
    whole: bool = True,
) -> Ranges:
    """The ranges of any call: of :func:`tuner.emulator.ranges.launches` or, without ``whole``, of ``combinations``.

    The ranges end before sizes at which classic channels change too often to follow. Raises NoAlgorithm and BadInput.
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
    except NoAlgorithm:  # some of these sizes have no algorithm
        picks = np.zeros(0, np.uint64)
    starts = np.union1d(_answer_starts(selection, request, (low, high), picks), picks)
    found = _answer_ranges(selection, request, starts, high)
    return _with_launches(selection, request, found) if whole else found.merged(whole=False)


def followed(selection: Selection, request: Request, low: int | None, high: int) -> Ranges:
    """:func:`launches`, up to the size to which they can be followed."""
    while True:
        try:
            return launches(selection, request, low, high)
        except TooManyRanges as error:
            if low is not None and error.last < low:
                raise
            high = error.last


def goes_on(selection: Selection, request: Request, last: int, high: int) -> bool:
    """Whether NCCL accepts a call larger than ``last``, where :func:`answers` ends, and of at most ``high`` bytes."""
    more = last + request.unit_bytes(selection.communicator.ranks)
    try:
        if more <= high:
            selection.classic_pick(request, more)
        return more <= high
    except NoAlgorithm:
        return False


def _with_launches(selection: Selection, request: Request, found: Ranges) -> Ranges:
    """The ranges, also cut at sizes where channels or threads of the classic path change, as far as these can be
    followed."""
    starts = [found.from_bytes]
    for start, end, kernel in zip(found.from_bytes.tolist(), found.to_bytes.tolist(), found.bypass, strict=True):
        try:
            if kernel is None:
                starts.append(classic_launches(selection, request, start, end).from_bytes)
        except BadInput:
            if start == found.from_bytes[0]:
                raise
            known = np.unique(np.concatenate(starts))
            return _answer_ranges(selection, request, known[known < start], start - 1)
    return _answer_ranges(selection, request, np.unique(np.concatenate(starts)), int(found.to_bytes[-1]))


def _answer_ranges(selection: Selection, request: Request, starts: SizeArray, high: int) -> Ranges:
    """The answers at these sizes, each the first of a range, up to ``high``; equal neighbours are merged."""
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


def _answer_starts(selection: Selection, request: Request, between: tuple[int, int], breaks: SizeArray) -> SizeArray:
    """The sizes between the two of ``between`` at which the kernel, blocks or threads change.

    ``breaks`` are sizes at which the classic pick changes, because the kernel may depend on that pick.
    """
    weighed = _Numbered(lambda sizes: [_weighed(selection, request, size) for size in sizes.tolist()])
    paths = _Numbered(lambda sizes: selection.non_classic_paths(request, sizes))

    def ranked(sizes: SizeArray) -> NDArray[np.int64]:
        # looks at all kernels in their order on the model's blocks, so that no crossing hides between two sizes
        return np.column_stack([paths.of(sizes), weighed.of(sizes)])

    ranks = breakpoints.find(ranked, *between, breaks, steps=0)
    most = max((kernels[0][1] for kernels in weighed.seen if kernels), default=0)
    looked = np.concatenate([ranks, _cells(selection, request, most)])
    return breakpoints.find(paths.of, *between, looked)


def _weighed(selection: Selection, request: Request, size: int) -> tuple[tuple[str, int], ...]:
    """The kernels that can do the call, with the blocks of NCCL's model, in NCCL's order of preference.

    Among kernels of equal score NCCL prefers the one with the most blocks.
    """
    kernels = symmetric.weighed(selection.communicator, request, size)
    return tuple((each.kernel, each.blocks) for each in sorted(kernels, key=lambda each: (each.score, -each.blocks)))


def _cells(selection: Selection, request: Request, most: int) -> SizeArray:
    """The first size with each number of cells, up to the number above which one more cell changes nothing for ``most``
    blocks."""
    communicator = selection.communicator
    each = communicator.release.symmetric.cell_bytes * request.parts(communicator.ranks)
    return np.arange(most * most, dtype=np.uint64) * np.uint64(each) + np.uint64(request.unit_bytes(communicator.ranks))


class _Numbered(Generic[Answer]):
    """Numbers the answers to sizes by their index in ``seen``, so that equal answers have equal numbers."""

    def __init__(self, answers: Callable[[SizeArray], list[Answer]]) -> None:
        self.seen: list[Answer] = []
        self._answers, self._numbers = answers, dict[Answer, int]()

    def of(self, sizes: SizeArray) -> NDArray[np.int64]:
        """The numbers of the answers to sizes, [size]."""
        return np.array([self._number(answer) for answer in self._answers(sizes)], np.int64)

    def _number(self, answer: Answer) -> int:
        if answer not in self._numbers:
            self._numbers[answer] = len(self.seen)
            self.seen.append(answer)
        return self._numbers[answer]
