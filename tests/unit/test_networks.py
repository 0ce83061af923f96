"""Networks by their names in NCCL_NET and NCCL_NET_PLUGIN: what fits is answered, what contradicts is one error."""

import pytest

from tuner.base.errors import BadInput
from tuner.machine import catalogue
from tuner.machine.adapters import NamedAdapter, offers_gin, plugin_networks
from tuner.scenario import Scenario

INFINIBAND, EFA, TCPX, SLINGSHOT = "dgx-h100", "aws-p5-rdma", "gcp-a3-mega", "alps"
HPCX = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
SPECTRUM = "/opt/hpcx/nccl_spectrum-x_plugin/lib/libnccl-net.so"


def bandwidths(machine: str, **variables: str) -> object:
    return Scenario("2.28.9", 2, machine=machine, environment=variables).communicator().graphs


@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        (INFINIBAND, {"NCCL_NET_PLUGIN": "spcx"}),
        (INFINIBAND, {"NCCL_NET_PLUGIN": SPECTRUM}),
        (INFINIBAND, {"NCCL_NET_PLUGIN": HPCX}),
        (INFINIBAND, {"NCCL_NET_PLUGIN": "ibext"}),
        (INFINIBAND, {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "spcx"}),  # NCCL's own by its name, whatever is loaded
        (INFINIBAND, {"NCCL_NET": "gIB", "NCCL_NET_PLUGIN": "/usr/local/gib/lib64/libnccl-net.so"}),
        (EFA, {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "/opt/aws/libnccl-net.so"}),
        (EFA, {"NCCL_NET_PLUGIN": "libnccl-net.so"}),
        (TCPX, {"NCCL_NET": "FasTrak"}),
        (TCPX, {"NCCL_NET_PLUGIN": "/var/lib/tcpxo/lib64/libnccl-net.so"}),
        (SLINGSHOT, {"NCCL_NET_PLUGIN": "ofi"}),
    ],
    ids=str,
)
def test_a_network_that_the_machine_has_changes_nothing(machine: str, variables: dict[str, str]) -> None:
    assert bandwidths(machine, **variables) == bandwidths(machine)


@pytest.mark.parametrize(
    ("machine", "variables", "says"),
    [
        (INFINIBAND, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE forbids; valid: without NCCL_IB_D"),
        (INFINIBAND, {"NCCL_NET": "gIB", "NCCL_NET_PLUGIN": "none"}, "loads none; valid: without NCCL_NET_PLUGIN"),
        (INFINIBAND, {"NCCL_NET": "FasTrak"}, "is gpudirect-tcpx's.*valid: without NCCL_NET$"),
        (INFINIBAND, {"NCCL_NET_PLUGIN": "aws-ofi"}, "is libfabric's.*valid: without NCCL_NET_PLUGIN$"),
        (
            INFINIBAND,
            {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "spcx"},
            "libfabric's, NCCL_NET_PLUGIN='spcx' sp",
        ),
        (EFA, {"NCCL_NET_PLUGIN": "spcx"}, "is spectrum-x's.*here they are named rdmap"),
        (EFA, {"NCCL_NET": "gIB"}, "is gib's"),
        (EFA, {"NCCL_NET": "IB"}, "here the adapters are libfabric's"),
        (TCPX, {"NCCL_NET": "IB"}, "here the adapters are gpudirect-tcpx's"),
        (SLINGSHOT, {"NCCL_NET_PLUGIN": HPCX}, "is hpcx's"),
        (INFINIBAND, {"NCCL_NET_PLUGIN": "/opt/own/libnccl-net.so"}, "not emulated.*valid: without NCCL_NET_PLUGIN$"),
    ],
    ids=str,
)
def test_what_contradicts_the_machine_or_itself_is_one_error(
    machine: str, variables: dict[str, str], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        bandwidths(machine, **variables)


def test_every_network_is_found_by_its_names() -> None:
    for network in plugin_networks():
        machine = next(
            (name for name, own in {EFA: "libfabric", TCPX: "gpudirect-tcpx"}.items() if own == network.name),
            INFINIBAND,
        )
        assert network.nets or network.plugins
        for net in network.nets:
            assert bandwidths(machine, NCCL_NET=net.upper()) == bandwidths(machine)


@pytest.mark.parametrize(
    ("machine", "offered"), [(INFINIBAND, True), (EFA, None), (TCPX, False), (SLINGSHOT, False), ("gcp-a4", True)]
)
def test_gpus_start_transfers_over_networks_that_reach_their_memory(machine: str, offered: bool | None) -> None:
    assert offers_gin(catalogue.load(machine).topology.nets) is offered


def test_adapters_that_do_not_reach_the_memory_of_gpus_offer_them_nothing() -> None:
    def adapters(*direct: bool) -> list[NamedAdapter]:
        return [NamedAdapter(f"mlx5_{at}", 1, f"0000:{at:02x}:00.0", each) for at, each in enumerate(direct)]

    assert offers_gin(adapters(True, True)) is True
    assert offers_gin(adapters(False, False)) is False
    assert offers_gin(adapters(True, False)) is None
    assert offers_gin([NamedAdapter("eth0", 0, None, False)]) is False
    assert offers_gin([]) is None
