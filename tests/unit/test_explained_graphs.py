"""Why a graph is as it is: for each cause a machine where it is the one, and the named lift in the file helps.

The machines are made up here but where one of the catalogue says, and small, so that each number can be seen.
"""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.small_topologies import INTEL, PEER
from tuner import release
from tuner.answers.changes import changed
from tuner.answers.graphs import explained as explained_scenario
from tuner.answers.graphs import of_scenario
from tuner.base.errors import BadInput
from tuner.graphs import SearchRequest, cached
from tuner.graphs.explain import GraphExplanation, explain
from tuner.graphs.explain.explanation import RelaxedSearch, again
from tuner.graphs.explain.lifts import BandwidthLimits, more_nvlinks, twice_the_speed
from tuner.graphs.explain.links import LinkClass
from tuner.graphs.explain.records import Found
from tuner.graphs.explain.runs import Relaxation, loads
from tuner.graphs.explain.runs import run as run_search
from tuner.graphs.graphs import search
from tuner.graphs.system import DeviceKind
from tuner.graphs.trial import Recorder
from tuner.machine import catalogue
from tuner.scenario import Scenario

NCCL = "2.28.9"
OLD_INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"'  # 10 GB/s between sockets
GEN = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}  # 12, 24 and 48 GB/s with 16 lanes


def gpu(dev: int, gen: int = 5, links: str = "", sm: int = 80) -> str:
    place = f'busid="0000:0{dev}:00.0" class="0x030200" link_speed="{GEN[gen]}" link_width="16"'
    return f'<pci {place}><gpu dev="{dev}" sm="{sm}">{links}</gpu></pci>\n'


def net(dev: int, gbps: int, gen: int = 5, gdr: int = 1) -> str:
    place = f'busid="0000:2{dev}:00.0" class="0x020700" link_speed="{GEN[gen]}" link_width="16"'
    port = f'name="net{dev}" dev="{dev}" speed="{gbps}000" port="1" guid="0x{dev + 1}" latency="0" gdr="{gdr}"'
    return f"<pci {place}><nic><net {port}/></nic></pci>\n"


def switch(number: int, below: str, gen: int = 5) -> str:
    return f'<pci busid="0000:e{number}:00.0" class="0x060400" link_speed="{GEN[gen]}" link_width="16">{below}</pci>\n'


def system(*below: str, cpu: str = INTEL) -> str:
    cpus = "".join(f'<cpu numaid="{number}" {cpu}>{each}</cpu>' for number, each in enumerate(below))
    return f'<system version="1">{cpus}</system>'


def pair(links: int) -> tuple[str, str]:
    """Two GPUs that NVLinks join, 20 GB/s each."""
    return gpu(0, links=PEER.format(n=1, count=links)), gpu(1, links=PEER.format(n=0, count=links))


def request(topology: str, gpus: int, several: bool, **variables: str) -> SearchRequest:
    return SearchRequest(topology, gpus, several, variables)


def of_machine(name: str, gpus: int | None = None, several: bool = False) -> SearchRequest:
    machine = catalogue.load(name)
    across = machine.peer_to_peer
    return SearchRequest(
        machine.topology_xml, gpus or machine.gpus_per_node, several, dict(machine.environment), across
    )


@cache
def explained(
    topology: str, gpus: int, several: bool, graph: str, variables: tuple[tuple[str, str], ...]
) -> GraphExplanation:
    return explain(SearchRequest(topology, gpus, several, dict(variables)), NCCL, graph)


def why(asked: SearchRequest, graph: str = "ring") -> GraphExplanation:
    return explained(asked.topology, asked.gpus, asked.several_nodes, graph, tuple(asked.environment.items()))


def gbs(asked: SearchRequest, graph: str = "ring") -> tuple[int, float]:
    """Channels, and what they have together: found by the plain search."""
    found = search(asked, NCCL).graphs[graph].graph
    return found.channels, found.channels * min(found.bw_intra_gbs, found.bw_inter_gbs)


