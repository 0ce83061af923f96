"""Measurements from any file that has some, known by its content: ours, nccl-tests' text or JSON, or a NCCL log."""

from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.base.files import read_bytes
from tuner.base.names import Collective
from tuner.times.readers import nccl_log, nccl_tests
from tuner.times.readers.nccl_tests_text import is_text
from tuner.times.records import samples
from tuner.times.records.samples import Measurements


def read_any(path: Path, collective: Collective | None = None) -> Measurements:
    """``collective`` is that of an nccl-tests text which does not name its own.

    BadMeasurement where the file is of none of these kinds, or not whole; one with NCCL's log alone has no times.
    """
    content = read_bytes(path, BadMeasurement)
    if samples.FORMAT.encode() in content.split(b"\n", 1)[0]:
        return samples.from_content(path, content)
    if nccl_tests.is_json(record := nccl_tests.load_json(content)):
        return nccl_tests.from_json(path, record)
    text = content.decode(errors="replace")
    if is_text(text):
        return nccl_tests.from_text(path, text, collective)
    if " NCCL INFO " in text or " NCCL WARN " in text:
        return nccl_log.from_log(path)
    raise BadMeasurement(
        f"{path}: no measurements; "
        f"valid: a file of `nccl-tuner measure`, what nccl-tests prints or writes with -J, a NCCL log"
    )
