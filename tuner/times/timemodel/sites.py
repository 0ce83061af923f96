"""Models times between nodes: what all sites have in common, how much sites differ, and what the measured rows of one
site show about it.

What a network adds differs from site to site by far more than NVLink does: Ring reaches 82 % of the line rate at one
site of B200 nodes and 100 % at another. So the logarithm of a time between nodes is modelled as a Gaussian process
around a base. The base is a weighted geometric mean of two times with different errors: NCCL's own time, and the form's
time with the sites' median network parameters. NCCL's bandwidths are near those of healthy networks, so NCCL's time has
the most weight for large calls. For collectives and algorithms that were never measured between nodes at any site, the
base is NCCL's own time alone. The covariances say by how much a site may differ, and which of its calls differ
together: those bound by bandwidth, those bound by latency, those of one algorithm, those of one combination at similar
sizes; all fall with the distance in nodes and in GPUs per node. The measured rows of a site condition the process: one
row moves the times of similar calls, and many rows make the site known. For calls far from the rows (in size, nodes or
combination), the process gives a wide interval by itself. Rows of other clusters of the same instance type are applied
before the site's own. They move the base only for their own collectives and sizes, because they do not help with
others. How far a site as a whole is off is not known beforehand. So all variances of a site share a factor that the
site's rows help to estimate, and the times follow Student's t.

Shapes: arrays have one element per call, [call], or per row of the site, [row of the site]. Covariances and standard
deviations refer to natural logarithms of times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective
from tuner.times.timemodel.features import (
    PROTOCOLS,
    Array,
    Features,
    Numbers,
    Which,
    exp,
    least,
    log,
    log2,
    most,
    sqrt,
    where,
)
from tuner.times.timemodel.form import Form, learnt_between_nodes
from tuner.times.timemodel.intervals import COVERED_SDS

# Standard deviations of what differs between sites. They are round numbers near those that make the rows of 27 healthy
# tables likeliest ('benchmarks/sites.py --likelihood'), moved to where errors at sites that are left out are smallest,
# which benchmarks/sites.py prints.
LEVEL_SD = 0.1  # of all calls between nodes of a site,
COMBINATION_LEVEL_SD = 0.09  # of the calls of one algorithm and protocol compared with the others,
ALL_SD = 0.2  # and of calls with similar sizes
ALL_OCTAVES = 3.0
BANDWIDTH_SD = 0.15  # of calls as far as they are limited by bandwidth
LATENCY_SD = 0.3  # of calls as far as they are limited by latency
ALGORITHM_SD = 0.12  # the same for the bandwidth of one algorithm compared with the others
COMBINATION_LATENCY_SD = 0.18
CURVE_SD = 0.5  # of the curve of a combination over sizes
CURVE_OCTAVES = 3.0
COLLECTIVE_SD = 0.03  # of a collective compared with others on the same ring,
COLLECTIVE_BANDWIDTH_SD = 0.015  # and of its bandwidth
LEFT = 0.25  # share of the deviations that bandwidth does not cause, for calls limited by bandwidth alone
GPUS_OWN, NODES_OWN = 0.55, 0.35  # shares of all variances that only similar shapes have in common
GPUS_DOUBLINGS = 1.0  # GPUs per node within this distance are similar,
NODES_SD = 0.07  # of the bandwidth, for each doubling of the nodes
NODES_DOUBLINGS = 2.5  # and nodes within this distance
NOISE_SD = 0.07  # of one row,
DAY_SD = 0.07  # and of the same call on another day between two nodes; two fifths more with each doubling of the nodes
NOISE_LEFT = 0.15  # share of either for calls limited by bandwidth alone
DAY_DOUBLING = 0.4
RELEASE_SD = 0.15  # of the same call with another release than that of any row, less if bandwidth limits it
# The share of a site's deviations that is left if other clusters of its instance type were measured. With it, intervals
# hold nine tenths or more of each table of such a type, predicted from the others' rows (benchmarks/sites.py).
TYPE_LEFT = 0.8
TYPE_OCTAVES = 1.0  # for sizes outside of these rows, the rows count less with each distance of this length
UNKNOWN_SD = 0.45  # for what was never measured between nodes anywhere
SCALE_FREEDOM = 4.0  # degrees of freedom of the factor that all variances of a site share
# Factors by which intervals are widened for a number of rows of a site, so that they hold the share HELD of the calls
# of healthy sites that were left out (tests/scripts/fit_network.py): near the rows, which leave a quarter of a call's
# variance or less, and far from them, where they leave three quarters or more. In between, the factor is interpolated
# by the logarithm of the number of rows and by what they leave.
WIDENING: Mapping[int, tuple[float, float]] = {
    int(rows): (near, far) for rows, (near, far) in learnt_between_nodes()["widening"].items()
}
NEAR, FAR = 0.25, 0.75
# Share by which a site's intervals, far from its rows, may be wider than those of a site without any rows
MOST_WIDER = 1.0
# from this number of rows a site is known so well that splits of the rows show how wide intervals of similar calls are
MANY_ROWS = 32
# Of the base, to either side, by ``NETWORKS``: a factor of 2.5, and one of 5.
MOST_FROM_NCCL = (0.9, 1.6, 1.6)
# Weight of NCCL's own time in the base: it rises with the share that bandwidth has of NCCL's time, as its bandwidths
# are near what healthy networks have, and its latencies are not; by a power of it, as what is in between NCCL takes for
# too fast. Over networks of other software, by ``NETWORKS``, its latencies say little: they are InfiniBand's. With no
# weight at all, where form and NCCL differ most, larger calls would take less time than smaller ones.
NCCL_WEIGHTS, NCCL_WEIGHT_LARGE, NCCL_POWER = (0.3, 0.1, 0.1), 0.9, 8
# How far sites are off altogether before any row is known, by ``NETWORKS``, beside those on NCCL's own; and NVLink
# domains of more than one host, of which none is among the sites that parameters are learnt from.
SPREADS, MOST_GPUS, DOMAIN_SPREAD = (1.0, 1.4, 1.4), 16, 1.6
STEP_SHARE = 0.01  # the share by which parameters are changed to see what a time depends on
# Median errors of tables whose site is left out, in the process's standard deviations, with 0, 1 or 4 known rows
# (benchmarks/sites.py): most sites are less extreme than the deviations, which a few extreme sites determine.
ERROR_SDS = 0.27
KNOWN_SD = 0.017  # of what a site has of its own in the time of a call that is known well enough
TABLE_POINTS = 256  # points on which sizes are computed, if more calls than this of a kind are asked for

# What rows of some site show between nodes; of Tree and NVLSTree, NCCL only has AllReduce.
_KNOWN = np.zeros((len(Collective), len(Algorithm)), np.bool_)
_KNOWN[[Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter], Algorithm.Ring] = True
_KNOWN[Collective.AllReduce, [Algorithm.Tree, Algorithm.NVLSTree]] = True
_KNOWN_KINDS = frozenset(zip(*(each.tolist() for each in np.nonzero(_KNOWN)), strict=True))
LATENCIES = (
    *("net_ll_hop_us", "net_ll_rendezvous_us", "net_simple_hop_us", "net_simple_rendezvous_us"),
    *("tree_hop_us", "tree_rendezvous_us", "nvls_tree_hop_us", "pat_hop_us"),
)


@dataclass(frozen=True, eq=False)  # no slots, so that what its rows have in common is kept
class SiteRows:
    """Rows measured at one site, as the process compares them, [row]: the medians of similar rows.

    For one call, the fields are single numbers.

    ``log_off``: logarithm of the measured over the base's time, both in us; ``bandwidth`` and ``latency``: the shares
    of the base's time, 0 to 1, that depend on the network's bandwidth and on its latencies. ``collective`` and
    ``algo_proto`` are NCCL's numbers.
    """

    collective: Numbers
    algo_proto: Numbers
    gpus_per_node: Numbers
    nodes: Numbers
    log2_bytes: Numbers
    bandwidth: Numbers
    latency: Numbers
    log_off: Numbers

    def __len__(self) -> int:
        return len(self.log_off)

    def __getitem__(self, which: Which) -> "SiteRows":
        return SiteRows(*(getattr(self, field.name)[which] for field in fields(self)))

    def joined(self, other: "SiteRows") -> "SiteRows":
        """Joins the rows of both as rows of one site."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return SiteRows(*(np.concatenate(pair) for pair in pairs))

    @cached_property
    def kinds(self) -> frozenset[tuple[int, int, int, int]]:
        """The distinct sets of collective, combination, GPUs per node and nodes among the rows."""
        columns = self.collective, self.algo_proto, self.gpus_per_node, self.nodes
        return frozenset(zip(*(column.tolist() for column in columns), strict=True))

    @cached_property
    def log2_sizes(self) -> Mapping[tuple[int, int], tuple[float, float]]:
        """Logarithms of the least and the most bytes, by collective and combination."""
        sizes = {}
        for collective, algo_proto in {kind[:2] for kind in self.kinds}:
            alike = self.log2_bytes[(self.collective == collective) & (self.algo_proto == algo_proto)]
            sizes[collective, algo_proto] = float(alike.min()), float(alike.max())
        return sizes


