"""Checks whether NCCL did what was requested: compares variables and a program's configuration with the log.

These checks report settings that NCCL did not follow, settings that disabled more than their name says, and GPU fabrics
in a bad state. What a setting costs that NCCL followed is reported by other checks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from tuner.base.errors import BadInput
from tuner.base.findings import Finding, Severity
from tuner.emulator.rules.init import check_nvls_heads
from tuner.scenario.logs.imported import ShownByLog
from tuner.scenario.logs.reader import RankLog

FABRIC_STATES = ("not supported", "not started", "in progress", "completed")  # nvmlGpuFabricState_t
NO_FABRIC = ("0.0", "0")  # cluster and clique of a GPU that is in no fabric
# nvmlGpuFabricInfoV_t.healthMask, nvml.h: each field has two bits; 1 means true, 2 means false
HEALTH = ("degraded bandwidth", "route recovery", "an unhealthy route", "recovery of access timeouts")
TRUE = 1
MISCONFIGURED_AT, RIGHT = 8, (0, 1)  # a field of four bits: not supported, no problem, and kinds of wrong configuration
MISCONFIGURED = {2: "another system GUID", 3: "another chassis", 4: "no partition", 5: "too few NVLinks"}
NO_PLUGIN = ("none", "")
PLUGINS = {"NET": "NCCL_NET_PLUGIN", "TUNER": "NCCL_TUNER_PLUGIN", "PROFILER": "NCCL_PROFILER_PLUGIN"}
MOST_NAMED = 4
NVLS_IF_POSSIBLE = "NCCL_NVLS_ENABLE=2"  # the default, with which nothing is requested


def _line(shown: ShownByLog, *names: str) -> int | None:
    """The number of the first line that mentions any of these settings; None if no line does."""
    lines = shown.reading.log.setting_lines
    return min((lines[name] for name in names if name in lines), default=None)


def _is_on(value: str | None) -> bool:
    return value is not None and value.strip() not in ("", "0", "-2")


def fabric(shown: ShownByLog) -> Iterator[Finding]:
    """Finds GPUs that have not registered with their NVLink fabric, fabrics that are not healthy, and fabrics that span
    hosts but are not used between them."""
    ranks = [each for each in shown.reading.logs if each.fabric is not None]
    unregistered = [each for each in ranks if each.fabric_state in (1, 2)]
    if unregistered:
        facts = _of_ranks(unregistered) | {"state": FABRIC_STATES[unregistered[0].fabric_state or 0]}
        yield Finding("requests.fabric_state", Severity.FAULT, facts)
    by_fault: dict[str, list[RankLog]] = defaultdict(list)
    for each in ranks:
        for fault in _ill(each.fabric_health or 0):
            by_fault[fault].append(each)
    for fault, ill in by_fault.items():
        facts = _of_ranks(ill) | {"what": fault, "mask": f"0x{ill[0].fabric_health:x}"}
        yield Finding("requests.fabric_health", Severity.FAULT, facts)
    yield from _unused(shown, [each for each in ranks if each.fabric_state in (3, None)])


def _ill(mask: int) -> list[str]:
    """Phrases about what is wrong according to a health mask."""
    found = [what for at, what in enumerate(HEALTH) if mask >> 2 * at & 3 == TRUE]
    wrong = mask >> MISCONFIGURED_AT & 15
    if wrong not in RIGHT:
        found.append(f"a wrong configuration ({MISCONFIGURED.get(wrong, wrong)})")
    return found


def _of_ranks(ranks: Sequence[RankLog]) -> dict[str, object]:
    hosts = list(dict.fromkeys(each.thread.host for each in ranks))
    return {
        "ranks": sorted({each.rank for each in ranks if each.rank is not None}),
        "hosts": hosts[:MOST_NAMED],
        "more_hosts": len(hosts) - MOST_NAMED if len(hosts) > MOST_NAMED else None,
        "line": ranks[0].fabric_line,
    }


def _unused(shown: ShownByLog, ranks: Sequence[RankLog]) -> Iterator[Finding]:
    """Finds that one fabric spans several hosts, but NVLink between hosts is off."""
    hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in ranks:
        if each.fabric is not None and each.fabric[0] != NO_FABRIC[0]:
            hosts[each.fabric].add(each.thread.host)
    several = max(hosts, key=lambda name: len(hosts[name]), default=None)
    nodes = max((each.nodes or 0 for each in shown.reading.logs), default=0)
    if several is None or len(hosts[several]) < 2 or nodes < 2 or any(each.mnnvl for each in shown.reading.logs):
        return
    facts: dict[str, object] = {"hosts": len(hosts[several]), "fabric_line": ranks[0].fabric_line}
    for name in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE"):
        if shown.variables.get(name) == "0":
            # a user who turns NVLink between hosts off knows it; a user who turns an allocator off may not know what it
            # disables
            obeyed = name == "NCCL_MNNVL_ENABLE"
            facts |= {"setting": f"{name}=0", "line": _line(shown, name)}
            severity = Severity.UNLIKE if obeyed else Severity.FAULT
            yield Finding("requests.mnnvl_switched_off", severity, facts)
            return
    yield Finding("requests.mnnvl_unused", Severity.FAULT, facts)


def collnet(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that CollNet was requested, but has no channel."""
    asked = _is_on(shown.variables.get("NCCL_COLLNET_ENABLE"))
    algorithms = shown.variables.get("NCCL_ALGO", "").upper()
    forced = "COLLNET" in algorithms and "^" not in algorithms
    channels = [each for each in shown.reading.logs if each.collnet_channels is not None]
    if (asked or forced) and channels and not any(each.collnet_channels for each in channels):
        name = "NCCL_COLLNET_ENABLE" if asked else "NCCL_ALGO"
        one = {each.nodes for each in shown.reading.logs if each.nodes} == {1}
        facts = {
            "setting": f"{name}={shown.variables[name]}",
            "line": _line(shown, name, "Collnet enable"),
            "channels_line": channels[0].channels_line,
            "one_node": one or None,
        }
        yield Finding("requests.collnet", Severity.FAULT, facts)


