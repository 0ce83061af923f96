"""Reads the output of DeepSpeed's communication logger: its summary as text or as JSON, or what it prints for each
call.

Forms: deepspeed/utils/comms_logging.py (log_all, append). Sizes are the bytes of a call's input: for AllGather that of
one rank, for ReduceScatter that of all ranks together. In text they are rounded to two digits of a unit of 1024.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.names import Collective, PeerCall, peer_call
from tuner.jobs.traces import kernels
from tuner.jobs.traces.calls import CallList, TracedCall, is_all_to_all, number, spread_bytes
from tuner.scenario.logs import choice

KIND = "DeepSpeed communication log"
_HEADING = expression(r"Comm\. Op\s+Message Size\s+Count\s+Total Latency\(ms\)")
_SIZE = r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|TB|PB)"
_ROW = expression(rf"^\s+{_SIZE}\s+(\d+)\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)")
_CALL = expression(
    rf"comm op: ([^|]+?)(?: \|.*?)? \| time \(ms\): [\d.]+ \| msg size: {_SIZE} "
    r"\| algbw \(Gbps\): ([\d.]+) *\| busbw \(Gbps\): ([\d.]+)"
)
_ROUNDED_GBPS = 0.01  # by how much two bandwidths of two places may be off together
_NAME = expression(r"^\s*([a-z]\w*)(?:\s*\|.*)?\s*$")  # then, with ``debug``, who called it
_UNITS = {name: 1024**power for power, name in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
_WORD = 4  # bytes, of which sizes are taken as multiples where they are rounded
_NAMES = {
    "all_reduce_coalesced": Collective.AllReduce,
    "inference_all_reduce": Collective.AllReduce,
    "all_gather_base": Collective.AllGather,
    "all_gather_coalesced": Collective.AllGather,
    "reduce_scatter_base": Collective.ReduceScatter,
    "reduce_scatter_fn": Collective.ReduceScatter,
    "all_gather_fn": Collective.AllGather,
}


def is_text(content: str) -> bool:
    """Whether this text has output of DeepSpeed's communication logger."""
    return _HEADING.search(content) is not None or _CALL.search(content) is not None


def is_summary(value: Any) -> bool:
    """Whether a JSON value is the result of ``log_summary(return_dict=True)``."""
    return (
        isinstance(value, dict) and isinstance(value.get("summary"), dict) and isinstance(value.get("metadata"), dict)
    )


def from_text(file: str, content: str, ranks: int) -> CallList:
    """The calls of the last summary, or else those printed one by one. ``ranks`` is used if the bandwidths do not show
    the number of ranks.

    BadInput if there are no calls.
    """
    lines = content.splitlines()
    headings = [at for at, line in enumerate(lines) if _HEADING.search(line)]
    try:
        printed = list(_of_summary(lines[headings[-1] + 1 :]) if headings else _one_by_one(lines))
    except (OverflowError, ValueError) as error:
        raise BadInput(f"{file}: {error}, where DeepSpeed prints a number") from None
    shown = _ranks(printed)
    count = shown or ranks
    notes = [f"its bandwidths are those of {shown} ranks" if shown else f"the ranks are not known: taken as {ranks}"]
    if len(headings) > 1:
        notes.append(f"the log has {len(headings)} summaries; the last one is used, as it counts all calls")
    counted: Counter[tuple[str, int]] = Counter()
    for each in printed:
        counted[each.name, each.bytes] += each.calls
    calls = tuple(_call(name, size, float(times), count) for (name, size), times in counted.items())
    if not calls:
        raise BadInput(f"{file}: DeepSpeed's log has no call: call deepspeed.comm.log_summary(), or set verbose: true")
    notes.append("sizes are rounded as DeepSpeed prints them, to two places")
    return CallList(file, KIND, _SIZES, calls, tuple(notes))


_SIZES = "the input's bytes, times the ranks for AllGather"


def from_summary(file: str, value: Mapping[str, Any], ranks: int) -> CallList:
    """The calls of a summary as JSON, with exact sizes. BadInput for an invalid operation."""
    world = value["metadata"].get("world_size")
    count = world if isinstance(world, int) and world > 0 else ranks
    calls = []
    for name, sizes in value["summary"].items():
        try:
            for size, each in sizes.items():
                calls.append(_call(str(name).partition("|")[0].strip(), int(size), float(each["count"]), count))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise BadInput(f"{file}: summary[{name!r}] is not what DeepSpeed writes: {error!r}") from None
    if not calls:
        raise BadInput(f"{file}: DeepSpeed's summary has no operation: set enabled: true in comms_logger")
    note = f"DeepSpeed only says the number of ranks of the whole job: {number(count)}"
    return CallList(file, f"{KIND} (JSON)", _SIZES, tuple(calls), (note,))


def _of_summary(lines: list[str]) -> "Iterator[_Printed]":
    """Yields the rows of a summary, up to the first line that is neither a row nor the name of an operation."""
    name = ""
    for line in lines:
        if row := _ROW.match(line):
            yield _Printed(name, _bytes(row[1], row[2]), int(row[3]), float(row[4]), float(row[5]))
        elif match := _NAME.match(line):
            name = match[1]
        elif line.strip():
            return


def _one_by_one(lines: list[str]) -> "Iterator[_Printed]":
    for line in lines:
        if match := _CALL.search(line):
            yield _Printed(match[1].strip(), _bytes(match[2], match[3]), 1, float(match[4]), float(match[5]))


def _ranks(printed: "list[_Printed]") -> int | None:
    """The number of ranks n, from the fastest row: its bus bandwidth divided by its algorithm bandwidth is (n - 1) / n.
    None if rounding hides n."""
    of_all = [each for each in printed if "all_" in each.name or "reduce_scatter" in each.name]
    fastest = max(of_all, key=lambda each: each.algbw_gbps, default=None)
    if fastest is None or not 0 < fastest.busbw_gbps < fastest.algbw_gbps:
        return None
    count = 1 / (1 - fastest.busbw_gbps / fastest.algbw_gbps)
    return round(count) if count**2 * _ROUNDED_GBPS / fastest.algbw_gbps < 0.5 else None


@dataclass(frozen=True, slots=True)
class _Printed:
    """An operation of one size: its number of calls, and its bandwidths in 1e9 bits per second."""

    name: str
    bytes: int
    calls: int
    algbw_gbps: float
    busbw_gbps: float


def _bytes(text: str, unit: str) -> int:
    size = float(text) * _UNITS[unit]
    return int(size) if unit == "B" else _WORD * round(size / _WORD)


def _call(name: str, size: int, calls: float, ranks: int) -> TracedCall:
    collective = _NAMES[name] if name in _NAMES else kernels.collective(name) or choice.collective(name)
    if collective is None and not is_all_to_all(name.removesuffix("_single")):
        message = peer_call(name.removeprefix("i"))  # isend and irecv are sends and receives
        known = message in (PeerCall.Send, PeerCall.Recv)
        return TracedCall(
            name.removeprefix("i") if known else name, None, size if known else None, calls=calls, ranks=ranks
        )
    spread = spread_bytes(collective, size, ranks) if collective is Collective.AllGather else size
    return TracedCall(name.removesuffix("_single"), collective, spread, calls=calls, ranks=ranks)
