"""Prepares the start of a child process: the simulated machine, the library, and the offsets of its functions and
structs."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import cache_folder
from tuner.base.names import PATHS_WITHOUT_WORD, Buffers
from tuner.emulator.rules import init
from tuner.machine import adapters
from tuner.machine.gpus import PeerToPeer
from tuner.machine.skeleton import Skeleton
from tuner.oracle import hardware, library, symbols
from tuner.oracle.messages import (
    Functions,
    Intercepted,
    Part,
    SimulatedHost,
    SimulatedMachine,
    Start,
    Symbols,
)
from tuner.oracle.process import CHILD, SIM, Child
from tuner.plugin import loading
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

MAX_RANKS = 512  # each rank is a thread that needs NCCL's memory for one rank
RANK_BYTES = 40 << 20  # host memory per rank; 21 MB were measured with 128 ranks, 8 per node

SHARE_GPUS = "NCCL_MULTI_RANK_GPU_ENABLE"
OFFERS_GIN = "NCCL_TUNER_SIM_GIN"  # variable of the simulated network: csrc/sim/gin.c
SHARES_GPUS = "ncclParamMultiRankGpuEnable"  # the function that reads the variable (src/init.cc, v2.30.3-1)

_BY_HOST = ("hosts_are_nodes", "only_the_whole_communicator")  # releases that search host by host, also in a domain

_MERGES = "ncclTopoMakeVNics"  # the function that merges adapters, from 2.24.3 on


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is known before a child process is started."""

    configuration: OracleConfiguration
    library: library.Library
    symbols: Symbols
    kinds: Mapping[Host, hardware.SimulatedNode]  # kinds of nodes

    @property
    def recorded(self) -> bool:
        """Whether NCCL's tuner plugin is the recorder, by itself or wrapped around the given plugin."""
        configuration = self.configuration
        return not configuration.without_tuner and (configuration.plugin is None or configuration.record_plugin)

    @property
    def simulates(self) -> bool:
        """Whether NCCL can tell the time of a group without launching it (ncclGroupSimulateEnd)."""
        return "ncclGroupSimulateEnd" in self.symbols.functions

    def registers(self, buffers: Buffers) -> bool:
        """Whether this release of NCCL can register buffers of this kind; true for kinds that need no registration."""
        entry_points = {Buffers.registered: "ncclCommRegister", Buffers.window: "ncclCommWindowRegister"}
        return buffers not in entry_points or entry_points[buffers] in self.symbols.functions


def prepare(configuration: OracleConfiguration) -> Preparation:
    """Reads what a start needs. OracleUnavailable without the library; BadInput or BadTopology for an impossible
    configuration."""
    _check(configuration)
    skeleton = configuration.skeleton
    read = partial(
        hardware.read,
        nodes=len(configuration.domains or configuration.hosts),
        variables=configuration.settings,
        network_reduces=configuration.network_reduces,
        far_ends=frozenset(chain.from_iterable(skeleton.nvlinks.values())) if skeleton else frozenset(),
    )
    kinds = {host: read(host) for host in dict.fromkeys(configuration.hosts)}
    if len(kinds) > hardware.MAX_KINDS:
        raise BadInput(f"{len(kinds)} kinds of nodes are too many: the oracle simulates at most {hardware.MAX_KINDS}")
    if len({host.peer_to_peer for host in kinds}) > 1:
        raise BadInput(
            "the oracle cannot mix nodes with and without peer-to-peer, because NCCL asks for it once per process"
        )
    if (given := configuration.library) is None:
        nccl = library.find(configuration.release, configuration.build)
    else:
        nccl = library.at(given)
    if release.is_known(configuration.release):
        _check_nvls(configuration, kinds)
    prepared = Preparation(configuration, nccl, symbols.load(nccl.path, nccl.sha256, cache_folder()), kinds)
    if configuration.shares_gpus and SHARES_GPUS not in prepared.symbols.functions:
        raise BadInput(f"NCCL {configuration.release} refuses several ranks on one GPU: use 2.30.3 or later")
    split_off = configuration.split_off
    if split_off is not None and split_off.by == "shrink" and "ncclCommShrink" not in prepared.symbols.functions:
        raise BadInput(f"NCCL {configuration.release} has no ncclCommShrink: use ncclCommSplit, or 2.27.3 or later")
    if configuration.plugin is not None and "tuner" not in prepared.symbols.comm.members:
        raise BadInput(f"NCCL {configuration.release} has no tuner plugins: use 2.19 or later")
    if configuration.plugin is not None and configuration.record_plugin and not prepared.simulates:
        raise BadInput(f"NCCL {configuration.release} gives plugins no costs to record: use 2.22 or later")
    return prepared


