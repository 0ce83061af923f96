"""Checks of how ranks reach each other: channels, network, GPUDirect RDMA, shared memory, NVLS."""

from collections.abc import Iterator, Mapping

from tuner import release
from tuner.base.expressions import expression
from tuner.base.findings import Finding, Severity, in_words
from tuner.base.names import Pattern
from tuner.machine import gpus
from tuner.machine.gpus import FIRST_WITH_MULTICAST, multicast_chips
from tuner.release import Release
from tuner.scenario.logs.imported import Reading, ShownByLog
from tuner.scenario.logs.reader import PrintedGraph
from tuner.scenario.notes import harmful

FEW_CHANNELS = 4  # from this number down, the check asks why there are no more channels
TUNER_CHOOSES = "diagnose.tuner_chooses"
NO_GPUDIRECT = "diagnose.no_gpudirect"
NEVER_NVLS = "Hopper and later with NVSwitches do"  # end of the sentence for GPUs that never have NVLS
# The name of NCCL's own network, which is also part of plugins' names such as FastSocket; and the mark of GPUDirect
# RDMA
SOCKET, GDRDMA = "Socket", "GDRDMA"
SLOWEST_LINK_GBS = 0.7  # slowest real bridge above GPUs: PCIe 3.0 with one lane, in NCCL's count


def spans_nodes(reading: Reading) -> bool | None:
    """Whether the communicator has several nodes, by its lines or its ring; None if nothing shows it."""
    log = reading.log
    if nodes := [each for each in (reading.given.nodes, *(rank.nodes for rank in reading.logs)) if each]:
        return max(nodes) > 1
    if any(way.startswith("NET/") for way in log.transports):
        return True
    if ends := {rank.ring_has_adapters for rank in reading.logs} - {None}:
        return True in ends
    hosts = {rank.thread.host for rank in reading.logs}
    ranks = {rank.rank for rank in reading.logs} - {None}
    every = reading.group is not None and len(ranks) == reading.group.ranks
    return False if every and len(hosts) == 1 else None


