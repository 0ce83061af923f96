"""``nccl-tuner verify``: is NCCL's pick the fastest?"""

import csv
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective, by_name
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.measure.verify import Comparison, Judged, Total, compare, mean_regrets


@click.command(name="verify")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--histogram",
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="How often which size is called, collective,bytes,count: the total is over these calls.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="OUT.png",
    help="The measured times as a picture: .png, .svg or .pdf; needs matplotlib.",
)
@options.json_option
def command(files: tuple[Path, ...], histogram: Path | None, plot: Path | None, as_json: bool) -> None:
    """NCCL's pick against the measured best, by size, for FILEs that 'nccl-tuner measure' wrote.

    A pick is "not best" only beyond the noise: with few rounds nothing is.

    \b
    nccl-tuner verify run.jsonl
    nccl-tuner verify run.jsonl --histogram training.csv --plot run.png --json
    """
    compared = [compare(path) for path in files]
    calls = None if histogram is None else read_histogram(histogram)
    if plot is not None:
        from tuner.plot import measured, save

        save(measured.figure(compared, list(map(str, files))), plot)
    totals = [] if calls is None else [comparison.total(calls) for comparison in compared]
    if as_json:
        print_json(record(files, compared, totals))
        return
    for path, comparison in zip(files, compared, strict=True):
        _print(path, comparison)
    for path, total in zip(files, totals, strict=False):
        click.echo(
            f"{path}: {total.calls:g} calls take {total.pick_us:.0f} us by NCCL's picks, {total.best_us:.0f} us by the "
            f"best: regret {100 * total.regret:.2f} %"
        )


def read_histogram(path: Path) -> dict[tuple[Collective, int], float]:
    """BadMeasurement names the file and the line."""
    found: dict[tuple[Collective, int], float] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadMeasurement(f"{path}: {error}") from error
    if rows and rows[0][1][-1].strip() == "count":
        del rows[0]
    for number, row in rows:
        try:
            name, size, count = row
            key = by_name(Collective, name.strip(), "collective"), options.size_bytes(size)
            calls = float(count)
            if not 0 <= calls < float("inf"):
                raise ValueError(count)
        except (ValueError, BadInput) as error:
            raise BadMeasurement(f"{path}:{number}: not collective,bytes,count: {error}") from None
        found[key] = found.get(key, 0.0) + calls
    return found


def record(files: tuple[Path, ...], compared: list[Comparison], totals: list[Total]) -> dict[str, Any]:
    """What other tools read; regrets and errors are shares of 1."""
    mean, beyond = mean_regrets([one for comparison in compared for one in comparison.sizes])
    found: dict[str, Any] = {
        "regret_mean": mean,
        "regret_mean_beyond_noise": beyond,
        "sizes": [
            _size(comparison, path, one)
            for path, comparison in zip(files, compared, strict=True)
            for one in comparison.sizes
        ],
        "files": [_file(path, comparison) for path, comparison in zip(files, compared, strict=True)],
    }
    for entry, total in zip(found["files"], totals, strict=False):
        entry["histogram"] = {
            "calls": total.calls,
            "pick_us": total.pick_us,
            "best_us": total.best_us,
            "regret": total.regret,
        }
    return found


def _size(comparison: Comparison, path: Path, one: Judged) -> dict[str, Any]:
    point = one.point
    return {
        "collective": point.collective.name,
        "bytes": point.bytes,
        "pick": str(one.pick),
        "best": str(one.best),
        "regret": one.regret,
        "significant": one.significant,
        "pick_us": one.pick_us,
        "best_us": one.best_us,
        "regret_low": one.interval[0] if one.rounds > 1 and abs(one.interval[0]) < float("inf") else None,
        "regret_high": one.interval[1] if one.interval[1] < float("inf") else None,
        "rounds": one.rounds,
        "emulated_pick": None if one.model_pick is None else str(one.model_pick),
        "dtype": point.dtype.name,
        "op": point.op.name,
        "in_place": point.in_place,
        "graph": point.graph,
        "ranks": comparison.measurements.header.get("ranks"),
        "file": str(path),
    }


def _file(path: Path, comparison: Comparison) -> dict[str, Any]:
    return {
        "file": str(path),
        "truncated": comparison.measurements.truncated,
        "crossovers": [
            {
                "collective": each.collective.name,
                "before": str(each.before),
                "after": str(each.after),
                "low_bytes": each.low_bytes,
                "high_bytes": each.high_bytes,
                "at_bytes": each.at_bytes,
            }
            for each in comparison.crossovers()
        ],
        "model_changes": [
            {"collective": kind.collective.name, "bytes": changes}
            for kind, changes in comparison.model_changes().items()
        ],
        "model_errors": [
            {
                "collective": each.collective.name,
                "algorithm": each.algorithm.name,
                "protocol": each.protocol.name,
                "sizes": each.sizes,
                "mape": each.mape,
                "mape_scaled": each.mape_scaled,
                "scale": each.scale,
                "tau": each.tau,
            }
            for each in comparison.model_errors()
        ],
        "rank_agreement": {each.name: tau for each, tau in comparison.rank_agreement().items()},
        "skipped": [
            {"collective": each.point.collective.name, "bytes": each.point.bytes, "reason": each.reason}
            for each in comparison.skipped
        ],
    }


def _print(path: Path, comparison: Comparison) -> None:
    sizes = comparison.sizes
    rows = [
        (
            one.point.collective.name,
            human_bytes(one.point.bytes),
            one.pick,
            f"{one.pick_us:.2f}",
            one.best,
            f"{one.best_us:.2f}",
            f"{100 * one.regret:.1f} %",
            "yes" if one.significant else "",
        )
        for one in sizes
    ]
    cut = ", its last line cut off" if comparison.measurements.truncated else ""
    print_table(f"{path}{cut}", ("collective", "size", "pick", "us", "best", "us", "regret", "beyond noise"), rows)
    if changes := comparison.crossovers():
        changed = [(each.collective.name, each.before, each.after, each.at_bytes) for each in changes]
        print_table("where the measured best changes", ("collective", "from", "to", "about bytes"), changed)
    for kind, found in comparison.model_changes().items():
        click.echo(f"{kind.collective.name}: NCCL's pick changes at {', '.join(map(str, found)) or 'no size'}")
    if errors := comparison.model_errors():
        erring = [
            (
                each.collective.name,
                f"{each.algorithm.name}/{each.protocol.name}",
                each.sizes,
                f"{100 * each.mape:.1f} %",
                f"{100 * each.mape_scaled:.1f} %",
                f"{each.scale:.3f}",
                "-" if each.tau is None else f"{each.tau:.3f}",
            )
            for each in errors
        ]
        columns = ("collective", "combination", "sizes", "MAPE", "MAPE scaled", "scale", "tau")
        print_table("the model against the times", columns, erring)
    for collective, tau in comparison.rank_agreement().items():
        click.echo(f"{collective.name}: the model orders the combinations of a size with Kendall's tau {tau:.3f}")
    for skipped in comparison.skipped:
        click.echo(f"not judged: {skipped.point.collective.name} {human_bytes(skipped.point.bytes)}: {skipped.reason}")
    if not any(block.requested for block in comparison.measurements.blocks):
        click.echo("only NCCL's own choices were measured: 'nccl-tuner measure' measures whether others are faster")
    mean, beyond = mean_regrets(sizes)
    worse = sum(one.significant for one in sizes)
    click.echo(
        f"regret: mean {100 * mean:.2f} %, {100 * beyond:.2f} % of it beyond the noise; "
        f"not best at {worse} of {len(sizes)} sizes"
    )