def launch_child(prepared: Preparation, program: str = CHILD) -> Child:
    """Starts the process of ``program``, which then waits for :func:`request`."""
    configuration, skeleton = prepared.configuration, prepared.configuration.skeleton
    plugin = None if configuration.without_tuner else SIM if prepared.recorded else configuration.plugin
    return Child(
        topologies(prepared),
        {**_environment(configuration), **configuration.env},
        of_hosts=_of_hosts(prepared),
        tuner_plugin=plugin,
        by_path=plugin is not None
        and plugin is configuration.plugin
        and _takes_path(prepared.library.release, plugin.resolve()),
        pci_classes=None if skeleton is None else skeleton.classes,
        dumps_topology=skeleton is not None or configuration.dumps_topology,
        program=program,
    )


def _environment(configuration: OracleConfiguration) -> dict[str, str]:
    """The environment variables that express the configuration."""
    made = {SHARE_GPUS: "1"} if configuration.shares_gpus else {}
    if configuration.offers_gin:
        made[OFFERS_GIN] = "1"
    if configuration.split_off is not None and configuration.split_off.shares:
        made[init.SHARE_VARIABLES[configuration.split_off.by]] = "1"
    return made


def topologies(prepared: Preparation) -> tuple[str, ...]:
    """The topology XML that NCCL reads on each kind of node."""
    skeleton = prepared.configuration.skeleton
    xml = [host.topology for host in prepared.kinds] if skeleton is None else [skeleton.xml]
    return tuple(map(hardware.for_x86, xml))


def _of_hosts(prepared: Preparation) -> dict[int, tuple[int, str]]:
    """The topology that each host in an NVLink domain reads, with the number of its kind."""
    configuration = prepared.configuration
    if not configuration.domains:
        return {}
    files, number_of = topologies(prepared), {host: number for number, host in enumerate(prepared.kinds)}
    return {
        number: (number_of[host], hardware.of_host(files[number_of[host]], number))
        for number, host in enumerate(configuration.hosts)
    }


def request(prepared: Preparation, log: Path, topologies: Sequence[Path], sysfs: Path | None = None) -> Start:
    """The first request of a child whose NCCL writes ``log`` and reads ``topologies``, one for each kind of node.

    ``sysfs`` is the folder of the simulated sysfs; None if the child reads none.
    """
    configuration, split_off = prepared.configuration, prepared.configuration.split_off
    wrapped = configuration.plugin if configuration.record_plugin else None
    return Start(
        library=str(prepared.library.path),
        log=str(log),
        functions=_functions(prepared.symbols),
        symbols=replace(prepared.symbols, functions={}),
        wrapped_plugin=None if wrapped is None else str(wrapped.resolve()),
        intercepted=_intercepted(prepared),
        ranks=configuration.ranks,
        machine=_machine(prepared, topologies, sysfs),
        part=None if split_off is None else Part(split_off.ranks, split_off.by == "shrink", split_off.shares),
        disguise=configuration.plugin_disguise,
        configuration=configuration.configuration,
    )


def _functions(located: Symbols) -> Functions:
    copies = located.functions.values()
    places = chain.from_iterable(chain.from_iterable(copies))
    return Functions("\n".join(located.functions), array("I", map(len, copies)), array("Q", places))


def _check(configuration: OracleConfiguration) -> None:
    if configuration.nodes < 1 or any(host.gpus < 1 for host in configuration.hosts):
        raise BadInput(
            f"{configuration.nodes} nodes of {configuration.gpus_per_node} GPUs: both numbers have to be at least 1"
        )
    for host in configuration.hosts:
        if set(host.placed) != set(range(host.gpus)):
            raise BadInput(
                f"the ranks of a node are on {host.placed} of its {host.gpus} GPUs: each GPU needs at least one rank"
            )
    if configuration.domains and sum(configuration.domains) != len(configuration.hosts):
        raise BadInput(
            f"NVLink domains of {configuration.domains} hosts are {sum(configuration.domains)} hosts in all, but there "
            f"are {len(configuration.hosts)}"
        )
    if configuration.ranks_per_process < 1:
        raise BadInput(f"{configuration.ranks_per_process} ranks per process: use 1 or more")
    if configuration.ranks > MAX_RANKS:
        raise BadInput(
            f"{configuration.ranks} ranks are too many: the oracle holds all ranks in one process, at most {MAX_RANKS}"
        )
    available = _available_bytes()
    if available is not None and configuration.ranks * RANK_BYTES > available:
        raise BadInput(
            f"{configuration.ranks} ranks need up to {configuration.ranks * RANK_BYTES >> 20} MB of memory; "
            f"this machine has {available >> 20} MB available, enough for {available // RANK_BYTES} ranks"
        )
    if configuration.split_off is not None and not set(configuration.split_off.ranks) <= set(
        range(configuration.ranks)
    ):
        raise BadInput(
            f"ranks {configuration.split_off.ranks} cannot be split off {configuration.ranks} ranks: name some of these"
        )
    if configuration.plugin is not None and configuration.without_tuner:
        raise BadInput(
            f"a tuner plugin, {configuration.plugin}, and no tuner plugin are both asked for: give one of the two"
        )
    if configuration.plugin is not None and not configuration.plugin.is_file():
        raise BadInput(f"tuner plugin {configuration.plugin} does not exist")


