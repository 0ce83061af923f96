"""The form of the time model: computes times in us from features and parameters. Each of its terms has a physical
meaning.

Ring: the time of a step times the steps, joined with the time of the data. LL pays for each pass of a block over a
step's data; Simple overlaps latency and bandwidth; between nodes a message pays for a rendezvous from some size on, and
a link is busy with each message. Trees go up and down once; NVLS pays by rounds of its chunks. For algorithms without
published times (CollNet) NCCL's own latency and bandwidth are used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, Protocol
from tuner.times.timemodel.features import (
    NETWORKS,
    Array,
    Features,
    Numbers,
    Part,
    ceil,
    least,
    log2,
    most,
    sqrt,
    where,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the form, always above 0. ``log_sd`` is the standard deviation of the prior around ``median``, as
    a natural logarithm."""

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
# Of what is between nodes, this is believed as much as what one site says; medians over sites are in
# tables/between_nodes.toml, and count.
_NETWORK = (
    Parameter("net_share", 0.95, 0.15, "of the bandwidth between nodes of the algorithm's graph"),
    Parameter("net_congestion", 0.035, 0.7, "how much slower data flow between nodes, with each doubling"),
    Parameter("net_ll_hop_us", 10.0, 0.6, "one step of LL or LL128 between nodes, the smallest messages"),
    Parameter("net_ll_past_inline_us", 0.7, 0.6, "what such a step takes longer from 128 bytes on"),
    Parameter("net_ll_rendezvous_us", 8.0, 1.0, "what such a step takes longer from the rendezvous on"),
    Parameter("net_ll_rendezvous_bytes", 8192.0, 0.3, "messages of LL that the network makes a rendezvous for"),
    Parameter("net_ll_message_gbs", 5.5, 1.3, "one channel's messages of LL"),
    Parameter("net_ll_service_share", 0.45, 0.8, "of such a step, that a link is busy with it"),
    Parameter("net_simple_hop_us", 12.0, 0.6, "one step of Simple between nodes, small messages"),
    Parameter("net_simple_rendezvous_us", 25.0, 0.9, "what such a step takes longer from the rendezvous on"),
    Parameter("net_simple_rendezvous_bytes", 27000.0, 0.8, "messages of Simple that the network makes one for"),
    Parameter("net_simple_service_share", 0.9, 0.7, "of such a step, that a link is busy with it"),
    Parameter("tree_hop_us", 17.0, 0.8, "one level of a tree by Simple, small messages"),
    Parameter("tree_rendezvous_us", 15.0, 1.1, "what such a level takes longer from the rendezvous on"),
    Parameter("tree_rendezvous_bytes", 65536.0, 1.0, "messages of a tree that the network makes one for"),
    Parameter("tree_overlap", 0.47, 0.4, "exponent of the norm that joins a tree's latency and bandwidth"),
    Parameter("tree_ll_share", 0.5, 0.3, "of a tree's bandwidth, for LL: half of each word is a flag"),
    Parameter("tree_ll128_share", 0.6, 0.4, "of a tree's bandwidth, for LL128: 120 of 128 bytes are data"),
    Parameter("tree_share", 1.0, 0.35, "of a tree's bandwidth between more than two nodes, beside net_share"),
    Parameter("tree_two_nodes_share", 1.0, 0.25, "of the bandwidth between two nodes, for a tree, beside net_share"),
    Parameter("nvls_tree_hop_us", 75.0, 0.9, "one level of NVLSTree between nodes"),
    Parameter("nvls_tree_share", 1.1, 0.3, "of NVLSTree's bandwidth between more than two nodes, beside net_share"),
    Parameter(
        "nvls_tree_two_nodes_share", 1.55, 0.3, "of the bandwidth between two nodes, for NVLSTree, beside net_share"
    ),
    Parameter("pat_hop_us", 12.0, 0.7, "one step of PAT between nodes"),
    Parameter("pat_share", 0.9, 0.4, "of the bandwidth between nodes, for PAT, beside net_share"),
)
# Factors that collectives have of their own; the priors say little about them.
_BY_COLLECTIVE = (
    ("ll_extra_steps", 0.3),
    ("bandwidth_extra_steps", 0.3),
    ("latency_extra_steps", 0.3),
    ("ll_hop_us", 0.05),
    ("ll128_hop_us", 0.05),
    ("simple_hop_us", 0.1),
    ("step_data", 0.05),
)
# A broadcast or a reduction flows through the ranks: a hop passes on slices, not the data of a whole step.
_FLOWING = (Collective.Broadcast, Collective.Reduce)
_OF_FLOWING = {"simple_hop_us": (0.3, 0.5), "latency_extra_steps": (1.0, 0.5), "bandwidth_extra_steps": (0.2, 1.0)}


