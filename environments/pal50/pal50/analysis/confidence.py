"""Whether stated confidence matches accuracy.

    calibration_of(trials, resampler)

A rating c from 1 to 6 is read as a probability in two ways: as (c - 1) / 5, and through an isotonic map that is
fitted to other participants' trials (other pairs', where there is one participant) and never to the trial itself.

- ECE: mean absolute difference of forecast and accuracy, over the rating levels, weighted by their trials. It is
  never negative, so noise alone raises it, and its interval with it.
- Brier score = reliability - resolution + uncertainty, over the distinct forecasts (Murphy 1973, Journal of
  Applied Meteorology 12:595).
- AUROC2: chance that a correct trial has a higher rating than a wrong one, ties counting half.
- gamma: (concordant - discordant) / (concordant + discordant) pairs of a correct and a wrong trial (Goodman and
  Kruskal 1954, JASA 49:732).

AUROC2 and gamma do not exist when every trial is right or every trial is wrong. They are None then.
"""

import numpy as np
from mindscope.statistics import Estimate
from pydantic import BaseModel, ConfigDict
from scipy.optimize import isotonic_regression

from pal50.analysis.resampling import Resampler, Statistic
from pal50.analysis.trials import Array, Trials, one_hot

RATINGS = 6
_MOST_FOLDS = 10


class Rating(BaseModel):
    """One level of the scale."""

    model_config = ConfigDict(frozen=True)

    rating: int
    stated: float
    """(rating - 1) / 5."""
    mapped: float | None
    """Mean probability that the isotonic map gives its trials."""
    accuracy: Estimate


class Scores(BaseModel):
    """How good one reading of the ratings is as a forecast. `brier` = `reliability` - `resolution` + `uncertainty`."""

    model_config = ConfigDict(frozen=True)

    ece: Estimate
    brier: Estimate
    reliability: Estimate
    resolution: Estimate
    uncertainty: Estimate


class Calibration(BaseModel):
    model_config = ConfigDict(frozen=True)

    n: int
    """Scored trials with a rating. Everything here is over these."""
    without: int
    """Scored trials without one."""
    ratings: tuple[Rating, ...]
    """The levels that were used; empty when no trial has a rating."""
    overconfidence: Estimate | None
    """Mean of (c - 1) / 5 minus accuracy."""
    stated: Scores | None
    mapped: Scores | None
    """None also where there is no other participant and no other pair to fit the map to."""
    auroc2: Estimate | None
    gamma: Estimate | None
    note: str | None
    """Why something is undefined; else None."""


def calibration_of(trials: Trials, resampler: Resampler) -> Calibration:
    rating = trials.column("confidence")
    rated = np.isfinite(rating)
    n = int(rated.sum())
    if n == 0:
        return Calibration(
            n=0, without=len(trials), ratings=(), overconfidence=None, stated=None, mapped=None, auroc2=None,
            gamma=None, note="No trial has a confidence rating.",
        )  # fmt: skip
    level = np.where(rated, rating - 1, 0).astype(int)
    levels = one_hot(level, RATINGS) * rated[:, None]
    stated = level / (RATINGS - 1)
    mapped = _isotonic(trials, level, rated)
    correct = trials.correct
    rates = resampler.rates(np.repeat(correct[:, None], RATINGS, axis=1), levels)
    counts = np.hstack([levels * correct[:, None], levels * (1 - correct[:, None])])
    drawn = resampler.sums(counts)

    def ordinal(statistic: Statistic, limits: tuple[float, float] = (-1.0, 1.0)) -> Estimate:
        return resampler.estimate(counts, statistic, n=n, drawn=drawn, limits=limits)

    accuracy = correct[rated].mean()
    note = None
    if accuracy in (0.0, 1.0):
        note = f"Every rated trial is {'right' if accuracy else 'wrong'}: AUROC2 and gamma are undefined."
    elif len(np.unique(level[rated])) == 1:
        note = "Every rating is the same: gamma is undefined."
    return Calibration(
        n=n,
        without=len(trials) - n,
        ratings=tuple(
            Rating(
                rating=number + 1,
                stated=number / (RATINGS - 1),
                mapped=None if mapped is None else float(mapped[levels[:, number] > 0].mean()),
                accuracy=rates[number],
            )
            for number in range(RATINGS)
            if levels[:, number].any()
        ),
        overconfidence=ordinal(_overconfidence),
        stated=_scores(resampler, stated, correct, levels),
        mapped=None if mapped is None else _scores(resampler, mapped, correct, levels),
        auroc2=ordinal(_auroc2, (0.0, 1.0)),
        gamma=ordinal(_gamma),
        note=note,
    )


