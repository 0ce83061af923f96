"""Diagnoses what small tools and files say about a node: NVLinks, ports of adapters, and NCCL's variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from tuner import release
from tuner.base.errors import TunerError
from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.jobs import environment_file
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in, text_of
from tuner.machine import gpus
from tuner.release import Release
from tuner.release.variables import NOT_NCCLS, everywhere, ignored
from tuner.scenario import notes

MOST_BYTES = 1 << 20
USUAL_NODES = 2  # that variables are tried on, where no file says how many there are
MOST_COUNTERS = 6  # of one GPU, that are shown
_GPU = expression(r"^GPU (\d+): (.+?)(?: \(UUID: \S+\))?\s*$", re.M)
_LINK = expression(r"^\s*Link (\d+): (?:([\d.]+) GB/s|<?(\w[\w ]*)>?)\s*$", re.M)
# nvidia-smi nvlink -e, whose names differ by generation; the last ones are of NVLink 5.
_COUNTER = expression(
    r"^\s*Link (\d+): ([A-Z][\w ]*(?:[Ee]rrors|[Rr]ecovery[\w ]*events|[Dd]iscards|[Dd]ropped)): (\d+)\s*$", re.M
)
_NO_LINKS = expression(
    r"^(?:\s*(?:Unable to retrieve NVLink|All links are (\w+))|.*NVLink.*not supported)", re.M | re.I
)
_PORT = expression(r"^\s*(\S+)\s+port\s+(\d+)\s+==>\s+(\S+)\s+\((\w+)\)", re.M)  # ibdev2netdev of MLNX_OFED
# The same of ibstat: an adapter, then its ports with their states; and of rdma link, iproute2.
_CA = expression(r"^\s*CA '(\S+)'\s*$", re.M)
_CA_PORT = expression(
    r"^\s*Port (\d+):\s*\n\s*State: (\w+)\s*\n\s*Physical state: (\w+)[ \t]*(?:\n\s*Rate: (\d+))?", re.M
)
_CA_LOST = expression(r"ibpanic: .*stat of IB device '(\S+)' failed|^ibwarn: .*can't open UMAD port \((\w+)", re.M)
# ibstatus, and iblinkinfo for the adapters it shows
_STATUS = expression(r"^\s*Infiniband device '(\S+)' port (\d+) status:\s*$", re.M)
_STATUS_OF = expression(r"^\s*(state|phys state|rate):\s*(?:\d+: )?(\w+)", re.M)
_LINKED = expression(r"==\( *\d+X +([\d.]+) Gbps +(\w+)/ *(\w+)\)==>")
_LINKED_CA = expression(r"^CA: (.+?):\s*$", re.M)
_RDMA_LINK = expression(r"^link ([^\s/]+)/(\d+) .*?state (\w+) physical_state (\w+)(?:.*? netdev (\S+))?", re.M)
_SETTING = expression(r"^[ \t]*(?:export[ \t]+)?NCCL_\w+[ \t]*=", re.M)
# A number, of a variable whose value is one: no list or name begins so and goes on with letters.
_NUMBER = expression(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))(?=\s|#|$)")
_OTHERS = expression(r"(?<!\w)((?!NCCL_)[A-Za-z_]\w*[ \t]*=)[^\n]*?(?=\s+NCCL_\w+[ \t]*=|$)")
_HINT = "run with NCCL_DEBUG=INFO"  # of NCCL's own errors
_RUN = expression(r"\A#!|^(?:apiVersion:|FROM) ", re.M)


def kind_of(content: bytes) -> FileKind | None:
    """The kind of a file with output of one of these tools; None for any other file."""
    if len(content) > MOST_BYTES or b"NCCL INFO" in content:
        return None
    text = content.decode("utf-8", "replace")
    if _GPU.search(text) and (_LINK.search(text) or _NO_LINKS.search(text) or _COUNTER.search(text)):
        return FileKind.nvlinks
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and 2 * sum(map(bool, map(_PORT.match, lines))) > len(lines):
        return FileKind.ports
    if _ports_of_ibstat(text) or any(map(_RDMA_LINK.match, lines)) or _ports_of_links(text):
        return FileKind.ports
    said = [line for line in lines if not line.lstrip().startswith("#")]
    if said and 2 * sum(map(bool, map(_SETTING.match, said))) > len(said):
        return FileKind.settings
    return None


def of_nvlinks(file: Path, known: KnownFacts) -> FileDiagnosis:
    """Finds NVLinks in output of ``nvidia-smi nvlink -s`` that are inactive, slower than the others, or fewer than the
    model has.

    In output of ``nvidia-smi nvlink -e``, it finds links that had errors.
    """
    text = text_of(file)
    found = [*(_nvlinks(text) if _LINK.search(text) or _NO_LINKS.search(text) else ()), *_counters(text)]
    return found_in(file, FileKind.nvlinks, found, known)


def _sections(head: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Splits a text into sections: each match of the pattern ``head``, with the text up to the next one."""
    heads = list(head.finditer(text))
    for match, after in zip_longest(heads, heads[1:]):
        yield match, text[match.start() : after.start() if after else None]