def _check_nvls(configuration: OracleConfiguration, kinds: Mapping[Host, hardware.SimulatedNode]) -> None:
    """Raises BadInput if NCCL would crash because an NVLink domain has too many heads of NVLS (its GPUs, or only those
    with an adapter)."""
    nccl, env = release.load(configuration.release), configuration.env
    joined = configuration.domains and not configuration.ranks_without_fabric and nccl.rules.domains not in _BY_HOST
    off = "0" in (env.get("NCCL_NVLS_ENABLE"), env.get("NCCL_MNNVL_ENABLE"), env.get("NCCL_CUMEM_ENABLE"))
    if not joined or off or nccl.search.loop.most_nvls_heads or not any(kind.multicast for kind in kinds.values()):
        return
    hosts = iter(configuration.hosts)
    for count in configuration.domains:
        domain = list(islice(hosts, count))
        gpus, nets = sum(len(host.placed) for host in domain), sum(len(kinds[host].nets) for host in domain)
        init.check_nvls_heads(nccl, min(gpus, nets) if len(configuration.domains) > 1 else gpus)


def _takes_path(name: str, plugin: Path) -> bool:
    """Whether to load the plugin by its path, like a user's plugin. Otherwise it is loaded by a name, which works in
    every release."""
    return release.is_known(name) and loading.takes_path(release.load(name), plugin)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _machine(prepared: Preparation, topologies: Sequence[Path], sysfs: Path | None) -> SimulatedMachine:
    configuration, kinds = prepared.configuration, prepared.kinds
    numbers = {host: number for number, host in enumerate(kinds)}
    return SimulatedMachine(
        hosts=len(configuration.hosts),
        kinds=len(kinds),
        driver_version=hardware.DRIVER_VERSION,
        ranks_per_process=configuration.ranks_per_process,
        net_name=configuration.settings.get("NCCL_NET", adapters.OWN_NETWORK),
        kind_of_host=tuple(numbers[host] for host in configuration.hosts),
        domain_of_host=configuration.domain_of_host,
        without_fabric=tuple(int(r in configuration.ranks_without_fabric) for r in range(configuration.ranks)),
        kind=tuple(
            _host(configuration.skeleton, (host, kind), path, sysfs)
            for host, kind, path in zip(kinds, kinds.values(), topologies, strict=True)
        ),
    )


def _host(
    skeleton: Skeleton | None, node: tuple[Host, hardware.SimulatedNode], topology: Path, sysfs: Path | None
) -> SimulatedHost:
    host, machine = node
    nvlinks = skeleton.nvlinks if skeleton else {}
    placed = {name: str(sysfs / bus_id) for name, bus_id in skeleton.adapters.items()} if skeleton and sysfs else {}
    return SimulatedHost(
        gpus_per_host=len(machine.gpus),
        ranks_per_host=len(host.placed),
        nets_per_host=len(machine.nets),
        multicast=int(machine.multicast),
        coll_nets=machine.coll_nets,
        merges_nets=int(machine.merges_nets),
        sysfs=str(sysfs or ""),
        gpu_of_rank=host.placed,
        gpus=tuple(replace(gpu, nvlinks=tuple(nvlinks.get(gpu.bus_id, ()))) for gpu in machine.gpus),
        nets=tuple(replace(net, pci_path=placed.get(net.name, "")) for net in machine.nets),
        topology=str(topology),
    )


def _intercepted(prepared: Preparation) -> Intercepted:
    """What to intercept. Hosts of an NVLink domain make one system if NVML's peer-to-peer answers do not differ."""
    configuration, kinds = prepared.configuration, prepared.kinds
    domains, types = configuration.domains, path_types(configuration.release)
    all_reach = all(host.peer_to_peer is PeerToPeer.all for host in configuration.hosts)
    return Intercepted(
        topology_files=len(kinds) > 1 or bool(domains),
        systems=max(domains, default=1) > 1 and all_reach,
        networks=_MERGES in prepared.symbols.functions and len({kind.merges_nets for kind in kinds.values()}) > 1,
        named_paths=sum(1 << number for number, each in enumerate(types) if each not in PATHS_WITHOUT_WORD),
    )


def path_types(name: str) -> tuple[str, ...]:
    """The types of paths of a release, by NCCL's numbers; those of the newest known release if this one is unknown."""
    return release.load(name if release.is_known(name) else release.names()[-1]).paths.types
