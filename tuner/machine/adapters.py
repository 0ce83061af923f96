"""Finds which adapters of a topology NCCL uses, and whether NCCL's own InfiniBand network merges them.

The module also has the records that say how GPUs of a node reach each other and the adapters, and how similar a machine
of the catalogue is to a node.

Source: ncclIbInit, ncclIbGetPciPath, ncclIbMakeVDevice, src/transport/net_ib.cc; parseStringList, matchIfList,
src/misc/utils.cc, v2.28.9-1.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Protocol, TypeAlias

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy
from tuner.base.expressions import expression
from tuner.base.numerics import parse_long

SELECT = "NCCL_IB_HCA"
OWN_NETWORK = "IB"  # the network's name in NCCL_NET
SOCKETS = "Socket"  # the name of NCCL's other own network, over IP interfaces
BUILT_IN = (OWN_NETWORK, SOCKETS)
# Values of NCCL_NET_PLUGIN for which there is no file, so that NCCL uses its own networks: Oracle's settings of NCCL
# have "sys" (oracle-quickstart/oci-hpc-oke). Source: openPluginLib, src/plugin/plugin_open.cc, v2.28.9-1.
NO_PLUGIN = ("none", "sys")
ANYONES_FILE = "libnccl-net.so"  # the file name that NCCL itself looks for, which does not say whose plugin it is
# The networks of adapters whose names begin in a certain way: AWS EFA and HPE Slingshot have plugins; IP interfaces
# belong to sockets.
OF_OTHERS = ("rdmap", "efa", "cxi", "eth", "en", "bond")
MOST_ENTRIES = 32  # the most entries of NCCL_IB_HCA: MAX_IB_DEVS
ANY_PORT = -1
NUMBER = expression(r"\s*[+-]?\d+", re.ASCII)


class Adapter(Protocol):
    """The attributes that a network device must have, like :class:`tuner.machine.topology.Net`."""

    @property
    def name(self) -> str:
        """The adapter's name as NCCL prints it, such as mlx5_0."""

    @property
    def port(self) -> int:
        """The port as in the topology, which numbers the ports of one PCI device consecutively."""

    @property
    def busid(self) -> str | None:
        """The bus id of the PCI device; None if the adapter is not a PCI device."""

    @property
    def gpu_direct(self) -> bool:
        """Whether the adapter can read and write the memory of GPUs."""


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter of which only the name, the port and the bus id are known."""

    name: str
    port: int
    busid: str | None
    gpu_direct: bool = True


NameList: TypeAlias = tuple[tuple[str, int], ...]  # names of adapters or their beginnings, with ports or ANY_PORT


def name_list(text: str, most: int) -> NameList:
    """Reads a list of adapters in the form ``name,name:port``. Entries beyond ``most``, and entries without a name, are
    ignored."""
    pairs = [entry.partition(":") for entry in text.split(",")]
    entries = [(name, _port(port) if colon else ANY_PORT) for name, colon, port in pairs if name]
    return tuple(entries[:most])


def is_listed(wanted: NameList, name: str, port: int | None, exact: bool) -> bool:
    """Whether an entry of the list equals the name or, unless ``exact``, is the beginning of the name; an empty list
    matches every name.

    Without a ``port``, the ports in the list are ignored.
    """
    return not wanted or any(
        (name == entry if exact else name.startswith(entry)) and (port is None or of_port in (ANY_PORT, port))
        for entry, of_port in wanted
    )


def used(adapters: Sequence[Adapter], variables: Mapping[str, str]) -> list[int]:
    """The indices in ``adapters`` of those that NCCL uses: all of them, or those that NCCL_IB_HCA selects.

    ``adapters`` are in the order of ``dev``. BadInput if no adapter is left, because NCCL would then use sockets.
    """
    text = variables.get(SELECT, "")
    if not text or not _own(adapters, variables):
        return list(range(len(adapters)))
    excludes = text.startswith("^")
    exact = text[excludes:].startswith("=")
    wanted = name_list(text[excludes + exact :], MOST_ENTRIES)
    if any(entry.count(":") > 1 for entry in text.split(",")):
        raise BadInput(
            f"{SELECT}={text!r}: rails and planes are not emulated: give NAME or NAME:PORT, several with commas "
            "between them"
        )
    ports = _ports(adapters)
    numbers = [
        number
        for number, adapter in enumerate(adapters)
        if _is_wanted(wanted, adapter.name, ports[number], exact) != excludes
    ]
    if adapters and not numbers:
        names = ", ".join(dict.fromkeys(adapter.name for adapter in adapters))
        raise BadInput(f"{SELECT}={text!r} leaves no adapter; the topology has {names}").cured(
            Remedy("env", None, SELECT)
        )
    return numbers


def _is_wanted(wanted: NameList, name: str, port: int, exact: bool) -> bool:
    """Whether a list selects an adapter. A merged adapter is selected if the list names all adapters that it consists
    of, whatever their ports."""
    parts = name.split("+")
    return all(is_listed(wanted, part, None if len(parts) > 1 else port, exact) for part in parts)


def mergeable(adapters: Sequence[Adapter], variables: Mapping[str, str]) -> bool:
    """Whether the adapters' network is one that merges adapters if NCCL requests it: NCCL's own InfiniBand network."""
    return _own(adapters, variables)


def network_of(adapters: Sequence[Adapter]) -> str | None:
    """The network to which the adapters belong: one of NCCL's own networks, or a plugin's network by its name in
    ``tables/networks.toml``.

    None if there are no adapters, or if they belong to several networks or to an unknown one. Sockets have port 0 and
    do not access GPU memory (ncclNetSocketGetProperties, src/transport/net_socket.cc).
    """
    if adapters and all(_is_socket(each) for each in adapters):
        return SOCKETS
    if _own(adapters, {}):
        return OWN_NETWORK
    of_plugins = (each for each in plugin_networks() if each.adapters)
    return next((each.name for each in of_plugins if adapters and _all_begin(adapters, each.adapters)), None)


def offers_gin(adapters: Sequence[Adapter]) -> bool | None:
    """Whether GPUs can start network transfers over the adapters by themselves (GIN, of any type); None if this is not
    known.

    Sockets do not support GIN. NCCL's own network over InfiniBand and RoCE supports it if the adapters reach GPU memory
    (ncclGinIbGdaki and ncclGinIbProxy, src/transport/net_ib/gin.cc, v2.29.2-1; ncclGinIbGdrSupport, v2.30.7-1). For
    plugins' networks, ``tables/networks.toml`` says it.
    """
    network = network_of(adapters)
    if network == SOCKETS:
        return False
    if network == OWN_NETWORK:
        direct = {adapter.gpu_direct for adapter in adapters}
        return direct.pop() if len(direct) == 1 else None
    none = (each.without_gin for each in plugin_networks() if each.name == network and each.without_gin)
    return False if any(_all_begin(adapters, beginnings) for beginnings in none) else None


def _all_begin(adapters: Sequence[Adapter], beginnings: tuple[str, ...]) -> bool:
    return all(adapter.name.startswith(beginnings) for adapter in adapters)


@dataclass(frozen=True, slots=True)
class PluginNetwork:
    """The network of a plugin, from ``tables/networks.toml``: its name in that file, and its names in NCCL's variables.

    ``adapters`` are prefixes of the names of its adapters; empty if it drives the adapters of NCCL's own network.
    ``folder`` is part of the path of its files. ``known`` is true if the plugin tells NCCL the same about its adapters
    as the topologies of the catalogue do; if it is false, nobody has compared the two. ``own`` are those of the
    plugin's own variables that do not change what NCCL chooses. ``without_gin`` are prefixes of the names of adapters
    over which GPUs cannot start transfers themselves.
    """

    name: str
    adapters: tuple[str, ...]
    nets: tuple[str, ...]
    plugins: tuple[str, ...]
    folder: str | None
    known: bool
    own: frozenset[str]
    without_gin: tuple[str, ...]

    @property
    def drives(self) -> str:
        """The network whose adapters the plugin drives, named as by :func:`network_of`."""
        return self.name if self.adapters else OWN_NETWORK


@cache
def plugin_networks() -> tuple[PluginNetwork, ...]:
    """The plugins' networks that ``tables/networks.toml`` names."""
    table = tables.toml(tables.folder() / "networks.toml")
    return tuple(
        PluginNetwork(
            name,
            tuple(row["adapters"]),
            tuple(row["nets"]),
            tuple(row["plugins"]),
            row.get("folder"),
            row["known"],
            frozenset(row.get("own", ())),
            tuple(row.get("without_gin", ())),
        )
        for name, row in table.items()
    )


