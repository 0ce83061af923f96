"""The communicator of a header, read on another computer than the one that measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner.base.errors import BadMeasurement
from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.times.measured.header import GPU, Header, as_written, scenario_from, scenario_of, scenario_record
from tuner.times.measured.samples import Measurements, check_same

XML = catalogue.load("dgx-h100").topology_xml


def header(topology: Path, environment: dict[str, str] | None = None, nccl: str = "2.28.9") -> Header:
    scenario = Scenario(nccl, 1, topology=topology, environment=environment)
    return Header(scenario=as_written(scenario), topology_xml=XML)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))


def test_titles_name_a_topology_by_its_file_wherever_it_is(tmp_path: Path) -> None:
    of_gpus = replace(header(tmp_path / "cluster" / "run.jsonl.topology.xml"), backend=GPU)
    assert of_gpus.communicator == "1 x run.jsonl.topology.xml, 8 GPUs each, NCCL 2.28.9"
    assert of_gpus.origin == f"measured times of {of_gpus.communicator}"
    planted = {"double": {"scenario": {"machine": "dgx-h100"}}}
    assert replace(of_gpus, others=planted).communicator == "1 x dgx-h100, 8 GPUs each, NCCL 2.28.9"
    assert replace(of_gpus, others={"double": None}).communicator == of_gpus.communicator


@pytest.mark.parametrize("hosts", [None, 2, (1, 1)])
@pytest.mark.parametrize("without", [(), (0, 3)])
def test_nvlink_domains_read_back(hosts: tuple[int, ...] | int | None, without: tuple[int, ...]) -> None:
    scenario = Scenario("2.28.9", 2, machine="dgx-h100", hosts_per_domain=hosts, ranks_without_fabric=without)
    assert scenario_from(json.loads(json.dumps(scenario_record(scenario)))) == replace(scenario, environment={})


def test_the_topology_is_read_from_the_header(tmp_path: Path) -> None:
    there = tmp_path / "cluster" / "run.jsonl.topology.xml"
    found = scenario_of(header(there)).topology
    assert found is not None
    assert (found.read_text(), found.name) == (XML, there.name)
    assert len(scenario_of(header(there)).resolve().own.topology.gpus) == 8
    there.parent.mkdir()
    there.write_text("<system/>")
    assert scenario_of(header(there)).topology == found, "another file of that name"
    there.write_text(XML)
    assert scenario_of(header(there)).topology == there


def test_the_environment_of_the_run_is_the_scenario_s(tmp_path: Path) -> None:
    set_there = {
        "NCCL_MAX_CTAS": "4",
        "NCCL_P2P_LEVEL": "NVL",  # of the search
        "NCCL_IB_HCA": "mlx5",  # reaches no choice
        "NCCL_DEBUG": "INFO",  # the oracle's own
        "NCCL_TOPO_FILE": "/etc/topology.xml",  # is in the topology that was dumped
        "NCCL_OF_A_FORK": "1",  # known to nobody
    }
    scenario = scenario_of(header(tmp_path / "t.xml", set_there))
    assert scenario.environment is not None
    assert scenario.environment.keys() >= {"NCCL_MAX_CTAS", "NCCL_P2P_LEVEL"}
    assert not scenario.environment.keys() & {"NCCL_DEBUG", "NCCL_TOPO_FILE", "NCCL_OF_A_FORK"}
    unknown_release = scenario_of(header(tmp_path / "t.xml", set_there, nccl="9.9.9"))
    assert unknown_release.environment is not None
    assert "NCCL_OF_A_FORK" in unknown_release.environment


@pytest.mark.live
@pytest.mark.skipif("2.28.9" not in HERE, reason="no libnccl 2.28.9 here")
def test_the_model_has_the_channels_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TUNER_CACHE")
    limited = scenario_of(header(tmp_path / "t.xml", {"NCCL_MAX_CTAS": "4"})).communicator()
    assert limited.channels == 4


def test_a_difference_is_named_shortly(tmp_path: Path) -> None:
    there, now = header(tmp_path / "t.xml"), replace(header(tmp_path / "t.xml"), topology_xml=f"{XML} ")
    with pytest.raises(BadMeasurement, match=r"topology_xml .*\.\.\. \(\d+ characters\) there") as caught:
        check_same(tmp_path / "run.jsonl", Measurements(there, ()), now)
    assert len(str(caught.value)) < 600
