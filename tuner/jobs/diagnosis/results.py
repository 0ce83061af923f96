"""Diagnosis of results of nccl-tests: whether they are as fast as they should be."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tuner.base.errors import BadInput, TunerError
from tuner.base.files import read_bytes
from tuner.base.findings import Finding, Severity, words
from tuner.base.sizes import human_bytes, plural
from tuner.base.spelling import spelled
from tuner.jobs.diagnosis.records import UNKNOWN_MACHINE, FileDiagnosis, FileKind, KnownFacts, found_in, in_sentences
from tuner.machine import catalogue, described, gpus
from tuner.times.acceptance import accept as acceptance
from tuner.times.acceptance import in_findings
from tuner.times.acceptance.expected import OTHER_LINKS
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import SizeVerdict
from tuner.times.measured import Kind
from tuner.times.measured.formats import Given, MeasurementFile


def of_results(file: Path, known: KnownFacts) -> FileDiagnosis:
    """What measured times say: by themselves, and against the machine's where it is known."""
    opened = MeasurementFile(file)
    given = _given(opened, known)
    if known.machine is None:
        own = list(_by_themselves(opened, given))
        if any(each.code == "diagnose.amd_results" for each in own):
            return found_in(file, FileKind.results, own, known)
        seen_there = _on_any_machine(opened, given, known)
        judged = in_sentences(file, FileKind.results, Severity.UNKNOWN, *seen_there, known)
        return found_in(file, FileKind.results, [*own, *judged.findings], known)
    asked = acceptance.AcceptOptions(known.scenario(), given)
    seen = acceptance.accept([opened], asked)
    of_others = [each.text for each in seen.problems if each.kind == Kind.mixed_machines]
    if of_others and known.given.machine is None:  # what another file shows is not this one's machine
        nowhere = replace(known, machine=None, nodes=asked.given.nodes, nccl=asked.given.nccl or None)
        return in_sentences(file, FileKind.results, Severity.UNKNOWN, of_others[0], (), nowhere)
    failing = [each for each in seen.sizes if each.verdict.fails]
    evidence = [*_causes(seen, asked, known), *(f"{each.kind}: {each.text}" for each in seen.problems)]
    evidence += [f"expected times: {each}" for each in seen.expected_by]
    if not seen.judged:
        wanted = [f"would let it be judged: {each}" for each in seen.missing]
        says = "whether this is as fast as it should be"
        return in_sentences(file, FileKind.results, Severity.UNKNOWN, says, [*wanted, *evidence], known)
    if seen.passes:
        says = f"as fast as it should be, at {seen.calls_judged[1]} of {seen.calls_judged[1]} sizes"
        return in_sentences(file, FileKind.results, Severity.NOTE, says, evidence, known)
    says = of_others[0] if of_others else "results that cannot be true"
    if seen.wrong_results:
        says = f"{plural(seen.wrong_results, 'call')} had wrong results"
    if failing:
        worst, (failed, sizes) = max(failing, key=lambda each: each.bytes), seen.calls_judged
        says = (
            f"{worst.verdict.value} at {failed} of {sizes} sizes: {worst.collective} of "
            f"{human_bytes(worst.bytes)} takes {worst.time_us:.0f} us, expected {worst.expected_us:.0f}"
        )
    return in_sentences(file, FileKind.results, Severity.FAULT, says, evidence, known)


def _by_themselves(file: MeasurementFile, given: Given) -> Iterator[Finding]:
    """What results say without a machine: wrong values, and that they are of AMD's GPUs, which NCCL does not run on."""
    with suppress(TunerError):
        if (wrong := acceptance.wrong_results(file, given)) is not None:
            yield in_findings.wrong_results(wrong)
    with suppress(TunerError):
        table = file.table(given)
        if "AMD" in (table.header.gpu or "").upper() and table.blocks:
            last = max(table.blocks, key=lambda each: each.point.bytes)
            facts = {"gpu": table.header.gpu, "bytes": last.point.bytes, "rows": len(table.blocks)}
            facts["algbw_gbs"] = last.point.bytes / min(last.times_us) / 1000
            yield Finding("diagnose.amd_results", Severity.UNKNOWN, facts)


