"""Diagnoses results of nccl-tests: whether they are as fast as they should be."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tuner.base.errors import BadInput, TunerError
from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.kinds import OF_LOGS
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in, note, refused
from tuner.machine import catalogue, described, gpus
from tuner.scenario import Scenario
from tuner.scenario.logs.checks import devices
from tuner.scenario.logs.lines import nccl_lines
from tuner.scenario.logs.reader import parse
from tuner.times.acceptance import accept as acceptance
from tuner.times.acceptance import in_findings
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import SizeVerdict
from tuner.times.measured import Kind
from tuner.times.measured.formats import Given, MeasurementFile
from tuner.times.measured.nccl_tests import out_of_bounds


def of_results(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on measured times: by themselves and, if the machine is known, compared with what it should
    reach."""
    opened = MeasurementFile(file, known.large_logs.get(file))
    of_devices = _of_devices(opened)
    if any(each.severity is Severity.FAULT for each in of_devices):
        return found_in(file, FileKind.results, of_devices, known)
    try:
        judged = _judged(file, opened, known)
    except TunerError as error:
        judged = refused(file, FileKind.results, error, known)
        if calls := out_of_bounds(opened.text):  # the last lines, of a table that is not whole
            wrong = Finding("diagnose.out_of_bounds", Severity.FAULT, {"calls": calls})
            judged = found_in(file, FileKind.results, [wrong, *judged.findings], known)
    if not of_devices:
        return judged
    return replace(found_in(file, FileKind.results, [*judged.findings, *of_devices], known), accepted=judged.accepted)


def _judged(file: Path, opened: MeasurementFile, known: KnownFacts) -> FileDiagnosis:
    """The findings on measured times. Raises what the reader of times and the description of the machine raise."""
    given = _given(opened, known)
    scenario = _scenario(known)
    if scenario is None:
        own = list(_by_themselves(opened, given))
        if any(each.code == "diagnose.amd_results" for each in own):
            return found_in(file, FileKind.results, own, known)
        return found_in(file, FileKind.results, [*own, *_on_any_machine(opened, given, known)], known)
    asked = acceptance.AcceptOptions(scenario, given)
    seen = acceptance.accept([opened], asked)
    of_others = [_rows("other_machine", each) for each in seen.problems if each.kind == Kind.mixed_machines]
    if of_others and known.given.machine is None:  # what another file shows is not this one's machine
        nowhere = replace(known, machine=None, nodes=asked.given.nodes, nccl=asked.given.nccl or None)
        return found_in(file, FileKind.results, [replace(of_others[0], severity=Severity.UNKNOWN)], nowhere)
    return replace(_of_judged(file, seen, of_others, asked, known), accepted=seen if seen.sizes else None)


def _of_judged(
    file: Path,
    seen: acceptance.Acceptance,
    of_others: Sequence[Finding],
    asked: acceptance.AcceptOptions,
    known: KnownFacts,
) -> FileDiagnosis:
    """The verdict on times that were judged against a machine. ``of_others``: what shows that the times are from
    another machine.
    """
    failing = [each for each in seen.sizes if each.verdict.fails]
    evidence = [*_causes(seen, asked, known), *(_rows("rows", each) for each in seen.problems)]
    evidence += [note("expected_by", what=each) for each in seen.expected_by]
    calls = {"failed": seen.calls_judged[0], "sizes": seen.calls_judged[1]}
    if not seen.judged:
        verdict = Finding("diagnose.times_not_judged", Severity.UNKNOWN, {})
        evidence = [*(note("times_want", what=each) for each in seen.missing), *evidence]
    elif seen.passes:
        verdict = Finding("diagnose.as_fast", Severity.NOTE, calls)
    elif failing:
        worst = max(failing, key=lambda each: each.bytes)
        facts = {"how": worst.verdict.value, "collective": str(worst.collective), "bytes": worst.bytes, **calls}
        times = {"time_us": worst.time_us, "expected_us": worst.expected_us}
        verdict = Finding("diagnose.times_fail", Severity.FAULT, {**facts, **times})
    elif of_others:
        verdict = replace(of_others[0], severity=Severity.FAULT)
    else:
        verdict = Finding("diagnose.times_untrue", Severity.FAULT, {})
    if wrong := [each for each in seen.findings if each.code == "accept.wrong_results"]:
        why = [each for each in seen.findings if each.code == "accept.times_not_judged"]
        return found_in(file, FileKind.results, [*wrong, *([verdict] if seen.sizes else why), *evidence], known)
    return found_in(file, FileKind.results, [verdict, *evidence], known)


