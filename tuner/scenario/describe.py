"""Makes a scenario from the names, numbers and files that the command line and the Python API take."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from tuner import release
from tuner.base.errors import BadInput, Remedy, one_of
from tuner.base.sizes import as_ranges, from_ranges, whole
from tuner.base.spelling import option
from tuner.machine import catalogue
from tuner.machine.topology import reader
from tuner.release import BUILDS
from tuner.release.configuration import Value, parse_configuration
from tuner.scenario.description import MOST_NODES, Members, Scenario

if TYPE_CHECKING:
    from tuner.emulator.fitted_constants import FittedConstants
    from tuner.scenario.from_log import FromLog


# Hosts of NVLink domains: a number for each domain, one number for all, or None without domains
Sizes = tuple[int, ...] | int | None


class Description(TypedDict, total=False):
    """Keys that describe a communicator in addition to a machine's name; defaults are in parentheses.

    ``topology``: a file in NCCL's XML, instead of a machine. If the file only says where devices are, also ``gpu``, the
    model of the GPUs, and ``net_gbps`` (1e9 bits per second) and ``net_latency_us`` of the adapters. ``nodes``: number
    of equal nodes (1). ``gpus_per_node`` (all). ``ranks_per_gpu``: ranks on each GPU, if NCCL allows several (1, or as
    in the topology). ``gpus_per_process``: neighbouring GPUs of a host whose ranks share a process (1). ``collnet``:
    whether the network reduces (SHARP), if no topology says it (false). ``trays`` and ``gpus_per_tray``: how many are
    used, for a machine that is an NVLink domain; each of its ``nodes`` is a domain (all). ``hosts_per_domain``: hosts
    of each NVLink domain, a number or one for each domain (none). ``ranks_without_fabric``: ranks whose GPUs have not
    joined the fabric of their domain (none). ``ranks``: the ranks of which the communicator consists, as a sequence or
    a text such as ``0-7:2`` (all). ``shared``: whether this communicator shares resources with the communicator of all
    ranks (splitShare or shrinkShare). ``node``: instead of all these, if nodes differ: for each kind
    ``NODE[:GPUS][xN]``, in the order of ranks. ``graphs``: a file of graphs that NCCL dumped. ``nccl``: the release
    (the newest one that runs on the machine, or that of ``constants``). ``constants``: a file of constants that were
    fitted to measurements, used in place of NCCL's. ``env``: NCCL's variables, each a text or a whole number;
    ``config``: fields of NCCL's ``ncclConfig_t`` that the program sets. ``build``: the libnccl to ask, for CUDA 12
    (``cu12``) or CUDA 13 (``cu13``).

    ``log``: a log of NCCL, which supplies what the other keys leave out; without ``machine`` and ``topology``, it also
    supplies the graphs. ``log_communicator``: the commId of the communicator, if the log has several. Facts that a log
    may lack: ``comp_cap`` (80 for 8.0; one, or one per rank; or ``gpu``), ``cpu_arch``, ``cpu_vendor``, ``nvswitch``
    and ``net_gbs``, the bandwidth of the slowest path from a GPU to its adapter in GB/s.
    """

    topology: Path | str | None
    graphs: Path | str | None
    nodes: int | None
    gpus_per_node: int | None
    trays: int | None
    gpus_per_tray: int | None
    ranks_per_gpu: int | None
    gpus_per_process: int | None
    collnet: bool
    hosts_per_domain: int | Sequence[int] | None
    ranks_without_fabric: Sequence[int]
    ranks: str | Sequence[int] | None
    shared: bool
    node: Sequence[str]
    nccl: str | None
    env: Mapping[str, str | int] | None
    config: Mapping[str, str | int] | None
    gpu: str | None
    net_gbps: float | None
    net_latency_us: float | None
    constants: Path | str | None
    build: str
    log: Path | str | None
    log_communicator: str | None
    comp_cap: int | Sequence[int] | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    net_gbs: float | None


def describe(machine: str | None = None, **given: Unpack[Description]) -> Scenario:
    """Makes a scenario from the name of a ``machine``, or from the keys of :class:`Description`.

    Raises UnknownMachine, UnknownRelease, BadConstants, and BadInput for an impossible value.
    """
    if unknown := sorted(given.keys() - Description.__annotations__.keys()):
        raise BadInput(
            f"unknown {', '.join(unknown)}: valid are {', '.join(('machine', *Description.__annotations__))}"
        )
    says, of_log = None, list[Scenario]()
    if (logged := _logged(machine, given)) is not None:
        says, given, of_log = logged
        machine = says.machine
    count = given.get("nodes")
    nodes = 1 if count is None else whole(count, "nodes")
    if not 1 <= nodes <= MOST_NODES:
        raise BadInput(f"{nodes} nodes: valid are 1 to {MOST_NODES}")
    different = given.get("node") or ()
    alike = [given.get(key) for key in ("gpus_per_node", "trays", "gpus_per_tray", "topology", "graphs", "gpu")]
    if different and (nodes > 1 or any(value is not None for value in (machine, *alike))):
        raise BadInput(
            "node describes all nodes by itself: remove machine, topology, graphs, gpu and nodes, or remove node"
        )
    own = of_log or [nodes_of(text) for text in different]
    kinds = own or [
        Scenario(
            "",
            nodes=nodes,
            machine=None if machine is None else catalogue.load(machine).name,
            topology=_path(given.get("topology")),
            graphs=_path(given.get("graphs")),
            **_parts(machine, given),
            gpu=given.get("gpu"),
            net_gbps=given.get("net_gbps"),
            net_latency_us=given.get("net_latency_us"),
        )
    ]
    kinds, sizes = _hosts_of_dump(kinds, _hosts_per_domain(given.get("hosts_per_domain")))
    if (build := given.get("build", BUILDS[0])) not in BUILDS:
        raise BadInput(f"build {build!r}; {one_of(BUILDS)}")
    constants = _path(given.get("constants"))
    fitted = None if constants is None else _fitted(constants)
    nccl = given.get("nccl") or (fitted.nccl if fitted else None)
    if nccl is None:
        nccl = catalogue.newest_release(kind.machine for kind in kinds if kind.machine)
    first, *others = kinds
    return replace(
        first,
        nccl=release.load(nccl).name,
        environment=_environment(given.get("env")),
        configuration=_configuration(nccl, given.get("config")),
        others=tuple(others),
        from_log=says,
        fitted_constants=fitted,
        build=build,
        ranks_per_gpu=_at_least_one("ranks_per_gpu", given.get("ranks_per_gpu")),
        gpus_per_process=_at_least_one("gpus_per_process", given.get("gpus_per_process")),
        collnet=given.get("collnet", False),
        hosts_per_domain=sizes,
        ranks_without_fabric=tuple(
            whole(rank, "ranks_without_fabric") for rank in given.get("ranks_without_fabric") or ()
        ),
        members=_members(given.get("ranks"), given.get("shared", False)),
    )


def _logged(machine: str | None, given: Description) -> "tuple[FromLog, Description, list[Scenario]] | None":
    """The log that the description names; None if it names none. BadInput for keys that complete a log if there is no
    log."""
    if not given.get("log"):
        if beside := [key for key in _OF_LOGS if given.get(key) not in (None, ())]:
            options = ", ".join(map(option, beside))
            raise BadInput(f"{options} only apply to a log: add {option('log')} FILE")
        return None
    from tuner.scenario import from_log  # other descriptions need no reader of logs

    return from_log.read(machine, given)


_OF_LOGS = ("log_communicator", "comp_cap", "cpu_arch", "cpu_vendor", "nvswitch", "net_gbs")


def _hosts_of_dump(kinds: list[Scenario], sizes: Sizes) -> tuple[list[Scenario], Sizes]:
    """The kinds of hosts in a topology that NCCL dumped for an NVLink domain, repeated for ``nodes`` domains. BadInput
    if sizes of domains are given, because the dump has them."""
    kind, *others = kinds
    hosts = () if others or kind.topology is None or kind.gpu is not None else reader.hosts_of(kind.topology)
    if not hosts:
        return kinds, sizes
    if sizes is not None:
        raise BadInput(f"{kind.topology} describes an NVLink domain: use {option('nodes')}, which counts domains")
    whole_domain = sum(count for _, count in hosts)
    if len(hosts) == 1:
        return [replace(kind, part_of_dump=0, nodes=kind.nodes * whole_domain)], whole_domain
    parts = [replace(kind, part_of_dump=part, nodes=count) for part, (_, count) in enumerate(hosts)]
    return parts * kind.nodes, (whole_domain,) * kind.nodes if kind.nodes > 1 else whole_domain


class _Parts(TypedDict):
    gpus_per_node: int | None
    trays: int | None


def _parts(machine: str | None, given: Description) -> _Parts:
    """How many GPUs of each host are used, or how many trays and GPUs of each tray. BadInput if the machine has
    fewer."""
    trays, of_tray, of_node = (given.get(key) for key in ("trays", "gpus_per_tray", "gpus_per_node"))
    loaded = None if machine is None else catalogue.load(machine)
    has = None if loaded is None else loaded.trays
    if loaded is None or has is None:
        if trays is not None or of_tray is not None:
            raise BadInput(
                f"only machines that are NVLink domains, such as gb200-nvl72, have trays: use {option('gpus_per_node')}"
            )
        return {"gpus_per_node": None if of_node is None else whole(of_node, "gpus_per_node"), "trays": None}
    if of_node is not None:
        error = BadInput(
            f"{machine} is an NVLink domain of {has} trays: use {option('trays')} or {option('gpus_per_tray')}"
        )
        hosts, given_trays = given.get("nodes") or 1, trays is not None or of_tray is not None
        if given_trays:
            raise error
        racks, each = loaded.split(hosts)
        raise error.cured(
            Remedy("gpus_per_node", None), Remedy("nodes", str(racks)), Remedy("trays", str(each)),
            Remedy("gpus_per_tray", str(of_node)),
        )  # fmt: skip
    used = None if trays is None else whole(trays, "trays")
    if used is not None and not 1 <= used <= has:
        racks, each = loaded.split(used * (given.get("nodes") or 1))
        several = f"; {racks * each} trays are {option('nodes')} {racks} {option('trays')} {each}" if used > has else ""
        error = BadInput(f"{used} trays: valid are 1 to {has}, those of {machine}{several}")
        raise error.cured(Remedy("nodes", str(racks)), Remedy("trays", str(each))) if several else error
    return {"gpus_per_node": None if of_tray is None else whole(of_tray, "gpus_per_tray"), "trays": used}


def nodes_of(text: str) -> Scenario:
    """The nodes that a text such as ``NODE[:GPUS][xN]`` describes. A known name is not split, even if it ends like
    ``:GPUS`` or ``xN``.

    BadInput for an impossible number or file, UnknownMachine for an unknown name.
    """
    name, gpus, count = _parts_of(text)
    if count is not None and not 1 <= int(count) <= MOST_NODES:
        raise BadInput(f"{option('node')} {text} has {count} nodes: valid are 1 to {MOST_NODES}")
    topology = name.endswith(".xml")
    return Scenario(
        nccl="",
        nodes=int(count or 1),
        machine=None if topology else catalogue.load(name).name,
        topology=Path(name) if topology else None,
        gpus_per_node=None if gpus is None else int(gpus),
    )


def names_of_nodes(texts: Sequence[str]) -> list[str]:
    """The machine or file of each ``NODE[:GPUS][xN]``. BadInput for an impossible text."""
    return [_parts_of(text)[0] for text in texts]


def _parts_of(text: str) -> tuple[str, str | None, str | None]:
    if text in catalogue.names() or text.endswith(".xml"):
        return text, None, None
    match = re.fullmatch(r"(.+?)(?::(\d+))?(?:x(\d+))?", text)
    if match is None:
        raise BadInput(f"{option('node')} is empty: give NODE[:GPUS][xN], such as dgx-h100:8x2")
    name, gpus, count = match.groups()
    return name, gpus, count


def _fitted(path: Path) -> "FittedConstants":
    from tuner.emulator import fitted_constants

    return fitted_constants.read(path)


def _at_least_one(name: str, number: int | None) -> int | None:
    if number is not None and whole(number, name) < 1:
        raise BadInput(f"{name} {number}: give 1 or more")
    return number


def _hosts_per_domain(hosts: int | Sequence[int] | None) -> Sizes:
    sizes = () if hosts is None else (hosts,) if isinstance(hosts, int) else tuple(hosts)
    for size in sizes:
        _at_least_one("hosts_per_domain", size)
    return sizes if len(sizes) > 1 else next(iter(sizes), None)


def _members(ranks: str | Sequence[int] | None, shares: bool) -> Members | None:
    if ranks is None:
        if shares:
            raise BadInput(
                f"{option('shared')} only applies with {option('ranks')}: add it, to name the ranks that share the "
                "resources"
            )
        return None
    if isinstance(ranks, str):
        return Members(from_ranges(ranks, "ranks"), shares)
    numbers = tuple(sorted(whole(rank, "ranks") for rank in ranks))
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"ranks {as_ranges(numbers)}: one of them occurs twice: name each once")
    return Members(numbers, shares)


def _path(path: Path | str | None) -> Path | None:
    return Path(path) if path else None


def _environment(env: object) -> dict[str, str]:
    """The variables of an environment, with every value as a text."""
    return _texts("env", env, "NCCL's variables, such as {'NCCL_ALGO': 'Ring'}")


def _configuration(nccl: str, config: object) -> Mapping[str, Value] | None:
    fields = _texts("config", config, "fields of ncclConfig_t, such as {'maxCTAs': 8}")
    return parse_configuration(release.load(nccl), fields) or None


def _texts(key: str, given: object, of: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadInput(f"{key} {given!r}: give a dictionary of {of}")
    return {
        str(name): value if isinstance(value, str) else str(whole(value, str(name))) for name, value in given.items()
    }
