"""Writes answers as CSV, Parquet and Prometheus text."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click

from tuner.base import extras
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import replacing
from tuner.base.frames import Framed
from tuner.base.names import Algorithm, Protocol
from tuner.base.printable import label as label_text
from tuner.base.view import csv_lines
from tuner.bench.decide import Decided, DecidedRow
from tuner.cli import options
from tuner.cli.command import F, packing
from tuner.cli.output import json_wanted
from tuner.jobs.workload.priced import Budget, CallPrice, MeasuredPrice, PriceOf

Sample = tuple[Mapping[str, object], float | None]  # labels, and a value where it is known


def export_options(function: F) -> F:
    """Options for the parameter ``exports``."""
    return packing(
        function,
        lambda given: {"exports": Exports(given.pop("as_csv"), given.pop("parquet"), given.pop("as_prometheus"))},
        options.csv_option,
        options.file_option("--parquet", "FILE", "Write the same rows as parquet; needs polars (nccl-tuner[parquet])."),
        options.flag(
            "--prometheus",
            "as_prometheus",
            "Print metrics in Prometheus' text, for a node exporter's textfile collector.",
        ),
    )


@dataclass(frozen=True, slots=True)
class Exports:
    """The formats asked for. BadInput if two of them would go to standard output."""

    as_csv: bool
    parquet: Path | None
    as_prometheus: bool

    def __post_init__(self) -> None:
        if self.as_csv + self.as_prometheus + json_wanted() > 1:
            raise BadInput("only one of --json, --csv and --prometheus can go to standard output")

    def deliver(self, frame: Framed, metrics: Iterable[str]) -> bool:
        """Writes the requested formats, of which ``metrics`` are the lines of Prometheus' text; returns whether
        something was printed. BadInput if a file cannot be written.
        """
        if self.parquet is not None:
            _write_parquet(frame, self.parquet)
        if self.as_csv:
            click.echo(csv_lines([*frame.columns()], frame.rows()), nl=False)
        elif self.as_prometheus:
            click.echo("\n".join(metrics))
        return self.as_csv or self.as_prometheus


def _write_parquet(frame: Framed, path: Path) -> None:
    extras.require("polars", f"{path}: parquet")
    import polars

    try:
        with replacing(path) as to:
            frame.to_polars().write_parquet(to)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None


def gauge(name: str, says: str, samples: Iterable[Sample]) -> Iterator[str]:
    """A gauge in Prometheus' text format, version 0.0.4: help, type, and a line for each sample; nothing if no sample
    has a value.
    """
    if known := [(labels, value) for labels, value in samples if value is not None]:
        yield f"# HELP {name} {says}"
        yield f"# TYPE {name} gauge"
    for labels, value in known:
        inside = ",".join(f'{label}="{label_text(str(text))}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value:.10g}"


# As NCCL Inspector spells them (ncclAlgoToString, src/collectives.cc, v2.30.7-1), so that its metrics can be joined.
_SPELLED = {
    Algorithm.CollNetDirect: "COLLNET_DIRECT",
    Algorithm.CollNetChain: "COLLNET_CHAIN",
    Algorithm.NVLSTree: "NVLS_TREE",
}


def algo_proto(algorithm: Algorithm, protocol: Protocol) -> str:
    """The value of the label ``algo_proto``: ``NVLS_TREE_SIMPLE``."""
    return f"{_SPELLED.get(algorithm, algorithm.name.upper())}_{protocol.name.upper()}"


BUDGET: tuple[tuple[str, str, Callable[[CallPrice], float | None]], ...] = (
    ("calls", "Number of calls of a kind and size.", lambda row: row.calls),
    ("call_microseconds", "Predicted time of one call by NCCL's model.", lambda row: row.price.time_us),
    ("microseconds", "Predicted time of all calls of a kind and size by NCCL's model.", lambda row: row.price.total_us),
    (
        "calibrated_microseconds",
        "Calibrated time of all calls of a kind and size.",
        lambda row: row.price.calibrated.total.time_us if row.price.calibrated else None,
    ),
    (
        "regret_microseconds",
        "Time that the pick loses against the best measured choice, over all calls.",
        lambda row: row.price.measured.regret_us if isinstance(row.price.measured, MeasuredPrice) else None,
    ),
)


def of_budget(budget: Budget) -> Iterator[str]:
    """Metrics of a budget, per variant, kind of call and size; times are in microseconds."""
    rows = [(_labels(row), row) for row in budget.by_size]
    for name, says, value in BUDGET:
        yield from gauge(f"nccl_tuner_budget_{name}", says, [(labels, value(row)) for labels, row in rows])
    totals = [({"variant": variant.name}, variant.total_us) for variant in budget.variants]
    yield from gauge("nccl_tuner_budget_total_microseconds", "Predicted time of all calls by NCCL's model.", totals)


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


def of_decision(decided: Decided) -> Iterator[str]:
    """Metrics of a decision, per row of the table (kept or dropped) and per file of measurements."""
    rows = [
        *((_row_labels(row, "true"), row) for row in decided.kept),
        *((_row_labels(row, "false"), row) for row in decided.dropped),
    ]
    files = [({"file": file.file, "ranks": file.ranks, "nodes": file.nodes}, file) for file in decided.files]
    longer = "take longer than the best measured choice, mean over sizes."
    for name, says, field_name, of in (
        ("gain_ratio", "Gain of a row, as a share of 1.", "gain", rows),
        ("gain_low_ratio", "Lower end of the interval of a row's gain.", "gain_low", rows),
        ("probability", "Probability that a row gains, corrected for all rows together.", "probability", rows),
        ("regret_before_ratio", f"By which share NCCL's picks {longer}", "regret_before", files),
        ("regret_after_ratio", f"By which share the table's choices {longer}", "regret_after", files),
    ):
        yield from gauge(
            f"nccl_tuner_decide_{name}", says, [(labels, getattr(each, field_name)) for labels, each in of]
        )
    count = [({"table": decided.table}, float(len(decided.kept)))]
    yield from gauge("nccl_tuner_decide_rows", "Number of rows of the table.", count)


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
