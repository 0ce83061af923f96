"""Sends and receives against the live libnccl, exactly: kernels, channels, works, protocols, chunks, order."""

import random
from dataclasses import replace
from itertools import product

import pytest

from tests.support.available_releases import HERE
from tests.support.check_exchange import compare, compare_mixed
from tests.support.draws import Draws
from tests.support.random_exchanges import KINDS, draw, scenarios
from tests.support.random_groups import random_groups, rings_of_works
from tests.support.random_windows import GIN_TYPE, drawn_windows
from tuner.answers.exchanges import ExchangeQuery, answers, uneven
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import SYMMETRIC, Buffers, Collective, DataType, Op, PeerCall, Windows
from tuner.emulator.group import Operation, not_emulated
from tuner.emulator.p2p.mixed import plan
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.rules.schedule.scheduler import NOT_DONE
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall
from tuner.release import load
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (3, 2)])
@pytest.mark.parametrize("name", HERE)
def test_groups_of_all_kinds(name: str, nodes: int, gpus: int) -> None:
    resolved = ResolvedScenario(Scenario(nccl=name, machine="dgx-a100", nodes=nodes, gpus_per_node=gpus))
    generator, own = random.Random(2026), load(name).exchange.own_functions
    with Oracle(resolved.oracle_configuration()) as oracle:
        for kind in KINDS if own else [kind for kind in KINDS if not kind.startswith("nccl")]:
            for _ in range(3):
                rank = generator.randrange(nodes * gpus)
                calls = draw(kind, rank, nodes * gpus, generator)
                assert compare(p2p_context(resolved, rank), oracle, calls) == {}, kind


MOST_OF_ONE = 5  # groups of a kind on one communicator


@pytest.mark.slow
@pytest.mark.parametrize("buffers", Buffers, ids=lambda each: each.name)
@pytest.mark.parametrize("name", HERE)
def test_random_communicators_and_groups(name: str, buffers: Buffers, draws: Draws) -> None:
    """Of machines, nodes that differ, domains and shared GPUs, with variables; beside collectives with any roots."""
    if missing(load(name), buffers):
        pytest.skip(f"NCCL {name} has no such buffers")
    generator = draws.random(f"exchanges {name} {buffers.name}")
    kinds = [kind for kind in KINDS if load(name).exchange.own_functions or not kind.startswith("nccl")]
    drawn, compared = scenarios(name, f"{draws.seed} {buffers.name}"), 0
    while compared * MOST_OF_ONE < draws.times:
        scenario = with_variables(next(drawn), buffers, generator)
        windows = drawn_windows(name, generator) if buffers is Buffers.window else SYMMETRIC
        resolved, own = scenario.resolve(), min(draws.times, MOST_OF_ONE)
        selection, seed = Selection(resolved.views[0]), generator.randrange(1 << 30)
        groups = [
            each
            for each in random_groups(selection, own, most=40, seed=seed, on=(buffers, False), windows=windows)
            if is_emulated(selection, each[0].request)
        ]
        try:
            started = Oracle(scenario.oracle_configuration())
        except BadInput:  # what the oracle cannot make, as of nodes with and without peer-to-peer
            continue
        compared += 1
        with started as oracle:
            for kind in kinds * own:
                rank = generator.randrange(scenario.ranks)
                calls = draw(kind, rank, scenario.ranks, generator)
                compare_drawn(resolved, oracle, rank, ([], calls), (buffers, windows))
            for given in groups:
                # Buffers of collectives are registered on rank 0.
                rank = 0 if buffers is not Buffers.plain else generator.randrange(scenario.ranks)
                calls = draw(generator.choice(("alone", "all-to-all", "random")), rank, scenario.ranks, generator)
                operations = [replace(each, root=generator.randrange(scenario.ranks)) for each in given]
                compare_drawn(resolved, oracle, rank, (operations, calls), (buffers, windows))


def compare_drawn(
    resolved: ResolvedScenario,
    oracle: Oracle,
    rank: int,
    group: tuple[list[Operation], list[ExchangeCall]],
    on: tuple[Buffers, Windows],
) -> None:
    """What is refused here is not asked: groups that NCCL never ends, or that are not emulated beside collectives."""
    selection, where = Selection(resolved.view_of(rank)), p2p_context(resolved, rank)
    try:
        different = compare_mixed(selection, where, oracle, group, on)
    except NoAlgorithm:
        return
    except BadInput as error:
        refusals = ("never returns", NOT_DONE, *(["not emulated"] if group[0] else []))
        if not any(words in str(error) for words in refusals):
            raise
        return
    assert different == {}, f"{resolved.scenario.title} {resolved.scenario.environment} rank {rank}"


