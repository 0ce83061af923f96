"""What sites have in common between nodes, and how a site that nothing was learnt from is predicted by a few rows.

``python -m tests.scripts.fit_network`` writes medians and widths of the network's parameters, and factors of
intervals, to ``tables/between_nodes.toml``. Each site of ``tables/splits.toml`` is fitted with the others'
medians and widths as its prior; both are learnt anew from the fits, as far as each site says something of a parameter.
:func:`updates` does so without each site in turn and predicts its tables without a row, with one and with four.
"""

import hashlib
import inspect
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tuner.base.tables import folder
from tuner.times import measured
from tuner.times.calibration.measured_calls import MeasuredCalls, joined, of_table, splits_file, table_of_one_way
from tuner.times.calibration.time_fit import softened
from tuner.times.measured.header import MeasuredHealth
from tuner.times.placement import Site
from tuner.times.timemodel import calibration, features, form, sites
from tuner.times.timemodel.features import NETWORKS, Array, Features
from tuner.times.timemodel.form import BELIEFS, BY_NETWORK, TimesOfCalls

NAMES = [name for name in BELIEFS if name.startswith(("net_", "tree_", "nvls_tree_", "pat_")) and "." not in name]
ROUNDS, MOST_ROWS = 3, 60  # of a site count; more of them count less each
STEP = float(np.sqrt(np.finfo(np.float64).eps))  # of a derivative
SCATTER, PRIOR_SITES = 0.12, 3  # natural logarithm of times; sites that what is believed so far counts as
GIVEN = (0, 1, 4)  # rows of a site
LARGE_BYTES = 1 << 24
HELD = 0.94  # of the healthy sites' calls, by intervals that should hold 85 to 97 % of any size and number of nodes
CACHE = Path(__file__).parents[2] / "build" / "sites"


@dataclass(frozen=True, slots=True)
class SiteTables:
    """One site: the parameters of its nodes, and its rows between nodes by table."""

    nodes: Mapping[str, float]
    tables: Mapping[str, MeasuredCalls]
    judged_only: bool
    unfitted: bool

    @property
    def is_unfitted(self) -> bool:
        """Whether no parameters are learnt from it."""
        return self.judged_only or self.unfitted

    @property
    def network(self) -> int:
        """The index of its network in ``NETWORKS``."""
        return int(self.rows.measured.calls.network[0])

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
    is_healthy: bool
    given: int
    log_off: Array
    log_half: Array
    left: Array
    nccl: Array
    large: NDArray[np.bool_]

    @property
    def ratios(self) -> Array:
        """Errors in halves of intervals, [row]."""
        return np.asarray(np.abs(self.log_off) / self.log_half)


def all_sites() -> dict[str, SiteTables]:
    """Those of ``tables/splits.toml``."""
    return {
        name: SiteTables(
            dict(calibration.load(entry["nodes"]).parameters),
            {table: _between(table, Site(machine, nccl)) for table, machine, nccl in entry["tables"]},
            entry.get("judged_only", False),
            entry.get("unfitted", False),
        )
        for name, entry in splits_file()["sites"].items()
    }


def _between(name: str, site: Site) -> MeasuredCalls:
    """The rows of a table between nodes or domains, without those of runs of other health."""
    table = table_of_one_way(name)
    kept = (row for row in table.blocks if row.nodes > 1 and table.health_of(row) is table.header.health)
    calls = of_table(replace(table, blocks=tuple(kept)), site)
    return calls.chosen(calls.measured.calls.nodes > 1)


Fits = dict[tuple[int, bytes, bytes], tuple[Array, Array]]  # by identity of a site's tables, medians and widths
_HAS_FACTOR = np.array([name in BY_NETWORK for name in NAMES])


def fit(rows: MeasuredCalls, nodes: Mapping[str, float], medians: Array, widths: Array) -> tuple[Array, Array]:
    """Logarithms of the parameters of one site on its network, and their variances."""
    calls, log_us = rows.measured.calls, np.log(rows.measured.times_us)
    weight, times = min(1.0, MOST_ROWS / len(rows)), TimesOfCalls(calls)
    nodes = {**nodes, **{name: 1.0 for name in nodes if name.partition(".")[2] in NETWORKS}}

    def named(vector: Array) -> dict[str, float]:
        return dict(zip(NAMES, np.exp(vector).tolist(), strict=True))

    def off(times_us: Array) -> Array:
        return np.asarray(np.sqrt(weight) * softened((log_us - np.log(times_us)) / SCATTER))

    def residuals(vector: Array) -> Array:
        return np.concatenate([off(times.times_us({**nodes, **named(vector)})), (vector - medians) / widths])

    def slope(vector: Array) -> Array:
        steps = STEP * np.maximum(1.0, np.abs(vector)) * np.where(vector < 0, -1, 1)
        beside, values = vector + steps, {**nodes, **named(vector)}
        risen = off(times.times_us_each_changed(values, named(beside))) - off(times.times_us(values))
        return np.vstack([(risen / (beside - vector)[:, None]).T, np.diag(1 / widths)])

    found = least_squares(residuals, medians, jac=slope, max_nfev=60)
    return found.x, np.diag(np.linalg.inv(found.jac.T @ found.jac))


