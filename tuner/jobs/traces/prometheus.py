"""Reads NCCL Inspector's Prometheus text: mean times per collective, range of sizes, algorithm and protocol.

Metrics and labels: inspector_prom.cc of plugins/profiler/inspector, v2.30.7-1. A range is in bytes of one rank; it
begins at a multiple of its unit (1024, 1024**2, ...) and is one unit long. A line has the mean time over an interval,
without the number of calls; some builds also write this number.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.jobs.traces.calls import CallList, ExecutedCall, TracedCall, spread_bytes
from tuner.scenario.logs import choice

KIND = "NCCL Inspector (Prometheus text)"
TIME = "nccl_collective_exec_time_microseconds"
_BANDWIDTH = "nccl_bus_bandwidth_gbs"
_COUNT = "nccl_collective_count"
_LINE = expression(r"(nccl_\w+)\{(.*)\}\s+([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)(?:\s+[0-9.-]+)?\s*")
_LABEL = expression(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
_RANGE = expression(r"(\d+)-(\d+)(B|KB|MB|GB|TB)")
_UNITS = {name: 1024**power for power, name in enumerate(("B", "KB", "MB", "GB", "TB"))}
_OF_SERIES = ("node", "gpu", "comm_name", "n_nodes", "nranks", "collective", "message_size", "algo_proto")
_Series = tuple[str, ...]


def is_text(content: str) -> bool:
    """Whether a text has a line of the Inspector."""
    return f"{TIME}{{" in content or f"{_BANDWIDTH}{{" in content


def from_text(file: str, content: str) -> CallList:
    """The calls of the first GPU in a file. BadInput names a line that the Inspector does not write."""
    times_us: dict[_Series, list[float]] = {}
    counts: dict[_Series, float] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.startswith((f"{TIME}{{", f"{_COUNT}{{")):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadInput(f"{file}:{number} is not a line of Prometheus text: {line[:60]}")
        labels = dict(_LABEL.findall(match[2]))
        series = tuple(labels.get(name, "") for name in _OF_SERIES)
        if match[1] == TIME:
            times_us.setdefault(series, []).append(float(match[3]))
        else:
            counts[series] = counts.get(series, 0.0) + float(match[3])
    if not times_us:
        raise BadInput(f"{file} has no line of {TIME}: give the Prometheus text of NCCL's Inspector")
    place = {series[2:5]: series[:2] for series in reversed(times_us)}  # the first GPU of each communicator
    of_first = {series: times for series, times in times_us.items() if place[series[2:5]] == series[:2]}
    calls = tuple(_call(file, series, times, counts.get(series)) for series, times in of_first.items())
    return CallList(
        file,
        KIND,
        "the lower end of message_size, times the ranks for AllGather and ReduceScatter",
        calls,
        tuple(_notes(times_us, of_first, counts)),
    )


def _notes(
    times_us: Mapping[_Series, list[float]], counted: Mapping[_Series, list[float]], counts: Mapping[_Series, float]
) -> Iterator[str]:
    yield "message_size is a range: calls are priced at its lower end"
    if not counts:
        yield "the file does not say over how many calls a line is the mean, so each line counts as one call"
    if gpus := len({series[:2] for series in times_us}) - len({series[:2] for series in counted}):
        yield f"nothing is counted for {gpus} further GPUs: they took part in the same calls"


def _call(file: str, series: _Series, times_us: list[float], count: float | None) -> TracedCall:
    label = dict(zip(_OF_SERIES, series, strict=True))
    collective, ranks = choice.collective(label["collective"]), _whole(label["nranks"])
    call = TracedCall(
        label["collective"] or "a collective",
        collective,
        None,
        ranks=ranks,
        nodes=_whole(label["n_nodes"]),
        communicator=label["comm_name"] or None,
        calls=count if count is not None else float(len(times_us)),
        kernels_us=tuple(times_us),
        ran=_executed(label["algo_proto"]),
    )
    match = _RANGE.fullmatch(label["message_size"])
    if match is None:
        return replace(call, unusable=f"message_size {label['message_size']!r} is no range of the Inspector's")
    low, high = int(match[1]) * _UNITS[match[3]], int(match[2]) * _UNITS[match[3]] - 1
    if ranks is None:
        raise BadInput(f"{file}: nranks {label['nranks']!r} is not a whole number, as the Inspector writes")
    return replace(call, bytes=spread_bytes(collective, low, ranks), to_bytes=spread_bytes(collective, high, ranks))


def _executed(algo_proto: str) -> ExecutedCall | None:
    """What was executed according to ``RING_LL``, ``Ring_ll`` or ``NVLS_TREE_SIMPLE``; None for ``unknown_unknown``."""
    algorithm, _, protocol = algo_proto.rpartition("_")
    ran = ExecutedCall(choice.algorithm(algorithm), choice.protocol(protocol))
    return ran if ran.says_anything else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None
