"""Notes for the user about variables whose values have effects that were probably not intended."""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache

from tuner import release
from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op, Protocol
from tuner.base.numerics import parse_long
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue, gpus
from tuner.machine.adapters import network_of, plugin_network, refuse_contradiction
from tuner.machine.gpus import PeerToPeer
from tuner.release import Release, configuration
from tuner.release.environment import Environment
from tuner.release.reader import parts_of
from tuner.release.variables import OF_THE_NETWORK, everywhere, ignored
from tuner.scenario.description import Scenario

ENABLE = "NCCL_COLLNET_ENABLE"

# Variables whose values are not whole numbers, or are not whole numbers in every release.
TEXTS = frozenset(
    {"NCCL_ALGO", "NCCL_PROTO", "NCCL_THREAD_THRESHOLDS", "NCCL_COLLNET_ENABLE", "NCCL_CTA_POLICY"}
    | {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NETDEVS_POLICY", "NCCL_NET_MERGE_LEVEL"}
    | {"NCCL_IB_HCA", "NCCL_NET_FORCE_MERGE", "NCCL_GRAPH_FILE"}
)
LEAST_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
MOST_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
NOT_SET = -2


def of_scenario(scenario: Scenario) -> list[str]:
    """Notes about variables that the release ignores or misreads or that do harm, about GPUs without peer-to-peer
    access, and about the network."""
    values = scenario.environment or {}
    lines = of_variables(release.load(scenario.nccl), values)
    if values:
        lines += harmful(values, scenario.nodes, scenario)
    if values.get(ENABLE) == "1" and not any(kind.network_reduces for kind in scenario.resolve().kinds):
        lines.append(
            f"{ENABLE}=1: no adapter reduces (coll in the topology), so no CollNet; with SHARP say {option('collnet')}"
        )
    if unseen := configuration.without_effect(scenario.configuration or {}):
        lines.append(f"config {', '.join(unseen)}: changes no choice")
    overridden = {*(scenario.configuration or {})} - {*unseen} - {*_counting(scenario)}
    lines += [f"config {name}: {configuration.fields()[name].variable} counts instead" for name in sorted(overridden)]
    others = (_of_racks, _of_network, _of_peer_to_peer, _of_wheels)
    return [*lines, *(note for each in others for note in each(scenario))]


def _of_network(scenario: Scenario) -> Iterator[str]:
    """A note if the network is a plugin, and it is not known what this plugin tells NCCL about its adapters."""
    values = scenario.environment or {}
    if not OF_THE_NETWORK & values.keys():
        return
    for kind in scenario.resolve().kinds:
        refuse_contradiction(network_of(kind.topology.nets), values)
    if scenario.nodes > 1 and any(kind.over_sockets for kind in scenario.resolve().kinds):
        yield (
            "sockets: answered for the IP interfaces of the adapters, at their speed; of others (NCCL_SOCKET_IFNAME) "
            f"say how many and how fast: {option('change')} nics=N, {option('change')} nic-gbps=GBPS"
        )
    named = (plugin_network(network_of(kind.topology.nets), values) for kind in scenario.resolve().kinds)
    for each in dict.fromkeys(one for one in named if one is not None and not one.known):
        yield f"network plugin {each.name}: answered as what the topology says of its adapters, by source, not compared"


def _of_racks(scenario: Scenario) -> Iterator[str]:
    """A note if several machines are requested that are NVLink domains, because users often mean hosts."""
    machine = None if scenario.machine is None or scenario.others else catalogue.load(scenario.machine)
    if machine is None or machine.trays is None or scenario.nodes == 1 or scenario.trays is not None:
        return
    gpus = scenario.nodes * machine.trays * machine.gpus_per_node
    domains, trays = machine.split(scenario.nodes)
    yield (
        f"{option('nodes')} counts NVLink domains: {scenario.nodes} of {machine.trays} trays are {gpus:,} GPUs; "
        f"{scenario.nodes} trays are {option('nodes')} {domains} {option('trays')} {trays}"
    )


def _counting(scenario: Scenario) -> Iterator[str]:
    """The fields of the configuration that no variable overrides."""
    made = scenario.configured
    yield from (name for name in scenario.configuration or {} if configuration.fields()[name].variable in made)


def _of_peer_to_peer(scenario: Scenario) -> Iterator[str]:
    """A note about GPUs whose driver denies peer-to-peer, unless a change says otherwise."""
    if "p2p" not in (scenario.hardware or {}):
        kinds = [kind for kind in scenario.kinds if kind.logged is None]
        own = [kind.resolve().own for kind in kinds]
        without = [node for node in own if node.peer_to_peer is PeerToPeer.none]
        if models := {model.name for node in without for model in node.gpus_without_peer_to_peer}:
            allows = f"{option('change')} p2p=all where yours allows it"
            yield f"{', '.join(sorted(models))}: the driver denies peer-to-peer; {allows}"


def _of_wheels(scenario: Scenario) -> Iterator[str]:
    """A note about GPUs for which NVIDIA's own build of the release has no code."""
    shown = [kind.resolve().own.topology for kind in scenario.kinds if kind.logged is None]
    newest = max((sm for each in shown for sm in each.compute_capabilities(len(each.gpus))), default=0)
    needs = gpus.first_cuda(newest)
    if (built_for := cuda_of_wheel(scenario.nccl)) is None or built_for >= needs:
        return
    first = next((name for name in release.names() if (cuda_of_wheel(name) or (0,)) >= needs), None)
    yield (
        f"NVIDIA's wheel of NCCL {scenario.nccl}, for CUDA {_dotted(built_for)}, has no code for compute capability "
        f"{newest // 10}.{newest % 10}: there it runs in a build for CUDA {_dotted(needs)} or later"
        + (f"; the wheels have it from {first} on" if first else "")
    )


def cuda_of_wheel(nccl: str) -> tuple[int, ...] | None:
    """The version of CUDA that NVIDIA's wheel of a release for CUDA 12 is built for; None if the release has no such
    wheel."""
    if nccl not in release.names():
        return None
    number = parts_of(nccl)
    table = tables.toml(tables.folder() / "wheels.toml")
    return parts_of(max((parts_of(first), cuda) for first, cuda in table.items() if parts_of(first) <= number)[1])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def of_variables(nccl: Release, values: Mapping[str, str]) -> list[str]:
    """Notes about variables, for one release."""
    without_effect = [
        f"{name}: NCCL {nccl.name} does not read it{_meant(nccl, name)}" for name in ignored(nccl, values)
    ]
    elsewhere = [
        f"{name}={values[name]}: {says}"
        for group, says in _ELSEWHERE.items()
        for name in nccl.environment.indifferent.get(group, ())
        if name in values and name not in ignored(nccl, values)
    ]
    return [*without_effect, *elsewhere, *_of_numbers(nccl, values)]


_ELSEWHERE = {
    "seen_in_the_topology": "the topology and the nodes that are given here say what it does",
    "files_of_variables": "the variables that it brings are not read here; give each",
    "tuners": "a tuner plugin then chooses; what is answered here is NCCL's own choice",
}


def _meant(nccl: Release, name: str) -> str:
    """A hint if a name is similar to that of a variable that the release reads; else an empty text."""
    if name in everywhere():
        return ""
    close = get_close_matches(name, {*nccl.listed_variables, *nccl.environment.search}, n=1, cutoff=0.9)
    return f"; did you mean {close[0]}?" if close else ""


def _of_numbers(nccl: Release, values: Mapping[str, str]) -> Iterator[str]:
    environment = Environment(values, non_numeric_is_default=nccl.environment.non_numeric_is_default)
    whole = {*nccl.environment.known, *nccl.environment.search} - TEXTS
    for name in sorted(whole & values.keys()):
        if not values[name]:
            continue
        number = environment.optional(name)
        begin = f"{name}={values[name]}: NCCL {nccl.name}"
        if number is None:
            yield f"{begin} ignores it, as it is no whole number of 64 bits"
            continue
        counts = _counts_as(nccl, name, number)
        if not _is(values[name], number):
            yield f"{begin} reads it as {number}" + (f", which counts as {counts}" if counts else "")
        elif counts:
            yield f"{begin} counts it as {counts}"


def _is(text: str, number: int | None) -> bool:
    try:
        return int(text, 0) == number
    except ValueError:
        return False


def _counts_as(nccl: Release, name: str, number: int) -> str | None:
    """The number that the release uses instead of ``number``, as text; None if it uses that (ncclGetNthreads in its
    tuning, ncclMinNchannels and ncclMaxNchannels)."""
    most = nccl.limits.max_channels
    if name in LEAST_CHANNELS and number != NOT_SET:
        return "no minimum" if number < 0 else str(most) if number > most else None
    if name in MOST_CHANNELS and number != NOT_SET:
        return "1" if number < 1 else str(most) if number > most else None
    for row in (each for protocols in nccl.threads.values() for each in protocols.values() if each.env == name):
        if number <= 0:
            return "not set"
        if row.max is not None and (number > row.max or number % nccl.limits.warp_size):
            return str(row.max)
        if row.min is not None and number < row.min:
            return str(row.min)
    return None


# Chunks of sends and receives: ncclParamP2pNetChunkSize, NvlChunkSize, src/init.cc
NET_STEP, LOCAL_STEP = 1 << 17, 1 << 19
BUFFER, STEPS = 1 << 22, 8  # the default of NCCL_BUFFSIZE, and NCCL_STEPS
ALIGNED = 16  # bytes that a thread loads at once
UNALIGNED = (
    f"bytes per rank that are no multiple of {ALIGNED}: AllGather and ReduceScatter load and store by elements then, "
    "several times slower than padded (pytorch/pytorch #195450, NVIDIA/nccl #413)"
)


@dataclass(frozen=True, slots=True)
class HarmfulSetting:
    """A row of the table of harmful settings: ``rule`` says which values of ``variable`` do harm; ``harms`` is data or
    speed."""

    variable: str
    rule: str
    harms: str
    says: str
    source: str


def harmful(values: Mapping[str, str], nodes: int | None, scenario: "Scenario | None" = None) -> list[str]:
    """One line for each variable in ``values`` that does harm; ``scenario`` is the communicator, if it is known."""
    lines = []
    for row in _rows():
        if row.variable in values and (says := _RULES[row.rule](row, values, nodes, scenario)):
            what = "destroy data" if row.harms == "data" else "cost speed"
            lines.append(f"{row.variable}={values[row.variable]} may {what}: {says}; source: {row.source}")
    return lines


def is_unaligned(request: Request, nbytes: int, ranks: int) -> bool:
    """Whether a call of ``nbytes`` (NCCL's nBytes) gives each rank a part whose size is no multiple of the bytes that a
    thread loads at once."""
    return request.collective in (Collective.AllGather, Collective.ReduceScatter) and nbytes // ranks % ALIGNED != 0


Rule = Callable[[HarmfulSetting, Mapping[str, str], int | None, "Scenario | None"], str]


def _beyond_a_step(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    local = _number(values, "NCCL_P2P_NVL_CHUNKSIZE", LOCAL_STEP)
    across = _number(values, "NCCL_P2P_NET_CHUNKSIZE", NET_STEP)
    step = min(_number(values, "NCCL_BUFFSIZE", BUFFER) // STEPS, local if nodes == 1 else across)
    return row.says.format(step=step) if _number(values, row.variable, 0) > step else ""


def _ll128_where_it_is_off(
    row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, scenario: "Scenario | None"
) -> str:
    """The row's sentence, if the variable requests LL128 on a communicator on which NCCL would not use it by itself;
    else an empty text."""
    if scenario is None or "LL128" not in values[row.variable].upper().replace("^", "-").split("-")[0]:
        return ""
    from dataclasses import replace

    plain = {name: value for name, value in values.items() if name != row.variable}
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    try:
        usable = Selection(replace(scenario, environment=plain).communicator()).candidates(request)
    except TunerError:
        return ""
    return "" if any(protocol is Protocol.LL128 for _, protocol in usable) else row.says


def _is_on(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if _number(values, row.variable, 0) > 0 else ""


def _is_off(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if _number(values, row.variable, 1) == 0 else ""


def _is_group(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if values[row.variable].upper() == "GROUP" else ""


_RULES: dict[str, Rule] = {
    "beyond_a_step": _beyond_a_step,
    "ll128_where_it_is_off": _ll128_where_it_is_off,
    "is_on": _is_on,
    "is_off": _is_off,
    "is_group": _is_group,
}


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    return parse_long(text) if text.strip().lstrip("+-").isdecimal() else default


@cache
def _rows() -> tuple[HarmfulSetting, ...]:
    return tuple(HarmfulSetting(**row) for row in tables.toml(tables.folder() / "settings.toml")["setting"])
