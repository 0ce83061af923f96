"""How far the model's times are off the measured ones."""

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol


@dataclass(frozen=True, slots=True)
class ModelError:
    """Of one algorithm and protocol over sizes: mean absolute errors as shares of 1, as is and after the best scale."""

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    sizes: int
    mape: float
    mape_scaled: float
    scale: float
    tau: float | None  # Kendall's, of the times over sizes


def model_error(collective: Collective, algo_proto: AlgoProto, times_us: NDArray[np.float64]) -> ModelError:
    """Of ``times_us``, [size][measured, model], of one combination.."""
    from scipy.stats import kendalltau

    measured, model = times_us.T
    ratios = model / measured
    # The scale that makes the mean of |scale * ratio - 1| smallest is a median of 1 / ratio, weighted by ratio.
    order = np.argsort(1 / ratios)
    weights = np.cumsum(ratios[order])
    scale = float(1 / ratios[order][np.searchsorted(weights, weights[-1] / 2)])
    tau = float(kendalltau(measured, model).statistic) if len(times_us) > 1 else float("nan")
    return ModelError(
        collective,
        *algo_proto,
        len(times_us),
        float(np.abs(ratios - 1).mean()),
        float(np.abs(scale * ratios - 1).mean()),
        scale,
        tau if np.isfinite(tau) else None,
    )
