"""How near times between nodes are at sites that nothing was learnt from, beside NCCL's own and that with one factor.

``python benchmarks/sites.py`` prints, of every table of ``tables/splits.toml`` that has a site: the median error with
0, 1 and 4 rows of the table given, over all sizes and from 16 MiB on; medians of these over the healthy tables, those
that parameters are learnt from (``fitted``) and those that nothing was learnt from or chosen by (``unfitted``); how
many times lie in their intervals, by size and by nodes; and which tables an own row widens an interval of. Parameters
are learnt without the table's site. Rows are given at random (``SEEDS`` times) and as ``telling`` chooses them. A table
of an instance type that other clusters were measured of is predicted with those clusters' rows as well.
``--likelihood`` prints how likely the rows are by the standard deviations of ``tuner/times/timemodel/sites.py``, and by
each of them larger and smaller by a fifth: what these were chosen by.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.scripts.fit_network import HeldTable, held_tables
from tuner.times import measured
from tuner.times.calibration import calibrate
from tuner.times.measured.header import MeasuredHealth
from tuner.times.timemodel import sites
from tuner.times.timemodel.features import Array

SEEDS = 8
GIVEN = (0, 1, 4)
LARGE_BYTES, HUGE_BYTES = 1 << 24, 1 << 28


@dataclass(frozen=True, slots=True)
class TableErrors:
    """Median errors of a table as shares; None where it has no such call. ``how`` rows were given."""

    site: str
    table: str
    health: str
    unfitted: bool
    given: int
    how: str
    rows: int
    error: float | None
    nccl: float | None
    one_factor: float | None
    large_error: float | None
    large_nccl: float | None
    large_one_factor: float | None
    inside: float
    upper: float
    huge_upper: float | None
    huge_inside: float | None


def errors(
    held: HeldTable, given: int, how: str, type_rows: sites.SiteRows | None = None
) -> tuple[TableErrors, dict[str, Array]]:
    """Errors of a table, and of each judged row what coverage is counted by; over the seeds where rows are random.

    ``type_rows``: those of other clusters of the table's instance type.
    """
    picked: list[NDArray[np.intp]]
    if not given:
        picked = [np.zeros(0, np.intp)]
    elif how == "chosen":
        picked = [np.array(sites.SiteProcess(held.parameters).telling(held.calls, given))]
    else:
        seeds = range(min(SEEDS, len(held.calls)) if given == 1 else SEEDS)
        picked = [
            np.random.default_rng(seed).permutation(len(held.calls))[: min(given, len(held.calls) - 1)]
            for seed in seeds
        ]
    columns: dict[str, list[Array]] = {}
    each: list[Mapping[str, float | None]] = []
    for chosen in picked:
        judged = np.setdiff1d(np.arange(len(held.calls)), chosen)
        if not len(judged):
            continue
        one = _judged(held, chosen, judged, type_rows)
        for name, values in one.items():
            columns.setdefault(name, []).append(values)
        each.append(_summary(one))
    mean = {name: _mean([one[name] for one in each]) for name in each[0]} if each else {}
    found = TableErrors(held.site, held.table, held.health, held.unfitted, given, how, len(held.calls) - given, **mean)  # type: ignore[arg-type]
    return found, {name: np.concatenate(values) for name, values in columns.items()}


def _judged(
    held: HeldTable, chosen: NDArray[np.intp], judged: NDArray[np.intp], type_rows: sites.SiteRows | None
) -> dict[str, Array]:
    rows = sites.rows_of(held.calls[chosen], held.times_us[chosen], held.parameters) if len(chosen) else None
    process = sites.SiteProcess(held.parameters, rows, type_rows=type_rows)
    calls, log_us = held.calls[judged], np.log(held.times_us[judged])
    log_off, log_half = process.corrected(calls)
    log_nccl = np.log(held.nccl_us)
    factor = float((np.log(held.times_us) - log_nccl)[chosen].mean()) if len(chosen) else 0.0
    return {
        "off": log_off - log_us,
        "half": np.asarray(log_half),
        "nccl": log_nccl[judged] - log_us,
        "one_factor": log_nccl[judged] + factor - log_us,
        "bytes": calls.bytes,
        "nodes": calls.nodes,
    }


def _summary(one: Mapping[str, Array]) -> dict[str, float | None]:
    def median(name: str, which: NDArray[np.bool_]) -> float | None:
        return float(np.median(np.abs(np.expm1(one[name][which])))) if which.any() else None

    every, large = np.ones(len(one["off"]), np.bool_), one["bytes"] >= LARGE_BYTES
    huge = one["bytes"] >= HUGE_BYTES
    inside = np.abs(one["off"]) <= one["half"]
    return {
        "error": median("off", every),
        "nccl": median("nccl", every),
        "one_factor": median("one_factor", every),
        "large_error": median("off", large),
        "large_nccl": median("nccl", large),
        "large_one_factor": median("one_factor", large),
        "inside": float(inside.mean()),
        "upper": float(np.exp(np.median(one["half"]))),
        "huge_upper": float(np.exp(np.median(one["half"][huge]))) if huge.any() else None,
        "huge_inside": float(inside[huge].mean()) if huge.any() else None,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def widened_by_own_rows(held: HeldTable) -> tuple[int, float]:
    """Number of calls whose interval is wider with their own row than with none, and by what factor the worst is."""
    without = np.asarray(sites.SiteProcess(held.parameters).corrected(held.calls)[1])
    worst, wider = 1.0, 0
    for at in range(len(held.calls)):
        one = np.array([at])
        rows = sites.rows_of(held.calls[one], held.times_us[one], held.parameters)
        half = float(np.asarray(sites.SiteProcess(held.parameters, rows).corrected(held.calls[one])[1])[0])
        ratio = half / float(without[at])
        wider, worst = wider + (ratio > 1 + 1e-9), max(worst, ratio)
    return wider, worst


def with_instance_types(tables: Sequence[HeldTable]) -> list[tuple[str, TableErrors, TableErrors]]:
    """Instance type, and errors of each table of one without and with the rows of the type's other clusters.

    Tables that name the same site, or none, may be of one cluster.
    """
    held, found = {each.table: each for each in tables}, []
    clusters = {name: measured.load(name).header.site for name in held}
    for source in calibrate.sources():
        for name in source.tables if source.instances else ():
            one, others = held[name], [held[each] for each in source.tables if clusters[each] != clusters[name]]
            if not others:
                continue
            rows = [sites.rows_of(other.calls, other.times_us, one.parameters) for other in others]
            type_rows = reduce(sites.SiteRows.joined, rows)
            for given in (each for each in GIVEN if each < len(one.calls)):
                for how in ("random", "chosen") if given else ("none",):
                    without, known = (errors(one, given, how, each)[0] for each in (None, type_rows))
                    found.append((source.name, without, known))
    return found


def errors_expected(tables: Sequence[HeldTable]) -> dict[str, dict[str, float]]:
    """Of healthy tables: medians of the errors that were expected and found, and of what is found of those expected.

    With 0, 1 and 4 rows, which ``telling`` chooses.
    """
    ratios: dict[int, list[tuple[float, float]]] = {given: [] for given in GIVEN}
    for held in (each for each in tables if each.is_healthy and len(each.calls) > max(GIVEN)):
        process = sites.SiteProcess(held.parameters)
        expected = process.errors_to_expect(held.calls, process.telling(held.calls, max(GIVEN)))
        for given in GIVEN:
            found = errors(held, given, "chosen" if given else "none")[0].error
            ratios[given].append((expected[given], found or 0.0))
    return {
        str(given): {
            "expected": float(np.median([one for one, _ in pairs])),
            "found": float(np.median([other for _, other in pairs])),
            "ratio": float(np.median([other / one for one, other in pairs])),
        }
        for given, pairs in ratios.items()
    }


def log_likelihood(tables: Sequence[HeldTable]) -> float:
    """Logarithm of how likely the rows of the healthy tables are, a row: each table's all together, none given."""
    found = []
    for held in tables:
        rows = sites.rows_of(held.calls, held.times_us, held.parameters)
        found.append(sites.SiteProcess(held.parameters, rows).log_likelihood / len(rows))
    return float(np.mean(found))


