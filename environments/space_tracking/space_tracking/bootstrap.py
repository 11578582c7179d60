"""Intervals for a corpus of minimal pairs: whole pairs are resampled, within each template.

    draws = PairBootstrap(rows)
    draws.mean([(row, 1.0), …])         # an Estimate
    draws.mean([(row, a - b), …])       # of a paired difference

One set of draws serves every estimate of a report, so that its cells and its comparisons agree with one another. A
template's draws are its own, whatever else is in the report.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
from mindscope.statistics import CONFIDENCE, Array, Estimate, wilson

from space_tracking.corpus import Row

RESAMPLES = 2000


class PairBootstrap:
    """`RESAMPLES` draws with replacement of the pairs of each template."""

    def __init__(self, rows: Iterable[Row], *, seed: int = 0) -> None:
        pairs: dict[str, dict[str, int]] = {}
        for row in rows:
            places = pairs.setdefault(row.template, {})
            places.setdefault(row.pair_id, len(places))
        self._places = pairs
        self._weights: dict[str, Array] = {}
        for template, places in pairs.items():
            generator = np.random.default_rng([seed, crc32(template.encode())])
            m = len(places)
            self._weights[template] = generator.multinomial(m, np.full(m, 1 / m), RESAMPLES).astype(float)

    def mean(self, values: Sequence[tuple[Row, float]]) -> Estimate:
        """The mean of `values` with a 95 % percentile interval.

        Where no pair differs from another, resampling shows no spread: for 0s or 1s throughout the interval is then
        Wilson's over the pairs, and for anything else undefined.
        """
        if not values:
            return Estimate(value=None, low=None, high=None, n=0, clusters=0, method="nothing scored")
        sums = {template: np.zeros((len(places), 2)) for template, places in self._places.items()}
        for row, value in values:
            sums[row.template][self._places[row.template][row.pair_id]] += (value, 1.0)
        n_pairs = int(sum((each[:, 1] > 0).sum() for each in sums.values()))
        total, n = np.sum([each.sum(axis=0) for each in sums.values()], axis=0)
        distinct = {value for _, value in values}
        if distinct in ({0.0}, {1.0}):
            rate = wilson(n_pairs if distinct == {1.0} else 0, n_pairs)
            return rate.model_copy(update={"n": int(n), "method": "Wilson over pairs, which all agree"})
        drawn = np.sum([self._weights[template] @ each for template, each in sums.items()], axis=0)
        means = drawn[:, 0] / np.where(drawn[:, 1] > 0, drawn[:, 1], np.nan)
        low, high = np.nanquantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        known = bool(np.nanmax(means) - np.nanmin(means) > 1e-12)
        return Estimate(
            value=float(total / n),
            low=float(low) if known else None,
            high=float(high) if known else None,
            n=int(n),
            clusters=n_pairs,
            method="bootstrap over pairs within templates",
        )