def is_emulated(selection: Selection, request: Request) -> bool:
    try:
        return not_emulated(selection, [request]) is None
    except BadInput:
        return False


def with_variables(scenario: Scenario, buffers: Buffers, generator: random.Random) -> Scenario:
    """With variables that reach such buffers; of windows between nodes they say whether there is GIN."""
    drawn, rules = dict[str, str](), load(scenario.nccl).rules
    if buffers is Buffers.window and scenario.nodes > 1:
        drawn[GIN_TYPE] = generator.choice("03")
    if buffers is Buffers.graph and generator.random() < 0.3:  # does not reach works of graphs
        in_works = rings_of_works(load(scenario.nccl))
        drawn |= {"NCCL_WORK_FIFO_DEPTH": "128"} if in_works else {"NCCL_WORK_FIFO_BYTES": "512"}
    if buffers is not Buffers.plain and rules.symmetric_low_latency and generator.random() < 0.2:
        drawn[WITHOUT_WINDOWS] = "1"
    return replace(scenario, environment={**(scenario.environment or {}), **drawn})


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("name", HERE)
def test_registration_reaches_nothing_that_is_answered(name: str, buffers: Buffers) -> None:
    of = load(name).rules
    if not of.registered or (buffers is Buffers.window and of.non_classic_path == "classic_path_only"):
        pytest.skip(f"NCCL {name} has no such buffers")
    generator, own = random.Random(4), load(name).exchange.own_functions
    for machine, nodes, gpus in (("dgx-h100", 1, 4), ("pcie-l40s", 2, 1)):
        resolved = ResolvedScenario(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus))
        with Oracle(resolved.oracle_configuration()) as oracle:
            for kind in KINDS if own else [kind for kind in KINDS if not kind.startswith("nccl")]:
                rank = generator.randrange(nodes * gpus)
                calls = draw(kind, rank, nodes * gpus, generator)
                assert compare(p2p_context(resolved, rank), oracle, calls, buffers) == {}, kind


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("name", HERE)
def test_all_to_all_with_unequal_parts(name: str, machine: str) -> None:
    """As experts of a model get tokens: a few ranks most, some none, and each rank its own."""
    nodes, gpus = 2, 4
    ranks, generator = nodes * gpus, random.Random(12)
    resolved = ResolvedScenario(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus))
    with Oracle(resolved.oracle_configuration()) as oracle:
        for count in (ranks, ranks * ranks):
            for rank in (0, 3, 6):
                parts = [generator.choice((0, 4, 4 << 10, 3 << 18, 4 << 20)) for _ in range(count)]
                calls = uneven(parts, ranks, DataType.float32, rank)
                assert compare(p2p_context(resolved, rank), oracle, calls) == {}


COPIED = {"NCCL_CTA_POLICY": "2"}


@pytest.mark.parametrize("environment", [{}, COPIED, COPIED | {"NCCL_WIN_ENABLE": "0"}], ids=str)
@pytest.mark.parametrize("name", [name for name in HERE if load(name).exchange.own_functions])
def test_copy_engines_do_calls_on_windows(name: str, environment: dict[str, str]) -> None:
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4, environment=environment)
    copied = environment == COPIED
    with Oracle(scenario.oracle_configuration()) as oracle:
        for function, buffers in product((PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter), Buffers):
            if buffers is Buffers.graph:
                continue
            for rank in (0, 2):
                asked = ExchangeQuery(function, [1 << 20], DataType.float32, rank, 0, buffers)
                (answer,) = answers(scenario, asked)
                launched = oracle.launch_in_full(
                    [IssuedCall(function, DataType.float32, 1 << 16, 0)], rank, buffers
                ).kernels
                assert answer.launch is not None
                assert bool(answer.launch.copy_engines) == (copied and buffers is Buffers.window)
                ours = [(each.channels, each.threads) for each in answer.launch.kernels]
                assert ours == [(each.channels, each.threads) for each in launched]


