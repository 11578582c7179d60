"""Uncertainty when the same participants meet the same pairs.

    resampler = Resampler(trials.participant, trials.pair, pair_strata=trials.level)
    resampler.rates(trials.correct[:, None])                  # one `Estimate` a column
    resampler.estimate(columns, lambda sums: sums[:, 0] / sums[:, 1], n=len(trials))

Participants and pairs are drawn with replacement independently of each other, and a trial counts as often as its
participant was drawn times as often as its pair was: the pigeonhole bootstrap (Owen 2007, Annals of Applied
Statistics 1:386). Levels are fixed by the design, so pairs are drawn within their level. With a single participant
only pairs are drawn, and with a single pair only participants.

The pigeonhole bootstrap counts what is peculiar to a single trial three times, and like every bootstrap it is too
narrow for few clusters. So the bootstrap gives an interval its shape, and its width is that of the two-way cluster
variance V = V(participants) + V(pairs) - V(trials), and no less than either of the first two (Cameron, Gelbach and
Miller 2011, Journal of Business & Economic Statistics 29:238), with a t quantile whose degrees of freedom follow
Satterthwaite. The variances are those of the statistic's linear approximation.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mindscope.statistics import CONFIDENCE, Estimate, mean_interval, wilson
from scipy.stats import norm, t

from pal50.analysis.trials import Array

RESAMPLES = 2_000

_HELD_AT_ONCE = 20_000_000
"""Trial weights in memory at a time (80 MB)."""

_MOST_UNDEFINED = 0.05
"""Share of resamples in which a statistic may be undefined before its interval is."""

_STEP = 1e-5
"""Relative step of the numerical derivative."""

Statistic = Callable[[Array], Array]
"""From the weighted sums of k columns, (r, k), to the statistic, (r,); NaN where undefined."""


class Spread(NamedTuple):
    variance: float
    degrees_of_freedom: float


class Resampler:
    """Draws participants and pairs once; every estimate made with it rests on the same draws.

    `participant` and `pair` number the clusters of each trial, (n,). Units are drawn within their stratum.
    """

    def __init__(
        self,
        participant: Array,
        pair: Array,
        *,
        pair_strata: Array | None = None,
        participant_strata: Array | None = None,
        seed: int = 0,
        n_resamples: int = RESAMPLES,
    ) -> None:
        rng = np.random.default_rng(seed)
        whole = np.zeros(len(participant), dtype=int)
        self._participant, self._participant_strata = participant, _given(participant_strata, whole)
        self._pair, self._pair_strata = pair, _given(pair_strata, whole)
        self._participant_draws = _draws(rng, participant, self._participant_strata, n_resamples)
        self._pair_draws = _draws(rng, pair, self._pair_strata, n_resamples)

    def sums(self, columns: Array) -> Array:
        """Sums of `columns`, (n, k), in each resample, (resamples, k)."""
        batch = max(1, _HELD_AT_ONCE // max(1, len(columns)))
        narrow = columns.astype(np.float32)
        drawn = [
            self._participant_draws[start : start + batch, self._participant]
            * self._pair_draws[start : start + batch, self._pair]
            @ narrow
            for start in range(0, len(self._participant_draws), batch)
        ]
        return np.concatenate(drawn).astype(float)

    def estimate(
        self,
        columns: Array,
        statistic: Statistic,
        *,
        n: int,
        drawn: Array | None = None,
        limits: tuple[float, float] = (-1.0, 1.0),
    ) -> Estimate:
        """A statistic of the sums of `columns`, (trials, k), with its interval, which stays within `limits`.

        `drawn`: what `sums` gave for the same columns, where several statistics share it.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(columns.sum(axis=0)[None])[0])
            ends = None
            if np.isfinite(value):
                results = statistic(self.sums(columns) if drawn is None else drawn)
                ends = _ends(results, value, self.spread(columns, statistic), limits)
        return Estimate(
            value=value if np.isfinite(value) else None,
            low=ends[0] if ends else None,
            high=ends[1] if ends else None,
            n=n,
            clusters=len(np.unique(self._participant)),
            method=self.method,
        )

    @property
    def method(self) -> str:
        units = {"participants": self._participant, "pairs": self._pair}
        several = [name for name, numbers in units.items() if len(np.unique(numbers)) > 1]
        return f"bootstrap over {' and '.join(several)}" if several else "bootstrap of one unit"

    def spread(self, columns: Array, statistic: Statistic) -> Spread:
        """Two-way cluster variance of a statistic of the sums of `columns`."""
        sums = columns.sum(axis=0)
        step = np.diag(_STEP * np.maximum(1.0, np.abs(sums)))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (statistic(sums + step) - statistic(sums - step)) / (2 * np.diag(step))
        counted = columns.any(axis=1)
        influence = columns[counted] @ np.nan_to_num(slope)
        participant, pair = self._participant[counted], self._pair[counted]
        by, within = self._participant_strata[counted], self._pair_strata[counted]
        over_participants = _cluster_variance(influence, participant, by)
        over_pairs = _cluster_variance(influence, pair, within)
        cell = participant * (int(self._pair.max()) + 1) + pair
        over_cells = _cluster_variance(influence, cell, by * (int(self._pair_strata.max()) + 1) + within)
        parts = [part for part in (over_participants, over_pairs) if part.degrees_of_freedom > 0]
        if len(parts) < 2:
            return parts[0] if parts else Spread(0.0, 0.0)
        together = sum(part.variance for part in parts)
        variance = max(together - over_cells.variance, *(part.variance for part in parts))
        unsure = sum(part.variance**2 / part.degrees_of_freedom for part in parts)
        return Spread(variance, variance**2 / unsure if unsure > 0 else 0.0)

    def rates(self, successes: Array, counted: Array | None = None) -> list[Estimate]:
        """The mean of each column of `successes`, (n, k) of 0 and 1, over the trials that `counted` marks.

        Where every trial agrees, resampling shows no spread, and where there is only one participant or one
        pair, the other alone varies: these cases have the interval that `mindscope.statistics` gives the units
        that vary; of two kinds, the fewer.
        """
        counted = np.ones(successes.shape) if counted is None else counted.astype(float)
        right = successes * counted
        drawn = self.sums(np.hstack([right, counted]))
        estimates = []
        for column in range(successes.shape[1]):
            chosen = counted[:, column] > 0
            rate = plain_rate(successes[chosen, column], self._participant[chosen], self._pair[chosen])
            if rate is None:
                own = np.column_stack([right[:, column], counted[:, column]])
                resampled = drawn[:, [column, successes.shape[1] + column]]
                resampled = resampled[resampled[:, 1] > 0]  # some draws of a small design miss the whole condition
                rate = self.estimate(own, ratio, n=int(chosen.sum()), drawn=resampled, limits=(0.0, 1.0))
            estimates.append(rate)
        return estimates


