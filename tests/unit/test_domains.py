"""NVLink domains without libnccl: how they are described, what is refused, dumps of a whole domain."""

import random
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run
from tests.support.gb200_tray import tray
from tuner.base.errors import BadInput
from tuner.machine import catalogue
from tuner.machine.topology import reader
from tuner.scenario import notes
from tuner.scenario.describe import describe
from tuner.scenario.domain import grouped
from tuner.scenario.p2p import p2p_context

NCCL = "2.28.9"


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    return file


def dump_of(file: Path, *hosts: str) -> Path:
    """A file as NCCL dumps a domain of these hosts."""
    of_hosts = (host.replace("<cpu ", f'<cpu host_hash="{number:#x}" ') for number, host in enumerate(hosts, 1))
    cpus = "".join(host.split("\n", 1)[1].rsplit("</system>", 1)[0] for host in of_hosts)
    file.write_text(f'<system version="1">\n{cpus}</system>\n')
    return file


def shape(**described: Any) -> tuple[int, int, int, int]:
    own = describe(nccl=NCCL, **described).communicator()
    return own.ranks, own.nodes, own.min_local_ranks, own.max_local_ranks


def test_hosts_of_a_domain_are_one_node(file: Path) -> None:
    assert shape(topology=file, nodes=2) == (8, 2, 4, 4)
    assert shape(topology=file, nodes=2, hosts_per_domain=2) == (8, 1, 8, 8)
    assert shape(topology=file, nodes=3, hosts_per_domain=2) == (12, 2, 4, 8)
    assert shape(topology=file, nodes=4, hosts_per_domain=(1, 3)) == (16, 2, 4, 12)
    assert shape(topology=file, nodes=2, hosts_per_domain=2, ranks_without_fabric=[5]) == (8, 2, 4, 4)
    assert shape(topology=file, nodes=2, hosts_per_domain=2, env={"NCCL_MNNVL_ENABLE": "0"}) == (8, 2, 4, 4)


def test_trays_are_a_machines_hosts() -> None:
    assert shape(machine="gb200-nvl72") == (72, 1, 72, 72)
    assert shape(machine="gb200-nvl72", nodes=2, trays=2, gpus_per_tray=3) == (12, 2, 6, 6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts_per_domain": (2, 2)}, "NVLink domains of 2, 2 hosts are 4 hosts in all, not 3"),
        ({"hosts_per_domain": 0}, "hosts_per_domain 0: give 1 or more"),
        (
            {"hosts_per_domain": 3, "ranks_without_fabric": [12]},
            "rank without fabric 12 is not in the communicator: valid are 0 to 11",
        ),
        ({"ranks_without_fabric": [1]}, "ranks without fabric only apply to NVLink domains"),
        ({"trays": 2}, "only machines that are NVLink domains, such as gb200-nvl72, have trays"),
    ],
)
def test_what_no_domain_can_be_is_refused(given: dict[str, Any], says: str, file: Path) -> None:
    with pytest.raises(BadInput, match=says):
        describe(topology=file, nodes=3, nccl=NCCL, **given).communicator()


def test_hosts_without_nvlinks_to_a_switch_are_in_no_domain() -> None:
    for node, sizes in ((["pcie-l40s", "dgx-h100x2"], 2), (["dgx-h100x2", "dgx-1v"], (1, 2))):
        with pytest.raises(BadInput, match="has NVLinks to a switch, which could reach other hosts"):
            describe(node=node, hosts_per_domain=sizes, nccl=NCCL).communicator()
    assert shape(node=["pcie-l40s", "dgx-h100x2"], hosts_per_domain=(1, 2)) == (24, 2, 8, 16)


@pytest.mark.parametrize("nccl", ["2.20.5", "2.21.5", "2.22.3", "2.23.4"])
def test_sends_where_a_gpu_has_not_joined_its_domain(nccl: str) -> None:
    """Up to 2.22 NCCL goes by what NVML names for two ranks, which is not known there."""
    given: dict[str, Any] = {"nodes": 4, "gpus_per_node": 1, "hosts_per_domain": 2, "ranks_without_fabric": [0]}
    resolved = describe("dgx-h100", nccl=nccl, **given).resolve()
    if nccl == "2.23.4":
        assert p2p_context(resolved, 2).beyond_nodes == frozenset()
        return
    with pytest.raises(BadInput, match="if GPUs have not joined their NVLink domain"):
        p2p_context(resolved, 2)
    if nccl != "2.20.5":  # which does not know the variable
        off = describe("dgx-h100", nccl=nccl, env={"NCCL_MNNVL_ENABLE": "0"}, **given).resolve()
        assert p2p_context(off, 2).beyond_nodes == frozenset()


