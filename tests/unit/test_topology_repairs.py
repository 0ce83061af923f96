"""The changes that put a dump right: what they do to the XML, and values that a node cannot have."""

import pytest

from tuner.base.errors import BadInput
from tuner.machine import catalogue
from tuner.machine.topology import Target, edit, read

DGX = catalogue.load("dgx-h100").topology_xml
MESH = catalogue.load("dgx-1v").topology_xml


def test_devices_go_below_a_new_switch() -> None:
    changes = {
        "add-cpu": "5",
        "add-switch": "ffff:00:01.0@cpu:5",
        "ids": "1000:c030@ffff:00:01.0",
        "move-gpu": "gpu:0@ffff:00:01.0",
        "move-nic": "mlx5_0@ffff:00:01.0",
    }
    after = read(edit.edited(DGX, changes))
    assert after.gpus[0].numaid == after.nets[0].numaid == 5
    assert after.gpus[1].numaid == 0
    assert 'vendor="0x1000" device="0xc030"' in edit.edited(DGX, changes)


def test_a_switch_moves_with_all_below_it() -> None:
    after = read(edit.edited(DGX, {"move-switch": "0000:16:00.0@cpu:1"}))
    assert (after.gpus[0].numaid, after.nets[0].numaid, after.gpus[1].numaid) == (1, 1, 0)


def test_the_order_of_the_file() -> None:
    text = edit.edited(DGX, {"order": "gpu:3,mlx5_4"})
    places = [text.index(f'dev="{dev}" sm=') for dev in (3, 2, 0, 1, 4)]
    assert places == sorted(places)


@pytest.mark.parametrize("topology", [DGX, MESH])
def test_links_to_switches(topology: str) -> None:
    count = 6 if topology is MESH else 18
    after = read(edit.edited(topology, {"nvswitch": f"{count}@gpu:2"}))
    assert after.gpus[2].count_nvlinks(Target.SWITCH) == count
    assert after.gpus[2].count_nvlinks(Target.GPU) == 0


def test_links_between_gpus_are_made_at_both_ends() -> None:
    after = read(edit.edited(DGX, {"link-gpus": "2@gpu:0-gpu:1"}))
    for here, there in ((0, 1), (1, 0)):
        (link,) = (each for each in after.gpus[here].nvlinks if each.kind is Target.GPU)
        assert (link.count, link.target) == (2, after.gpus[there].busid)


def test_marks_of_adapters_and_gpus() -> None:
    same = DGX.replace("0x0100000000000001", "0x0100000000000000")
    nets = read(edit.edited(same, {"new-guid": "mlx5_3"})).nets
    assert len({net.guid for net in nets}) == len(nets)
    assert edit.edited(DGX, {"keep": "mlx5_0,mlx5_3"}).count('keep="1"') == 2
    assert [gpu.sm for gpu in read(edit.edited(DGX, {"sm": "80@gpu:1"})).gpus[:3]] == [90, 80, 90]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("add-cpu", "0", "not there yet; there: 0, 1"),
        ("add-cpu", "x", "the number of a NUMA node"),
        ("add-switch", "0000:16:00.0@cpu:0", "a bus id that no device has"),
        ("add-switch", "zz@cpu:0", "a bus id that no device has"),
        ("add-switch", "ffff:00:01.0@cpu:9", "no PCI switch and no NUMA node"),
        ("add-switch", "ffff:00:01.0", "@PLACE"),
        ("move-switch", "0000:ff:00.0@cpu:0", "no device"),
        ("ids", "10de@0000:16:00.0", "four hexadecimal digits"),
        ("ids", "1000:c030", "four hexadecimal digits"),
        ("order", "gpu:99", "no GPU gpu:99"),
        ("nvswitch", "19", "1 to 18"),
        ("nvswitch", "0", "1 to 18"),
        ("nvswitch", "18@gpu:9", "no GPU gpu:9"),
        ("link-gpus", "2@gpu:0", "between two GPUs"),
        ("link-gpus", "2@gpu:0-gpu:0", "gpu:0 twice"),
        ("link-gpus", "0@gpu:0-gpu:1", "between two GPUs"),
        ("new-guid", "mlx9", "no adapter mlx9"),
        ("keep", "mlx9", "no adapter mlx9"),
        ("sm", "91", "valid: 60"),
    ],
)
def test_values_that_a_node_cannot_have(key: str, value: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        edit.edited(DGX, {key: value})
    assert "\n" not in str(error.value)
