import itertools
import math
import random

import numpy as np
import pytest
from mindscope.statistics import Estimate, cluster_bootstrap, mean_interval, weighted_mean, wilson


def closed_form_wilson(k: int, n: int) -> tuple[float, float]:
    """The score interval written out: the p whose distance from k/n is 1.96 of its own standard errors."""
    z = 1.959963984540054
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return centre - half, centre + half


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (1, 1), (18, 25), (3, 10), (700, 1910)])
def test_wilson_is_the_closed_formula(k: int, n: int) -> None:
    estimate = wilson(k, n)
    assert estimate.value == k / n
    assert (estimate.n, estimate.clusters) == (n, n)
    assert (estimate.low, estimate.high) == pytest.approx(closed_form_wilson(k, n), abs=1e-12)


def test_no_trials_give_no_number() -> None:
    undefined = (None, None, None, 0)
    for estimate in (wilson(0, 0), cluster_bootstrap([], []), mean_interval([], [])):
        assert (estimate.value, estimate.low, estimate.high, estimate.n) == undefined
    assert "NaN" not in wilson(0, 0).model_dump_json()


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="0 <= k <= n"):
        wilson(k, n)


def exact_bootstrap_interval(groups: list[list[float]]) -> tuple[float, float]:
    """Percentiles of the mean over every one of the G^G equally likely resamples of whole groups."""
    means = [
        sum(sum(group) for group in drawn) / sum(len(group) for group in drawn)
        for drawn in itertools.product(groups, repeat=len(groups))
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def flat(groups: list[list[float]]) -> tuple[list[float], list[str]]:
    return [v for group in groups for v in group], [f"i{i}" for i, group in enumerate(groups) for _ in group]


def test_bootstrap_agrees_with_every_resample_enumerated() -> None:
    groups = [[1.0, 1.0, 0.0], [0.0], [0.25, 0.5], [1.0], [0.0, 0.1]]
    values, clusters = flat(groups)
    estimate = cluster_bootstrap(values, clusters, n_resamples=40_000)
    assert estimate.value == pytest.approx(sum(values) / 9)
    assert (estimate.n, estimate.clusters) == (9, 5)
    assert (estimate.low, estimate.high) == pytest.approx(exact_bootstrap_interval(groups), abs=0.01)


def test_repeating_each_item_adds_no_certainty() -> None:
    rng = random.Random(1)
    once = [rng.random() for _ in range(30)]
    items = [f"i{i}" for i in range(30)]
    single, repeated = cluster_bootstrap(once, items), cluster_bootstrap(once * 10, items * 10)
    assert (repeated.low, repeated.high) == pytest.approx((single.low, single.high), abs=1e-9)
    assert (repeated.n, repeated.clusters) == (300, 30)


def test_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    """Items differ much, rollouts of an item little: taking rollouts for independent would fail."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        rates = rng.beta(0.6, 0.9, size=40)
        values = rng.binomial(1, np.repeat(rates, 4)).astype(float).tolist()
        clusters = [f"i{i}" for i in range(40) for _ in range(4)]
        estimate = cluster_bootstrap(values, clusters, seed=trial, n_resamples=500)
        covered += estimate.low <= 0.4 <= estimate.high
    assert 0.90 <= covered / 300 <= 0.98


def test_bootstrap_is_a_function_of_its_seed_and_not_of_the_order() -> None:
    rng = random.Random(2)
    pairs = [(rng.random(), f"i{i % 7}") for i in range(40)]
    shuffled = rng.sample(pairs, len(pairs))
    first, again, other = (
        cluster_bootstrap([v for v, _ in data], [c for _, c in data], seed=seed)
        for data, seed in ((pairs, 5), (shuffled, 5), (pairs, 6))
    )
    assert (first.low, first.high) == pytest.approx((again.low, again.high), abs=1e-12)
    assert (first.low, first.high) != (other.low, other.high)


def test_bootstrap_takes_any_weighted_statistic() -> None:
    """The mean by the general path equals the mean by the short one, and a difference of two groups works."""
    rng = random.Random(3)
    clusters = [f"i{i // 3}" for i in range(60)]
    values = [rng.random() for _ in clusters]
    short = cluster_bootstrap(values, clusters)
    general = cluster_bootstrap(values, clusters, statistic=lambda v, w: weighted_mean(v, w))
    assert (general.value, general.low, general.high) == pytest.approx((short.value, short.low, short.high))

    first = np.arange(60) < 30

    def difference(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        return weighted_mean(v[first], w[:, first]) - weighted_mean(v[~first], w[:, ~first])

    estimate = cluster_bootstrap(values, clusters, statistic=difference)
    assert estimate.value == pytest.approx(np.mean(values[:30]) - np.mean(values[30:]))
    assert estimate.low < estimate.value < estimate.high


def test_bootstrap_refuses_values_without_clusters() -> None:
    with pytest.raises(ValueError, match="3 values but 2 cluster names"):
        cluster_bootstrap([1.0, 0.0, 1.0], ["a", "b"])


def ends(estimate: Estimate) -> tuple[float | None, float | None]:
    return estimate.low, estimate.high


def test_one_answer_an_item_is_a_wilson_rate() -> None:
    estimate = mean_interval([1.0, 0.0, 1.0, 1.0], ["a", "b", "c", "d"])
    assert estimate == wilson(3, 4)


def test_rollouts_that_all_agree_count_once_an_item() -> None:
    """Ten items, right in all three rollouts: the interval is that of 10 trials, not of 30, nor [1, 1]."""
    items = [f"i{i}" for i in range(10) for _ in range(3)]
    estimate = mean_interval([1.0] * 30, items)
    assert (estimate.value, estimate.n, estimate.clusters) == (1.0, 30, 10)
    assert ends(estimate) == ends(wilson(10, 10))
    assert "Wilson" in estimate.method

    mixed = mean_interval([1.0] * 12 + [0.0] * 18, items)
    assert mixed.value == 0.4
    assert ends(mixed) == ends(wilson(4, 10))


def test_items_of_unequal_weight_keep_the_mean_over_rollouts() -> None:
    """Agreeing items of different sizes: a rate of items would be 1/2, the mean over rollouts is 3/4."""
    estimate = mean_interval([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
    assert estimate.value == 0.75
    assert "bootstrap" in estimate.method


def test_rewards_between_0_and_1_are_bootstrapped() -> None:
    estimate = mean_interval([0.2, 0.9, 0.4, 0.7], ["a", "b", "c", "d"])
    assert estimate.value == pytest.approx(0.55)
    assert "bootstrap" in estimate.method
    assert 0.2 <= estimate.low < 0.55 < estimate.high <= 0.9


@pytest.mark.parametrize(
    ("values", "items"), [([0.2, 0.4], ["a", "a"]), ([0.5, 0.5, 0.5], ["a", "b", "c"]), ([0.3], ["a"])]
)
def test_spread_that_was_not_seen_stays_undefined(values: list[float], items: list[str]) -> None:
    estimate = mean_interval(values, items)
    assert estimate.value == pytest.approx(sum(values) / len(values))
    assert ends(estimate) == (None, None)
