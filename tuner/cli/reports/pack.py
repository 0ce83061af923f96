"""A report in few bytes: what repeats is kept once, numbers are binary, and all of it is deflated."""

import json
import zlib
from base64 import b64encode
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.answers.choices import NOTHING
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective
from tuner.base.trace import Steps
from tuner.cli.reports.calibrated import CalibratedLine, CalibratedLines
from tuner.cli.reports.data import Line, PageData

V = TypeVar("V", bound=Hashable)


@dataclass(slots=True)
class Once(Generic[V]):
    """Values in the order of their first use, each kept once."""

    places: dict[V, int] = field(default_factory=dict)

    def place(self, value: V) -> int:
        """The place of a value; a new one comes last."""
        return self.places.setdefault(value, len(self.places))

    @property
    def values(self) -> list[V]:
        """All values in the order of their places."""
        return list(self.places)


@dataclass(frozen=True, slots=True)
class Packed:
    """``index`` is JSON; ``numbers`` are rows of a number for each size: little-endian float32, then uint16.

    The bytes of the float32 are in four planes. ``lines`` is how many lines have numbers of their own. Both texts are
    base64 of zlib's format.
    """

    index: str
    numbers: str
    lines: int


class Packer:
    """Takes the lines of a report one by one; in the index they are places in lists."""

    def __init__(self, report: PageData, calibrated: CalibratedLines | None = None) -> None:
        self.report, self.calibrated = report, calibrated
        self.floats: Once[bytes] = Once()
        self.shorts: Once[bytes] = Once()
        self.numbers: Once[tuple[Any, ...]] = Once()
        self.texts: Once[str] = Once()
        self.steps: Once[tuple[int, ...]] = Once()
        self.traces: Once[tuple[Any, ...]] = Once()
        self.excluded: Once[tuple[tuple[int, int], ...]] = Once()
        self.lines: Once[tuple[Any, ...]] = Once()

    def pack(self, described: dict[str, Any]) -> Packed:
        """``described`` joins the index: what the page says besides."""
        report, nodes = self.report, self.report.nodes
        places = [
            [[self._line(report.lines[release, one, count]) for count in nodes] for one in Collective]
            for release in report.releases
        ]
        calibrated = None if self.calibrated is None else self._calibrated(self.calibrated)
        index = {
            **described,
            "calibrated": calibrated,
            "releases": report.releases,
            "collectives": [one.name for one in Collective],
            "nodes": nodes,
            "sizes": report.sizes.tolist(),
            "bus_factors": [[report.bus_factor(one, count) for count in nodes] for one in Collective],
            "places": places,
            "floats": len(self.floats.values),
            "numbers": self.numbers.values,
            "lines": self.lines.values,
            "excluded": self.excluded.values,
            "traces": self.traces.values,
            "steps": self.steps.values,
            "texts": self.texts.values,
        }
        # In planes, bytes that are alike lie together.
        planes = np.frombuffer(b"".join(self.floats.values), np.uint8).reshape(-1, 4).T.tobytes()
        binary = planes + b"".join(self.shorts.values)
        text = json.dumps(index, separators=(",", ":"), allow_nan=False)
        return Packed(_deflated(text.encode()), _deflated(binary), len(self.numbers.values))

    def _calibrated(self, lines: CalibratedLines) -> dict[str, Any]:
        """By release, collective and nodes the place of what is known: rows of times, low and high, where measured."""
        report, rows = self.report, Once[tuple[Any, ...]]()

        def place(line: CalibratedLine) -> int:
            times = tuple(self._floats(row) for row in (line.time_us, line.low_us, line.high_us))
            used = line.used
            carried = f"; measured times are carried over to: {', '.join(used.carried_over)}"
            said = f"{used.reason}{carried if used.carried_over else ''}"
            measured = self.shorts.place(line.measured.astype("<u2").tobytes())
            return rows.place((*times, measured, self.texts.place(said)))

        places = [
            [[place(lines[release, one, count]) for count in report.nodes] for one in Collective]
            for release in report.releases
        ]
        return {"places": places, "rows": rows.values}

    def _line(self, line: Line) -> int:
        pick = np.where(line.pick == NOTHING, 0xFFFF, line.pick)
        numbers = (
            tuple(
                (_number(algo_proto), self._floats(row))
                for algo_proto, row in zip(line.candidates, line.times_us, strict=True)
            ),
            self._floats(line.pick_us),
            *(self.shorts.place(values.astype("<u2").tobytes()) for values in (pick, line.channels, line.threads)),
        )
        reasons = tuple((_number(algo_proto), self.texts.place(reason)) for algo_proto, reason in line.excluded)
        return self.lines.place(
            (
                self.numbers.place(numbers),
                self.excluded.place(reasons),
                line.least_bytes,
                self.texts.place(line.nothing),
                tuple((_number(algo_proto), self._trace(line, steps)) for algo_proto, steps in line.steps.items()),
            )
        )

    def _trace(self, line: Line, steps: list[Steps]) -> int:
        """The steps that change anything: what describes each, then before and after."""
        rows = []
        for one in steps:
            if (one.before != one.after).any():
                texts = (one.quantity, one.name, one.unit, one.says, one.source)
                values = self._values(line, one.before), self._values(line, one.after)
                rows.append((self.steps.place(tuple(map(self.texts.place, texts))), *values))
        return self.traces.place(tuple(rows))

    def _values(self, line: Line, values: NDArray[Any]) -> float | tuple[int]:
        """The number, where it is one for all sizes, else the place of a row."""
        if (values == values[0]).all():
            return float(values[0])
        return (self._floats(np.pad(values.astype(np.float32), (line.first, 0), constant_values=np.nan)),)

    def _floats(self, row: NDArray[Any]) -> int:
        return self.floats.place(row.astype("<f4").tobytes())


def _number(algo_proto: AlgoProto) -> int:
    return ALGO_PROTOS.index(algo_proto)


def _deflated(content: bytes) -> str:
    return b64encode(zlib.compress(content, 9)).decode("ascii")
