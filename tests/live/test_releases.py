"""Several releases against the emulator, exactly: a few in the plain test run, all of them in `make test-releases`."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.planned_communicators import LEAST_OF_DOMAINS, of_machines, plan
from tests.support.recorded import Recorder
from tuner.base.errors import TunerError
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.oracle.conformance.check import ALL_COLLECTIVES, KINDS, check
from tuner.scenario import Scenario

SHAPES = [
    ("dgx-h100", 1, 8),
    ("dgx-h100", 2, 8),
    ("dgx-h100", 3, 1),
    ("dgx-a100", 2, 8),
    ("dgx-b200", 1, 8),
    ("dgx-b200", 2, 2),
    ("dgx-b200", 4, 8),
    # other generations, CPUs, paths and networks, small
    ("dgx-1v", 1, 8),
    ("dgx-1v", 3, 2),
    ("aws-p4d", 2, 4),
    ("aws-p5", 2, 2),
    ("gh200-4x", 2, 4),
    ("gh200-4x", 3, 1),
    ("a100-4x-1nic", 2, 2),
    ("hgx-h100-amd", 2, 2),
    ("pcie-l40s", 1, 8),
    ("pcie-l40s-4nic", 1, 8),
    ("ws-2x-a6000", 1, 2),
    ("ws-2x-a6000", 4, 2),
]
SETTINGS: list[dict[str, str]] = [
    {"NCCL_ALGO": "Tree"},
    {"NCCL_ALGO": "^Ring"},
    {"NCCL_PROTO": "^LL"},
    {"NCCL_MAX_NCHANNELS": "3"},
    {"NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_NTHREADS": "256"},
    {"NCCL_NVLS_ENABLE": "0"},
]


def captured(name: str, machine: str) -> bool:
    return name in catalogue.load(machine).releases


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("name", HERE)
def test_a_release(name: str, machine: str, nodes: int, gpus: int) -> None:
    if not captured(name, machine):
        pytest.skip(f"no graphs of {machine} captured for {name}")
    report = check(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus))
    assert report.mismatches == ()
    assert report.compared["cells"] >= 5 * 60 * 18
    assert report.compared["picks"] >= 5 * 60


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_settings_of_a_release(name: str, settings: dict[str, str]) -> None:
    if not captured(name, "dgx-h100"):
        pytest.skip(f"no graphs of dgx-h100 captured for {name}")
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2, environment=settings)
    selection = Selection(scenario.communicator())
    requests = [request for request in ALL_COLLECTIVES if selection.usable(request)]
    report = check(scenario, requests)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 60


@pytest.mark.parametrize("name", HERE)
def test_planned_machines_have_a_choice(name: str) -> None:
    """A machine of the catalogue may have one GPU."""
    assert min(scenario.ranks for scenario in of_machines(name)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_planned_communicators(name: str, draws: Draws, recorder: Recorder, tmp_path: Path) -> None:
    """Some of tests/support/planned_communicators.py; all of them where they are recorded, for docs/releases.toml."""
    planned, wrong, failed = list(plan(name, tmp_path)), list[str](), 0
    chosen = planned if recorder.on else draws.random(name).sample(planned, min(draws.times, len(planned)))
    compared, matched, of_domains = Counter[str](), Counter[str](), Counter[str]()
    for each in chosen:
        try:
            report = check(each.scenario, each.requests, each.sizes, timeout_s=600)
        except TunerError as error:
            failed += 1
            wrong.append(f"{each.title}: {error}")
            continue
        wrong += [f"{each.title}: {mismatch}" for mismatch in report.mismatches]
        compared.update(report.compared)
        matched.update(report.matched)
        if each.of_domain:
            of_domains.update({"communicators": 1, **report.compared})
    row = {
        "libnccl_sha256": library.find(name).sha256,
        "machines": list(catalogue.names()),
        "communicators": len(chosen),
        "failed": failed,
        "domains": {what: of_domains[what] for what in ("communicators", "cells", "picks")},
        **{kind: {"compared": compared[kind], "matched": matched[kind]} for kind in KINDS},
    }
    recorder.write("releases", name, row)
    assert not wrong, "\n".join(wrong)
    assert compared.total()
    if recorder.on:
        assert all(of_domains[kind] >= least for kind, least in LEAST_OF_DOMAINS.items())
