"""aiconfigurator's tables of nccl-tests' times: ``nccl_perf.parquet`` of ai-dynamo/aiconfigurator.

Columns, by collector/network/collect_nccl.py there: ``op_name``, ``nccl_dtype``, ``num_gpus`` of one node,
``message_size`` in elements, ``latency`` in ms, and ``version``, the release, and ``device``, the GPU, of each row. One
process with a thread a GPU, 40 warm-up calls, 100 calls (60 above 16 MiB), out of place, no checks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.base import extras
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import DataType, by_name
from tuner.times.measured import records
from tuner.times.measured.reader import check_row
from tuner.times.measured.records import MeasuredHeader, MeasuredLaunch, MeasuredRow, MeasuredTable

MAGIC = b"PAR1"
_COLUMNS = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")


def read(path: Path, nccl: str = "") -> MeasuredTable:
    """The rows of the release ``nccl``, or of the one that all have; the others are counted as left out.

    BadMeasurement names the row, counted from 1, of what is wrong; MissingExtra where polars is not installed.
    """
    extras.require("polars", f"{path}: parquet")
    import polars

    try:
        records = polars.read_parquet(path).to_dicts()
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadMeasurement(f"{path}: {str(error).splitlines()[0]}") from None
    if missing := [column for column in _COLUMNS if records and column not in records[0]]:
        raise BadMeasurement(f"{path}: no column {missing[0]!r}; needed: {', '.join(_COLUMNS)}")
    wanted = [(line, record) for line, record in enumerate(records, 1) if not nccl or record["version"] == nccl]
    if not wanted:
        there = ", ".join(sorted({str(record["version"]) for record in records})) or "none"
        raise BadMeasurement(f"{path}: no row of NCCL {nccl}; releases in it: {there}")
    for column, what in (("version", "releases"), ("device", "GPUs")):
        if len(values := sorted({str(record[column]) for _, record in wanted})) > 1:
            raise BadMeasurement(f"{path}: several {what} in one file ({', '.join(values)}); valid: a file for each")
    rows = tuple(_row(f"{path}:{line}", line, record) for line, record in wanted)
    left_out = len(records) - len(rows)
    header = MeasuredHeader(
        gpu=str(wanted[0][1]["device"]).removeprefix("NVIDIA "),
        nccl=str(wanted[0][1]["version"]),
        nccl_note="As the column 'version' says.",
        how_measured="nccl-tests, 40 warm-up calls, 100 calls (60 above 16 MiB), results not checked, out of place.",
        launch=MeasuredLaunch.thread_per_gpu,
        left_out={f"rows of another release than {nccl}": left_out} if left_out else {},
    )
    return MeasuredTable(path.stem, header, rows)


def _row(where: str, line: int, record: Mapping[str, Any]) -> MeasuredRow:
    try:
        dtype = by_name(DataType, str(record["nccl_dtype"]), "type")
        row = MeasuredRow(
            line=line,
            collective=records.collective(str(record["op_name"])),
            dtype=dtype,
            nodes=1,
            gpus_per_node=int(record["num_gpus"]),
            bytes=int(record["message_size"]) * dtype.size_bytes,
            time_us=round(float(record["latency"]) * 1000, 9),
        )
        check_row(row)
    except (BadInput, TypeError, ValueError) as error:
        raise BadMeasurement(f"{where}: {error}") from None
    return row
