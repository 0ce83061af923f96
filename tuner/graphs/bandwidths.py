"""The bandwidths of links as NCCL knows them, 1e9 bytes per second: between CPUs, NVLink, PCI.

Source: src/graph/topo.cc and topo.h, v2.28.9-1. All are rounded to float32 where NCCL stores them.
"""

import xml.etree.ElementTree as ET

from tuner.base.numerics import f32, f64
from tuner.graphs.system import Cpu, Gpu, Node
from tuner.graphs.xml import integer
from tuner.release.search import CpuLinks, Devices

LOCAL_GBS = 5000.0
# 1e8 bits per second and lane; the first that the text begins with. Source: kvDictPciGen.
LANE_SPEEDS = (
    ("2.5 GT/s", 15),
    ("5 GT/s", 30),
    ("8 GT/s", 60),
    ("16 GT/s", 120),
    ("32 GT/s", 240),
    ("5.0 GT/s PCIe", 30),
    ("8.0 GT/s PCIe", 60),
    ("16.0 GT/s PCIe", 120),
    ("32.0 GT/s PCIe", 240),
    ("64.0 GT/s PCIe", 480),
)
UNKNOWN_LANE_SPEED = 60
UNKNOWN_WIDTH = 16


def cpu_gbs(cpu: Cpu, links: CpuLinks) -> float:
    """The bandwidth from a CPU to each other of its host (ncclTopoGetInterCpuBw)."""
    if cpu.arch == "ppc64":
        return links.power_gbs
    if cpu.arch == "arm64":
        return links.arm_gbs
    if cpu.vendor == "GenuineIntel":
        of_family = (gbs for model, gbs in links.intel_model_gbs if cpu.family == 6 and cpu.model >= model)
        return next(of_family, links.intel_gbs)
    if cpu.vendor == "AuthenticAMD":
        return next((gbs for family, gbs in links.amd_family_gbs if cpu.family == family), links.amd_gbs)
    if cpu.vendor in ("CentaurHauls", "  Shanghai  "):
        return links.yongfeng_gbs if (cpu.family, cpu.model) == (7, 0x5B) else links.zhaoxin_gbs
    return LOCAL_GBS


def nvlink_gbs(gpu: Node, devices: Devices) -> float:
    """One NVLink of this GPU (ncclTopoNVLinkBw)."""
    assert isinstance(gpu, Gpu)
    capability = gpu.compute_capability
    exact = (gbs for one, gbs in devices.nvlink_exactly_gbs if one == capability)
    return next(exact, next(gbs for least, gbs in devices.nvlink_gbs if capability >= least))


def pci_gbs(element: ET.Element) -> float:
    """The link of a PCI device."""
    speed = next(
        (speed for text, speed in LANE_SPEEDS if element.get("link_speed", "").startswith(text)), UNKNOWN_LANE_SPEED
    )
    width = integer(element, "link_width") or UNKNOWN_WIDTH
    return float(f32(f64(width * speed) / 80.0))