def nvls(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that NVLS was requested but is off, or that NVLS was requested on several nodes, where NVLSTree runs
    instead."""
    variables, log = shown.variables, shown.reading.log
    algorithms = [each.strip().upper() for each in variables.get("NCCL_ALGO", "").replace(";", ",").split(",")]
    named = any(each.rpartition(":")[2].startswith("NVLS") for each in algorithms)
    without = shown.channels is not None and shown.channels[1] == "0"
    asked = [
        name
        for name in ("NCCL_NVLS_ENABLE", "NCCL_NVLS_NCHANNELS")
        if _is_on(variables.get(name)) and f"{name}={variables[name]}" != NVLS_IF_POSSIBLE
    ]
    asked += ["NCCL_ALGO"] if named else []
    if asked and without and variables.get("NCCL_NVLS_ENABLE") != "0":
        facts = {
            "setting": f"{asked[0]}={variables[asked[0]]}",
            "line": _line(shown, asked[0], "nvlsCTAs"),
            "refused": False in log.multicast or None,
        }
        yield Finding("requests.nvls", Severity.FAULT, facts)
    nodes = max((each.nodes or 0 for each in shown.reading.logs), default=0)
    if named and nodes > 1 and {each.rpartition(":")[2] for each in algorithms} == {"NVLS"}:
        facts = {"setting": f"NCCL_ALGO={variables['NCCL_ALGO']}", "line": _line(shown, "NCCL_ALGO"), "nodes": nodes}
        yield Finding("requests.nvls_of_one_node", Severity.FAULT, facts)


def plugins(shown: ShownByLog) -> Iterator[Finding]:
    """Finds plugins that were named but not found, or that are not of the requested kind."""
    log = shown.reading.log
    files = {"TUNER": log.tuner_file}
    for kind, variable in PLUGINS.items():
        named = shown.variables.get(variable) or files.get(kind)
        if named is None or named.lower() in NO_PLUGIN or named == log.plugin_settings.get(variable):
            continue
        if kind in log.no_plugin and not (kind == "TUNER" and log.tuner_plugins):
            says, line = log.no_plugin[kind]
            facts = {"kind": kind.lower(), "variable": variable, "value": named, "says": says, "line": line}
            facts["setting_line"] = _line(shown, variable)
            facts["tuner"] = kind == "TUNER" or None
            yield Finding("requests.plugin_not_found", Severity.FAULT, facts)
        elif kind == "TUNER" and not log.tuner_plugins:
            facts = {"variable": variable, "value": named, "line": _line(shown, variable)}
            yield Finding("requests.tuner_not_shown", Severity.NOTE, facts)


def network(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that the requested network is not in use, and ranks with different networks."""
    log = shown.reading.log
    used = dict.fromkeys(log.networks.values())
    asked = shown.variables.get("NCCL_NET", "")
    if asked and used and not any(asked.lower() == each.lower() for each in used):
        first = next(iter(used))
        facts = {"setting": f"NCCL_NET={asked}", "line": _line(shown, "NCCL_NET", "Net name"), "used": list(used)}
        yield Finding("requests.network", Severity.FAULT, facts | {"network_line": log.network_lines[first]})
    if len(used) > 1:
        lines = [log.network_lines[each] for each in used]
        yield Finding("requests.networks_differ", Severity.FAULT, {"used": list(used), "lines": lines})


def adapters(shown: ShownByLog) -> Iterator[Finding]:
    """Finds names in NCCL_IB_HCA that match more adapters than intended, or no adapter that is in use."""
    value = shown.variables.get("NCCL_IB_HCA", "").strip()
    used = [name for names in shown.reading.log.adapters.values() for name in names]
    if not value or not used or value.startswith("^"):
        return
    exact = value.startswith("=")
    named = [each.partition(":")[0] for each in value.lstrip("=").split(",") if each]
    facts: dict[str, object] = {"setting": f"NCCL_IB_HCA={value}", "line": _line(shown, "NCCL_IB_HCA")}
    merged = [part for name in used for part in name.split("+")]
    if not exact:
        # mlx5_1 also matches mlx5_10; a prefix that equals the whole name of an adapter probably was not meant for the
        # others
        more = sorted(
            {name for name in merged for each in named if name != each and name.startswith(each) and each in merged}
            - set(named)
        )
        if more:
            yield Finding("requests.adapters_by_prefix", Severity.UNLIKE, facts | {"more": more, "value": value})
    missing = [each for each in named if not any(name == each if exact else name.startswith(each) for name in merged)]
    if missing:
        yield Finding(
            "requests.adapters_missing", Severity.FAULT, facts | {"missing": missing, "used": sorted(set(merged))}
        )


def inside_the_node(shown: ShownByLog) -> Iterator[Finding]:
    """Finds connections over the network between GPUs of one node."""
    nodes = {each.nodes for each in shown.reading.logs if each.nodes}
    count = sum(number for way, number in shown.reading.log.transports.items() if way.startswith("NET/"))
    if nodes != {1} or not count:
        return
    switched = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if _is_on(shown.variables.get(name))]
    settings = [f"{name}={shown.variables[name]}" for name in switched]
    facts = {"count": count, "settings": settings or None, "line": _line(shown, *switched)}
    yield Finding("requests.network_inside", Severity.UNLIKE if len(switched) == 2 else Severity.FAULT, facts)


