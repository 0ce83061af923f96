"""A scenario resolved: its kinds of nodes, its communicator for the emulator, its configuration for libnccl."""

from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.errors import BadInput
from tuner.emulator.build import build
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import cta_policy, resolved
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.scenario.description import Scenario
from tuner.scenario.node import ResolvedNode

if TYPE_CHECKING:
    from tuner.oracle.configuration import OracleConfiguration


class ResolvedScenario:
    """What emulator and oracle take of a scenario. Each part is made when it is first asked for, and kept.

    ``kinds`` are the kinds of nodes in the order of ranks; none is resolved twice.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def with_nodes(self, nodes: int) -> "ResolvedScenario":
        """The scenario with so many of its first kind of nodes, none of which is resolved again."""
        other = ResolvedScenario(replace(self.scenario, nodes=nodes))
        other.kinds = (self.own.with_nodes(nodes), *self.kinds[1:])
        other.release = self.release
        vars(other.scenario)["_resolved"] = other  # what it resolves to is known
        return other

    @cached_property
    def kinds(self) -> tuple[ResolvedNode, ...]:
        """The kinds of nodes in the order of ranks."""
        return tuple(map(ResolvedNode, self.scenario.kinds))

    @property
    def own(self) -> ResolvedNode:
        """The first kind of nodes, rank 0's."""
        return self.kinds[0]

    @cached_property
    def ranks(self) -> int:
        """The ranks of the whole communicator."""
        return sum(kind.nodes * len(kind.gpu_of_rank) for kind in self.kinds)

    @cached_property
    def release(self) -> Release:
        """NCCL's release with the scenario's constants. BadInput for those fitted to another machine or release."""
        nccl, constants = release.load(self.scenario.nccl), self.scenario.fitted_constants
        if constants is None:
            return nccl
        measured = constants.provenance.get("machine")
        names = {kind.scenario.machine for kind in self.kinds} - {None}
        if measured is not None and names - {measured}:
            raise BadInput(f"--constants {constants.file}: measured on {measured}, not {', '.join(map(str, names))}")
        from tuner.emulator import fitted_constants

        return fitted_constants.apply(nccl, constants)

    @cached_property
    def views(self) -> tuple[Communicator, ...]:
        """The communicator as rank 0 sees it, then as the ranks of each of the scenario's ``others`` do.

        They may differ, because NCCL does not exchange everything it tunes with; they are one where nodes are alike.
        Graphs come from the catalogue, from a dump, or from the search.
        """
        nccl, searched = self.release, frozenset[str]()
        self._check_sharing()
        self.scenario.check_no_domains("the emulator")
        if all(kind.searches for kind in self.kinds):
            searched = frozenset(nccl.environment.search)
        environment = Environment(self.scenario.environment or {}, searched)
        several = sum(kind.nodes for kind in self.kinds) > 1
        nodes = [(kind.for_emulator(several), kind.nodes) for kind in self.kinds]
        return tuple(
            build(nccl, [own, *nodes[:first], *nodes[first + 1 :]], environment) for first, own in enumerate(nodes)
        )

    def _check_sharing(self) -> None:
        """BadInput where a node's own search does not tell whether its NVLS is off."""
        rule, placed = resolved.of(self.release).nvls_if_shared, [kind.gpu_of_rank for kind in self.kinds]
        if rule is not None and rule(placed) != any(rule([gpus]) for gpus in placed):
            raise BadInput(
                f"NCCL {self.release.name} leaves NVLS on where the last two ranks of all have a GPU each and others "
                "share; not emulated where nodes differ so; valid: the nodes whose ranks share GPUs last"
            )

    def oracle_configuration(self) -> "OracleConfiguration":
        """The same communicator for the oracle. BadInput for what libnccl cannot take: other constants, graphs."""
        if self.scenario.fitted_constants is not None:
            raise BadInput("--constants: libnccl computes with its own constants; valid for: pick, table, group")
        if any(kind.scenario.graphs is not None for kind in self.kinds):
            raise BadInput("--graphs: libnccl searches its own graphs; valid for it: --machine, --topology")
        own, *others = (kind.for_oracle(kind.nodes) for kind in self.kinds)
        if any(other.env != own.env for other in others):
            raise BadInput("the nccl.conf of these machines differ, and libnccl runs in one process here; valid: alike")
        joined = replace(own, others=tuple(chain.from_iterable(other.hosts for other in others)))
        hosts, of_domain = len(joined.hosts), self.scenario.hosts_per_domain
        if of_domain is None:
            return joined
        return replace(joined, domains=tuple(min(of_domain, hosts - first) for first in range(0, hosts, of_domain)))

    def oracle_configuration_to_launch(self) -> "OracleConfiguration":
        """The same; without a tuner plugin, so without the recorder, where a variable counts only then."""
        without_tuner = cta_policy.NAME in (self.scenario.environment or {})
        return replace(self.oracle_configuration(), without_tuner=without_tuner)
