"""Communicators of some ranks, as libnccl makes them by ncclCommSplit and ncclCommShrink, against the emulator."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import random_exchanges
from tests.support.available_releases import HERE
from tests.support.check_exchange import compare
from tests.support.draws import Draws
from tests.support.two_ports import with_two_ports
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.scenario import Scenario
from tuner.scenario.description import Members
from tuner.scenario.p2p import p2p_context

Described = tuple[str, int, int | None]
WHOLES: list[list[Described]] = [  # kinds of nodes: machine, nodes, and GPUs or trays used of each
    [("dgx-h100", 1, None)],
    [("dgx-h100", 2, None)],
    [("dgx-h100", 4, 4)],
    [("dgx-a100", 2, None)],
    [("dgx-1v", 1, None)],
    [("dgx-1v", 2, None)],
    [("dgx-b200", 2, None)],
    [("aws-p5", 2, None)],
    [("azure-nd-a100-v4", 2, None)],
    [("pcie-l40s", 1, None)],
    [("pcie-l40s", 2, None)],
    [("hgx-h100-amd", 2, None)],
    [("gh200-4x", 3, None)],
    [("a100-4x-2nic", 3, None)],
    [("gb200-nvl72", 1, 3)],
    [("gb200-nvl72", 2, 2)],
    [("dgx-h100", 1, None), ("dgx-a100", 1, None)],
    [("dgx-h100", 2, 3), ("dgx-h100", 1, 6)],
]
SETTINGS: list[dict[str, str]] = [
    {},
    {},
    {"NCCL_MAX_NCHANNELS": "6"},
    {"NCCL_MIN_NCHANNELS": "20"},
    {"NCCL_MIN_CTAS": "12", "NCCL_MAX_CTAS": "24"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_MIN_P2P_NCHANNELS": "8"},
    {"NCCL_ALGO": "Ring"},
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_P2P_LEVEL": "PHB"},
    {"NCCL_P2P_NVL_CHUNKSIZE": "100000"},
]


def draw(nccl: str, generator: random.Random) -> Scenario:
    """A communicator of some ranks of one that this release runs on."""
    running = [each for each in WHOLES if all(nccl in catalogue.load(name).releases for name, _, _ in each)]
    first, *others = [_kind(nccl, *one) for one in generator.choice(running)]
    whole = replace(first, others=tuple(others), environment=dict(generator.choice(SETTINGS)))
    ranks = _ranks(whole.ranks, generator)
    shares = generator.random() < 0.5
    by = "shrink" if nccl >= "2.27.3" and len(ranks) < whole.ranks and generator.random() < 0.4 else "split"
    return replace(whole, members=Members(ranks, shares, by))


def _kind(nccl: str, machine: str, nodes: int, used: int | None) -> Scenario:
    if catalogue.load(machine).trays:
        return Scenario(nccl, nodes, machine=machine, trays=used)
    return Scenario(nccl, nodes, machine=machine, gpus_per_node=used)


def _ranks(of: int, generator: random.Random) -> tuple[int, ...]:
    """Two or more: a block, a stride as of tensor and data parallel groups, all but a few, or any."""
    kind = generator.choice(("block", "stride", "all but", "any"))
    if kind == "block":
        size = generator.randint(2, of)
        start = generator.randrange(of - size + 1)
        return tuple(range(start, start + size))
    if kind == "stride":
        step = generator.randint(2, max(2, of // 2))
        start = generator.randrange(step)
        found = tuple(range(start, of, step))
        return found if len(found) > 1 else tuple(range(of))
    if kind == "all but" and of > 3:
        left_out = generator.sample(range(of), generator.randint(1, min(3, of - 2)))
        return tuple(rank for rank in range(of) if rank not in left_out)
    return tuple(sorted(generator.sample(range(of), generator.randint(2, of))))


pytestmark = pytest.mark.live
SIZES = [1 << power for power in range(10, 31, 4)]

CASES = [
    ("2.18.1", 2, Members((1, 3, 8, 9), shares=True)),
    ("2.21.5", 2, Members(tuple(range(4)), shares=True)),
    ("2.28.9", 2, Members((0, 8))),
    ("2.32.3", 2, Members(tuple(range(1, 9)), shares=True, by="shrink")),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", [{}, {"NCCL_NET_MERGE_LEVEL": "PXB"}], ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_a_later_communicator_has_merged_adapters_as_libnccl_has(
    nccl: str, settings: dict[str, str], tmp_path: Path
) -> None:
    """Beside the virtual ones, where the release leaks them."""
    file = tmp_path / "ports.xml"
    file.write_text(with_two_ports(catalogue.load("dgx-h100").topology_xml, "functions"))
    for ranks in ((1, 2, 3, 9, 11), range(16)):
        scenario = Scenario(nccl, 2, topology=file, environment=settings, members=Members(tuple(ranks)))
        report = check(scenario, [ALL_COLLECTIVES[Collective.AllReduce]], [1 << 16, 1 << 22, 1 << 28])
        assert report.mismatches == ()


@pytest.mark.each_choice
@pytest.mark.parametrize("per_process", [2, 8])
@pytest.mark.parametrize("nccl", HERE)
def test_processes_with_several_gpus_merge_adapters_as_libnccls_do(nccl: str, per_process: int, tmp_path: Path) -> None:
    """Refused where the ranks that come later leak, as which they are is a matter of luck."""
    file = tmp_path / "ports.xml"
    file.write_text(with_two_ports(catalogue.load("dgx-h100").topology_xml, "functions"))
    scenario = Scenario(nccl, 2, topology=file, gpus_per_process=per_process)
    rules = release.load(nccl).search.merging
    if rules is not None and rules.leaks:
        with pytest.raises(BadInput, match="for the first rank of a process"):
            scenario.communicator()
        return
    report = check(scenario, [ALL_COLLECTIVES[Collective.AllReduce]], [1 << 16, 1 << 22, 1 << 28])
    assert report.mismatches == ()


@pytest.mark.parametrize(("nccl", "nodes", "members"), CASES)
def test_the_part_is_the_same(nccl: str, nodes: int, members: Members) -> None:
    scenario = Scenario(nccl, nodes, machine="dgx-h100", members=members)
    report = check(scenario, sizes=[scenario.ranks << power for power in (10, 17, 24)])
    assert report.mismatches == ()
    assert report.compared["cells"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("nccl", HERE)
def test_random_parts(nccl: str, draws: Draws) -> None:
    """Graphs, channels, tables, cells, picks, launches and groups, and some sends and receives of one rank."""
    random, compared = draws.random(nccl), 0
    while compared < draws.times:
        scenario = draw(nccl, random)
        try:
            scenario.communicator()
        except BadInput:
            continue
        report = check(scenario, sizes=[size * scenario.ranks for size in SIZES])
        assert report.mismatches == (), f"{scenario.title} {scenario.environment}"
        resolved = scenario.resolve()
        rank = random.randrange(resolved.ranks)
        with Oracle(scenario.oracle_configuration()) as oracle:
            for kind in ("alone", "all-to-all", "random"):
                calls = random_exchanges.draw(kind, rank, resolved.ranks, random)
                assert compare(p2p_context(resolved, rank), oracle, calls) == {}, f"{scenario.title} rank {rank} {kind}"
        compared += 1
