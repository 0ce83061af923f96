"""Collects the facts of one communicator from a parsed log, and notes what the log lacks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.spelling import option
from tuner.release import Release
from tuner.release.variables import not_emulated
from tuner.scenario.logs import choice, node_facts, reader
from tuner.scenario.logs.checks.every import evidence
from tuner.scenario.logs.choice_groups import ChoiceOfBatch, LoggedGroup, groups_of
from tuner.scenario.logs.endings import WAITING, failures, in_traceback
from tuner.scenario.logs.imported import (
    CommunicatorLines,
    Hardware,
    Imported,
    LogAdditions,
    LoggedChoice,
    Reading,
    groups,
)
from tuner.scenario.logs.lines import UNKNOWN, Lines, Thread, read_lines
from tuner.scenario.logs.reader import Block, ChoiceLine, LoggedCall, NcclLog


class NothingLogged(BadInput):
    """The file has no line in which NCCL says anything."""


def read(path: Path, given: LogAdditions) -> Imported:
    """Reads one communicator of a log file: the one that ``given`` names, or else the largest. BadInput if the log has
    no such communicator."""
    return of_lines(read_lines(path), str(path), given)


def of_lines(lines: Lines, name: str, given: LogAdditions, parsed: NcclLog | None = None) -> Imported:
    """Reads one communicator from lines, which messages call ``name``. NothingLogged if the lines say nothing about
    NCCL.

    ``parsed``: the result of :func:`reader.parse`, if it was called before.
    """
    log = parsed or reader.parse(lines)
    facts = (
        log.versions,
        log.ranks,
        log.choices,
        log.instance,
        log.networks,
        log.warnings,
        log.transports,
        log.returned,
        log.timed_out,
        log.rccl,
        log.rings,
        log.environment,
        log.adapters,
        log.gpudirect,
        log.last_line and log.result_rows is None,
        failures(log.endings) or in_traceback(log.endings),
        any(each.kind == "slurm_completed" or each.role == WAITING for each in log.endings),
    )
    if not any(facts):
        raise NothingLogged(
            f"{name}: no line of NCCL's in it that says anything of a communicator; valid: what NCCL prints with "
            "NCCL_DEBUG=INFO; nccl-tuner diagnose FILE says what a file is"
        )
    imported = of(log, given)
    return (
        replace(imported, missing=(*imported.missing, "the end of the last line, which is cut"))
        if lines.cut
        else imported
    )


def of(log: NcclLog, given: LogAdditions) -> Imported:
    """One communicator of a parsed log. BadInput also for a log of RCCL, whose lines look like NCCL's."""
    if log.rccl is not None:
        raise BadInput(f"the log comes from RCCL {log.rccl}, AMD's library, which is not emulated: give a log of NCCL")
    communicators = groups(log.ranks)
    reading = Reading(log, given, _chosen_group(communicators, given))
    _count_devices(reading, communicators)
    if len(communicators) > 1 and given.communicator is None:
        reading.notes.append(
            f"{len(communicators)} communicators; this is the largest, {option('communicator')} takes another"
        )
    return _imported(reading, communicators)


def _count_devices(reading: Reading, communicators: Sequence[CommunicatorLines]) -> None:
    """If no line of NCCL has the number of ranks, reads it from nccl-tests' list of devices, for a log with only one
    communicator."""
    if len(communicators) == 1 and communicators[0].ranks is None and reading.log.devices:
        number = len(reading.log.devices)
        for log in communicators[0].logs:
            log.ranks = number
        reading.notes.append(f"{number} ranks: no line 'comm ... nranks ...', nccl-tests lists so many devices")


