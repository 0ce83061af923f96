"""The collectives of a decoding step and of a prefill chunk of a served model: which implementation carries each, and
NCCL's time if NCCL does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tuner.answers import picks
from tuner.answers.picks import PickAnswer
from tuner.answers.serving import BY_SOURCE, ServedGroup, group_of
from tuner.answers.serving_calls import (
    DECODE,
    FROM_EXPERTS,
    LOGITS,
    PLAIN,
    PREFILL,
    TO_EXPERTS,
    Pass,
    ServedModel,
    StepCalls,
    WantedCall,
)
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall, Windows
from tuner.base.numerics import is_time
from tuner.base.records import json_form
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Selection
from tuner.engines import releases
from tuner.engines.rules import for_experts, for_gather, holds
from tuner.scenario import Scenario
from tuner.times.costmodels import step


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One collective of a pass: what it is for (``of``), its bytes (NCCL's nBytes), how often it is called, and its
    carrier.

    Kernels that are not NCCL's carry an AllToAll. Its bytes are the most that a rank sends: a copy of each of its
    tokens for each of the token's experts. With ``in_group`` above 1 a call is a group of NCCL with that number of
    collectives, each of ``bytes``.

    ``pick`` is NCCL's pick if NCCL carries the call. ``time_us`` is then NCCL's time of one call; it is None if there
    is no such time, and totals leave such calls out.
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
    in_group: int = 1

    @property
    def all_us(self) -> float | None:
        """Time of all ``calls`` made one after the other; None without a time."""
        return None if self.time_us is None else self.calls * self.time_us


@dataclass(frozen=True, slots=True)
class ServedStep:
    """Calls of one decoding step and of one prefill chunk under an engine."""

    engine: str
    model: str
    calls: tuple[ServedCall, ...]

    def nccl_us(self, phase: str) -> float:
        """NCCL's total time in a phase, over the calls that have a time."""
        return sum(each.all_us or 0.0 for each in self.calls if each.phase == phase)

    def without_time(self, phase: str) -> int:
        """How many calls of a phase have no time: another implementation carries them, or NCCL has no model."""
        return sum(each.calls for each in self.calls if each.phase == phase and each.time_us is None)