def _factor(name: str, log_sd: float, collective: Collective) -> Parameter:
    median, width = _OF_FLOWING.get(name, (1.0, log_sd)) if collective in _FLOWING else (1.0, log_sd)
    return Parameter(f"{name}.{collective.name}", median, width, f"factor of {name} for {collective.name}")


_FACTORS = tuple(_factor(name, log_sd, collective) for name, log_sd in _BY_COLLECTIVE for collective in Collective)
# What messages take depends on the network's software: factors of networks other than NCCL's own.
BY_NETWORK = tuple(each.name for each in _NETWORK if each.name.startswith("net_") or each.name == "nvls_tree_hop_us")
_NETWORK_FACTORS = tuple(
    Parameter(f"{name}.{network}", 1.0, 1.0, f"factor of {name} over {network}")
    for network in NETWORKS[1:]
    for name in BY_NETWORK
)
BELIEFS: Mapping[str, Parameter] = {
    parameter.name: parameter for parameter in (*_LAUNCH, *_NVLINK, *_NETWORK, *_FACTORS, *_NETWORK_FACTORS)
}


@cache
def learnt_between_nodes() -> Mapping[str, Any]:
    """What the sites of ``tables/splits.toml`` have taught, as ``python -m tests.scripts.fit_network`` writes it.

    ``parameters``: median and width by the name of a parameter; ``widening``: pairs by the number of rows, which
    ``tuner.times.timemodel.sites`` explains.
    """
    return tables.toml(tables.folder() / "between_nodes.toml")


PARAMETERS: Mapping[str, Parameter] = {
    **BELIEFS,
    **{
        name: replace(BELIEFS[name], median=median, log_sd=log_sd)
        for name, (median, log_sd) in learnt_between_nodes()["parameters"].items()
    },
}
# The data that GPUs of a generation move with LL and LL128 are in the same proportion to NCCL's numbers (cap_gbs,
# 2.28.9) as in the other generations.
_OF_GENERATION: Mapping[str, Mapping[str, float]] = {
    "volta": {"ll_channel_gbs": 8.8, "ll128_channel_gbs": 8.0},
    "ampere": {"ll_channel_gbs": 9.9, "ll128_channel_gbs": 8.0},
    "hopper": {"ll_channel_gbs": 15.9, "ll128_channel_gbs": 14.7},
    "blackwell": {"ll_channel_gbs": 23.8, "ll128_channel_gbs": 13.8},
}


def believed(generation: str = "") -> dict[str, float]:
    """The medians of the parameters' priors by name, for GPUs of a generation as NCCL's tables name it."""
    medians = {parameter.name: parameter.median for parameter in PARAMETERS.values()}
    return {**medians, **_OF_GENERATION.get(generation, {})}


LL_MESSAGE_BYTES = 32768  # the most bytes that a step sends at once with LL
SIMPLE_MESSAGE_BYTES = 524288  # the same for Simple
INLINE_BYTES = 128.0
# The chunk of NVLS, by the number of rounds that a call would take with it. Source: calcCollChunking, src/enqueue.cc,
# v2.28.9-1. libnccl uses the same (tests/live/test_launches.py), except within a cell of the size at which the chunk
# changes, where its channels differ.
NVLS_CHUNKS = ((131072.0, 64, 65536.0), (65536.0, 8, 32768.0), (32768.0, 2, 16384.0))
NVLS_HEADS = 8.0  # a round's time is shared by at most this number of heads, as measured on domains of 8 to 72 GPUs


