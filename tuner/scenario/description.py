"""A communicator as a user describes it: the machine or topology, the nodes, the release, the settings.

:mod:`tuner.scenario.describe` makes it from the names, numbers and files of the command line and the Python API.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.records import json_form
from tuner.base.sizes import as_ranges
from tuner.base.spelling import option
from tuner.emulator.communicator import Comm
from tuner.machine import catalogue, gpus, skeleton
from tuner.release import BUILDS
from tuner.release.configuration import Value, as_variables

if TYPE_CHECKING:
    from tuner.emulator.fitted_constants import FittedConstants
    from tuner.emulator.tuner_plugin import TunerPlugin
    from tuner.scenario.from_log import FromLog, LoggedNode
    from tuner.scenario.oracle_configuration import OracleConfiguration
    from tuner.scenario.resolved import ResolvedScenario

MOST_NODES = 2**20  # more than any machine has, and still answered quickly


@dataclass(frozen=True, slots=True)
class ConstantsUsed:
    """The constants with which an answer is computed: those of a release, or constants that were fitted to
    measurements."""

    nccl: str
    fitted: Any = field(metadata=json_form(optional=True))  # file, release and provenance, if the constants were fitted
    # The tuner plugin whose answers take precedence over NCCL's
    tuner: str | None = field(default=None, metadata=json_form(optional=True))
    # For a release that was not compared, what the answer rests on
    standing: str | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class Members:
    """A communicator that is a part of the described one: its ranks, in ascending order, and how it is made.

    ``shares``: it shares the resources of the whole communicator, by splitShare or shrinkShare of ncclConfig_t or by a
    variable. ``by``: the function of libnccl that creates it, ncclCommSplit or ncclCommShrink; no choice depends on
    that.
    """

    ranks: tuple[int, ...]
    shares: bool = False
    by: str = "split"  # or "shrink"


@dataclass(frozen=True)  # no slots, so that what is resolved can be kept
class Scenario:
    """The communicator about which a user asks. Exactly one of ``machine``, ``topology`` and ``logged`` names the node.

    ``others`` are more nodes, whose ranks come after those of ``nodes``; only their fields that describe nodes are
    used. A scenario is only a description: files are read and checked by :meth:`resolve`.
    """

    nccl: str
    nodes: int
    machine: str | None = None
    topology: Path | None = None
    graphs: Path | None = None
    gpus_per_node: int | None = None  # of each tray, if the machine has trays
    trays: int | None = None  # the number of trays used of each node, if the machine is an NVLink domain; None: all
    environment: dict[str, str] | None = None
    gpu: str | None = None  # the model of all GPUs, if the topology only says where they are
    net_gbps: float | None = None  # speed of adapters whose place is all that the topology says, 1e9 bits per second
    net_latency_us: float | None = None
    others: tuple["Scenario", ...] = ()
    fitted_constants: "FittedConstants | None" = None  # constants to use instead of NCCL's; libnccl cannot use them
    hardware: dict[str, str] | None = (
        None  # differences from the machine or topology, in the form of topology.edit, or p2p
    )
    build: str = BUILDS[0]  # build of libnccl, if it is asked
    # Hosts that NVLink joins: one number for all NVLink domains, or one for each
    hosts_per_domain: tuple[int, ...] | int | None = None
    # Index of one of its kinds of hosts, if the topology is NCCL's dump of an NVLink domain
    part_of_dump: int | None = None
    ranks_without_fabric: tuple[int, ...] = ()  # ranks whose GPUs have not joined the NVLink fabric of their domain
    logged: "LoggedNode | None" = None  # the node that a log shows, instead of machine and topology
    from_log: "FromLog | None" = None  # what a log says about the communicator
    ranks_per_gpu: int | None = None  # the first ranks of a node are on its first GPU; None: one, or as in the topology
    # GPUs of a host in a row whose ranks share a process, from the first rank on; None: one
    gpus_per_process: int | None = None
    collnet: bool = False  # whether the network reduces (SHARP), whatever the topology says
    unset: frozenset[str] = frozenset()  # variables of the machine's nccl.conf that are not set
    tuner: "TunerPlugin | None" = None  # the tuner plugin that every rank loads, with the variables that it sets
    later: bool = False  # the processes had another communicator before; only affects nodes
    configuration: Mapping[str, Value] | None = None  # fields of ncclConfig_t that the program sets
    members: Members | None = None  # the ranks of the described communicator that form this one; None: all

    def resolve(self) -> "ResolvedScenario":
        """The scenario resolved for emulator and oracle. Each part is read and checked once, when it is first
        needed."""
        return self._resolved

    def with_nodes(self, nodes: int) -> "Scenario":
        """The scenario with ``nodes`` nodes of its first kind; parts that were resolved are kept."""
        return self.resolve().with_nodes(nodes).scenario

    def with_gpus(self, gpus_per_node: int) -> "Scenario":
        """The scenario with ``gpus_per_node`` GPUs per node, and at most that number per process."""
        of_process = self.gpus_per_process and min(self.gpus_per_process, gpus_per_node)
        return replace(self, gpus_per_node=gpus_per_node, gpus_per_process=of_process)

    @cached_property
    def _resolved(self) -> "ResolvedScenario":
        from tuner.scenario.resolved import ResolvedScenario

        return ResolvedScenario(self)

    @property
    def title(self) -> str:
        """The title of the communicator: ``2 x dgx-h100, 8 GPUs each, NCCL 2.28.9``."""
        nodes = (kind.in_words for kind in self.resolve().whole.kinds)
        domains = self.resolve().whole.domains_in_words + self.resolve().taken_in_words
        build = "" if self.build == BUILDS[0] else f" {self.build}"
        of_process = self.resolve().gpus_per_process
        processes = f", {of_process} GPUs per process" if of_process > 1 else ""
        constants = f", constants {self.fitted_constants.file}" if self.fitted_constants else ""
        tuner = f", tuner {self.tuner.title}" if self.tuner else ""
        if self.tuner and (others := self.tuner.ignored_by(self.nccl)) is not None:
            tuner += f", which is IGNORED, as it is for NCCL {others}"
        of_nodes = f"{self._members_in_words}{' + '.join(nodes)}{domains}{processes}"
        standing = f" ({self.standing})" if self.standing else ""
        return f"{of_nodes}, NCCL {self.nccl}{standing}{build}{constants}{tuner}"

    @property
    def _members_in_words(self) -> str:
        if self.members is None:
            return ""
        shared = " with shared resources" if self.resolve().shares else ""
        return f"ranks {as_ranges(self.members.ranks)}{shared} of "

    @property
    def variables(self) -> dict[str, str]:
        """NCCL's variables on every rank: those that are set, and for others the values of the tuner and the
        configuration."""
        return {**self.variables_of_process, **self.configured}

    @property
    def variables_of_process(self) -> dict[str, str]:
        """NCCL's variables in every process, without those that stand for the program's configuration."""
        return {**(self.tuner.settings if self.tuner else {}), **(self.environment or {})}

    @property
    def configured(self) -> dict[str, str]:
        """The program's configuration as variables with the same effect, without variables that are set themselves."""
        if not self.configuration:
            return {}
        return as_variables(release.load(self.nccl), self.configuration, self.variables_of_process)

    @property
    def settings(self) -> list[str]:
        """NCCL's variables as NAME=VALUE, then the program's configuration."""
        configured = [f"config {name}={value}" for name, value in (self.configuration or {}).items()]
        return [*(f"{name}={value}" for name, value in (self.environment or {}).items()), *configured]

    @property
    def heading(self) -> str:
        """The title with the settings, which tells the sides of a comparison apart."""
        return ", ".join([self.title, *self.settings, *(f"without {name}" for name in sorted(self.unset))])

    @property
    def node_counts(self) -> tuple[int, int]:
        """The smallest and the largest number of nodes for which answers are possible. The graphs in a log are either
        for one node or for several, and answers are only possible for that case."""
        if self.members is not None:
            return self.nodes, self.nodes  # the ranks belong to these nodes
        if self.logged is None:
            return 1, MOST_NODES
        return (2, MOST_NODES) if self.logged.nodes > 1 else (1, 1)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases to answer for if the user names none, oldest first: all that run on the machine; for a topology,
        only the scenario's own."""
        return (self.nccl,) if self.machine is None else self.every_release

    @property
    def every_release(self) -> tuple[str, ...]:
        """The releases for which answers are possible, oldest first; only the scenario's own one if its graphs or
        constants are given."""
        if self.fitted_constants or self.logged or (self.graphs is not None and self.machine is None):
            return (self.nccl,)
        running = release.names() if self.machine is None else catalogue.load(self.machine).releases
        shared = (self.ranks_per_gpu or 1) > 1
        return tuple(name for name in running if not shared or release.load(name).environment.shares_gpus is not None)

    @property
    def site(self) -> str | None:
        """The name by which calibrations refer to the machine: the machine's own name, or the name of the topology
        file. None for a topology that only says where GPUs are."""
        if self.topology is None or self.gpu is not None:
            return self.machine
        return skeleton.name_of(self.topology)

    @property
    def name(self) -> str:
        """The name of one node: machine or topology file, GPU model, changed hardware."""
        part = f"kind {self.part_of_dump} of its hosts" if self.part_of_dump else None
        own = self.machine or (self.logged and self.logged.name(self.nccl))
        own = own or " ".join(filter(None, [str(self.topology), self.gpu, part]))
        return " with ".join([own, *(f"{key}={value}" for key, value in (self.hardware or {}).items())])

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The different GPU models of all nodes; empty if the GPUs of some node are not known."""
        models = [kind.gpu or (kind.machine and catalogue.load(kind.machine).gpu) for kind in self.kinds]
        return () if None in models else tuple(dict.fromkeys(map(str, models)))

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The different GPUs of all nodes, by the part of NVML's names that identifies them; empty if the GPUs of some
        node are not known."""
        return tuple(dict.fromkeys(map(gpus.chip, self.gpu_models)))

    @property
    def constants(self) -> ConstantsUsed:
        """The constants that an answer is computed with, for the answer's record."""
        fitted = self.fitted_constants.record if self.fitted_constants else None
        return ConstantsUsed(self.nccl, fitted, self.tuner.title if self.tuner else None, self.standing)

    @property
    def standing(self) -> str | None:
        """A sentence that says what the answers rest on, if the release was not compared with its library; None if it
        was."""
        standing = release.load(self.nccl).standing
        return None if standing is None else standing.words

    @property
    def kinds(self) -> tuple["Scenario", ...]:
        """The kinds of equal nodes, each as a scenario of its own: this one, then each of ``others``."""
        return (
            self,
            *(
                replace(
                    other,
                    nccl=self.nccl,
                    environment=self.environment,
                    unset=self.unset,
                    build=self.build,
                    ranks_per_gpu=self.ranks_per_gpu,
                    gpus_per_process=self.gpus_per_process,
                    collnet=self.collnet,
                    tuner=self.tuner,
                )
                for other in self.others
            ),
        )

    @property
    def ranks(self) -> int:
        """The number of ranks. Raises BadInput and BadTopology."""
        return self.resolve().ranks

    def gpus(self) -> int:
        """The number of GPUs used per node: as described, or all. BadInput if a node has fewer than described."""
        return self.resolve().own.gpus * (self.resolve().own.trays or 1)

    def local_ranks(self) -> int:
        """The number of ranks on each node of the first kind. Raises BadTopology, and BadInput, also for GPUs that
        cannot be shared."""
        return len(self.resolve().own.gpu_of_rank) * (self.resolve().own.trays or 1)

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks are on one GPU of any node. Raises BadInput and BadTopology."""
        return any(kind.shares_gpus for kind in self.resolve().kinds)

    def check_gpu_for_each_rank(self, what: str) -> None:
        """Raises BadInput if ranks share GPUs: ``what`` is only known if each rank has its own GPU."""
        if self.shares_gpus:
            raise BadInput(f"{what} is not possible if ranks share a GPU: set {option('ranks_per_gpu')} 1")

    @property
    def hosts_per_domain_in_words(self) -> str | None:
        """The numbers of hosts per domain, in the form of the option; None if there are no domains."""
        sizes = self.hosts_per_domain
        return None if sizes is None else ",".join(map(str, sizes if isinstance(sizes, tuple) else (sizes,)))

    def communicator(self) -> Comm:
        """The emulator's communicator as rank 0 sees it: the first of :attr:`ResolvedScenario.views`."""
        return self.resolve().views[0]

    def oracle_configuration(self) -> "OracleConfiguration":
        """The communicator as the oracle takes it: :meth:`ResolvedScenario.oracle_configuration`."""
        return self.resolve().oracle_configuration()