DEVIATIONS = (
    *("LEVEL_SD", "COMBINATION_LEVEL_SD", "ALL_SD", "BANDWIDTH_SD", "LATENCY_SD", "ALGORITHM_SD"),
    *("COMBINATION_LATENCY_SD", "CURVE_SD", "COLLECTIVE_SD", "COLLECTIVE_BANDWIDTH_SD", "NODES_SD", "NOISE_SD", "LEFT"),
)


def print_likelihoods(tables: Sequence[HeldTable]) -> None:
    """Logarithm of the likelihood a row by the deviations as they are, and by each a fifth smaller and larger."""
    print(f"as they are {log_likelihood(tables):.4f}")
    for name in DEVIATIONS:
        value = getattr(sites, name)
        found = []
        for factor in (0.8, 1.25):
            setattr(sites, name, value * factor)
            found.append(log_likelihood(tables))
        setattr(sites, name, value)
        print(f"{name:26} {value:6.3f}: smaller {found[0]:.4f}, larger {found[1]:.4f}")


def _median(found: Sequence[TableErrors], name: str) -> float:
    there = [value for each in found if (value := getattr(each, name)) is not None]
    return float(np.median(there)) if there else float("nan")


def report(tables: Sequence[HeldTable]) -> dict[str, Any]:
    """All that is printed, as JSON holds it."""
    found: list[TableErrors] = []
    columns: dict[tuple[int, str, str], list[dict[str, Array]]] = {}
    for held in tables:
        for given in GIVEN:
            if given and len(held.calls) <= given:
                continue
            for how in ("random", "chosen") if given else ("none",):
                one, rows = errors(held, given, how)
                found.append(one)
                if held.health == MeasuredHealth.healthy:
                    columns.setdefault((given, how, "rows"), []).append(rows)
    widened = {held.table: widened_by_own_rows(held) for held in tables}
    of_types = with_instance_types(tables)
    known = {(each.table, each.given, each.how): each for _, _, each in of_types}
    answered = [known.get((each.table, each.given, each.how), each) for each in found]
    summary = {group: _summaries(found, group) for group in ("healthy", "unfitted", "fitted")}
    return {
        "tables": [asdict(each) for each in found],
        "summary": {**summary, **{f"{group}, with instance types": _summaries(answered, group) for group in summary}},
        "coverage": {f"{given} {how}": _coverage(each) for (given, how, _), each in columns.items()},
        "instance_types": [
            {"type": name, "without": without.error, "large_without": without.large_error, **asdict(each)}
            for name, without, each in of_types
        ],
        "expected": errors_expected(tables),
        "widened": {name: {"calls": count, "worst": worst} for name, (count, worst) in widened.items() if count},
    }


