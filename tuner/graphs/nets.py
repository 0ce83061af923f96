"""The network devices through which a channel may enter and leave, and the order in which they are tried.

Source: ncclTopoSelectNets, ncclTopoSearchCheckNet, src/graph/search.cc, v2.28.9-1.
"""

from collections.abc import Callable
from itertools import zip_longest

from tuner.base.errors import NcclFails
from tuner.base.names import Pattern
from tuner.graphs.adapters import LocalNets, max_nets, nearest
from tuner.graphs.system import UNKNOWN, AdapterDevice, DeviceKind, System
from tuner.graphs.trial import Trial
from tuner.release import Release
from tuner.release.environment import Environment

ANY_GPU = NO_GPU = -1
NEVER = -1  # no device has this id
SCATTER = "NCCL_MNNVL_SCATTER_NETS_ENABLE"
MANY_HOPS = 1 << 28


RAIL_BY_GPUS = -1


def _rail_per_host(system: System, nccl: Release, variables: Environment) -> bool:
    """The value of NCCL_MNNVL_RAIL_PER_HOST. In releases that know Rubin, the default -1 means on if all GPUs are Rubin
    GPUs.

    Source: ncclTopoSearchRecGpu of the libnccl of 2.32.3, and its parameter's default.
    """
    by_gpus = bool(nccl.search.devices.rubin)
    asked = variables.number("NCCL_MNNVL_RAIL_PER_HOST", RAIL_BY_GPUS if by_gpus else 0)
    if by_gpus and asked == RAIL_BY_GPUS:
        return all(nccl.search.devices.is_rubin(gpu.compute_capability) for gpu in system.gpus)
    return asked != 0


