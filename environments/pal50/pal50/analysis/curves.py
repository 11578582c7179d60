"""How accuracy changes along the session: study position, lag, test position, cycle.

    curve_of(trials, resampler, "lag")

Positions with many values are pooled into bins of about equal n. A curve that the design cannot show has no points
and a note that says why.
"""

from typing import Literal

import numpy as np
from mindscope.statistics import Estimate
from pydantic import BaseModel, ConfigDict

from pal50.analysis.resampling import Resampler
from pal50.analysis.trials import Array, Trials, one_hot

Axis = Literal["study_position", "lag", "test_position", "cycle"]

_MOST_BINS = 10
_END = 0.1
"""Share of the list that counts as its beginning, and as its end."""


class Point(BaseModel):
    model_config = ConfigDict(frozen=True)

    first: int
    last: int
    """Values of the axis that the point covers, both included."""
    accuracy: Estimate
    """Strict."""


class Curve(BaseModel):
    model_config = ConfigDict(frozen=True)

    axis: Axis
    points: tuple[Point, ...]
    slope: Estimate | None
    """Least-squares change of accuracy from one value of the axis to the next; None where the axis does not vary."""
    note: str | None
    """Why there are no points; else None."""


class SerialPosition(BaseModel):
    """Accuracy at the ends of the study list against its middle (the rest)."""

    model_config = ConfigDict(frozen=True)

    curve: Curve
    primacy: Estimate | None
    """Accuracy over the first tenth of the study positions, minus that over the middle."""
    recency: Estimate | None
    """The same for the last tenth."""


def curve_of(trials: Trials, resampler: Resampler, axis: Axis) -> Curve:
    """Accuracy along `axis` with two-way intervals."""
    values = trials.column(axis)
    known = np.isfinite(values)
    words = axis.replace("_", " ")
    if not known.any():
        return Curve(axis=axis, points=(), slope=None, note=f"No {words}: nothing was studied.")
    distinct, counts = np.unique(values[known], return_counts=True)
    if len(distinct) == 1:
        note = f"The {words} is {int(distinct[0])} on every trial, so its effect cannot be seen."
        return Curve(axis=axis, points=(), slope=None, note=note)
    bin_of_value = _bins(counts)
    bins = np.zeros(len(values), dtype=int)
    bins[known] = bin_of_value[np.searchsorted(distinct, values[known])]
    masks = one_hot(bins, int(bin_of_value.max()) + 1) * known[:, None]
    rates = resampler.rates(np.repeat(trials.correct[:, None], masks.shape[1], axis=1), masks)
    points = [
        Point(
            first=int(distinct[bin_of_value == number].min()),
            last=int(distinct[bin_of_value == number].max()),
            accuracy=rate,
        )
        for number, rate in enumerate(rates)
    ]
    return Curve(axis=axis, points=tuple(points), slope=_slope(trials, resampler, values, known), note=None)


def serial_position(trials: Trials, resampler: Resampler) -> SerialPosition:
    curve = curve_of(trials, resampler, "study_position")
    if not curve.points:
        return SerialPosition(curve=curve, primacy=None, recency=None)
    position = trials.column("study_position")
    early, late = np.nanquantile(position, [_END, 1 - _END])
    first, last = position <= early, position >= late
    middle = np.isfinite(position) & ~first & ~last
    return SerialPosition(
        curve=curve,
        primacy=_difference(trials, resampler, first, middle),
        recency=_difference(trials, resampler, last, middle),
    )


def _bins(counts: Array) -> Array:
    """The bin of each distinct value, given how many trials have it; as many bins as there are values, up to ten."""
    if len(counts) <= _MOST_BINS:
        return np.arange(len(counts))
    middle = np.cumsum(counts) - counts / 2
    return np.unique((middle * _MOST_BINS / counts.sum()).astype(int), return_inverse=True)[1]


def _slope(trials: Trials, resampler: Resampler, values: Array, known: Array) -> Estimate:
    x = np.where(known, values - values[known].mean(), 0.0)
    columns = np.column_stack([known, x, trials.correct * known, x * trials.correct, x * x])

    def slope(sums: Array) -> Array:
        n, sx, sy, sxy, sxx = sums.T
        return np.asarray((n * sxy - sx * sy) / (n * sxx - sx * sx))

    return resampler.estimate(columns, slope, n=int(known.sum()))


def _difference(trials: Trials, resampler: Resampler, these: Array, those: Array) -> Estimate:
    columns = np.column_stack([trials.correct * these, these, trials.correct * those, those])
    n = int(these.sum() + those.sum())
    return resampler.estimate(columns, lambda s: s[:, 0] / s[:, 1] - s[:, 2] / s[:, 3], n=n)
