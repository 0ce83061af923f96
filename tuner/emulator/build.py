"""Everything NCCL's init derives before it tunes, from the nodes of a communicator."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.base.errors import BadInput, Remedy
from tuner.base.names import Algorithm
from tuner.base.spelling import option
from tuner.emulator.communicator import AnyMergesAdapters, Comm, Node
from tuner.emulator.rules import collnet, init, resolved
from tuner.machine.adapters import refuse_contradiction, selecting
from tuner.machine.graphs import EMPTY, OF_ALGORITHM, Graph, Graphs
from tuner.release import Release, variables
from tuner.release.environment import Environment
from tuner.release.standing import refuse_not_read

_JOINED = ("LOC", "NVL")  # path types between ranks on one GPU, and over NVLink


def build(
    release: Release,
    alike: Sequence[tuple[Node, int]],
    environment: Environment,
    whole: Comm | None = None,
) -> Comm:
    """Builds the communicator as rank 0 sees it, which is the first GPU of the first node. ``alike``: nodes in the
    order of ranks, each with the number of equal nodes in a row. ``whole``: the communicator it was split from, if the
    two share resources.

    BadInput for an invalid shape, and if a variable is set that the emulation of this release does not know. Source:
    initTransportsRank (src/init.cc) and ncclTopoPostset (src/graph/connect.cc), v2.28.9-1.
    """
    kinds, nodes, ranks = _kinds(alike)
    _check_environment(release, environment, kinds, nodes)
    environment = _as_read(release, environment)
    rules = resolved.rules_for(release)
    with_collnet = _with_collnet(environment, kinds)
    searched = [
        init.searched(kind.graphs, environment, with_collnet) | init.without_channels(release, rules, environment, kind)
        for kind in kinds
    ]
    for kind, each in zip(kinds, searched, strict=True):
        init.check_nvls_heads(release, each.get("nvls", EMPTY).channels)
        init.check_heads_of_node(release, each.get("nvls", EMPTY).channels, len(kind.comp_caps))
    graphs, channels = _weakest(searched, release)
    if any(release.search.devices.is_rubin(cap) for kind in kinds for cap in kind.comp_caps):
        refuse_not_read(release.name, release.standing, "rubin")
    first, comp_caps = kinds[0], rules.comp_caps([cap for kind in kinds for cap in kind.comp_caps])
    local_ranks = [len(kind.comp_caps) for kind in kinds]
    own_net_gbs = release.search.routing.net_gbs == "slowest_adapter"  # ranks do not agree on this number
    net_gbs = first.net_gbs if own_net_gbs else min(kind.net_gbs for kind in kinds)
    cpus = [(kind.cpu_arch, kind.cpu_vendor) for kind in kinds]
    cpu_arch, cpu_vendor = rules.cpu(cpus)
    table_cpu_arch, table_cpu_vendor = rules.table_cpu(cpus)
    in_network = collnet.CollNetFacts(
        release, environment, with_collnet, nodes, max(local_ranks), graphs, first, searched[0]
    )
    network = collnet.set_up(rules, in_network)
    facts = init.InitFacts(
        release=release,
        rules=rules,
        environment=environment,
        nodes=nodes,
        ranks=ranks,
        wholes=1 if nodes == first.parts_of_whole else nodes,
        comp_cap=first.comp_caps[0],
        min_comp_cap=min(comp_caps),
        ring=graphs[Algorithm.Ring],
        nvls=graphs[Algorithm.NVLS],
        own_nvls=searched[0].get("nvls", EMPTY),
        min_local_ranks=min(local_ranks),
        net_gbs=net_gbs,
        collnet_chain=graphs[Algorithm.CollNetChain] if network else None,
        shared=whole,
    )
    communicator = Comm(
        release=release,
        environment=environment,
        ranks=ranks,
        nodes=nodes,
        nodes_are_alike=len(kinds) == 1,
        local_ranks=local_ranks[0],
        min_local_ranks=min(local_ranks),
        max_local_ranks=max(local_ranks),
        lsa_ranks=math.gcd(*local_ranks),
        graphs=graphs,
        channels=init.channels(facts, channels),
        copied_from=init.copied_from(facts, channels),
        coll_channels=init.coll_channels(facts, channels),
        nvls_channels=init.nvls_channels(facts),
        min_comp_cap=min(comp_caps),
        max_comp_cap=max(comp_caps),
        cpu_arch=cpu_arch,
        cpu_vendor=cpu_vendor,
        table_cpu_arch=table_cpu_arch,
        table_cpu_vendor=table_cpu_vendor,
        tree_pattern=rules.tree_pattern([graphs["tree"].pattern for graphs in searched]),
        has_nvswitch=first.has_nvswitch,
        direct_nvlink=first.direct_nvlink and graphs[Algorithm.Ring].type_intra in _JOINED,
        net_gbs=net_gbs,
        gpu_direct=first.gpu_direct,
        shares_gpus=any(kind.shares_gpus for kind in kinds),
        hosts=first.hosts,
        fabric=first.fabric,
        splits_hosts=any(kind.parts_of_whole > 1 for kind in kinds),
        ctas=facts.ctas(),
        collnet=network,
        rules=rules,
        links=first.links,
        merges_adapters=AnyMergesAdapters(tuple(kinds)),
        network=first.network if len({kind.network for kind in kinds}) == 1 else None,
        network_reduces=first.network_reduces,
        offers_gin=first.offers_gin if len({kind.offers_gin for kind in kinds}) == 1 else None,
        shared=whole,
    )
    init.check_shared(communicator)
    return communicator


def _kinds(alike: Sequence[tuple[Node, int]]) -> tuple[list[Node], int, int]:
    """The kinds of nodes, that of the first node first; the number of nodes, and the number of ranks."""
    kinds: list[Node] = []
    for node, number in alike:
        if number and node not in kinds:
            kinds.append(node)
    if not kinds:
        raise BadInput("the communicator has no nodes: give 1 or more")
    ranks = sum(number * len(node.comp_caps) for node, number in alike)
    if ranks < 2:
        raise BadInput("with one rank NCCL only copies and picks nothing: give two ranks or more")
    return kinds, sum(number for _, number in alike), ranks


def _weakest(searched: Sequence[Graphs], release: Release) -> tuple[dict[Algorithm, Graph], int]:
    """For each algorithm, the weakest graph of all kinds of nodes; ring and tree both get the smaller of their numbers
    of channels."""
    weakest = {
        name: init.weakest([graphs.get(name, EMPTY) for graphs in searched], release.paths.types)
        for name in set(OF_ALGORITHM.values())
    }
    channels = min(weakest[name].channels for name in ("tree", "ring"))
    graphs = {algorithm: weakest[name] for algorithm, name in OF_ALGORITHM.items()}
    for algorithm in (Algorithm.Tree, Algorithm.Ring, Algorithm.PAT):
        graphs[algorithm] = init.with_channels(graphs[algorithm], channels)
    return graphs, channels


def with_release(communicator: Comm, release: Release) -> Comm:
    """The communicator with other constants and rules, such as fitted ones. Everything that init derived stays."""
    return replace(communicator, release=release, rules=resolved.rules_for(release))


def _as_read(release: Release, environment: Environment) -> Environment:
    """The variables that the release reads, without those that only other releases read."""
    none = variables.ignored(release, environment.values)
    read = {name: value for name, value in environment.values.items() if name not in none}
    return replace(environment, values=read, non_numeric_is_default=release.environment.non_numeric_is_default)


def _check_environment(release: Release, environment: Environment, kinds: Sequence[Node], nodes: int) -> None:
    for kind in kinds:
        refuse_contradiction(kind.network, environment.values)
    agreed = set.intersection(*(selecting(kind.network, environment.values, nodes) for kind in kinds))
    if unknown := variables.not_emulated(release, environment.values.keys() - environment.searched - agreed):
        if set(unknown) <= set(release.environment.search):
            raise BadInput(
                f"{', '.join(unknown)}: NCCL searches graphs with these variables, but the given graphs were found "
                f"without them: remove {option('graphs')}"
            )
        valid = (
            f"without {', '.join(unknown)}"
            if variables.OF_THE_NETWORK.issuperset(unknown)
            else f"{', '.join(release.environment.known)}, "
            f"and {len(release.indifferent_variables)} that reach no choice, such as NCCL_DEBUG"
        )
        raise BadInput(
            f"{', '.join(unknown)}: not emulated for NCCL {release.name}{variables.nearest(release, unknown[0])}; "
            f"valid: {valid}"
        ).cured(*(Remedy("env", None, name) for name in unknown))


def _with_collnet(environment: Environment, kinds: Sequence[Node]) -> bool:
    """Whether CollNet is on: allowed, with a network on every node that can reduce. BadInput if only some nodes have
    such a network."""
    reduces = {kind.network_reduces for kind in kinds}
    requested = collnet.requested(environment)
    if requested and len(reduces) > 1:
        raise BadInput(
            "NCCL_COLLNET_ENABLE=1 is not emulated if only some nodes have a network that reduces: set it to 0"
        )
    return requested and reduces == {True}