def tuner(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that NCCL loaded a tuner plugin, and whether the plugin leaves every choice to NCCL."""
    log = shown.reading.log
    for plugin, file in list(log.tuner_plugins.items())[:1]:
        if log.stepped_back is not None:
            facts = {"plugin": plugin, "line": log.stepped_back}
            yield Finding("requests.tuner_stepped_back", Severity.NOTE, facts)
        else:
            yield Finding(TUNER_CHOOSES, Severity.NOTE, {"plugin": plugin, "file": file or None})


def channels(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that there are few channels, and which variable or path limits their number."""
    reading, variables, channels = shown.reading, shown.variables, shown.channels
    if channels is None or int(channels[0]) > FEW_CHANNELS:
        return
    log, because, weight = reading.log, list[str](), Severity.UNLIKE
    names = {Pattern.Ring.value: "ring", Pattern.BalancedTree.value: "tree"}
    patterns = sorted({each for rank in reading.logs for each in rank.fallback_patterns}, reverse=True)
    if patterns:
        weight = Severity.FAULT
        which = ", ".join(names.get(pattern, f"pattern {pattern}") for pattern in patterns)
        because.append(
            f"the search of channels found no way ({which}), so NCCL takes one channel of 0.1 GB/s through all "
            "GPUs in their order, twice: P2P, shared memory or the PCIe links' speed are not as they should be"
        )
    if limits := [name for name in _LIMITS if variables.get(name, "") not in ("", "-2")]:
        because += [f"{name}={variables[name]}" for name in limits]  # the log has the channels that were requested
    several = spans_nodes(reading) is not False
    ring = next((graph for rank in reading.logs for graph in rank.graphs if graph.pattern == Pattern.Ring), None)
    if ring is not None and Pattern.Ring not in patterns:
        said, of_ring = _of_ring(reading, ring, several)
        because.append(said)
        weight = weight if weight is Severity.FAULT or limits else of_ring
    elif not patterns:
        if any(way.startswith("SHM") for way in log.transports):
            because.append("GPUs reach each other through host memory (SHM), not peer to peer")
        if _sockets(log.transports) or (several and "Socket" in log.networks.values()):
            because.append("the network is IP sockets, where a channel uses a whole adapter")
            weight = weight if weight is Severity.FAULT or spans_nodes(reading) is None else Severity.FAULT
    why = "; ".join(because) or "not shown: NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH prints the graphs that decide it"
    # The number of channels that its adapters carry
    if not because and {rank.local_ranks for rank in reading.logs} == {1}:
        weight = Severity.NOTE
    facts = {"channels": int(channels[0]), "why": why, "nvlink": ring is not None and ring.type_intra.startswith("NV")}
    yield Finding("diagnose.few_channels", weight, facts)


_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")


def _of_ring(reading: Reading, ring: PrintedGraph, several: bool) -> tuple[str, Severity]:
    """A phrase about the ring, and how severe its few channels are: a fault over NVLink, usual over PCIe, and fine if
    they use all the bandwidth that the system has (its ``maxBw``).
    """
    ways = [(ring.bw_intra, f"{ring.type_intra} inside the node", ring.type_intra != "LOC")]
    ways += [(ring.bw_inter, f"{ring.type_inter} to adapters", several)]
    taken = [(float(gbs), way) for gbs, way, is_taken in ways if is_taken]
    said = f"the ring has {ring.channels} of {' and '.join(f'{gbs:g} GB/s over {way}' for gbs, way in taken)}"
    most = [rank.max_gbs for rank in reading.logs if rank.max_gbs is not None]
    if ring.type_intra.startswith("NV"):
        return said, Severity.FAULT
    if most and taken and ring.channels * min(gbs for gbs, _ in taken) >= max(most):
        return f"{said}, all that the system has", Severity.NOTE
    return said, Severity.UNLIKE


def nvls(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that there are no NVLS channels on GPUs that support them, and why."""
    reading, variables, channels, nccl = shown.reading, shown.variables, shown.channels, shown.nccl
    if channels is None or channels[1] != "0":
        return
    names = ", ".join(dict.fromkeys(reading.log.devices.values()))
    per_node = {log.local_ranks for log in reading.logs} - {None}
    able = not names or _has_multicast(names.upper())
    weight = Severity.UNLIKE
    if variables.get("NCCL_NVLS_ENABLE") == "0":
        why = "NCCL_NVLS_ENABLE=0"
    elif not able:
        why, weight = f"{names} has none: {NEVER_NVLS}", Severity.NOTE
    elif _links_before_nvls(reading, nccl or release.load(release.names()[-1])):
        why, weight = f"such NVLinks are of GPUs before Hopper: {NEVER_NVLS}", Severity.NOTE
    elif False in reading.log.multicast:
        why = (
            "the driver says that multicast is not available: fabric manager, its state (nvidia-smi -q, Fabric), or a "
            "virtual machine without all NVSwitches"
        )
    elif any(any(log.linked.values()) for log in reading.logs) and not any(log.nvswitch for log in reading.logs):
        why, weight = f"NVLinks lead from GPU to GPU: {NEVER_NVLS}", Severity.NOTE
    elif per_node == {1}:
        why, weight = "one GPU a node", Severity.NOTE
    elif any(log.system for log in reading.logs) and not any(log.nvswitch for log in reading.logs):
        why, weight = "no NVSwitch in the system that is printed", Severity.NOTE
    elif any(
        graph.pattern == Pattern.NVLS and not graph.channels for rank in reading.logs for graph in rank.graphs
    ) and reading.log.multicast == {True}:
        why, weight = (
            "multicast is available, but the search found no channel of NVLS: a GPU lacks NVLinks to the NVSwitches in "
            "the topology that NCCL sees (nvidia-smi nvlink -s; nccl-tuner diagnose of an NCCL_TOPO_DUMP_FILE)",
            Severity.FAULT,
        )
    elif any(way.startswith("SHM") for way in reading.log.transports):
        why, weight = "GPUs of a node reach each other through host memory (SHM): no NVLink is used", Severity.NOTE
    else:
        why = "not shown: it needs Hopper or later, NVSwitches, and multicast (NCCL_DEBUG_SUBSYS=INIT,NVLS says it)"
    yield Finding("diagnose.no_nvls", weight, {"why": why})


def _has_multicast(names: str) -> bool:
    """Whether GPUs with these names may have multicast; PCIe cards do not, as they have no NVSwitches."""
    return any(chip in names for chip in multicast_chips()) and "PCIE" not in names and " NVL" not in names


def _links_before_nvls(reading: Reading, nccl: Release) -> bool:
    """Whether bandwidths to NVSwitches are printed, and none is a multiple of the NVLink bandwidth of GPUs that have
    NVLS."""
    printed = {log.nvswitch_gbs for log in reading.logs if log.nvswitch_gbs is not None}
    later = [gbs for least, gbs in nccl.search.devices.nvlink_gbs if least >= FIRST_WITH_MULTICAST]
    return bool(printed) and not any(abs(each / gbs - round(each / gbs)) < 0.01 for each in printed for gbs in later)


def network(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that nodes communicate over TCP sockets, although a faster network was there or requested."""
    reading, variables = shown.reading, shown.variables
    log, several = reading.log, spans_nodes(reading)
    sockets, plugin = _sockets(log.transports), next((each for each in log.networks.values() if each != SOCKET), "")
    if not sockets and (several is False or set(log.networks.values()) != {SOCKET}):
        return
    if plugin.endswith(SOCKET):
        yield Finding("diagnose.ip_sockets", Severity.UNLIKE, {"plugin": plugin})
        return
    asked_for = True
    if variables.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        why: dict[str, object] = {"setting": f"NCCL_IB_DISABLE={variables['NCCL_IB_DISABLE']}"}
    elif variables.get("NCCL_NET", "").lower() == "socket":
        why = {"setting": f"NCCL_NET={variables['NCCL_NET']}"}
    else:
        asked_for = False
        if log.network_faults:
            why = {"faults": list(log.network_faults.values())}
        elif "NCCL_IB_HCA" in variables:
            why = {"hca": variables["NCCL_IB_HCA"]}
        else:
            why = {"not_shown": True}
    own = [name for name in log.interfaces if _OF_ONE_HOST.match(name)]
    why |= {"own": own[:3] or None, "unsure": several is None or None}
    severity = Severity.UNLIKE if several is None or asked_for else Severity.FAULT
    yield Finding("diagnose.ip_sockets", severity, why)


# Ends of names of bridges of container engines, virtual machines and pod networks; NCCL only leaves out lo and docker.
_OF_ONE_HOST = expression(r"docker\d|virbr\d|lxcbr\d|podman\d|cni\d|(veth|cali|br-)[0-9a-f]{6}")


def bridges(shown: ShownByLog) -> Iterator[Finding]:
    """Finds PCI bridges that are slower than any current link: virtual machines emulate these, and their speed is not
    real."""
    reading = shown.reading
    slowest = min((rank.bridge_gbs for rank in reading.logs if rank.bridge_gbs is not None), default=SLOWEST_LINK_GBS)
    if slowest < SLOWEST_LINK_GBS:
        yield Finding("diagnose.slow_bridges", Severity.UNLIKE, {"gbs": slowest})


def _sockets(transports: Mapping[str, int]) -> list[str]:
    """The transports in the log that are IP sockets."""
    return [way for way in transports if way.startswith("NET/") and way.partition("/")[2].endswith(SOCKET)]


def adapters(shown: ShownByLog) -> Iterator[Finding]:
    """Finds hosts with different numbers of adapters: some channels then have no peer, or share adapters of the other
    host.
    """
    counts = {host: len(names) for host, names in shown.reading.log.adapters.items() if host}
    if len(set(counts.values())) > 1:
        fewest, most = min(counts, key=lambda host: counts[host]), max(counts, key=lambda host: counts[host])
        facts = {"fewest": fewest, "fewest_count": counts[fewest], "most": most, "most_count": counts[most]}
        yield Finding("diagnose.adapters_differ", Severity.FAULT, facts)


def shared_memory(shown: ShownByLog) -> Iterator[Finding]:
    """Finds GPUs of a node that communicate through host memory instead of NVLink or PCIe peer access."""
    reading, variables = shown.reading, shown.variables
    log = reading.log
    count = sum(number for way, number in log.transports.items() if way.startswith("SHM"))
    if not count:
        return
    names = " ".join(log.devices.values()).upper()
    severity, why = Severity.UNLIKE, dict[str, object]()
    if variables.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        why["setting"] = f"NCCL_P2P_DISABLE={variables['NCCL_P2P_DISABLE']}"
    elif "NCCL_P2P_LEVEL" in variables:
        why["setting"] = f"NCCL_P2P_LEVEL={variables['NCCL_P2P_LEVEL']}"
    elif "GEFORCE" in names and "RTX 30" not in names:
        severity, why["geforce"] = Severity.NOTE, True
    elif log.p2p_support is False:
        why["no_support"] = True
    else:
        why["unsure"] = True
    yield Finding("diagnose.shared_memory", severity, {"count": count, **why})


def gpudirect(shown: ShownByLog) -> Iterator[Finding]:
    """Finds adapters that cannot access GPU memory (no GPUDirect RDMA), and why."""
    reading, variables = shown.reading, shown.variables
    sockets = _sockets(reading.log.transports)
    ways = {
        way: count for way, count in reading.log.transports.items() if way.startswith("NET/") and way not in sockets
    }
    direct = sum(count for way, count in ways.items() if GDRDMA in way)
    refused = {name: why for name, why in reading.log.gpudirect.items() if why is not None}
    if (ways and direct == sum(ways.values())) or not (ways or refused) or sockets:
        return
    if not ways and (len(refused) < len(reading.log.gpudirect) or SOCKET in reading.log.networks.values()):
        return
    level = variables.get("NCCL_NET_GDR_LEVEL")
    by_host = {host: sides for host, sides in reading.log.direct_of_hosts.items() if host}
    without = sorted(host for host, sides in by_host.items() if True not in sides)
    if without and len(without) < len(by_host) and _without_gpudirect(reading) is None:
        facts = {"hosts": without, "of": len(by_host), "level": level}
        yield Finding("diagnose.gpudirect_of_hosts", Severity.FAULT, facts)
        return
    if direct:
        yield Finding("diagnose.gpudirect_in_part", Severity.UNLIKE, {"direct": direct, "of": sum(ways.values())})
        return
    names = {name for used in reading.log.adapters.values() for name in used}
    severity, why = Severity.UNLIKE, dict[str, object]()
    if model := _without_gpudirect(reading):
        severity, why["model"] = Severity.NOTE, model
    elif level is not None:
        why["level"] = level
    elif reading.log.gpudirect_off is not None:
        why["plugin_says"] = reading.log.gpudirect_off
    elif (far := reading.log.far_adapters) and not refused:
        severity, why["far"] = Severity.FAULT, far
    elif names and all(name.startswith("hfi1") for name in names):
        severity, why["omni_path"] = Severity.FAULT, True
    elif reading.log.dma_buf:
        why["dma_buf"] = True
    else:
        severity, why["no_module"] = Severity.FAULT, bool(refused) or None
        why["no_module_or_far"] = not refused or None
    yield Finding(NO_GPUDIRECT, severity, why)


def _without_gpudirect(reading: Reading) -> str | None:
    """The GPUs' name if their model never has GPUDirect RDMA, such as GeForce; else None."""
    for name in dict.fromkeys(reading.log.devices.values()):
        models = [gpus.load(each) for each in gpus.names() if gpus.is_product(name, each)]
        if "GEFORCE" in name.upper() or (models and not any(model.gpudirect_rdma for model in models)):
            return "GeForce" if "GEFORCE" in name.upper() else name
    return None


def harmful_settings(shown: ShownByLog) -> Iterator[Finding]:
    """Finds variables that do harm with the log's number of nodes."""
    nodes = next((rank.nodes for rank in shown.reading.logs if rank.nodes), None)
    yield from (in_words(Severity.FAULT, each) for each in harmful(shown.variables, nodes))


def forced(shown: ShownByLog) -> Iterator[Finding]:
    """Finds algorithms and protocols that variables force, and those that a network plugin sets by itself."""
    plugins = shown.reading.log.plugin_settings
    named = {name: shown.variables[name] for name in ("NCCL_ALGO", "NCCL_PROTO") if shown.variables.get(name)}
    own = {name: value for name, value in named.items() if plugins.get(name, "").lower() != value.lower()}
    if own:
        settings = [f"{name}={value}" for name, value in own.items()]
        yield Finding("diagnose.forced", Severity.UNLIKE, {"settings": settings})
    if its := [f"{name}={value}" for name, value in named.items() if name not in own]:
        yield Finding("diagnose.set_by_plugin", Severity.NOTE, {"settings": its})
