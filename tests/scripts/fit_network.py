"""Prints what ten sites have in common between nodes: medians and widths of the network's parameters in
``tuner/times/timemodel/parameters.py``, which were taken from here by hand.

Each site is fitted with the others' medians and widths as its prior; both are learnt anew from the fits, as far as each
site says something of a parameter, and that is done three times. Sites that are known to be slow are left out.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from tuner.times import measured
from tuner.times.calibration.measured_calls import MeasuredCalls, Site, joined, of_table, table_of_one_way
from tuner.times.calibration.time_fit import softened
from tuner.times.timemodel import calibration
from tuner.times.timemodel.features import Array
from tuner.times.timemodel.form import Form
from tuner.times.timemodel.parameters import PARAMETERS

# By site: the calibration of its nodes, and tables with the machine and release that stand for what they do not say.
SITES = {
    "together": (
        "dgx-b200",
        (
            ("b200-8x-64n__2.29.7__together", "dgx-b200", "2.29.7"),
            ("b200-8x-64n__2.29.7__together-sweep", "dgx-b200", "2.29.7"),
        ),
    ),
    "p5": ("dgx-h100", (("h100-8x-2n__2.22.3__aws-p5", "aws-p5", "2.22.3"),)),
    "oci": ("dgx-h100", (("h100-8x-2n__2.21.5__oci", "oci-h100", "2.21.5"),)),
    "a3mega": ("dgx-h100", (("h100-8x-2n__unknown__a3mega", "dgx-h100", "2.21.5"),)),
    "lambda": ("dgx-h100", (("h100-8x-2n__unknown__lambda", "dgx-h100", "2.20.5"),)),
    "mghpcc": ("dgx-h100", (("h100-8x-2n__unknown__mghpcc", "dgx-h100", "2.20.5"),)),
    "alps": (
        "gh200-4x",
        (("gh200-4x-32n__2.23.4__alps", "alps", "2.23.4"), ("gh200-4x-2n__2.30.7__cscs", "gh200-4x", "2.30.7")),
    ),
    "polaris": (
        "a100-4x-2nic",
        (
            ("a100-4x-540n__2.21.5__polaris", "a100-4x-2nic", "2.21.5"),
            ("a100-4x-540n__2.18.3__polaris", "a100-4x-2nic", "2.18.3"),
            ("a100-4x-4n__2.28.3__polaris", "a100-4x-2nic", "2.28.3"),
        ),
    ),
    "sirius": ("a100-4x-2nic", (("a100-4x-2n__2.21.5__sirius", "a100-4x-2nic", "2.21.5"),)),
    "sophia": ("dgx-a100", (("a100-8x-2n__2.22.3__sophia", "dgx-a100", "2.22.3"),)),
}
NAMES = [name for name in PARAMETERS if name.startswith(("net_", "tree_", "nvls_tree_", "pat_")) and "." not in name]
ROUNDS, MOST_ROWS = 3, 60  # of a site count; more of them count less each
SCATTER, PRIOR_SITES = 0.12, 3  # natural logarithm of times; sites that what is believed so far counts as


def rows_of(site: str) -> MeasuredCalls:
    """Its rows between nodes."""
    placed = []
    for name, machine, nccl in SITES[site][1]:
        table = table_of_one_way(name)
        own = replace(table, rows=tuple(row for row in table.rows if row.nodes > 1))
        placed.append(of_table(own, Site(machine, nccl)))
    assert all(name in measured.names() for name, *_ in SITES[site][1])
    return joined(placed)


def fit(rows: MeasuredCalls, nodes: dict[str, float], medians: Array, widths: Array) -> tuple[Array, Array]:
    """Logarithms of the parameters of one site, and their variances."""
    calls, log_us = rows.measured.calls, np.log(rows.measured.times_us)
    weight = min(1.0, MOST_ROWS / len(rows))

    def off(vector: Array) -> Array:
        values = {**nodes, **dict(zip(NAMES, np.exp(vector).tolist(), strict=True))}
        return (log_us - np.log(Form(values).times_us(calls))) / SCATTER

    def residuals(vector: Array) -> Array:
        return np.concatenate([np.sqrt(weight) * softened(off(vector)), (vector - medians) / widths])

    found = least_squares(residuals, medians, max_nfev=60)
    return found.x, np.diag(np.linalg.inv(found.jac.T @ found.jac))


def main() -> None:
    """A minute."""
    sites = {site: rows_of(site) for site in SITES}
    nodes = {site: dict(calibration.load(SITES[site][0]).parameters) for site in SITES}
    believed = np.array([np.log(PARAMETERS[name].median) for name in NAMES])
    believed_sd = np.array([PARAMETERS[name].log_sd for name in NAMES])
    medians, widths = believed, believed_sd
    for _ in range(ROUNDS):
        fits = [fit(rows, nodes[site], medians, widths) for site, rows in sites.items()]
        found, variances = (np.stack(each) for each in zip(*fits, strict=True))
        told = np.clip(1 - variances / widths**2, 1e-6, 1.0)
        medians = ((told * found).sum(axis=0) + believed) / (told.sum(axis=0) + 1)
        spread = ((found - medians) ** 2 + variances).sum(axis=0) + PRIOR_SITES * believed_sd**2
        widths = np.sqrt(spread / (len(sites) + PRIOR_SITES))
    for name, median, width in zip(NAMES, np.exp(medians), widths, strict=True):
        print(f"{name:30} {median:10.3g} {width:.2f}   now {PARAMETERS[name].median:g} {PARAMETERS[name].log_sd:g}")


if __name__ == "__main__":
    main()