def _imported(reading: Reading, communicators: Sequence[CommunicatorLines]) -> Imported:
    name = _release(reading)
    nccl = release.load(name) if name in release.names() else None
    ranks = reading.group.ranks if reading.group else None
    if reading.group is None:
        reading.needed.append("the log shows no communicator being made (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV)")
    elif ranks is None:
        reading.needed.append("the number of ranks: a line 'comm ... rank ... nranks ...'")
    environment = environment_of(reading, nccl)
    node_count = node_facts.count(reading) if reading.group else None
    nodes = node_facts.of_nodes(reading, nccl, environment, node_count) if reading.group else ()
    net_gbs = node_facts.slowest_gbs(reading, nccl, nodes)
    table = next((log.table for log in reading.logs if log.table), [])
    check_table(reading, table, nccl)
    thresholds = first_printed(reading, "thread thresholds", [log.thresholds for log in reading.logs])
    of_rings = [count for thread, count in reading.log.ring_channels.items() if of_group(thread, reading.group)]
    channels = first_printed(reading, "channel counts", [log.channels for log in reading.logs])
    if channels is None and of_rings:
        channels = str(of_rings[0]), None
    return Imported(
        release=name,
        printed_releases=tuple(reading.log.versions),
        communicator=reading.group.name if reading.group else None,
        communicators=tuple((group.name, group.ranks) for group in communicators),
        ranks=ranks,
        node_count=node_count,
        hardware=hardware_of(reading),
        nodes=nodes,
        environment=environment,
        net_gbs=net_gbs,
        table=tuple(table),
        thresholds=thresholds,
        coll_channels=channels[0] if channels else None,
        nvls_channels=channels[1] if channels else None,
        choices=_choices(reading, communicators),
        choice_groups=_choice_groups(reading, communicators),
        symmetric=tuple(text for thread, text in reading.log.symmetric if of_group(thread, reading.group)),
        needed=tuple(reading.needed),
        missing=tuple(reading.missing),
        notes=tuple(reading.notes),
        evidence=evidence(reading, environment, channels, nccl),
    )


def _chosen_group(communicators: Sequence[CommunicatorLines], given: LogAdditions) -> CommunicatorLines | None:
    wanted = given.communicator
    if wanted is not None:
        named = [group for group in communicators if group.name == wanted]
        if not named:
            valid = one_of(group.name for group in communicators) if communicators else "the log shows none"
            raise BadInput(f"no communicator {wanted!r} in the log; {valid}")
        return named[0]
    if not communicators:
        return None
    return max(communicators, key=lambda group: (group.ranks or 0, any(log.table for log in group.logs)))


def _release(reading: Reading) -> str | None:
    versions = list(reading.log.versions)
    if len(versions) > 1:
        reading.notes.append(f"several releases in the log: {', '.join(versions)}")
    name = reading.given.release or next(iter(versions), None)
    if name is None:
        reading.needed.append(f"the release: a line 'NCCL version ...', or {option('nccl')}")
    elif name not in release.names():
        reading.needed.append(
            f"NCCL {name} is not emulated; {option('nccl')} takes another, or its "
            "libnccl.so.2 (nccl-tuner oracle learn); "
            f"{one_of(release.names())}"
        )
    return name


def _choices(reading: Reading, communicators: Sequence[CommunicatorLines]) -> tuple[LoggedChoice, ...]:
    printed, ambiguous = choices_of(reading.log.choices, reading.group, communicators, reading.given.collective)
    if ambiguous:
        reading.notes.append(f"{ambiguous} choices may be another communicator's: NCCL_DEBUG_SUBSYS=COLL would say")
    if not printed:
        reading.missing.append("choices (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0 of NCCL 2.20 and later)")
    return printed


def hardware_of(reading: Reading) -> Hardware:
    """The hardware of the communicator's hosts. The adapters are those of rank 0's host, or of the first host that
    lists some."""
    log, logs = reading.log, sorted(reading.logs, key=lambda each: each.rank or 0)
    hosts = list(dict.fromkeys(each.thread.host for each in logs))
    by_host = {host: {each.rank for each in logs if each.thread.host == host} for host in hosts}
    shown = sum(map(len, by_host.values()))
    every = reading.group is not None and shown == reading.group.ranks and "" not in hosts
    host = next((host for host in [*hosts, *log.adapters] if host in log.adapters), None)
    adapters = () if host is None else log.adapters[host]
    speeds = {log.speeds_mbps[host, name] for name in adapters if host is not None and (host, name) in log.speeds_mbps}
    bus_ids = {each.bus_id for each in logs if each.thread.host == hosts[0] and each.bus_id is not None}
    return Hardware(
        instance=log.instance,
        gpu_names=tuple(dict.fromkeys(log.devices.values())),
        comp_caps=tuple(sorted(set(reading.given.comp_caps))),
        ranks_of_hosts=tuple(len(ranks) for ranks in by_host.values()) if every else (),
        bus_ids=tuple(sorted(bus_ids)),
        adapters=adapters,
        adapters_mbps=tuple(sorted(speeds)),
        multicast=log.multicast == {True} if log.multicast else None,
        networks=tuple(dict.fromkeys(log.networks.values())),
    )


