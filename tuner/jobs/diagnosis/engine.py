"""Diagnoses a serving engine's log: which implementations of AllReduce are off, and what NCCL carries instead."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.answers.serving import ServedGroup, differences, group_of
from tuner.base.errors import BadInput, TunerError
from tuner.base.files import is_plain_file, read_bytes
from tuner.base.findings import Finding, Severity
from tuner.base.names import Collective, DataType, Op
from tuner.base.sizes import LARGEST_BYTES
from tuner.emulator.request import Request
from tuner.engines import log_lines, releases
from tuner.engines.log_lines import EngineLog
from tuner.engines.releases import EngineRelease
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in

MOST_BYTES = 32 << 20  # of a log; an engine says at its start what it has


def start_of(file: Path) -> bytes:
    """The first bytes of a file that can be read in pieces; all bytes of any other file. BadInput if the file cannot be
    read."""
    if not is_plain_file(file):
        return read_bytes(file, BadInput)
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES)


def of_engine(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on an engine's log, by the engine's own rules if the machine is known.

    BadInput if the file cannot be read, or has no line of an engine about AllReduce.
    """
    log = log_lines.read(start_of(file))
    if log is None:
        raise BadInput(f"{file} has no line of a serving engine about AllReduce")
    known.learn(file, nccl=log.nccl)
    release = _release(log)
    found = list(_found(log, release, known))
    if all(each.severity is Severity.NOTE and each.code == "engine_log.enabled" for each in found):
        on = [] if log.enabled is None else _titles(release, log.enabled)
        facts = {"engine": release.engine, "on": on, "line": log.enabled_line}
        found = [Finding("engine_log.all_there", Severity.NOTE, facts)]
        if log.enabled is None and log.ranks is None and not log.switches:
            found = [Finding("engine_log.says_little", Severity.UNKNOWN, {})]
    found.append(_engine(log, release))
    return found_in(file, FileKind.engine, found, known)


def _release(log: EngineLog) -> EngineRelease:
    """The table of the log's release of the engine, or of the nearest release; the newest if the log does not say the
    release."""
    name = log.engine if log.release is None else f"{log.engine}@{log.release}"
    return releases.with_nearest_table(name)


def _engine(log: EngineLog, release: EngineRelease) -> Finding:
    table = None if log.release in releases.releases(log.engine) else releases.nearest(log.engine, log.release)
    facts = {"engine": log.engine, "ranks": log.ranks, "release": log.release, "table": table}
    return Finding("engine_log.engine", Severity.NOTE, facts)


def _titles(release: EngineRelease, names: Sequence[str]) -> list[str]:
    return [each.title for each in release.implementations if each.name in names]


def _found(log: EngineLog, release: EngineRelease, known: KnownFacts) -> Iterator[Finding]:
    """Finds implementations that are off, then the sizes that others carry because of that; if the machine is known, by
    the engine's rules for it.
    """
    has_machine = known.machine is not None or known.topology is not None
    group: ServedGroup | None = None
    refused: TunerError | None = None
    if has_machine:
        try:
            group = _group(log, release, known)
            there = frozenset(each.name for each in group.there(_dtype(log)))
        except TunerError as error:
            refused, group = error, None
    said = frozenset(name for each in log.missing for name in each.implementations)
    for each in log.missing:
        severity = each.severity
        if group is not None and each.implementations and severity is not Severity.FAULT:
            severity = Severity.FAULT if there & set(each.implementations) else Severity.NOTE
        what = _titles(release, each.implementations[:1])
        facts = {"line": each.line, "what": what, **each.facts}
        yield Finding(f"engine_log.{each.code}", severity, facts)
        if group is not None and each.implementations:
            code = "should_be_there" if severity is Severity.FAULT else "as_it_should_be"
            if there & set(each.implementations) or severity is Severity.NOTE:
                place = {"what": what, "ranks": group.scenario.ranks, "machine": group.scenario.name}
                yield Finding(f"engine_log.{code}", Severity.NOTE, place)
    if log.enabled is not None:
        yield Finding(
            "engine_log.enabled",
            Severity.NOTE,
            {"line": log.enabled_line, "on": _titles(release, log.enabled)},
        )
    if group is not None:
        yield from _by_machine(log, group, there, said)
    elif refused is not None:
        yield Finding("engine_log.not_placed", Severity.NOTE, {"text": str(refused)})
    elif said:
        yield Finding("engine_log.moves_unknown", Severity.NOTE, {})


def _by_machine(log: EngineLog, group: ServedGroup, there: frozenset[str], said: frozenset[str]) -> Iterator[Finding]:
    """Finds implementations that are off or on although the engine's rules for the machine say the opposite, and the
    sizes that others carry because of that.
    """
    release = group.release
    place = {"machine": group.scenario.name, "ranks": group.scenario.ranks}
    off = there & said
    if log.enabled is not None:
        printed = frozenset(log_lines.names(log.engine).values())
        unsaid = (there & printed) - set(log.enabled) - said
        if unsaid:
            facts = {"what": _titles(release, sorted(unsaid)), "engine": release.name, **place}
            yield Finding("engine_log.lost", Severity.UNLIKE, facts)
        if more := set(log.enabled) - there:
            facts = {"what": _titles(release, sorted(more)), "line": log.enabled_line, **place}
            yield Finding("engine_log.not_expected", Severity.UNLIKE, facts)
        off |= unsaid
    if off or any(each.unasked is not None for each in log.missing):
        yield from _moved(log, group, off)


def _moved(log: EngineLog, group: ServedGroup, off: frozenset[str]) -> Iterator[Finding]:
    """Finds the sizes that another implementation carries because some are off."""
    dtype = _dtype(log)
    request = Request(Collective.AllReduce, dtype, Op.sum)
    by_itself = {each.unasked for each in log.missing}
    asked = {name: value for name, value in group.environment.items() if name not in by_itself}
    usually, left = (
        ServedGroup(
            group.scenario, group.release, environment, group.arguments, hidden_size=group.hidden_size, without=without
        )
        for environment, without in ((asked, ()), (group.environment, off))
    )
    for usual, now in differences(*(each.ranges(request, 1, LARGEST_BYTES) for each in (usually, left))):
        facts = {
            "dtype": dtype.name,
            "low": usual.from_bytes,
            "high": usual.to_bytes,
            "before": usual.title,
            "now": now.title,
        }
        yield Finding("engine_log.moves", Severity.NOTE, facts)


def _dtype(log: EngineLog) -> DataType:
    return DataType.__members__.get(log.dtype or "", DataType.bfloat16)


def _group(log: EngineLog, release: EngineRelease, known: KnownFacts) -> ServedGroup:
    """The engine's group on the described machine, started as the log says. BadInput for an impossible group."""
    scenario = known.scenario()
    scenario = scenario if log.ranks is None else group_of(replace(scenario, nodes=1), log.ranks)
    environment = {name: value for name, value in log.switches.items() if name in release.variables}
    arguments = [
        name if value == "True" else f"{name}={value}"
        for name, value in log.switches.items()
        if name in release.arguments
    ]
    return ServedGroup(scenario, release, environment, arguments, hidden_size=log.hidden_size)