class Form:
    """The form with given parameters, by name. Units: us, GB/s (1e9 bytes per second), bytes."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        self.parameters = parameters
        self._by_collective: dict[str, tuple[Array, list[float]]] = {}
        self._networks = tuple(_OnNetwork(parameters, each) for each in NETWORKS)

    def times_us(self, calls: Features) -> Numbers:
        """The time of each call, [call], or of the one call."""
        if not (parts := calls.by_algo_proto):
            number = calls.algo_proto
            return self.times_of(int(number[0]) if isinstance(number, np.ndarray) else number, calls)
        times_us = np.empty(len(calls))
        for number, which, part in parts:
            times_us[which] = self.times_of(number, part)
        return times_us

    def times_of(self, algo_proto: int, calls: Features) -> Numbers:
        """The time of each call of one algorithm and protocol, by its number, [call], or of the one call."""
        return self._start_us(calls) + _mover(algo_proto)(self, calls)

    def _of(self, name: str, calls: Features) -> Numbers:
        """A parameter with each call's factor for its collective."""
        if name not in self._by_collective:
            factors = _in_a_row([self.parameters[factor] for factor in _factors(name)])
            values = self.parameters.get(name, 1.0) * factors
            self._by_collective[name] = values, values.tolist()
        of_arrays, of_numbers = self._by_collective[name]
        collective = calls.collective
        if isinstance(collective, np.ndarray) or of_arrays.ndim > 1:
            return of_arrays[..., np.atleast_1d(collective)]
        return of_numbers[collective]

    def _between(self, calls: Features) -> Mapping[str, Numbers]:
        """The parameters of what is between nodes by name, with each call's factor for its network."""
        network = calls.networks if isinstance(calls.network, np.ndarray) else calls.network
        return _OnNetworks(self._networks, network) if isinstance(network, np.ndarray) else self._networks[network]

    def _start_us(self, calls: Features) -> Numbers:
        p, of_adapters = self.parameters, calls.adapter_us * calls.adapter_share
        return p["start_us"] + p["channels_start_us"] * (1 - 1 / calls.channels) + of_adapters

    def _slowdown(self, calls: Features) -> Numbers:
        return (1 + calls.byte_reduced * self.parameters["byte_slowdown"]) * self._of("step_data", calls)

    def _inter_gbs(self, calls: Features) -> Numbers:
        p, doublings = self._between(calls), log2(most(calls.nodes / 2, 1))
        return p["net_share"] * calls.inter_gbs / (1 + p["net_congestion"] * doublings)

    def _ring_ll(self, calls: Features) -> Numbers:
        p, step = self.parameters, calls.step_bytes
        gbs = calls.channels * p["ll_channel_gbs"]
        gbs = where(calls.nodes > 1, least(gbs, self._inter_gbs(calls) / 2), gbs)
        passes = most(ceil(step / (8 * calls.channels * calls.threads)) - 1, 0)
        data_us = step * self._slowdown(calls) / _bytes_per_us(gbs) + p["ll_iteration_us"] * passes
        latency_us = self._low_latency_chain_us(calls, self._of("ll_hop_us", calls), 2 * step / calls.channels)
        times_us: Numbers = latency_us + self._steps_of_data(calls, "ll_extra_steps") * data_us
        return times_us

    def _ring_ll128(self, calls: Features) -> Numbers:
        step, gbs = calls.step_bytes, calls.channels * self.parameters["ll128_channel_gbs"]
        gbs = where(calls.nodes > 1, least(gbs, self._inter_gbs(calls) * 120 / 128), gbs)
        latency_us = self._low_latency_chain_us(calls, self._of("ll128_hop_us", calls), step / calls.channels)
        data_us = step * self._slowdown(calls) / _bytes_per_us(gbs)
        return latency_us + self._steps_of_data(calls, "ll_extra_steps") * data_us

    def _ring_simple(self, calls: Features) -> Numbers:
        p, step = self.parameters, calls.step_bytes
        gbs = p["ring_share"] * calls.intra_gbs
        gbs = where(calls.nodes > 1, least(gbs, self._inter_gbs(calls)), gbs)
        data_us = self._steps_of_data(calls, "bandwidth_extra_steps") * step
        data_us = data_us * self._slowdown(calls) / _bytes_per_us(gbs)
        hop_us = self._of("simple_hop_us", calls)
        waiting = (calls.steps + self._of("latency_extra_steps", calls)) * hop_us
        message = least(step / calls.channels, SIMPLE_MESSAGE_BYTES)
        link_us = self._simple_hop_us("net_simple", message, calls)
        chain_us = _chain_us(calls, hop_us, link_us, self._between(calls)["net_simple_service_share"])
        if not isinstance(calls.nodes, np.ndarray):
            return _on_links(chain_us, data_us) if calls.nodes > 1 else _joined(waiting, data_us, p["overlap"])
        return where(calls.nodes > 1, _on_links(chain_us, data_us), _joined(waiting, data_us, p["overlap"]))

    def _low_latency_chain_us(self, calls: Features, hop_us: Numbers, message_bytes: Numbers) -> Numbers:
        busy = self._between(calls)["net_ll_service_share"]
        return _chain_us(calls, hop_us, self._ll_hop_us(message_bytes, calls), busy)

    def _ll_hop_us(self, message_bytes: Numbers, calls: Features) -> Numbers:
        p, message = self._between(calls), least(message_bytes, LL_MESSAGE_BYTES)
        return (
            p["net_ll_hop_us"]
            + p["net_ll_past_inline_us"] * _from(message, INLINE_BYTES, 6)
            + p["net_ll_rendezvous_us"] * _from(message, p["net_ll_rendezvous_bytes"], 6)
            + message / _bytes_per_us(p["net_ll_message_gbs"])
        )

    def _simple_hop_us(self, kind: str, message_bytes: Numbers, calls: Features) -> Numbers:
        p = self._between(calls)
        later = p[f"{kind}_rendezvous_us"] * _from(message_bytes, p[f"{kind}_rendezvous_bytes"], 3)
        return p[f"{kind}_hop_us"] + later

    def _tree_ll(self, calls: Features) -> Numbers:
        hops_us = self._of("ll_hop_us", calls), self._ll_hop_us(2 * calls.bytes / calls.channels, calls)
        share = self.parameters["tree_ll_share"]
        return _up_and_down_us(calls, *hops_us) + calls.bytes / _bytes_per_us(self._tree_gbs(calls, share, share))

    def _tree_ll128(self, calls: Features) -> Numbers:
        hops_us = self._of("ll128_hop_us", calls), self._ll_hop_us(calls.bytes / calls.channels, calls)
        share = self.parameters["tree_ll128_share"]
        return _up_and_down_us(calls, *hops_us) + calls.bytes / _bytes_per_us(self._tree_gbs(calls, share, share))

    def _tree_simple(self, calls: Features) -> Numbers:
        link_us = self._simple_hop_us("tree", calls.bytes / calls.channels, calls)
        latency_us = _up_and_down_us(calls, self._of("simple_hop_us", calls), link_us)
        gbs = self._tree_gbs(calls, self.parameters["tree_share"], self.parameters["tree_two_nodes_share"])
        return _joined(latency_us, calls.bytes / _bytes_per_us(gbs), self.parameters["tree_overlap"])

    def _tree_gbs(self, calls: Features, share: float, two_nodes_share: float) -> Numbers:
        """Bandwidth of a tree. Between more than two nodes data go up and down the same links; with two nodes each
        direction carries only one way.
        """
        between = self._inter_gbs(calls) * where(calls.nodes > 2, share / 2, two_nodes_share)
        return where(calls.nodes > 1, between, self.parameters["ring_share"] * share / 2 * calls.intra_gbs)

    def _nvls(self, calls: Features) -> Numbers:
        p, gbs = self.parameters, self._nvls_gbs(calls)
        gbs = where(calls.nodes > 1, least(gbs, self._inter_gbs(calls)), gbs)
        domain_us = p["nvls_domain_us"] * log2(most(calls.heads / NVLS_HEADS, 1.0))
        return p["nvls_start_us"] + domain_us + calls.bytes / _bytes_per_us(gbs) + self._nvls_rounds_us(calls)

    def _nvls_tree(self, calls: Features) -> Numbers:
        p = self.parameters
        share = where(calls.nodes > 2, p["nvls_tree_share"] / 2, p["nvls_tree_two_nodes_share"])
        inside_us = calls.bytes / _bytes_per_us(self._nvls_gbs(calls))
        between_us = calls.bytes / _bytes_per_us(self._inter_gbs(calls) * share)
        # These overlap in part: two nodes of H100 reach 63 % of what their adapters carry, two of B200, whose NVLinks
        # are twice as fast, 93 %.
        data_us = sqrt(inside_us * inside_us + between_us * between_us)
        levels_us = 2 * ceil(log2(calls.nodes)) * self._between(calls)["nvls_tree_hop_us"]
        return p["nvls_start_us"] + levels_us + data_us + self._nvls_rounds_us(calls)

    def _nvls_rounds_us(self, calls: Features) -> Numbers:
        """The time of the rounds of chunks. With more than eight heads, rounds do not get larger."""
        chunks = calls.channels * least(calls.heads, NVLS_HEADS) * nvls_chunk_bytes(calls)
        times_us: Numbers = self.parameters["nvls_round_us"] * calls.bytes / chunks
        return times_us

    def _nvls_gbs(self, calls: Features) -> Numbers:
        return self.parameters["nvls_share"] * calls.intra_gbs

    def _pat(self, calls: Features) -> Numbers:
        p = self.parameters
        data_us = calls.steps * calls.step_bytes / _bytes_per_us(self._inter_gbs(calls) * p["pat_share"])
        return _joined(ceil(log2(calls.ranks)) * p["pat_hop_us"], data_us, 1.0)

    def _by_nccl(self, calls: Features) -> Numbers:
        return calls.nccl_latency_us + calls.bytes / _bytes_per_us(calls.nccl_gbs)

    def _steps_of_data(self, calls: Features, extra: str) -> Numbers:
        """Number of steps for whose data a call waits: the ring's steps, and the steps that copies add."""
        return calls.passes + self._of(extra, calls)


