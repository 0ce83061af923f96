"""What sites have in common between nodes, and how a site that nothing was learnt from is predicted by a few rows.

``python -m tests.scripts.fit_network`` prints medians and widths of the network's parameters, which
``tuner/times/timemodel/form.py`` has by hand. Each site of ``tables/splits.toml`` is fitted with the others'
medians and widths as its prior; both are learnt anew from the fits, as far as each site says something of a parameter.
:func:`updates` does so without each site in turn and predicts its tables without a row, with one and with four.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tuner.times.calibration.measured_calls import MeasuredCalls, joined, of_table, splits_file, table_of_one_way
from tuner.times.calibration.time_fit import softened
from tuner.times.placement import Site
from tuner.times.timemodel import calibration, sites
from tuner.times.timemodel.features import Array, Features
from tuner.times.timemodel.form import PARAMETERS, Form

NAMES = [name for name in PARAMETERS if name.startswith(("net_", "tree_", "nvls_tree_", "pat_")) and "." not in name]
ROUNDS, MOST_ROWS = 3, 60  # of a site count; more of them count less each
SCATTER, PRIOR_SITES = 0.12, 3  # natural logarithm of times; sites that what is believed so far counts as
GIVEN = (0, 1, 4)  # rows of a site
LARGE_BYTES = 1 << 24
FEWEST_NEAR = 4  # rows near those given, to learn from
HELD = 0.87  # of each table, by intervals that should hold 85 to 97 %


@dataclass(frozen=True, slots=True)
class SiteTables:
    """One site: the parameters of its nodes, and its rows between nodes by table."""

    nodes: Mapping[str, float]
    tables: Mapping[str, MeasuredCalls]
    judged_only: bool

    @property
    def rows(self) -> MeasuredCalls:
        """Those of all tables."""
        return joined(list(self.tables.values()))


@dataclass(frozen=True, slots=True)
class SiteUpdate:
    """How far off a table of a site is that nothing was learnt from, given ``given`` of its rows; shares, not percent.

    The rows that are given are those that say most of the others before anything is measured. ``large_error`` is that
    of sizes from 16 MiB; None where there is none. ``half_width`` is the median factor between an interval's middle and
    its ends, less 1. How wide intervals are was learnt without the site as well. ``known_slow``: nothing was learnt
    from it, and no interval has to hold it.
    """

    table: str
    given: int
    rows: int
    error: float
    large_error: float | None
    nccl_error: float
    coverage: float
    half_width: float
    known_slow: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Updated:
    """An update with what it is judged by, [row].

    ``log_off``: logarithms of predicted over measured times; ``log_half``: half an interval around them before it is
    widened; ``left``: the share of the variance that the rows leave; ``nccl``: NCCL's own errors.
    """

    site: str
    table: str
    given: int
    log_off: Array
    log_half: Array
    left: Array
    nccl: Array
    large: NDArray[np.bool_]

    def needed(self, most_left: float = 1.0) -> float:
        """Factor to hold the share ``HELD`` of the rows that no more is left of; 1 where these are too few to say."""
        near = self.left <= most_left
        ratios = np.abs(self.log_off[near]) / self.log_half[near]
        return float(np.quantile(ratios, HELD, method="higher")) if len(ratios) >= FEWEST_NEAR else 1.0


def all_sites() -> dict[str, SiteTables]:
    """Those of ``tables/splits.toml``."""
    return {
        name: SiteTables(
            dict(calibration.load(entry["nodes"]).parameters),
            {table: _between(table, Site(machine, nccl)) for table, machine, nccl in entry["tables"]},
            entry.get("judged_only", False),
        )
        for name, entry in splits_file()["sites"].items()
    }


def _between(name: str, site: Site) -> MeasuredCalls:
    table = table_of_one_way(name)
    return of_table(replace(table, blocks=tuple(row for row in table.blocks if row.nodes > 1)), site)


def fit(rows: MeasuredCalls, nodes: Mapping[str, float], medians: Array, widths: Array) -> tuple[Array, Array]:
    """Logarithms of the parameters of one site, and their variances."""
    calls, log_us = rows.measured.calls, np.log(rows.measured.times_us)
    weight = min(1.0, MOST_ROWS / len(rows))

    def off(vector: Array) -> Array:
        values = {**nodes, **dict(zip(NAMES, np.exp(vector).tolist(), strict=True))}
        return np.asarray((log_us - np.log(Form(values).times_us(calls))) / SCATTER)

    def residuals(vector: Array) -> Array:
        return np.concatenate([np.sqrt(weight) * softened(off(vector)), (vector - medians) / widths])

    found = least_squares(residuals, medians, max_nfev=60)
    return found.x, np.diag(np.linalg.inv(found.jac.T @ found.jac))


def in_common(of_sites: Sequence[SiteTables]) -> tuple[Array, Array]:
    """Medians of the parameters ``NAMES`` over sites, natural logarithms, and their widths."""
    believed = np.array([np.log(PARAMETERS[name].median) for name in NAMES])
    believed_sd = np.array([PARAMETERS[name].log_sd for name in NAMES])
    medians, widths = believed, believed_sd
    for _ in range(ROUNDS):
        fits = [fit(each.rows, each.nodes, medians, widths) for each in of_sites]
        found, variances = (np.stack(each) for each in zip(*fits, strict=True))
        told = np.clip(1 - variances / widths**2, 1e-6, 1.0)
        medians = ((told * found).sum(axis=0) + believed) / (told.sum(axis=0) + 1)
        spread = ((found - medians) ** 2 + variances).sum(axis=0) + PRIOR_SITES * believed_sd**2
        widths = np.sqrt(spread / (len(of_sites) + PRIOR_SITES))
    return medians, widths


def updates() -> list[SiteUpdate]:
    """Each table of each site, given rows as ``GIVEN`` says; a minute."""
    every, found = _predicted(), []
    judged_only = [name for name, site in all_sites().items() if site.judged_only]
    for each in every:
        others = [one for one in every if one.site not in (each.site, *judged_only)]
        factors = learnt_widening(others)[each.given]
        error, half = np.abs(np.expm1(each.log_off)), sites.widened(factors, each.left) * each.log_half
        found.append(
            SiteUpdate(
                table=each.table,
                given=each.given,
                rows=len(error),
                error=float(error.mean()),
                large_error=float(error[each.large].mean()) if each.large.any() else None,
                nccl_error=float(each.nccl.mean()),
                coverage=float((np.abs(each.log_off) <= half).mean()),
                half_width=float(np.median(np.expm1(half))),
                known_slow=each.site in judged_only,
            )
        )
    return found


def ratios_inside(left_out: str, tables: tuple[str, str]) -> dict[int, float]:
    """Shares of the ratios of two tables' times, of two releases, that lie in their interval, by the rows given.

    Nothing was learnt from the tables' site; the rows are of the first table.
    """
    every = all_sites()
    medians, _ = in_common([each for name, each in every.items() if name != left_out and not each.judged_only])
    parameters = {**every[left_out].nodes, **dict(zip(NAMES, np.exp(medians).tolist(), strict=True))}
    of_tables = [every[left_out].tables[table].measured for table in tables]
    firsts = [_first_of_kinds(each.calls)[0] for each in of_tables]
    before, after = (each.calls[first] for each, first in zip(of_tables, firsts, strict=True))
    times_us = [each.times_us[first] for each, first in zip(of_tables, firsts, strict=True)]
    places = {_call(after, at): at for at in range(len(after))}
    inside = {}
    for given in GIVEN:
        rows = None
        if given:
            chosen = np.array(sites.SiteProcess(parameters).telling(before, given))
            rows = sites.rows_of(before[chosen], times_us[0][chosen], parameters)
        process = sites.SiteProcess(parameters, rows)
        off = [process.corrected(each)[0] - np.log(us) for each, us in zip((before, after), times_us, strict=True)]
        seen = process.calls(before), process.calls(after)
        pairs = [(at, places[_call(before, at)]) for at in range(len(before)) if _call(before, at) in places]
        held = [abs(off[1][b] - off[0][a]) <= (seen[0][a].half_of_ratio(seen[1][b]) or 0) for a, b in pairs]
        inside[given] = float(np.mean(held))
    return inside


def _call(calls: Features, at: int) -> tuple[float, ...]:
    return tuple(float(getattr(calls, name)[at]) for name in ("collective", "ranks", "nodes", "bytes"))


def _first_of_kinds(calls: Features) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The number of the first call of each kind, [kind], and the kind of each, [call]."""
    kinds = np.stack([calls.collective, calls.algo_proto, calls.ranks, calls.nodes, calls.bytes])
    _, first, kind = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    return first, kind.ravel()