def together(asked: SearchRequest, graph: str = "ring") -> float:
    return gbs(asked, graph)[1]


def kinds(explanation: GraphExplanation) -> list[tuple[str, ...]]:
    return [limit.kinds for limit in explanation.limits]


def helpful(explanation: GraphExplanation) -> dict[str, float]:
    """What has more with each change that helps."""
    lifts = [lift for lift in explanation.lifts if lift.more]
    return {lift.change: min(lift.found.total_intra_gbs, lift.found.total_inter_gbs) for lift in lifts}


def reasons(explanation: GraphExplanation) -> dict[str, str]:
    return {reason.kind: reason.says for reason in explanation.reasons}


def test_adapters() -> None:
    asked = request(system(switch(0, gpu(0) + net(0, 100)) + switch(1, gpu(1) + net(1, 100))), 2, True)
    told = why(replace(asked, topology=asked.topology.replace(gpu(0), pair(4)[0]).replace(gpu(1), pair(4)[1])))
    asked = replace(asked, topology=asked.topology.replace(gpu(0), pair(4)[0]).replace(gpu(1), pair(4)[1]))
    assert kinds(told)[0] == ("adapter",)
    assert told.limits[0].links[0].startswith(("net:", "nic "))
    assert "network port of adapter 0 (one of 2 alike) has 12.5 GB/s and carries 12 GB/s for 1 channel" in (
        told.limits[0].says
    )
    assert told.one_more is not None
    assert "adapter" in told.one_more.says
    faster = replace(asked, topology=asked.topology.replace('speed="100000"', 'speed="200000"'))
    assert helpful(told)["adapters of twice the speed"] == together(faster) > together(asked)
    second = asked.topology.replace(net(0, 100), net(0, 100) + net(2, 100)).replace(
        net(1, 100), net(1, 100) + net(3, 100)
    )
    assert helpful(told)["a second adapter beside each"] == together(replace(asked, topology=second)) > together(asked)


def test_a_second_adapter_is_named_by_the_switch_it_is_to_be_under() -> None:
    asked = request(system(switch(0, "".join(pair(4)) + net(0, 100))), 2, True)
    told = why(asked)
    second = asked.topology.replace(net(0, 100), net(0, 100) + net(1, 100))
    change = "a second adapter under PCIe switch 0000:e0:00.0"
    assert helpful(told)[change] == together(replace(asked, topology=second)) > together(asked)
    assert "a second adapter beside each" not in {lift.change for lift in told.lifts}  # which is the same


def test_nvlinks() -> None:
    asked = request(system("".join(pair(3))), 2, False)
    told = why(asked)
    assert ("nvlink",) in kinds(told)
    assert told.limits[0].links == ("gpu:0 -> gpu:1",)
    assert told.faster is not None
    assert "from GPU 0 to GPU 1 has 60 GB/s" in told.faster.says
    more = replace(asked, topology=system("".join(pair(6))))
    assert helpful(told)["6 NVLinks at each GPU"] == together(more) > together(asked)


def of_two_switches(gen: int) -> SearchRequest:
    """Four GPUs below two switches, whose links to the CPU are of a generation of their own."""
    topology = system(switch(0, gpu(0) + gpu(1), gen) + switch(1, gpu(2) + gpu(3), gen))
    return request(topology, 4, False)


def test_links_of_a_pcie_switch() -> None:
    told = why(of_two_switches(3))
    assert kinds(told)[0] == ("pcie",)
    assert re.fullmatch(r"(pci 0000:e[01]:00.0 -> cpu:0|cpu:0 -> pci 0000:e[01]:00.0)", told.limits[0].links[0])
    faster = together(of_two_switches(4))
    assert helpful(told)["PCIe of the next generation at the switches"] == faster > together(of_two_switches(3))


