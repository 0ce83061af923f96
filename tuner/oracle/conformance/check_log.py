"""The emulator against what a log printed: the same text, or a mismatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, DataType, Op, Protocol
from tuner.base.records import json_form
from tuner.base.sizes import ranks_on_nodes
from tuner.base.spelling import option
from tuner.emulator import model
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.mismatches import Comparing, MatchReport
from tuner.scenario.from_log import described_by
from tuner.scenario.logs import choice
from tuner.scenario.logs.imported import Imported, LoggedChoice

# What a report counts, in the order it prints them.
KINDS = ("table", "max threads", "thread thresholds", "channels", "choices")

# Where the eight numbers of NCCL's line "threadThresholds" are (ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1).
_THRESHOLDS = [(algorithm, protocol) for algorithm in (Algorithm.Tree, Algorithm.Ring) for protocol in Protocol] + [
    (Algorithm.CollNetDirect, Protocol.Simple),
    (Algorithm.CollNetChain, Protocol.Simple),
]


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Comparison with a log: what was compared, not printed, or printed and not compared, each with the reason.

    ``notes`` say what was assumed.
    """

    report: MatchReport = field(metadata=json_form(merged=True))
    missing: tuple[str, ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...]


def compare(imported: Imported, dtype: DataType = DataType.float32, op: Op = Op.sum) -> LogComparison:
    """Compares every number and choice printed; ``dtype`` and ``op`` are of calls whose own the log does not say.

    BadInput names what emulating the communicator needs and neither the log nor the user said.
    """
    communicator = described_by(imported).communicator()
    selection = Selection(communicator)
    comparing = Comparing()
    title = (
        f"{ranks_on_nodes(communicator.ranks, communicator.nodes)}, NCCL {communicator.release.name}"
        f", communicator {imported.communicator}"
    )
    _compare_table(comparing, imported, selection)
    _compare_thresholds(comparing, imported, selection.tables)
    if imported.coll_channels is not None:
        comparing.compare("channels", "coll channels", str(communicator.channels), imported.coll_channels)
    if imported.nvls_channels is not None:
        comparing.compare("channels", "nvls channels", str(communicator.nvls_channels), imported.nvls_channels)
    not_compared = _compare_choices(comparing, imported.choices, selection, dtype, op)
    silent = sum(made.count for made in imported.choices if made.dtype is None or made.op is None)
    notes = [f"{silent} choices do not show their call: taken as {dtype.name} {op.name}"] if silent else []
    report = comparing.report(title)
    off = [each for each in report.mismatches if each.what == "table" and str(each.libnccl).endswith("/0.0")]
    if off and not {"NCCL_ALGO", "NCCL_PROTO"} & set(imported.environment):
        names = ", ".join(dict.fromkeys(each.where.split()[1] for each in off))
        notes.append(
            f"the log's table has {names} off, as NCCL_ALGO or NCCL_PROTO does: say with which it ran ({option('env')})"
        )
    return LogComparison(report, imported.missing, (*not_compared, *imported.symmetric), (*imported.notes, *notes))


def _compare_table(comparing: Comparing, imported: Imported, selection: Selection) -> None:
    latency_us, bandwidth_gbs, _ = model.printed(selection.communicator, selection.tables)
    for index, block in enumerate(imported.table):
        columns = [(name, protocol) for name in block.names(index) for protocol in Protocol]
        for (name, protocol), text in zip(columns, block.threads, strict=False):
            algorithm = choice.algorithm(name)
            ours = "absent" if algorithm is None else str(selection.tables.max_threads[algorithm, protocol])
            comparing.compare("max threads", f"{name}/{protocol.name}", ours, text)
        for collective, cells in block.rows.items():
            for (name, protocol), (latency, bandwidth) in zip(columns, cells, strict=False):
                algorithm = choice.algorithm(name)
                at = collective, algorithm, protocol
                ours = "absent" if algorithm is None else f"{latency_us[at]:.1f}/{bandwidth_gbs[at]:.1f}"
                comparing.compare("table", f"{collective.name} {name}/{protocol.name}", ours, f"{latency}/{bandwidth}")


def _compare_thresholds(comparing: Comparing, imported: Imported, tables: Tables) -> None:
    for (algorithm, protocol), text in zip(_THRESHOLDS, imported.thresholds or (), strict=False):
        ours = str(tables.thread_thresholds_bytes[algorithm, protocol])
        comparing.compare("thread thresholds", f"{algorithm.name}/{protocol.name}", ours, text)


def _compare_choices(
    comparing: Comparing, choices: Sequence[LoggedChoice], selection: Selection, dtype: DataType, op: Op
) -> list[str]:
    not_compared: dict[str, int] = {}
    for made in choices:
        reason = _not_comparable(made)
        if reason is not None:
            not_compared[reason] = not_compared.get(reason, 0) + made.count
            continue
        assert made.collective is not None
        request = Request(made.collective, made.dtype or dtype, op if made.op is None else made.op)
        where = f"{made.collective.name} {request.dtype.name} {request.op.name} {made.bytes} B"
        comparing.compare("choices", where, _emulated(selection, request, made), _printed(made))
    return [f"{count} choices: {reason}" for reason, count in not_compared.items()]


def _not_comparable(made: LoggedChoice) -> str | None:
    if made.collective is None:
        return f"the log does not say of which collective; {option('collective')} does, or NCCL_DEBUG_SUBSYS=COLL"
    if made.bytes is None:
        return "the number of ranks is not known, so their size is not"
    if (made.operations or 1) > 1 or made.channel_lo not in (None, 0):
        return "launched together with others in one group"
    return None


def _printed(made: LoggedChoice) -> str:
    text = f"{made.algorithm}/{made.protocol}"
    if made.channel_hi is not None:
        text += f" channels {made.channel_lo}..{made.channel_hi}"
    return text if made.time_us is None else f"{text} time {made.time_us}"


def _emulated(selection: Selection, request: Request, made: LoggedChoice) -> str:
    """The emulator's pick in the words of :func:`_printed`, as far as the log says it."""
    try:
        picks = selection.pick(request, np.array([made.bytes], np.uint64))
    except NoAlgorithm as error:
        return f"none: {error}"
    text = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
    if made.channel_hi is not None:
        text += f" channels 0..{picks.channels[0] - 1}"
    return text if made.time_us is None else f"{text} time {picks.time_us[0]:f}"