def _on_any_machine(file: MeasurementFile, given: Given, known: KnownFacts) -> tuple[str, list[str]]:
    """The finding and evidence of results of a machine that nobody names: what holds on each that has such GPUs.

    No verdict, for it may be a machine that the catalogue does not have, with other adapters.
    """
    gpu, machines = machines_with_such_gpus(file)
    evidence = [gpu] if gpu else []
    evidence += [f"machines with such GPUs: {', '.join(machines)}"] if machines else []
    if gpu and not machines:
        return f"no machine of the catalogue has {gpu}: {spelled(UNKNOWN_MACHINE)}", evidence
    if alike := [machine for machine in machines if _has_bus_ids(machine, file)]:
        machines = alike
        evidence.append(f"with the bus ids of these GPUs: {', '.join(machines)}")
    seen = []
    for machine in machines:
        with suppress(TunerError):
            there = replace(known, machine=machine).scenario()
            seen.append(acceptance.accept([file], acceptance.AcceptOptions(there, given)))
    evidence += dict.fromkeys(why for each in seen for why in each.expected_by if why.startswith(OTHER_LINKS))
    if seen and all(each.judged and each.passes for each in seen):
        return f"it is as fast as each machine with such GPUs should be, but {spelled(UNKNOWN_MACHINE)}", evidence
    if seen and all(any(size.verdict is SizeVerdict.slow for size in each.sizes) for each in seen):
        ranks = [words(found) for each in seen for found in each.findings if found.code == "accept.lowest"]
        return f"it looks slow on each machine with such GPUs; {spelled(UNKNOWN_MACHINE)}", [*ranks[:1], *evidence]
    return spelled(UNKNOWN_MACHINE), evidence


_LISTED = re.compile(rb"\bdevice +\d+ \[([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\]")  # nccl-tests from 2.16 on


def _has_bus_ids(machine: str, file: MeasurementFile) -> bool:
    """Whether the bus ids of GPUs that nccl-tests lists are all of that machine; more than one has to be listed."""
    listed = {each.decode() for each in _LISTED.findall(read_bytes(file.path, BadInput))}
    return len(listed) > 1 and listed <= {gpu.busid.rpartition(".")[0] for gpu in catalogue.load(machine).topology.gpus}


def machines_with_such_gpus(file: MeasurementFile) -> tuple[str | None, list[str]]:
    """The GPUs of a node that results name, and the machines of the catalogue that have as many of them, else more.

    None and no machine where they do not say which GPUs, or how many of a node. Errors: BadMeasurement; BadInput
    for a file without times.
    """
    table = file.table(Given())
    if not table.blocks:
        raise BadInput(f"{file.path}: no times in it; valid: what nccl-tests printed")
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
    return of_node if names or words is None else f"{of_node} (in words, with your CPUs: {words})", names


def _given(file: MeasurementFile, known: KnownFacts) -> Given:
    """Release and nodes: the user's, else what other files show where this one does not say them itself."""
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


def _causes(seen: acceptance.Acceptance, asked: acceptance.AcceptOptions, known: KnownFacts) -> Iterator[str]:
    """Causes of slow times that no other file excludes: other results, or what shows the links themselves."""
    causes = seen.diagnosis
    if causes and len(known.results) > 1:
        with suppress(TunerError):  # of other nodes or machines: they say nothing of this one
            joint = acceptance.accept(known.results, asked)
            if not joint.problems and all(each.verdict is not SizeVerdict.fast for each in joint.sizes):
                causes = joint.diagnosis
        if not causes:
            yield "no one cause explains these times and those of the other results"
    for each in causes:
        if each.resource is Resource.nvlinks and known.links_of is not None:
            yield f"{each.resource}: {known.links_of} shows what is left of them"
        else:
            yield f"{each.resource}: {each.what}"