def learnt_widening(of_tables: Sequence[_Updated]) -> dict[int, tuple[float, float]]:
    """Factors, by rows of a site, that intervals are widened by so that they hold the share ``HELD`` of each table.

    The first near the rows, where these say half of what there is to know or more; the second far from them.
    """

    def most(given: int, left: float) -> float:
        return max(1.0, *(each.needed(left) for each in of_tables if each.given == given))

    return {given: (min(most(given, 0.5), most(given, 1.0)), most(given, 1.0)) for given in GIVEN}


def _predicted() -> list[_Updated]:
    every, predicted = all_sites(), []
    for left_out, site in every.items():
        medians, _ = in_common([each for name, each in every.items() if name != left_out and not each.judged_only])
        parameters = {**site.nodes, **dict(zip(NAMES, np.exp(medians).tolist(), strict=True))}
        for table, rows in site.tables.items():
            predicted += [_updated(left_out, table, rows, parameters, given) for given in GIVEN]
    return predicted


def _updated(site: str, table: str, rows: MeasuredCalls, parameters: dict[str, float], given: int) -> _Updated:
    calls, times_us = rows.measured.calls, rows.measured.times_us
    first, kind = _first_of_kinds(calls)
    chosen: NDArray[np.intp] = np.zeros(0, np.intp)
    if given:
        chosen = first[np.array(sites.SiteProcess(parameters).telling(calls[first], given))]
    own = sites.rows_of(calls[chosen], times_us[chosen], parameters) if given else None
    judged = ~np.isin(kind, kind[chosen])
    process = sites.SiteProcess(parameters, own, widening={0: (1.0, 1.0)})
    log_us, half = process.corrected(calls[judged])
    nccl = np.abs(rows.nccl_us / times_us - 1)[judged]
    large = calls.bytes[judged] >= LARGE_BYTES
    left = process.left(calls[judged])
    return _Updated(site, table, given, log_us - np.log(times_us[judged]), half, left, nccl, large)


def main() -> None:
    """Two minutes."""
    every = all_sites()
    medians, widths = in_common([each for each in every.values() if not each.judged_only])
    healthy = [each for each in _predicted() if not every[each.site].judged_only]
    print("widening", learnt_widening(healthy), "now", sites.WIDENING)
    for name, median, width in zip(NAMES, np.exp(medians), widths, strict=True):
        print(f"{name:30} {median:10.3g} {width:.2f}   now {PARAMETERS[name].median:g} {PARAMETERS[name].log_sd:g}")


if __name__ == "__main__":
    main()