T = TypeVar("T")


def check_table(reading: Reading, table: Sequence[Block], nccl: Release | None) -> None:
    """Adds to ``missing`` the parts of the tuning table that the release prints and the log lacks."""
    if not table:
        reading.missing.append("the tuning table (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0)")
        return
    for index, block in enumerate(table):
        columns = ", ".join(block.names(index))
        if block.algorithms is None:
            reading.missing.append(f"the table's line 'Algorithm' of {columns}")
        if not block.threads and any(other.threads for other in table):
            reading.missing.append(f"the table's line 'Max NThreads' of {columns}")
        for collective in Collective:
            have, whole = len(block.rows.get(collective, ())), len(Protocol) * len(block.names(index))
            if have < whole:
                what = f"{whole - have} cells of {collective.name}" if have else collective.name
                reading.missing.append(f"in the table {what} of {columns}")
    shown = {choice.algorithm(name) for index, block in enumerate(table) for name in block.names(index)}
    there = list(Algorithm)[: nccl.limits.algorithms if nccl else 0]
    if absent := [algorithm.name for algorithm in there if algorithm not in shown]:
        reading.missing.append(f"the table's part with {', '.join(absent)}")


def first_printed(reading: Reading, what: str, values: Sequence[T | None]) -> T | None:
    """The first of ``values`` that a rank printed. If there is none, ``what`` is added to ``missing``."""
    printed = next((value for value in values if value is not None), None)
    if printed is None and reading.logs:
        reading.missing.append(what)
    return printed


def choices_of(
    printed: Sequence[ChoiceLine],
    group: CommunicatorLines | None,
    groups: Sequence[CommunicatorLines],
    collective: Collective | None,
    ranks: int | None = None,
) -> tuple[tuple[LoggedChoice, ...], int]:
    """Each different choice of ``group`` with the number of times that it was printed, and the number of lines that may
    belong to another communicator.

    ``collective`` is used for lines that name none, ``ranks`` for a log that does not say the number of ranks.
    """
    tally: dict[tuple[choice.PrintedChoice, tuple[LoggedCall, ...]], int] = {}
    lines, ambiguous = _lines_of(printed, group, groups)
    for line in lines:
        tally[line[:2]] = tally.get(line[:2], 0) + 1
    counts: dict[LoggedChoice, int] = {}
    for (text, calls), count in tally.items():
        made = _choice(text, calls, (group.ranks if group else None) or ranks, collective)
        counts[made] = counts.get(made, 0) + count
    return tuple(replace(made, count=count) for made, count in counts.items()), ambiguous


def _choice_groups(reading: Reading, communicators: Sequence[CommunicatorLines]) -> tuple[LoggedGroup, ...]:
    lines, _ = _lines_of(reading.log.choices, reading.group, communicators)
    ranks = reading.group.ranks if reading.group else None
    return groups_of(lines, lambda printed, calls: _choice(printed, calls, ranks, reading.given.collective), ranks)


def _lines_of(
    printed: Sequence[ChoiceLine], group: CommunicatorLines | None, groups: Sequence[CommunicatorLines]
) -> tuple[list[ChoiceOfBatch], int]:
    """The choices of ``group`` with its own calls, in order, and the number of lines that may belong to another
    communicator."""
    own, others = _roots(group, groups)
    root = group.root if group else None
    found, ambiguous = list[ChoiceOfBatch](), 0
    for line in printed:
        if not _of_root(line.thread, root):
            continue
        if others and (comms := {call.comm for call in line.calls} & {own, *others}) != {own}:
            ambiguous += len(comms) != 1
            continue
        calls = tuple(call for call in line.calls if own is None or call.comm == own)
        found.append(ChoiceOfBatch(line.printed, calls, line.batch))
    return found, ambiguous


