"""Answers where people look: comma-separated values, parquet, and Prometheus' text."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

import click

from tuner.base import extras
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.frames import Framed
from tuner.cli import options
from tuner.cli.command import F, stacked
from tuner.cli.output import print_csv

Sample = tuple[Mapping[str, object], float | None]  # labels, and a value where it is known


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge of Prometheus: what it is called, what it says, and its samples."""

    name: str
    says: str
    samples: Iterable[Sample] = field(default_factory=list)


def export_options(function: F) -> F:
    """Parameters ``as_csv``, ``parquet`` and ``as_prometheus``."""
    return stacked(
        function,
        options.csv_option,
        click.option(
            "--parquet",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write the same rows as parquet; needs polars (nccl-tuner[parquet]).",
        ),
        click.option(
            "--prometheus",
            "as_prometheus",
            is_flag=True,
            help="Print metrics in Prometheus' text, for a node exporter's textfile collector.",
        ),
    )


@dataclass(frozen=True, slots=True)
class Exports:
    """Which forms are wanted. BadInput for two that print."""

    as_csv: bool
    parquet: Path | None
    as_prometheus: bool
    as_json: bool

    def __post_init__(self) -> None:
        if self.as_csv + self.as_prometheus + self.as_json > 1:
            raise BadInput("--json, --csv, --prometheus: one of them")

    def deliver(self, frame: Framed, metrics: Iterable[Metric]) -> bool:
        """Whether something was printed; parquet is written beside. BadInput where it cannot be."""
        if self.parquet is not None:
            _write_parquet(frame, self.parquet)
        if self.as_csv:
            print_csv(list(frame.columns()), frame.rows())
        elif self.as_prometheus:
            click.echo("\n".join(_lines(metrics)))
        return self.as_csv or self.as_prometheus


def _write_parquet(frame: Framed, path: Path) -> None:
    extras.require("polars", f"{path}: parquet")
    import polars

    try:
        frame.to_polars().write_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None


def _lines(metrics: Iterable[Metric]) -> Iterator[str]:
    """The text exposition format, version 0.0.4: help, type, and a line for each sample."""
    for metric in metrics:
        known = [(labels, value) for labels, value in metric.samples if value is not None]
        if not known:
            continue
        yield f"# HELP {metric.name} {metric.says}"
        yield f"# TYPE {metric.name} gauge"
        for labels, value in known:
            inside = ",".join(f'{name}="{_escaped(str(text))}"' for name, text in labels.items())
            yield f"{metric.name}{{{inside}}} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
