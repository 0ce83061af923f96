"""The topology reader on small machines made up here, so that every number in an expectation is visible."""

from pathlib import Path

import pytest

from tests.support.small_topologies import INTEL, PEER, SWITCH, cpu, gpu, net, system
from tuner.base.errors import BadInput, BadTopology
from tuner.machine import catalogue
from tuner.machine.topology import Target, edit, read


def test_reads_cpus_gpus_and_nets() -> None:
    topology = read(system(cpu(gpu(0) + net(0)), cpu(gpu(1), numaid=1, kind='arch="arm64"')))
    assert [(c.numaid, c.arch, c.vendor, c.family, c.model) for c in topology.cpus] == [
        (0, "x86_64", "GenuineIntel", 6, 143),
        (1, "arm64", None, None, None),
    ]
    assert [(g.dev, g.busid, g.sm, g.numaid) for g in topology.gpus] == [
        (0, "0000:00:00.0", 90, 0),
        (1, "0000:01:00.0", 90, 1),
    ]
    (adapter,) = topology.nets
    assert (adapter.dev, adapter.name, adapter.port, adapter.speed_mbps, adapter.latency_us, adapter.guid) == (
        0,
        "net0",
        1,
        400000,
        0.0,
        0xBEEF,
    )
    assert (adapter.busid, adapter.numaid) == ("0000:20:00.0", 0)


def test_gpus_are_ordered_by_dev() -> None:
    """Not as in the file, nor by bus id: CUDA_VISIBLE_DEVICES can turn that order round."""
    last_bus = gpu(0, sm=90).replace(":00:00", ":0f:00")
    topology = read(system(cpu(gpu(2, sm=80) + last_bus + gpu(1, sm=100))))
    assert topology.compute_capabilities(3) == (90, 100, 80)
    assert topology.compute_capabilities(1) == (90,)


@pytest.mark.parametrize("count", [0, 3, -1])
def test_more_gpus_than_there_are_is_an_error(count: int) -> None:
    with pytest.raises(BadInput, match=f"{count} GPUs per node were asked for, but the node has 2"):
        read(system(cpu(gpu(0) + gpu(1)))).compute_capabilities(count)


@pytest.mark.parametrize(
    ("tclass", "kind"),
    [
        ("0x030200", Target.GPU),
        ("0x030000", Target.GPU),
        ("0x068001", Target.CPU),
        ("0x068000", Target.SWITCH),
        ("0x060400", Target.SWITCH),
        ("0x020700", Target.SWITCH),
    ],
)
def test_kind_of_an_nvlinks_target_is_nccls(tclass: str, kind: Target) -> None:
    link = f'<nvlink target="0000:55:00.0" count="3" tclass="{tclass}"/>'
    (only,) = read(system(cpu(gpu(0, links=link)))).gpus
    assert {k: only.count_nvlinks(k) for k in Target} == {k: 3 if k is kind else 0 for k in Target}


def test_nvswitches_are_counted_by_address() -> None:
    links = SWITCH.format(n=4, count=2) + SWITCH.format(n=5, count=4) + PEER.format(n=1, count=1)
    topology = read(system(cpu(gpu(0) + gpu(1, links=links) + gpu(2, links=SWITCH.format(n=4, count=6)))))
    assert topology.nvswitches == 2
    assert topology.gpus[1].count_nvlinks(Target.SWITCH) == 6
    assert topology.gpus[1].count_nvlinks(Target.GPU) == 1
    assert not topology.has_nvswitch(1)  # GPU 0 has no link
    assert topology.has_nvswitch(2)


def test_the_cpu_tuned_for_is_the_first_that_local_rank_0_keeps() -> None:
    amd = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
    unused, own = cpu(gpu(1), numaid=0), cpu(gpu(0), numaid=1, kind=amd)
    assert read(system(unused, own)).cpu_vendor == "AuthenticAMD"
    with_net = cpu(gpu(1) + net(0), numaid=0)
    assert read(system(with_net, own)).cpu_vendor == "GenuineIntel"


@pytest.mark.parametrize(("speed", "mbps"), [("-1", 10000), ("0", 10000), (None, 10000), ("25", 25)])
def test_an_adapter_without_speed_has_nccls_default(speed: str | None, mbps: int) -> None:
    rest = "" if speed is None else f'speed="{speed}"'
    assert read(system(cpu(gpu(0) + net(0, rest)))).nets[0].speed_mbps == mbps


def test_an_adapter_that_is_no_pci_device_counts_once() -> None:
    eth = '<nic><net name="eth0" dev="0" speed="10000"/></nic>'
    topology = read(system(cpu(gpu(0) + eth), cpu(gpu(1) + eth, numaid=1)))
    assert [(n.name, n.busid, n.numaid) for n in topology.nets] == [("eth0", None, 0)]


def test_comments_and_the_attributes_nccl_adds_are_accepted(tmp_path: Path) -> None:
    text = system("<!-- c -->" + cpu(gpu(0), kind=INTEL + ' host_hash="0x1"')).replace(' dev="0"', ' dev="0" rank="3"')
    file = tmp_path / "dump.xml"
    file.write_text(text)
    assert read(file) == read(text)


