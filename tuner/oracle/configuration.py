"""One communicator as it is described to the real libnccl; :mod:`tuner.oracle` runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.release import BUILDS

if TYPE_CHECKING:
    from tuner.machine.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class Host:
    """One node: its topology XML, and how many of its GPUs are used."""

    topology: str
    gpus: int
    peer_to_peer_across_sockets: bool = True  # whether NVML and CUDA say that GPUs of two sockets reach each other


@dataclass(frozen=True, slots=True)
class OracleConfiguration:
    """One communicator of ``nodes * gpus_per_node`` ranks on ``nodes`` machines that are alike, and on ``others``."""

    topology: str  # text of a topology XML in NCCL's format, of one node, with <gpu> and <net> elements
    nodes: int
    gpus_per_node: int  # the first of the XML's <gpu>, ordered by dev
    release: str  # "2.28.9"
    env: Mapping[str, str]  # NCCL_* variables; the caller's own never reach NCCL
    plugin: Path | None = None  # a tuner plugin for NCCL to load
    record_plugin: bool = False  # load it inside the recorder, so that `ask` sees the table before and after it
    without_tuner: bool = False  # no plugin at all, which some choices depend on; only `launch` can be asked then
    library: Path | None = None  # this file instead of the release's installed or cached library
    skeleton: "Skeleton | None" = None  # what NCCL reads instead of the topology, to complete it
    others: tuple[Host, ...] = ()  # nodes after the ``nodes``, in the order of their ranks
    peer_to_peer_across_sockets: bool = True  # as of a Host, of the ``nodes``
    build: str = BUILDS[0]  # of the release's libnccl

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The nodes in the order of ranks."""
        return (Host(self.topology, self.gpus_per_node, self.peer_to_peer_across_sockets),) * self.nodes + self.others

    @property
    def ranks(self) -> int:
        """GPUs of all nodes."""
        return sum(host.gpus for host in self.hosts)
