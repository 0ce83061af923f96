"""What nccl-tests prints or writes as JSON, as measurements: NCCL's own choices and their times.

What was executed is taken from NCCL's log where that is in the same file.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, one_of
from tuner.base.names import Collective, DataType, Op
from tuner.release import of_code
from tuner.times.readers.nccl_log import executed_by_size, imported_log
from tuner.times.readers.nccl_tests_names import NAME, OPS, PROGRAMS, TYPES, WITHOUT_OP, program
from tuner.times.readers.nccl_tests_text import CPU_TIMES, Text, wrong_count
from tuner.times.records.header import Header
from tuner.times.records.samples import Measurements, Point, SampleBlock


def is_json(record: Any) -> bool:
    """Whether it is what nccl-tests writes with ``-J``."""
    return isinstance(record, dict) and "results" in record and "args" in record


def from_text(path: Path, content: str, collective: Collective | None = None) -> Measurements:
    """BadMeasurement where the file has no row, or neither it nor ``collective`` says what was run.

    A last line without its end is left out, as it may be cut.
    """
    whole, _, cut = content.rpartition("\n")
    text = Text(path, whole, collective)
    collective = text.collective
    if text.collective is None and text.other is not None:
        raise BadMeasurement(f"{path}: {text.other} is no collective that NCCL tunes; {one_of(PROGRAMS)}")
    if not text.rows:
        raise BadMeasurement(f"{path}: no row of nccl-tests in it is whole")
    if collective is None:
        raise BadMeasurement(
            f"{path}: does not say which collective was run; valid: one name of {', '.join(PROGRAMS)} in it"
        )
    imported = imported_log(path, collective, text.release)
    executed = executed_by_size(imported)
    blocks = []
    for row in text.rows:
        for body, in_place in zip(row.bodies, (False, True), strict=False):
            point = Point(collective, row.bytes, row.dtype, row.op, in_place, row.graph)
            wrong = wrong_count(body.wrong, row.dtype, text.prints_errors)
            blocks.append(SampleBlock(point, None, executed.get((collective, row.bytes)), (body.time_us,), wrong=wrong))
    header = replace(text.header, nccl=text.release or (imported.release if imported else None))
    return Measurements(header, tuple(blocks), truncated=bool(cut))


def from_json(path: Path, record: Mapping[str, Any]) -> Measurements:
    """The same of what ``-J`` writes; its list of times per iteration, where there is one, is taken whole.

    BadMeasurement for the record of another program.
    """
    ran = program_of(record)
    if ran not in PROGRAMS:
        raise BadMeasurement(f"{path}: {ran or 'no program'} in its args; {one_of(PROGRAMS)}")
    graph = bool(record.get("config", {}).get("graph", 0))
    blocks = [
        SampleBlock(
            Point(PROGRAMS[ran], row.bytes, row.dtype, row.op, row.in_place, graph),
            None,
            None,
            row.times_us,
            wrong=row.wrong,
        )
        for row in json_rows(path, record)
    ]
    return Measurements(json_header(path, record), tuple(blocks))


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One time of a record, or those of its single calls, us. ``index`` is that of the result."""

    index: int
    bytes: int
    dtype: DataType
    op: Op
    in_place: bool
    times_us: tuple[float, ...]
    wrong: int


def program_of(record: Mapping[str, Any]) -> str | None:
    """The program that wrote a record, by its arguments."""
    return next((name for name in map(program, record["args"]) if name), None)


def json_rows(path: Path, record: Mapping[str, Any]) -> list[JsonRow]:
    """The rows of a record of any program. BadMeasurement where it is not what nccl-tests writes."""
    rows = []
    try:
        for index, row in enumerate(record["results"]):
            if row["redop"] in WITHOUT_OP:
                continue
            dtype, op = TYPES[row["type"]], OPS[row["redop"]]
            for key, in_place in (("out_of_place", False), ("in_place", True)):
                if (body := row.get(key)) is None:
                    continue
                if "time" not in body:
                    raise BadMeasurement(f"{path}: {CPU_TIMES}")
                per_call = row.get(f"{key}_per_iter") or {}
                times = tuple(map(float, per_call.get("times_us") or [body["time"]]))
                wrong = int(float(body["nwrong"] or 0))
                rows.append(JsonRow(index, int(row["size"]), dtype, op, in_place, times, wrong))
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadMeasurement(f"{path}: results[{len(rows)}]: not what nccl-tests writes: {error!r}") from None
    return rows


def json_variables(record: Mapping[str, Any]) -> dict[str, str]:
    """NCCL's variables among those of the process, which ``-J`` writes as a list of NAME=VALUE."""
    given = (str(each).partition("=") for each in record.get("env") or ())
    return {name: value for name, _, value in given if name.startswith("NCCL_")}


def json_header(path: Path, record: Mapping[str, Any]) -> Header:
    """The head of the measurements of a record: where they are from, and what ran them."""
    config = record.get("config", {})
    devices = config.get("devices") or []
    code = record.get("nccl_version")
    return Header(
        NAME,
        source=str(path),
        ranks=len(devices) or None,
        nodes=len({each["hostname"] for each in devices}) or None,
        gpus=tuple(sorted({each["device_info"] for each in devices})),
        nccl=of_code(code) if code else None,
        date=record.get("start_time"),
        warmup_calls=config.get("warmup_iters"),
        calls=config.get("iterations"),
    )


def load_json(content: bytes) -> Any:
    """None where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