def base(calls: Features, moved: Sequence[Form]) -> tuple[Numbers, SiteRows]:
    """The base of calls between nodes: the logarithms of its times in us, [call], and the calls as rows.

    The rows take just the base's times. ``moved`` are the three forms that :func:`_moved` makes.
    """
    known = is_known(calls.collective, calls.algorithm)
    log_form, less_bandwidth, more_latency = (log(form.times_us(calls)) for form in moved)
    log_nccl = _log_nccl(calls, log_form)
    nccl_latency = _nccl_latency(calls, log_nccl)
    bandwidth = least(most((less_bandwidth - log_form) / STEP_SHARE, 0.0), 1.0)
    latency = least(most((more_latency - log_form) / STEP_SHARE, 0.0), 1.0)
    weight = where(known, _nccl_weight(nccl_latency, calls.network), 1.0)
    kind: Sequence[Numbers] = (calls.collective, calls.algo_proto, calls.ranks / calls.nodes, calls.nodes)
    log_off: Numbers = 0.0
    if isinstance(calls.bytes, np.ndarray):
        kind = [np.broadcast_to(np.round(each), len(calls)).astype(np.int64) for each in kind]
        log_off = np.zeros(len(calls))
    collective, algo_proto, gpus_per_node, nodes = kind
    rows = SiteRows(
        collective,
        algo_proto,
        gpus_per_node,
        nodes,
        log2(calls.bytes),
        weight * (1 - nccl_latency) + (1 - weight) * bandwidth,
        weight * nccl_latency + (1 - weight) * latency,
        log_off,
    )
    return _middle(calls, log_form, log_nccl), rows


