"""Accuracy by condition, and what became of the trials.

accuracy_by(trials, resampler)       # all trials, then by level, list and direction
outcomes_of(trials, resampler)
"""

from typing import Literal

import numpy as np
from mindscope.statistics import Estimate, wilson
from pydantic import BaseModel, ConfigDict

from pal50.analysis.resampling import Resampler, ratio
from pal50.analysis.trials import Array, Trials, numbered, one_hot
from pal50.items import Outcome

Factor = Literal["all", "level", "list", "direction"]


class Accuracy(BaseModel):
    """One condition's accuracy."""

    model_config = ConfigDict(frozen=True)

    factor: Factor
    value: str
    """The factor's value; `all` for the whole run."""
    strict: Estimate
    lenient: Estimate
    cell: Estimate
    """The strict rate with the Wilson interval that trials would have if they were independent."""
    design_effect: float | None
    """Two-way cluster variance of the strict rate over the variance that independent trials would give it; None
    where all trials agree or there is only one unit."""


class OutcomeCount(BaseModel):
    model_config = ConfigDict(frozen=True)

    outcome: str
    count: int
    share: Estimate
    """Of all scored trials."""
    by_level: dict[str, int]


def accuracy_by(trials: Trials, resampler: Resampler) -> tuple[Accuracy, ...]:
    """Accuracy of all trials, of each level, and of each list and direction where there are several."""
    cells: list[tuple[Factor, str]] = [("all", "all")]
    counted = [np.ones(len(trials))]
    for factor, values in _factors(trials):
        for value in values:
            cells.append((factor, value))
            counted.append(np.array([getattr(row, factor) == value for row in trials.rows], dtype=float))
    masks = np.column_stack(counted)
    strict = resampler.rates(np.repeat(trials.correct[:, None], len(cells), axis=1), masks)
    lenient = resampler.rates(np.repeat(trials.lenient[:, None], len(cells), axis=1), masks)
    return tuple(
        Accuracy(
            factor=factor,
            value=value,
            strict=strict[i],
            lenient=lenient[i],
            cell=wilson(int(trials.correct @ masks[:, i]), int(masks[:, i].sum())),
            design_effect=_design_effect(trials, resampler, masks[:, i]),
        )
        for i, (factor, value) in enumerate(cells)
    )


def outcomes_of(trials: Trials, resampler: Resampler) -> tuple[OutcomeCount, ...]:
    """Every outcome that occurred, in the order in which outcomes are decided."""
    numbers, names = numbered([row.outcome for row in trials.rows])
    flags = one_hot(numbers, len(names))
    shares = resampler.rates(flags)
    counts = flags.T @ one_hot(trials.level, len(trials.levels))
    order = [outcome.value for outcome in Outcome]
    return tuple(
        OutcomeCount(
            outcome=names[i],
            count=int(counts[i].sum()),
            share=shares[i],
            by_level={level: int(count) for level, count in zip(trials.levels, counts[i], strict=True)},
        )
        for i in sorted(range(len(names)), key=lambda i: order.index(names[i]))
    )


def _factors(trials: Trials) -> list[tuple[Factor, tuple[str, ...]]]:
    lists = tuple(sorted({row.list for row in trials.rows}))
    directions = tuple(sorted({row.direction for row in trials.rows}))
    further: list[tuple[Factor, tuple[str, ...]]] = [("list", lists), ("direction", directions)]
    return [("level", trials.levels), *((factor, values) for factor, values in further if len(values) > 1)]


def _design_effect(trials: Trials, resampler: Resampler, counted: Array) -> float | None:
    rate, n = float(trials.correct @ counted / counted.sum()), counted.sum()
    spread = resampler.spread(np.column_stack([trials.correct * counted, counted]), ratio)
    if rate in (0.0, 1.0) or spread.degrees_of_freedom == 0:
        return None
    return spread.variance / (rate * (1 - rate) / n)
