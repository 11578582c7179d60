"""Rates and means with their uncertainty.

    wilson(18, 25)                        # 18 right of 25 independent items
    mean_interval(rewards, items)         # picks the method the data allow, and names it
    cluster_bootstrap(rewards, items)     # several rollouts an item: the item is what is resampled

Every function returns an `Estimate`. What the data cannot tell stays undefined: `value` is None when there is
nothing to average, `low` and `high` are None when nothing shows the spread. Never 0, never NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from scipy import stats

CONFIDENCE = 0.95
"""Coverage every interval in this module aims at."""

_DRAWN_AT_ONCE = 4_000_000
"""Weights held in memory at a time by the bootstrap (32 MB)."""

Array = NDArray[Any]
Statistic = Callable[[Array, Array], Array]
"""`statistic(values, weights)`: values (n,), weights (resamples, n), result (resamples,)."""


class Estimate(BaseModel):
    """A value, its 95 % interval, and what they rest on."""

    model_config = ConfigDict(frozen=True)

    value: float | None
    """The estimate; None when `n` is 0."""
    low: float | None
    high: float | None
    """The interval's ends, in the unit of `value`; both None when the data do not determine them."""
    n: int
    """Observations (rollouts, trials)."""
    clusters: int
    """Independent units among them (items, participants); equals `n` when each gave one observation."""
    method: str
    """How the interval was made, as a phrase for a table's note."""


def wilson(k: int, n: int) -> Estimate:
    """The rate `k / n` of independent trials with its Wilson score interval (Wilson 1927, JASA 22:209).

    Raises ValueError unless 0 <= k <= n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"wilson needs 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return _undefined("Wilson")
    interval = stats.binomtest(k, n).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(value=k / n, low=float(interval.low), high=float(interval.high), n=n, clusters=n, method="Wilson")


def weighted_mean(values: Array, weights: Array) -> Array:
    """The mean of `values` (n,) under each row of `weights` (resamples, n)."""
    return weights @ values / weights.sum(axis=-1)


def cluster_bootstrap(
    values: Sequence[float],
    clusters: Sequence[str],
    statistic: Statistic = weighted_mean,
    *,
    seed: int = 0,
    n_resamples: int = 5_000,
) -> Estimate:
    """A statistic of all `values` with a percentile interval from resampling whole clusters with replacement
    (Davison & Hinkley 1997, §3.8).

    `values` and `clusters` run in parallel, one entry an observation. With fewer than two clusters, or when
    no resample moves the statistic, the interval is undefined. Same seed, same interval. Raises ValueError
    when the two differ in length.
    """
    data = np.asarray(values, dtype=float)
    names, member = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    if len(member) != len(data):
        raise ValueError(f"{len(data)} values but {len(member)} cluster names; there must be one for each")
    method = "bootstrap over items"
    if len(data) == 0:
        return _undefined(method)
    value = float(statistic(data, np.ones((1, len(data))))[0])
    weights = np.ones(len(data))
    if statistic is weighted_mean:  # a cluster's mean, weighted by its size, stands for its observations
        weights = np.bincount(member).astype(float)
        data, member = np.bincount(member, data) / weights, np.arange(len(names))
    draws = _resample(data, weights, member, statistic, seed, n_resamples)
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    known = bool(draws.max() - draws.min() > 1e-12 * max(1.0, abs(value)))
    return Estimate(
        value=value,
        low=float(low) if known else None,
        high=float(high) if known else None,
        n=len(values),
        clusters=len(names),
        method=method,
    )


def mean_interval(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """The mean of `values` with the interval their form allows.

    When every cluster gave one and the same 0/1 answer, it is one trial and the interval is Wilson's over the
    clusters; this covers one rollout an item, and also several that all agree, where a bootstrap would see no
    spread at 0 or 1. Otherwise the clusters are bootstrapped.
    """
    by_cluster: dict[str, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        by_cluster.setdefault(cluster, []).append(value)
    sizes = {len(group) for group in by_cluster.values()}
    agreed = all(group[0] in (0.0, 1.0) and len(set(group)) == 1 for group in by_cluster.values())
    if agreed and (len(sizes) <= 1 or len(set(values)) == 1):
        rate = wilson(sum(group[0] == 1.0 for group in by_cluster.values()), len(by_cluster))
        method = "Wilson" if len(values) == rate.n else "Wilson over items, whose rollouts all agree"
        return rate.model_copy(update={"n": len(values), "method": method})
    return cluster_bootstrap(values, clusters)


def _resample(data: Array, weights: Array, member: Array, statistic: Statistic, seed: int, n_resamples: int) -> Array:
    """The statistic of each resample, shape (n_resamples,); `member` numbers the cluster of each value."""
    n_clusters = int(member.max()) + 1
    rng = np.random.default_rng(seed)
    batch = max(1, _DRAWN_AT_ONCE // len(data))
    results = []
    for start in range(0, n_resamples, batch):
        size = min(batch, n_resamples - start)
        drawn = rng.integers(0, n_clusters, (size, n_clusters)) + n_clusters * np.arange(size)[:, None]
        times_drawn = np.bincount(drawn.ravel(), minlength=size * n_clusters).reshape(size, n_clusters)
        results.append(statistic(data, times_drawn[:, member] * weights))
    return np.concatenate(results)


def _undefined(method: str) -> Estimate:
    return Estimate(value=None, low=None, high=None, n=0, clusters=0, method=method)
