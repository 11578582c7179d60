"""Two runs on the same cues: what study adds to guessing, what the right partner adds, how two models differ.

    contrast("run", trials_a, trials_b)

Accuracy of the first run minus that of the second, over cues that both were asked for. The second run's trials are
weighted so that each cue counts as often as in the first (direct standardisation), and resampling draws a cue for
both at once: the difference is paired by item. Participants are drawn for both at once as well when both
runs have the same ones, for the same number is the same design.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from mindscope.statistics import Estimate
from pydantic import BaseModel, ConfigDict
from scipy.stats import binomtest

from pal50.analysis.resampling import Resampler, plain_rate, ratio
from pal50.analysis.trials import Array, Trials, numbered, one_hot, trials_of
from pal50.items import ItemRow

Kind = Literal["guessing", "repaired", "run"]


class Difference(BaseModel):
    model_config = ConfigDict(frozen=True)

    value: str
    """A level, or `all`."""
    first: Estimate
    second: Estimate
    difference: Estimate
    """`first` minus `second`."""


class PairedTest(BaseModel):
    """The same participant, rollout, cycle and cue in both runs. The exact McNemar test takes trials as
    independent; the intervals of the differences do not."""

    model_config = ConfigDict(frozen=True)

    n: int
    both: int
    only_first: int
    only_second: int
    neither: int
    p: float | None
    """Two-sided; None when no trial is right in one run only."""


class Contrast(BaseModel):
    model_config = ConfigDict(frozen=True)

    kind: Kind
    """`guessing`: the second run studied nothing. `repaired`: it studied other partners. `run`: any other run."""
    first: str
    second: str
    """Names of the runs."""
    same_participants: bool
    differences: tuple[Difference, ...]
    """All trials, then by level; empty when no cue is shared."""
    left_out: tuple[int, int]
    """Scored trials of each run whose cue the other run does not ask for."""
    paired: PairedTest | None
    """None when no trial has its like in the other run."""


def contrast(kind: Kind, names: tuple[str, str], first: Trials, second: Trials) -> Contrast:
    """`first` minus `second`, `names` in the same order."""
    shared = {_cue(row) for row in first.rows} & {_cue(row) for row in second.rows}
    left, right = ([row for row in trials.rows if _cue(row) in shared] for trials in (first, second))
    same = {row.participant for row in left} == {row.participant for row in right}
    return Contrast(
        kind=kind,
        first=names[0],
        second=names[1],
        same_participants=same,
        differences=_differences(left, right, same) if shared else (),
        left_out=(len(first) - len(left), len(second) - len(right)),
        paired=_paired_test(left, right),
    )


def _cue(row: ItemRow) -> tuple[str, str, str]:
    """What the trial shows. Partners may differ between runs, so the pair's code may too."""
    return row.list, row.direction, row.cue


def _differences(left: Sequence[ItemRow], right: Sequence[ItemRow], same: bool) -> tuple[Difference, ...]:
    rows = [*left, *right]
    side = np.repeat([0, 1], [len(left), len(right)])
    cue, _ = numbered([_cue(row) for row in rows])
    participant, _ = numbered([(row.participant, same or number) for row, number in zip(rows, side, strict=True)])
    pair_of_cue = {_cue(row): row.trcode for row in left}
    pair, _ = numbered([pair_of_cue[_cue(row)] for row in rows])
    level_of_pair = {row.trcode: row.level for row in left}
    levels = trials_of(left).levels
    level = np.array([levels.index(level_of_pair[pair_of_cue[_cue(row)]]) for row in rows])
    correct = np.array([row.correct for row in rows], dtype=float)
    per_cue = [np.bincount(cue[side == number], minlength=cue.max() + 1) for number in (0, 1)]
    weight = np.where(side == 0, 1.0, per_cue[0][cue] / per_cue[1][cue])
    resampler = Resampler(participant, pair, pair_strata=level, participant_strata=None if same else side)
    chosen = np.column_stack([np.ones(len(rows)), one_hot(level, len(levels))])
    halves = np.stack([chosen * (side == 0)[:, None], chosen * (side == 1)[:, None]], axis=2)
    columns = np.stack([halves * (correct * weight)[:, None, None], halves * weight[:, None, None]], axis=3)
    columns = columns.reshape(len(rows), len(levels) + 1, 4)
    drawn = resampler.sums(columns.reshape(len(rows), -1)).reshape(-1, len(levels) + 1, 4)

    def estimate(group: int, half: int) -> Estimate:
        own = halves[:, group, half] > 0
        if np.ptp(correct[own]) == 0 or np.ptp(weight[own]) == 0:  # the weights change nothing
            rate = plain_rate(correct[own], participant[own], pair[own])
            if rate is not None:
                return rate
        which = slice(2 * half, 2 * half + 2)
        return resampler.estimate(
            columns[:, group, which], ratio, n=int(own.sum()), drawn=drawn[:, group, which], limits=(0.0, 1.0)
        )

    found = []
    for group, name in enumerate(("all", *levels)):
        first, second = estimate(group, 0), estimate(group, 1)
        difference = resampler.estimate(
            columns[:, group], _ratio_difference, n=int(chosen[:, group].sum()), drawn=drawn[:, group]
        )
        if difference.low is None:
            difference = _hybrid(difference, first, second)
        found.append(Difference(value=name, first=first, second=second, difference=difference))
    return tuple(found)


def _ratio_difference(sums: Array) -> Array:
    return ratio(sums[:, :2]) - ratio(sums[:, 2:])


def _hybrid(drawn: Estimate, first: Estimate, second: Estimate) -> Estimate:
    """For runs in which every trial agrees: the interval from those of the two rates (Newcombe 1998, Statistics in
    Medicine 17:873, method 10)."""
    ends = (first.low, first.high, second.low, second.high)
    if drawn.value is None or first.value is None or second.value is None or None in ends:
        return drawn
    low_1, high_1, low_2, high_2 = (float(end) for end in ends if end is not None)
    return drawn.model_copy(
        update={
            "low": drawn.value - float(np.hypot(first.value - low_1, high_2 - second.value)),
            "high": drawn.value + float(np.hypot(high_1 - first.value, second.value - low_2)),
            "method": "Newcombe's hybrid of both rates' intervals",
        }
    )


def _paired_test(left: Sequence[ItemRow], right: Sequence[ItemRow]) -> PairedTest | None:
    def keyed(rows: Sequence[ItemRow]) -> dict[tuple[object, ...], bool]:
        return {(row.participant, row.rollout, row.cycle, *_cue(row)): row.correct for row in rows}

    ours, theirs = keyed(left), keyed(right)
    counts = Counter((ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    if not counts:
        return None
    only_first, only_second = counts[True, False], counts[False, True]
    discordant = only_first + only_second
    return PairedTest(
        n=counts.total(),
        both=counts[True, True],
        only_first=only_first,
        only_second=only_second,
        neither=counts[False, False],
        p=float(binomtest(only_first, discordant).pvalue) if discordant else None,
    )