def in_common(of_sites: Sequence[SiteTables], known: Fits | None = None) -> tuple[Array, Array]:
    """Medians of the parameters ``NAMES`` over sites, natural logarithms, [network, parameter], and their widths.

    Networks differ in the parameters that have a factor. Of these, what is believed counts as one site of NCCL's own
    network, and the latter's median as one site of another network. ``known`` holds fits that were made, whichever
    sites were left out: all begin from the same beliefs.
    """
    known = {} if known is None else known
    believed = np.array([np.log(BELIEFS[name].median) for name in NAMES])
    believed_sd = np.array([BELIEFS[name].log_sd for name in NAMES])
    networks = np.array([each.network for each in of_sites])
    medians, widths = np.tile(believed, (len(NETWORKS), 1)), believed_sd
    for _ in range(ROUNDS):
        keys = [(id(each), medians[each.network].tobytes(), widths.tobytes()) for each in of_sites]
        for each, key in zip(of_sites, keys, strict=True):
            if key not in known:
                known[key] = fit(each.rows, each.nodes, medians[each.network], widths)
        found, variances = (np.stack(each) for each in zip(*(known[key] for key in keys), strict=True))
        told = np.clip(1 - variances / widths**2, 1e-6, 1.0)
        medians = np.tile(_median(found, told, believed), (len(NETWORKS), 1))
        medians[0, _HAS_FACTOR] = _median(found[networks == 0], told[networks == 0], believed)[_HAS_FACTOR]
        for other in range(1, len(NETWORKS)):
            of_network = _median(found[networks == other], told[networks == other], medians[0])
            medians[other, _HAS_FACTOR] = of_network[_HAS_FACTOR]
        spread = ((found - medians[networks]) ** 2 + variances).sum(axis=0) + PRIOR_SITES * believed_sd**2
        widths = np.sqrt(spread / (len(of_sites) + PRIOR_SITES))
    return medians, widths


def _median(found: Array, told: Array, believed: Array) -> Array:
    """Means over sites, [parameter], each as far as its site tells; ``believed`` counts as one more site."""
    mean: Array = ((told * found).sum(axis=0) + believed) / (told.sum(axis=0) + 1)
    return mean


def parameters_of(medians: Array) -> dict[str, float]:
    """The form's parameters from the medians of :func:`in_common`: those of NCCL's own network, and the factors."""
    of_own = dict(zip(NAMES, np.exp(medians[0]).tolist(), strict=True))
    factors = np.exp(medians - medians[0])
    of_networks = {
        f"{name}.{network}": float(factors[number, at])
        for number, network in enumerate(NETWORKS[1:], 1)
        for at, name in enumerate(NAMES)
        if name in BY_NETWORK
    }
    return {**of_own, **of_networks}


@dataclass(frozen=True, slots=True, eq=False)
class HeldTable:
    """A table of a site, one call of each kind, [call], with the parameters that were learnt without the site.

    ``health`` is ``degraded`` too where the site is judged only; ``unfitted``: no parameters are learnt from its site.
    """

    site: str
    table: str
    health: str
    unfitted: bool
    parameters: Mapping[str, float]
    calls: Features
    times_us: Array
    nccl_us: Array

    @property
    def is_healthy(self) -> bool:
        """Whether widths of intervals are learnt from it, and have to hold it."""
        return self.health == MeasuredHealth.healthy


def held_tables() -> list[HeldTable]:
    """All tables of ``tables/splits.toml``; a few minutes for the first time, then from ``build/sites``."""
    made_by = (SiteTables, _between, fit, in_common, _median, parameters_of, _held, _left_out)
    key = hashlib.sha256("".join(inspect.getsource(each) for each in made_by).encode())
    model = Path(features.__file__), Path(form.__file__)
    for path in (folder() / "splits.toml", *model, *sorted((folder() / "measured").iterdir())):
        key.update(path.read_bytes())
    kept = CACHE / f"{key.hexdigest()[:16]}.pickle"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # As tuples: a script's own class cannot be read by another script.
        kept.write_bytes(pickle.dumps([tuple(getattr(each, f.name) for f in fields(HeldTable)) for each in _held()]))
    return [HeldTable(*each) for each in pickle.loads(kept.read_bytes())]


def _held() -> list[HeldTable]:
    every, found, known = all_sites(), [], Fits()
    of_none = _left_out(every, "", known)
    for name, site in every.items():
        medians = of_none if site.is_unfitted else _left_out(every, name, known)
        parameters = {**site.nodes, **parameters_of(medians)}
        for table, rows in site.tables.items():
            calls = rows.measured.calls
            first, kind = first_of_kinds(calls)
            times_us = np.array([np.median(rows.measured.times_us[kind == at]) for at in range(len(first))])
            health = MeasuredHealth.degraded if site.judged_only else measured.load(table).header.health
            held = name, table, str(health), site.is_unfitted, parameters, calls[first], times_us, rows.nccl_us[first]
            found.append(HeldTable(*held))
    return found