def test_links_of_sockets() -> None:
    asked = request(system(gpu(0) + gpu(1), gpu(2) + gpu(3), cpu=OLD_INTEL), 4, False)
    told = why(asked)
    assert kinds(told)[0] == ("sockets",)
    assert "link between sockets from CPU" in told.limits[0].says
    one = replace(asked, topology=system(gpu(0) + gpu(1) + gpu(2) + gpu(3), cpu=OLD_INTEL))
    assert helpful(told)["all devices on one socket"] == together(one) > together(asked)


def test_nearer_paths_are_kept_to() -> None:
    told = explain(of_machine("dgx-1v", 4, several=True), NCCL, "ring", with_lifts=False)
    limit = next(limit for limit in told.limits if limit.kinds == ("paths",))
    assert "here NVL between GPUs and PIX to adapters; farther ones would carry more" in limit.says
    assert limit.then.total_inter_gbs > told.found.total_inter_gbs


def test_bandwidths_that_are_not_tried() -> None:
    told = why(of_machine("ws-2x-a6000"))
    limit = next(limit for limit in told.limits if limit.kinds == ("steps",))
    assert "... 40, 30, 20, 18 ..." in limit.says
    assert (limit.then.channels, limit.then.bw_intra_gbs) == (2, 24.0)


def test_tries_that_are_used_up() -> None:
    """A release that allowed 16 tries of a GPU instead of 16384."""
    asked, nccl = of_machine("a100-4x-1nic"), release.load(NCCL)
    few = replace(nccl, search=replace(nccl.search, tries=replace(nccl.search.tries, one=16, same_channels=8)))
    found = run_search(asked, few, "ring")
    limits = BandwidthLimits(found, loads(found), lambda freed: RelaxedSearch(asked, few, freed).found("ring")).all()
    limit = next(limit for limit in limits if limit.kinds == ("tries",))
    assert "NCCL allows only 16 tries of a GPU (8 where all channels are alike)" in limit.says
    assert limit.then.total_intra_gbs > found.trial.channels * found.trial.bw_intra
    whole = run_search(asked, nccl, "ring")
    limits = BandwidthLimits(whole, loads(whole), lambda freed: RelaxedSearch(asked, nccl, freed).found("ring")).all()
    assert ("tries",) not in [limit.kinds for limit in limits]


def test_a_tree_has_the_rings_count() -> None:
    asked = of_machine("a100-4x-1nic")
    told = why(asked, "tree")
    limit = next(limit for limit in told.limits if limit.kinds == ("ring",))
    assert "exactly as many channels as the ring has, 12" in limit.says
    assert told.found.channels == why(asked).found.channels == 12
    assert limit.then.channels == 16
    assert reasons(told)["ring"].endswith("the ring has, 12.")


def test_channels_are_laid_twice() -> None:
    told = why(of_machine("ws-2x-a6000"))
    assert reasons(told)["duplicated"].startswith("1 channel of 40 GB/s became 2 of 20 GB/s")
    assert told.one_more is not None
    assert "has 48 GB/s, of which 40 GB/s are taken, and 40 GB/s more are needed" in told.one_more.says
    assert "duplicated" not in reasons(why(of_two_switches(3)))


def test_a_level_of_peer_to_peer() -> None:
    free = request(system("".join(pair(4))), 2, False)
    held = replace(free, environment={"NCCL_P2P_LEVEL": "LOC"})
    told = why(held)
    assert "NCCL_P2P_LEVEL=LOC allows paths up to LOC" in reasons(told)["cpu"]
    assert helpful(told)["without NCCL_P2P_LEVEL=LOC"] == together(free) > together(held)
    assert "NCCL_P2P_DISABLE=1 is set" in reasons(why(replace(free, environment={"NCCL_P2P_DISABLE": "1"})))["cpu"]
    assert "cpu" not in reasons(why(free))


