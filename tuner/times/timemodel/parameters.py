"""The parameters of the form: what each says, its unit by its name, and what is believed before anything is measured.

A belief is a median and the standard deviation of the logarithm. Those of NVLink and of the launch are what public runs
of three generations have in common. Those of the network are what ten sites have in common and by how much they differ:
each fitted with the others' as its prior, and again until neither moved (tests/scripts/fit_network.py).
"""

from collections.abc import Mapping

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of the form, always above 0; ``log_sd``: how wide the belief around ``median`` is, natural log."""

    name: str
    median: float
    log_sd: float
    meaning: str


_LAUNCH = (
    Parameter("start_us", 6.0, 0.5, "what a call takes before anything moves; belongs to the way of launching"),
    Parameter("channels_start_us", 1.2, 1.0, "what many channels take longer to start than one"),
)
_NVLINK = (
    Parameter("ll_hop_us", 0.9, 0.4, "one step of LL between GPUs"),
    Parameter("ll_channel_gbs", 15.0, 0.4, "data of a channel by LL"),
    Parameter("ll_iteration_us", 0.3, 0.7, "each further pass of a block's threads over a step's data, by LL"),
    Parameter("ll128_hop_us", 1.6, 0.6, "one step of LL128 between GPUs"),
    Parameter("ll128_channel_gbs", 12.0, 0.5, "data of a channel by LL128"),
    Parameter("simple_hop_us", 5.0, 0.6, "one step of Simple between GPUs"),
    Parameter("ring_share", 1.03, 0.15, "of the bandwidth of the ring's graph inside a node"),
    Parameter("overlap", 1.0, 0.4, "exponent of the norm that joins latency and bandwidth: 1 adds, more overlaps"),
    Parameter("latency_extra_steps", 1.7, 0.7, "steps that Simple waits for beyond those of the ring"),
    Parameter("bandwidth_extra_steps", 0.6, 0.7, "steps' data that Simple moves beyond those of the ring"),
    Parameter("ll_extra_steps", 1.0, 0.7, "steps' data that LL and LL128 move beyond those of the ring"),
    Parameter("byte_slowdown", 0.05, 1.0, "how much slower types of one byte are reduced"),
    Parameter("nvls_start_us", 20.0, 0.5, "what NVLS takes before data flow"),
    Parameter("nvls_share", 1.0, 0.2, "of the bandwidth of the graph of NVLS"),
    Parameter("nvls_domain_us", 18.0, 0.3, "what NVLS starts later each time a domain's heads double beyond eight"),
    Parameter("nvls_round_us", 11.0, 0.7, "each round of NVLS's chunks over all channels and heads"),
)
_NETWORK = (
    Parameter("net_share", 0.954, 0.2, "of the bandwidth between nodes of the algorithm's graph"),
    Parameter("net_congestion", 0.0333, 0.73, "how much slower data flow between nodes, with each doubling"),
    Parameter("net_ll_hop_us", 10.9, 0.69, "one step of LL or LL128 between nodes, the smallest messages"),
    Parameter("net_ll_past_inline_us", 0.698, 0.64, "what such a step takes longer from 128 bytes on"),
    Parameter("net_ll_rendezvous_us", 7.35, 1, "what such a step takes longer from the rendezvous on"),
    Parameter("net_ll_rendezvous_bytes", 7290.0, 0.46, "messages of LL that the network makes a rendezvous for"),
    Parameter("net_ll_message_gbs", 4.08, 1.2, "one channel's messages of LL"),
    Parameter("net_ll_service_share", 0.479, 0.73, "of such a step, that a link is busy with it"),
    Parameter("net_simple_hop_us", 12.2, 0.6, "one step of Simple between nodes, small messages"),
    Parameter("net_simple_rendezvous_us", 19.5, 1.1, "what such a step takes longer from the rendezvous on"),
    Parameter("net_simple_rendezvous_bytes", 27700.0, 0.87, "messages of Simple that the network makes one for"),
    Parameter("net_simple_service_share", 0.767, 0.9, "of such a step, that a link is busy with it"),
    Parameter("tree_hop_us", 10.4, 0.81, "one level of a tree by Simple, small messages"),
    Parameter("tree_rendezvous_us", 9.46, 1.1, "what such a level takes longer from the rendezvous on"),
    Parameter("tree_rendezvous_bytes", 29600.0, 1, "messages of a tree that the network makes one for"),
    Parameter("tree_overlap", 0.553, 0.42, "exponent of the norm that joins a tree's latency and bandwidth"),
    Parameter("tree_ll_share", 0.498, 0.3, "of a tree's bandwidth, for LL: half of each word is a flag"),
    Parameter("tree_ll128_share", 0.799, 0.31, "of a tree's bandwidth, for LL128: 120 of 128 bytes are data"),
    Parameter("tree_share", 1.05, 0.42, "of a tree's bandwidth between more than two nodes, beside net_share"),
    Parameter("tree_two_nodes_share", 1.04, 0.26, "of the bandwidth between two nodes, for a tree, beside net_share"),
    Parameter("nvls_tree_hop_us", 104.0, 1.1, "one level of NVLSTree between nodes"),
    Parameter("nvls_tree_share", 0.844, 0.37, "of NVLSTree's bandwidth between more than two nodes, beside net_share"),
    Parameter(
        "nvls_tree_two_nodes_share", 0.821, 0.32, "of the bandwidth between two nodes, for NVLSTree, beside net_share"
    ),
    Parameter("pat_hop_us", 12.0, 0.7, "one step of PAT between nodes"),
    Parameter("pat_share", 0.9, 0.4, "of the bandwidth between nodes, for PAT, beside net_share"),
)
# What collectives have of their own, as factors: little is believed of them.
_BY_COLLECTIVE = (
    ("ll_extra_steps", 0.3),
    ("bandwidth_extra_steps", 0.3),
    ("latency_extra_steps", 0.3),
    ("ll_hop_us", 0.05),
    ("ll128_hop_us", 0.05),
    ("simple_hop_us", 0.1),
    ("step_data", 0.05),
)
# A broadcast or a reduction flows through the ranks: a hop passes on slices, not a whole step's data.
_FLOWING = (Collective.Broadcast, Collective.Reduce)
_OF_FLOWING = {"simple_hop_us": (0.3, 0.5), "latency_extra_steps": (1.0, 0.5), "bandwidth_extra_steps": (0.2, 1.0)}


def _factor(name: str, log_sd: float, collective: Collective) -> Parameter:
    median, width = _OF_FLOWING.get(name, (1.0, log_sd)) if collective in _FLOWING else (1.0, log_sd)
    return Parameter(f"{name}.{collective.name}", median, width, f"factor of {name} for {collective.name}")


_FACTORS = tuple(_factor(name, log_sd, collective) for name, log_sd in _BY_COLLECTIVE for collective in Collective)

PARAMETERS: Mapping[str, Parameter] = {
    parameter.name: parameter for parameter in (*_LAUNCH, *_NVLINK, *_NETWORK, *_FACTORS)
}
# What GPUs of a generation move by LL and LL128 stands to what NCCL says of them (cap_gbs, 2.28.9) as in the others.
_OF_GENERATION: Mapping[str, Mapping[str, float]] = {
    "volta": {"ll_channel_gbs": 8.8, "ll128_channel_gbs": 8.0},
    "ampere": {"ll_channel_gbs": 9.9, "ll128_channel_gbs": 8.0},
    "hopper": {"ll_channel_gbs": 15.9, "ll128_channel_gbs": 14.7},
    "blackwell": {"ll_channel_gbs": 23.8, "ll128_channel_gbs": 13.8},
}


def believed(generation: str = "") -> dict[str, float]:
    """The medians of the beliefs by name, for GPUs of a generation as NCCL's tables name it."""
    medians = {parameter.name: parameter.median for parameter in PARAMETERS.values()}
    return {**medians, **_OF_GENERATION.get(generation, {})}
