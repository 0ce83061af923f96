"""Recognises the kind of a file or folder by its content."""

from contextlib import suppress
from pathlib import Path

from tuner.base.errors import BadInput, BadTopology, TunerError
from tuner.base.files import is_plain_file, read_bytes
from tuner.base.findings import Finding, Severity
from tuner.engines import log_lines
from tuner.jobs.diagnosis import host_tools, node_tools, ras
from tuner.jobs.diagnosis.records import FileKind
from tuner.jobs.inside import files as job_files
from tuner.jobs.preflight import reading
from tuner.machine import listings
from tuner.machine.topology.xml import MAX_BYTES
from tuner.plugin.table.records import HEADER
from tuner.scenario.logs import endings
from tuner.scenario.logs.lines import is_stripped
from tuner.times.measured.formats import NCCL_TESTS, FileFormat, MeasurementFile

OF_LOGS = (
    b" NCCL INFO ", b"NCCL WARN ", b"NCCL error in: ", b"aught collective operation timeout",
    b" ProcessGroupNCCL.cpp:",
)  # fmt: skip
OF_ACCOUNTING = ("slurm_completed",)  # an orderly end that a file of nothing else says
OF_RESULTS = b" out-of-place "  # the head of nccl-tests' table, which comes before its rows
MOST_FOLDERS = 4096  # of hosts, that are looked into
LARGE_BYTES = 32 << 20  # files above this are read in pieces
BLOCK_BYTES = 1 << 20
MOST_MARK = 64  # longer than any of these marks


def kinds_of(file: Path) -> tuple[FileKind, ...]:
    """The kinds of a file by its content: one, or two for a log with results. BadInput if the file cannot be read."""
    if file.is_dir():
        return (_kind_of_folder(file),)
    if is_large(file):
        return _kinds_of_large(file)
    start = read_bytes(file, BadInput)
    if start.startswith(HEADER.encode()):
        return (FileKind.table,)
    if start.startswith(job_files.MAGIC):
        return (FileKind.job,)
    if reading.is_record(file):
        return (FileKind.preflight,)
    if start.lstrip()[:1] == b"<" and not any(part in start.split(b"\n", 1)[0] for part in OF_LOGS):
        if b"<graphs" in start[:4096]:
            return (FileKind.graphs,)
        if b"<system" in start[:4096]:
            return (FileKind.topology,)
        if not _tells_an_end(start):
            return (FileKind.listing,)
    try:
        if len(start) <= MAX_BYTES and listings.read(file) is not None:  # logs and traces may be larger
            return (FileKind.listing, *_of_tools(start))
    except BadTopology:
        return _of_tools(start) or (FileKind.listing,)
    if file.name.endswith("nccl.conf") and len(start) <= node_tools.MOST_BYTES and b"NCCL_" in start:
        return (FileKind.settings,)
    if (of_tool := node_tools.kind_of(start)) is not None:
        is_job = of_tool is FileKind.settings and not file.name.endswith(".conf") and node_tools.is_script(start)
        return (FileKind.environment if is_job else of_tool,)
    if host_tools.kind_of(start) is not None:
        return _of_tools(start)
    logged: tuple[FileKind, ...] = (FileKind.ras,) if ras.is_report(start) else ()
    is_log = any(part in start for part in OF_LOGS) or (not logged and is_stripped(start))
    logged += (FileKind.log,) if is_log else ()
    served = (FileKind.engine,) if log_lines.says_any(start) else ()
    try:
        measured = MeasurementFile(file)
        if measured.format in NCCL_TESTS or (measured.format is FileFormat.columns and b"time_us" in start):
            if not logged and _tells_an_end(start):  # what a job that crashed printed besides its results
                logged = (FileKind.log,)
            return (*logged, *served, FileKind.results)
    except TunerError:
        pass
    if logged:
        return (*logged, *served)
    if served:
        return (*((FileKind.output,) if _tells_an_end(start) else ()), *served)
    from tuner.jobs.traces import read as traces
    from tuner.plugin.formats import convert

    with suppress(TunerError, UnicodeDecodeError):
        if start.lstrip()[:1] not in (b"{", b"[") and convert.format_of(start.decode(), str(file)):
            return (FileKind.table,)
    if len(start) <= MAX_BYTES and convert.other_nvidia(start, str(file)) is not None:
        return (FileKind.table,)
    is_json = traces.JSON.match(start) is not None
    says_variables = node_tools.maps_variables(start) if is_json else node_tools.sets_variables(start)
    if says_variables and (is_json or node_tools.is_script(start) or not _tells_an_end(start)):
        return (FileKind.environment,)
    if not is_json and _tells_an_end(start):
        return (FileKind.output,)
    return (FileKind.trace,)


