"""Do two templates ask the same question? Two runs on the same items, tested item by item and as a whole.

    result = equivalence(a, b)                  # verdict: equivalent, different or inconclusive
    result = equivalence_as_infereval(a, b)     # the gate: TV below 0.10 on every item, 30 samples or more

The gate compares the total variation (TV) between two samples with a fixed bound, and two samples of one and
the same distribution differ too: at 30 draws of a fair coin each, an item fails four times in ten though
nothing differs. The test here asks two questions that sampling noise cannot answer for it.

* Does any item differ? An exact permutation test an item, and Holm's correction over the items.
* Is the whole within the margin? With d the difference of an item's distributions over good, bad and abstain,
  |d|² has an unbiased estimate from the counts, and 3/2 TV² <= |d|². The runs are equivalent when the upper
  95 % bound of the mean |d|² over items is below 3/2 margin², so that the root mean square TV is below the
  margin.

Equivalent means the second and not the first; too few samples is inconclusive, never a pass. When both runs
hold label probabilities there is no sampling noise, and the distributions are compared as they are.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import gammaln
from scipy.stats import norm, t

from infereval_env.agreement import Array
from infereval_env.formats import Evaluation
from infereval_env.guard import check_same_setup, compare_as_infereval, paired, total_variation
from infereval_env.measures import Result
from infereval_env.readings import Reading, take_readings

MARGIN = 0.10
FEWEST_SAMPLES = 30
"""infereval's floor on an item's samples."""
LEVEL = 0.05
_SAME = 1e-9
"""Two values of TV closer than this differ by rounding only."""

Counts = tuple[int, int, int]


class Offender(Result):
    item_id: str
    tv: float
    p: float | None
    """Permutation p, before Holm's correction; None when the distributions were compared exactly."""


class Equivalence(Result):
    """The outcome of the test, and what it rests on."""

    verdict: Literal["equivalent", "different", "inconclusive"]
    margin: float
    n_items: int
    n_untestable: int
    """Items with fewer than two answered samples in a run: no statement about them is made."""
    mean_tv: float | None
    mean_tv_expected_by_chance: float | None
    """What the mean TV would be on average if every item had one distribution in both runs."""
    rms_tv_bound: float | None
    """Upper 95 % bound on the root mean square TV over items; the exact maximum TV for label
    probabilities."""
    offenders: list[Offender]
    """Items that differ, by the exact test at 5 % over all items."""
    power: float | None
    """Probability that the bound falls below the margin if nothing differs, at these samples."""
    method: Literal["permutation and margin test", "exact"]
    warnings: list[str]


class Gate(Result):
    """infereval's gate."""

    passed: bool
    max_tv: float
    offenders: list[tuple[str, float]]
    under_powered: list[str]


def equivalence(
    a: Evaluation, b: Evaluation, *, vary: Sequence[str] = ("template",), margin: float = MARGIN
) -> Equivalence:
    """Whether two runs that differ on the axes in `vary` give the same verdict distributions within `margin`
    TV.

    Raises MindscopeError when the setups differ elsewhere or `b` lacks an item of `a`.
    """
    warnings = check_same_setup(a, b, vary=vary)
    one, other = paired(take_readings(a), take_readings(b), a.id, b.id)
    if one and all(r.label_mass is not None for r in (*one, *other)):
        return _exact(one, other, margin, warnings)
    testable = [(r, s) for r, s in zip(one, other, strict=True) if r.answered >= 2 and s.answered >= 2]
    distances = total_variation([r for r, _ in testable], [s for _, s in testable])
    counts = [(r.counts, s.counts) for r, s in testable]
    tests = [permutation_test(x, y) for x, y in counts]
    rejected = holm([p for p, _ in tests], LEVEL)
    offenders = [
        Offender(item_id=r.id, tv=float(distance), p=p)
        for (r, _), distance, (p, _), differs in zip(testable, distances, tests, rejected, strict=True)
        if differs
    ]
    bound, power = _upper_bound(counts, 1.5 * margin**2)
    within = bound is not None and bound < 1.5 * margin**2
    return Equivalence(
        verdict="different" if offenders else "equivalent" if within else "inconclusive",
        margin=margin,
        n_items=len(one),
        n_untestable=len(one) - len(testable),
        mean_tv=float(distances.mean()) if testable else None,
        mean_tv_expected_by_chance=math.fsum(mean for _, mean in tests) / len(tests) if tests else None,
        rms_tv_bound=None if bound is None else math.sqrt(max(bound, 0.0) / 1.5),
        offenders=offenders,
        power=power,
        method="permutation and margin test",
        warnings=warnings,
    )