def plugin_network(network: str | None, variables: Mapping[str, str]) -> PluginNetwork | None:
    """The plugin's network that NCCL_NET or NCCL_NET_PLUGIN names, if it drives the adapters of ``network``; else
    None."""
    net, plugin = variables.get("NCCL_NET", ""), variables.get("NCCL_NET_PLUGIN", "")
    named = [_of_net(net)] if net else _of_file(plugin)
    return next((each for each in named if each is not None and each.drives == network), None)


def refuse_contradiction(network: str | None, variables: Mapping[str, str]) -> None:
    """Raises BadInput if a variable asks for a network that another variable forbids, or to which the adapters do not
    belong.

    ``network`` is the result of :func:`network_of`. Networks without an entry in ``tables/networks.toml`` are not
    checked.
    """
    net, plugin = variables.get("NCCL_NET", ""), variables.get("NCCL_NET_PLUGIN", "")
    of_net = _of_net(net)
    of_file = _of_file(plugin, anyones=False)
    if net.upper() == OWN_NETWORK and parse_long(variables.get("NCCL_IB_DISABLE", "")) != 0:
        raise _contradiction("NCCL_IB_DISABLE", f"NCCL_NET={net} asks for the network that NCCL_IB_DISABLE forbids")
    if of_net is not None and plugin in NO_PLUGIN:
        raise _contradiction(
            "NCCL_NET_PLUGIN", f"NCCL_NET={net!r} is a plugin's, and NCCL_NET_PLUGIN={plugin} loads none"
        )
    if of_net is not None and of_file and of_net not in of_file:
        owner = of_file[0].name
        raise _contradiction(
            "NCCL_NET_PLUGIN", f"NCCL_NET={net!r} is {of_net.name}'s, NCCL_NET_PLUGIN={plugin!r} {owner}'s"
        )
    if net.upper() == OWN_NETWORK and network in {each.name for each in plugin_networks()}:
        raise _contradiction(
            "NCCL_NET",
            f"NCCL_NET={net} drives adapters of InfiniBand and RoCE; here the adapters are {network}'s, "
            f"{_said(network)}",
        )
    wanted = [of_net] if of_net is not None else [] if net else of_file
    if network is not None and wanted and all(each.drives != network for each in wanted):
        name, value = ("NCCL_NET", net) if net else ("NCCL_NET_PLUGIN", plugin)
        raise _contradiction(
            name,
            f"{name}={value!r} is {wanted[0].name}'s, whose adapters are {_said(wanted[0].drives)}; here they are "
            f"{_said(network)}",
        )


