"""What a log shows of how ranks reach each other, and what it answers of the questions that people ask of logs.

Each answer names the lines that it rests on, or says which would tell.
"""

from collections.abc import Iterator, Mapping

from tuner.base.names import Pattern
from tuner.scenario.logs.imported import LogEvidence, Reading
from tuner.scenario.notes import harmful

FEW_CHANNELS = 4  # so many ask why there are no more
MOST_WARNINGS = 6
NO_NVLS = "no NVLS, because"  # how that answer begins
NEVER_NVLS = "Hopper and later with NVSwitches do"  # how it ends where the GPUs never have it
SOCKET, GDRDMA = "NET/Socket", "GDRDMA"
MULTICAST_CHIPS = ("H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300")


def evidence(reading: Reading, variables: Mapping[str, str], channels: tuple[str, str | None] | None) -> LogEvidence:
    """The evidence of the communicator that is read; ``channels`` are NCCL's of collectives and of NVLS."""
    log = reading.log
    plugin = next(iter(log.tuner_plugins), None)
    sends = {rank: tuple(sorted(nets)) for rank, nets in sorted(log.adapters_of_ranks.items())}
    answers = [
        *_of_tuner(plugin, log.tuner_plugins.get(plugin or "", "")),
        *_of_channels(reading, variables, channels),
        *_of_nvls(reading, variables, channels),
        *_of_network(reading, variables),
        *_of_shared_memory(reading, variables),
        *_of_gpudirect(reading, variables),
        *harmful(variables, next((rank.nodes for rank in reading.logs if rank.nodes), None)),
        *_of_warnings(reading),
    ]
    rings = tuple(log.rings[channel] for channel in sorted(log.rings))
    return LogEvidence(
        plugin,
        dict(log.transports),
        tuple(log.warnings),
        rings,
        log.trees,
        tuple(log.nvls_heads[head] for head in sorted(log.nvls_heads)),
        sends,
        tuple(answers),
        log.aws_release,
        log.tuner_product or log.instance,
    )


def _of_tuner(plugin: str | None, file: str) -> Iterator[str]:
    if plugin is not None:
        where = f" ({file})" if file else ""
        yield (
            f"a tuner plugin chooses: {plugin}{where}; what is answered here is NCCL's own choice, "
            "which may not be what ran"
        )


def _of_channels(
    reading: Reading, variables: Mapping[str, str], channels: tuple[str, str | None] | None
) -> Iterator[str]:
    if channels is None or int(channels[0]) > FEW_CHANNELS:
        return
    log, because = reading.log, list[str]()
    names = {Pattern.Ring.value: "ring", Pattern.BalancedTree.value: "tree"}
    patterns = sorted({each for rank in reading.logs for each in rank.fallback_patterns}, reverse=True)
    if patterns:
        which = ", ".join(names.get(pattern, f"pattern {pattern}") for pattern in patterns)
        because.append(
            f"the search of channels found no way ({which}), so there is one of 0.1 GB/s through all GPUs in their "
            "order, which NCCL doubles: P2P, shared memory or the PCIe links' speed are not as they should be"
        )
    limits = [name for name in _LIMITS if variables.get(name, "") not in ("", "-2")]
    because += [f"{name}={variables[name]}" for name in limits]
    ring = next((graph for rank in reading.logs for graph in rank.graphs if graph.pattern == Pattern.Ring), None)
    if ring is not None and Pattern.Ring not in patterns:
        inside, between = float(ring.bw_intra), float(ring.bw_inter)
        because.append(
            f"the ring has {ring.channels} of {inside:g} GB/s over {ring.type_intra} inside the node and {between:g} "
            f"GB/s over {ring.type_inter} to adapters"
        )
    elif not patterns:
        if any(way.startswith("SHM") for way in log.transports):
            because.append("GPUs reach each other over the CPU's memory (SHM), not peer to peer")
        several = any(rank.nodes != 1 for rank in reading.logs)
        if SOCKET in log.transports or (several and "Socket" in log.networks.values()):
            because.append("the network is IP sockets, and a channel takes what an adapter has")
    why = "; ".join(because) or "not shown: NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH prints the graphs that decide it"
    yield f"{channels[0]} channels, because: {why}"


_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")


