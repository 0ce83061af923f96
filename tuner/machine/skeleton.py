"""Completes topology files that say where devices are but not what they are (skeletons), as NCCL does.

Cloud vendors ship such files for NCCL_TOPO_FILE.

On the machine, NCCL asks NVML about the GPUs and its network plugin about the adapters. Here the name of the GPU model
and the speed of the adapters replace these answers. A file that lacks anything else is refused.
"""

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTopology, IncompleteTopology, one_of
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.spelling import option
from tuner.machine import gpus
from tuner.machine.gpus import GpuModel
from tuner.machine.topology.edit import each_gpu_once
from tuner.machine.topology.reader import of_elements
from tuner.machine.topology.records import Topology
from tuner.machine.topology.xml import MAX_BYTES, parse, to_text

NVIDIA = "0x10de"
AMAZON = "0x1d0f"  # vendor of Amazon's adapters, whose plugin reports a latency that depends on the instance type
BUS_ID = expression(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # NCCL compares bus ids as text, in lower case
# Facts that NCCL otherwise asks the computer on which it runs
CPU_FACTS = {"x86_64": ("vendor", "familyid", "modelid")}
CLASSES = 'class "0x030200" is a GPU, "0x020000" an adapter'
PCI_FACTS = ("class", "link_speed", "link_width")
NVSWITCH_CLASS = "0x068000"  # class that NCCL assumes for the far end of an NVLink that the host does not see
# What NCCL's own InfiniBand network reports for an adapter
NET_DEFAULTS = {"port": "1", "maxconn": "131072", "gdr": "1"}
FIRST_GUID = 0x2000000000000000  # guids are invented and distinct, because NCCL tells adapters apart by them


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A topology file that does not describe its GPUs and adapters, and the machine that completes it.

    The machine is simulated: it answers what NCCL asks about the GPUs and adapters.

    NCCL reads ``xml`` instead of the complete machine; all nodes are equal.
    """

    xml: str
    topology: str  # the complete machine, as the simulated devices present it
    gpus: int
    nvlinks: Mapping[str, tuple[str, ...]]  # for each GPU, by bus id: the bus id at the end of each of its NVLinks
    adapters: Mapping[str, str]  # bus ids by name, of the adapters that the file does not describe
    classes: Mapping[str, str]  # PCI classes by bus id, of the devices that NCCL looks up in sysfs


def read_complete(file: Path) -> tuple[str, Topology]:
    """The text of a topology file and what it describes, read and parsed once.

    BadTopology if the file is not a topology. IncompleteTopology if it has GPUs that it does not describe.
    """
    skeleton = _File(file)
    placed = _gpus(skeleton.where, (element for element in skeleton.elements if element.tag == "pci"))
    bare = [pci for pci in placed if (gpu := pci.find("gpu")) is None or gpu.get("sm") is None]
    if bare:
        known = dict.fromkeys(name for pci in bare for name in gpus.of_device(pci.get("device")))
        adapters = _without_speed(skeleton.elements)
        speeds = f", and how fast its {adapters} adapters are with {option('net_gbps')} 400" if adapters else ""
        raise IncompleteTopology(
            f"{skeleton.where}: {len(bare)} of {len(placed)} GPUs have no <gpu> with sm: a skeleton for NCCL to "
            f"complete on its machine; say what they are with {option('gpu')} "
            f"MODEL{speeds}; {one_of(known or gpus.names())}",
            len(bare),
            len(placed),
            adapters,
        )
    topology = of_elements(skeleton.elements, skeleton.where)
    text = skeleton.text.replace("\r\n", "\n").replace("\r", "\n")
    return each_gpu_once(text) if topology.gpu_of_rank else text, topology


def _without_speed(elements: "Iterable[_Read]") -> int:
    """The number of adapters without a speed, for the message about an incomplete topology."""
    slots = [each for each in elements if each.tag == "pci" and (each.get("class") or "").startswith("0x02")]
    bare = sum(slot.find("nic") is None for slot in slots)
    silent = sum(each.tag == "net" and each.get("speed") is None for each in elements)
    return bare + silent


def name_of(file: Path) -> str:
    """What stands for a machine's name if a topology file is used: the file's name and a hash of its content.

    BadTopology if the file cannot be read.
    """
    return f"{file.name} {sha256(read_bytes(file, BadTopology, MAX_BYTES)).hexdigest()[:8]}"


def read(
    source: str | Path, gpu: str, net_gbps: float | None, net_latency_us: float | None, where: str = "topology"
) -> Skeleton:
    """Reads a skeleton, from a file (a ``Path``) or a text (a ``str``), for a machine whose GPUs are all of model
    ``gpu``. Errors about a text call it ``where``.

    Adapters without a <net> get one with the speed ``net_gbps`` (1e9 bits per second) and the latency
    ``net_latency_us``; None stands for 0, which NCCL's own networks report. BadTopology if the file lacks something
    else, BadInput if an argument contradicts the file.
    """
    model = gpus.load(gpu)
    skeleton = _File(source, where)
    skeleton.check_places()
    placed = skeleton.gpus()
    if not placed:
        skeleton.fail('no GPU in it: no <gpu>, and no <pci> with class="0x0302.." of NVIDIA')
    skeleton.describe_gpus(placed, model)
    adapters = skeleton.describe_adapters(net_gbps, net_latency_us, model.gpudirect_rdma)
    bus_ids = sorted(map(_bus_id, placed))
    linked = all(pci.find("gpu/nvlink") is not None for pci in placed)
    return Skeleton(
        xml=skeleton.text,
        topology=to_text(skeleton.root),
        gpus=len(placed),
        nvlinks={} if linked else model.far_ends(bus_ids),
        adapters=adapters,
        classes={
            _bus_id(pci): pci.get("class", "")
            for pci in skeleton.root.iter("pci")
            if _bus_id(pci) in (*bus_ids, *adapters.values())
        },
    )


@cache
def completed(
    source: str | Path, gpu: str, net_gbps: float | None, net_latency_us: float | None, where: str = "topology"
) -> str:
    """The topology that NCCL makes from a skeleton: every device of the machine, and no ranks. Raises the errors of
    :func:`read`."""
    described = read(source, gpu, net_gbps, net_latency_us, where)
    root = ET.fromstring(described.topology)
    for pci in root.iter("pci"):
        own = pci.find("gpu")
        if own is not None:
            own.attrib.setdefault("gdr", "1")
            _add_nvlinks(own, described, described.nvlinks.get(_bus_id(pci), ()))
    for number, net in enumerate(root.iter("net"), start=1):
        net.set("latency", f"{float(net.get('latency', 0)):g}")
        for name, value in {**NET_DEFAULTS, "guid": hex(number)}.items():
            net.attrib.setdefault(name, value)
    _trim(root)
    ET.indent(root)
    return to_text(root)


def _add_nvlinks(gpu: ET.Element, described: Skeleton, far_ends: Sequence[str]) -> None:
    """Adds an <nvlink> for each device to which NVLinks lead, unless the GPU already has an <nvlink>
    (ncclTopoGetXmlFromGpu, xml.cc)."""
    if gpu.find("nvlink") is None:
        for target, count in Counter(far_ends).items():
            tclass = described.classes.get(target, NVSWITCH_CLASS)
            ET.SubElement(gpu, "nvlink", {"target": target, "count": str(count), "tclass": tclass})


def _trim(element: ET.Element) -> bool:
    """Removes elements without a GPU or an adapter below them; returns whether anything is left (ncclTopoTrimXml,
    xml.cc)."""
    if element.tag in ("gpu", "net"):
        return True
    for child in list(element):
        if not _trim(child):
            element.remove(child)
    return len(element) > 0


class _File:
    """A topology file as text, and as a tree that is completed with the answers of the simulated machine."""

    def __init__(self, source: str | Path, where: str = "topology") -> None:
        if isinstance(source, str):
            self.where, data = where, source.encode()
        else:
            self.where, data = str(source), read_bytes(source, BadTopology, MAX_BYTES)
        self.elements = parse(data, self.where)
        if self.elements[0].tag != "system":
            self.elements[0].fail("is not a topology; valid root: <system>")
        try:
            self.text = data.decode("utf-8")
        except UnicodeDecodeError:  # a byte order mark names another encoding
            self.fail("not UTF-8, the only encoding that NCCL reads; save it as UTF-8")

    @cached_property
    def root(self) -> ET.Element:
        """The tree that is to be completed."""
        return ET.fromstring(self.text)

    def fail(self, problem: str) -> NoReturn:
        raise BadTopology(f"{self.where}: {problem}")

    def gpus(self) -> list[ET.Element]:
        """The <pci> elements of the GPUs."""
        return _gpus(self.where, self.root.iter("pci"))

    def check_places(self) -> None:
        """Raises BadTopology if the file lacks facts that NCCL would read from the computer on which it runs.

        The message names all missing facts.
        """
        lacking: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for cpu in self.root.iter("cpu"):
            needed = ("numaid", "arch", *CPU_FACTS.get(cpu.get("arch", ""), ()))
            lacking[_missing(cpu, needed)].append(f"<cpu numaid={cpu.get('numaid')!r}>")
        for pci in self.root.iter("pci"):
            if BUS_ID.fullmatch(pci.get("busid", "")) is None:
                self.fail(f"<pci busid={pci.get('busid')!r}>: valid: as in 0000:1b:00.0, in lower case")
            lacking[_missing(pci, PCI_FACTS)].append(f"<pci busid={pci.get('busid')!r}>")
        lacking.pop((), None)
        if lacking:
            said = (
                f"{_first_of(names)} {'has' if len(names) == 1 else 'have'} no {' and no '.join(missing)}"
                for missing, names in lacking.items()
            )
            kinds = f" ({CLASSES})" if any("class" in missing for missing in lacking) else ""
            self.fail(f"{'; '.join(said)}, which NCCL reads from its machine; write it there{kinds}")

    def describe_gpus(self, placed: list[ET.Element], model: GpuModel) -> None:
        """Gives every GPU the compute capability of the model, and a number.

        Like CUDA, it numbers equal GPUs in the order of bus ids.
        """
        numbered = [gpu for pci in placed if (gpu := pci.find("gpu")) is not None and gpu.get("dev") is not None]
        if len(numbered) not in (0, len(placed)):
            self.fail(f"{len(numbered)} of {len(placed)} GPUs have a <gpu dev>; valid: all or none")
        for dev, pci in enumerate(sorted(placed, key=_bus_id)):
            device, where = pci.get("device"), f"{self.where}: <pci busid={pci.get('busid')!r}>"
            if device is not None and device.lower() not in model.pci_devices and (known := gpus.of_device(device)):
                raise BadInput(f"{where} is device {device}, not {model.name}; {one_of(known)}")
            gpu = pci.find("gpu")
            if gpu is None:
                gpu = ET.SubElement(pci, "gpu")
            sm = gpu.get("sm", str(model.compute_capability))
            if sm != str(model.compute_capability):
                raise BadInput(f"{where} has sm={sm!r}, and {model.name} has {model.compute_capability}")
            gpu.set("sm", sm)
            gpu.set("dev", gpu.get("dev", str(dev)))
            if model.c2c and gpu.find("c2c") is None:
                self.fail(
                    f"NVLink-C2C joins a {model.name} with its CPU, and <pci busid={pci.get('busid')!r}> has no <c2c> "
                    'in its <gpu>; write it there, as in <c2c bw="44712" count="10"/>, or take what NCCL dumps'
                )

    def describe_adapters(self, gbps: float | None, latency_us: float | None, gdr: bool) -> dict[str, str]:
        """Adds a <net> to every network device (class 0x02) that has none, in the order of bus ids, and a speed to
        every <net> that has none.

        These are the values with which NCCL's network would complete the file (ncclTopoPopulateNics, src/graph/topo.cc,
        v2.28.9-1). Returns, by name, the bus ids of the devices that had no <net>.
        """
        slots = list(self.root.iter("pci"))
        bare = [pci for pci in slots if pci.get("class", "").startswith("0x02") and not _nets(pci)]
        silent = [net for net in self.root.iter("net") if "speed" not in net.attrib]
        if not (bare or silent):
            if gbps is not None or latency_us is not None:
                raise BadInput(
                    f"{self.where}: all adapters have a speed already: remove {option('net_gbps')} and "
                    f"{option('net_latency_us')}"
                )
            return {}
        first = bare[0].get("busid") if bare else silent[0].get("name")
        what = f"{self.where}: {len(bare) + len(silent)} adapters have no speed, the first is {first}"
        if gbps is None:
            raise BadInput(f"{what}; say how fast they are: {option('net_gbps')} 400 (1e9 bits per second)")
        asked = [pci for pci in slots if pci in bare or any(net in silent for net in _nets(pci))]
        if latency_us is None and any(pci.get("vendor") == AMAZON for pci in asked):
            raise BadInput(
                f"{what}; Amazon's plugin reports its own latency: {option('net_latency_us')}, 75 for p4d and p4de"
            )
        facts = {"speed": str(round(gbps * 1000)), "latency": str(latency_us or 0.0), "gdr": str(int(gdr))}
        for net in silent:
            net.attrib.update({name: value for name, value in facts.items() if name not in net.attrib})
        devs = [net.get("dev", "") for net in self.root.iter("net")]
        if strange := [dev for dev in devs if not dev.isdecimal()]:
            self.fail(f"<net dev={strange[0]!r}> is not a whole number")
        free = 1 + max(map(int, devs), default=-1)
        names = {}
        for n, pci in enumerate(sorted(bare, key=_bus_id)):
            name = f"nic{n}"
            names[name] = _bus_id(pci)
            ET.SubElement(
                ET.SubElement(pci, "nic"),
                "net",
                {
                    "name": name,
                    "dev": str(free + n),
                    "port": "1",
                    "guid": hex(FIRST_GUID + n),
                    **facts,
                },
            )
        return names


class _Read(Protocol):
    """The methods of elements that both trees share: the file as it was read, and the tree that is completed."""

    @property
    def tag(self) -> str: ...
    def get(self, key: str) -> str | None: ...
    def find(self, path: str) -> "_Read | None": ...


P = TypeVar("P", bound=_Read)


def _gpus(where: str, slots: Iterable[P]) -> list[P]:
    """The <pci> elements of GPUs: those with a <gpu>, and display devices (class 0x03) of NVIDIA."""
    slots = list(slots)
    if silent := [f"<pci busid={pci.get('busid')!r}>" for pci in slots if not (pci.get("class") or pci.find("*"))]:
        have = "has" if len(silent) == 1 else "have"
        what = f"{where}: {_first_of(silent)} {have} no class"
        raise BadTopology(f"{what}, which NCCL reads from its machine; write it there ({CLASSES})")
    return [pci for pci in slots if pci.find("gpu") is not None or _is_gpu(where, pci)]


def _is_gpu(where: str, pci: _Read) -> bool:
    kind, vendor = pci.get("class"), pci.get("vendor")
    name = f"{where}: <pci busid={pci.get('busid')!r}>"
    if kind is None or not kind.startswith("0x03"):
        return False
    if vendor is None and kind.startswith("0x0300"):
        raise BadTopology(f"{name} is a display without vendor: a GPU where it is {NVIDIA!r}")
    return vendor in (None, NVIDIA)


def _missing(element: ET.Element, attributes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(attribute for attribute in attributes if attribute not in element.attrib)


def _first_of(names: Sequence[str]) -> str:
    """Text with the first of several names, and the number of the others."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _nets(pci: ET.Element) -> list[ET.Element]:
    return pci.findall("nic/net")


