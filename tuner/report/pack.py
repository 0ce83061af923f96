"""A report in few bytes: what repeats is kept once, numbers are binary, and all of it is deflated."""

import json
import zlib
from base64 import b64encode
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from tuner.choices import NOTHING
from tuner.names import Collective
from tuner.report.data import Line, Report
from tuner.selection import ALL_CELLS, Cell

V = TypeVar("V", bound=Hashable)


@dataclass(slots=True)
class Once(Generic[V]):
    """Values in the order of their first use, each kept once."""

    places: dict[V, int] = field(default_factory=dict)

    def place(self, value: V) -> int:
        return self.places.setdefault(value, len(self.places))

    @property
    def values(self) -> list[V]:
        return list(self.places)


@dataclass(frozen=True, slots=True)
class Packed:
    """``index`` is JSON; ``numbers`` are the lines' times as little-endian float32, then pick, channels and threads.

    ``lines`` is how many of them have numbers of their own. Both texts are base64 of zlib's format.
    """

    index: str
    numbers: str
    lines: int


def pack(report: Report, described: dict[str, Any]) -> Packed:
    """``described`` joins the index: what the page says besides."""
    texts: Once[str] = Once()
    steps: Once[tuple[int, ...]] = Once()
    traces: Once[tuple[tuple[float, ...], ...]] = Once()
    excluded: Once[tuple[tuple[int, int], ...]] = Once()
    numbers: Once[tuple[Any, ...]] = Once()
    lines: Once[tuple[Any, ...]] = Once()

    def line(one: Line) -> int:
        runs = []
        for trace in one.traces:
            rows = []
            for step in trace.steps:
                told = (step.quantity, step.rule, step.unit, step.says, step.source)
                rows.append((steps.place(tuple(map(texts.place, told))), step.before, step.after))
            runs.append((trace.first, trace.last, trace.at, traces.place(tuple(rows))))
        reasons = tuple((_number(cell), texts.place(reason)) for cell, reason in one.excluded)
        values = numbers.place((tuple(map(_number, one.candidates)), *_numbers(one)))
        return lines.place((values, excluded.place(reasons), one.least_bytes, texts.place(one.nothing), tuple(runs)))

    def places(release: str) -> list[list[int]]:
        return [[line(report.lines[release, one, nodes]) for nodes in report.nodes] for one in Collective]

    index = {
        **described,
        "releases": report.releases,
        "collectives": [one.name for one in Collective],
        "nodes": report.nodes,
        "sizes": report.sizes.tolist(),
        "bus_factors": [[report.bus_factor(one, nodes) for nodes in report.nodes] for one in Collective],
        "places": [places(release) for release in report.releases],
        "candidates": [candidates for candidates, _, _ in numbers.values],
        "lines": lines.values,
        "excluded": excluded.values,
        "traces": traces.values,
        "steps": steps.values,
        "texts": texts.values,
    }
    times = b"".join(times for _, times, _ in numbers.values)
    binary = np.frombuffer(times, np.uint8).reshape(-1, 4).T.tobytes()  # alike bytes side by side deflate better
    binary += b"".join(rest for _, _, rest in numbers.values)
    return Packed(_deflated(json.dumps(index, separators=(",", ":")).encode()), _deflated(binary), len(numbers.values))


def _number(cell: Cell) -> int:
    return ALL_CELLS.index(cell)


def _numbers(line: Line) -> tuple[bytes, bytes]:
    """Times of each candidate and of the pick; pick (0xFFFF: none), channels and threads."""
    pick = np.where(line.pick == NOTHING, 0xFFFF, line.pick)
    return (
        np.vstack([line.times_us, line.pick_us]).astype("<f4").tobytes(),
        np.vstack([pick, line.channels, line.threads]).astype("<u2").tobytes(),
    )


def _deflated(content: bytes) -> str:
    return b64encode(zlib.compress(content, 9)).decode("ascii")
