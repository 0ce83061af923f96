"""Collectives from a list, a log or a trace; the content of the file decides which it is."""

import json
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.files import read_bytes
from tuner.workload.calls import CallList
from tuner.workload.kineto import from_trace, is_trace
from tuner.workload.lists import from_csv, from_json
from tuner.workload.log import from_log

VALID = "valid: CSV or JSON records, a NCCL log, a trace of PyTorch's profiler, each also gzipped"


def read(path: Path, ranks: int) -> CallList:
    """``ranks`` are those of records that do not say theirs. BadInput names the file, and the line of a record."""
    content = read_bytes(path, BadInput).removeprefix(b"\xef\xbb\xbf")  # as spreadsheets begin a file
    if not content.strip():
        raise BadInput(f"{path}: empty; {VALID}")
    logged = b" NCCL INFO " in content
    if content.lstrip()[:1] in (b"{", b"["):
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            if not logged:  # a launcher's tags may begin a log
                raise BadInput(f"{path}: not whole JSON: {error}") from None
        else:
            if is_trace(value):
                return from_trace(str(path), value)
            if isinstance(value, list):
                return from_json(str(path), value, ranks)
            raise BadInput(f"{path}: JSON that is neither a list of records nor a trace (traceEvents); {VALID}")
    if logged:
        return from_log(str(path), content)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not text; {VALID}") from None
    return from_csv(str(path), text, ranks)
