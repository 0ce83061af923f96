"""The description of one communicator for the real libnccl; :mod:`tuner.oracle` runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.machine.gpus import PeerToPeer
from tuner.release import BUILDS
from tuner.release.configuration import as_variables
from tuner.scenario.description import Members

if TYPE_CHECKING:
    from tuner.machine.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class Host:
    """One node: its topology XML, and the number of its GPUs that are used."""

    topology: str
    gpus: int
    peer_to_peer: PeerToPeer = PeerToPeer.all  # the GPUs between which NVML and CUDA allow peer-to-peer
    gpu_of_rank: tuple[int, ...] = ()  # the GPU of each of its ranks; empty: one rank on each GPU

    @property
    def placed(self) -> tuple[int, ...]:
        """The number of the GPU of each rank, in the order of ``dev``."""
        return self.gpu_of_rank or tuple(range(self.gpus))

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU."""
        return len(set(self.placed)) < len(self.placed)


@dataclass(frozen=True, slots=True)
class OracleConfiguration:
    """One communicator on ``nodes`` equal machines and on ``others``, with a rank on each of their GPUs.

    With ``gpu_of_rank``, each node has one rank per entry instead, on the GPU with that number; ranks may share a GPU.
    """

    topology: str  # text of a topology XML in NCCL's format, for one node, with <gpu> and <net> elements
    nodes: int
    gpus_per_node: int  # number of GPUs, the first ones in the XML, ordered by dev
    release: str  # such as "2.28.9"
    env: Mapping[str, str]  # NCCL_* variables; those of the caller never reach NCCL
    plugin: Path | None = None  # a tuner plugin for NCCL to load
    record_plugin: bool = False  # load the plugin inside the recorder, so that `ask` sees the table before and after it
    # For a recorded plugin: seconds by which clocks are ahead, and whether it seems to run on another host
    plugin_disguise: tuple[int, bool] | None = None
    without_tuner: bool = False  # no plugin at all, because some choices depend on it; then only `launch` can be asked
    library: Path | None = None  # a file to use instead of the release's installed or cached library
    skeleton: "Skeleton | None" = None  # what NCCL reads and completes instead of the topology
    others: tuple[Host, ...] = ()  # nodes after the first ``nodes``, in the order of their ranks
    peer_to_peer: PeerToPeer = PeerToPeer.all  # as for a Host, for the first ``nodes``
    build: str = BUILDS[0]  # build of the release's libnccl
    gpu_of_rank: tuple[int, ...] = ()  # as for a Host, for the first ``nodes``
    # NCCL writes the topology that it made, which takes time; for a skeleton it always does
    dumps_topology: bool = False
    domains: tuple[int, ...] = ()  # number of hosts of each NVLink domain, in the order of ranks; empty without domains
    ranks_without_fabric: tuple[int, ...] = ()  # ranks whose GPUs have not joined the fabric of their domain (yet)
    split_off: Members | None = None  # if set, the questions are about this communicator, made from that of all ranks
    network_reduces: bool = False  # the network for CollNet is available on every adapter
    offers_gin: bool = False  # GPUs can start transfers over the adapters, unless NCCL_GIN_TYPE is set
    configuration: tuple[tuple[str, int | str], ...] = ()  # fields of ncclConfig_t with which every rank is made
    ranks_per_process: int = 1  # neighbouring ranks of a host that share a process, from its first rank on

    @property
    def settings(self) -> Mapping[str, str]:
        """NCCL's variables, including those that stand for fields of the program's configuration."""
        if not self.configuration or not release.is_known(self.release):
            return self.env
        return {**self.env, **as_variables(release.load(self.release), dict(self.configuration), self.env)}

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The nodes in the order of ranks."""
        return (self.host,) * self.nodes + self.others

    @property
    def host(self) -> Host:
        """The host that each of the first ``nodes`` nodes is: these are equal."""
        return Host(self.topology, self.gpus_per_node, self.peer_to_peer, self.gpu_of_rank)

    @property
    def domain_of_host(self) -> tuple[int, ...]:
        """The number of each host's NVLink domain, from 1; 0 without domains."""
        if not self.domains:
            return (0,) * len(self.hosts)
        return tuple(number for number, hosts in enumerate(self.domains, 1) for _ in range(hosts))

    @property
    def ranks(self) -> int:
        """Number of ranks of all nodes."""
        return sum(len(host.placed) for host in self.hosts)

    @property
    def asked_ranks(self) -> int:
        """The number of ranks of the communicator that the questions are about."""
        return self.ranks if self.split_off is None else len(self.split_off.ranks)

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU of any node."""
        return any(host.shares_gpus for host in self.hosts)
