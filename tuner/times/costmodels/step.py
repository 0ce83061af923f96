"""The communication of a training step: which collectives it needs, over which GPUs, with how many bytes and how often;
and the time that it takes.

Ranks lie as usual: tensor parallelism innermost, then data parallelism (with the experts inside it), pipeline stages
outermost. A parallelism of degree 1 communicates nothing.

Shapes: arguments are scalars, or arrays that broadcast; results are computed for each element.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.expressions import expression
from tuner.times.costmodels import algorithms
from tuner.times.costmodels.alphabeta import Level, terms
from tuner.times.costmodels.operations import Array, CostOperation, divides, not_negative, part, positive, whole


def step_us(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike = 0.0) -> Array:
    """Time of a step; ``hidden`` is the share of the communication that overlaps the computation, as far as the
    computation is long enough.

    With 0, computation and communication run one after the other; with 1, the time is the longer of the two.
    """
    compute, communication = positive("compute_us", compute_us), not_negative("communication_us", communication_us)
    time: Array = compute + communication - _hidden_us(compute, communication, hidden)
    return time


def speedup(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike) -> Array:
    """Speed-up over running both one after the other, from times in us; ``hidden`` as in :func:`step_us`."""
    faster: Array = step_us(compute_us, communication_us) / step_us(compute_us, communication_us, hidden)
    return faster


def achieved(compute_us: ArrayLike, communication_us: ArrayLike, hidden: ArrayLike) -> Array:
    """The share of the possible speed-up that is reached if ``hidden`` of the communication overlaps; times in us."""
    compute, communication = positive("compute_us", compute_us), positive("communication_us", communication_us)
    gain, most = (
        _hidden_us(compute, communication, share) / step_us(compute, communication, share) for share in (hidden, 1.0)
    )
    reached: Array = gain / most
    return reached


def _hidden_us(compute_us: Array, communication_us: Array, hidden: ArrayLike) -> Array:
    least: Array = np.minimum(part("hidden", hidden) * communication_us, compute_us)
    return least


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer. Of its ``parameters``, ``expert_parameters`` belong to experts, in ``expert_layers`` layers.

    A token goes to ``experts_per_token`` experts. ``parameters`` and a plan's sizes may be arrays; bytes and times are
    then arrays, too.
    """

    parameters: ArrayLike
    layers: int
    hidden: int
    sequence: int
    element_bytes: int = 2
    gradient_element_bytes: int = 2
    expert_parameters: float = 0.0
    expert_layers: int = 0
    experts_per_token: int = 1


_LETTERS = expression("[a-z0-9]+")
_TUNED = expression(r"[-_ ](instruct|chat|base|hf|it|v0\.\d)\b.*")  # variants with the same layers, trained further


@cache
def known_models() -> Mapping[str, Mapping[str, float]]:
    """Fields of :class:`Model` by the model's name, as its authors publish them (``tables/models.toml``)."""
    beside = ("source", "vocabulary")
    return {name: {key: value for key, value in row.items() if key not in beside} for name, row in _table().items()}


def _table() -> Mapping[str, Mapping[str, Any]]:
    return tables.toml(tables.folder() / "models.toml")


def known_name(name: str) -> str:
    """The name of a model in the table, from any of its spellings: meta-llama/Meta-Llama-3-70B-Instruct is llama-3-70b.

    BadInput for an unknown name.
    """
    known = known_models()
    letters = {"".join(_LETTERS.findall(each)): each for each in known}
    plain = _TUNED.sub("", name.rpartition("/")[2].lower()).removeprefix("meta-")
    found = letters.get("".join(_LETTERS.findall(plain)))
    if found is None:
        raise BadInput(f"unknown model {name!r}{did_you_mean(plain, known)}; {one_of(known)}")
    return found


def vocabulary(name: str) -> int:
    """Number of tokens in the vocabulary of a model by name. BadInput for an unknown name."""
    tokens: int = _table()[known_name(name)]["vocabulary"]
    return tokens


