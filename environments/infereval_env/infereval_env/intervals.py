"""95 % intervals for coefficients of agreement, by resampling items.

    interval(cohen(model, reference), clusters)      # an Estimate: value, low, high, n, clusters, method

Whole clusters (the items of one ladder) are resampled with replacement, so items that stand and fall together
are not counted as independent. A resample of C clusters is a draw of how often each occurs, and clusters with
equal rows are interchangeable, so one multinomial draw over the distinct rows is the same bootstrap at a
fraction of the work. The interval is bias-corrected and accelerated (BCa; Efron 1987, JASA 82:171), which
keeps it inside the coefficient's range and honest for the skewed distributions κ has near 1.
"""

from collections.abc import Sequence

import numpy as np
from mindscope.statistics import CONFIDENCE, Estimate, wilson
from scipy.stats import norm

from infereval_env.agreement import Additive, Array

N_RESAMPLES = 10_000
FEWEST = 10
"""With fewer independent clusters than this a resampling interval means nothing."""
_MOST_UNDEFINED = 0.1
"""Share of resamples in which the coefficient may be undefined before the interval is too."""
_SAME = 1e-12
"""Two values closer than this differ by rounding only."""


def interval(
    measure: Additive, clusters: Sequence[str] | None = None, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Estimate:
    """`measure` with its interval; `clusters` names each item's cluster, by default every item is its own.

    Same seed, same interval, whatever the order of the items. The ends are None, and `method` says why, when
    there are fewer than ten clusters to go by, when no resample moves the coefficient, or when it is
    undefined in more than a tenth of them. A proportion of 0 or 1, which no resample can move, or of fewer
    than ten independent items, gets Wilson's interval with one trial a cluster.
    """
    value = measure.value()
    rows = _summed(measure.rows, clusters).round(12)
    used = int(rows.any(axis=1).sum())

    def without(method: str) -> Estimate:
        return Estimate(value=value, low=None, high=None, n=measure.n, clusters=used, method=method)

    if value is None:
        return without("undefined")
    independent = clusters is None or used == measure.n
    if measure.is_rate and (value in (0.0, 1.0) or (independent and used < FEWEST)):
        bound = wilson(round(value * used), used)
        return bound.model_copy(update={"n": measure.n, "method": "Wilson, one trial a cluster"})
    if used < FEWEST:
        return without(f"no interval: fewer than {FEWEST} clusters")
    distinct, times = np.unique(rows, axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(rows), times / len(rows), size=n_resamples)
    draws = measure.of(drawn @ distinct)
    draws = draws[~np.isnan(draws)]
    if len(draws) < (1 - _MOST_UNDEFINED) * n_resamples:
        return without("no interval: undefined in many resamples")
    if np.ptp(draws) <= _SAME:
        return without("no interval: every resample agrees")
    levels = _bca_levels(value, draws, measure.of(rows.sum(axis=0) - distinct), times)
    low, high = np.quantile(draws, levels)
    return Estimate(
        value=value, low=float(low), high=float(high), n=measure.n, clusters=used, method="BCa over clusters"
    )


def _summed(rows: Array, clusters: Sequence[str] | None) -> Array:
    """Rows summed within each cluster, shape (clusters, d)."""
    if clusters is None:
        return rows
    names, member = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    summed = np.zeros((len(names), rows.shape[1]))
    np.add.at(summed, member, rows)
    return summed


def _bca_levels(value: float, draws: Array, left_out: Array, times: Array) -> Array:
    """The two quantiles of the draws that bound the interval.

    `left_out` is the coefficient without one cluster of each distinct kind, `times` how many there are of the
    kind.
    """
    below = np.mean(draws < value - _SAME) + np.mean(np.abs(draws - value) <= _SAME) / 2
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    known = ~np.isnan(left_out)
    left_out, times = left_out[known], times[known]
    apart = np.sum(times * left_out) / max(np.sum(times), 1) - left_out
    spread = np.sum(times * apart**2)
    acceleration = np.sum(times * apart**3) / (6 * spread**1.5) if spread > _SAME else 0.0
    z = bias + norm.ppf([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return norm.cdf(bias + z / (1 - acceleration * z))
