"""``nccl-tuner fit``: the constants of NCCL's model, or the textbook's, from measurements."""

import dataclasses
from enum import Enum
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.calibration import alphabeta, observations
from tuner.calibration import fit as model
from tuner.calibration.alphabeta import AlphaBeta
from tuner.calibration.fit import Fit, Fitted
from tuner.calibration.observations import Observations
from tuner.cli import options
from tuner.cli.output import print_json, print_table
from tuner.cli.provenance import command_line, today
from tuner.emulator import fitted_constants
from tuner.emulator.fitted_constants import FittedConstants
from tuner.plugin.table import text

MODELS = ("nccl", "alpha-beta")


@click.command(name="fit")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="CONSTANTS",
    help="The file of fitted constants to write, for the --constants of pick, table and group.",
)
@click.option(
    "--model",
    "model_name",
    type=click.Choice(MODELS),
    default="nccl",
    show_default=True,
    help="NCCL's own with other constants, or a latency and a bandwidth for each combination.",
)
@click.option(
    "--cost-table",
    type=click.Path(path_type=Path),
    metavar="TABLE",
    help="With alpha-beta: the times as `cost` rows of a decision table, for the plugin.",
)
@options.json_option
def command(files: tuple[Path, ...], out: Path | None, model_name: str, cost_table: Path | None, as_json: bool) -> None:
    """Fits the constants of NCCL's model to the measurements in FILE, of one machine and release.

    What the measurements do not determine keeps NCCL's value; several node counts determine more. Every fourth
    size is held out: the errors there are those of sizes that were not used.

    \b
    nccl-tuner fit one-node.jsonl two-nodes.jsonl --out pod.toml
    nccl-tuner fit two-nodes.jsonl --model alpha-beta --cost-table pod.table
    """
    textbook = model_name == "alpha-beta"
    if textbook and out is not None:
        raise BadInput("--out: alpha and beta are no constants of NCCL's model; valid with them: --cost-table TABLE")
    if not textbook and cost_table is not None:
        raise BadInput("--cost-table: of alpha and beta only; valid: --model alpha-beta --cost-table TABLE")
    observed = observations.read(files)
    if textbook:
        _alpha_beta(observed, cost_table, as_json)
        return
    fitted = model.fit(observed)
    if out is not None:
        write_text(out, fitted_constants.to_text(_constants(observed, fitted)))
    if as_json:
        print_json({"layer": None if out is None else str(out), **_read_record(observed), **_record(fitted)})
    else:
        _print(observed, fitted)
        if out is not None:
            click.echo(f"{out}: {len(_fitted(fitted))} constants of NCCL {observed.release.name}")


def _constants(observed: Observations, fitted: Fit) -> FittedConstants:
    *_, all_errors = fitted.errors
    first = observed.cases[0]
    gpus = {scenario.gpus() for scenario in observed.cases}
    provenance: dict[str, Any] = {
        "machine": first.machine,
        "topology": None if first.topology is None else first.topology.name,
        "gpus_per_node": gpus.pop() if len(gpus) == 1 else None,
        "nodes": [scenario.nodes for scenario in observed.cases],
        "measurements": [{"file": name, "sha256": sha256} for name, sha256 in observed.files],
        "date": today(),
        "command": command_line(),
        "holdout_mape_percent": all_errors.fitted_held_out_percent,
        "nccl_holdout_mape_percent": all_errors.nccl_held_out_percent,
        "residuals": [_known(dataclasses.asdict(error)) for error in fitted.errors],
        "kept_as_alike": [one.name for one in fitted.constants if one.status == model.KEPT_ALIKE],
    }
    return FittedConstants(observed.release.name, fitted.tables, _known(provenance))