def model_fields(name: str | None, given: Mapping[str, float | None]) -> dict[str, Any]:
    """Fields of :class:`Model` as given, completed from the model called ``name``.

    BadInput for an unknown name, and for fields that are neither given nor in the table.
    """
    known = known_models()
    found = {
        **(known[known_name(name)] if name else {}),
        **{key: each for key, each in given.items() if each is not None},
    }
    if missing := [key for key in ("parameters", "layers", "hidden", "sequence") if key not in found]:
        raise BadInput(
            f"the model's {', '.join(missing)} are missing: give all of them, or the name of a known model: "
            f"{', '.join(known)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of parallelism; ``zero`` is ZeRO's stage, 0 without ZeRO. ``ep`` must divide ``dp``, and ``pp`` the
    layers.

    ``buckets`` is the number of calls for the gradients. The two sizes, of a micro-batch's activations and of one GPU's
    gradients, replace the model's.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    micro_batches: int = 1
    micro_batch_sequences: ArrayLike = 1.0
    buckets: int = 1
    activation_bytes: ArrayLike | None = None
    gradient_bytes: ArrayLike | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs that the plan needs."""
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True)
class Traffic:
    """``calls`` of one collective per step and GPU, each of ``bytes``, over ``ranks`` GPUs ``stride`` apart.

    ``gradients``: whether the bytes are gradients, with the gradients' type; otherwise activations or parameters.
    """

    parallelism: str
    operation: CostOperation
    ranks: int
    stride: int
    bytes: Array
    calls: int
    gradients: bool = False

    def shape(self, gpus_per_node: int) -> tuple[int, int]:
        """How many GPUs the group has on each node, and on how many nodes it is. BadInput if the nodes have different
        numbers.
        """
        inside = min(self.ranks, max(1, gpus_per_node // self.stride))
        if self.ranks % inside or (gpus_per_node % self.stride and self.stride < gpus_per_node):
            raise BadInput(
                f"groups of {self.parallelism} ({self.ranks} GPUs, {self.stride} apart) do not fit evenly on nodes of "
                f"{gpus_per_node} GPUs: use degrees that divide it"
            )
        return inside, self.ranks // inside


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A cluster's levels; ``inter`` is one GPU's share of the network."""

    gpus_per_node: int
    intra: Level
    inter: Level


def traffic(model: Model, plan: Parallelism) -> list[Traffic]:
    """All calls in which a GPU takes part during a step. BadInput for a plan that does not fit the model."""
    _check(model, plan)
    return [each for each in _all(model, plan) if each.ranks > 1 and each.calls > 0]


def time_us(one: Traffic, cluster: Cluster) -> Array:
    """The time of a call in us, from alpha and beta of the levels that it uses."""
    gpus, nodes = one.shape(cluster.gpus_per_node)
    if one.operation is CostOperation.SendRecv:  # the slowest of all neighbours: one on another node, if there is one
        network = cluster.intra if nodes == 1 else cluster.inter
        return terms(one.operation, "direct", 2).time_us(one.bytes, network)
    phases = algorithms.TWO_LEVEL[one.operation](gpus, nodes, cluster.intra, cluster.inter)
    return algorithms.total(phases).time_us(one.bytes)


def _check(model: Model, plan: Parallelism) -> None:
    positive("parameters", model.parameters)
    for name in ("layers", "hidden", "sequence", "element_bytes", "gradient_element_bytes", "experts_per_token"):
        whole(name, getattr(model, name))
    for name in ("tp", "dp", "pp", "ep", "micro_batches", "buckets"):
        whole(name, getattr(plan, name))
    for name in ("micro_batch_sequences", "activation_bytes", "gradient_bytes"):
        if getattr(plan, name) is not None:
            positive(name, getattr(plan, name))
    if plan.zero not in range(4):
        raise BadInput(f"zero {plan.zero}: valid are 0, 1, 2 and 3")
    if plan.sequence_parallel and plan.tp == 1:
        raise BadInput(
            "sequence parallelism splits what tensor parallelism repeats: set tp to 2 or more, or leave it out"
        )
    if plan.ep > 1 and not (model.expert_layers and model.expert_parameters):
        raise BadInput("ep only applies to a model with experts: add expert_layers and expert_parameters")
    experts = not_negative("expert_parameters", model.expert_parameters)
    if np.any(experts >= np.asarray(model.parameters)):
        raise BadInput(f"expert_parameters {experts:g} has to be less than all parameters of the model")
    if model.expert_layers > model.layers:
        raise BadInput(f"expert_layers {model.expert_layers} is more than the model's {model.layers} layers")
    divides("ep", plan.ep, "dp", plan.dp)
    divides("pp", plan.pp, "layers", model.layers)
    if model.expert_layers:
        divides("pp", plan.pp, "expert_layers", model.expert_layers)


def _all(model: Model, plan: Parallelism) -> Iterator[Traffic]:
    tokens = positive("micro_batch_sequences", plan.micro_batch_sequences) * model.sequence
    activation = _given(plan.activation_bytes, tokens * model.hidden * model.element_bytes)
    layers, batches = model.layers // plan.pp, plan.micro_batches
    own = plan.tp * plan.pp  # GPUs over which each replica's parameters are spread
    dense = (positive("parameters", model.parameters) - model.expert_parameters) / own

    # Two calls in the forward and two in the backward pass of a layer; sequence parallelism halves each of them.
    inside = (
        (CostOperation.ReduceScatter, CostOperation.AllGather) if plan.sequence_parallel else (CostOperation.AllReduce,)
    )
    for operation in inside:
        yield Traffic("SP" if plan.sequence_parallel else "TP", operation, plan.tp, 1, activation, 4 * layers * batches)
    # To the experts and back, in the forward and in the backward pass.
    own_part = activation / (plan.tp if plan.sequence_parallel else 1)  # the part that a GPU has
    calls = 4 * (model.expert_layers // plan.pp) * batches
    yield Traffic("EP", CostOperation.AllToAll, plan.ep, plan.tp, own_part * model.experts_per_token, calls)
    yield Traffic("PP", CostOperation.SendRecv, plan.pp, plan.tp * plan.dp, own_part, 2 * batches)
    yield from _replicas(model, plan, "DP", plan.dp, plan.tp, dense, layers)
    if model.expert_parameters:
        experts = np.asarray(model.expert_parameters / own / plan.ep)
        stride, own_layers = plan.tp * plan.ep, (model.expert_layers or model.layers) // plan.pp
        yield from _replicas(model, plan, "DP of experts", plan.dp // plan.ep, stride, experts, own_layers)


def _replicas(
    model: Model, plan: Parallelism, name: str, ranks: int, stride: int, parameters: Array, layers: int
) -> Iterator[Traffic]:
    """Traffic among the ranks that hold the same parameters: gradients, and with ZeRO also parameters. One GPU computes
    with ``parameters`` parameters in ``layers`` layers.

    ZeRO-1 reduces once a step and gathers once. ZeRO-2 keeps only its part of the gradients, so it reduces after each
    micro-batch. ZeRO-3 gathers each layer in the forward and again in the backward pass as well.
    """
    gradients = _given(plan.gradient_bytes, parameters * model.gradient_element_bytes)
    weights = parameters * model.element_bytes
    batches, buckets = plan.micro_batches, plan.buckets
    name = f"ZeRO-{plan.zero}{name.removeprefix('DP')}" if plan.zero else name
    scatter, gather = CostOperation.ReduceScatter, CostOperation.AllGather
    if plan.zero == 0:
        yield Traffic(name, CostOperation.AllReduce, ranks, stride, gradients / buckets, buckets, True)
    elif plan.zero == 3:
        yield Traffic(name, gather, ranks, stride, weights / layers, 2 * layers * batches)
        yield Traffic(name, scatter, ranks, stride, gradients / layers, layers * batches, True)
    else:
        reductions = buckets * (batches if plan.zero == 2 else 1)
        yield Traffic(name, scatter, ranks, stride, gradients / buckets, reductions, True)
        yield Traffic(name, gather, ranks, stride, weights / buckets, buckets)


def _given(size: ArrayLike | None, own: Array) -> Array:
    return own if size is None else np.asarray(size, np.float64)


def per_gpu_bytes(one: Traffic) -> Array:
    """The bytes that a GPU sends in a step, given the share that each collective's algorithm moves."""
    algorithm = {CostOperation.SendRecv: "direct", CostOperation.AllToAll: "pairwise"}.get(one.operation, "ring")
    sent: Array = terms(one.operation, algorithm, one.ranks).share * one.bytes * one.calls
    return sent
