"""Collects one communicator's facts from what was read of a log, and says what the log does not say."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.scenario.logs import chosen, hardware, lines, network, node_facts, printed_table, reader, variables
from tuner.scenario.logs.evidence import evidence
from tuner.scenario.logs.groups import CommunicatorLines, groups
from tuner.scenario.logs.imported import Given, Imported, LoggedChoice
from tuner.scenario.logs.reader import Log
from tuner.scenario.logs.reading import Reading


def read(path: Path, given: Given) -> Imported:
    """One communicator of a log file: the one ``given`` names, else the largest. BadInput where there is nothing."""
    whole, cut = lines.read(path)
    log = reader.parse(whole)
    if not (log.versions or log.ranks or log.choices or log.instance or log.networks or log.warnings or log.transports):
        raise BadInput(f"{path}: no line of NCCL's in it; valid: what NCCL prints with NCCL_DEBUG=INFO")
    imported = of(log, given)
    return replace(imported, missing=(*imported.missing, "the end of the last line, which is cut")) if cut else imported


def of(log: Log, given: Given) -> Imported:
    """The same of a log that was read. BadInput also for a log of RCCL, whose lines look like NCCL's."""
    if log.rccl is not None:
        raise BadInput(f"the log is of RCCL {log.rccl}, AMD's library, which is not emulated; valid: a log of NCCL")
    communicators = groups(log.ranks)
    reading = Reading(log, given, _chosen_group(communicators, given))
    _count_devices(reading, communicators)
    if len(communicators) > 1 and given.communicator is None:
        reading.notes.append(f"{len(communicators)} communicators; this is the largest, `communicator` takes another")
    return _imported(reading, communicators)


def _count_devices(reading: Reading, communicators: Sequence[CommunicatorLines]) -> None:
    """The ranks of the only communicator where no line of NCCL's says them: as many as nccl-tests lists devices."""
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
    environment = variables.environment(reading, nccl)
    node_count = node_facts.count(reading) if reading.group else None
    nodes = node_facts.of_nodes(reading, nccl, environment, node_count) if reading.group else ()
    net_gbs = network.slowest_gbs(reading, nccl, nodes)
    table = next((log.table for log in reading.logs if log.table), [])
    printed_table.check_table(reading, table, nccl)
    thresholds = printed_table.first_printed(reading, "thread thresholds", [log.thresholds for log in reading.logs])
    channels = printed_table.first_printed(reading, "channel counts", [log.channels for log in reading.logs])
    return Imported(
        release=name,
        printed_releases=tuple(reading.log.versions),
        communicator=reading.group.name if reading.group else None,
        communicators=tuple((group.name, group.ranks) for group in communicators),
        ranks=ranks,
        node_count=node_count,
        hardware=hardware.of(reading),
        nodes=nodes,
        environment=environment,
        net_gbs=net_gbs,
        table=tuple(table),
        thresholds=thresholds,
        coll_channels=channels[0] if channels else None,
        nvls_channels=channels[1] if channels else None,
        choices=_choices(reading, communicators),
        symmetric=tuple(text for thread, text in reading.log.symmetric if chosen.of_group(thread, reading.group)),
        needed=tuple(reading.needed),
        missing=tuple(reading.missing),
        notes=tuple(reading.notes),
        evidence=evidence(reading, environment, channels),
    )


def _chosen_group(communicators: Sequence[CommunicatorLines], given: Given) -> CommunicatorLines | None:
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
        reading.needed.append("the release: a line 'NCCL version ...', or `nccl`")
    elif name not in release.names():
        reading.needed.append(f"NCCL {name} is not emulated; `nccl` takes another; {one_of(release.names())}")
    return name


def _choices(reading: Reading, communicators: Sequence[CommunicatorLines]) -> tuple[LoggedChoice, ...]:
    printed, ambiguous = chosen.choices(reading.log.choices, reading.group, communicators, reading.given.collective)
    if ambiguous:
        reading.notes.append(f"{ambiguous} choices may be another communicator's: NCCL_DEBUG_SUBSYS=COLL would say")
    if not printed:
        reading.missing.append("choices (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0 of NCCL 2.20 and later)")
    return printed