def _known(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def _fitted(fitted: Fit) -> list[Fitted]:
    return [one for one in fitted.constants if one.low is not None or one.status == model.AT_LEAST]


def _read_record(observed: Observations) -> dict[str, Any]:
    return {
        "nccl": observed.release.name,
        "communicators": [scenario.title for scenario in observed.cases],
        "calls": observed.calls,
        "left_out": {reason.replace("sample blocks", "visits"): count for reason, count in observed.left_out.items()},
    }


def _record(value: Any) -> Any:
    """A record as JSON holds it; enumerations by their name."""
    fields = dataclasses.asdict(value)
    return {key: item.name if isinstance(item, Enum) else item for key, item in fields.items()}


def _print(observed: Observations, fitted: Fit) -> None:
    title = f"{observed.calls} calls on {'; '.join(scenario.title for scenario in observed.cases)}"
    rows = [
        (one.name, f"{one.nccl:.5g}", f"{one.value:.5g}", _interval(one), one.status, _alike(one))
        for one in _fitted(fitted)
    ]
    print_table(title, ("constant", "NCCL", "fitted", "95 %", "status", "kept constants of the same effect"), rows)
    kept = [one for one in fitted.constants if one.status == model.KEPT_ALIKE]
    if kept:
        title = "Kept at NCCL's value: the measurements cannot separate them from others"
        columns: tuple[str, ...] = ("constant", "NCCL", "same effect as")
        print_table(title, columns, [(one.name, f"{one.nccl:.5g}", _alike(one)) for one in kept])
    errors = [
        (
            each.combination,
            each.calls,
            _percent(each.nccl_percent),
            _percent(each.fitted_percent),
            each.held_out_calls,
            _percent(each.nccl_held_out_percent),
            _percent(each.fitted_held_out_percent),
        )
        for each in fitted.errors
    ]
    columns = ("combination", "calls", "NCCL", "fitted", "held out", "NCCL there", "fitted there")
    print_table("Mean absolute error of the times, %", columns, errors)
    without_effect = [one.name for one in fitted.constants if one.status == model.KEPT_WITHOUT_EFFECT]
    for what, names in (("too little effect", without_effect), ("not reached", fitted.unreached)):
        if names:
            click.echo(f"kept at NCCL's value, {what}: {_few(names)}")
    if fitted.noise > 1:
        click.echo(f"the model misses the times by {fitted.noise:g} of their deviations; intervals are as much wider")
    _print_left_out(observed)


def _interval(one: Fitted) -> str:
    return "-" if one.low is None or one.high is None else f"{one.low:.4g}..{one.high:.4g}"


def _alike(one: Fitted) -> str:
    return ", ".join(f"{name} x{part:.2g}" for name, part in one.alike.items()) or "-"


def _few(names: Any) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more (--json)" if len(names) > 4 else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _print_left_out(observed: Observations) -> None:
    for reason, count in sorted(observed.left_out.items()):
        click.echo(f"left out: {count} {reason}")


def _alpha_beta(observed: Observations, cost_table: Path | None, as_json: bool) -> None:
    fits, without = alphabeta.fit(observed)
    if cost_table is not None:
        names = " ".join(f"{name} sha256 {sha256}" for name, sha256 in observed.files)
        provenance = {
            "machine": observed.cases[0].name,
            "nccl": observed.release.name,
            "measurements": names,
            "command": command_line(),
            "date": today(),
        }
        text.write(cost_table, alphabeta.cost_table(fits, provenance))
    if as_json:
        print_json({**_read_record(observed), "fits": [_fit_record(one) for one in fits], "without": without})
        return
    columns = (
        "collective",
        "combination",
        "ranks",
        "nodes",
        "calls",
        "alpha us",
        "+-",
        "beta GB/s",
        "+-",
        "R2",
        "error %",
        "held out %",
    )
    print_table(
        f"{observed.calls} calls on {'; '.join(scenario.title for scenario in observed.cases)}",
        columns,
        [
            (
                one.collective.name,
                f"{one.algorithm.name}/{one.protocol.name}",
                one.ranks,
                one.nodes,
                one.calls,
                f"{one.alpha_us:.2f}",
                f"{one.alpha_deviation_us:.2f}",
                f"{one.beta_gbs:.2f}",
                f"{one.beta_deviation_gbs:.2f}",
                f"{one.r2:.4f}",
                _percent(one.error_percent),
                _percent(one.held_out_error_percent),
            )
            for one in fits
        ],
    )
    for reason in without:
        click.echo(f"not fitted: {reason}")
    _print_left_out(observed)
    if cost_table is not None:
        click.echo(f"{cost_table}: {sum(one.known for one in fits)} rows")


def _fit_record(one: AlphaBeta) -> dict[str, Any]:
    return {**_record(one), "known": one.known}