def test_a_default_level_of_peer_to_peer() -> None:
    told = why(request(system(gpu(0) + gpu(1)), 2, False))
    assert "by default NCCL_P2P_LEVEL is PXB here, and their path goes over the CPU (PHB)" in reasons(told)["cpu"]


def below_one_switch(gdr: int, **variables: str) -> SearchRequest:
    return request(system(switch(0, gpu(0, 4) + net(0, 400, gdr=gdr))), 1, True, **variables)


def test_a_level_of_gpu_direct() -> None:
    held, free = below_one_switch(1, NCCL_NET_GDR_LEVEL="LOC"), below_one_switch(1)
    told = why(held)
    assert "NCCL_NET_GDR_LEVEL=LOC does not reach their path over one PCIe switch (PIX)" in reasons(told)["gpu_direct"]
    assert helpful(told)["without NCCL_NET_GDR_LEVEL=LOC"] == together(free) > together(held)
    level = replace(held, environment={"NCCL_NET_GDR_LEVEL": "PXB"})
    assert helpful(told)["GPUDirect RDMA up to PXB (NCCL_NET_GDR_LEVEL=PXB)"] == together(level)


def test_no_gpu_direct() -> None:
    told = why(below_one_switch(0))
    assert "the adapter cannot do it (gdr in the topology)" in reasons(told)["gpu_direct"]
    with_it = together(below_one_switch(1))
    assert helpful(told)["GPUDirect RDMA with every GPU and adapter"] == with_it > together(below_one_switch(0))
    assert "gpu_direct" not in reasons(why(below_one_switch(1)))


def test_a_host_that_counts_as_two_nodes() -> None:
    sockets = [switch(number, gpu(number) + net(number, 400)) for number in range(2)]
    asked = request(system(*sockets, cpu=OLD_INTEL), 2, False)
    told = why(asked)
    assert told.several_nodes
    says = reasons(told)["parts"]
    assert says.startswith("NCCL treats this host as 2 nodes: GPU 0 and GPU 1 have 10 GB/s between them over the CPU")
    assert "48 GB/s to adapter 0 (PIX) and 48 GB/s to adapter 1 (PIX)" in says
    assert any("NCCL_NET_DISABLE_INTRA=1" in lift.change for lift in told.lifts)
    apart = [switch(n, switch(n + 2, gpu(n)) + switch(n + 4, net(n, 400))) for n in range(2)]
    says = reasons(why(request(system(*apart, cpu=OLD_INTEL), 2, False)))["parts"]
    assert "48 GB/s to adapter 0 (PXB) and 48 GB/s to adapter 1 (PXB)" in says
    joined = replace(asked, environment={"NCCL_NET_DISABLE_INTRA": "1"})
    assert (search(asked, NCCL).parts, search(joined, NCCL).parts) == (2, 1)
    hidden = why(replace(joined, environment={"NCCL_SHM_DISABLE": "1", **joined.environment}))
    assert "NCCL_SHM_DISABLE=1 forbids shared memory" in reasons(hidden)["parts"]


def test_the_adapter_of_another_gpu() -> None:
    first, second = pair(4)
    told = why(request(system(switch(0, first + net(0, 200)) + switch(1, second)), 2, True))
    says = reasons(told)["pxn"]
    assert says.startswith("GPU 1 sends to adapter 0 over GPU 0 (PXN)")
    assert "the direct way would be PHB" in says
    off = request(system(switch(0, first + net(0, 200)) + switch(1, second)), 2, True, NCCL_PXN_DISABLE="1")
    assert "pxn" not in reasons(why(off))
    assert "GPU 1 and adapter 0 are joined over the CPU (PHB)" in reasons(why(off))["far_adapter"]


def test_no_channels_at_all() -> None:
    told = why(of_machine("pcie-rtxpro6000"))
    assert "fallback" in reasons(told)
    assert helpful(told)["all devices on one socket"] > 40