class Nets:
    """The network devices of a system, in the form in which a search uses them."""

    def __init__(self, system: System, nccl: Release, variables: Environment) -> None:
        self.system = system
        self.devices = system.nets
        self.rules = nccl.search.channels
        self.limit = nccl.limits.max_channels if self.rules.nets_limit else len(system.nets)
        self.local = LocalNets(system, nccl.search.routing, nccl.limits.max_channels, variables)
        policy = self.local.policy or ""
        limits = self.rules.policy_limits_nets and policy.upper().startswith("MAX:")
        self.most_per_gpu = max_nets(policy) if limits else 0
        self.number_of = {net.id: system.number(net) for net in system.nets}
        self.same_port = [
            [n for n, other in enumerate(system.nets) if (other.guid, other.port) == (net.guid, net.port)]
            for net in system.nets
        ]
        self.scatter = self.rules.nets_scatter and system.hosts > 1 and variables.number(SCATTER, 1) != 0
        self.rail_per_host = self.rules.rail_per_host and _rail_per_host(system, nccl, variables)
        self._nearest_gpus: dict[int, tuple[list[int], int]] = {}
        self._starts: dict[int, tuple[list[int], bool]] = {}
        self._listed: dict[tuple[int, int], list[int]] = {}
        self._leaving: dict[tuple[int, ...], list[int]] = {}
        self._widest: dict[int, tuple[float, list[int]]] = {}

    def listed(self, farthest: int, gpu: int) -> list[int]:
        """The network devices to try for a GPU, in order; ``gpu`` is its number, or ``ANY_GPU``.

        The GPU's own devices come first, except in releases that go by the path type alone. Devices with paths of type
        0 to ``farthest`` follow, the nearest type first.
        """
        key = farthest, gpu
        if key not in self._listed:
            self._listed[key] = list(dict.fromkeys(self._list(farthest, gpu)))[: self._most(gpu)]
        return self._listed[key]

    def _most(self, gpu: int) -> int | None:
        if not self.most_per_gpu:
            return None
        most = self.most_per_gpu * (len(self.system.gpus) if gpu == ANY_GPU else 1)
        return max(most, len(set(self._own(self._gpus(gpu)))))

    def _gpus(self, gpu: int) -> list[int]:
        """The GPUs that a number means; empty if no GPU has that number."""
        return [number for number in range(len(self.system.gpus)) if gpu in (number, ANY_GPU)]

    def _own(self, gpus: list[int]) -> list[int]:
        """The GPUs' own devices, GPU by GPU; in an NVLink domain, one device of each GPU in turn."""
        each = [self.local.of_gpu(self.system.gpus[gpu]) for gpu in gpus]
        if not self.scatter:
            return [net for nets in each for net in nets]
        return [net for turn in zip_longest(*each) for net in turn if net is not None]

    def _list(self, farthest: int, gpu: int) -> list[int]:
        gpus, system = self._gpus(gpu), self.system
        shuffled = self.rules.nets == "by_type_shuffled"
        found = [] if shuffled else self._own(gpus)
        for type_ in range(farthest + 1):
            for number in gpus:
                paths = system.gpus[number].paths.get(DeviceKind.NET, [])[: self.limit]
                nets = [net for net, path in enumerate(paths) if path.type == type_]
                start = system.gpus[number].dev % len(nets) if shuffled and nets else 0
                found += nets[start:] + nets[:start]
        return found

    def nearest_gpus(self, net: int) -> tuple[list[int], int]:
        """The GPUs that a device reaches best, and the type of the paths to them."""
        if net not in self._nearest_gpus:
            self._nearest_gpus[net] = nearest(self.system, self.devices[net], DeviceKind.GPU)
        return self._nearest_gpus[net]

    def starts(self, net: int) -> tuple[list[int], bool]:
        """The GPUs at which a channel that enters through a device may begin, and whether the device reaches any GPU.

        The GPUs are in the order in which they are tried.
        """
        if net not in self._starts:
            gpus, type_ = self.nearest_gpus(net)
            reached, local = type_ != self.system.types.DIS, self.devices[net].local_gpu
            own = [local] if self.rules.starts == "own_then_nearest" and local != NO_GPU else []
            self._starts[net] = list(dict.fromkeys([*own, *gpus] if reached else own)), reached
        return self._starts[net]

    def leaving(self, trial: Trial, gpu: int, step: int) -> list[int]:
        """The devices through which the current channel may leave from a GPU; this depends on how it entered."""
        inter, channel = trial.inter, trial.channels
        last = inter[channel - 1][0] if self.alternates(trial) else NEVER
        first = inter[channel][1] if step and trial.pattern is Pattern.BalancedTree else NEVER
        key = gpu, inter[channel][0], trial.type_inter, trial.pattern, trial.cross_nic, channel & 1, last, step, first
        found = self._leaving.get(key)
        if found is None:
            listed = self.listed(trial.type_inter, gpu)
            found = self._leaving[key] = [net for net in listed if self._may_leave(trial, net, step)]
        return found

    def _may_leave(self, trial: Trial, net: int, step: int) -> bool:
        """Whether the current channel may leave through a device; this depends on how it entered."""
        nets, inter, channel = self.devices, trial.inter, trial.channels
        device, start = nets[net], nets[self.number_of[inter[channel][0]]]
        if not self.may_pair(trial, device, start):
            return False
        if self.alternates(trial) and device.id != inter[channel - 1][0]:
            return False
        return not (trial.pattern is Pattern.BalancedTree and step != 0 and device.id != inter[channel][1])

    def may_pair(self, trial: Trial, device: AdapterDevice, start: AdapterDevice) -> bool:
        """Whether a channel that enters through ``start`` may leave through ``device``."""
        planes = {device.plane, start.plane} - {UNKNOWN} if self.rules.rails else set()
        if len(planes) > 1 or (trial.pattern is Pattern.Tree and device.id != start.id):
            return False
        if self.rules.ports_apart and device.port != start.port:
            return False
        crosses = trial.cross_nic != 0 if self.rules.alternate == "rings" else trial.cross_nic == 1
        return crosses or self._same_rail(device, start)

    def _same_rail(self, device: AdapterDevice, start: AdapterDevice) -> bool:
        """Whether a channel that stays on one rail may use both devices."""
        if self.rules.rails and UNKNOWN not in (device.rail, start.rail):
            return device.rail == start.rail
        if self.rail_per_host and device.host != start.host:
            return (device.pci, device.port) == (start.pci, start.port)
        return (device.guid, device.port) == (start.guid, start.port)

    def may_enter(self, trial: Trial, net: int) -> bool:
        """Whether the next channel may enter through ``net``; this depends on the device by which the last channel
        left."""
        last = trial.channels - 1
        return not (self.alternates(trial) and self.devices[net].id != trial.inter[last][1])

    def alternates(self, trial: Trial) -> bool:
        """Whether the current (or the next) channel has to use the previous channel's adapters in reverse order."""
        return bool(trial.channels & 1) and self.alternate_if_odd(trial)

    def alternate_if_odd(self, trial: Trial) -> bool:
        """Whether every odd channel has to use the previous channel's adapters in reverse order."""
        rules = self.rules.alternate
        any_pattern = rules == "any_pattern" and trial.cross_nic != 0
        return any_pattern or (rules == "rings" and trial.pattern is Pattern.Ring and trial.cross_nic == 2)

    def widest(self, net: int, least_gbs: int, channel: int, pci_left: Callable[[int], float]) -> list[int]:
        """The GPUs that a device reaches with the most bandwidth and, among equals, over the fewest links; empty if
        that bandwidth is less than ``least_gbs``.

        BadInput if the device reaches no GPU: it is on another host of an NVLink domain that NCCL treats as several
        nodes.
        """
        widest, found = self.widest_of(net)
        if widest < least_gbs:
            return []
        if self.rules.starts == "widest_unused_first":
            return sorted(found, key=lambda gpu: pci_left(gpu) <= 0)
        first = channel % len(self.devices[net].paths[DeviceKind.GPU])
        return [gpu for gpu in found if gpu >= first] + [gpu for gpu in found if gpu < first]

    def widest_of(self, net: int) -> tuple[float, list[int]]:
        """The largest bandwidth to a GPU, in GB/s, and the GPUs that have it over the fewest links. BadInput if the
        device reaches no GPU."""
        if net not in self._widest:
            self._widest[net] = self._reached_best(self.devices[net])
        return self._widest[net]

    def _reached_best(self, device: AdapterDevice) -> tuple[float, list[int]]:
        if DeviceKind.GPU not in device.paths:
            raise NcclFails(
                "this release of libnccl crashes: it treats the hosts of an NVLink domain as several nodes, and "
                "enters "
                f"from NET {device.dev} of another host, which reaches no GPU of this one (ncclTopoSearchRecNet)"
            )
        paths = device.paths[DeviceKind.GPU]
        without_links = self.rules.starts != "widest_reached_in_turn"
        widest, hops = 0.0, MANY_HOPS
        for path in paths:
            if path.gbs > widest:
                widest, hops = path.gbs, path.hops
            elif path.gbs == widest and path.hops < hops and (path.hops > 0 or without_links):
                hops = path.hops
        return widest, [gpu for gpu, path in enumerate(paths) if (path.gbs, path.hops) == (widest, hops)]