def _counters(text: str) -> Iterator[Finding]:
    """Finds links whose error counters are not 0. Recoveries are a fault; other errors by themselves may be few and
    old."""
    counted, bad, sections = 0, False, list(_sections(_GPU, text))
    for head, lines in sections:
        rows = [(int(link), what, int(count)) for link, what, count in _COUNTER.findall(lines)]
        counted += len({link for link, *_ in rows})
        errors = [(link, what, count) for link, what, count in rows if count]
        if errors:
            bad = True
            recovered = any("recover" in what.lower() for _, what, _ in errors)
            facts = {
                "gpu": int(head[1]),
                "name": head[2],
                "links": sorted({link for link, *_ in errors}),
                "counts": [f"link {link} {what} {count}" for link, what, count in errors[:MOST_COUNTERS]],
            }
            yield Finding("node.nvlinks_errors", Severity.FAULT if recovered else Severity.UNLIKE, facts)
    if counted and not bad:
        yield Finding("node.nvlinks_no_errors", Severity.NOTE, {"gpus": len(sections), "links": counted})


def _nvlinks(text: str) -> Iterator[Finding]:
    by_gpu: dict[int, tuple[str, dict[int, float | None]]] = {}
    for head, lines in _sections(_GPU, text):
        links = {int(link): float(gbs) if gbs else None for link, gbs, _ in _LINK.findall(lines)}
        by_gpu[int(head[1])] = head[2], links
    speeds = [gbs for _, links in by_gpu.values() for gbs in links.values() if gbs is not None]
    most = max((sum(gbs is not None for gbs in links.values()) for _, links in by_gpu.values()), default=0)
    faults = 0
    for number, (name, links) in by_gpu.items():
        down = [link for link, gbs in links.items() if gbs is None]
        slow = [link for link, gbs in links.items() if gbs is not None and gbs < 0.9 * max(speeds)]
        active = len(links) - len(down)
        model = next((gpus.load(each) for each in gpus.names() if gpus.is_product(name, each)), None)
        facts = {"gpu": number, "name": name, "links": len(links), "active": active}
        if links and not active and not most:
            yield Finding("node.nvlinks_off", Severity.FAULT, facts)
            faults += 1
        elif down:
            yield Finding("node.nvlinks_down", Severity.FAULT, {**facts, "down": down})
            faults += 1
        elif not links and model is not None and model.nvlinks:
            yield Finding("node.nvlinks_off", Severity.FAULT, facts)
            faults += 1
        elif active < most:
            yield Finding("node.nvlinks_fewer", Severity.FAULT, {**facts, "most": most})
            faults += 1
        if slow:
            gbs = min(gbs for gbs in links.values() if gbs is not None)
            yield Finding(
                "node.nvlinks_slow", Severity.FAULT, {**facts, "slow": slow, "gbs": gbs, "usual": max(speeds)}
            )
            faults += 1
    if not faults:
        facts = {"gpus": len(by_gpu), "links": most, "gbs": max(speeds, default=0.0)}
        yield Finding("node.nvlinks_well", Severity.NOTE, facts)