def _of_nvls(reading: Reading, variables: Mapping[str, str], channels: tuple[str, str | None] | None) -> Iterator[str]:
    if channels is None or channels[1] != "0":
        return
    names = ", ".join(dict.fromkeys(reading.log.devices.values()))
    per_node = {log.local_ranks for log in reading.logs} - {None}
    able = any(chip in names.upper() for chip in MULTICAST_CHIPS) or not names
    if variables.get("NCCL_NVLS_ENABLE") == "0":
        why = "NCCL_NVLS_ENABLE=0"
    elif False in reading.log.multicast:
        why = (
            "the driver says that multicast is not available: fabric manager, its state (nvidia-smi -q, Fabric), or a "
            "virtual machine without all NVSwitches"
        )
    elif not able:
        why = f"{names} has none: {NEVER_NVLS}"
    elif per_node == {1}:
        why = "one GPU a node"
    elif any(log.system for log in reading.logs) and not any(log.nvswitch for log in reading.logs):
        why = "no NVSwitch in the system that is printed"
    elif any(way.startswith("SHM") for way in reading.log.transports):
        why = "GPUs of a node reach each other over the CPU's memory (SHM): no NVLink is used"
    else:
        why = "not shown: it wants Hopper or later, NVSwitches, and multicast (NCCL_DEBUG_SUBSYS=INIT,NVLS says it)"
    yield f"{NO_NVLS}: {why}"


def _of_network(reading: Reading, variables: Mapping[str, str]) -> Iterator[str]:
    log = reading.log
    several = any(rank.nodes != 1 for rank in reading.logs)
    if not (SOCKET in log.transports or (several and set(log.networks.values()) == {"Socket"})):
        return
    if variables.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        why = f"NCCL_IB_DISABLE={variables['NCCL_IB_DISABLE']}"
    elif variables.get("NCCL_NET", "").lower() == "socket":
        why = f"NCCL_NET={variables['NCCL_NET']}"
    elif log.network_faults:
        why = "; ".join(log.network_faults.values())
    elif "NCCL_IB_HCA" in variables:
        why = f"perhaps NCCL_IB_HCA={variables['NCCL_IB_HCA']} names no adapter that is up; ibdev2netdev shows them"
    else:
        why = (
            "not shown: lines of NET/IB say what it found (NCCL_DEBUG_SUBSYS=INIT,NET); ibv_devinfo shows the adapters"
        )
    yield f"IP sockets, not InfiniBand or RoCE, because: {why}"


def _of_shared_memory(reading: Reading, variables: Mapping[str, str]) -> Iterator[str]:
    log = reading.log
    count = sum(number for way, number in log.transports.items() if way.startswith("SHM"))
    if not count:
        return
    names = " ".join(log.devices.values()).upper()
    if variables.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        why = f"NCCL_P2P_DISABLE={variables['NCCL_P2P_DISABLE']}"
    elif "NCCL_P2P_LEVEL" in variables:
        why = f"NCCL_P2P_LEVEL={variables['NCCL_P2P_LEVEL']}"
    elif "GEFORCE" in names and "RTX 30" not in names:
        why = "the driver gives GeForce GPUs of these generations no peer-to-peer"
    elif log.p2p_support is False:
        why = (
            "peer-to-peer does not work between GPUs of the node (intraNodeP2pSupport 0): GPUs that cannot, "
            "nvidia-smi topo -p2p r; ACS or an IOMMU; a container without /dev/shm or other GPUs"
        )
    else:
        why = (
            "GPUs of a node are on several sockets, or peer-to-peer does not work (nvidia-smi topo -p2p r; ACS, IOMMU)"
        )
    yield f"shared memory (SHM) on {count} connection{'s' * (count != 1)}, not peer to peer, because: {why}"


def _of_gpudirect(reading: Reading, variables: Mapping[str, str]) -> Iterator[str]:
    ways = {way for way in reading.log.transports if way.startswith("NET/") and not way.startswith(SOCKET)}
    if not ways or any(GDRDMA in way for way in ways):
        return
    level = variables.get("NCCL_NET_GDR_LEVEL")
    why = (
        f"NCCL_NET_GDR_LEVEL={level}"
        if level is not None
        else "nvidia-peermem is not loaded (lsmod) and there is no DMA-BUF, or no adapter is near its GPU"
    )
    yield f"no GPUDirect RDMA: data goes over the CPU's memory on the way to the network, because: {why}"


def _of_warnings(reading: Reading) -> Iterator[str]:
    shown = list(reading.log.warnings)[:MOST_WARNINGS]
    for text in shown:
        yield f"NCCL warned: {text}"
    if more := len(reading.log.warnings) - len(shown):
        yield f"NCCL warned of {more} other things"
