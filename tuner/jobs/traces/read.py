"""Reads collectives from a list, a log, a trace, counters or a dump; the content of the file decides which it is."""

import json
from pathlib import Path
from typing import Any

from tuner.base import bounds
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import PIECE_BYTES, is_plain_file, read_bytes
from tuner.jobs.traces import deepspeed, flight_recorder, inspector, kineto, nsight, profiler_example, prometheus
from tuner.jobs.traces.calls import CallList, checked
from tuner.jobs.traces.lists import from_csv, from_json
from tuner.jobs.traces.log import from_log
from tuner.scenario.logs.lines import nccl_lines, read_lines

VALID = (
    "valid: CSV or JSON records, a NCCL log, a trace of PyTorch's profiler or of NCCL's example profiler plugin, "
    "NCCL Inspector's JSON or Prometheus text, a Flight Recorder dump, Nsight Systems' SQLite export, DeepSpeed's "
    "communication log, each also gzipped"
)

DOCUMENT = bounds.ReaderBounds("JSON records, of calls or a Flight Recorder dump", values=4_000_000)
JSON = expression(
    rb"\s*[\[{]\s*(?:[\[{]\s*[\[{\"\]}\d-]|[\"\]}]|$)"
)  # how records begin; a log may with "[2026-" or "[rank0]"


class UnknownFormat(BadInput):
    """The file has a format that cannot be read here."""


def read(path: Path, ranks: int) -> CallList:
    """Reads the calls of a file; ``ranks`` is used for records that do not say the number of ranks. BadInput names the
    file, and the line of a record.
    """
    return checked(_read(path, ranks))


def _read(path: Path, ranks: int) -> CallList:
    if _begins_with(path, nsight.MAGIC):
        return nsight.from_file(path, None)
    if _begins_with(path, nsight.REPORT):
        raise BadInput(f"{path} is a report of Nsight Systems; convert it first with 'nsys export', to the type sqlite")
    if path.is_file() and (trace := kineto.from_file(path)) is not None:
        return trace
    if _is_large_log(path):
        return from_log(str(path), read_lines(path), ranks)
    content = read_bytes(path, BadInput)
    if content.startswith(nsight.MAGIC):  # it was gzipped
        return nsight.from_file(path, content)
    if flight_recorder.is_pickle(content):
        return flight_recorder.from_pickle(str(path), content)
    content = content.removeprefix(b"\xef\xbb\xbf")  # as spreadsheets begin a file
    if not content.strip():
        raise UnknownFormat(f"{path}: empty; {VALID}")
    logged = b" NCCL INFO " in content
    if content.lstrip()[:1] in (b"{", b"["):
        if not logged:
            bounds.check_json(content, str(path), BadInput, DOCUMENT)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            if (several := _several_values(str(path), content, ranks)) is not None:
                return several
            if JSON.match(content) and not logged and not deepspeed.is_text(content.decode(errors="replace")):
                raise BadInput(f"{path}: its JSON is cut off or damaged: {error}") from None
        else:
            return _of_json(path, value, content, ranks)
    try:
        text = content.decode(errors="strict" if not logged else "replace")
    except UnicodeDecodeError:
        raise UnknownFormat(f"{path}: not text; {VALID}") from None
    if prometheus.is_text(text):
        return prometheus.from_text(str(path), text)
    if logged and not deepspeed.is_text(text):
        return from_log(str(path), nccl_lines(content), ranks)
    if deepspeed.is_text(text):
        return deepspeed.from_text(str(path), text, ranks)
    return from_csv(str(path), text, ranks)


_LARGE_BYTES = 4 << 20


def _is_large_log(path: Path) -> bool:
    """Whether a file is a log of NCCL that is too large to be read at once, and that no other reader can read."""
    if not is_plain_file(path) or path.stat().st_size < _LARGE_BYTES:
        return False
    with path.open("rb") as file:
        piece = file.read(PIECE_BYTES)
        if b" NCCL INFO " not in piece or piece.lstrip()[:1] in (b"{", b"["):
            return False
        while piece:
            text = (piece + file.readline()).decode(errors="replace")
            if prometheus.is_text(text) or deepspeed.is_text(text):
                return False
            piece = file.read(PIECE_BYTES)
    return True


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _several_values(file: str, content: bytes, ranks: int) -> CallList | None:
    """Reads files that are almost JSON: one record after the other, or lists without an end or with values without
    quotes. None for other files."""
    text = content.decode(errors="replace")
    if profiler_example.is_trace(text):
        return profiler_example.from_text(file, text, ranks)
    return inspector.from_text(file, text) if inspector.begins_with_record(text) else None


def _of_json(path: Path, value: Any, content: bytes, ranks: int) -> CallList:
    file = str(path)
    if flight_recorder.is_dump(value):
        return flight_recorder.from_value(file, value)
    if inspector.is_record(value):
        return inspector.from_records(file, [value])
    if deepspeed.is_summary(value):
        return deepspeed.from_summary(file, value, ranks)
    if isinstance(value, list) and profiler_example.is_trace(text := content.decode(errors="replace")):
        return profiler_example.from_text(file, text, ranks)
    if kineto.is_trace(value):
        return kineto.from_trace(file, value)
    if isinstance(value, list):
        if value and inspector.is_record(value[0]):
            return inspector.from_records(file, value)
        return from_json(file, value, ranks)
    raise UnknownFormat(f"{path}: JSON that is neither a list of records nor a trace (traceEvents); {VALID}")