@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 8), ("dgx-a100", 2, 4)])
@pytest.mark.parametrize("name", HERE)
def test_beside_collectives(name: str, machine: str, nodes: int, gpus: int) -> None:
    """Sends and receives of rank 0 follow the collectives, in their last kernel."""
    resolved = ResolvedScenario(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus))
    selection, generator = Selection(resolved.views[0]), random.Random(2026)
    where, shared = p2p_context(resolved), 0
    with Oracle(resolved.oracle_configuration()) as oracle:
        for operations in random_groups(selection, 6, most=20):
            calls = draw(generator.choice(("alone", "all-to-all", "random")), 0, nodes * gpus, generator)
            assert compare_mixed(selection, where, oracle, (operations, calls)) == {}
            shared += any(each.tasks and each.exchange for each in plan(selection, where, operations, calls)[0])
    assert shared


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 8), ("dgx-a100", 2, 4)])
@pytest.mark.parametrize("name", HERE)
def test_roots_of_all_kinds(name: str, machine: str, nodes: int, gpus: int) -> None:
    """They reach nothing but broadcasts from several roots, which 2.29.2 and later releases put together."""
    resolved = ResolvedScenario(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus))
    selection, generator = Selection(resolved.views[0]), random.Random(7)
    with Oracle(resolved.oracle_configuration()) as oracle:
        for given in random_groups(selection, 6, most=40, seed=5):
            operations = [replace(each, root=generator.randrange(nodes * gpus)) for each in given]
            group = operations, draw("alone", 0, nodes * gpus, generator)
            assert compare_mixed(selection, p2p_context(resolved), oracle, group) == {}


@pytest.mark.parametrize("name", [name for name in HERE if load(name).exchange.broadcasts_together])
def test_broadcasts_from_several_roots_apart(name: str) -> None:
    """Then they do not wait for the other calls either."""
    apart = {"NCCL_ALLGATHERV_ENABLE": "0"}
    scenario = Scenario(name, 2, machine="dgx-a100", gpus_per_node=2, environment=apart)
    selection = Selection(scenario.communicator())
    calls = (Collective.Broadcast, 0), (Collective.Broadcast, 1), (Collective.Reduce, 0)
    requests = [(Request(collective, DataType.float32, Op.sum), root) for collective, root in calls]
    operations = [Operation(request, 1 << 20, root) for request, root in requests]
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert compare_mixed(selection, p2p_context(scenario.resolve()), oracle, (operations, [])) == {}


@pytest.mark.parametrize(
    "scenario",
    [
        *(
            Scenario(name, 1, machine="dgx-a100", gpus_per_node=4, environment={"NCCL_P2P_DISABLE": "1"})
            for name in ("2.29.7", "2.30.3", "2.30.7", "2.31.2")
        ),
        Scenario("2.20.5", 3, machine="dgx-h100", gpus_per_node=2, hosts_per_domain=2),
        Scenario("2.20.5", 2, machine="dgx-h100", gpus_per_node=2, hosts_per_domain=(1, 1)),
    ],
    ids=lambda scenario: scenario.title,
)
def test_nodes_that_shared_memory_or_nvlink_joins(scenario: Scenario) -> None:
    """Hosts that NCCL treats as several nodes, and NVLink domains whose hosts it treats as nodes."""
    if scenario.nccl not in HERE:
        pytest.skip(f"no libnccl {scenario.nccl} here")
    resolved, generator = scenario.resolve(), random.Random(5)
    with Oracle(scenario.oracle_configuration()) as oracle:
        for kind in ("all-to-all", "all-to-all-v", "ring", "random"):
            for rank in range(scenario.ranks):
                calls = draw(kind, rank, scenario.ranks, generator)
                assert compare(p2p_context(resolved, rank), oracle, calls) == {}, kind


@pytest.mark.parametrize("variables", [{}, {"NCCL_MNNVL_ENABLE": "0"}], ids=str)
@pytest.mark.parametrize("name", HERE)
def test_domains_that_the_communicator_does_not_use(name: str, variables: dict[str, str]) -> None:
    """Without memory that fabrics share hosts are nodes; up to 2.22 they reach each other over NVLink all the same."""
    settings = {"NCCL_CUMEM_ENABLE": "0"} | variables
    own = Scenario(name, 3, machine="dgx-h100", gpus_per_node=2, hosts_per_domain=(2, 1), environment=settings)
    resolved, generator = ResolvedScenario(own), random.Random(7)
    with Oracle(resolved.oracle_configuration()) as oracle:
        for kind, rank in (("all-to-all", 1), ("ring", 1), ("all-to-all-v", 3), ("all-to-all", 4)):
            calls = draw(kind, rank, own.ranks, generator)
            assert compare(p2p_context(resolved, rank), oracle, calls) == {}, kind