def _of_tools(content: bytes) -> tuple[FileKind, ...]:
    """The kinds of output of host and node tools in a file; it may have output of several tools."""
    found = (node_tools.kind_of(content), host_tools.kind_of(content))
    return tuple(kind for kind in found if kind in (FileKind.nvlinks, FileKind.ports, FileKind.gpus, FileKind.host))


def is_large(file: Path) -> bool:
    """Whether a file is read in pieces."""
    return is_plain_file(file) and file.stat().st_size > LARGE_BYTES


def _tells_an_end(content: bytes) -> bool:
    """Whether any line of a program, the kernel or a scheduler says how something failed."""
    lines = enumerate(content.decode("utf-8", "replace").splitlines(), start=1)
    found = [each for number, line in lines if (each := endings.of_line(line, number)) is not None]
    return (
        bool(endings.failures(found))
        or endings.in_traceback(found) is not None
        or any(each.role == endings.WAITING or each.kind in OF_ACCOUNTING for each in found)
    )


def _kinds_of_large(file: Path) -> tuple[FileKind, ...]:
    """The kinds of a file that is too large to be read at once: a log (and results in it), a file that starts like a
    trace, or unknown.
    """
    from tuner.jobs.diagnosis import engine
    from tuner.jobs.traces import nsight
    from tuner.jobs.traces import read as traces

    is_log, has_results = False, False
    with file.open("rb") as opened:
        start = tail = opened.read(BLOCK_BYTES)
        while tail and not (is_log and has_results):
            is_log = is_log or any(part in tail for part in OF_LOGS)
            has_results = has_results or OF_RESULTS in tail
            block = opened.read(BLOCK_BYTES)
            tail = tail[-MOST_MARK:] + block if block else b""
    of_trace = traces.JSON.match(start) or start.lower().startswith((nsight.REPORT.lower(), b"sqlite format"))
    if not is_log and (of_trace or b"collective" in start.splitlines()[0].lower()):
        return (FileKind.trace,)
    served = (FileKind.engine,) if log_lines.says_any(engine.start_of(file)) else ()
    results = (FileKind.results,) if has_results else ()
    return (FileKind.log if is_log else FileKind.output, *served, *results)


def _kind_of_folder(folder: Path) -> FileKind:
    from tuner.jobs.diagnosis import packages

    try:
        if packages.site_packages(folder):
            return FileKind.packages
        if any(map(reading.is_record, folder.glob("*.json"))):
            return FileKind.preflight
        of_job = [job_files.is_of_job(each) for each in job_files.files_of(folder)]
        if 2 * sum(of_job) > len(of_job):
            return FileKind.job
        if dumps(folder):
            return FileKind.recorder
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from None
    return FileKind.unknown


def dumps(folder: Path) -> list[Path]:
    """The ranks' Flight Recorder dumps in a folder; if it has none, the dumps in its subfolders, one for each host."""
    return _dumps_in(folder) or [
        dump for each in sorted(folder.iterdir())[:MOST_FOLDERS] if each.is_dir() for dump in _dumps_in(each)
    ]


def _dumps_in(folder: Path) -> list[Path]:
    from tuner.jobs.traces import flight_recorder

    found = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and flight_recorder.rank_of(file) is not None:
            with file.open("rb") as opened:  # others may be large
                found += [file] if flight_recorder.is_pickle(opened.read(2)) else []
    return found


def cut(file: Path) -> Finding | None:
    """The finding that an XML file of NCCL is cut off; None if the file is complete, or is not XML."""
    content = read_bytes(file, BadInput)
    if content.lstrip()[:1] != b"<":
        return None
    tag = "system" if b"<system" in content else "graphs"
    if f"</{tag}>".encode() in content:
        return None
    return Finding("diagnose.cut_xml", Severity.UNKNOWN, {"line": len(content.splitlines()), "tag": tag})