def _scenario(known: KnownFacts) -> Scenario | None:
    """A scenario on the named machine, or on the topology that is given with the results; None if neither is
    possible."""
    if known.machine is not None:
        return known.scenario()
    if known.topology is not None:
        with suppress(TunerError):
            scenario = known.scenario()
            scenario.resolve()
            return scenario
    return None


def _of_devices(file: MeasurementFile) -> list[Finding]:
    """Finds faults that nccl-tests' list of devices shows, in output without NCCL's own lines. In other output, the
    checks of the log find them.
    """
    if any(part in file.content for part in OF_LOGS):
        return []
    log = parse(nccl_lines(file.content))
    return [*devices.listed_alone(log), *devices.listed_twice(log)]


def _by_themselves(file: MeasurementFile, given: Given) -> Iterator[Finding]:
    """Finds what results say without a machine: wrong values, and that they are from AMD's GPUs, on which NCCL does not
    run."""
    with suppress(TunerError):
        if (wrong := acceptance.wrong_results(file, given)) is not None:
            yield in_findings.wrong_results(wrong)
    with suppress(TunerError):
        table = file.table(given)
        if acceptance.not_of_nccl(table.header.gpu or "") and table.blocks:
            last = max(table.blocks, key=lambda each: each.point.bytes)
            facts = {"gpu": table.header.gpu, "bytes": last.point.bytes, "rows": len(table.blocks)}
            facts["algbw_gbs"] = last.point.bytes / min(last.times_us) / 1000
            yield Finding("diagnose.amd_results", Severity.UNKNOWN, facts)


_ADAPTERS_DIFFER = 8.0  # times, at most, that the adapters of machines with the same GPUs differ by


def _on_any_machine(file: MeasurementFile, given: Given, known: KnownFacts) -> Iterator[Finding]:
    """The findings on results if nobody names the machine: what is true on each machine with such GPUs.

    The real machine may not be in the catalogue, and have other adapters. A verdict on which all machines agree still
    counts inside a node, where adapters do not matter, and if a run between nodes is much slower than with any
    adapters.
    """
    gpu, machines = machines_with_such_gpus(file)
    evidence = [note("gpus_of_node", gpus=gpu)] if gpu else []
    if gpu and not machines:
        yield Finding("diagnose.no_such_machine", Severity.UNKNOWN, {"gpus": gpu})
        yield from evidence
        return
    evidence += [note("machines_with_gpus", names=", ".join(machines))] if machines else []
    if alike := [machine for machine in machines if _has_bus_ids(machine, file)]:
        machines = alike
        evidence.append(note("machines_with_bus_ids", names=", ".join(machines)))
    seen = []
    for machine in machines:
        with suppress(TunerError):
            there = replace(known, machine=machine).scenario()
            seen.append(acceptance.accept([file], acceptance.AcceptOptions(there, given)))
    every = [found for each in seen for found in each.findings]
    evidence += [each for at, each in enumerate(every) if each.code == "accept.other_links" and each not in every[:at]]
    verdict = _of_all(seen)
    yield verdict
    for each in seen:
        if verdict.severity is Severity.FAULT and each.machine == verdict.facts["machine"]:
            for cause in each.diagnosis:
                yield note("points_to", resource=str(cause.resource), what=cause.what)
    yield from [each for each in every if each.code == "accept.lowest"][:1]
    yield from evidence


def _of_all(seen: Sequence[acceptance.Acceptance]) -> Finding:
    """The joint verdict over all machines with such GPUs.

    A machine whose adapters are slower than what was measured is excluded, unless this excludes all machines.
    """
    seen = [each for each in seen if not _too_fast_for(each)] or seen
    alone = all(size.nodes == 1 for each in seen for size in each.sizes)
    if seen and all(each.passes for each in seen):
        if alone:
            sizes = min(each.calls_judged[1] for each in seen)
            return Finding("diagnose.passes_on_each", Severity.NOTE, {"sizes": sizes})
        return Finding("diagnose.well_anywhere", Severity.UNKNOWN, {})
    slow = [[size for size in each.sizes if size.verdict is SizeVerdict.slow] for each in seen]
    if not slow or not all(slow):
        return Finding("diagnose.machine_unknown", Severity.UNKNOWN, {})
    # Of each machine its slowest size, and of these the one on the machine that explains most of it.
    worst = [max(those, key=lambda size: size.time_us / size.expected_us) for those in slow]
    at = min(range(len(worst)), key=lambda number: worst[number].time_us / worst[number].expected_us)
    size, machine = worst[at], seen[at].machine
    if not alone and size.time_us < _ADAPTERS_DIFFER * size.expected_us:
        return Finding("diagnose.slow_anywhere", Severity.UNKNOWN, {})
    facts = {"collective": size.collective, "bytes": size.bytes, "time_us": size.time_us}
    return Finding(
        "diagnose.fails_on_each", Severity.FAULT, {**facts, "expected_us": size.expected_us, "machine": machine}
    )


