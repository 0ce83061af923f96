"""Reads how processes and jobs ended, from lines of CUDA, the kernel, schedulers, PyTorch, shells and other programs.

The patterns in ``tables/endings.toml`` match a line of any program, after the prefix of a launcher. If a signal ended a
process, the record has the signal's kind, whether a shell, a launcher or a container engine reports it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.expressions import expression

# The roles that a line can have.
HARDWARE, CAUSE, OPENING, EXCEPTION, HEAD, ECHO, AFTERMATH, ORDERLY, FRAME, WAITING = (
    "hardware", "cause", "opening", "exception", "head", "echo", "aftermath", "orderly", "frame", "waiting"
)  # fmt: skip
HEADS = {"python_frame": "python_traceback", "native_frame": "cpp_stack"}  # what a line of a stack is a part of
LEAST_FRAMES = 2  # lines of a stack that are needed to recognise a traceback in a piece of output that has nothing else
MOST_BELOW = 8  # most lines between a line of a stack and the exception that it belongs to
SIGNALS = {  # signal(7), Linux
    2: "interrupted",
    4: "illegal_instruction",
    6: "aborted",
    7: "bus_error",
    8: "floating_point_exception",
    9: "killed",
    11: "segmentation_fault",
    15: "terminated",
}
BY_SIGNAL = 128  # a shell's exit status is this plus the number of the signal
ROLES = {"killed": OPENING, "aborted": OPENING, "terminated": ECHO}  # roles of signals; any other signal is a cause

_SAME_STAMP = str.maketrans("/ ,", "-T.")
# What launchers and collectors of logs write before a line; several of them may follow each other.
_WRAPPERS = tuple(
    expression(pattern)
    for pattern in (
        # SGLang: tensor parallel ranks are the job's where there are no pipelines
        r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: DP\d+)?(?: PP\d+ TP\d+| TP(?P<rank>\d+))(?: EP\d+)?\]\s+",
        r"\[?(?P<time>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?\]?[,:]?\s+",
        r"(?:stdout|stderr) [FP] ",  # Kubernetes' container runtimes
        r"[A-Z][a-z]{2} \d+, \d{4} @ \d\d:\d\d:\d\d(?:\.\d+)?\s+",  # Kibana
        r"\[?(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?:\.\d+)?(?: \d{4})?\]? ",  # dmesg -T, syslog
        r"(?P<host>[\w.-]+) kernel: ",  # syslog
        r"kern +:\w+ +: ",  # dmesg -x
        r"\[ *\d+\.\d+\] ",  # dmesg
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]? ",
        r"\[(?:[\w.-]+@)?\d+,(?P<rank>\d+)\]<std(?:out|err|diag)>: ?",  # Open MPI, mpirun with --tag-output
        r"\[rank(?P<own_rank>\d+)\]:? ?",  # PyTorch; the rank in the job, whatever number a launcher writes before it
        r"\[default(?P<rank>\d+)\]:? ?",  # torchrun
        r"\[[a-z_]+\d+(?:\|\d+)?\]: ?",  # TorchX, with the role and the numbers inside it
        r"> (?=\S)",  # a quotation
        r"\| (?:DEBUG|INFO|WARNING|ERROR)\s*\| \w+ \| ",  # Python's loguru and others
        r"\([\w.:()/ -]*?(?: ?rank=(?P<rank>\d+),?)? ?pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\) ?",  # Ray, vLLM
        r"\(\w+(?:, ip=(?P<host>[\w.:-]+))\) ",  # Ray, of its own processes
        r"srun: error: (?P<host>[\w.-]+): tasks? (?P<rank>\d+)[-\d,]*: ",
        r"slurmstepd(?:-[\w.-]+)?: error: (?=[Dd]etected|\*\*\*|Some)",
        r"\[?pod/(?P<host>[a-z0-9][\w.-]*)(?:/[\w.-]+)?\]? ",  # kubectl logs --prefix
        r"(?P<host>[\w.-]+)(?: +)\| ",  # Docker Compose
        r"(?P<host>\d+\.\d+\.\d+\.\d+): (?=\S)",  # pdsh, DeepSpeed's launcher
        r"(?P<rank>\d+): *(?=\S)",  # srun with --label
        r"\[(?P<rank>\d+)\] (?=\S)",  # MPICH's mpiexec with -l
        r"\[(?P<rank>\d+)\]<std(?:out|err)>: ?",  # horovodrun
        r"(?!python|lib|nvidia)(?P<host>[A-Za-z][\w.-]*\d[\w.-]*): (?=\S)",  # pdsh, clush
    )
)


@dataclass(frozen=True, slots=True)
class EndingLine:
    """A line that reports how something ended. ``number`` is a code whose meaning depends on ``kind``, such as an Xid.

    ``rank``, ``host``, ``pid`` and ``gpu`` come from the line or from a launcher's prefix.
    """

    kind: str
    role: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    number: int | None = None
    detail: str | None = None
    time: str | None = None  # from a collector of logs; these texts sort in the order of time

    @property
    def source(self) -> tuple[int | None, str | None, int | None]:
        """The rank, host and process that printed the line, as far as they are known."""
        return self.rank, self.host, self.pid


@dataclass(frozen=True, slots=True)
class EndingPattern:
    """A row of tables/endings.toml."""

    kind: str
    role: str
    pattern: str
    example: str
    source: str


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """Xid numbers with the same meaning. ``says`` is the meaning; ``role`` says whether these errors follow from
    another failure."""

    numbers: tuple[int, ...]
    role: str
    says: str


@cache
def patterns() -> tuple[tuple[EndingPattern, re.Pattern[str]], ...]:
    """The patterns in the order of the table."""
    rows = [EndingPattern(**row) for row in tables.toml(tables.folder() / "endings.toml")["ending"]]
    return tuple((row, re.compile(row.pattern)) for row in rows)


@cache
def xids() -> dict[int, XidMeaning]:
    """The meanings of Xids by their number."""
    rows = [XidMeaning(**row) for row in tables.toml(tables.folder() / "endings.toml")["xid"]]
    return {number: row for row in rows for number in row.numbers}


# Parts of words, one of which is in every line that the table matches. To look for each of them takes a tenth of the
# time of one pattern with all of them, and nearly all lines of a large log have none.
STEMS = (
    "rror", "Fail", "fail", "FAIL", "Kill", "kill", "KILL", "Fault", "fault", "SIG", "Signal", "signal", "Abort",
    "abort", "ABORT", "Exit", "exit", "EXIT", "Xid", "NVRM", "oom", "OOM", "memory", "Memory", "MEMORY",
    "CANCELLED", "terminat", "Terminat", "TERM", "lost", "handle for", "panic", "lockup", "Hardware", "unable",
    "vict", "resource", "Taint", "Disrupt", "not ready", "NotReady", "Preempt", "ssert", "ECC", "NVLink",
    "timed out", "imeout", "misaligned", "invalid", "CUDA", "corrupt", "free(", "malloc", "smashing", "overflow",
    "tcache", "loading shared", "version `", "nterrupt", "INT", "died", "heartbeat", "raceback",
    "peer", "pipe", "recv", "stuck", "COMPLETED", "TIMEOUT", "PREEMPTED", "OUT_OF_ME", "Insufficient", "BackOff",
    "could not be", "closing", "without calling", "bus bandwidth", "llegal", "xception", "symbol", "image", "PTX",
    "subset of ranks", "compromised", "mismatch", "ontainer", "ImagePull", "atal", "supported HW", "Horovod",
    "File \"", "broadcast block", "frame #", "[0x", " @ ", "sigquit", "No space", "quota", "in use", "open files",
    "EADDRINUSE", "slots", "listen on", "resolve", "execve", "ssh:", "publickey", "_STATUS_", "sigkill", "EXHAUSTED",
    "NVML", "NVIDIA driver", "is dead", "is stopped", "encountered", "Unable to", "ORTE", "PRTE", "fallen off",
    "via signal", "non-zero",
    "nvshmem", "disconnected",
    "NcclE", "DMAR:", "AMD-Vi", "ncclU", "ncclS", "ncclI", "ncclR",
)  # fmt: skip


def may_tell(text: str) -> bool:
    """Whether a line contains a part of a word that reports of endings contain. A line without any of them cannot
    report an ending."""
    for stem in STEMS:  # noqa: SIM110 - any() takes twice as long, and this is called for every line of a log
        if stem in text:
            return True
    return False


def of_line(text: str, line: int) -> EndingLine | None:
    """The ending that a line reports; None for any other line."""
    if not may_tell(text):
        return None
    said, rest = unwrapped(text)
    for row, pattern in patterns():
        if (match := pattern.search(rest)) is None:
            continue
        said |= {name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value}
        kind, role = _of_number(row, said)
        if kind is None:
            return None
        detail = said.get("detail", "").strip(" '\".")
        return EndingLine(
            kind,
            role,
            line,
            rest.strip(),
            _number(said.get("rank")),
            said.get("host"),
            _number(said.get("pid")),
            said.get("gpu"),
            _number(said.get("number")),
            detail or None,
            said["time"].translate(_SAME_STAMP) if "time" in said else None,
        )
    return None


def is_of(text: str) -> bool:
    """Whether a line reports how something ended."""
    return of_line(text, 0) is not None


def unwrapped(text: str) -> tuple[dict[str, str], str]:
    """What a launcher's prefix says about a line (``rank``, ``host``, ``pid``), and the line without the prefix."""
    said: dict[str, str] = {}
    rest, found = text.lstrip(), True
    while found:
        found = False
        for wrapper in _WRAPPERS:
            if match := wrapper.match(rest):
                said |= {name: value for name, value in match.groupdict().items() if value and name not in said}
                rest, found = rest[match.end() :], True
    if (own := said.pop("own_rank", None)) is not None:
        said["rank"] = own
    return said, rest


