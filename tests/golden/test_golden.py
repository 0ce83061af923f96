"""The emulator against what every release of libnccl answered on every machine, as recorded in golden/: exactly."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.scripts import record_golden as record
from tests.support import golden_files as recorded
from tuner import release

SHOWN = 20

read = cache(recorded.read)


@pytest.mark.parametrize("machine", recorded.machines())
def test_recorded_of_what_is_here(machine: str) -> None:
    """Every release, each of the library that its table names, on the machine's topology as it is now."""
    golden = read(machine)
    again = f"stale: python -m tests.scripts.record_golden --machine {machine}"
    assert golden.topology_sha256 == recorded.topology_sha256(machine), again
    names = recorded.releases(machine)
    libnccl = {name: release.load(name).library["cu12"]["x86_64"].sha256 for name in names}
    assert golden.libnccl_sha256 == libnccl, again
    assert np.array_equal(golden.shapes, recorded.shapes(machine)), again
    assert np.array_equal(golden.sizes_bytes, recorded.sizes(golden.shapes)), again


@pytest.mark.parametrize(
    ("nccl", "machine"), [(nccl, machine) for machine in recorded.machines() for nccl in recorded.releases(machine)]
)
def test_emulator_answers_as_libnccl_did(nccl: str, machine: str) -> None:
    golden = read(machine)
    if nccl not in golden.libnccl_sha256:
        again = f"python -m tests.scripts.record_golden --machine {machine} --nccl {nccl}"
        pytest.fail(f"nothing recorded: {again}", pytrace=False)
    differ = [
        f"{scenario.title}: {line}"
        for shape, scenario in enumerate(recorded.cases(nccl, machine, golden.shapes))
        for line in recorded.differences(golden, nccl, shape, scenario)
    ]
    if differ:
        pytest.fail("\n".join([f"{len(differ)} differ", *differ[:SHOWN]]), pytrace=False)


@pytest.mark.parametrize(
    ("name", "at", "said"),
    [
        ("cost_us", (4, 50, 1, 0), "cost_us of AllReduce {size} B Ring/LL: emulator {ours!s}, libnccl {theirs!s}"),
        ("picks", (4, 50, 2), "channels of AllReduce {size} B: emulator {ours!s}, libnccl {theirs!s}"),
        ("picks", (0, 50, 0), "algorithm of Broadcast {size} B: emulator {ours!s}, libnccl {theirs!s}"),
        ("max_threads", (1, 2), "max_threads of all Ring/Simple: emulator {ours!s}, libnccl {theirs!s}"),
        ("latency_us", (2, 1, 2), "latency_us of AllGather Ring/Simple: emulator {ours!s}, libnccl {theirs!s}"),
        ("channels", (1,), "NVLS channels: emulator {ours!s}, libnccl {theirs!s}"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_one_bit_is_a_difference_and_both_values_are_said(name: str, at: tuple[int, ...], said: str) -> None:
    machine, nccl, shape = recorded.machines()[0], release.names()[-1], 0
    golden = recorded.read(machine)
    array = getattr(golden.answers[nccl], name)[shape]
    ours = array[at]
    bits = array.view(np.uint32) if array.dtype.kind == "f" else array
    bits[at] ^= 1
    scenario = list(recorded.cases(nccl, machine, golden.shapes))[shape]
    size = golden.sizes_bytes[shape][at[:2]] if "{size}" in said else None
    expected = said.format(size=size, ours=ours, theirs=array[at])
    assert recorded.differences(golden, nccl, shape, scenario) == [expected]


@pytest.mark.live
def test_recording_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, nccl = recorded.machines()[0], "2.28.9"
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    monkeypatch.setattr(recorded, "shapes", lambda name: np.array([(1, 2)], np.int32))
    asked = []
    from_library = recorded.from_library

    def ask(*arguments: Any) -> object:
        asked.append(arguments)
        return from_library(*arguments)

    def run(*options: str) -> int:
        result = CliRunner().invoke(record.main, ["--machine", machine, "--nccl", nccl, *options])
        assert result.exit_code == 0, result.output
        return len(asked)

    monkeypatch.setattr(recorded, "from_library", ask)
    assert run() == 1
    first = (tmp_path / f"{machine}.npz").read_bytes()
    golden = recorded.read(machine)
    (scenario,) = recorded.cases(nccl, machine, golden.shapes)
    assert recorded.differences(golden, nccl, 0, scenario) == []
    assert run() == 1, "nothing is new"
    assert run("--again") == 2
    assert (tmp_path / f"{machine}.npz").read_bytes() == first, "the same answers give the same file"

    recorded.write(machine, dataclasses.replace(golden, libnccl_sha256={nccl: "another library's"}))
    assert run() == 3
    recorded.write(machine, dataclasses.replace(golden, topology_sha256="another topology's"))
    assert run() == 4
    assert (tmp_path / f"{machine}.npz").read_bytes() == first
