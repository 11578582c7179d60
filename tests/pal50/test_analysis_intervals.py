"""Two-way intervals against simulations, brute force and the one-way bootstrap of mindscope.statistics."""

import numpy as np
import pytest
from mindscope.statistics import mean_interval
from pal50.analysis.resampling import Resampler, ratio


def crossed(rng, participants, pairs, participant_sd, pair_sd, base=1.0):
    """0/1 outcomes of every participant with every pair, flattened, with the numbers of both."""
    log_odds = base + rng.normal(0, participant_sd, (participants, 1)) + rng.normal(0, pair_sd, (1, pairs))
    right = (rng.random((participants, pairs)) < 1 / (1 + np.exp(-log_odds))).astype(float)
    who, what = np.divmod(np.arange(participants * pairs), pairs)
    return right.ravel(), who, what


def population_rate(sd, base=1.0):
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    return float(weights @ (1 / (1 + np.exp(-(base + sd * nodes)))) / weights.sum())


@pytest.mark.parametrize(
    ("participants", "pairs", "participant_sd", "pair_sd"),
    [(10, 10, 0.0, 0.0), (15, 30, 1.0, 0.0), (40, 10, 0.0, 1.0), (15, 30, 0.7, 0.7)],
)
def test_the_interval_covers_the_population_rate(participants, pairs, participant_sd, pair_sd):
    rng = np.random.default_rng(5)
    truth = population_rate(np.hypot(participant_sd, pair_sd))
    covered, runs = 0, 150
    for _ in range(runs):
        right, who, what = crossed(rng, participants, pairs, participant_sd, pair_sd)
        (estimate,) = Resampler(who, what, n_resamples=400).rates(right[:, None])
        covered += estimate.low <= truth <= estimate.high
    assert 0.90 <= covered / runs <= 1.0


def test_independent_trials_have_a_design_effect_near_one_not_the_three_of_the_plain_pigeonhole():
    rng = np.random.default_rng(2)
    effects = []
    for _ in range(60):
        right, who, what = crossed(rng, 20, 20, 0.0, 0.0)
        columns = np.column_stack([right, np.ones(len(right))])
        rate = right.mean()
        effects.append(Resampler(who, what, n_resamples=2).spread(columns, ratio).variance / (rate * (1 - rate) / 400))
    assert 0.9 < np.mean(effects) < 1.4


def test_the_variance_of_a_mean_is_the_two_way_formula():
    right, who, what = crossed(np.random.default_rng(0), 8, 12, 1.0, 1.0)
    residual = (right - right.mean()).reshape(8, 12) / right.size
    by_who, by_what = (residual.sum(axis=1) ** 2).sum() * 8 / 7, (residual.sum(axis=0) ** 2).sum() * 12 / 11
    cells = (residual**2).sum() * 96 / 95
    columns = np.column_stack([right, np.ones(len(right))])
    spread = Resampler(who, what, n_resamples=2).spread(columns, ratio)
    assert spread.variance == pytest.approx(by_who + by_what - cells, rel=1e-6)
    assert spread.degrees_of_freedom == pytest.approx(spread.variance**2 / (by_who**2 / 7 + by_what**2 / 11), rel=1e-6)


def test_resampled_sums_are_what_a_loop_over_draws_gives():
    rng = np.random.default_rng(1)
    who, what = rng.integers(0, 4, 30), rng.integers(0, 5, 30)
    who[:4], what[:5] = range(4), range(5)
    values = rng.normal(size=(30, 2))
    resampler = Resampler(who, what, n_resamples=5_000)
    sums = resampler.sums(values)
    plain = np.array(
        [
            sum(
                (np.bincount(rng.integers(0, 4, 4), minlength=4)[who])[:, None]
                * (np.bincount(rng.integers(0, 5, 5), minlength=5)[what])[:, None]
                * values
            )
            for _ in range(5_000)
        ]
    )
    assert sums.mean(axis=0) == pytest.approx(values.sum(axis=0), abs=0.4)
    assert sums.std(axis=0) == pytest.approx(plain.std(axis=0), rel=0.06)


def test_pairs_are_drawn_within_their_level():
    """Two levels, one always right and one never: their mean does not move when levels are fixed."""
    who, what = np.divmod(np.arange(200), 20)
    right = (what < 10).astype(float)
    stratified = Resampler(who, what, pair_strata=(what < 10).astype(int))
    assert (stratified.sums(right[:, None]) == right.sum()).all()
    (fixed,) = stratified.rates(right[:, None])
    (free,) = Resampler(who, what).rates(right[:, None])
    assert (fixed.low, fixed.high) == (None, None)
    assert free.low < 0.3 < 0.7 < free.high


def test_one_participant_leaves_the_pairs_as_units():
    right = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    pairs = np.arange(8)
    (estimate,) = Resampler(np.zeros(8, dtype=int), pairs).rates(right[:, None])
    assert estimate == mean_interval(right.tolist(), [str(pair) for pair in pairs])


def test_no_trials_no_rate():
    who, what = np.divmod(np.arange(20), 5)
    (estimate,) = Resampler(who, what).rates(np.ones((20, 1)), np.zeros((20, 1)))
    assert (estimate.value, estimate.low, estimate.n) == (None, None, 0)
