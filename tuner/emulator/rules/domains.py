"""NVLink domains: whether NCCL takes the hosts that NVLink joins (multi-node NVLink, MNNVL) for one node.

A domain is a cluster of GPUs on one NVLink fabric, of one clique, as NVML tells each rank.
"""

from collections.abc import Callable, Sequence

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.numerics import parse_long
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.release.environment import Environment

ENABLE = "NCCL_MNNVL_ENABLE"
CLUSTER, CLIQUE = "NCCL_MNNVL_UUID", "NCCL_MNNVL_CLIQUE_ID"
IF_THERE = 2  # default of NCCL_MNNVL_ENABLE
NOT_SET, BY_RACK = -1, -2  # of NCCL_MNNVL_CLIQUE_ID; BY_RACK asks NVML for the rack


@dataclass(frozen=True, slots=True)
class DomainHosts:
    """The hosts of a communicator and what joins them; ``ready``: NVML says of every rank that its GPU has joined."""

    environment: Environment
    hosts: int
    domains: Sequence[int]  # hosts of each, in the order of ranks; empty: there is no fabric
    ready: bool

    @property
    def usable(self) -> bool:
        """Whether NCCL finds the fabric at all: it needs all ranks on it, and memory that it can share over it."""
        memory = self.environment.number("NCCL_CUMEM_ENABLE", -2) != 0
        return bool(self.domains) and self.ready and memory


FabricRule = Callable[[DomainHosts], Sequence[int]]
RULES: Registry[FabricRule] = Registry()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.18.1"))
def hosts_are_nodes(fabric: DomainHosts) -> Sequence[int]:
    """The release knows of no NVLink between hosts."""
    return ()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.20.5"))
def only_the_whole_communicator(fabric: DomainHosts) -> Sequence[int]:
    """One domain of all ranks is tuned as one node while the graphs are those of hosts: BadInput, not emulated."""
    if fabric.usable and fabric.hosts > 1 and len(fabric.domains) == 1:
        raise BadInput(
            "a NVLink domain of all hosts: this release of NCCL tunes it as one node but searches host by host, "
            "which is not emulated; valid: several domains, whose hosts it takes for nodes, or a later release"
        )
    return ()


@RULES(nccl.CHECK_MNNVL(since="2.21.5"))
def cliques_or_failure(fabric: DomainHosts) -> Sequence[int]:
    """BadInput where NCCL_MNNVL_ENABLE=1 asks for what is not there, at which NCCL gives up."""
    wanted = fabric.environment.c_int(ENABLE, IF_THERE)
    if fabric.hosts > 1 and wanted == 1 and not fabric.usable:
        raise BadInput(f"{ENABLE}=1: NCCL then fails without a NVLink domain: MNNVL is not supported on this system")
    return fabric.domains if fabric.usable and fabric.hosts > 1 and wanted else ()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.25.1"))
def cliques(fabric: DomainHosts) -> Sequence[int]:
    """On one host only where the variable asks for it."""
    wanted = fabric.environment.c_int(ENABLE, IF_THERE)
    return _joined(fabric) if fabric.usable and (wanted == 1 or (fabric.hosts > 1 and wanted)) else ()


@RULES(nccl.INIT_TRANSPORTS_RANK(since="2.27.3"))
def cliques_of_peers(fabric: DomainHosts) -> Sequence[int]:
    """The same, but none where peer-to-peer is off."""
    if fabric.environment.c_int(ENABLE, IF_THERE) != 1 and _no_peer_to_peer(fabric.environment):
        return ()
    return cliques(fabric)


def _joined(fabric: DomainHosts) -> Sequence[int]:
    """The hosts of each clique: a domain's, or all where a variable gives all GPUs the same cluster."""
    cluster = fabric.environment.number(CLUSTER, NOT_SET)
    clique = fabric.environment.number(CLIQUE, NOT_SET)
    if cluster == NOT_SET:
        return fabric.domains
    if cluster == 0:
        return ()
    if clique == BY_RACK:
        return fabric.domains
    return (sum(fabric.domains),)


def _no_peer_to_peer(environment: Environment) -> bool:
    """Whether NCCL_P2P_DISABLE or NCCL_P2P_LEVEL leaves none (ncclGetUserP2pLevel, src/graph/paths.cc)."""
    disable, level = environment.text("NCCL_P2P_DISABLE"), environment.text("NCCL_P2P_LEVEL")
    if disable is not None and parse_long(disable) == 1:
        return True
    return level == "LOC" or (level is not None and level[:1].isdigit() and parse_long(level) == 0)