def of_ports(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on ports in output of ``ibdev2netdev``, ``ibstat``, ``ibstatus``, ``iblinkinfo`` and ``rdma link``.

    NCCL only uses ports that are up; a port that is down makes a rail slower or absent.
    """
    text = text_of(file)
    ports = _ports(text)
    over_ip = _over_ip(text)
    up = [name for name, _, state in ports if state.lower() in ("up", "active")]
    down = [(name, interface) for name, interface, state in ports if name not in up and name not in over_ip]
    lost = list(dict.fromkeys(one or other for one, other in _CA_LOST.findall(text)))
    found = []
    if lost:
        found.append(Finding("node.ports_unread", Severity.FAULT, {"adapters": lost}))
    if over_ip:
        facts = {"down": list(over_ip), "interfaces": list(over_ip.values())}
        found.append(Finding("node.ports_over_ip", Severity.UNKNOWN, facts))
    if up or down:
        # Which ports are for GPUs is not said: of ports of which most are up those that are down are like no other.
        severity = Severity.NOTE if not down else Severity.UNLIKE if up or over_ip else Severity.FAULT
        code = "node.ports_up" if not down else "node.ports_down" if up or over_ip else "node.ports_none"
        adapters, interfaces = [name for name, _ in down], [interface for _, interface in down]
        of = len(ports) - len(over_ip)
        found.append(Finding(code, severity, {"up": up, "down": adapters, "interfaces": interfaces, "of": of}))
    return found_in(file, FileKind.ports, [*found, *_slow_ports(text)], known)


def _over_ip(text: str) -> dict[str, str]:
    """InfiniBand adapters in output of ibdev2netdev, with their IP interfaces, if all of these interfaces are down;
    else empty.

    That is normal without IP over InfiniBand, and says nothing about the ports.
    """
    interfaces = [(name, netdev, state) for name, _, netdev, state in _PORT.findall(text) if netdev.startswith("ib")]
    if any(state.lower() == "up" for *_, state in interfaces):
        return {}
    return {name: netdev for name, netdev, _ in interfaces}


def _ports(text: str) -> list[tuple[str, str, str]]:
    """For each port that any of these tools prints: the adapter, its interface or physical state, and its state."""
    found = [(name, interface, state) for name, _, interface, state in _PORT.findall(text)]
    found += [(name, netdev or physical, state) for name, _, state, physical, netdev in _RDMA_LINK.findall(text)]
    rated = [*_ports_of_ibstat(text), *_ports_of_links(text)]
    return found + [(name, physical, state) for name, state, physical, _ in rated]


def _ports_of_ibstat(text: str) -> list[tuple[str, str, str, float | None]]:
    """Adapter, state, physical state and Gb/s (None if not known) of each port that ibstat or ibstatus prints."""
    found = []
    for head, lines in _sections(_CA, text):
        for _, state, physical, rate in _CA_PORT.findall(lines):
            found.append((head[1], state, physical, float(rate) if rate else None))
    for head, lines in _sections(_STATUS, text):
        said = dict(_STATUS_OF.findall(lines))
        if "state" in said:
            rate = said.get("rate", "")
            found.append((head[1], said["state"], said.get("phys state", ""), float(rate) if rate.isdigit() else None))
    return found


def _ports_of_links(text: str) -> list[tuple[str, str, str, float | None]]:
    """The same for adapters in output of iblinkinfo, with Gb/s of one lane. Switches and their aggregation nodes are
    left out.
    """
    found: list[tuple[str, str, str, float | None]] = []
    for head, lines in _sections(_LINKED_CA, text):
        if (link := _LINKED.search(lines)) and "Aggregation Node" not in head[1]:
            found.append((head[1], link[2], link[3], float(link[1])))
    return found


def _slow_ports(text: str) -> Iterator[Finding]:
    """Finds active ports that are slower than the fastest ones, if fewer than half of the ports are slower."""
    ports = [*_ports_of_ibstat(text), *_ports_of_links(text)]
    rates = {name: rate for name, state, _, rate in ports if state.lower() == "active" and rate is not None}
    most = max(rates.values(), default=0)
    slow = [name for name, rate in rates.items() if rate < most]
    if slow and 2 * len(slow) < len(rates):
        facts = {"slow": slow, "gbps": min(rates[name] for name in slow), "usual": most}
        yield Finding("node.ports_slow", Severity.UNLIKE, facts)


def of_settings(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on an nccl.conf: its variables, as NCCL reads its lines, and what NCCL does with them."""
    return found_in(file, FileKind.settings, list(_settings(file, known)), known)


def is_script(content: bytes) -> bool:
    """Whether the text is a shell script, a Dockerfile or a cluster's manifest: it begins like one of these, or all its
    lines are exports.
    """
    if _RUN.search(content[:MOST_BYTES].decode("utf-8", "replace")):
        return True
    lines = [line.strip() for line in content.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    return bool(lines) and all(line.startswith(b"export ") for line in lines)


def sets_variables(content: bytes) -> bool:
    """Whether a file sets any of NCCL's variables: a script, a Dockerfile, a pod, output of env, or a process's
    environ."""
    if len(content) > MOST_BYTES or b"NCCL_" not in content:
        return False
    if b"\0" in content:
        return any(name.startswith("NCCL_") for name in environment_file.of_process(content) or ())
    found = environment_file.of_text(Path(), content.decode("utf-8", "replace").replace(_HINT, ""))
    return bool(found.values or found.computed)


def maps_variables(content: bytes) -> bool:
    """Whether a text is JSON with values of NCCL's variables by name, at the top level or one level below."""
    if len(content) > MOST_BYTES or b'"NCCL_' not in content:
        return False
    try:
        top = json.loads(content)
    except ValueError:
        return False
    maps = [top, *top.values()] if isinstance(top, dict) else []
    return any(name.startswith("NCCL_") for each in maps if isinstance(each, dict) for name in each)


def of_environment(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on NCCL's variables in a script, a Dockerfile, a pod, or output of env: what NCCL does with them.

    Other variables are not shown.
    """
    return found_in(file, FileKind.environment, list(_environment(environment_file.read(file), known)), known)


def _environment(found: environment_file.VariablesInFile, known: KnownFacts) -> Iterator[Finding]:
    facts = {"settings": _listed(found.values), "others": found.others, "computed": list(found.computed) or None}
    yield Finding("node.environment", Severity.NOTE, facts)
    yield from _effects(found, known)
    yield from _what_nccl_makes_of(found.values, _release_of(known), known)


def _effects(found: environment_file.VariablesInFile, known: KnownFacts) -> Iterator[Finding]:
    """Finds variables that change picks of collectives on the machine, if it is known."""
    if known.machine is None and known.topology is None:
        return
    try:
        scenario = replace(known.scenario(), nodes=known.nodes or USUAL_NODES)
        done = environment_file.effects(scenario, found)
    except TunerError:
        return
    facts = {
        "on": scenario.heading,
        "changing": list(done.changing) or None,
        "tuners": list(done.tuners) or None,
        "unchanging": list(done.unchanging) or None,
        "unread": list(done.unread) or None,
        "refused": list(done.refused) or None,
    }
    yield Finding("node.environment_effects", Severity.NOTE, facts)


def _release_of(known: KnownFacts) -> Release:
    return release.load(known.nccl) if known.nccl in release.names() else release.load(release.names()[-1])


def _listed(values: Mapping[str, str]) -> list[str]:
    """Variables as NAME=VALUE; values of variables that are not NCCL's are hidden, as they may be secrets."""
    return [f"{name}={value}" if name.startswith("NCCL_") else f"{name}=..." for name, value in values.items()]


def _without_secrets(line: str) -> str:
    """The line without the values of variables that are not NCCL's."""
    return _OTHERS.sub(r"\1...", line)


def _settings(file: Path, known: KnownFacts) -> Iterator[Finding]:
    nccl = _release_of(known)
    values: dict[str, str] = {}
    for number, line in enumerate(text_of(file).split("\n"), start=1):
        written = line.removesuffix("\r") if nccl.ranks.drops_carriage_return else line
        if not written.strip() or written.lstrip().startswith("#"):
            continue
        name, equals, value = written.partition("=")
        facts = {"line": number, "text": _without_secrets(written)[:200]}  # its outer blanks are what is wrong
        exported = name.startswith("export ") or None
        if not equals:
            yield Finding("node.setting_unread", Severity.UNLIKE, {**facts, "export": None})
        elif name != name.strip() or exported:
            yield Finding("node.setting_unread", Severity.FAULT, {**facts, "export": exported})
        elif name in values:
            first = values[name] if name.startswith("NCCL_") else "..."  # which may be a secret
            yield Finding("node.setting_repeated", Severity.UNLIKE, {**facts, "name": name, "value": first})
        elif leading := _NUMBER.match(value):
            values[name] = leading[1]  # what follows a number is cut, a comment or blanks
        else:
            odd = value != value.strip() or value[:1] in ("'", '"') or " #" in value or "\t#" in value
            if odd and name.startswith("NCCL_"):
                carriage = value.endswith("\r") or None
                yield Finding(
                    "node.setting_odd", Severity.FAULT, {**facts, "carriage": carriage and nccl.name, "value": value}
                )
            values[name] = value.strip()
    yield Finding("node.settings", Severity.NOTE, {"settings": _listed(values)})
    yield from _effects(environment_file.VariablesInFile(file, values), known)
    yield from _what_nccl_makes_of(values, nccl, known)


def _what_nccl_makes_of(values: Mapping[str, str], nccl: Release, known: KnownFacts) -> Iterator[Finding]:
    values = {name: value for name, value in values.items() if name not in NOT_NCCLS}
    unknown = [name for name in ignored(nccl, values) if name not in everywhere()]
    if unknown:
        yield Finding("node.settings_unknown", Severity.UNLIKE, {"names": unknown, "nccl": nccl.name})
    for note in [*notes.of_variables(nccl, values), *notes.harmful(values, known.nodes)]:
        if not note.startswith(tuple(f"{name}:" for name in unknown)) and not note.startswith("NCCL_TOPO_FILE="):
            yield Finding("diagnose.in_words", Severity.UNLIKE, {"text": note})
