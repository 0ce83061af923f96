"""Collectives of a decoding step and of a prefill chunk of a served model, who carries each, and NCCL's time where it
is NCCL's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from tuner.answers import picks
from tuner.answers.picks import PickAnswer
from tuner.answers.serving import BY_SOURCE, ServedGroup, group_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall
from tuner.base.numerics import is_time
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.engines import releases
from tuner.engines.rules import for_experts
from tuner.scenario import Scenario
from tuner.times.costmodels import step

SEQUENCE_PARALLEL = "vllm"  # whose MoE layers split the rows of a tensor-parallel group (vllm/config/parallel.py)
DECODE, PREFILL = "decode", "prefill"
TO_EXPERTS, FROM_EXPERTS = "tokens to experts", "tokens from experts"
LOGITS = "logits"
BATCH, CHUNK = 64, 8192  # sequences that are decoded together, and tokens of a prefill chunk, where nothing is said


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model by name as it is served: tensor-parallel over ``tp`` GPUs, its experts over ``ep``.

    ``batch`` sequences are decoded together, a prefill chunk has ``chunk`` tokens, and ``draft_tokens`` are guessed for
    each sequence. ``attention_dp``: attention is data-parallel over ``ep / tp`` groups, each with its part of the batch
    and of the chunk. With ``tp`` above 1 that is vLLM's sequence-parallel MoE: each rank of a group has a part of its
    rows while the experts work.
    """

    name: str
    tp: int = 1
    ep: int = 1
    batch: int = BATCH
    chunk: int = CHUNK
    draft_tokens: int = 0
    attention_dp: bool = False
    dtype: DataType = DataType.bfloat16

    @property
    def groups(self) -> int:
        """Number of groups over which attention is data-parallel."""
        return self.ep // self.tp if self.attention_dp else 1


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One collective of a pass: what it is ``of``, its bytes (NCCL's nBytes), how often, and who carries it.

    The bytes of an AllToAll, which other kernels than NCCL's carry, are those that a rank sends at most: a copy of each
    of its tokens for each of their experts.

    ``pick`` is NCCL's where NCCL carries it; ``time_us`` of one call is then NCCL's own, None where there is none, and
    such calls are in no total.
    """

    phase: str
    of: str
    collective: Collective | PeerCall
    bytes: int
    calls: int
    ranks: int
    carrier: str
    title: str
    source: str
    time_us: float | None
    pick: PickAnswer | None = field(default=None, metadata=json_form(optional=True))

    @property
    def all_us(self) -> float | None:
        """Time of all calls, one after the other; None without a time."""
        return None if self.time_us is None else self.calls * self.time_us


@dataclass(frozen=True, slots=True)
class ServedStep:
    """Calls of one decoding step and of one prefill chunk under an engine."""

    engine: str
    model: str
    calls: tuple[ServedCall, ...]

    def nccl_us(self, phase: str) -> float:
        """NCCL's time in a phase: of those of its calls that have one."""
        return sum(each.all_us or 0.0 for each in self.calls if each.phase == phase)

    def without_time(self, phase: str) -> int:
        """How many calls of a phase have no time: another implementation carries them, or NCCL has no model."""
        return sum(each.calls for each in self.calls if each.phase == phase and each.time_us is None)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A collective of a pass before it is known who carries it."""

    phase: str
    of: str
    collective: Collective
    bytes: int
    calls: int
    ranks: int
    sent_bytes: int = (
        0  # by each rank, where kernels of its own bring tokens to experts: a copy for each of these at most
    )


def served_step(
    scenario: Scenario,
    engine: str,
    model: ServedModel,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> ServedStep:
    """The calls of a decoding step and of a prefill chunk, by what engines send of such models.

    ``scenario`` describes a node and the release. BadInput for an unknown model or engine, for parallel sizes that the
    nodes cannot hold whole, for experts that the model does not have, and what :class:`ServedGroup` raises.
    """
    fields = step.model_fields(model.name, {})
    if model.ep > 1 and not fields.get("expert_layers"):
        raise BadInput(f"{model.name} has no experts to split: leave out ep")
    if model.attention_dp and (model.ep % model.tp or model.ep == model.tp):
        least = 2 * model.tp
        raise BadInput(f"data-parallel attention needs experts over several groups of {model.tp}: ep={least}, or more")
    if model.attention_dp and model.tp > 1 and releases.load(engine).engine != SEQUENCE_PARALLEL:
        raise BadInput(f"tp={model.tp} with data-parallel attention is {SEQUENCE_PARALLEL}'s alone here; valid: tp=1")
    machine = _Machine(scenario, engine, dict(environment or {}), tuple(arguments), model, int(fields["hidden"]))
    calls = [machine.carried(each, model.dtype) for each in _calls(model, fields, step.vocabulary(model.name))]
    return ServedStep(releases.load(engine).name, model.name, tuple(calls))


def _calls(model: ServedModel, fields: Mapping[str, int], vocabulary: int) -> Iterator[_Wanted]:
    """The collectives of a pass by the shape of the model (source: the engines' model code).

    Rows of activations are tokens; a decoding step has one for each sequence and its guessed tokens.
    """
    row_bytes = int(fields["hidden"]) * model.dtype.size_bytes
    layers, expert_layers = int(fields["layers"]), int(fields.get("expert_layers", 0))
    for phase, rows, logit_rows in (
        (DECODE, model.batch * (1 + model.draft_tokens), model.batch * (1 + model.draft_tokens)),
        (PREFILL, model.chunk, 1),
    ):
        own = -(-rows // model.groups)  # of a group of tensor-parallel ranks
        sent = own * row_bytes
        if model.tp > 1:
            ar, tp = Collective.AllReduce, model.tp
            reduced = layers - expert_layers if model.attention_dp else layers
            yield _Wanted(phase, "embedding", ar, sent, 1, tp)
            if reduced:
                yield _Wanted(phase, "attention output", ar, sent, reduced, tp)
                yield _Wanted(phase, "MLP and experts", ar, sent, reduced, tp)
            if model.attention_dp:
                split = -(-own // tp) * tp * row_bytes  # rows are padded to whole parts
                yield _Wanted(phase, "attention to parts", Collective.ReduceScatter, split, expert_layers, tp)
                yield _Wanted(phase, "parts to attention", Collective.AllGather, split, expert_layers, tp)
            logits = -(-logit_rows // model.groups) * vocabulary * model.dtype.size_bytes
            yield _Wanted(phase, LOGITS, Collective.AllGather, logits, 1, tp)
        if model.attention_dp:
            copies = min(int(fields["experts_per_token"]), model.ep)
            own_bytes = -(-rows // model.ep) * copies * row_bytes
            for of, collective in (TO_EXPERTS, Collective.AllGather), (FROM_EXPERTS, Collective.ReduceScatter):
                yield _Wanted(phase, of, collective, rows * row_bytes, expert_layers, model.ep, own_bytes)


class _Machine:
    """Groups of the engine on a described node, each made once."""

    def __init__(
        self,
        scenario: Scenario,
        engine: str,
        environment: dict[str, str],
        arguments: tuple[str, ...],
        model: ServedModel,
        hidden: int,
    ) -> None:
        self.scenario, self.engine, self.model, self.hidden = scenario, engine, model, hidden
        self.environment, self.arguments = environment, arguments
        self.groups: dict[tuple[int, bool], ServedGroup] = {}

    def group(self, ranks: int, graph: bool) -> ServedGroup:
        """The group of so many ranks: of one node, or of several whole ones. BadInput for other numbers."""
        if (ranks, graph) not in self.groups:
            self.groups[ranks, graph] = ServedGroup(
                group_of(self.scenario, ranks),
                self.engine,
                self.environment,
                self.arguments,
                graph=graph,
                hidden_size=self.hidden,
            )
        return self.groups[ranks, graph]

    def carried(self, wanted: _Wanted, dtype: DataType) -> ServedCall:
        """The call with who carries it, and NCCL's pick and time where it is NCCL."""
        group = self.group(wanted.ranks, graph=wanted.phase == DECODE)
        if wanted.of in (TO_EXPERTS, FROM_EXPERTS):
            situation = replace(group.situation(dtype), drafts=self.model.draft_tokens > 0)
            way = for_experts(situation, group.release, wanted.bytes)
            if not way.exchange:
                named = way.name, way.title, BY_SOURCE, None
                alltoall = PeerCall.AllToAll
                return ServedCall(
                    wanted.phase, wanted.of, alltoall, wanted.sent_bytes, wanted.calls, wanted.ranks, *named
                )
            if way.exchange == "allreduce":
                wanted = replace(wanted, collective=Collective.AllReduce)
        request = Request(wanted.collective, dtype, Op.sum)
        if wanted.collective is Collective.AllReduce:
            (call,) = group.calls(request, [wanted.bytes])
            carrier, title, source, pick = call.carrier, call.title, call.source, call.pick
        else:
            if wanted.of != LOGITS and group.rows_on_windows:  # logits are gathered by columns
                request = replace(request, buffers=Buffers.window)
            (pick,) = picks.from_emulator(group.nccls_scenario, request, [wanted.bytes])
            carrier, title, source = "nccl", "NCCL", BY_SOURCE
        time_us = None if pick is None else pick.time_us
        return ServedCall(
            wanted.phase,
            wanted.of,
            wanted.collective,
            wanted.bytes,
            wanted.calls,
            wanted.ranks,
            carrier,
            title,
            source,
            float(time_us) if time_us is not None and is_time(time_us) else None,
            pick,
        )