def of_group(thread: Thread, group: CommunicatorLines | None) -> bool:
    """Whether ``thread`` may belong to rank 0 of the group, the rank that prints choices; true if the log does not show
    rank 0."""
    return _of_root(thread, group.root if group else None)


def _of_root(thread: Thread, root: reader.RankLog | None) -> bool:
    return root is None or thread is UNKNOWN or thread[:2] == root.thread[:2]


def _roots(group: CommunicatorLines | None, groups: Sequence[CommunicatorLines]) -> tuple[str | None, set[str | None]]:
    """The communicator of the group's rank 0, and those of other groups whose rank 0 may be in the same process."""
    root = group.root if group else None
    others = {
        other.root.comm
        for other in groups
        if other is not group and other.root is not None and of_group(other.root.thread, group)
    }
    return root.comm if root else None, others


def _choice(
    printed: choice.PrintedChoice, calls: Sequence[LoggedCall], ranks: int | None, otherwise: Collective | None
) -> LoggedChoice:
    call = calls[0] if len(calls) == 1 else None
    name = printed.collective or (call.collective if call else None)
    collective = choice.collective(name) if name else otherwise
    if call is not None and choice.collective(call.collective) is not collective:
        call = None  # the line of the call itself was lost
    nbytes: int | None = printed.bytes
    if printed.planned and collective in (Collective.AllGather, Collective.ReduceScatter):
        nbytes = None if ranks is None else printed.bytes * ranks
    algorithm, protocol = choice.algorithm(printed.algorithm), choice.protocol(printed.protocol)
    return LoggedChoice(
        collective=collective,
        bytes=nbytes,
        algorithm=printed.algorithm if algorithm is None else algorithm.name,
        protocol=printed.protocol if protocol is None else protocol.name,
        channel_lo=printed.channel_lo,
        channel_hi=printed.channel_hi,
        time_us=printed.time_us,
        dtype=DataType(call.dtype) if call and call.dtype in list(DataType) else None,
        op=Op(call.op) if call and call.op in list(Op) else None,
        operations=len(calls) or None,
    )


# Settings of a program's ncclConfig_t that a variable can override, as NCCL prints them (parseCommConfig and
# envConfigOverride, src/init.cc).
_CONFIG = {
    "Min CTAs": "NCCL_MIN_CTAS",
    "Max CTAs": "NCCL_MAX_CTAS",
    "nvlsCTAs": "NCCL_NVLS_NCHANNELS",
    "Collnet enable": "NCCL_COLLNET_ENABLE",
    "CTA policy flags": "NCCL_CTA_POLICY",
}
# The graphs in the log already show the effect of these variables: where the topology is, and which adapters there are.
FILES_AND_ADAPTERS = (
    "NCCL_TOPO_FILE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_CUDA_SUPPORT",
)


def environment_of(reading: Reading, nccl: Release | None) -> dict[str, str]:
    """The variables of the communicator's processes (those of rank 0 take precedence), and the program's
    configuration."""
    processes = sorted({log.thread.process for log in reading.logs}, key=lambda p: p != _root_process(reading))
    variables = dict(reading.given.environment)
    for process in processes or reading.log.environment:
        for name, value in reading.log.environment.get(process, {}).items():
            if variables.setdefault(name, value) != value and name not in reading.given.environment:
                reading.notes.append(f"{name} differs between processes; used: {variables[name]}")
    for log in reading.logs:
        for setting, value in log.config.items():
            if setting in _CONFIG:
                variables.setdefault(_CONFIG[setting], value)
    if not reading.log.environment:
        reading.notes.append(
            "no variable is printed: all are assumed to be unset, as NCCL_DEBUG_SUBSYS=ENV would show them"
        )
    if nccl is not None:
        in_graphs = {*FILES_AND_ADAPTERS, *nccl.environment.search}
        for name in not_emulated(nccl, set(variables) - in_graphs):
            reading.notes.append(f"{name}={variables[name]} may change choices and is not emulated")
    return variables


def _root_process(reading: Reading) -> tuple[str, int] | None:
    root = reading.group.root if reading.group else None
    return root.thread.process if root else None