def served_step(
    scenario: Scenario,
    engine: str,
    model: ServedModel,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> ServedStep:
    """The calls that ``engine`` makes in a decoding step and in a prefill chunk of a model served in this way.

    ``scenario`` describes a node and the release. BadInput for an unknown model or engine, for parallel sizes that do
    not fit the nodes evenly, for experts that the model does not have, for what the engine does not support, and for
    what :class:`ServedGroup` refuses.
    """
    fields = step.model_fields(model.name, {})
    if model.ep > 1 and not fields.get("expert_layers"):
        raise BadInput(f"{model.name} has no experts to split: leave out ep")
    if model.attention_dp and (model.ep % model.tp or model.ep == model.tp):
        least = 2 * model.tp
        raise BadInput(f"data-parallel attention needs experts over several groups of {model.tp}: ep={least}, or more")
    machine = _Machine(scenario, engine, dict(environment or {}), tuple(arguments), model, int(fields["hidden"]))
    vocabulary = step.vocabulary(model.name)
    release = releases.load(engine)
    group = machine.group(model.tp, graph=True)
    gathered = release.gathered_embedding
    gathers_embedding = gathered is not None and holds(group.situation(model.dtype), release, gathered)
    calls = StepCalls(model, fields, vocabulary, release, group.switches, gathers_embedding)
    rows = model.batch * (1 + model.draft_tokens)
    found = []
    for each in (Pass(DECODE, rows, rows), Pass(PREFILL, model.chunk, 1)):
        if model.attention_dp:
            each = replace(each, experts=machine.experts(each.phase, each.rows * calls.row_bytes))
        found += [machine.carried(each.phase, wanted, vocabulary) for wanted in calls.of(each)]
    return ServedStep(release.name, model.name, tuple(found))


class _Machine:
    """Makes the engine's groups on a described node, each group once."""

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
        self.groups: dict[tuple[int, bool, frozenset[str]], ServedGroup] = {}

    def group(self, ranks: int, graph: bool, without: frozenset[str] = frozenset()) -> ServedGroup:
        """The group with this number of ranks: on one node, or on several whole nodes. BadInput for other numbers."""
        if self.model.ep > 1:
            without |= frozenset(releases.load(self.engine).without_split_experts)
        if (ranks, graph, without) not in self.groups:
            self.groups[ranks, graph, without] = ServedGroup(
                group_of(self.scenario, ranks),
                self.engine,
                self.environment,
                self.arguments,
                graph=graph,
                hidden_size=self.hidden,
                without=without,
            )
        return self.groups[ranks, graph, without]

    def experts(self, phase: str, nbytes: int) -> releases.Implementation:
        """The implementation that carries the tokens to the experts and back; ``nbytes`` is how many bytes all ranks
        have together. BadInput if the implementation is not known.
        """
        group = self.group(self.model.ep, phase == DECODE)
        situation = replace(group.situation(self.model.dtype), drafts=self.model.draft_tokens)
        return for_experts(situation, group.release, nbytes)

    def carried(self, phase: str, wanted: WantedCall, vocabulary: int) -> ServedCall:
        """The call with its carrier, and with NCCL's pick and time if NCCL carries it."""
        release = releases.load(self.engine)
        without = frozenset[str]()
        if wanted.within_attention and release.attention_dp is not None:
            without = frozenset(release.attention_dp.get("group_without", ()))
        group = self.group(wanted.ranks, phase == DECODE, without)
        made = ServedCall(
            phase,
            wanted.of,
            wanted.collective,
            wanted.bytes,
            wanted.calls,
            wanted.ranks,
            "nccl",
            "NCCL",
            BY_SOURCE,
            None,
            in_group=wanted.in_group,
        )
        if wanted.kernel is not None:
            exchange = PeerCall.AllToAll if wanted.of in (TO_EXPERTS, FROM_EXPERTS) else wanted.collective
            return replace(made, collective=exchange, carrier=wanted.kernel.name, title=wanted.kernel.title)
        if wanted.in_group > 1:
            return _timed(made, _of_group(group, wanted, self.model.dtype))
        if wanted.collective is Collective.AllReduce:
            return self._reduced(group, wanted, made)
        if wanted.collective is Collective.AllGather:
            situation = group.situation(self.model.dtype)
            if wanted.of == LOGITS:
                situation = replace(situation, hidden_size=vocabulary, drafts=self.model.draft_tokens)
            way = for_gather(situation, release, wanted.of, wanted.bytes)
            if way is not None:
                return replace(made, carrier=way.name, title=way.title)
        return self._by_nccl(group, wanted, made)

    def _reduced(self, group: ServedGroup, wanted: WantedCall, made: ServedCall) -> ServedCall:
        (call,) = group.calls(Request(Collective.AllReduce, self.model.dtype, Op.sum), [wanted.bytes])
        if wanted.windows == PLAIN and group.release.named(call.carrier).windows:  # NCCL, but on PyTorch's own memory
            return self._by_nccl(group, wanted, made)
        named = replace(made, carrier=call.carrier, title=call.title, source=call.source)
        return _timed(named, call.pick)

    def _by_nccl(self, group: ServedGroup, wanted: WantedCall, made: ServedCall) -> ServedCall:
        request = Request(wanted.collective, self.model.dtype, Op.sum)
        if sides := group.windows(wanted.windows):
            in_place = bool((group.release.windows or {}).get("in_place", False))
            request = replace(request, buffers=Buffers.window, windows=Windows(sides), in_place=in_place)
        elif made.phase == DECODE and group.one_rank_per_node:
            # The network reads PyTorch's memory, too, so that NCCL registers what a graph captures; NVLink does not
            # (NCCL_LEGACY_CUDA_REGISTER, src/transport/p2p.cc, and cuMulticastBindAddr refuse what cudaMalloc made).
            request = replace(request, buffers=Buffers.graph)
        (pick,) = picks.from_emulator(group.nccls_scenario, request, [wanted.bytes])
        return _timed(made, pick)


def _timed(made: ServedCall, pick: PickAnswer | None) -> ServedCall:
    time_us = None if pick is None else pick.time_us
    return replace(made, time_us=float(time_us) if time_us is not None and is_time(time_us) else None, pick=pick)


def _of_group(group: ServedGroup, wanted: WantedCall, dtype: DataType) -> PickAnswer | None:
    """NCCL's pick for a group with one call for each root; None if NCCL makes more than one choice for these calls."""
    scenario = group.nccls_scenario
    request = Request(wanted.collective, dtype, Op.sum)
    calls = [Operation(request, wanted.bytes, root) for root in range(wanted.in_group)]
    made = plan(Selection(scenario.communicator()), calls)
    if len(made.choices) != 1 or len(made.kernels) != 1:
        return None
    (choice,), (kernel,) = made.choices, made.kernels
    pick = Pick(choice.algorithm, choice.protocol, len(kernel.channels), kernel.threads, float(choice.time_us))
    return PickAnswer(wanted.collective, choice.bytes, scenario.constants, {}, pick, ranks=scenario.ranks)
