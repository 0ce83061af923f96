"""Rows of decision tables for hypothesis; where they apply is each test's own."""

from typing import Any

from hypothesis import strategies as st

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.table.records import CostLine, CostRow, Decision, TableChoice

CHOICES = st.lists(
    st.builds(
        TableChoice,
        st.sampled_from(Algorithm),
        st.sampled_from(Protocol),
        st.one_of(st.none(), st.integers(1, 64)),
        st.one_of(st.none(), st.integers(4096, 1 << 30)),
    ),
    max_size=4,
    unique_by=lambda choice: choice.algo_proto,
).map(tuple)
Where = st.SearchStrategy[dict[str, Span]]


def decisions(where: Where, registered: list[bool | None], pipelined: list[Span]) -> st.SearchStrategy[Decision]:
    def row(collective: Collective, choices: tuple[TableChoice, ...], given: dict[str, Any], **more: Any) -> Decision:
        return Decision(collective, choices, **given, **more)

    return st.builds(
        row,
        st.sampled_from(Collective),
        CHOICES,
        where,
        registered=st.sampled_from(registered),
        pipelined=st.sampled_from(pipelined),
    )


def costs(
    where: Where, positive: st.SearchStrategy[float], batches: st.SearchStrategy[int]
) -> st.SearchStrategy[CostRow]:
    def row(
        collective: Collective, algorithm: Algorithm, protocol: Protocol, time: CostLine | None, given: dict[str, Any]
    ) -> CostRow:
        return CostRow(collective, algorithm, protocol, time, **given)

    latencies = st.one_of(st.just(0.0), positive)
    return st.builds(
        row,
        st.sampled_from(Collective),
        st.sampled_from(Algorithm),
        st.sampled_from(Protocol),
        st.one_of(st.none(), st.builds(CostLine, latencies, positive, batches)),
        where,
    )