def in_traceback(endings: Iterable[EndingLine]) -> EndingLine | None:
    """The first line of a stack, made to stand for the head of its traceback; None if the stack has too few lines."""
    found = list(endings)
    for kind, head in HEADS.items():
        frames = [each for each in found if each.kind == kind]
        if len(frames) >= LEAST_FRAMES:
            return replace(frames[0], kind=head, role=HEAD)
    return None


def _of_number(row: EndingPattern, said: dict[str, str]) -> tuple[str | None, str]:
    """The kind and the role of a line according to its number (a signal, an exit status or an Xid). The kind is None if
    the number means success."""
    if row.kind == "xid":
        known = xids().get(int(said["number"]))
        return row.kind, known.role if known and row.role != ECHO else row.role
    signal = _number(said.pop("signal", None))
    if (status := _number(said.pop("exit", None))) is not None:
        if status == 0:
            return None, ECHO
        signal = -status if status < 0 else status - BY_SIGNAL if status > BY_SIGNAL else None
        said["number"] = str(status)
    if signal is None or (kind := SIGNALS.get(signal)) is None:
        return ("exit_code" if row.kind == "signal" else row.kind), row.role
    return kind, ROLES.get(kind, CAUSE)


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _below_heads(endings: Iterable[EndingLine]) -> Iterator[EndingLine]:
    """The endings. If only the head of a traceback has a logger's prefix, the traceback's end gets the process of the
    head."""
    head, last = None, None  # the head, and the last line of its stack
    for each in endings:
        nobody = each.source == (None, None, None) and each.gpu is None
        if each.kind == "python_traceback":
            head, last = each, None
        elif each.kind == "python_frame" and nobody:
            last = each.line
        elif nobody and head is not None and last is not None and each.line - last < MOST_BELOW:
            yield replace(each, rank=head.rank, host=head.host, pid=head.pid)
            head = None
            continue
        yield each


