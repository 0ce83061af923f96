"""``nccl-tuner decide``: measurements to a decision table."""

import hashlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadMeasurement
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.cli.provenance import command_line, today
from tuner.cli.renamed import Renamed
from tuner.emulator import fitted_constants
from tuner.emulator.selection import Selection
from tuner.measure.decide import DecisionRow, Proposal, Regrets, Verdict, gate, regrets, table
from tuner.measure.opened import again
from tuner.measure.records.header import case_of
from tuner.measure.records.samples import Writer, check_same, existing, sha256s
from tuner.measure.verify import Model, compare
from tuner.plugin.table.text import size_text, write


@click.command(name="decide")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="TABLE", help="The table to write.")
@click.option(
    "--constants",
    cls=Renamed,
    former="--layer",
    type=click.Path(path_type=Path),
    metavar="CONSTANTS",
    help="Fitted constants ('nccl-tuner fit'): rows end where these say, not halfway between two sizes.",
)
@click.option("--rounds", type=click.IntRange(min=3), default=20, show_default=True, help="Of the A/B run.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Runs kept per sample block."
)
@click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True, help="Runs before them.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order of the A/B run.")
@click.option("--no-gate", is_flag=True, help="No A/B run: rows are as measured, and the table says so.")
@options.json_option
def command(
    files: tuple[Path, ...],
    out: Path,
    constants: Path | None,
    rounds: int,
    repeats: int,
    warmup: int,
    seed: int,
    no_gate: bool,
    as_json: bool,
) -> None:
    """Few rows of a decision table from FILEs that 'nccl-tuner measure' wrote, one for each number of ranks.

    A row stays only if an A/B run through the plugin shows that it gains more than 2 %, with a probability of 0.95 at
    least. That none does is an answer as well: NCCL's default is the best. The A/B run is kept in TABLE.ab.jsonl.

    \b
    nccl-tuner decide run.jsonl --out pod.table
    nccl-tuner decide 2nodes.jsonl 4nodes.jsonl --constants pod.toml --out pod.table --json
    """
    proposals = [_proposal(path, constants) for path in files]
    read = tuple(zip(files, sha256s(files), strict=True))
    shapes = [(proposal.ranks, proposal.nodes) for proposal in proposals]
    if len(set(shapes)) < len(shapes):
        raise BadMeasurement("two FILEs of as many ranks and nodes; valid: one for each")
    verdicts = [
        [Verdict(row, float("nan"), float("nan"), row.sizes, None) for row in proposal.rows]
        if no_gate
        else _gated(path, proposal, _beside(out, proposal, proposals), rounds, repeats, warmup, seed)
        for path, proposal in zip(files, proposals, strict=True)
    ]
    kept = [[verdict.row for verdict in those if verdict.why_not is None] for those in verdicts]
    rows = [(*shape, row) for shape, those in zip(shapes, kept, strict=True) for row in those]
    write(out, table(rows, _provenance(read, proposals, verdicts, constants, None if no_gate else rounds)))
    found = [
        _record(path, proposal, those, rows)
        for path, proposal, those, rows in zip(files, proposals, verdicts, kept, strict=True)
    ]
    summary = {
        "table": str(out),
        "gate": not no_gate,
        "kept": [each for file in found for each in file["kept"]],
        "dropped": [each for file in found for each in file["dropped"]],
        "regret_before": sum(file["regret_before"] for file in found) / len(found),
        "regret_after": sum(file["regret_after"] for file in found) / len(found),
        "files": [{key: file[key] for key in file if key not in ("kept", "dropped")} for file in found],
        "other_ranks": _other_ranks(proposals, kept),
    }
    if as_json:
        print_json(summary)
    else:
        _print(summary)


def _proposal(path: Path, constants: Path | None) -> Proposal:
    comparison = compare(path)
    scenario = case_of(comparison.measurements.header)
    fitted = None
    if constants is not None:
        there = fitted_constants.read(constants)
        fitted = Model(Selection(replace(scenario, fitted_constants=there).communicator()))
    return Proposal(comparison, scenario.ranks, scenario.nodes + sum(other.nodes for other in scenario.others), fitted)


def _beside(out: Path, proposal: Proposal, proposals: list[Proposal]) -> Path:
    """Where the A/B run is kept: a file for each communicator, named by what distinguishes it."""
    names = [out.name, *([str(proposal.ranks)] if len(proposals) > 1 else [])]
    if [other.ranks for other in proposals].count(proposal.ranks) > 1:
        names.append(str(proposal.nodes))
    return out.with_name(".".join([*names, "ab.jsonl"]))