class _OnNetwork(dict[str, float]):
    """Parameters by name with the factors of one network, each computed when it is first asked for."""

    def __init__(self, parameters: Mapping[str, float], network: str) -> None:
        super().__init__()
        self._parameters, self._network = parameters, network

    def __missing__(self, name: str) -> float:
        value = self[name] = self._parameters[name] * self._parameters.get(f"{name}.{self._network}", 1.0)
        return value


class _OnNetworks(dict[str, Array]):
    """Parameters by name for calls on several networks, [call]."""

    def __init__(self, networks: Sequence[_OnNetwork], network: Array) -> None:
        super().__init__()
        self._networks, self._network = networks, network

    def __missing__(self, name: str) -> Array:
        values: Array = _in_a_row([each[name] for each in self._networks])[..., self._network]
        return values


def _in_a_row(values: Sequence[Numbers]) -> Array:
    """Numbers beside each other, [value]; where some are columns [set, 1], [set, value]."""
    if any(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(np.broadcast_arrays(*map(np.atleast_1d, values)), axis=-1)
    return np.array(values)


class TimesOfCalls:
    """The form's times of the same calls with one set of parameters after the other, as a fit asks for them.

    Times of an algorithm and protocol are only computed again if a parameter has changed on which they depend. The last
    two sets are kept: for a derivative, a fit returns to the first set after each parameter.
    """

    def __init__(self, calls: Features) -> None:
        self.calls = calls
        self._names: dict[int, tuple[str, ...]] = {}  # names of the parameters that are read, by number
        self._known: dict[int, list[tuple[list[float | None], Numbers]]] = {}

    def times_us(self, parameters: Mapping[str, float]) -> Numbers:
        """The time of each call, [call], as :class:`Form` computes it."""
        if not (parts := self.calls.by_algo_proto):
            return Form(parameters).times_us(self.calls)
        times_us = np.empty(len(self.calls))
        for number, which, part in parts:
            times_us[which] = self._times_of(number, part, parameters)
        return times_us

    def times_us_each_changed(self, parameters: Mapping[str, float], changed: Mapping[str, float]) -> Array:
        """The times of every call with one parameter set to its value in ``changed``, in us: an array
        `[parameter][call]`.

        The derivatives of a fit need these times. They are computed together, which is much faster than one after the
        other.
        """
        names = list(changed)
        times_us = np.tile(self.times_us(parameters), (len(names), 1))
        for number, which, part in self.calls.by_algo_proto or (self._one_part,):
            self._times_of(number, part, parameters)  # so that it is known what is read
            at = np.flatnonzero([name in self._names[number] for name in names])
            if len(at):
                sets = dict(parameters)
                for place, name in enumerate(names[row] for row in at):
                    column = np.full((len(at), 1), parameters[name], np.float64)
                    column[place] = changed[name]
                    sets[name] = column  # type: ignore[assignment]
                times_us[np.ix_(at, np.flatnonzero(which))] = Form(sets).times_of(number, part)
        return times_us

    @property
    def _one_part(self) -> Part:
        return int(self.calls.of_each("algo_proto")[0]), np.ones(len(self.calls), np.bool_), self.calls

    def _times_of(self, number: int, part: Features, parameters: Mapping[str, float]) -> Numbers:
        if (names := self._names.get(number)) is None:  # the same each time, because no formula branches on a parameter
            reading = _Reading(parameters)
            Form(reading).times_of(number, part)
            names = self._names[number] = tuple(reading.names)
        read, known = [*map(parameters.get, names)], self._known.setdefault(number, [])
        for at, (before, times_us) in enumerate(known):
            if before == read:
                known.insert(0, known.pop(at))
                return times_us
        times_us = Form(parameters).times_of(number, part)
        known[:] = [(read, times_us), *known[:1]]
        return times_us


class _Reading(dict[str, float]):
    """A mapping of parameters that records which names were read, whether or not they exist."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        super().__init__(parameters)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> float:
        self.names[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, or the default."""
        self.names[name] = None
        return super().get(name, default)


@cache
def _mover(algo_proto: int) -> Callable[[Form, Features], Numbers]:
    """The formula for the time of a call after its start, us, for the combination with this number."""
    algorithm, protocol = ALGO_PROTOS[algo_proto]
    if algorithm is Algorithm.Ring:
        return {Protocol.LL: Form._ring_ll, Protocol.LL128: Form._ring_ll128}.get(protocol, Form._ring_simple)
    if algorithm is Algorithm.Tree:
        return {Protocol.LL: Form._tree_ll, Protocol.LL128: Form._tree_ll128}.get(protocol, Form._tree_simple)
    movers = {Algorithm.NVLS: Form._nvls, Algorithm.NVLSTree: Form._nvls_tree, Algorithm.PAT: Form._pat}
    return movers.get(algorithm, Form._by_nccl)


@cache
def _factors(name: str) -> tuple[str, ...]:
    """The names of a parameter's factors, by NCCL's numbers of the collectives."""
    return tuple(f"{name}.{collective.name}" for collective in Collective)


def nvls_chunk_bytes(calls: Features) -> Numbers:
    """Bytes that a channel of NVLS sends at once to one head, [call]."""
    chunk: Numbers = NVLS_CHUNKS[0][0]
    for larger, rounds, smaller in NVLS_CHUNKS:
        few = calls.bytes < rounds * calls.channels * calls.heads * chunk
        chunk = where(few & (chunk >= larger), smaller, chunk)
    return chunk


def _bytes_per_us(gbs: Numbers) -> Numbers:
    return most(gbs, 1e-9) * 1e3


def _chain_us(calls: Features, hop_us: Numbers, link_us: Numbers, service_share: float) -> Numbers:
    """The steps of a ring, some of them between nodes; a link's time is at least what its message rate allows."""
    steps = calls.steps
    between = where(calls.nodes > 1, steps * calls.nodes / calls.ranks, 0)
    chain_us = (steps - between) * hop_us + between * link_us
    return _on_links(chain_us, where(calls.nodes > 1, steps * service_share * link_us, 0))


def _up_and_down_us(calls: Features, hop_us: Numbers, link_us: Numbers) -> Numbers:
    return 2 * ((calls.ranks / calls.nodes - 1) * hop_us + log2(calls.nodes) * link_us)


def _joined(one_us: Numbers, other_us: Numbers, exponent: float) -> Numbers:
    joined_us: Numbers = (one_us**exponent + other_us**exponent) ** (1 / exponent)
    return joined_us


def _on_links(one_us: Numbers, other_us: Numbers) -> Numbers:
    """Joins the latency of a chain and the time of a busy link by a norm with exponent four, which is nearly their
    maximum."""
    one, other = one_us * one_us, other_us * other_us
    return sqrt(sqrt(one * one + other * other))


def _from(message_bytes: Numbers, threshold_bytes: Numbers, sharpness: Literal[3, 6]) -> Numbers:
    """0 for small messages, 1 for large ones, in between at the threshold."""
    ratio = threshold_bytes / message_bytes
    cube = ratio * ratio * ratio
    return 1 / (1 + (cube * cube if sharpness == 6 else cube))