def _summaries(found: Sequence[TableErrors], group: str) -> dict[str, dict[str, float]]:
    healthy = [each for each in found if each.health == MeasuredHealth.healthy]
    if group != "healthy":
        healthy = [each for each in healthy if each.unfitted == (group == "unfitted")]
    names = ("error", "nccl", "one_factor", "large_error", "large_nccl", "large_one_factor", "inside", "huge_upper")
    summaries = {}
    for given in GIVEN:
        for how in ("random", "chosen") if given else ("none",):
            of = [each for each in healthy if (each.given, each.how) == (given, how)]
            summaries[f"{given} {how}"] = {"tables": len(of), **{name: _median(of, name) for name in names}}
            summaries[f"{given} {how}"]["mean_inside"] = float(np.mean([each.inside for each in of]))
            huge = [each.huge_inside for each in of if each.huge_inside is not None]
            summaries[f"{given} {how}"]["huge_inside"] = float(np.mean(huge)) if huge else float("nan")
    return summaries


def _coverage(of_tables: Sequence[dict[str, Array]]) -> dict[str, dict[str, float]]:
    """Means over tables of the shares inside, by two octaves of size and by nodes; and how many tables have such."""
    octaves: dict[str, list[float]] = {}
    nodes: dict[str, list[float]] = {}
    for one in of_tables:
        inside = np.abs(one["off"]) <= one["half"]
        columns = (octaves, np.floor(np.log2(one["bytes"]) / 2) * 2), (nodes, np.floor(np.log2(one["nodes"])))
        for to, column in columns:
            for place in np.unique(column):
                to.setdefault(f"2^{int(place)}", []).append(float(inside[column == place].mean()))
    found: dict[str, dict[str, float]] = {}
    for name, of in (("bytes", octaves), ("nodes", nodes)):
        in_order = sorted(of.items(), key=_exponent)
        found[name] = {place: round(float(np.mean(shares)), 3) for place, shares in in_order}
        found[f"tables_by_{name}"] = {place: len(shares) for place, shares in in_order}
    return found


