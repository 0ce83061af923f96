"""Diagnoses files that say what a machine is: topologies (which the doctor examines), listings of a node, and NCCL's
graphs."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner import release
from tuner.answers.doctor.examine import DoctorOptions, Examination, examine
from tuner.answers.doctor.records import NOTE, UNLIKE, WRONG
from tuner.base.errors import BadInput
from tuner.base.findings import Finding, Severity, worst
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.jobs.diagnosis.kinds import cut
from tuner.jobs.diagnosis.records import DiagnosisOptions, FileDiagnosis, FileKind, KnownFacts, found_in, note
from tuner.machine import listings
from tuner.machine.listings import ListingAdditions, complete, completed
from tuner.machine.listings.shape import of_listing as shape_of
from tuner.machine.skeleton import read_complete
from tuner.machine.topology.reader import hosts_of

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SEVERITIES = {WRONG: Severity.FAULT, UNLIKE: Severity.UNLIKE, NOTE: Severity.NOTE}  # of the doctor
PRICED_SIZES = (8, 64 << 10, 1 << 20, 64 << 20, 1 << 30)


def of_topology(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on a topology; for a dump of an NVLink domain, the findings on each of its hosts."""
    nccl = release.load(known.nccl or release.names()[-1]).name
    asked = DoctorOptions(nccl, known.nodes or 2, ALLREDUCE, PRICED_SIZES)
    if known.given.gpu is None and (hosts := hosts_of(file)):
        return _of_domain(file, hosts, asked, known)
    seen = examine(str(file), _complete(file, known.given), known.given.machine, asked)
    as_many_adapters = all(each.kind != "adapters" for each in seen.findings)  # else the topology says more
    if seen.nearness is not None and seen.nearness.identified and not seen.nearness.differs and as_many_adapters:
        known.learn(file, machine=seen.nearness.machine)
    if known.given.gpu is None:
        known.topology = known.topology or file
    grave = [each for each in seen.findings if each.severity == WRONG]
    shown = grave or [each for each in seen.findings if each.severity == UNLIKE]
    if not shown:
        code = "topology_well" if seen.findings else "topology_without_notes"
        well = Finding(f"diagnose.{code}", Severity.NOTE, {"notes": len(seen.findings)})
        return found_in(file, FileKind.topology, [well], known, seen)
    first, *others = shown
    evidence = [note("on_devices", devices=", ".join(first.devices))] if first.devices else []
    evidence += [note("to_do", what=first.do)] if first.do != "nothing" else []
    evidence += _cost(seen)
    evidence += [note("also_of_topology", kind=each.kind, says=each.says) for each in others]
    if any(each.kind == "gpudirect" for each in shown):
        known.without_gpudirect = known.without_gpudirect or str(file)
    if any(each.kind == "nvlinks" for each in grave):
        known.links_of = known.links_of or str(file)
    severity = Severity.FAULT if grave else Severity.UNLIKE
    verdict = Finding("diagnose.of_topology", severity, {"kind": first.kind, "says": first.says})
    return found_in(file, FileKind.topology, [verdict, *evidence], known, seen)


def _of_domain(file: Path, hosts: Sequence[tuple[str, int]], asked: DoctorOptions, known: KnownFacts) -> FileDiagnosis:
    """The findings on each host of a domain; the numbers of devices begin again on each host."""
    found, number, gpus = list[Finding](), 0, 0
    known.topology = known.topology or file
    for text, alike in hosts:
        seen = examine(f"{file}: host {number}", text, known.given.machine, asked)
        ranks = {f"gpu:{gpu.get('dev')}": int(gpu.get("rank", "-1")) for gpu in ET.fromstring(text).iter("gpu")}
        gpus += len(ranks) * alike
        for each in seen.findings:
            severity = SEVERITIES[each.severity]
            if severity is Severity.NOTE:
                continue
            at = sorted(ranks[device] for device in each.devices if ranks.get(device, -1) >= 0)
            facts = {"kind": each.kind, "says": each.says, "host": number, "ranks": at or None, "todo": each.do}
            facts |= {"alike": alike - 1 or None}
            found.append(Finding("diagnose.of_host", severity, facts))
        number += alike
    found.append(Finding("diagnose.domain", Severity.NOTE, {"hosts": number, "gpus": gpus}))
    if worst(found) in (None, Severity.NOTE):
        found.insert(0, Finding("diagnose.domain_well", Severity.NOTE, {}))
    return found_in(file, FileKind.topology, found, known)


def _complete(file: Path, given: DiagnosisOptions) -> str:
    """The topology in the file, completed if a GPU model is given."""
    if given.gpu is None:
        return read_complete(file)[0]
    return completed(file, ListingAdditions(given.gpu, given.net_gbps, given.net_latency_us))[0]


def _cost(seen: Examination) -> Iterator[Finding]:
    """What the faults cost the largest call by NCCL's own prediction, as a note; none if they cost nothing."""
    for last in seen.sizes[-1:]:
        now, repaired = last.busbw_gbs_before, last.busbw_gbs_after
        if now is not None and repaired is not None and now < repaired:
            wrong = sum(bool(each.changes) and each.severity == WRONG for each in seen.findings)
            code = "topology_costs_together" if wrong > 1 else "topology_costs"
            yield note(code, faults=wrong, bytes=last.bytes, busbw_gbs=now, repaired_busbw_gbs=repaired)


def of_listing(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on a listing: the machine of the catalogue that is most similar. BadInput if the XML is no
    listing."""
    listing = listings.read(file)
    if listing is None:
        raise BadInput("this XML is neither a topology of NCCL nor one of lstopo")
    ranked = complete.ranked(shape_of(listing, None))
    near = ranked[0]
    as_near = [each.machine for each in ranked if (each.agrees, each.differs) == (near.agrees, near.differs)]
    if near.identified and not near.differs and len(as_near) == 1:
        known.learn(file, machine=near.machine)
    severity = Severity.UNLIKE if near.differs else Severity.NOTE
    found = [Finding("diagnose.nearest", severity, {"machine": near.machine, "what": near.in_words})]
    if len(as_near) > 1:
        found.append(note("as_near", names=", ".join(as_near[1:])))
    return found_in(file, FileKind.listing, found, known)


def of_graphs(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding on a file of NCCL's graphs: it is cut off, or does not describe a machine."""
    return found_in(file, FileKind.graphs, [cut(file) or Finding("diagnose.graphs", Severity.UNKNOWN, {})], known)