def _left_out(every: Mapping[str, SiteTables], left_out: str, known: Fits) -> Array:
    """Medians of the parameters over the other sites, natural logarithms, [network, parameter]."""
    return in_common([site for name, site in every.items() if name != left_out and not site.is_unfitted], known)[0]


def updates() -> list[SiteUpdate]:
    """Each table of each site, given rows as ``GIVEN`` says; a few seconds once the tables are kept."""
    every, found = _predicted(), []
    for each in every:
        factors = learnt_widening([one for one in every if one.site != each.site])[each.given]
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
                known_slow=not each.is_healthy,
            )
        )
    return found


def ratios_inside(left_out: str, tables: tuple[str, str]) -> dict[int, float]:
    """Shares of the ratios of two tables' times, of two releases, that lie in their interval, by the rows given.

    Nothing was learnt from the tables' site; the rows are of the first table.
    """
    every = all_sites()
    medians, _ = in_common([each for name, each in every.items() if name != left_out and not each.is_unfitted])
    parameters = {**every[left_out].nodes, **parameters_of(medians)}
    of_tables = [every[left_out].tables[table].measured for table in tables]
    firsts = [first_of_kinds(each.calls)[0] for each in of_tables]
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


def first_of_kinds(calls: Features) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The number of the first call of each kind, [kind], and the kind of each, [call]."""
    kinds = np.stack([calls.collective, calls.algo_proto, calls.ranks, calls.nodes, calls.bytes])
    _, first, kind = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    return first, kind.ravel()


def learnt_widening(of_tables: Sequence[_Updated]) -> dict[int, tuple[float, float]]:
    """Factors, by rows of a site, that intervals are widened by so that they hold the share ``HELD`` of healthy tables.

    The first near the rows, where these say half of what there is to know or more; the second far from them. Each site
    counts as much as another. With no rows there is nothing near.
    """
    healthy = [each for each in of_tables if each.is_healthy]

    def needed(given: int, near: bool) -> float:
        parts = [(each.site, each.ratios[(each.left <= 0.5) == near]) for each in healthy if each.given == given]
        rows_of = Counter(site for site, ratios in parts for _ in ratios)
        ratios = np.concatenate([ratios for _, ratios in parts])
        weights = np.concatenate([np.full(len(ratios), 1 / rows_of[site]) for site, ratios in parts if len(ratios)])
        order = np.argsort(ratios)
        return float(np.interp(HELD, np.cumsum(weights[order]) / weights.sum(), ratios[order]))

    found = {}
    for given in GIVEN:
        far = needed(given, near=False)
        found[given] = (min(needed(given, near=True), far) if given else far, far)
    return found


def _predicted() -> list[_Updated]:
    return [_updated(held, given) for held in held_tables() for given in GIVEN if len(held.calls) > given]


def _updated(held: HeldTable, given: int) -> _Updated:
    process, chosen = sites.SiteProcess(held.parameters), np.zeros(0, np.intp)
    if given:
        chosen = np.array(process.telling(held.calls, given))
        rows = sites.rows_of(held.calls[chosen], held.times_us[chosen], held.parameters)
        process = sites.SiteProcess(held.parameters, rows, widening={0: (1.0, 1.0)})
    else:
        process = sites.SiteProcess(held.parameters, widening={0: (1.0, 1.0)})
    judged = np.setdiff1d(np.arange(len(held.calls)), chosen)
    calls, times_us = held.calls[judged], held.times_us[judged]
    log_us, half = process.corrected(calls)
    nccl = np.abs(held.nccl_us[judged] / times_us - 1)
    large, left = calls.bytes >= LARGE_BYTES, process.left(calls)
    off = log_us - np.log(times_us)
    return _Updated(held.site, held.table, held.is_healthy, given, off, np.asarray(half), left, nccl, large)


HEAD = """\
# What the sites of splits.toml have in common between nodes: written by 'python -m tests.scripts.fit_network'.
#
# parameters   median and width (of the natural logarithm) of each, as tuner/times/timemodel/form.py names them; with a
#              network's name the factor by which that network differs from NCCL's own over InfiniBand and RoCE
# widening     factors of intervals near the rows of a site and far from them, by how many rows these are
"""


def learnt() -> str:
    """The content of ``tables/between_nodes.toml``: from every site that parameters are learnt from."""
    medians, widths = in_common([each for each in all_sites().values() if not each.is_unfitted])
    of_names = dict(zip(NAMES, widths.tolist(), strict=True))
    lines = [HEAD, "[parameters]"]
    for name, median in parameters_of(medians).items():
        key = f'"{name}"' if "." in name else name
        lines.append(f"{key} = [{median:.4g}, {of_names[name.partition('.')[0]]:.3g}]")
    lines += ["", "[widening]"]
    lines += [f"{rows} = [{near:.3g}, {far:.3g}]" for rows, (near, far) in learnt_widening(_predicted()).items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """A few minutes."""
    (folder() / "between_nodes.toml").write_text(learnt(), encoding="utf-8")


if __name__ == "__main__":
    main()
