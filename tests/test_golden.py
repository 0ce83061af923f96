"""The emulator against what every release of libnccl answered on every machine, as recorded in golden/: exactly."""

from functools import cache

import numpy as np
import pytest
import recorded

from tuner import machines, release

SHOWN = 20

read = cache(recorded.read)


@pytest.mark.parametrize("machine", machines.names())
def test_recorded_of_what_is_here(machine: str) -> None:
    """Every release, each of the library that its table names, on the machine's topology as it is now."""
    golden = read(machine)
    again = f"stale: python tests/record.py --machine {machine}"
    assert golden.topology_sha256 == recorded.topology_sha256(machine), again
    libnccl = {name: release.load(name).table["library"]["x86_64"]["sha256"] for name in release.names()}
    assert golden.libnccl_sha256 == libnccl, again
    assert np.array_equal(golden.shapes, recorded.shapes(machine)), again
    assert np.array_equal(golden.sizes_bytes, recorded.sizes(golden.shapes)), again


@pytest.mark.parametrize("machine", machines.names())
@pytest.mark.parametrize("nccl", release.names())
def test_emulator_answers_as_libnccl_did(nccl: str, machine: str) -> None:
    golden = read(machine)
    assert nccl in golden.libnccl_sha256, f"nothing recorded: python tests/record.py --machine {machine} --nccl {nccl}"
    differ = [
        f"{case.title}: {line}"
        for shape, case in enumerate(recorded.cases(nccl, machine, golden.shapes))
        for line in recorded.differences(golden, nccl, shape, case)
    ]
    assert not differ, "\n".join([f"{len(differ)} differ", *differ[:SHOWN]])


@pytest.mark.parametrize(
    ("name", "at", "said"),
    [
        ("cost_us", (4, 50, 1, 0), "cost_us of AllReduce {size} B Ring/LL: emulator {ours}, libnccl {theirs}"),
        ("picks", (4, 50, 2), "channels of AllReduce {size} B: emulator {ours}, libnccl {theirs}"),
        ("picks", (0, 50, 0), "algorithm of Broadcast {size} B: emulator {ours}, libnccl {theirs}"),
        ("max_threads", (1, 2), "max_threads of all Ring/Simple: emulator {ours}, libnccl {theirs}"),
        ("latency_us", (2, 1, 2), "latency_us of AllGather Ring/Simple: emulator {ours}, libnccl {theirs}"),
        ("channels", (1,), "NVLS channels: emulator {ours}, libnccl {theirs}"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_one_bit_is_a_difference_and_both_values_are_said(name: str, at: tuple[int, ...], said: str) -> None:
    machine, nccl, shape = machines.names()[0], release.names()[-1], 0
    golden = recorded.read(machine)
    array = getattr(golden.answers[nccl], name)[shape]
    ours = array[at]
    bits = array.view(np.uint32) if array.dtype.kind == "f" else array
    bits[at] ^= 1
    case = list(recorded.cases(nccl, machine, golden.shapes))[shape]
    expected = said.format(size=golden.sizes_bytes[shape][at[:2]] if "{size}" in said else 0, ours=ours, theirs=array[at])
    assert recorded.differences(golden, nccl, shape, case) == [expected]
