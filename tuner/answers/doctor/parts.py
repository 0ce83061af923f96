"""Parts by their PCI ids (``tables/parts.toml``, ``tables/gpus.toml``): what they can at most."""

from dataclasses import dataclass
from functools import cache

from tuner.base import tables
from tuner.machine import gpus

NVIDIA = "10de"


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of device: ``kind`` is gpu, adapter or switch.

    ``pcie`` is generation and lanes, ``gbps`` that of a port, each None if not known. ``nvlinks`` are those of a GPU in
    each form that it comes in: with bridges and without.
    """

    name: str
    kind: str
    pcie: tuple[int, int] | None = None
    gbps: float | None = None
    gpudirect_rdma: bool = True
    nvlinks: tuple[int, ...] = ()
    comp_cap: int | None = None


def of(vendor: str | None, device: str | None) -> Part | None:
    """The part of these ids, as in ``vendor="0x10de" device="0x2330"``; None for unknown ones."""
    key = f"{(vendor or '').lower().removeprefix('0x')}:{(device or '').lower().removeprefix('0x')}"
    return _gpus().get(key) or _others().get(key)


@cache
def _gpus() -> dict[str, Part]:
    """Parts of GPUs by their ids; a device id may be of several models, which are forms of one."""
    found: dict[str, Part] = {}
    for name in gpus.names():
        model = gpus.load(name)
        for device in model.pci_devices:
            key = f"{NVIDIA}:{device.removeprefix('0x')}"
            first = found.get(key)
            links = sorted({model.nvlinks, *(first.nvlinks if first else ())})
            found[key] = Part(
                first.name if first else name,
                "gpu",
                model.pcie_link,
                None,
                model.gpudirect_rdma,
                tuple(links),
                model.compute_capability,
            )
    return found


@cache
def _others() -> dict[str, Part]:
    table = tables.toml(tables.folder() / "parts.toml")
    return {
        ids: Part(
            row["name"],
            kind.removesuffix("s") if kind == "adapters" else "switch",
            _pcie(row.get("pcie")),
            row.get("gbps"),
            row.get("gpudirect_rdma", True),
        )
        for kind, rows in table.items()
        for ids, row in rows.items()
    }


def _pcie(text: str | None) -> tuple[int, int] | None:
    generation, _, lanes = (text or "").partition("x")
    return (int(generation), int(lanes)) if lanes else None
