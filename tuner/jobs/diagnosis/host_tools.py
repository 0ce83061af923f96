"""Diagnoses what tools say about a host's GPUs and limits: nvidia-smi, ulimit, lspci, and CUDA's tests of peer
access."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in, text_of

MOST_BYTES = 8 << 20
MOST_NAMED = 16  # bridges and pairs that are named
ENOUGH_LOCKED_KBYTES = 1 << 20  # 1 GiB: NCCL pins buffers of each connection, and NVIDIA asks for no limit
# nvidia-smi -q: a head for each GPU, then keys whose depth is their indentation.
_QUERY = expression(r"^=+NVSMI LOG=+", re.M)
_QUERIED_GPU = expression(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_KEY = expression(r"^( +)(\S(?:[^:\n]*[^\s:])?) *(?:: +(.*?))?\s*$")
# nvidia-smi without options, and with -L
_TABLE = expression(r"NVIDIA-SMI \d[\d.]* +(?:KMD Version: \S+ +)?Driver Version: (\d[\d.]*)")
_TABLE_GPU = expression(
    r"^\|\s*(\d+)\s+(\S.*?)\s{2,}.*?\|\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)\s+\w+\s*\|\s*(\S+)\s*\|\s*$", re.M
)
_TABLE_LOST = expression(r"^\|.*\bERR!.*\|\s*$", re.M)
_LISTED_GPU = expression(r"^GPU (\d+): (.+?) \(UUID: \S+\)\s*$", re.M)
# Limits and devices of a host
_LOCKED = expression(r"^\s*max locked memory\s+\((?:kbytes|kb)(?:, -l)?\)\s+(\S+)", re.M)
_ACS = expression(r"^\s*ACSCtl:.*\bReqRedir([+-])", re.M)
_DEVICE = expression(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) \S", re.M)
_PEER = expression(r"^Device=(\d+) (CAN|CANNOT) Access Peer Device=(\d+)", re.M)
_PEER_ROW = expression(r"^\s*GPU(\d+)((?:[ \t]+(?:X|OK|CNS|GNS|TNS|DR|NS|U))+)\s*$", re.M)
_CONNECTED = expression(r"\b(?:PIX|PXB|PHB|NODE|SYS|NV\d+)\b(?! *=)")


def kind_of(content: bytes) -> FileKind | None:
    """The kind of a file with output of one of these tools; None for any other file."""
    if len(content) > MOST_BYTES or b" NCCL " in content:
        return None
    text = content.decode("utf-8", "replace")
    if _QUERY.search(text) or _TABLE.search(text) or any(map(_QUERIED_GPU.match, text.splitlines())):
        return FileKind.gpus
    if _LOCKED.search(text) or _ACS.search(text) or _PEER.search(text) or is_peer_table(text):
        return FileKind.host
    rest = [line for line in text.splitlines() if line.strip() and not line.startswith("  MIG ")]
    return FileKind.gpus if rest and all(map(_LISTED_GPU.match, rest)) else None


def is_peer_table(text: str) -> bool:
    """Whether the text has the table of ``nvidia-smi topo -p2p``, but not that of ``nvidia-smi topo -m``."""
    return _PEER_ROW.search(text) is not None and _CONNECTED.search(text) is None


def of_gpus(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on output of ``nvidia-smi`` (also with ``-q`` or ``-L``): lost GPUs, memory errors, slow PCIe,
    fabric.
    """
    text = text_of(file)
    found = [*_queried(text)] if _QUERY.search(text) or "Product Name" in text else [*_listed(text)]
    return found_in(file, FileKind.gpus, found, known)


def _listed(text: str) -> Iterator[Finding]:
    driver = _TABLE.search(text)
    listed = [(int(number), name) for number, name in _LISTED_GPU.findall(text)]
    rows = list(_TABLE_GPU.finditer(text))
    listed += [(int(row[1]), row[2].strip()) for row in rows]
    lost = sorted({number for number, name in listed if "ERR!" in name})
    if _TABLE_LOST.search(text):
        yield Finding("node.gpus_lost", Severity.FAULT, {"gpus": lost or None})
    bad = [int(row[1]) for row in rows if row[4].isdigit() and int(row[4])]
    if bad:
        yield Finding("node.gpus_ecc", Severity.FAULT, {"gpus": [str(each) for each in bad], "counts": None})
    yield _summary([name for _, name in listed if "ERR!" not in name], driver[1] if driver else None)


def _summary(names: list[str], driver: str | None) -> Finding:
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return Finding("node.gpus_listed", Severity.NOTE, {"gpus": counted or ["none"], "driver": driver})


def _queried(text: str) -> Iterator[Finding]:
    """The findings on output of ``nvidia-smi -q``, GPU by GPU."""
    driver = re.search(r"^Driver Version +: (\S+)", text, re.M)
    names = []
    for gpu, values in _gpus(text):
        names += [values["Product Name"]] if "Product Name" in values else []
        yield from _of_queried(gpu, values)
    yield _summary(names, driver[1] if driver else None)


