"""A node as a listing shows it: a tree as in a topology, with what no listing says left out."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """What ``tool`` printed into ``file``.

    ``root`` is <system> with <cpu>, <pci>, <gpu dev> and <net name dev>, without the attributes that it does not say.
    ``nvlinks`` are the links between two GPUs, by their numbers, lower first, 0 where there are none; None where the
    listing does not show links. ``to_switches`` are those of a GPU to NVSwitches, where it shows that. ``models`` are
    the PCI device ids of the GPUs, each once.
    """

    file: str
    tool: str
    root: ET.Element
    gpus: int
    nvlinks: Mapping[tuple[int, int], int] | None
    to_switches: Mapping[int, int]
    models: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def adapters(self) -> tuple[str, ...]:
        """Their names, by number."""
        return tuple(
            net.get("name", "") for net in sorted(self.root.iter("net"), key=lambda net: int(net.get("dev", 0)))
        )

    def says_cpu(self) -> bool:
        """Whether it says what the processors are."""
        return all(cpu.get("arch") is not None for cpu in self.root.iter("cpu"))