def gpudirect(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that GPUDirect RDMA was allowed at a distance, but no connection uses it."""
    level = shown.variables.get("NCCL_NET_GDR_LEVEL", "").upper()
    ways = {way: count for way, count in shown.reading.log.transports.items() if way.startswith("NET/")}
    if level in ("PHB", "SYS", "PXB", "4", "5", "6") and ways and not any("GDRDMA" in way for way in ways):
        facts = {"setting": f"NCCL_NET_GDR_LEVEL={level}", "line": _line(shown, "NCCL_NET_GDR_LEVEL")}
        yield Finding("requests.gpudirect", Severity.FAULT, facts | {"count": sum(ways.values())})


def channels(shown: ShownByLog) -> Iterator[Finding]:
    """Finds that there are fewer channels than the requested minimum."""
    if shown.channels is None:
        return
    had = int(shown.channels[0])
    for name in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"):
        value = shown.variables.get(name, "")
        if value.isdigit() and had < min(int(value), 32) and not _is_on(shown.variables.get("NCCL_MAX_CTAS")):
            facts = {"setting": f"{name}={value}", "line": _line(shown, name, "Min CTAs"), "channels": had}
            yield Finding("requests.channels", Severity.FAULT, facts)
            return


def release_crashes(shown: ShownByLog) -> Iterator[Finding]:
    """Finds a release that crashes with this many GPUs per node, as NVLink domains have."""
    nccl, reading = shown.nccl, shown.reading
    if nccl is None or shown.variables.get("NCCL_NVLS_ENABLE") == "0":
        return
    sizes = [each.local_ranks or each.clique_ranks or 0 for each in reading.logs]
    trays = all("GB200" in name or "GB300" in name for name in reading.log.devices.values())
    sizes += [len(reading.log.devices)] if reading.log.devices and trays else []
    most = max(sizes, default=0)
    try:
        check_nvls_heads(nccl, most)
    except BadInput:
        facts = {"nccl": nccl.name, "gpus": most, "room": nccl.limits.max_channels}
        yield Finding("requests.release_crashes", Severity.FAULT, facts)


CHECKS: tuple[Callable[[ShownByLog], Iterator[Finding]], ...] = (
    release_crashes,
    fabric,
    plugins,
    collnet,
    nvls,
    network,
    adapters,
    inside_the_node,
    gpudirect,
    channels,
)
