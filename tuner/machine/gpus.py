"""GPU models by name (``tables/gpus.toml``): the facts that NVML would report about a GPU whose topology file only says
where it is."""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, UnknownGpu, did_you_mean, nearest_of
from tuner.base.expressions import expression

# The address that NVML reports for an NVSwitch that the host does not see, as in a virtual machine (xml.cc, v2.28.9-1).
HIDDEN_NVSWITCH = "fffffff:ffff:ff"
FIRST_WITH_MULTICAST = 90  # the compute capability of Hopper
# The first CUDA version whose builds of NCCL have code for a compute capability: makefiles/common.mk, v2.28.9-1. The
# wheels of 2.18.1 to 2.26.2, for CUDA 12.1 to 12.4, have neither code for Blackwell nor PTX from which it could be made
# (cuobjdump).
_FIRST_CUDA = ((110, (13, 0)), (100, (12, 8)), (90, (11, 8)), (80, (11, 0)), (75, (10, 0)), (70, (9, 0)))


class PeerToPeer(StrEnum):
    """Which GPUs of a node NVML and CUDA allow to use peer-to-peer."""

    all = "all"
    within_sockets = "within-sockets"
    none = "none"

    def group(self, socket: int, gpu: int) -> int:
        """The number of the group of GPUs with which a GPU can use peer-to-peer.

        ``socket`` and ``gpu`` are the numbers of the GPU's socket and of the GPU itself.
        """
        return {PeerToPeer.all: 0, PeerToPeer.within_sockets: socket, PeerToPeer.none: gpu}[self]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model in one form factor; ``mesh[a][b]`` is the number of NVLinks from GPU a to GPU b in a group of
    GPUs."""

    name: str
    title: str
    compute_capability: int  # 90 for 9.0
    nvlinks: int  # number of one GPU's NVLinks
    lead_to: str  # what the NVLinks lead to: "nvswitch", "gpus" or "nothing"
    pci_devices: tuple[str, ...]  # device ids of vendor 0x10de, as sysfs has them
    gpudirect_rdma: bool
    source: str
    mesh: tuple[tuple[int, ...], ...] = ()
    # Generation and lanes, such as 4x8, if other GPUs of its compute capability have another link
    pcie: str | None = None
    c2c: bool = False  # whether NVLink-C2C joins the GPU with its CPU
    # "none": the driver denies it between any two GPUs, as for some GeForce models
    peer_to_peer: PeerToPeer = PeerToPeer.all

    @property
    def pcie_link(self) -> tuple[int, int]:
        """The generation and number of lanes of the model's PCIe link."""
        generation, _, lanes = (self.pcie or f"{pcie_generation(self.compute_capability)}x16").partition("x")
        return int(generation), int(lanes)

    def far_ends(self, bus_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """For the bus id of each GPU, the bus ids to which its NVLinks lead, one for each NVLink.

        ``bus_ids`` are those of the node's GPUs in ascending order.

        BadInput if the number of GPUs is not a multiple of the size of the groups that NVLinks connect.
        """
        if self.lead_to != "gpus":
            return dict.fromkeys(bus_ids, (HIDDEN_NVSWITCH,) * self.nvlinks)
        size = len(self.mesh)
        if len(bus_ids) % size:
            raise BadInput(
                f"{self.name} comes in groups of {size} GPUs joined by NVLinks, but the topology has {len(bus_ids)}"
            )
        ends = {}
        for index, bus_id in enumerate(bus_ids):
            group = bus_ids[index // size * size :]
            ends[bus_id] = tuple(
                peer for peer, count in zip(group, self.mesh[index % size], strict=False) for _ in range(count)
            )
        return ends


def names() -> tuple[str, ...]:
    """The names of all models, in the table's order."""
    return tuple(_table())


def load(name: str) -> GpuModel:
    """The model of this name, in any case, with spaces or hyphens. UnknownGpu lists the most similar names."""
    if (row := _by_lower_name().get(name.strip().lower().replace(" ", "-").replace("_", "-"))) is None:
        table = _table()
        raise UnknownGpu(f"no GPU model {name!r}{did_you_mean(name, table)}; {nearest_of(name, table)}")
    return row


@cache
def _by_lower_name() -> dict[str, GpuModel]:
    return {name.lower(): row for name, row in _table().items()}


_CHIP = expression(r"RTX PRO \d+|RTX \w+(?: ADA)?|TITAN \w+|\w+")


def chip(model: str) -> str:
    """The part of a model's name that is also in NVML's name: H100 for "H100 SXM5" or "h100-sxm", RTX 4090 for
    "rtx-4090".
    """
    words = model.upper().replace("-", " ").removeprefix("QUADRO ")
    return " ".join(_CHIP.findall(words)[:1])


def is_product(name: str, model: str) -> bool:
    """Whether a GPU that CUDA calls ``name`` may be of the model: the chip and the form factor have to be the same.

    An example is the name "NVIDIA A100-SXM4-80GB" and the model "A100 SXM4". A name without a form factor fits models
    of all form factors except PCIe and NVL. A part of a GPU (MIG) fits no model.
    """
    product, known = _words_of_name(name), _words_of_name(model)
    sockets = [{word for word in words if word.startswith("SXM")} for words in (product, known)]
    return (
        _words_of_name(chip(model)) <= product
        and _OWN_FORMS & product <= known
        and all((edition <= product) == (edition <= known) for edition in _EDITIONS)
        and ({"SXM"} in sockets or not all(sockets) or sockets[0] == sockets[1])
    )


_OWN_FORMS = frozenset({"PCIE", "NVL", "DGXS", "MIG"})  # a model in one of these forms always has the form in its name
# The other RTX PRO 6000 are for workstations; the other A100 is not Leonardo's.
_EDITIONS = (frozenset({"SERVER"}), frozenset({"SXM", "64GB"}))


def _words_of_name(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[0-9A-Z]+", name.upper()))


def capability_of_product(name: str) -> int | None:
    """The compute capability of a product with CUDA's name, such as 80 for ``NVIDIA A100-SXM4-80GB``; None for unknown
    products."""
    words = f" {re.sub(r'[^0-9A-Z]+', ' ', name.upper())} "
    found = [(len(part), cap) for part, cap in _capabilities().items() if f" {part} " in words]
    return max(found)[1] if found else None


@cache
def _capabilities() -> dict[str, int]:
    return {chip(model): load(model).compute_capability for model in names()}


def first_cuda(compute_capability: int) -> tuple[int, int]:
    """The first CUDA version whose builds of NCCL have code for a compute capability (90 for 9.0); (0, 0) if all do."""
    family = 100 if compute_capability // 10 in (10, 12) else compute_capability
    return next((first for least, first in _FIRST_CUDA if family >= least), (0, 0))


def of_device(device: str | None) -> tuple[str, ...]:
    """The names of the models with this PCI device id of NVIDIA, such as ``0x2330``; empty for an unknown id."""
    return _by_device().get((device or "").lower(), ())


@cache
def _by_device() -> dict[str, tuple[str, ...]]:
    named: dict[str, tuple[str, ...]] = {}
    for name, model in _table().items():
        for device in model.pci_devices:
            named[device] = (*named.get(device, ()), name)
    return named


@cache
def most_nvlinks(compute_capability: int) -> int:
    """The most NVLinks that any GPU of a compute capability (90 for 9.0) has."""
    alike = (model for model in map(load, names()) if model.compute_capability == compute_capability)
    return max((model.nvlinks for model in alike), default=0)


@cache
def multicast_chips() -> tuple[str, ...]:
    """The chips for which there is a form factor with NVSwitches that can multicast, so that NVLS is possible."""
    switched = (model for model in map(load, names()) if model.lead_to == "nvswitch")
    return tuple({chip(model.name): None for model in switched if model.compute_capability >= FIRST_WITH_MULTICAST})


def pcie_generation(compute_capability: int) -> int:
    """The PCIe generation of GPUs of a compute capability (90 for 9.0).

    It follows from the bandwidth in ``links.toml``. Without an entry there, it is 3, as NCCL assumes for links that it
    does not know.
    """
    gbs = _pcie_gbs().get(str(compute_capability))
    return 3 if gbs is None else 3 + round(math.log2(gbs / 15.75))


@cache
def _pcie_gbs() -> dict[str, float]:
    table: dict[str, dict[str, float]] = tables.toml(tables.folder() / "links.toml")
    return table["pcie_gbs"]


@cache
def _table() -> dict[str, GpuModel]:
    return {name: _model(name, row) for name, row in tables.toml(tables.folder() / "gpus.toml").items()}


def _model(name: str, row: dict[str, object]) -> GpuModel:
    mesh = row.pop("mesh", [])
    devices, allowed = row.pop("pci_devices"), PeerToPeer(str(row.pop("peer_to_peer", "all")))
    assert isinstance(mesh, list)
    assert isinstance(devices, list)
    return GpuModel(
        name=name,
        mesh=tuple(map(tuple, mesh)),
        pci_devices=tuple(devices),
        peer_to_peer=allowed,
        **row,  # type: ignore[arg-type]
    )


def nccls_family(family: int) -> int:
    """NCCL's number for a CPU family of which Linux gives the number.

    NCCL shifts the extended part of Linux's number, so that AMD's 23 becomes 143 (ncclTopoGetXmlFromCpu,
    src/graph/xml.cc, v2.28.9-1).
    """
    return family if family <= 15 else 15 + ((family - 15) << 4)