def failures(endings: Iterable[EndingLine]) -> list[EndingLine]:
    """The lines that report failures, beginning with the first cause; the others follow in the order of the log.

    The role of a line decides whether it is the first cause. The roles are tried in this order: hardware, cause,
    exception or opening, echo, head, aftermath. Of lines that are equal in this, the earliest is the first cause. A
    line with the role of an exception only counts if the same process printed the start of a traceback above it, or a
    part of its stack just above it.
    """
    found, opened = list[EndingLine](), set[tuple[int | None, str | None, int | None]]()
    frames = dict[tuple[int | None, str | None, int | None], int]()  # the last line of a stack, by process
    for each in _below_heads(endings):
        if each.kind == "python_frame":
            frames[each.source] = each.line
        elif each.kind == "python_traceback":
            opened.add(each.source)
        below = each.source in opened or each.line - frames.get(each.source, -MOST_BELOW) < MOST_BELOW
        if each.role not in (ORDERLY, FRAME, WAITING) and (each.role != EXCEPTION or below):
            found.append(each)
    order = {HARDWARE: 0, CAUSE: 1, EXCEPTION: 2, OPENING: 2, ECHO: 3, HEAD: 4, AFTERMATH: 5}
    # Otherwise the lines come from several files without a common clock
    timed = all(each.time is not None for each in found)
    first = min(found, key=lambda each: (order[each.role], (timed and each.time) or "", each.line), default=None)
    return [] if first is None else [first, *(each for each in found if each is not first)]