# ---- statistics of the counts by rating: right (r, 6) then wrong (r, 6) ----


def _overconfidence(counts: Array) -> Array:
    right, wrong = counts[:, :RATINGS], counts[:, RATINGS:]
    stated = (right + wrong) @ np.linspace(0, 1, RATINGS)
    return np.asarray((stated - right.sum(axis=1)) / counts.sum(axis=1))


def _auroc2(counts: Array) -> Array:
    concordant, discordant, pairs = _pairs(counts)
    return np.asarray(0.5 + (concordant - discordant) / (2 * pairs))


def _gamma(counts: Array) -> Array:
    concordant, discordant, _ = _pairs(counts)
    return np.asarray((concordant - discordant) / (concordant + discordant))


def _pairs(counts: Array) -> tuple[Array, Array, Array]:
    """Pairs of a right and a wrong trial: right rated higher, wrong rated higher, all."""
    right, wrong = counts[:, :RATINGS], counts[:, RATINGS:]
    wrong_below = np.cumsum(wrong, axis=1) - wrong
    right_below = np.cumsum(right, axis=1) - right
    return (
        (right * wrong_below).sum(axis=1),
        (wrong * right_below).sum(axis=1),
        right.sum(axis=1) * wrong.sum(axis=1),
    )


# ---- forecasts ----


def _scores(resampler: Resampler, forecast: Array, correct: Array, levels: Array) -> Scores:
    """`levels`: rating of each trial as 0/1 columns, (n, 6), all 0 for a trial without one, which counts nowhere."""
    rated = levels.sum(axis=1) > 0
    values, group = np.unique(forecast, return_inverse=True)
    groups = one_hot(group, len(values)) * rated[:, None]
    y, gap, error = correct[:, None], (forecast - correct)[:, None], ((forecast - correct) ** 2)[:, None]
    parts = [error * rated[:, None], levels * gap, groups, groups * y]
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    columns = np.hstack(parts)
    drawn = resampler.sums(columns)

    def made_of(statistic: Statistic) -> Estimate:
        return resampler.estimate(columns, statistic, n=int(rated.sum()), drawn=drawn, limits=(0.0, 1.0))

    def split(sums: Array) -> tuple[Array, Array, Array, Array, Array]:
        errors, gaps, sizes, right = np.split(sums, ends, axis=1)
        return errors[:, 0], gaps, sizes, right, sizes.sum(axis=1)

    def brier(sums: Array) -> Array:
        errors, _, _, _, n = split(sums)
        return np.asarray(errors / n)

    def ece(sums: Array) -> Array:
        _, gaps, _, _, n = split(sums)
        return np.asarray(np.abs(gaps).sum(axis=1) / n)

    def reliability(sums: Array) -> Array:
        _, _, sizes, right, n = split(sums)
        return np.asarray(np.nansum((sizes * values - right) ** 2 / sizes, axis=1) / n)

    def resolution(sums: Array) -> Array:
        _, _, sizes, right, n = split(sums)
        base = (right.sum(axis=1) / n)[:, None]
        return np.asarray(np.nansum((right - sizes * base) ** 2 / sizes, axis=1) / n)

    def uncertainty(sums: Array) -> Array:
        _, _, _, right, n = split(sums)
        base = right.sum(axis=1) / n
        return np.asarray(base * (1 - base))

    return Scores(
        ece=made_of(ece),
        brier=made_of(brier),
        reliability=made_of(reliability),
        resolution=made_of(resolution),
        uncertainty=made_of(uncertainty),
    )


def _isotonic(trials: Trials, level: Array, rated: Array) -> Array | None:
    """Out-of-sample probability of each rated trial, (n,); 0 where there is no rating."""
    units = trials.participant if len(np.unique(trials.participant[rated])) > 1 else trials.pair
    names = np.unique(units[rated])
    folds = min(_MOST_FOLDS, len(names))
    if folds < 2:
        return None
    shuffled = np.random.default_rng(0).permutation(len(names)) % folds
    fold = np.zeros(int(units.max()) + 1, dtype=int)
    fold[names] = shuffled
    probability = np.zeros(len(level))
    for held_out in range(folds):
        fitted = rated & (fold[units] != held_out)
        predicted = rated & (fold[units] == held_out)
        sizes = np.bincount(level[fitted], minlength=RATINGS)
        used = np.flatnonzero(sizes)
        means = np.bincount(level[fitted], trials.correct[fitted], minlength=RATINGS)[used] / sizes[used]
        curve = isotonic_regression(means, weights=sizes[used]).x
        probability[predicted] = np.interp(level[predicted], used, curve)
    return probability
