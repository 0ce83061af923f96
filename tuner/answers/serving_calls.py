"""The collectives of one pass of a served model: which, of how many bytes, how often, and among which ranks.

An engine's table names the scheme of its data-parallel attention (``attention_dp``); :data:`SCHEMES` has the schemes by
name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy
from tuner.base.names import Collective, DataType
from tuner.engines.releases import EngineRelease, Implementation

DECODE, PREFILL = "decode", "prefill"
TO_EXPERTS, FROM_EXPERTS = "tokens to experts", "tokens from experts"
TO_DENSE, FROM_DENSE = "tokens to dense layers", "tokens from dense layers"
TO_PARTS, FROM_PARTS = "attention to parts", "parts to attention"
EMBEDDING, LOGITS, LOGITS_OF_GROUP, TO_LOGITS = "embedding", "logits", "logits of a group", "tokens to logits"
BATCH, CHUNK = 64, 8192  # sequences that are decoded together, and tokens of a prefill chunk, where nothing is said
ALLREDUCE, ALLGATHER = "allreduce", "allgather"  # how rows of all groups come to all ranks
PLAIN = ""  # no key of a release's windows


@dataclass(frozen=True, slots=True)
class ServedModel:
    """How a model is served: tensor-parallel over ``tp`` GPUs, its experts over ``ep`` GPUs.

    ``batch`` sequences are decoded together, a prefill chunk has ``chunk`` tokens, and ``draft_tokens`` tokens are
    guessed for each sequence. ``attention_dp``: attention is data-parallel over ``ep / tp`` groups, each with its part
    of the batch and of the chunk, and tensor-parallel within a group. The options are: vLLM ``--data-parallel-size``,
    SGLang ``--tp-size EP --dp-size EP/TP --enable-dp-attention``.
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
class WantedCall:
    """A collective of a pass, before it is decided which implementation carries it.

    If it is already decided which implementation carries the call, ``kernel`` is this implementation, and ``bytes`` the
    most that a rank sends. ``windows`` is the key under which an engine release's table says which buffers of this call
    are in symmetric windows; :data:`PLAIN` stands for none. ``in_group``: the number of such calls in one group of
    NCCL, each of ``bytes`` and with its own root. ``within_attention``: the ranks are one group of data-parallel
    attention.
    """

    of: str
    collective: Collective
    bytes: int
    calls: int
    ranks: int
    kernel: Implementation | None = None
    windows: str = PLAIN
    in_group: int = 1
    within_attention: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A decoding step or a prefill chunk: ``rows`` of activations, ``logit_rows`` of which need logits.

    ``experts`` is the implementation that carries tokens to the experts in data-parallel attention; None without such
    attention.
    """

    phase: str
    rows: int
    logit_rows: int
    experts: Implementation | None = None


class StepCalls:
    """The collectives of passes of a model under an engine (source: the engines' model code)."""

    def __init__(
        self,
        model: ServedModel,
        fields: Mapping[str, Any],
        vocabulary: int,
        release: EngineRelease,
        switches: Mapping[str, object],
        gathers_embedding: bool = False,
    ) -> None:
        self.model, self.release, self.switches = model, release, switches
        self.gathers_embedding = gathers_embedding
        self.row_bytes = int(fields["hidden"]) * model.dtype.size_bytes
        self.logit_row_bytes = vocabulary * model.dtype.size_bytes
        self.layers, self.expert_layers = int(fields["layers"]), int(fields.get("expert_layers", 0))
        self.copies = min(int(fields.get("experts_per_token", 1)), model.ep)

    def of(self, each: Pass) -> Iterator[WantedCall]:
        """Yields the collectives of a pass, in the order in which the first of each kind occurs."""
        if self.model.attention_dp:
            assert self.release.attention_dp is not None  # the engine has experts
            yield from SCHEMES[self.release.attention_dp["scheme"]](self, each)
        elif self.model.tp > 1:
            yield from self._reduced(each.rows, self.layers)
            yield self._gather(LOGITS, each.logit_rows * self.logit_row_bytes, 1, self.model.tp, LOGITS)

    def own(self, rows: int) -> int:
        """Number of rows of one group of data-parallel attention, rounded up."""
        return -(-rows // self.model.groups)

    def padded(self, rows: int) -> int:
        """Rows of one group, padded to a multiple of its number of ranks."""
        return -(-self.own(rows) // self.model.tp) * self.model.tp

    def _reduced(self, rows: int, layers: int) -> Iterator[WantedCall]:
        """Yields the collectives of the embedding and of layers after which each rank of a tensor-parallel group has
        the whole sums.
        """
        if self.gathers_embedding:
            yield self._gather(EMBEDDING, rows * self.row_bytes, 1, self.model.tp)
        else:
            yield self._reduce(EMBEDDING, rows, 1, self.model.tp)
        if layers:
            yield self._reduce("attention output", rows, layers, self.model.tp)
            yield self._reduce("MLP and experts", rows, layers, self.model.tp)

    def _reduce(self, of: str, rows: int, calls: int, ranks: int, pooled: bool = True) -> WantedCall:
        within = self.model.attention_dp and ranks == self.model.tp
        return WantedCall(
            of,
            Collective.AllReduce,
            rows * self.row_bytes,
            calls,
            ranks,
            windows=Collective.AllReduce.name if pooled else PLAIN,
            within_attention=within,
        )

    @staticmethod
    def _gather(of: str, nbytes: int, calls: int, ranks: int, windows: str = Collective.AllGather.name) -> WantedCall:
        return WantedCall(of, Collective.AllGather, nbytes, calls, ranks, windows=windows)

    def _scatter(self, of: str, rows: int, calls: int, ranks: int) -> WantedCall:
        scatter = Collective.ReduceScatter
        return WantedCall(of, scatter, rows * self.row_bytes, calls, ranks, windows=scatter.name)

    def _split(self, rows: int, layers: int, pooled: bool = True) -> Iterator[WantedCall]:
        """Yields the collectives of layers for which each rank of a group takes a part of the group's rows."""
        padded = self.padded(rows)
        yield self._scatter(TO_PARTS, padded, layers, self.model.tp)
        windows = Collective.AllGather.name if pooled else PLAIN
        yield self._gather(FROM_PARTS, padded * self.row_bytes, layers, self.model.tp, windows)

    def _exchanged(self, each: Pass) -> Iterator[WantedCall]:
        """Yields what brings the rows of all ranks to the experts and back: collectives, or kernels that send each
        token to its experts.
        """
        rows, way = each.rows, each.experts
        assert way is not None
        if way.exchange:
            yield self._gather(TO_EXPERTS, rows * self.row_bytes, self.expert_layers, self.model.ep)
            yield self._scatter(FROM_EXPERTS, rows, self.expert_layers, self.model.ep)
            return
        sent = -(-rows // self.model.ep) * self.copies * self.row_bytes
        for of, collective in (TO_EXPERTS, Collective.AllGather), (FROM_EXPERTS, Collective.ReduceScatter):
            yield WantedCall(of, collective, sent, self.expert_layers, self.model.ep, way)

    def sequence_parallel(self, each: Pass) -> Iterator[WantedCall]:
        """The scheme of vLLM: the ranks of a group split its rows while the experts work; each group computes dense
        layers by itself.

        BadInput if ``tp`` is above 1 and the ranks of a group do not split its rows, which depends on the kernels that
        the engine uses to send tokens to the experts.
        """
        if self.model.tp > 1:
            self._check_splits_rows()
            own = self.own(each.rows)
            yield from self._reduced(own, self.layers - self.expert_layers)
            yield from self._split(each.rows, self.expert_layers)
            logits = self.own(each.logit_rows) * self.logit_row_bytes
            yield self._gather(LOGITS, logits, 1, self.model.tp, LOGITS)
        yield from self._exchanged(each)

    def _check_splits_rows(self) -> None:
        given = self.release.attention_dp
        assert given is not None
        if self.switches[given["backend"]] not in given["splits_rows"]:
            raise BadInput(
                f"with {given['backend']}={self.switches[given['backend']]} and tp={self.model.tp}, "
                f"{self.release.name} does not split a group's rows, and what each rank sends is not known: use tp=1, "
                f"ep={self.model.ep}"
            ).cured(Remedy("job", f"ep={self.model.ep}"))

    def whole_attention(self, each: Pass) -> Iterator[WantedCall]:
        """The scheme of TensorRT-LLM: each rank computes the whole attention and dense layers of its rows. BadInput if
        ``tp`` is above 1.
        """
        if self.model.tp > 1:
            raise BadInput(
                f"with tp={self.model.tp} and data-parallel attention, {self.release.name} does not split attention: "
                f"its tensor_parallel_size is the number of all ranks: use tp=1, ep={self.model.ep}"
            ).cured(Remedy("job", f"ep={self.model.ep}"))
        yield from self._exchanged(each)

    def gathered(self, each: Pass) -> Iterator[WantedCall]:
        """The scheme of SGLang: all ranks share the layers after attention, for which they get the rows of all groups.

        In prefill, all ranks mostly get the rows by an AllReduce of a buffer with room for the rows of all groups; it
        completes the attention's sum as well. In a decoding step, they mostly get the rows by an AllGather of padded
        rows. If the engine has special kernels that send tokens to the experts, each rank sends its part of its group's
        rows.
        """
        model, tp, way = self.model, self.model.tp, each.experts
        assert way is not None
        own = self.own(each.rows)
        pads = way.exchange == ALLGATHER or (not way.exchange and (each.phase == DECODE or way.pads_rows))
        kernels = 0 if way.exchange else self.expert_layers
        local = self.layers - self.expert_layers if self.switches["moe-dense-tp-size"] == 1 else 0
        if tp > 1:
            yield self._reduce(EMBEDDING, own, 1, tp, pooled=pads)
            if kernels + local:
                yield from self._split(each.rows, kernels + local, pooled=pads)
        if kernels:
            yield from self._exchanged(each)
        else:
            yield from self._to_all(each, TO_EXPERTS, FROM_EXPERTS, self.expert_layers, pads)
        if dense := self.layers - self.expert_layers - local:
            yield from self._to_all(each, TO_DENSE, FROM_DENSE, dense, pads)
        logit_rows = self.own(each.logit_rows)
        if not self.switches["enable-dp-lm-head"]:
            yield self._reduce(TO_LOGITS, logit_rows * model.groups, 1, model.ep, pooled=False)
            logits = logit_rows * model.groups * self.logit_row_bytes
            yield self._gather(LOGITS, logits, 1, model.ep, LOGITS if pads else PLAIN)
        elif tp > 1:
            yield self._gather(LOGITS_OF_GROUP, logit_rows * self.logit_row_bytes, 1, tp, PLAIN)

    def _to_all(self, each: Pass, to: str, back: str, layers: int, pads: bool) -> Iterator[WantedCall]:
        """Yields the collectives that bring the rows of all groups to all ranks, and the sums of the results back to
        the groups.
        """
        model, tp = self.model, self.model.tp
        assert self.release.attention_dp is not None
        assert each.experts is not None
        sums = bool(self.switches.get(self.release.attention_dp.get("sums_with", ""), False))  # no ReduceScatter
        rows = self.padded(each.rows) * model.groups if pads else each.rows
        if pads:
            if tp > 1:
                yield self._of_group(TO_PARTS, each, layers, sums)
            yield self._gather(to, rows * self.row_bytes, layers, model.ep)
        else:
            yield self._reduce(to, rows, layers, model.ep, pooled=False)
        if not sums and tp == 1 and each.experts.exchange:  # should_use_dp_reduce_scatterv
            own_bytes = self.own(each.rows) * self.row_bytes
            yield WantedCall(back, Collective.Reduce, own_bytes, layers, model.ep, in_group=model.ep)
        elif sums or not pads:
            yield self._reduce(back, rows, layers, model.ep, pooled=pads)
        else:
            yield self._scatter(back, rows, layers, model.ep)
        if pads and tp > 1:
            yield self._gather(FROM_PARTS, self.padded(each.rows) * self.row_bytes, layers, tp)

    def _of_group(self, of: str, each: Pass, layers: int, sums: bool) -> WantedCall:
        """The collective that sums over a group if each rank only needs its part of the result."""
        rows = self.padded(each.rows)
        if sums:
            return self._reduce(of, rows, layers, self.model.tp)
        return self._scatter(of, rows, layers, self.model.tp)


SCHEMES: Mapping[str, Callable[[StepCalls, Pass], Iterator[WantedCall]]] = {
    "sequence-parallel": StepCalls.sequence_parallel,
    "whole-attention": StepCalls.whole_attention,
    "gathered": StepCalls.gathered,
}
