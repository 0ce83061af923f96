"""Describes one communicator for the real libnccl; :mod:`tuner.oracle` runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.machine.gpus import PeerToPeer
from tuner.release import BUILDS
from tuner.release.configuration import as_variables

if TYPE_CHECKING:
    from tuner.machine.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class Host:
    """One node: its topology XML, and how many of its GPUs are used."""

    topology: str
    gpus: int
    peer_to_peer: PeerToPeer = PeerToPeer.all  # between which GPUs NVML and CUDA allow it
    gpu_of_rank: tuple[int, ...] = ()  # which of the GPUs each of its ranks is on; empty: one rank on each

    @property
    def placed(self) -> tuple[int, ...]:
        """The number of each rank's GPU, in the order of ``dev``."""
        return self.gpu_of_rank or tuple(range(self.gpus))

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU."""
        return len(set(self.placed)) < len(self.placed)


@dataclass(frozen=True, slots=True)
class SplitOff:
    """A communicator of some ranks, which NCCL splits off from the communicator of all ranks."""

    ranks: tuple[int, ...]  # of the whole, the least first
    shares: bool = False  # the whole's resources
    by: str = "split"  # ncclCommSplit, or shrink: ncclCommShrink


@dataclass(frozen=True, slots=True)
class OracleConfiguration:
    """One communicator on ``nodes`` equal machines and on ``others``, with a rank on each of their GPUs.

    With ``gpu_of_rank``, each node has one rank per entry instead, on the GPU with that number; ranks may share a GPU.
    """

    topology: str  # text of a topology XML in NCCL's format, of one node, with <gpu> and <net> elements
    nodes: int
    gpus_per_node: int  # the first of the XML's <gpu>, ordered by dev
    release: str  # "2.28.9"
    env: Mapping[str, str]  # NCCL_* variables; the caller's own never reach NCCL
    plugin: Path | None = None  # a tuner plugin for NCCL to load
    record_plugin: bool = False  # load it inside the recorder, so that `ask` sees the table before and after it
    plugin_disguise: tuple[int, bool] | None = None  # of a recorded one: clocks ahead by seconds; as on another host
    without_tuner: bool = False  # no plugin at all, which some choices depend on; only `launch` can be asked then
    library: Path | None = None  # this file instead of the release's installed or cached library
    skeleton: "Skeleton | None" = None  # what NCCL reads instead of the topology, to complete it
    others: tuple[Host, ...] = ()  # nodes after the ``nodes``, in the order of their ranks
    peer_to_peer: PeerToPeer = PeerToPeer.all  # as of a Host, of the ``nodes``
    build: str = BUILDS[0]  # of the release's libnccl
    gpu_of_rank: tuple[int, ...] = ()  # as of a Host, of the ``nodes``
    dumps_topology: bool = False  # NCCL writes the topology it made, which takes time; of a skeleton it always does
    domains: tuple[int, ...] = ()  # how many hosts each NVLink domain has, in the order of ranks; empty: there are none
    ranks_without_fabric: tuple[int, ...] = ()  # whose GPUs have not joined the fabric of their domain (yet)
    split_off: SplitOff | None = None  # what is asked is this communicator, made of that of all ranks
    network_reduces: bool = False  # CollNet's network is there, on every adapter
    offers_gin: bool = False  # GPUs can start transfers over the adapters where NCCL_GIN_TYPE is not set
    configuration: tuple[tuple[str, int | str], ...] = ()  # fields of ncclConfig_t, with which every rank is made
    ranks_per_process: int = 1  # neighbours on a host, from its first rank on

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
        """One of the equal ``nodes``."""
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
        """Number of ranks of the communicator that is asked about."""
        return self.ranks if self.split_off is None else len(self.split_off.ranks)

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU of any node."""
        return any(host.shares_gpus for host in self.hosts)
