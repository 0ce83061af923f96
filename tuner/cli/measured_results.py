"""Measured times as nccl-tests prints them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tuner.base.names import Collective
from tuner.times.costmodels.bandwidth import algorithm_gbs, bus_factor
from tuner.times.records.samples import Combination, Point
from tuner.times.results import Result

HOST_BOUND = "h: host-bound: no slower than the host starts such calls, whatever the GPUs would take"
_Row = dict[bool, Result]  # by in_place
_KEYS = ("size", "count", "type", "redop", "root", "algorithm", "protocol", "channels")
_UNITS = ("(B)", "(elements)", "", "", "", "", "", "")
_WIDTHS = (12, 12, 8, 6, 5, 13, 8, 8)
_TIMED = ("time", "+-", "algbw", "busbw", "#wrong")
_TIMED_UNITS = ("(us)", "(%)", "(GB/s)", "(GB/s)", "")
_TIMED_WIDTHS = (10, 6, 8, 8, 7)


def lines(results: Iterable[Result], ranks: int) -> Iterator[str]:
    """A block for each collective; in place is beside out of place where it was measured."""
    rows: dict[tuple[Point, Combination | None], _Row] = {}
    for result in results:
        alike = replace(result.point, in_place=False)
        rows.setdefault((alike, result.requested), {})[result.point.in_place] = result
    placements = sorted({placement for row in rows.values() for placement in row})
    heading: Collective | None = None
    for (point, requested), row in rows.items():
        if point.collective is not heading:
            heading = point.collective
            yield from _head(heading, placements)
        yield "  " + " ".join([*_key_cells(point, requested, row, ranks), *_timed_cells(row, placements, ranks)])


def _head(collective: Collective, placements: list[bool]) -> Iterator[str]:
    names = {False: "out of place", True: "in place"}
    width = sum(_TIMED_WIDTHS) + len(_TIMED_WIDTHS) - 1
    keys = sum(_WIDTHS) + len(_WIDTHS) - 1
    yield ""
    over = " ".join(f"{names[placement]:^{width}}" for placement in placements)
    yield f"# {collective.name:<{keys}} {over}".rstrip()
    for keys_row, timed in ((_KEYS, _TIMED), (_UNITS, _TIMED_UNITS)):
        cells = [*_aligned(keys_row, _WIDTHS), *(cell for _ in placements for cell in _aligned(timed, _TIMED_WIDTHS))]
        yield f"# {' '.join(cells)}".rstrip()


def _key_cells(point: Point, requested: Combination | None, row: _Row, ranks: int) -> Iterator[str]:
    count = point.bytes // point.unit_bytes(ranks)
    redop = "none" if point.request.moves_only else point.op.name
    root = 0 if point.collective in (Collective.Broadcast, Collective.Reduce) else -1
    executed = next(iter(row.values())).executed
    shown = requested or executed
    names = (shown.algorithm.name, shown.protocol.name) if shown else ("?", "?")
    channels = (
        requested.channels
        if requested and requested.channels
        else executed.channels
        if executed and executed.channels
        else "-"
    )
    cells = (
        point.bytes,
        count,
        point.dtype.name,
        redop,
        root,
        f"{'' if requested else '*'}{names[0]}",
        names[1],
        channels,
    )
    return _aligned(cells, _WIDTHS)


def _timed_cells(row: _Row, placements: list[bool], ranks: int) -> Iterator[str]:
    for placement in placements:
        yield from _aligned(_timed(row.get(placement), ranks), _TIMED_WIDTHS)


def _timed(result: Result | None, ranks: int) -> tuple[object, ...]:
    if result is None:
        return ("-",) * len(_TIMED)
    known = result.estimate
    if known is None:
        return ("replaced" if result.replaced else "-", "-", "-", "-", result.wrong)
    algbw = algorithm_gbs(result.point.bytes, known.median_us)
    busbw = algbw * bus_factor(result.point.collective, ranks)
    within = f"{100 * known.half_width:.2f}" if known.is_bounded else "?"
    mark = "h" if result.host_bound else ""
    return f"{known.median_us:.2f}{mark}", within, f"{algbw:.2f}", f"{busbw:.2f}", result.wrong


def _aligned(cells: Iterable[object], widths: Iterable[int]) -> Iterator[str]:
    return (f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True))