def test_variables_that_limit_channels_after_the_search() -> None:
    words = ("graphs", "--machine", "ws-2x-a6000", "--nccl", NCCL, "--explain", "ring")
    free, held = (json.loads(run(*words, *more, "--json").stdout) for more in ((), ("--env", "NCCL_MAX_NCHANNELS=1")))
    assert free["communicator"] == {"channels": 4, "variables": {}, "without_variables": 4}
    assert held["communicator"]["channels"] == 1
    assert held["communicator"]["without_variables"] == 4
    printed = " ".join(run(*words, "--env", "NCCL_MAX_NCHANNELS=1").stdout.split())
    assert (
        "Collectives then use 1 channel. That is because of NCCL_MAX_NCHANNELS=1; without these variables, they use 4."
        in printed
    )


def test_a_plain_search_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "begin", None)
    assert together(of_machine("ws-2x-a6000")) == 40
    with pytest.raises(TypeError):
        explain(of_machine("ws-2x-a6000"), NCCL, "ring")


def test_searching_again_finds_what_a_plain_search_finds() -> None:
    """One graph after the other, and in the order in which they are asked for."""
    asked = of_machine("a100-4x-1nic", several=True)
    graphs = {name: found.graph for name, found in search(asked, NCCL).graphs.items()}
    of_request = again(asked, NCCL)
    assert again(replace(asked), NCCL) is of_request
    assert again(replace(asked, several_nodes=False), NCCL) is not of_request
    assert again(asked, NCCL, Relaxation(channels=2)) is not of_request
    for name in ("tree", "ring"):
        graph, found = graphs[name], of_request.found(name)
        assert (found.channels, found.bw_intra_gbs, found.bw_inter_gbs, found.cross_nic) == (
            graph.channels,
            graph.bw_intra_gbs,
            graph.bw_inter_gbs,
            graph.cross_nic,
        )
        assert (found.type_intra, found.type_inter) == (graph.type_intra, graph.type_inter)
    for _ in range(2):
        with pytest.raises(BadInput, match="NCCL searches no collnet_direct there; valid: ring, tree"):
            of_request.found("collnet_direct")


def test_numbers_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    asked, nccl = request(system(*pair(2)), 2, False), release.load(NCCL)
    found = RelaxedSearch(asked, nccl, Relaxation(), "key").found("tree")
    (file,) = cached.folder().iterdir()
    monkeypatch.setattr("tuner.graphs.explain.explanation.begun", None)
    assert RelaxedSearch(asked, nccl, Relaxation(), "key").found("tree") == found
    for key in (None, "other"):
        with pytest.raises(TypeError):
            RelaxedSearch(asked, nccl, Relaxation(), key).found("tree")
    file.write_text(file.read_text().replace('channels\\": ', 'channels\\": 1'))
    with pytest.raises(TypeError):
        RelaxedSearch(asked, nccl, Relaxation(), "key").found("tree")  # not as it was written


def test_each_search_is_kept_under_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = list[str]()

    def nothing(key: str) -> dict[str, Found]:
        keys.append(key)
        return {}

    monkeypatch.setattr("tuner.graphs.explain.explanation._of_disk", nothing)
    asked = request(system(*pair(3)), 2, False)
    wide = LinkClass((DeviceKind.GPU, DeviceKind.GPU), "NVL", 60.0)
    freed = [
        Relaxation(),
        Relaxation(tries=4),
        Relaxation(channels=4),
        Relaxation(steps_gbs=(4.0,)),
        Relaxation(links=frozenset({wide})),
    ]
    for each in freed:
        again(asked, NCCL, each)
    again(replace(asked, several_nodes=True), NCCL)
    again(asked, "2.18.3")
    assert len(set(keys)) == len(keys) == 7


