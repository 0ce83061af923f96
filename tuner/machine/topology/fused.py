"""Topologies of several hosts in one file: what NCCL dumps of a NVLink domain, whose CPUs say by a hash which host they
are of (ncclTopoFuseXml, src/graph/xml.cc, v2.28.9-1)."""

import re
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

from tuner.base.errors import BadTopology
from tuner.base.files import contents
from tuner.machine.topology.xml import MAX_BYTES, to_text

HOST = "host_hash"
_OF_ONE_HOST = re.compile(r'\s(?:host_hash|guid|rank)="[^"]*"')  # what differs between hosts that are alike


def hosts_of(file: Path) -> tuple[tuple[str, int], ...]:
    """The topology of each host in the order of the file, and how many that are alike follow; none in a file of one.

    BadTopology where it cannot be read. Hosts that differ in hashes, guids and ranks alone are alike.
    """
    try:
        data = contents(file, MAX_BYTES)
    except OSError as error:
        raise BadTopology(f"{file}: {error.strerror}") from None
    if HOST.encode() not in data or b"<!" in data.replace(b"<!--", b""):
        return ()  # what declares entities is refused by whoever reads it whole
    try:
        root = ET.fromstring(data)
    except ET.ParseError:
        return ()  # which whoever reads it whole says
    by_host: dict[str, list[ET.Element]] = {}
    for cpu in root.findall("cpu"):
        cpu.tail = "\n"
        by_host.setdefault(cpu.get(HOST, ""), []).append(cpu)
    if len(by_host) < 2:
        return ()
    texts = []
    for cpus in by_host.values():
        host = ET.Element(root.tag, dict(root.attrib))
        host.extend(cpus)
        texts.append(to_text(host))
    groups = (list(alike) for _, alike in groupby(texts, key=lambda text: _OF_ONE_HOST.sub("", text)))
    return tuple((alike[0], len(alike)) for alike in groups)