@pytest.mark.parametrize("name", [name for name in ("2.23.4", "2.24.3") if name in HERE])
def test_hosts_of_domains_that_are_nodes_without_peer_to_peer(name: str) -> None:
    """NCCL 2.23 connects them over NVLink, whatever NCCL_P2P_DISABLE says; later releases crash or do as it says."""
    settings = {"NCCL_P2P_DISABLE": "1"}
    own = Scenario(name, 3, machine="dgx-h100", gpus_per_node=1, hosts_per_domain=(2, 1), environment=settings)
    resolved, generator = ResolvedScenario(own), random.Random(7)
    assert resolved.views[0].nodes == 3
    with Oracle(resolved.oracle_configuration()) as oracle:
        for kind, rank in (("all-to-all", 1), ("ring", 0), ("all-to-all-v", 2)):
            calls = draw(kind, rank, own.ranks, generator)
            assert compare(p2p_context(resolved, rank), oracle, calls) == {}, kind


@pytest.mark.parametrize("variable", ["NCCL_NCHANNELS_PER_NET_PEER", "NCCL_P2P_LL_THRESHOLD", "NCCL_WORK_ARGS_BYTES"])
@pytest.mark.parametrize("name", HERE)
def test_numbers_below_zero(name: str, variable: str) -> None:
    """They are unset, limit nothing, or are huge, by the type that C compares them as."""
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment={variable: "-2"})
    generator = random.Random(2)
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert compare(p2p_context(scenario.resolve()), oracle, draw("all-to-all-v", 0, 4, generator)) == {}


def test_kernels_that_are_full() -> None:
    """Many messages take several kernels, which hold as much as NCCL's."""
    resolved = ResolvedScenario(Scenario(nccl=HERE[-1], machine="dgx-h100", nodes=1, gpus_per_node=8))
    calls = [ExchangeCall(call, DataType.int8, 1 << 24, peer) for peer in range(8) for call in _BOTH] * 30
    with Oracle(resolved.oracle_configuration()) as oracle:
        issued = [IssuedCall(call.function, call.dtype, call.count, call.root) for call in calls]
        assert len(oracle.launch_in_full(issued).kernels) > 1
        assert compare(p2p_context(resolved), oracle, calls) == {}


@pytest.mark.parametrize("name", [name for name in HERE if load(name).limits.work_fifo_holds_group])
def test_a_group_that_the_work_fifo_does_not_hold(name: str) -> None:
    """NCCL waits for room in it until all kernels of the group are launched."""
    few = {"NCCL_WORK_FIFO_BYTES": "8192", "NCCL_MAX_P2P_NCHANNELS": "2"}
    scenario = Scenario(name, 1, machine="dgx-h100", gpus_per_node=8, environment=few)
    calls = [ExchangeCall(PeerCall.Send, DataType.int8, 4096, peer) for peer in range(1, 8)]
    issued = [IssuedCall(call.function, call.dtype, call.count, call.root) for call in calls]
    where = p2p_context(scenario.resolve())
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert compare(where, oracle, calls * 24) == {}
        with pytest.raises(BadInput, match="NCCL never returns"):
            compare(where, oracle, calls * 40)
        oracle.timeout_s = 2  # other groups take milliseconds
        with pytest.raises(OracleFailed, match="did not answer"):
            oracle.launch_in_full(issued * 40)


_BOTH = (PeerCall.Send, PeerCall.Recv)


def test_functions_of_later_releases_are_refused() -> None:
    resolved = ResolvedScenario(Scenario(nccl="2.28.9", machine="dgx-a100", nodes=1, gpus_per_node=2))
    call = IssuedCall(PeerCall.AllToAll, DataType.float32, 4)
    with Oracle(resolved.oracle_configuration()) as oracle:
        assert oracle.launch_in_full([call]).kernels
    if "2.27.7" not in HERE:
        pytest.skip("no libnccl 2.27.7 here")
    before = ResolvedScenario(Scenario(nccl="2.27.7", machine="dgx-a100", nodes=1, gpus_per_node=2))
    with Oracle(before.oracle_configuration()) as oracle, pytest.raises(BadInput, match="has no ncclAlltoAll"):
        oracle.launch_in_full([call])