def _gpus(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each GPU in the output of ``nvidia-smi -q``, with its values; a key joins the headings and the name by
    slashes."""
    gpu, values = "", dict[str, str]()
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if head := _QUERIED_GPU.match(line):
            if values:
                yield gpu, values
            gpu, values, above = head[1], {}, []
        elif match := _KEY.match(line):
            depth = len(match[1])
            above = [each for each in above if each[0] < depth]
            if match[3] is None:
                above.append((depth, match[2]))
            else:
                values["/".join([*(name for _, name in above), match[2]])] = match[3]
    if values:
        yield gpu, values


def _of_queried(gpu: str, values: Mapping[str, str]) -> Iterator[Finding]:
    facts: dict[str, object] = {"gpu": gpu}
    errors = [
        f"{path.rpartition('/')[2]} {value}"
        for path, value in values.items()
        if path.startswith("ECC Errors/Volatile/") and "ncorrectable" in path and value.isdigit() and int(value)
    ]
    double = values.get("ECC Errors/Volatile/Double Bit/Total", "")  # of older drivers
    errors += [f"double bit {double}"] if double.isdigit() and int(double) else []
    if errors:
        yield Finding("node.gpus_ecc", Severity.FAULT, {"gpus": [gpu], "counts": errors})
    if values.get("Remapped Rows/Remapping Failure Occurred") == "Yes":
        yield Finding("node.gpu_remap_failed", Severity.FAULT, facts)
    if values.get("Remapped Rows/Pending") == "Yes" or values.get("Retired Pages/Pending Page Blacklist") == "Yes":
        yield Finding("node.gpu_reset_pending", Severity.FAULT, facts)
    if "ERR!" in values.values() or values.get("Product Name") == "ERR!":
        yield Finding("node.gpus_lost", Severity.FAULT, {"gpus": [gpu]})
    state, status = values.get("Fabric/State", "N/A"), values.get("Fabric/Status", "N/A")
    if state not in ("N/A", "Completed") or status not in ("N/A", "Success", "NVML_SUCCESS"):
        yield Finding("node.gpu_fabric", Severity.FAULT, {**facts, "state": state, "status": status})
    health = [value for path, value in values.items() if path.startswith("Fabric/Health")]
    if any(value in ("Degraded", "Unhealthy", "Limited Capacity") for value in health) or any(
        value in ("True", "Yes") for path, value in values.items() if path.startswith("Fabric/Health/")
    ):
        yield Finding("node.gpu_fabric_health", Severity.FAULT, facts)
    link = "PCI/GPU Link Info/Link Width/"
    now, most = (values.get(link + of, "").removesuffix("x") for of in ("Current", "Max"))
    if now.isdigit() and most.isdigit() and int(now) < int(most):
        yield Finding("node.gpu_link_width", Severity.FAULT, {**facts, "now": int(now), "most": int(most)})
    slowed = [
        path.rpartition("/")[2]
        for path, value in values.items()
        if value == "Active" and re.search(r"(?:Throttle|Event) Reasons/.*HW (?:Thermal|Power Brake) Slowdown", path)
    ]
    if slowed:
        yield Finding("node.gpu_slowed", Severity.FAULT, {**facts, "reasons": slowed})
    if values.get("MIG Mode/Current") == "Enabled":
        yield Finding("node.gpu_mig", Severity.UNLIKE, facts)


def of_host(file: Path, known: KnownFacts) -> FileDiagnosis:
    """The findings on output of ``ulimit``, ``lspci -vvv`` and CUDA's tests of peer access."""
    return found_in(file, FileKind.host, [*_of_host(text_of(file))], known)


def _of_host(text: str) -> Iterator[Finding]:
    limits = _LOCKED.findall(text)
    for limit in limits:
        if limit == "unlimited":
            yield Finding("node.memlock_unlimited", Severity.NOTE, {})
        elif limit.isdigit():
            few = int(limit) < ENOUGH_LOCKED_KBYTES
            yield Finding("node.memlock", Severity.FAULT if few else Severity.UNLIKE, {"kbytes": int(limit)})
    controls = list(_ACS.finditer(text))
    devices = [(each.start(), each[1]) for each in _DEVICE.finditer(text)]
    redirecting = [each for each in controls if each[1] == "+"]
    if redirecting:
        named = [max((at for at in devices if at[0] < each.start()), default=None) for each in redirecting]
        names = [each[1] for each in named if each is not None][:MOST_NAMED]
        facts = {"count": len(redirecting), "of": len(controls), "devices": names or None}
        yield Finding("node.acs_on", Severity.FAULT, facts)
    elif controls:
        yield Finding("node.acs_off", Severity.NOTE, {"count": len(controls)})
    pairs = [(int(one), int(other), says == "CAN") for one, says, other in _PEER.findall(text)]
    for number, cells in _PEER_ROW.findall(text):
        pairs += [
            (int(number), other, cell == "OK") for other, cell in enumerate(cells.split()) if other != int(number)
        ]
    without = [f"{one} to {other}" for one, other, can in pairs if not can]
    if without:
        facts = {"count": len(without), "of": len(pairs), "pairs": without[:MOST_NAMED]}
        yield Finding("node.peers_without", Severity.UNLIKE, facts)
    elif pairs:
        yield Finding("node.peers_well", Severity.NOTE, {"of": len(pairs)})
    if not (limits or controls or pairs):
        yield Finding("node.host_says_nothing", Severity.UNKNOWN, {})