def _contradiction(remedy: str, text: str) -> BadInput:
    return BadInput(f"{text}; valid: without {remedy}").cured(Remedy("env", None, remedy))


def _said(network: str) -> str:
    """Words for the adapters of a network that :func:`network_of` names."""
    words = {OWN_NETWORK: "InfiniBand's and RoCE's", SOCKETS: "IP interfaces"}
    names = (f"named {', '.join(each.adapters)}..." for each in plugin_networks() if each.name == network)
    return words.get(network) or next(names, network)


def _of_net(net: str) -> PluginNetwork | None:
    return next((each for each in plugin_networks() if net.lower() in {one.lower() for one in each.nets}), None)


def _of_file(plugin: str, *, anyones: bool = True) -> list[PluginNetwork]:
    """The networks whose plugin a file or name may mean. A path in the folder of one plugin means the network of that
    plugin.

    ``anyones``: also consider the file name for which NCCL itself looks, which any plugin may have.
    """
    text = plugin.lower()
    file = text.rpartition("/")[2]
    in_folder = [each for each in plugin_networks() if each.folder is not None and each.folder in text]
    by_name = [each for each in plugin_networks() if file in each.plugins and (anyones or file != ANYONES_FILE)]
    return in_folder or by_name


def over_sockets(adapters: Sequence[Adapter], variables: Mapping[str, str]) -> bool:
    """Whether variables make NCCL use IP although the adapters belong to its own InfiniBand network.

    False if the variables name a network that does not exist, or the network of a plugin.
    """
    if not _own(adapters, {}) or plugin_network(OWN_NETWORK, variables) is not None:
        return False
    net = variables.get("NCCL_NET", "").upper()
    disabled = parse_long(variables.get("NCCL_IB_DISABLE", "")) != 0
    return net == SOCKETS.upper() or (disabled and not net)


def selecting(network: str | None, variables: Mapping[str, str], nodes: int) -> set[str]:
    """The names of those variables whose choice of a network agrees with the network of the adapters.

    ``network`` is the result of :func:`network_of`. On one node NCCL drops all adapters before it searches
    (ncclTopoTrimSystem, src/graph/topo.cc), so any of NCCL's own networks is accepted there. An empty NCCL_NET_PLUGIN
    names no plugin. If the adapters belong to a plugin's network, NCCL_IB_DISABLE agrees with any value, as it only
    turns off NCCL's own.
    """
    of_plugin = plugin_network(network, variables)
    of_others = network in {each.name for each in plugin_networks()}
    among = BUILT_IN if nodes == 1 else (network,) if network and not of_others else ()
    named = {each.upper() for each in among}
    plugin, disabled = variables.get("NCCL_NET_PLUGIN"), variables.get("NCCL_IB_DISABLE")
    by_name = variables.get("NCCL_NET", "").upper() in named  # no plugin's network has the name of one of NCCL's own
    agreed = {
        "NCCL_NET": by_name or of_plugin is not None,
        "NCCL_NET_PLUGIN": plugin == "" or by_name or (plugin in NO_PLUGIN and bool(among)) or of_plugin is not None,
        "NCCL_IB_DISABLE": disabled == "0" or SOCKETS in among or of_others,
    }
    return {name for name in variables if agreed.get(name, False)}