def _bus_id(pci: ET.Element) -> str:
    return pci.get("busid", "")


def tidy(dump: str, machine: ET.Element) -> str:
    """The text of a topology file that is made from a dump.

    It has the order of ``machine``, and lacks what belongs to the run that wrote the dump.

    The search depends on the file's order, and the dump has the order in which the ranks' views were joined. What
    belongs to the run are ranks, hosts, and a network that the dump only has because NCCL needs one.
    """
    root = ET.fromstring(dump)
    nets = {net.get("name") for net in machine.iter("net")}
    for element in root.iter():
        for attribute in ("host_hash", "rank", "keep"):
            element.attrib.pop(attribute, None)
    for above in root.iter():
        for nic in above.findall("nic"):
            for net in nic.findall("net"):
                if net.get("name") not in nets:
                    nic.remove(net)
            if nic.find("net") is None:
                above.remove(nic)
    _order_as(root, machine)
    ET.indent(root)
    return to_text(root)


def _order_as(element: ET.Element, like: ET.Element) -> None:
    """Sorts the children in the order of the children of ``like``, recursively. Elements that ``like`` does not have,
    such as NVLinks, come last."""
    names = [_name(child) for child in like]
    element[:] = sorted(element, key=lambda child: names.index(_name(child)) if _name(child) in names else len(names))
    for child in element:
        if _name(child) in names:
            _order_as(child, like[names.index(_name(child))])


def _name(element: ET.Element) -> tuple[str | None, ...]:
    return (element.tag, *map(element.get, ("numaid", "busid", "name")))