def _too_fast_for(seen: acceptance.Acceptance) -> bool:
    return bool(seen.sizes) and all(size.verdict is SizeVerdict.fast for size in seen.sizes)


_LISTED = expression(rb"\bdevice +\d+ \[([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\]")  # nccl-tests from 2.16 on


def _has_bus_ids(machine: str, file: MeasurementFile) -> bool:
    """Whether all bus ids of GPUs that nccl-tests lists are those of the machine; at least two have to be listed."""
    listed = {each.decode() for each in _LISTED.findall(file.content)}
    return len(listed) > 1 and listed <= {gpu.busid.rpartition(".")[0] for gpu in catalogue.load(machine).topology.gpus}


def machines_with_such_gpus(file: MeasurementFile) -> tuple[str | None, list[str]]:
    """The GPUs of a node, as results name them, and the names of the catalogue's machines that have such GPUs.

    These machines have as many GPUs per node as the results say or, if there is no such machine, more. Returns None and
    no machines if the results do not say which GPUs a node has, or how many. Raises BadMeasurement, and BadInput for a
    file without times.
    """
    table = file.table(Given())
    if not table.blocks:
        raise BadInput(f"{file.path} has no measured times: give a file that nccl-tests printed")
    counts = {row.gpus_per_node for row in table.blocks if row.nodes}
    if not table.header.gpu or len(counts) != 1:
        return None, []
    (count,) = counts
    such = [
        each
        for each in map(catalogue.load, catalogue.names())
        if all(gpus.is_product(product, each.gpu) for product in table.header.gpu.split(", "))
    ]
    whole = [each.name for each in such if each.gpus_per_node == count]
    names = whole or [each.name for each in such if each.gpus_per_node > count]
    of_node, words = f"{count} x {table.header.gpu} a node", described.in_words(table.header.gpu, count)
    with_your = "CPUs"
    if words is not None and any((row.nodes or 1) > 1 for row in table.blocks):
        words, with_your = described.with_adapter(words), "CPUs and adapters"
    return of_node if names or words is None else f"{of_node} (in words, with your {with_your}: {words})", names


def _given(file: MeasurementFile, known: KnownFacts) -> Given:
    """Release and number of nodes that the user says, or that other files say if this file does not."""
    nccl, nodes = known.given.nccl, known.given.nodes
    own = None
    with suppress(TunerError):
        own = file.release
    given = Given(nccl=nccl or (known.nccl if own is None else "") or "", nodes=nodes)
    try:
        file.table(given)
    except TunerError:
        return replace(given, nodes=nodes or known.nodes)
    return given


def _rows(name: str, problem: acceptance.FileProblem) -> Finding:
    """What is wrong in rows of a file, as a note."""
    return note(name, kind=problem.kind, refused=problem.refused, lines=list(problem.lines), text=problem.text)


def _causes(seen: acceptance.Acceptance, asked: acceptance.AcceptOptions, known: KnownFacts) -> Iterator[Finding]:
    """Causes of slow times that neither other results nor files about the links exclude."""
    causes = seen.diagnosis
    if causes and len(known.results) > 1:
        with suppress(TunerError):  # of other nodes or machines: they say nothing of this one
            joint = acceptance.accept(known.results, asked)
            if not joint.problems and all(each.verdict is not SizeVerdict.fast for each in joint.sizes):
                causes = joint.diagnosis
        if not causes:
            yield note("no_common_cause")
    for each in causes:
        if each.resource is Resource.nvlinks and known.links_of is not None:
            yield note("time_cause_shown", resource=each.resource.value, file=known.links_of)
        else:
            yield note("time_cause", resource=each.resource.value, what=each.what)