def plain_rate(values: Array, participant: Array, pair: Array) -> Estimate | None:
    """The mean of 0/1 `values` where no crossed resampling is needed for its interval, else None."""
    units = {"participants": len(np.unique(participant)), "pairs": len(np.unique(pair))}
    if min(units.values()) <= 1:
        clusters = pair if units["pairs"] > units["participants"] else participant
        return mean_interval(values.tolist(), clusters.astype(str).tolist())
    if np.ptp(values) > 0:
        return None
    kind = min(units, key=lambda name: units[name])
    rate = wilson(int(values[0]) * units[kind], units[kind])
    return rate.model_copy(update={"n": len(values), "method": f"Wilson over {kind}, whose trials all agree"})


def ratio(sums: Array) -> Array:
    """The first column's sum over the second's."""
    return np.asarray(sums[:, 0] / sums[:, 1])


def _given(strata: Array | None, whole: Array) -> Array:
    return whole if strata is None else strata


def _draws(rng: np.random.Generator, numbers: Array, strata: Array, n_resamples: int) -> Array:
    """How often each unit is drawn, (resamples, units); a stratum keeps its size."""
    size = int(numbers.max()) + 1 if len(numbers) else 0
    stratum = np.zeros(size, dtype=int)
    stratum[numbers] = strata
    drawn = np.zeros((n_resamples, size), dtype=np.float32)
    for units in (np.flatnonzero(stratum == each) for each in np.unique(stratum)):
        drawn[:, units] = rng.multinomial(len(units), np.full(len(units), 1 / len(units)), size=n_resamples)
    return drawn


def _cluster_variance(influence: Array, cluster: Array, strata: Array) -> Spread:
    """Variance of the sum of `influence`, (n,), whose clusters were drawn at random within strata.

    The degrees of freedom are 0 when no stratum has two clusters.
    """
    first, member = np.unique(cluster, return_index=True, return_inverse=True)[1:]
    totals = np.bincount(member, influence)
    _, stratum = np.unique(strata[first], return_inverse=True)
    sizes = np.bincount(stratum)
    centred = totals - (np.bincount(stratum, totals) / sizes)[stratum]
    several = sizes > 1
    squares = np.bincount(stratum, centred**2)[several]
    variance = float((squares * sizes[several] / (sizes[several] - 1)).sum())
    return Spread(variance, float((sizes[several] - 1).sum()))


def _ends(results: Array, value: float, spread: Spread, limits: tuple[float, float]) -> tuple[float, float] | None:
    """Ends of the interval; None when there is no spread or too many resamples are undefined."""
    defined = results[np.isfinite(results)]
    if len(defined) < (1 - _MOST_UNDEFINED) * len(results) or spread.degrees_of_freedom == 0:
        return None
    scale = float(defined.std())
    if min(scale, spread.variance**0.5) <= 1e-6 * max(1.0, abs(value)):
        return None
    quantile = t.ppf((1 + CONFIDENCE) / 2, max(1.0, spread.degrees_of_freedom))
    stretch = spread.variance**0.5 / scale * quantile / norm.ppf((1 + CONFIDENCE) / 2)
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) - defined.mean()
    return max(limits[0], value + float(low * stretch)), min(limits[1], value + float(high * stretch))
