"""A communicator's and a call's own configuration against the live libnccl: drawn fields, selections and groups."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.available_releases import is_here
from tests.support.command_line import run
from tests.support.draws import Draws
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed, TunerError
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import CallConfiguration, Request, parse_call_configuration
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import check as conformance
from tuner.oracle.conformance.mismatches import Comparing
from tuner.release.configuration import fields, parse_configuration
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]

RELEASES = [name for name in ("2.28.9", "2.30.7", "2.31.2", "2.32.3") if is_here(name)]
WITH_CALLS = [name for name in RELEASES if name in ("2.31.2", "2.32.3")]
MACHINES = (
    ("dgx-h100", 1, None),
    ("dgx-h100", 2, 4),
    ("dgx-b200", 1, None),
    ("dgx-b200", 2, 4),
    ("dgx-h100", 1, 2),
    ("dgx-a100", 2, 2),
    ("dgx-h100", 4, 1),
)
CTAS = (1, 2, 5, 12, 24, 32, 40, 64, 100)
FIELDS: Mapping[str, tuple[int | str, ...]] = {
    "minCTAs": CTAS,
    "maxCTAs": CTAS,
    "nvlsCTAs": (1, 4, 8, 17, 24, 32, 40, 70),
    "nChannelsPerNetPeer": (1, 4),
    "splitShare": (0, 1),
    "shrinkShare": (1,),
    "cgaClusterSize": (0, 4),
    "CTAPolicy": (0, 1, 2),
    "collnetEnable": (0, 1),
    "blocking": (1,),
    "commName": ("x",),
    "trafficClass": (3,),
    "nvlinkCentricSched": (1,),
    "graphUsageMode": (0, 2),
    "numRmaCtx": (2,),
    "maxP2pPeers": (8,),
    "graphStreamOrdering": (1,),
    "launchOrderImplicit": (0,),
    "rmaEagerInit": (0,),
    "nvlsHostMode": (0,),
    "netName": ("IB",),
}
VARIABLES = {
    "NCCL_MIN_CTAS": ("-5", "2", "12", "32"),
    "NCCL_MAX_CTAS": ("0", "3", "16", "40"),
    "NCCL_NVLS_NCHANNELS": ("0", "8", "24"),
    "NCCL_MIN_NCHANNELS": ("20",),
    "NCCL_MAX_NCHANNELS": ("5",),
}
OF_CALLS = {
    "NCCL_MIN_CTAS": ("2", "12", "32"),
    "NCCL_MAX_CTAS": ("3", "16", "40"),
    "NCCL_NVLS_NCHANNELS": ("8", "24"),
    "NCCL_ALGO": ("Ring", "^NVLS", "allreduce:tree"),
    "NCCL_PROTO": ("^LL128", "Simple"),
}
SELECTIONS = (
    *("R", "ring", "T", "TREE_L", "RING_LL", "nvls", "NVLS_TREE", "NVLSTREE", "PAT", "^RING", "^ring+^tree"),
    *("RING+^RING_LL", "RING, TREE", "SYMK", "^SYMK", "COLL", "x", "^", "+", "ring,+", "Tree_Simple", "NVLS_S", " "),
    *("ring_simple,pat", " r ing _ ll128", "LL", "^nvls+^ring_simple", "SYMK_LL,RING", "tree+ring"),
)
SIZES = [1 << power for power in range(6, 31, 3)]
COMMUNICATORS, CALLS, GROUPS = 6, 12, 4  # of a release, times what is drawn


def drawn_variables(random: Random, values: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: random.choice(values[name]) for name in random.sample(list(values), random.choice((0, 0, 0, 1, 2)))}


def drawn_configuration(random: Random, nccl: str) -> dict[str, int | str]:
    known = [name for name in FIELDS if release.reader.parts_of(fields()[name].since) <= release.reader.parts_of(nccl)]
    blocks = [name for name in ("minCTAs", "maxCTAs", "nvlsCTAs") if name in known]
    names = [*random.sample(blocks, random.randint(0, 2)), *random.sample(known, random.randint(0, 2))]
    if "minCTAs" in names and random.random() < 0.7:
        names.append("maxCTAs")
    return {name: random.choice(FIELDS[name]) for name in names}


@pytest.mark.parametrize("nccl", RELEASES)
def test_configured_communicators(nccl: str, draws: Draws) -> None:
    random = draws.random(f"configured communicators {nccl}")
    compared = refused = 0
    for _ in range(COMMUNICATORS * draws.times):
        machine, nodes, gpus = random.choice(MACHINES)
        variables, configuration = drawn_variables(random, VARIABLES), drawn_configuration(random, nccl)
        said = f"{machine}, {nodes} nodes, {variables}, {configuration}"
        plain = Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus, environment=variables)
        try:
            made = describe(machine, nodes=nodes, gpus_per_node=gpus, nccl=nccl, env=variables, config=configuration)
            report = conformance.check(made, sizes=SIZES, timeout_s=300)
        except BadInput:
            with (
                pytest.raises(TunerError),
                Oracle(replace(plain.oracle_configuration(), configuration=tuple(configuration.items()))),
            ):
                pytest.fail(f"refused, and libnccl takes it: {said}")
            refused += 1
            continue
        assert report.mismatches == (), said
        compared += 1
    print(f"NCCL {nccl}: {compared} configured communicators equal, {refused} refused as libnccl does")
    assert compared


def drawn_call(random: Random) -> tuple[dict[str, int | str], CallConfiguration | None]:
    fields_: dict[str, int | str] = {}
    if random.random() < 0.65:
        fields_["algSelection"] = random.choice(SELECTIONS)
    if random.random() < 0.3:
        fields_["forceAlgSelection"] = random.choice((0, 1, 1))
    for name in ("minCTAs", "maxCTAs", "nvlsCTAs"):
        if random.random() < 0.25:
            fields_[name] = random.choice((0, 1, 2, 5, 12, 24, 40, 64, 70, -3))
    return fields_, parse_call_configuration(fields_)


@pytest.mark.parametrize("nccl", WITH_CALLS)
def test_configured_calls(nccl: str, draws: Draws) -> None:
    random = draws.random(f"configured calls {nccl}")
    compared = refused = 0
    for _ in range(CALLS // 4 * draws.times):
        machine, nodes, gpus = random.choice(MACHINES)
        variables = drawn_variables(random, OF_CALLS)
        scenario = Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus, environment=variables)
        selection = Selection(scenario.communicator())
        with Oracle(scenario.oracle_configuration(), timeout_s=300) as oracle:
            for _ in range(4):
                given, configuration = drawn_call(random)
                request = replace(random.choice(conformance.ALL_COLLECTIVES), configuration=configuration)
                said = f"{request.collective.name} on {machine}, {nodes} nodes, {variables}, {given}"
                ranks = selection.communicator.ranks
                sizes = [conformance.reachable(request, ranks, 1 << power) for power in (8, 13, 17, 20, 23, 26, 28)]
                try:
                    selection.pick(request, sizes)
                except (BadInput, NoAlgorithm):
                    with pytest.raises(OracleFailed, match="NCCL returned"):
                        pytest.fail(
                            f"refused, and libnccl runs {oracle.launch_on_any_path(request, sizes[:1])}: {said}"
                        )
                    refused += 1
                    continue
                comparing = Comparing()
                conformance.compare_cells(comparing, selection, oracle, request, sizes)
                conformance.compare_picks(comparing, selection, oracle, request, sizes)
                assert comparing.report(said).mismatches == (), said
                compared += 1
    print(f"NCCL {nccl}: {compared} configured calls equal, {refused} refused as libnccl does")
    assert compared


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 4)])
@pytest.mark.parametrize("nccl", WITH_CALLS)
def test_groups_of_calls_some_of_which_are_configured(nccl: str, nodes: int, gpus: int, draws: Draws) -> None:
    random = draws.random(f"groups with configured calls {nccl}")
    compared = 0
    scenario = Scenario(nccl, nodes, machine="dgx-h100", gpus_per_node=gpus)
    selection = Selection(scenario.communicator())
    with Oracle(scenario.oracle_configuration(), timeout_s=300) as oracle:
        for _ in range(GROUPS * draws.times):
            operations = []
            for _ in range(random.randint(2, 8)):
                own = random.choice(
                    (None, None, CallConfiguration(max_ctas=2), CallConfiguration("RING"), drawn_call(random)[1])
                )
                request = replace(random.choice(conformance.ALL_COLLECTIVES), configuration=own)
                size = conformance.reachable(request, 8, random.choice((1 << 10, 1 << 16, 5 << 20, 64 << 20)))
                operations.append(Operation(request, size))
            try:
                ours = plan(selection, operations)
            except (BadInput, NoAlgorithm):
                continue
            for where, (here, there) in conformance.compare(selection, oracle, ours).items():
                assert here == there, (where, operations)
            compared += 1
    print(f"NCCL {nccl}: {compared} groups equal")
    assert compared


def test_a_configured_call_is_priced_and_launched_alone() -> None:
    selection = Selection(Scenario("2.32.3", 2, machine="dgx-h100").communicator())
    plain = conformance.ALL_COLLECTIVES[-1]
    configured = replace(plain, configuration=CallConfiguration(max_ctas=2))
    for requests, choices, kernels in (((plain,) * 2, 1, 1), ((configured,) * 2, 2, 2), ((plain, configured), 2, 2)):
        made = plan(selection, [Operation(request, 1 << 20) for request in requests])
        assert (len(made.choices), len(made.kernels)) == (choices, kernels)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"minCTA": 4}, "has no field minCTA; did you mean minCTAs"),
        ({"maxCTAs": 0}, "valid: 1 or more"),
        ({"splitShare": 2}, "valid: 0, 1"),
        ({"minCTAs": "many", "maxCTAs": 4}, "valid: 1 or more"),
        ({"minCTAs": 8, "maxCTAs": 4}, "above maxCTAs=4"),
        ({"minCTAs": 8}, r"minCTAs but no maxCTAs.*set both, or use 2\.31\.2 or later"),
        ({"graphUsageMode": 1}, r"NCCL 2\.28\.9 has no field graphUsageMode .*: use 2\.29\.2 or later"),
        ({"nChannelsPerNetPeer": 65}, "valid: 1 to 64"),
    ],
)
def test_a_configuration_that_libnccl_refuses(given: dict[str, int | str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_configuration(release.load("2.28.9"), given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algSelect": "RING"}, "did you mean algSelection"),
        ({"forceAlgSelection": 2}, "ncclInvalidArgument"),
        ({"maxCTAs": "two"}, "a whole number"),
    ],
)
def test_a_call_configuration_that_is_none(given: dict[str, int | str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_call_configuration(given)


def test_a_selection_ends_at_the_call_or_at_the_end_of_the_group() -> None:
    selection = Selection(Scenario("2.32.3", 2, machine="dgx-h100").communicator())
    reduce, gather = conformance.ALL_COLLECTIVES[-1], conformance.ALL_COLLECTIVES[2]

    def picked(request: Request, text: str, force: int | None = None) -> str:
        configured = replace(request, configuration=CallConfiguration(text, force))
        return selection.pick(configured, [1 << 20]).algo_protos()[0][0].name

    with pytest.raises(BadInput, match=r"AllReduce with .* returns ncclInvalidArgument"):
        picked(reduce, "NVLS_TREE")
    with pytest.raises(NoAlgorithm, match="the group ends with ncclInvalidArgument"):
        picked(reduce, "COLLNET")
    assert picked(reduce, "COLLNET", 0) == picked(reduce, "")
    assert picked(reduce, "nvls") == "NVLSTree"
    assert picked(gather, "ring") == "Ring"
    with pytest.raises(BadInput, match=r"2\.28\.9 takes no configuration with a call"):
        Selection(Scenario("2.28.9", 2, machine="dgx-h100").communicator()).pick(
            replace(reduce, configuration=CallConfiguration("RING")), [1]
        )


@pytest.mark.parametrize(
    "command",
    [
        ("pick", "--nodes", "2", "--bytes", "64M"),
        ("explain", "--nodes", "2", "--bytes", "64M"),
        ("edges", "--nodes", "2", "--to", "1M"),
        ("edges", "--over", "nodes", "--to-nodes", "2", "--bytes", "64M"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize(
    ("given", "env", "says"),
    [
        ("algSelection=RING", "NCCL_ALGO=^pat", "algSelection=RING counts for nothing"),
        ("algSelection=RING_SIMPLE", "NCCL_PROTO=allgather:ll", ""),
        (
            "algSelection=RING_LL",
            "NCCL_DEBUG=INFO",
            "RING_LL means every name that begins with it: RING_LL, RING_LL128",
        ),
        ("algSelection=nvls", "NCCL_DEBUG=INFO", "begins with it: NVLS_SIMPLE, NVLSTREE_SIMPLE"),
        ("maxCTAs=0", "NCCL_DEBUG=INFO", "maxCTAs=0 of the call is passed over: NCCL takes 1 to 64"),
        ("maxCTAs=65", "NCCL_DEBUG=INFO", "maxCTAs=65 of the call is passed over: NCCL takes 1 to 64"),
        ("maxCTAs=64", "NCCL_DEBUG=INFO", ""),
        ("maxCTAs=2", "NCCL_DEBUG=INFO", ""),
    ],
)
def test_what_nccl_does_in_silence_with_a_call_is_said(
    given: str, env: str, says: str, command: tuple[str, ...]
) -> None:
    options = ("--call-config", given, "--env", env, "--nccl", "2.32.3")
    done = run(command[0], "allreduce", "--machine", "dgx-h100", *command[1:], *options)
    assert says in done.stderr.replace("\n", " ") if says else done.stderr == ""


def test_a_selection_that_leaves_nothing_falls_back_and_says_so() -> None:
    options = ("--call-config", "algSelection=pat", "--call-config", "forceAlgSelection=0")
    done = run("explain", "allreduce", "--machine", "dgx-h100", "--nccl", "2.32.3", "--bytes", "1M", *options)
    said = done.stderr.replace("\n", " ")
    assert "no name for AllReduce begins with pat" in said
    assert "algSelection=pat leaves nothing for AllReduce: NCCL chooses by itself" in said


@pytest.mark.parametrize("nccl", WITH_CALLS)
def test_numbers_of_a_call_that_are_passed_over_are_no_error(nccl: str) -> None:
    """Unlike those of a communicator: 0, more than 32, and a minimum above the maximum, which counts."""
    scenario = Scenario(nccl, 2, machine="dgx-h100", gpus_per_node=2)
    selection, plain = Selection(scenario.communicator()), conformance.ALL_COLLECTIVES[-1]
    most, size = {(None, 0): None, (0, None): None, (8, 4): 4, (None, 33): None, (None, 2): 2}, 64 << 20
    with Oracle(scenario.oracle_configuration()) as oracle:
        alone = oracle.launch(plain, [size])[0].channels
        for (low, high), channels in most.items():
            call = replace(plain, configuration=CallConfiguration(min_ctas=low, max_ctas=high))
            (launched,) = oracle.launch(call, [size])
            assert launched.channels == (channels or alone) == selection.pick(call, [size]).channels[0]


def test_the_page_has_every_field() -> None:
    page = (ROOT / "docs" / "configurations.md").read_text("utf-8")
    for name, field in fields().items():
        variable = f"`{field.variable}`" if field.variable else ""
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | {field.since} |"))
        assert row.endswith(f"| {variable} | {'no' if field.indifferent else 'yes'} |")