def _nccl_latency(calls: Features, log_nccl: Numbers) -> Numbers:
    """Share of NCCL's own time that is latency, 0 to 1, [call]."""
    latency_us = most(calls.nccl_latency_us - calls.adapter_us * (1 - calls.adapter_share), 0.0)
    return least(latency_us / exp(log_nccl), 1.0)


def _nccl_weight(nccl_latency: Numbers, network: Numbers) -> Numbers:
    """Weight of NCCL's own time in the base, 0 to 1, [call], by the share of it that is latency."""
    risen, small = (1 - nccl_latency) ** NCCL_POWER, _of_network(NCCL_WEIGHTS, network)
    return small + (NCCL_WEIGHT_LARGE - small) * risen


def _spreads(calls: Features) -> Numbers:
    """How far the site of each call is off altogether before any row is known, [call]: 1 or more."""
    of_domain = where(calls.ranks / calls.nodes > MOST_GPUS, DOMAIN_SPREAD, 1.0)
    return _of_network(SPREADS, calls.network) * of_domain


def _of_network(values: tuple[float, ...], network: Numbers) -> Numbers:
    """The value of each call's network, [call]."""
    return np.array(values)[network] if isinstance(network, np.ndarray) else values[network]


def _moved(parameters: Mapping[str, float]) -> tuple[Form, Form, Form]:
    """Forms that show what times depend on: with the given parameters, less bandwidth, and more latency."""
    less, more = np.exp(-STEP_SHARE), np.exp(STEP_SHARE)
    latencies = {name: float(parameters[name] * more) for name in LATENCIES}
    less_bandwidth = {**parameters, "net_share": float(parameters["net_share"] * less)}
    return Form(parameters), Form(less_bandwidth), Form({**parameters, **latencies})


def _log_nccl(calls: Features, log_form: Numbers) -> Numbers:
    """Logarithms of NCCL's own times, us, with the real latency of adapters, [call]; the form's where NCCL has none."""
    nccl_us = calls.nccl_us - calls.adapter_us * (1 - calls.adapter_share)
    if not isinstance(nccl_us, np.ndarray):
        return math.log(nccl_us) if nccl_us > 0 else log_form
    return np.log(nccl_us, out=log_form.copy(), where=nccl_us > 0)


def _middle(calls: Features, log_form: Numbers, log_nccl: Numbers) -> Numbers:
    """The logarithms of the base's times in us, [call]."""
    of_form = (log_form - log_nccl) * (1 - _nccl_weight(_nccl_latency(calls, log_nccl), calls.network))
    off = where(is_known(calls.collective, calls.algorithm), of_form, 0.0)
    furthest = _of_network(MOST_FROM_NCCL, calls.network)
    return log_nccl + least(most(off, -furthest), furthest)


def is_known(collective: Numbers, algorithm: Numbers) -> Numbers:
    """Whether rows of some site have such calls between nodes; collectives and algorithms are ids, numbers [call]."""
    if isinstance(collective, np.ndarray) or isinstance(algorithm, np.ndarray):
        return _KNOWN[collective, algorithm]
    return (collective, algorithm) in _KNOWN_KINDS