def test_text_has_80_columns() -> None:
    printed = run(
        "graphs", "--machine", "dgx-h100", "--gpus-per-node", "2", "--nodes", "2", "--nccl", NCCL, "--explain", "tree"
    )
    assert max(map(len, printed.stdout.splitlines())) <= 80
    for title in ("Why not more", "What limits it", "What would lift the limits", "Searches"):
        assert title in printed.stdout


def test_collnet_has_a_short_name() -> None:
    words = ("--nodes", "2", "--collnet", "--env", "NCCL_COLLNET_ENABLE=1", "--explain", "collnet", "--json")
    found = json.loads(run("graphs", "--machine", "ws-2x-a6000", "--nccl", NCCL, *words).stdout)
    assert found["graph"] == "collnet_direct"


@pytest.mark.parametrize(
    ("machine", "gpus", "nodes", "graph"),
    [
        ("dgx-1v", 2, 2, "ring"),
        ("pcie-l40s-4nic", 3, 2, "tree"),
        ("a100-4x-2nic", 4, 2, "ring"),
        ("pcie-l40s", 5, 1, "ring"),
    ],
)
def test_every_lift_is_a_change_that_diff_takes(machine: str, gpus: int, nodes: int, graph: str) -> None:
    """Put into the scenario as it is printed, it makes the graph that the explanation says."""
    scenario = Scenario(NCCL, nodes, machine=machine, gpus_per_node=gpus)
    lifts = explained_scenario(scenario, graph).explanation.lifts
    assert lifts
    for lift in lifts:
        assert lift.changes
        found = of_scenario(changed(scenario, lift.changes))[graph].graph
        assert (found.channels, found.bw_intra_gbs, found.bw_inter_gbs, found.type_intra, found.type_inter) == (
            lift.found.channels,
            lift.found.bw_intra_gbs,
            lift.found.bw_inter_gbs,
            lift.found.type_intra,
            lift.found.type_inter,
        )


def test_lifts_are_printed_as_they_can_be_pasted() -> None:
    words = ("graphs", "--machine", "a100-4x-2nic", "--nodes", "2", "--nccl", NCCL)
    printed = run(*words, "--explain", "ring").stdout
    lines = re.findall(r"^    (--change .*)$", printed, flags=re.MULTILINE)
    assert lines[0] == "--change nic-gbps=400 --change pcie=5"
    pasted = json.loads(run(*words, *lines[0].split(), "--json").stdout)["graphs"]["ring"]
    assert (pasted["channels"], pasted["bw_inter_gbs"]) == (4, 24)


def test_a_variable_is_unset() -> None:
    """One that is given, and one that the machine's nccl.conf sets; not one that is not set."""
    given = Scenario(NCCL, 2, machine="dgx-1v", environment={"NCCL_P2P_LEVEL": "LOC"})
    plain = replace(given, environment={})
    assert of_scenario(changed(given, ["unset=NCCL_P2P_LEVEL"])) == of_scenario(plain) != of_scenario(given)
    of_machine = Scenario(NCCL, 1, machine="pcie-l40s")
    free = changed(of_machine, ["unset=NCCL_P2P_LEVEL"])
    assert free.heading.endswith("without NCCL_P2P_LEVEL")
    assert "NCCL_P2P_LEVEL" not in free.oracle_configuration().env
    for scenario, other in ((plain, "no variable is"), (of_machine, "valid: NCCL_P2P_LEVEL")):
        with pytest.raises(BadInput, match=f"change unset=NCCL_CROSS_NIC: this variable is not set; {other}"):
            changed(scenario, ["unset=NCCL_CROSS_NIC"])


def test_links_at_their_fastest_have_no_lift() -> None:
    """No GPU like these has more NVLinks, and NCCL knows no faster PCIe."""
    assert more_nvlinks(catalogue.load("dgx-h100").topology_xml) is None
    assert more_nvlinks(request(system("".join(pair(8))), 2, False).topology) == "12"
    assert twice_the_speed(system(net(0, 100) + net(1, 25))) == "200@net:0,50@net:1"