def _gated(
    path: Path, proposal: Proposal, beside: Path, rounds: int, repeats: int, warmup: int, seed: int
) -> list[Verdict]:
    if not proposal.rows:
        return []
    measurements = proposal.comparison.measurements
    with closing(again(path, measurements)) as backend:
        header = backend.describe()
        if (there := existing(beside)) is not None:
            check_same(beside, there, header)
        with Writer(beside, header) as writer:
            return gate(backend, proposal, rounds=rounds, repeats=repeats, warmup=warmup, seed=seed, add=writer.add)


def _provenance(
    read: tuple[tuple[Path, str], ...],
    proposals: list[Proposal],
    verdicts: list[list[Verdict]],
    constants: Path | None,
    rounds: int | None,
) -> dict[str, str]:
    found = {"by": "nccl-tuner decide", "date": today(), "command": command_line()}
    for number, ((path, sha256), proposal) in enumerate(zip(read, proposals, strict=True), start=1):
        found[f"measured-{number}"] = f"{path} sha256 {sha256}"
        found[f"communicator-{number}"] = case_of(proposal.comparison.measurements.header).title
        found[f"backend-{number}"] = str(proposal.comparison.measurements.header.get("backend"))
    if constants is not None:
        found["layer"] = f"{constants} sha256 {hashlib.sha256(constants.read_bytes()).hexdigest()}"
    found["gate"] = "none: rows are as measured" if rounds is None else f"A/B run of {rounds} rounds through the plugin"
    kept = [
        (proposal.ranks, verdict)
        for proposal, those in zip(proposals, verdicts, strict=True)
        for verdict in those
        if verdict.why_not is None
    ]
    for number, (ranks, verdict) in enumerate(kept if rounds is not None else [], start=1):
        found[f"gate-{number}"] = (
            f"{verdict.row}, {ranks} ranks: gains {100 * verdict.gain:.1f} %, "
            f"probability {verdict.probability:.4f}, at " + ", ".join(map(size_text, verdict.sizes))
        )
    if not kept:
        found["rows"] = "none: NCCL's default is the best that was found"
    return found


def _record(path: Path, proposal: Proposal, verdicts: list[Verdict], kept: list[DecisionRow]) -> dict[str, Any]:
    total, out = regrets(proposal.sizes, kept), proposal.hold_out()
    shape = {"ranks": proposal.ranks, "nodes": proposal.nodes}
    return {
        "file": str(path),
        **shape,
        "regret_before": total.before,
        "regret_after": total.after,
        "hold_out": _regrets(out),
        "kept": [{**shape, **_verdict(each)} for each in verdicts if each.why_not is None],
        "dropped": [{**shape, **_verdict(each), "reason": each.why_not} for each in verdicts if each.why_not],
    }


def _regrets(found: Regrets) -> dict[str, Any]:
    return {"sizes": found.sizes, "regret_before": found.before, "regret_after": found.after}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    row = verdict.row
    gated = verdict.gain == verdict.gain
    return {
        "row": str(row),
        "collective": row.collective.name,
        "low_bytes": row.low,
        "high_bytes": row.high,
        "choice": str(row.choice),
        "gain": verdict.gain if gated else None,
        "probability": verdict.probability if gated else None,
        "sizes": list(verdict.sizes),
    }


def _other_ranks(proposals: list[Proposal], kept: list[list[DecisionRow]]) -> list[dict[str, Any]]:
    """What rows that were decided for one number of ranks would do at another; no row is for others than its own."""
    return [
        {"decided_at": own.ranks, "tried_at": other.ranks, **_regrets(regrets(other.sizes, rows))}
        for own, rows in zip(proposals, kept, strict=True)
        for other in proposals
        if other is not own
    ]


def _print(summary: dict[str, Any]) -> None:
    for verdict in summary["kept"]:
        figures = (
            "not gated"
            if verdict["gain"] is None
            else (f"gains {100 * verdict['gain']:.1f} %, probability {verdict['probability']:.4f}")
        )
        click.echo(f"kept     {verdict['row']} ({verdict['ranks']} ranks): {figures}")
    for verdict in summary["dropped"]:
        click.echo(f"dropped  {verdict['row']} ({verdict['ranks']} ranks): {verdict['reason']}")
    if not summary["kept"]:
        click.echo("no row survives: NCCL's default is the best")
    for file in summary["files"]:
        out = file["hold_out"]
        click.echo(
            f"{file['file']}: regret {_percents(file)} with the table; "
            f"rows of every other size at the {out['sizes']} others: {_percents(out)}"
        )
    for other in summary["other_ranks"]:
        click.echo(f"rows of {other['decided_at']} ranks at {other['tried_at']}: regret {_percents(other)}")
    click.echo(f"{summary['table']}: {len(summary['kept'])} rows")


def _percents(found: dict[str, Any]) -> str:
    return f"{100 * found['regret_before']:.2f} % by NCCL's picks, {100 * found['regret_after']:.2f} %"