def _is_socket(adapter: Adapter) -> bool:
    return adapter.port == 0 and not adapter.gpu_direct


def _own(adapters: Sequence[Adapter], variables: Mapping[str, str]) -> bool:
    """Whether the adapters belong to NCCL's own InfiniBand network, which only supports PCI devices."""
    named = variables.get("NCCL_NET", OWN_NETWORK).upper() == OWN_NETWORK
    fit = (
        adapter.busid is not None and not adapter.name.startswith(OF_OTHERS) and not _is_socket(adapter)
        for adapter in adapters
    )
    return named and len(adapters) > 0 and all(fit)


def _ports(adapters: Sequence[Adapter]) -> list[int]:
    """The port of each adapter in its driver's count: NCCL adds one for each earlier port of the same PCI device."""
    before: dict[str, int] = {}
    ports = []
    for adapter in adapters:
        earlier = before.get(adapter.busid, 0) if adapter.busid is not None else 0
        if adapter.busid is not None:
            before[adapter.busid] = earlier + 1
        ports.append(adapter.port - earlier if adapter.port > earlier else adapter.port)
    return ports


def _port(text: str) -> int:
    number = NUMBER.match(text)
    return int(number[0]) if number else 0


@dataclass(frozen=True, slots=True)
class AdapterAccess:
    """A network device as seen from a GPU: the type of the path, and whether it reads and writes GPU memory (GPUDirect
    RDMA).
    """

    id: int  # the number that graphs give the device
    path: str
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """How the GPUs of one kind of node reach each other and the adapters.

    Devices that the node's ranks do not use are left out.

    ``local_channels`` is the smallest number of channels that NCCL uses between two of the node's GPUs: two for each
    NVLink between them, or two if they have no NVLinks; None for a single GPU. ``adapters`` has, for each GPU, the
    number of network devices that NCCL counts, and their total bandwidth.
    """

    all_nvlink: bool
    local_channels: int | None
    adapters: tuple[tuple[int, float], ...]  # for each GPU: number of devices, and their bandwidth in GB/s
    all_peer_to_peer: bool = False  # every GPU reaches every other one directly, not over a GPU in between
    cuda_joins_all: bool = False  # CUDA allows peer-to-peer between all GPUs, at any distance
    # Pairs of GPUs, by local rank, that only the network joins
    joined_by_network: frozenset[tuple[int, int]] = frozenset()
    all_connected_by_memory: bool = False  # peer-to-peer joins all GPUs, and NCCL does not prefer the network
    access: tuple[tuple[AdapterAccess, ...], ...] = ()  # for each GPU, how it reaches each adapter; empty on one node

    def adapter_of(self, gpu: int, adapter: int) -> AdapterAccess:
        """How a GPU of the node reaches an adapter; ``adapter`` is the number that the adapter has in graphs."""
        return next(each for each in self.access[gpu] if each.id == adapter)


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """One fact in which a machine is compared with a node, as a text.

    ``agrees`` is None if the fact is not known.

    ``identifies``: few other machines agree in this fact. ``decides``: NCCL may choose differently if this fact
    differs.
    """

    says: str
    agrees: bool | None
    identifies: bool = False
    decides: bool = True


@dataclass(frozen=True, slots=True)
class Nearness:
    """How similar a machine of the catalogue is to a node: each compared fact as a text.

    The facts in ``others`` differ, too, but do not affect NCCL's choices.
    """

    machine: str
    agrees: tuple[str, ...]
    differs: tuple[str, ...]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    identified: bool

    @property
    def rank(self) -> tuple[int, bool, int]:
        """A sort key; the most similar machine has the smallest."""
        return len(self.differs), not self.identified, -len(self.agrees)

    @property
    def in_words(self) -> str:
        """The machine's name and the facts, in one line."""
        differs = f"; differs: {', '.join(self.differs)}" if self.differs else ""
        return f"{self.machine} (agrees: {', '.join(self.agrees) or 'nothing'}{differs})"


def nearness(machine: str, facts: Iterable[ComparedFact], unknown: Iterable[str] = ()) -> Nearness:
    """Summarises the facts in which a machine was compared; ``unknown`` names facts that could not be compared."""
    known = list(facts)
    return Nearness(
        machine,
        tuple(fact.says for fact in known if fact.agrees),
        tuple(fact.says for fact in known if fact.agrees is False and fact.decides),
        tuple(fact.says for fact in known if fact.agrees is False and not fact.decides),
        (*(fact.says for fact in known if fact.agrees is None), *unknown),
        any(fact.agrees and fact.identifies for fact in known),
    )