@pytest.mark.parametrize(("nccl", "reached"), [("2.23.4", {1}), ("2.24.3", set())])
def test_sends_between_hosts_of_a_domain_that_are_nodes(nccl: str, reached: set[int]) -> None:
    given: dict[str, Any] = {"nodes": 3, "gpus_per_node": 1, "hosts_per_domain": 2, "nccl": nccl}
    parts, whole = (describe("dgx-h100", env=env, **given).resolve() for env in ({"NCCL_P2P_DISABLE": "1"}, {}))
    assert (parts.views[0].nodes, whole.views[0].nodes) == (3, 2)
    assert (p2p_context(parts).beyond_nodes, p2p_context(whole).beyond_nodes) == (reached, set())


def test_what_no_trays_can_be_is_refused() -> None:
    with pytest.raises(BadInput, match="19 trays: valid are 1 to 18"):
        describe("gb200-nvl72", trays=19)
    with pytest.raises(BadInput, match="is an NVLink domain of 18 trays: use trays= or gpus_per_tray="):
        describe("gb200-nvl72", gpus_per_node=4)
    with pytest.raises(BadInput, match="use trays= instead"):
        describe("gb200-nvl72", hosts_per_domain=2, nccl=NCCL).communicator()


def test_so_many_nodes_of_a_rack_say_how_many_gpus_that_is() -> None:
    note = "64 of 18 trays are 4,608 GPUs; 64 trays are nodes= 4 trays= 16"
    assert any(note in line for line in notes.of_scenario(describe("gb200-nvl72", nodes=64)))
    for other in (describe("gb200-nvl72", nodes=1), describe("gb200-nvl72", nodes=64, trays=18)):
        assert not any("trays" in line for line in notes.of_scenario(other))
    loaded = catalogue.load("gb200-nvl72")
    for trays in range(1, 200):
        domains, each = loaded.split(trays)
        assert (domains * each, 1 <= each <= 18) == (trays, True)


def test_a_dump_of_a_domain_is_that_domain(file: Path, tmp_path: Path) -> None:
    dump = dump_of(tmp_path / "alike.xml", tray(), tray())
    assert [count for _, count in reader.hosts_of(dump)] == [2]
    own, said = describe(topology=dump, nccl=NCCL), describe(topology=file, nodes=2, hosts_per_domain=2, nccl=NCCL)
    assert own.communicator().graphs == said.communicator().graphs
    assert shape(topology=dump, nodes=2) == (16, 2, 8, 8)
    different = dump_of(tmp_path / "different.xml", tray(), tray(gpus=3))
    assert shape(topology=different) == (7, 1, 7, 7)
    assert reader.hosts_of(file) == ()
    with pytest.raises(BadInput, match="describes an NVLink domain: use nodes=, which counts domains"):
        describe(topology=dump, hosts_per_domain=2, nccl=NCCL)


def test_domains_that_differ_are_answered_and_explained(file: Path) -> None:
    words = ["--topology", str(file), "--nodes", "3", "--hosts-per-domain", "2", "--nccl", NCCL, "--bytes", "1M"]
    assert "NVLink domains of 2 hosts" in run("pick", "allreduce", *words).stdout
    said = run("explain", "allreduce", *words).stdout
    assert "NCCL treats 1 or 2 hosts as one node, and all 3 hosts as 2 nodes." in said


def test_devices_of_other_hosts_are_readable() -> None:
    words = ("graphs", "--machine", "gb200-nvl72", "--trays", "2", "--nodes", "2", "--nccl", NCCL)
    shown = run(*words).stdout
    assert "net:1-0 gpu:1-0 gpu:1-1" in shown
    assert "net:0-3 gpu:0-3 net:0-3" in shown
    assert str(1 << 56) not in shown
    assert f'"gpu:{1 << 56}"' in run(*words, "--json").stdout
    assert "gpu:0 gpu:1" in run("graphs", "--machine", "ws-2x-a6000", "--nccl", NCCL).stdout


def test_domains_are_grouped_as_one_by_one() -> None:
    """Also where kinds of hosts end within a domain, and where the next are of the same kind."""
    generator = random.Random(2026)
    for _ in range(300):
        kinds: list[Any] = [(generator.choice("abc"), generator.randint(0, 9)) for _ in range(generator.randint(1, 5))]
        every = [kind for kind, count in kinds for _ in range(count)]
        sizes, each, first = list[int](), list[tuple[tuple[str, int], ...]](), 0
        while first < len(every):
            sizes.append(min(len(every) - first, generator.choice((1, 1, 2, 2, 3, 5, 8))))
            hosts = every[first : first + sizes[-1]]
            each.append(tuple((kind, len(list(alike))) for kind, alike in groupby(hosts)))
            first += sizes[-1]
        assert grouped(kinds, sizes) == [(domain, len(list(alike))) for domain, alike in groupby(each)]
