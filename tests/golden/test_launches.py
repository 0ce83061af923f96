"""Launches in full against those that every release of libnccl made, as recorded in launches.json.gz."""

from functools import cache
from typing import Any

import pytest

from tests.support import launch_records
from tuner import release
from tuner.base.names import Algorithm
from tuner.emulator import full_launch
from tuner.emulator.selection import Selection
from tuner.oracle.conformance import launched_values
from tuner.scenario.p2p import heads_of

load = cache(launch_records.load)


def recorded(nccl: str) -> dict[str, Any]:
    found = load()["releases"].get(nccl)
    if found is None:
        pytest.fail(f"nothing recorded: {load()['written_by']} {nccl}", pytrace=False)
    return dict(found)


@pytest.mark.parametrize("nccl", release.names())
def test_launches_are_those_of_libnccl(nccl: str) -> None:
    golden = recorded(nccl)
    assert golden["libnccl_sha256"] == release.load(nccl).library["cu12"]["x86_64"].sha256
    cases = list(launch_records.cases(nccl))
    assert [case.name for case in cases] == list(golden["launches"])
    differing, algorithms = compared(cases, golden)
    assert not differing, "\n".join(differing[:10])
    known = {each for rows in release.load(nccl).rules.exists.values() for each in rows}
    assert algorithms == known & set(Algorithm)


@pytest.mark.parametrize("nccl", launch_records.RELEASES_AT_EDGES)
def test_launches_at_the_edges_of_rules_are_those_of_libnccl(nccl: str) -> None:
    golden = launch_records.load(launch_records.EDGES)["releases"][nccl]
    assert golden["libnccl_sha256"] == release.load(nccl).library["cu12"]["x86_64"].sha256
    cases = list(launch_records.edges(nccl))
    assert [case.name for case in cases] == list(golden["launches"])
    differing, algorithms = compared(cases, golden)
    assert not differing, "\n".join(differing[:10])
    others = {Algorithm.Tree} if nccl in launch_records.OLD_AT_EDGES else {Algorithm.NVLS, Algorithm.NVLSTree}
    assert algorithms == {Algorithm.Ring} | others


def compared(cases: list[launch_records.Case], golden: dict[str, Any]) -> tuple[list[str], set[Algorithm]]:
    """Values that differ, and the algorithms that were launched."""
    differing, algorithms = [], set()
    for case in cases:
        selection, resolved = Selection(case.scenario.communicator()), case.scenario.resolve()
        for operation, found in zip(case.operations, golden["launches"][case.name], strict=True):
            ours = full_launch.launch(selection, [operation], lambda resolved=resolved: heads_of(resolved))
            algorithms |= {work.algorithm for kernel in ours.kernels for work in kernel.works}
            values = launched_values.compare(ours, launch_records.read(found))
            differing += [
                f"{case.name} {operation}: {what} {both}" for what, both in values.items() if both[0] != both[1]
            ]
    return differing, algorithms
