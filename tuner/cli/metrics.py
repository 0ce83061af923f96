"""What ``budget`` and ``decide`` say as metrics of Prometheus."""

from collections.abc import Iterator

from tuner.base.names import Algorithm, Protocol
from tuner.bench.decide import Decided, DecidedRow
from tuner.cli.exports import Metric
from tuner.jobs.workload.priced import Budget, CallPrice, MeasuredPrice, PriceOf

# As NCCL Inspector spells them (ncclAlgoToString, src/collectives.cc, v2.30.7-1), so that its metrics can be joined.
_SPELLED = {
    Algorithm.CollNetDirect: "COLLNET_DIRECT",
    Algorithm.CollNetChain: "COLLNET_CHAIN",
    Algorithm.NVLSTree: "NVLS_TREE",
}


def algo_proto(algorithm: Algorithm, protocol: Protocol) -> str:
    """The label of that name: ``NVLS_TREE_SIMPLE``."""
    return f"{_SPELLED.get(algorithm, algorithm.name.upper())}_{protocol.name.upper()}"


def of_budget(budget: Budget) -> Iterator[Metric]:
    """By variant, kind of call and size; times in microseconds."""
    rows = [(_labels(row), row) for row in budget.by_size]
    name = "nccl_tuner_budget"
    yield Metric(f"{name}_calls", "Calls of a kind and size.", [(labels, row.calls) for labels, row in rows])
    yield Metric(
        f"{name}_call_microseconds",
        "Predicted time of one call by NCCL's model.",
        [(labels, row.price.time_us) for labels, row in rows],
    )
    yield Metric(
        f"{name}_microseconds",
        "Predicted time of all calls of a kind and size by NCCL's model.",
        [(labels, row.price.total_us) for labels, row in rows],
    )
    yield Metric(
        f"{name}_calibrated_microseconds",
        "Calibrated time of all calls of a kind and size.",
        [(labels, row.price.calibrated.total.time_us if row.price.calibrated else None) for labels, row in rows],
    )
    yield Metric(
        f"{name}_regret_microseconds",
        "What the pick loses to the best that was measured, over all calls.",
        [
            (labels, row.price.measured.regret_us if isinstance(row.price.measured, MeasuredPrice) else None)
            for labels, row in rows
        ],
    )
    yield Metric(
        f"{name}_total_microseconds",
        "Predicted time of all calls by NCCL's model.",
        [({"variant": variant.name}, variant.total_us) for variant in budget.variants],
    )


def _labels(row: CallPrice) -> dict[str, object]:
    call = row.call
    return {
        "variant": row.price.variant,
        "collective": call.collective.name,
        "dtype": call.dtype.name,
        "op": call.op.name,
        "bytes": call.bytes,
        "algo_proto": _taken(row.price),
    }


def _taken(price: PriceOf) -> str:
    if price.algorithm is None or price.protocol is None:
        return price.name.removeprefix("symmetric kernel ")
    return algo_proto(price.algorithm, price.protocol)


def of_decision(decided: Decided) -> Iterator[Metric]:
    """By row of the table, kept or dropped, and by file of measurements."""
    rows = [
        *((_row_labels(row, "true"), row) for row in decided.kept),
        *((_row_labels(row, "false"), row) for row in decided.dropped),
    ]
    name = "nccl_tuner_decide"
    yield Metric(f"{name}_gain_ratio", "What a row gains, a share of 1.", [(labels, row.gain) for labels, row in rows])
    yield Metric(
        f"{name}_gain_low_ratio",
        "Where the interval of a row's gain begins.",
        [(labels, row.gain_low) for labels, row in rows],
    )
    yield Metric(
        f"{name}_probability",
        "Probability that a row gains, of all rows together.",
        [(labels, row.probability) for labels, row in rows],
    )
    files = [({"file": file.file, "ranks": file.ranks, "nodes": file.nodes}, file) for file in decided.files]
    yield Metric(
        f"{name}_regret_before_ratio",
        "By how much NCCL's picks take longer than the best, mean over sizes.",
        [(labels, file.regret_before) for labels, file in files],
    )
    yield Metric(
        f"{name}_regret_after_ratio",
        "The same with the table.",
        [(labels, file.regret_after) for labels, file in files],
    )
    yield Metric(f"{name}_rows", "Rows of the table.", [({"table": decided.table}, float(len(decided.kept)))])


def _row_labels(row: DecidedRow, kept: str) -> dict[str, object]:
    return {
        "collective": row.collective.name,
        "low_bytes": row.low_bytes,
        "high_bytes": "+Inf" if row.high_bytes is None else row.high_bytes,
        "ranks": row.ranks,
        "nodes": row.nodes,
        "algo_proto": algo_proto(row.choice.algorithm, row.choice.protocol),
        "channels": row.choice.channels or "",
        "kept": kept,
    }