def equivalence_as_infereval(
    a: Evaluation, b: Evaluation, *, threshold: float = MARGIN, n_floor: int = FEWEST_SAMPLES
) -> Gate:
    """infereval's gate: it passes when no item has TV >= `threshold` and all have `n_floor` samples in both
    runs."""
    distances = compare_as_infereval(a, b).per_item_tv
    one, other = paired(take_readings(a, compat=True), take_readings(b, compat=True), a.id, b.id)
    thin = [r.id for r, s in zip(one, other, strict=True) if min(r.answered, s.answered) < n_floor]
    offenders = [(item, distance) for item, distance in distances.items() if distance >= threshold]
    return Gate(
        passed=not offenders and not thin,
        max_tv=max(distances.values(), default=0.0),
        offenders=offenders,
        under_powered=thin,
    )


def _exact(one: list[Reading], other: list[Reading], margin: float, warnings: list[str]) -> Equivalence:
    distances = total_variation(one, other)
    over = [
        Offender(item_id=r.id, tv=float(distance), p=None)
        for r, distance in zip(one, distances, strict=True)
        if distance > margin - _SAME
    ]
    return Equivalence(
        verdict="different" if over else "equivalent",
        margin=margin,
        n_items=len(one),
        n_untestable=0,
        mean_tv=float(distances.mean()),
        mean_tv_expected_by_chance=0.0,
        rms_tv_bound=float(distances.max()),
        offenders=over,
        power=None,
        method="exact",
        warnings=warnings,
    )


@lru_cache(maxsize=65536)
def permutation_test(x: Counts, y: Counts) -> tuple[float, float]:
    """Exact p that two samples of verdicts with one distribution differ in TV as much as these, and their
    mean TV.

    Every way to divide the pooled verdicts into samples of the two sizes is counted (a multivariate
    hypergeometric distribution of `x` given the pool), so nothing is approximated and nothing is drawn.
    """
    n, m = sum(x), sum(y)
    pool = [a + b for a, b in zip(x, y, strict=True)]
    good, bad = np.meshgrid(np.arange(pool[0] + 1), np.arange(pool[1] + 1), indexing="ij")
    table = np.stack([good, bad, n - good - bad], axis=-1).reshape(-1, 3)
    table = table[(table[:, 2] >= 0) & (table[:, 2] <= pool[2])]
    weight = np.exp(_log_choose(np.array(pool), table).sum(axis=1) - _log_choose(np.array(n + m), np.array(n)))
    distances = np.abs(table / n - (np.array(pool) - table) / m).sum(axis=1) / 2
    found = sum(abs(a / n - b / m) for a, b in zip(x, y, strict=True)) / 2
    return min(1.0, float(weight[distances >= found - _SAME].sum())), float(weight @ distances)


def _log_choose(n: Array, k: Array) -> Array:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which hypotheses Holm's step-down procedure (1979) rejects, with the family-wise error at `level`."""
    rejected = [False] * len(p_values)
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[position] > level / (len(p_values) - rank):
            break
        rejected[position] = True
    return rejected


def _upper_bound(counts: Sequence[tuple[Counts, Counts]], bar: float) -> tuple[float | None, float | None]:
    """Upper 95 % bound on the mean over items of |d|², and the probability of its being below `bar` when d is
    0.

    The standard error is the larger of two: that of the items' estimates, and that of the sampling model with
    the mean |d|² at `bar`. The model's proportions are smoothed, so that it stays positive where every sample
    said the same, and d is taken to lie along the noisiest direction.
    """
    if not counts:
        return None, None
    x, y = np.array([a for a, _ in counts], dtype=float), np.array([b for _, b in counts], dtype=float)
    n, m = x.sum(axis=1), y.sum(axis=1)
    squared = (
        (x * (x - 1)).sum(axis=1) / (n * (n - 1))
        + (y * (y - 1)).sum(axis=1) / (m * (m - 1))
        - 2 * (x * y).sum(axis=1) / (n * m)
    )
    items = len(counts)
    noise = _covariance(x) / n[:, None, None] + _covariance(y) / m[:, None, None]
    at_zero = 2 * (noise * noise).sum()
    at_bar = at_zero + 4 * bar * np.linalg.eigvalsh(noise)[:, -1].sum()
    z = norm.ppf(1 - LEVEL)
    modelled = z * math.sqrt(at_bar) / items
    spread = t.ppf(1 - LEVEL, items - 1) * squared.std(ddof=1) / math.sqrt(items) if items > 1 else 0.0
    power = norm.cdf((bar - modelled) * items / math.sqrt(at_zero))
    return float(squared.mean()) + max(modelled, float(spread)), float(power)


def _covariance(counts: Array) -> Array:
    """Covariance of one draw, shape (items, 3, 3), from proportions smoothed by half a draw of each
    verdict."""
    p = (counts + 0.5) / (counts.sum(axis=1, keepdims=True) + 1.5)
    return np.eye(3) * p[:, None, :] - p[:, :, None] * p[:, None, :]
