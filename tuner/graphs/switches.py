"""What NCCL changes of a new system graph: switches of two levels become one, and links get the order of a traversal.

Source: ncclTopoFlattenBcmSwitches and ncclTopoSortSystem, src/graph/topo.cc, v2.28.9-1.
"""

from tuner.graphs.system import Kind, Link, Node, System
from tuner.release.search import Devices

SUBSYSTEM_DEVICE = 0xFFFF
REVISIONS = 0xFFF  # of a device word that say nothing of the level


def flatten(system: System, devices: Devices) -> None:
    """Makes one switch of each Broadcom switch that presents itself as two levels."""
    at = 0
    while at < len(system.nodes[Kind.PCI]):
        switch = system.nodes[Kind.PCI][at]
        at += 1
        lower = next((lower for upper, lower in devices.flattened if _is(switch, upper)), None)
        if lower is None:
            continue
        if devices.flattened_by_equal_device:
            below = [link.to for link in switch.links if link.to.kind is Kind.PCI and link.to.device == switch.device]
        else:
            below = [link.to for link in switch.links if link.to.kind is Kind.PCI and _is(link.to, lower)]
        switch.links = [link for link in switch.links if link.to not in below]
        for sub in below:
            _dissolve(system, sub, switch)
        switch.device = 0x1000C01010000000 if devices.flattened_by_equal_device else switch.device | SUBSYSTEM_DEVICE
        at = devices.flattened_goes_on_at


def _is(switch: Node, device: int) -> bool:
    return switch.device & ~REVISIONS == device


def _dissolve(system: System, sub: Node, switch: Node) -> None:
    """Hangs what is below a switch directly below the one above it."""
    for link in sub.links:
        if link.to is switch:
            continue
        switch.links.append(Link(link.kind, link.to, link.gbs))
        back = next((back for back in link.to.links if back.to is sub), None)
        if back is not None:
            back.to = switch
    system.remove(sub)


def sort(system: System) -> None:
    """Puts the link to the device above last, all the way down from each CPU."""
    for cpu in system.cpus:
        _sort(cpu, None)


def _sort(node: Node, above: Node | None) -> None:
    if above is not None:
        at = next(at for at, link in enumerate(node.links) if link.to is above)
        node.links.append(node.links.pop(at))
    for link in list(node.links):
        if link.kind == "PIX" and link.to is not above:
            _sort(link.to, node)