GOOD = system(cpu(gpu(0, links=SWITCH.format(n=4, count=2)) + net(0)))
BAD = {
    "empty": ("", "no element found"),
    "cut off": (GOOD[:90], "not XML"),
    "two roots": (GOOD + GOOD, "junk after document element"),
    "another root": ('<graphs version="1"/>', "<graphs> is not a topology; valid root: <system>"),
    "another version": (GOOD.replace('"1"', '"2"', 1), "version='2' is unknown; valid: '1' ('2' is RCCL's, "),
    "no version": ("<system/>", "version=None is unknown"),
    "no gpu": (system(cpu(net(0))), "has no <gpu>"),
    "gpu outside a cpu": (system(gpu(0)), "<gpu> is not inside a <cpu>"),
    "gpu outside a pci": (system(cpu('<gpu dev="0" sm="90"/>')), "<gpu> is not inside a <pci>"),
    "no sm": (GOOD.replace(' sm="90"', ""), "<gpu> has no sm"),
    "sm no number": (GOOD.replace('sm="90"', 'sm="9o"'), "sm='9o' is not a whole number"),
    "sm with a sign": (GOOD.replace('sm="90"', 'sm="-90"'), "sm='-90' is out of range"),
    "octal": (GOOD.replace('sm="90"', 'sm="0132"'), "sm='0132' is not a whole number"),
    "digits of another script": (GOOD.replace('sm="90"', 'sm="٩٠"'), "is not a whole number"),
    "endless number": (GOOD.replace('sm="90"', f'sm="{"9" * 3000}"'), "is not a whole number"),
    "endless attribute": (GOOD.replace('sm="90"', f'sm="{"9" * 5000}"'), "of <gpu> is longer than 4000 characters"),
    "number too large": (GOOD.replace('numaid="0"', 'numaid="4294967296"'), "is out of range; valid: -1 to 2147483647"),
    "no busid": (GOOD.replace('busid="0000:00:00.0"', ""), "<pci> has no busid"),
    "unknown arch": (GOOD.replace("x86_64", "vax"), "arch='vax' is unknown; valid: x86_64, arm64, ppc64"),
    "unknown vendor": (GOOD.replace("GenuineIntel", "Cyrix"), "vendor='Cyrix' is unknown; valid: GenuineIntel, Au"),
    "mixed vendor": (GOOD.replace("GenuineIntel", "mixed"), "vendor='mixed' is unknown"),
    "no model": (GOOD.replace(' modelid="143"', ""), "<cpu> has no modelid"),
    "no links": (GOOD.replace('count="2"', 'count="0"'), "count='0' is out of range"),
    "no tclass": (GOOD.replace(' tclass="0x068000"', ""), "<nvlink> has no tclass"),
    "dev twice": (system(cpu(gpu(0) + gpu(0))), "<gpu dev>=0 twice"),
    "busid twice": (system(cpu(gpu(0) + gpu(1).replace(":01:", ":00:"))), "GPU <pci busid>=0000:00:00.0 twice"),
    "two nodes": (system(cpu(gpu(0)), cpu(gpu(1))), "has <cpu numaid>=0 twice: give one node"),
    "net dev twice": (system(cpu(gpu(0) + net(1) + net(1).replace("net1", "net2"))), "<net dev>=1 twice"),
    "latency no number": (GOOD.replace('latency="0"', 'latency="low"'), "latency='low' is not a number"),
    "latency beyond float32": (GOOD.replace('latency="0"', 'latency="1e300"'), "latency='1e300' is out of range"),
    "latency with an underscore": (GOOD.replace('latency="0"', 'latency="1_0"'), "latency='1_0' is not a number"),
    "latency with a blank": (GOOD.replace('latency="0"', 'latency=" 1"'), "latency=' 1' is not a number"),
    "width no number": (GOOD.replace("<pci ", '<pci link_width="x16" ', 1), "link_width='x16' is not a whole number"),
    "width beyond int": (GOOD.replace("<pci ", '<pci link_width="4294967312" ', 1), "'4294967312' is out of range"),
    "connections no number": (GOOD.replace("<net ", '<net maxconn="many" '), "maxconn='many' is not a whole number"),
    "bus id no digits": (
        GOOD.replace('busid="0000', 'busid="xyz', 1),
        "is not of hexadecimal digits; valid",
    ),
    "latency endless": (GOOD.replace('latency="0"', 'latency="inf"'), "latency='inf' is out of range"),
    "declaration": ('<?xml version="1.0"?>' + GOOD, "remove <?xml ...?>"),
    "entity bomb": (
        '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + GOOD.replace('sm="90"', 'sm="&b;"'),
        "DOCTYPE",
    ),
    "outside file": ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + GOOD, "DOCTYPE"),
    "deep": ("<a>" * 5000, "nested deeper than 32"),
    "huge": (f"<!--{' ' * (4 << 20)}-->" + GOOD, "valid: up to 4194304"),
    "not text": ("\0\0\0", "not XML"),
}


@pytest.mark.parametrize("scenario", BAD)
def test_a_bad_file_is_one_line_that_names_it(scenario: str, tmp_path: Path) -> None:
    text, expected = BAD[scenario]
    file = tmp_path / "machine.xml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadTopology) as error:
        read(file)
    message = str(error.value)
    assert expected in message
    assert message.startswith(f"{file}:")
    assert "\n" not in message
    assert len(message) < 300


def test_an_error_names_the_line() -> None:
    with pytest.raises(BadTopology, match=r"^topology:4: <gpu> has no sm"):
        read(system("\n\n" + cpu('<pci busid="0000:00:00.0"><gpu dev="0"/></pci>')))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadTopology, match="No such file"):
        read(tmp_path / "absent.xml")


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
        ("add-cpu", "0", "no NUMA node has yet; there are 0, 1"),
        ("add-cpu", "x", "a number that no NUMA node has"),
        ("add-switch", "0000:16:00.0@cpu:0", "a bus id that no device has"),
        ("add-switch", "zz@cpu:0", "a bus id that no device has"),
        ("add-switch", "ffff:00:01.0@cpu:9", "neither a PCI switch nor a NUMA node"),
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