def rows_of(calls: Features, times_us: Array, parameters: Mapping[str, float]) -> SiteRows:
    """The rows of one site from calls between nodes and their times; equal calls within half an octave become one."""
    log_us, rows = base(calls, _moved(parameters))
    rows = replace(rows, log_off=np.log(times_us) - log_us)
    columns = (rows.collective, rows.algo_proto, rows.gpus_per_node, rows.nodes, np.round(rows.log2_bytes * 2))
    _, group = np.unique(np.stack([column.astype(np.int64) for column in columns]), axis=1, return_inverse=True)
    group = group.ravel()
    first = np.array([np.flatnonzero(group == at)[0] for at in range(group.max() + 1)])
    means = {
        name: np.array([np.median(getattr(rows, name)[group == at]) for at in range(len(first))])
        for name in ("log2_bytes", "bandwidth", "latency", "log_off")
    }
    return replace(rows[first], **means)


class SiteProcess:
    """The Gaussian process, conditioned on the rows of a site; without rows it describes a site that nobody has
    measured.

    ``parameters`` are the form's parameters; ``widening`` has the form of ``WIDENING``. ``type_rows``: rows of other
    clusters of the site's instance type.
    """

    def __init__(
        self,
        parameters: Mapping[str, float],
        rows: SiteRows | None = None,
        widening: Mapping[int, tuple[float, float]] = WIDENING,
        type_rows: SiteRows | None = None,
    ) -> None:
        self.parameters = parameters
        self.widening = widening
        self._measured = rows, type_rows
        self._type = _TypeRows(parameters, type_rows) if type_rows is not None and len(type_rows) else None
        self.rows = rows if rows is not None and len(rows) else None
        if self.rows is not None and self._type is not None:
            self.rows = replace(self.rows, log_off=self.rows.log_off - self._type.moved(self.rows))

    def corrected(self, calls: Features, *, another_release: bool = False) -> tuple[Numbers, Numbers]:
        """Logarithms of times between nodes in us, and half of their 90 % intervals, [call], or of the one call.

        ``another_release``: whether no row is from the release of the calls.
        """
        if not isinstance(calls.bytes, np.ndarray) or len(calls) <= TABLE_POINTS:
            log_us, rows = base(calls, self._forms)
            moved, half = self._posterior(rows, _spreads(calls), another_release)
            return log_us + moved, half
        # The site's effect is smooth over sizes: it is computed at some sizes and interpolated between them.
        log_form = np.log(self._forms[0].times_us(calls))
        log_us = _middle(calls, log_form, _log_nccl(calls, log_form))
        halves, log2_bytes = np.empty(len(calls)), np.log2(calls.bytes)
        for which in _kinds_of(calls):
            order = which[np.argsort(log2_bytes[which])]
            points = order[np.unique(np.linspace(0, len(order) - 1, TABLE_POINTS).astype(np.int64))]
            some = calls[points]
            moved, half = self._posterior(self._rows(some), _spreads(some), another_release)
            log_us[which] += np.interp(log2_bytes[which], log2_bytes[points], moved)
            halves[which] = np.interp(log2_bytes[which], log2_bytes[points], half)
        return log_us, halves

    @cached_property
    def _forms(self) -> tuple[Form, Form, Form]:
        return _moved(self.parameters)

    def _rows(self, calls: Features) -> SiteRows:
        return base(calls, self._forms)[1]

    def calls(self, calls: Features) -> list["SiteCall"]:
        """The calls in the form in which the process compares them with other calls of the site."""
        rows, spreads = self._rows(calls), np.broadcast_to(_spreads(calls), len(calls)).tolist()
        return [SiteCall(self, rows[np.array([at])], spreads[at]) for at in range(len(calls))]

    def telling(self, calls: Features, count: int) -> list[int]:
        """The indices of the ``count`` calls that tell most about all of them once they are measured, the best first.

        The calls are chosen one after the other. Each is the call whose measurement, added to those before it, makes
        the mean logarithm of all calls' deviations smallest. Because of the logarithm, a call known to a few percent
        counts as much as one known to a factor of 2. Reducing a deviation further below ``KNOWN_SD`` gains nothing.
        """
        rows = self._rows(calls)
        covariances, noise = self._covariances_left(rows), _noise(rows)
        chosen: list[int] = []
        for _ in range(min(count, len(calls))):
            spared = covariances**2 / (np.diag(covariances) + noise)  # [call of all, call that may be measured]
            variances = np.maximum(np.diag(covariances)[:, None] - spared, 0.0)
            left = np.log(variances + KNOWN_SD**2).sum(axis=0)
            left[chosen] = np.inf
            chosen.append(int(np.argmin(left)))
            covariances = _without(covariances, noise, chosen[-1])
        return chosen

    def errors_to_expect(self, calls: Features, chosen: Sequence[int]) -> list[float]:
        """Median errors of the calls, shares of their times: before any of ``chosen`` is measured, and after each."""
        rows = self._rows(calls)
        covariances, noise = self._covariances_left(rows), _noise(rows)
        errors = []
        for at in (None, *chosen):
            covariances = covariances if at is None else _without(covariances, noise, at)
            sds = np.sqrt(np.maximum(np.diag(covariances), 0.0) + noise)
            errors.append(float(np.expm1(ERROR_SDS * np.median(sds))))
        return errors

    @property
    def log_likelihood(self) -> float:
        """Logarithm of how likely the site's rows are, together, except for a constant; 0 without rows."""
        if self.rows is None:
            return 0.0
        freedom, count = SCALE_FREEDOM, len(self.rows)
        half_log_determinant = -0.5 * float(np.linalg.slogdet(self._precision)[1])
        ratio = 1 + self._rows_scale / freedom
        constant = math.lgamma((freedom + count) / 2) - math.lgamma(freedom / 2) - count / 2 * math.log(freedom)
        return constant - half_log_determinant - (freedom + count) / 2 * math.log(ratio)

    def is_of_site(self, other: "SiteProcess") -> bool:
        """Whether the other process has the same rows, or neither has rows and both describe an unmeasured site."""
        of_both = zip(self._measured, other._measured, strict=True)
        return all(
            one is another if one is None or another is None else np.array_equal(one.log_off, another.log_off)
            for one, another in of_both
        )

    def half_of_ratio(self, one: SiteRows, other: SiteRows, spread: float) -> float:
        """Half of the 90 % interval of the logarithm of the ratio of two calls' times at one site, a day apart.

        ``spread``: how far the site is off altogether, before any row is known (:func:`_spreads`).
        """
        both = one.joined(other)
        covariances = self._covariances_left(both)
        variance = covariances[0, 0] + covariances[1, 1] - 2 * covariances[0, 1] + _alone(both).sum()
        # What two calls have in common needs no widening; where single times need less, their ratio does, too.
        of_sites = min(1.0, self._widening[0][1]) * self._covered(spread) * np.sqrt(max(variance, 0.0))
        return float(np.hypot(of_sites, COVERED_SDS * np.sqrt(_another_time(both).mean())))

    def _covariances_left(self, rows: SiteRows) -> Array:
        """The covariances that remain after the site's own rows, and those of other clusters of its type, are taken
        into account, [row, row]."""
        left = _covariances(rows, rows)
        if self.rows is not None:
            across = _covariances(rows, self.rows)
            left = left - across @ self._precision @ across.T
        if self._type is not None:
            sds = np.sqrt(self._type.left(rows))
            left = left * np.outer(sds, sds)
        return left

    def _posterior(self, asked: SiteRows, spread: Numbers, another_release: bool) -> tuple[Numbers, Numbers]:
        """The amount that the site adds to the logarithms of the base, and half of the 90 % intervals, [call]."""
        noise, variances = _alone(asked), _variances(asked)
        before, moved, left = variances + noise, asked.bandwidth * 0.0, variances
        if self.rows is not None:
            moved, explained = self._explained(asked)
            left = most(variances - explained, 0.0)
        far = most(left / variances - NEAR, 0.0) / (1 - NEAR)
        if self._type is not None:
            share = self._type.left(asked)
            moved, left, before = moved + self._type.moved(asked), left * share, variances * share + noise
        # Days differ by different amounts at a site with extreme rows and at an average one.
        left = left + noise
        alike = self.has_measured(asked.collective, asked.algo_proto)
        if isinstance(alike, np.ndarray):
            wider = np.where(alike, *(widened(factors, left / before) for factors in self._widening))
        else:
            wider = widened(self._widening[not alike], left / before)
        wider = wider * self._covered(spread)
        day = COVERED_SDS**2 * _another_time(asked, another_release)
        if self.rows is None:
            return moved, sqrt(wider * wider * left + day)
        # A site with extreme rows has wide intervals, but near a row none is wider than it was without the row.
        of_none = spread * _student_t95(SCALE_FREEDOM) * self._widening_of(0)[1]
        most_wide = of_none * (1 + MOST_WIDER * far)
        half_square = least(wider * wider * left, most_wide * most_wide * before)
        return moved, sqrt(half_square + day)

    def has_measured(self, collective: Numbers, algo_proto: Numbers) -> Numbers:
        """Whether any row has the collective and the combination, numbers of NCCL, [call]."""
        kinds = () if self.rows is None else self.rows.log2_sizes
        if not isinstance(collective, np.ndarray):
            return (collective, algo_proto) in kinds
        together = np.array([one * len(ALGO_PROTOS) + other for one, other in kinds], np.int64)
        return np.isin(collective * len(ALGO_PROTOS) + algo_proto, together)

    def squares(self, calls: Features, *, another_release: bool) -> tuple[Array, Array]:
        """Squares of half of the 90 % intervals of logarithms of times, [call]; two numbers for each.

        The square is the sum of the two. The first number is what another day adds, and with ``another_release``
        another release. The second is the rest, as it is before it is widened.
        """
        rows, type_rows = self._measured
        unwidened = SiteProcess(self.parameters, rows, {0: (1.0, 1.0)}, type_rows)
        _, half = unwidened.corrected(calls, another_release=another_release)
        apart = COVERED_SDS**2 * _another_time(self._rows(calls), another_release)
        return apart, half**2 - apart

    def _explained(self, asked: SiteRows) -> tuple[Numbers, Numbers]:
        """The amount that the rows add to the logarithms of times, and the amount by which they reduce the variance,
        [call]."""
        assert self.rows is not None
        if isinstance(asked.bandwidth, np.ndarray):
            across = _covariances(asked, self.rows)
            return across @ self._weights, ((across @ self._precision) * across).sum(axis=-1)
        kind = asked.collective, asked.algo_proto, asked.gpus_per_node, asked.nodes
        if (explained := self._of_kinds.get(kind)) is None:
            explained = self._of_kinds[kind] = _RowsOfKind(_Kinship(asked, self.rows), self.rows, self._precision)
        return explained.of_call(asked)

    @cached_property
    def _of_kinds(self) -> dict[tuple[float, ...], "_RowsOfKind"]:
        return {}

    def left(self, calls: Features) -> Array:
        """The part of each call's variance that is left given the site's rows: numbers from 0 to 1, [call]."""
        asked = self._rows(calls)
        alone = _alone(asked)
        variances = _variances(asked) * (1.0 if self._type is None else self._type.left(asked))
        return np.asarray((np.diag(self._covariances_left(asked)) + alone) / (variances + alone))

    def _covered(self, spread: Numbers) -> Numbers:
        """Half of a 90 % interval in standard deviations, [call]: the rows' errors tell those of all calls.

        ``spread``: how far the site is off altogether, before any row is known (:func:`_spreads`).
        """
        count = 0 if self.rows is None else len(self.rows)
        freedom = SCALE_FREEDOM + count
        scale = SCALE_FREEDOM * spread * spread + self._rows_scale
        return _student_t95(freedom) * sqrt(scale / freedom)

    @cached_property
    def _rows_scale(self) -> float:
        """Square sum of the rows' errors in standard deviations that are expected of them; 0 without rows."""
        return 0.0 if self.rows is None else float(self.rows.log_off @ self._weights)

    @cached_property
    def _widening(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Factors of intervals of single times, near the rows and far; what two have in common needs no widening.

        The first are for collectives and combinations that have rows, the second for others, about which many rows tell
        no more than the process.
        """
        near, far = self._widening_of(0 if self.rows is None else len(self.rows))
        of_none = self._widening_of(0)
        return (near, far), (max(near, of_none[0]), max(far, of_none[1]))

    def _widening_of(self, rows: int) -> tuple[float, float]:
        """Factors near the rows and far, by the number of rows."""
        known = np.log1p(rows)
        near, far = (
            float(np.interp(known, np.log1p(list(self.widening)), each))
            for each in zip(*self.widening.values(), strict=True)
        )
        return near, far

    @cached_property
    def _precision(self) -> Array:
        """The inverse of the covariances of the site's rows, [row, row]."""
        assert self.rows is not None
        noisy = _covariances(self.rows, self.rows) + np.diag(_noise(self.rows))
        return np.asarray(np.linalg.inv(noisy), np.float64)

    @cached_property
    def _weights(self) -> Array:
        assert self.rows is not None
        weights: Array = self._precision @ self.rows.log_off
        return weights


class _TypeRows:
    """How rows of other clusters with a site's instance type change what is expected of the site's calls."""

    def __init__(self, parameters: Mapping[str, float], rows: SiteRows) -> None:
        self._process = SiteProcess(parameters, rows)
        self._first, self._last = np.full((2, len(Collective)), np.inf)
        self._last = -self._last
        for collective in np.unique(rows.collective):
            log2_bytes = rows.log2_bytes[rows.collective == collective]
            self._first[collective], self._last[collective] = log2_bytes.min(), log2_bytes.max()

    def _weight(self, asked: SiteRows) -> Numbers:
        """From 1 for collectives and sizes of the rows to 0 far from these, [call]."""
        first, last = self._first[asked.collective], self._last[asked.collective]
        octaves = most(most(first - asked.log2_bytes, asked.log2_bytes - last), 0.0) / TYPE_OCTAVES
        return exp(octaves * octaves * -0.5)

    def moved(self, asked: SiteRows) -> Numbers:
        """The amounts that the rows add to the logarithms of the base, [call]."""
        return self._weight(asked) * self._process._explained(asked)[0]

    def left(self, asked: SiteRows) -> Numbers:
        """The share of a site's own variances that these rows leave, [call]: more for calls of other nodes or kinds."""
        known = self._weight(asked) * self._process._explained(asked)[1] / _variances(asked)
        return 1 - (1 - TYPE_LEFT**2) * known


def _without(covariances: Array, noise: Numbers, measured: int) -> Array:
    """The covariances [call, call] that remain after call ``measured`` is measured."""
    column = covariances[:, measured] / np.sqrt(covariances[measured, measured] + noise[measured])
    left: Array = covariances - np.outer(column, column)
    return left


def widened(factors: tuple[float, float], left: Numbers) -> Numbers:
    """The factor that widens intervals, [call].

    ``left``: the share of a call's variance that the site's rows leave. ``factors``: the factors near the rows, where
    they leave little, and far from them.
    """
    near, far = factors
    return near + (far - near) * least(most((left - NEAR) / (FAR - NEAR), 0.0), 1.0)


def _student_t95(freedom: float) -> float:
    """The 95 % quantile of Student's t, of 4 degrees of freedom or more: within 0.1 %.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = COVERED_SDS
    terms = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + terms[0] / (4 * freedom) + terms[1] / (96 * freedom**2) + terms[2] / (384 * freedom**3)


def _kinds_of(calls: Features) -> list[NDArray[np.intp]]:
    """The numbers of the calls of each collective, combination and communicator."""
    columns = calls.collective, calls.algo_proto, calls.ranks, calls.nodes
    if not any(isinstance(column, np.ndarray) for column in columns):
        return [np.arange(len(calls))]
    kinds = np.stack([np.broadcast_to(column, len(calls)) for column in columns])
    _, group = np.unique(kinds, axis=1, return_inverse=True)
    return [np.flatnonzero(group.ravel() == at) for at in range(int(group.max()) + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class SiteCall:
    """One call as the process of its site sees it.

    ``spread``: how far the site is off altogether, before any row is known (:func:`_spreads`).
    """

    process: SiteProcess
    row: SiteRows
    spread: float

    def half_of_ratio(self, other: "SiteCall") -> float | None:
        """Half of the 90 % interval of the logarithm of the times' ratio; None if the sites differ."""
        if not self.process.is_of_site(other.process):
            return None
        return self.process.half_of_ratio(self.row, other.row, max(self.spread, other.spread))


class _Kinship:
    """Covariances that calls of one site have by their kinds, whatever their sizes, [call of one, call of other].

    Each covariance is for a unit of one call's share and includes the share of the other call: ``level``, ``curve``,
    ``collective`` and ``all`` are for ``_unbound``, ``bandwidth`` and ``latency`` for the shares of these. All fall
    with the distance in GPUs per node and in nodes.
    """

    def __init__(self, one: SiteRows, other: SiteRows) -> None:
        def equal(name: str) -> Numbers:
            return np.equal.outer(getattr(one, name), getattr(other, name))

        def near(name: str, doublings: float) -> Numbers:
            apart = np.subtract.outer(np.log2(getattr(one, name)), np.log2(getattr(other, name)))
            return np.exp(-(apart**2) / 2 / doublings**2)

        near_gpus, near_nodes = near("gpus_per_node", GPUS_DOUBLINGS), near("nodes", NODES_DOUBLINGS)
        shape = (1 - GPUS_OWN + GPUS_OWN * near_gpus) * (1 - NODES_OWN + NODES_OWN * near_nodes)
        algorithm = np.equal.outer(one.algo_proto // PROTOCOLS, other.algo_proto // PROTOCOLS)
        same = equal("algo_proto")
        unbound = shape * _unbound(other)
        self.level = unbound * (LEVEL_SD**2 + COMBINATION_LEVEL_SD**2 * same)
        self.curve = unbound * same * CURVE_SD**2
        self.collective = unbound * same * COLLECTIVE_SD**2 * equal("collective")
        self.all = unbound * ALL_SD**2
        doubled = np.minimum.outer(np.log2(one.nodes), np.log2(other.nodes))
        bandwidth = BANDWIDTH_SD**2 + ALGORITHM_SD**2 * algorithm + NODES_SD**2 * doubled
        bandwidth = bandwidth + COLLECTIVE_BANDWIDTH_SD**2 * algorithm * equal("collective")
        self.bandwidth = shape * other.bandwidth * bandwidth
        self.latency = shape * other.latency * (LATENCY_SD**2 + COMBINATION_LATENCY_SD**2 * same)


class _RowsOfKind:
    """A site's rows in their effect on single calls of one kind, which differ only in size and in what limits them.

    The covariances of a call with all rows are a few terms of its own, two for each size of the rows, times numbers of
    the kind. So the products with the rows' precision and errors are computed once.
    """

    def __init__(self, kinship: "_Kinship", rows: SiteRows, precision: Array) -> None:
        self._log2_bytes, size = np.unique(rows.log2_bytes, return_inverse=True)
        of_size = np.equal.outer(np.arange(len(self._log2_bytes)), size)  # arrays [size, row]
        near = (of_size * (kinship.curve + kinship.collective), of_size * kinship.all)
        covariances = np.vstack([kinship.level, kinship.bandwidth, kinship.latency, *near])  # arrays [term, row]
        weighed = covariances @ precision
        self._moved, self._taken = weighed @ rows.log_off, weighed @ covariances.T

    def of_call(self, call: SiteRows) -> tuple[float, float]:
        """The amount that the rows add to the logarithm of a call's time, and the amount by which they reduce its
        variance."""
        octaves = self._log2_bytes - call.log2_bytes
        octaves *= octaves
        curve = np.exp(octaves * _PER_CURVE)
        unbound = _unbound(call)
        common = unbound, call.bandwidth, call.latency
        terms = np.concatenate((common, unbound * curve, unbound * np.exp(octaves * _PER_ALL)))
        return float(terms.dot(self._moved)), float(terms.dot(self._taken.dot(terms)))


def _covariances(one: SiteRows, other: SiteRows) -> Array:
    """The covariance between the errors of calls of one site, [call of one, call of other]."""
    kinship = _Kinship(one, other)
    octaves = np.subtract.outer(one.log2_bytes, other.log2_bytes)
    octaves *= octaves
    of_curve = np.exp(octaves * _PER_CURVE) * (kinship.curve + kinship.collective)
    covariances: Array = (
        _unbound(one)[:, None] * (kinship.level + of_curve + np.exp(octaves * _PER_ALL) * kinship.all)
        + one.bandwidth[:, None] * kinship.bandwidth
        + one.latency[:, None] * kinship.latency
    )
    return covariances


_PER_CURVE, _PER_ALL = -0.5 / CURVE_OCTAVES**2, -0.5 / ALL_OCTAVES**2


def _noise(rows: SiteRows) -> Numbers:
    """The variance of single rows, [row]."""
    sd = NOISE_SD * (1 - (1 - NOISE_LEFT) * rows.bandwidth)
    return sd * sd


def _alone(rows: SiteRows) -> Numbers:
    """The variance of calls that no row tells anything about, [call]: of single rows, and of unmeasured ones."""
    return _noise(rows) + where(is_known(rows.collective, rows.algo_proto // PROTOCOLS), 0.0, UNKNOWN_SD**2)


def _another_time(rows: SiteRows, another_release: bool = False) -> Numbers:
    """The variance that another day adds, and another release, [call]."""
    of_day = DAY_SD * (1 + DAY_DOUBLING * log2(most(rows.nodes / 2, 1.0)))
    of_release = RELEASE_SD if another_release else 0.0
    left = 1 - (1 - NOISE_LEFT) * rows.bandwidth
    return (of_day * of_day + of_release * of_release) * left * left


def _unbound(rows: SiteRows) -> Numbers:
    """Share of deviations that bandwidth does not cause, 0 to 1, [call]: ``LEFT`` where only bandwidth limits."""
    return 1 - (1 - LEFT) * rows.bandwidth


def _variances(rows: SiteRows) -> Numbers:
    """The diagonal of the covariances, [call]."""
    of_bandwidth = BANDWIDTH_SD**2 + ALGORITHM_SD**2 + COLLECTIVE_BANDWIDTH_SD**2 + NODES_SD**2 * log2(rows.nodes)
    unbound = _unbound(rows)
    own = LEVEL_SD**2 + COMBINATION_LEVEL_SD**2 + CURVE_SD**2 + COLLECTIVE_SD**2 + ALL_SD**2
    return (
        rows.bandwidth * rows.bandwidth * of_bandwidth
        + rows.latency * rows.latency * (LATENCY_SD**2 + COMBINATION_LATENCY_SD**2)
        + unbound * unbound * own
    )