def _exponent(item: tuple[str, list[float]]) -> int:
    return int(item[0].removeprefix("2^"))


def _percent(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{100 * value:.1f}"


def print_report(found: Mapping[str, Any], *, each_table: bool = True) -> None:
    """Prints the tables."""
    columns = ("error", "nccl", "one_factor", "large_error", "large_nccl", "large_one_factor", "inside")
    if each_table:
        print(f"{'table':44} {'health':9} rows  given            ours  NCCL  x f | large: ours NCCL x f | inside upper")
        for each in found["tables"]:
            if each["how"] == "chosen":
                continue
            cells = [_percent(each[name]) for name in columns]
            print(
                f"{each['table']:44} {each['health']:9} {each['rows']:4}  {each['given']} {each['how']:7}  "
                + " ".join(f"{cell:>6}" for cell in cells)
                + f"  x{each['upper']:.2f}"
                + (f" 256M x{each['huge_upper']:.2f}" if each["huge_upper"] else "")
            )
    for group, summaries in found["summary"].items():
        print(f"\n{group}: medians over tables")
        for name, each in summaries.items():
            cells = [f"{what} {_percent(each[what])}" for what in (*columns, "huge_inside")]
            print(f"  {name:9} {each['tables']} tables: {', '.join(cells)}, huge upper x{each['huge_upper']:.2f}")
    print("\ninside, healthy tables")
    for name, each in found["coverage"].items():
        print(f"  {name:9} bytes {each['bytes']}\n            nodes {each['nodes']}")
    print("\ntables of an instance type: error without, with rows of its other clusters | from 16 MiB | inside")
    for each in found["instance_types"]:
        shares = [_percent(each[name]) for name in ("without", "error", "large_without", "large_error", "inside")]
        print(
            f"  {each['type']:18} {each['table']:38} {each['given']} {each['how']:7} "
            + " ".join(f"{one:>6}" for one in shares)
        )
    print("\nmedian errors that were expected, and found")
    for given, each in found["expected"].items():
        print(f"  {given} {_percent(each['expected'])} {_percent(each['found'])}, of each {each['ratio']:.2f}")
    print(f"\nown rows widen their own interval in {len(found['widened'])} tables: {found['widened']}")


def main() -> None:
    """Prints; with a file, keeps it as JSON, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--likelihood", action="store_true")
    options = parser.parse_args()
    if options.likelihood:
        print_likelihoods([each for each in held_tables() if each.is_healthy and not each.unfitted])
        return
    found = report(held_tables())
    print_report(found, each_table=not options.brief)
    if options.file:
        kept = json.loads(options.file.read_text("utf-8")) if options.file.is_file() else {}
        before = {"before": kept["before"]} if "before" in kept else {}  # figures of the model that this one replaced
        options.file.write_text(json.dumps(rounded(found | before), indent=1) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers with three decimals."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
