"""Calibration against plain computations, and against what a reader can work out."""

import numpy as np
import pytest
from pal50.analysis.confidence import Calibration, calibration_of
from pal50.analysis.resampling import Resampler
from pal50.analysis.trials import trials_of
from support.item_rows import perfect, random_subject, refuser, session, sessions


def calibrated(rows) -> Calibration:
    trials = trials_of(rows)
    return calibration_of(trials, Resampler(trials.participant, trials.pair, pair_strata=trials.level))


def noisy(rng, p, right):
    return int(np.clip(round(1 + 5 * p + rng.normal(0, 1) + (0.7 if right else -0.4)), 1, 6))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    subject = random_subject(rng, base=0.4, slope=3, participant_sd=0.6, confidence=noisy)
    return sessions(subject, 24)


@pytest.fixture(scope="module")
def found(rows) -> Calibration:
    return calibrated(rows)


def flat(rows):
    kept = [(row.confidence, row.correct) for row in rows if row.confidence is not None]
    return np.array([c for c, _ in kept]), np.array([float(y) for _, y in kept])


def test_the_measures_are_those_of_a_plain_computation(rows, found):
    c, y = flat(rows)
    p = (c - 1) / 5
    ece = sum((c == k).mean() * abs(p[c == k].mean() - y[c == k].mean()) for k in set(c))
    right, wrong = c[y == 1], c[y == 0]
    above, below = (right[:, None] > wrong).sum(), (right[:, None] < wrong).sum()
    assert found.n == len(c) == 1200
    assert found.stated.ece.value == pytest.approx(ece)
    assert found.stated.brier.value == pytest.approx(((p - y) ** 2).mean())
    assert found.overconfidence.value == pytest.approx(p.mean() - y.mean())
    assert found.auroc2.value == pytest.approx(
        (above + (right[:, None] == wrong).sum() / 2) / (right.size * wrong.size)
    )
    assert found.gamma.value == pytest.approx((above - below) / (above + below))


def test_auroc2_is_the_rank_sum_statistic(rows, found):
    from scipy.stats import mannwhitneyu

    c, y = flat(rows)
    u = mannwhitneyu(c[y == 1], c[y == 0]).statistic
    assert found.auroc2.value == pytest.approx(u / ((y == 1).sum() * (y == 0).sum()))


def test_the_ratings_add_up(rows, found):
    c, y = flat(rows)
    for rating in found.ratings:
        own = y[c == rating.rating]
        assert rating.accuracy.n == own.size
        assert rating.accuracy.value == pytest.approx(own.mean())
        assert rating.stated == (rating.rating - 1) / 5
    assert sum(rating.accuracy.n for rating in found.ratings) == found.n


@pytest.mark.parametrize("reading", ["stated", "mapped"])
def test_murphys_parts_add_up_to_the_brier_score(found, reading):
    scores = getattr(found, reading)
    parts = scores.reliability.value - scores.resolution.value + scores.uncertainty.value
    assert scores.brier.value == pytest.approx(parts, abs=1e-12)
    base = sum(r.accuracy.value * r.accuracy.n for r in found.ratings) / found.n
    assert scores.uncertainty.value == pytest.approx(base * (1 - base))


@pytest.mark.parametrize("reading", ["stated", "mapped"])
def test_every_measure_lies_in_its_interval_and_within_bounds(found, reading):
    scores = getattr(found, reading)
    for name in ("ece", "brier", "reliability", "resolution", "uncertainty"):
        estimate = getattr(scores, name)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_the_isotonic_map_never_saw_the_trial_it_is_applied_to():
    """Nine of ten participants are always right, one never, all say 6. Each of the nine is forecast from eight right
    and one wrong participant, the tenth from nine right ones. Fitted to itself, the map would have a Brier score of
    0.9 * 0.1."""
    rows = sessions(perfect, 9) + session(lambda _: {"outcome": "extra_list", "confidence": 6}, participant=9)
    assert calibrated(rows).mapped.brier.value == pytest.approx(0.9 * (1 / 9) ** 2 + 0.1 * 1.0)


def test_a_monotone_map_mends_what_is_miscalibrated(rows, found):
    upside_down = [row.model_copy(update={"confidence": 7 - row.confidence}) for row in rows]
    timid = [row.model_copy(update={"confidence": (row.confidence + 1) // 2}) for row in rows]
    assert calibrated(timid).mapped.ece.value < calibrated(timid).stated.ece.value / 3
    assert calibrated(upside_down).auroc2.value == pytest.approx(1 - found.auroc2.value)
    assert calibrated(upside_down).gamma.value == pytest.approx(-found.gamma.value)


@pytest.mark.parametrize(("subject", "word"), [(perfect, "right"), (refuser, "wrong")])
def test_discrimination_is_undefined_when_every_trial_agrees(subject, word):
    rows = [row.model_copy(update={"confidence": 3 + row.test_position % 2}) for row in sessions(subject, 4)]
    found = calibrated(rows)
    assert found.auroc2.value is None
    assert found.gamma.value is None
    assert found.auroc2.n == 200
    assert f"Every rated trial is {word}" in found.note
    assert found.stated.uncertainty.value == 0.0
    assert found.stated.resolution.value == pytest.approx(0.0)


def test_one_rating_discriminates_nothing_and_says_so():
    rng = np.random.default_rng(0)
    found = calibrated(sessions(random_subject(rng, confidence=lambda *_: 5), 4))
    assert found.auroc2.value == 0.5  # every pair of trials is tied: this half is observed, not made up
    assert found.gamma.value is None
    assert "Every rating is the same" in found.note


def test_trials_without_a_rating_are_counted_and_left_out(rows):
    cut = [row.model_copy(update={"confidence": None}) if row.test_position % 2 else row for row in rows]
    found = calibrated(cut)
    assert (found.n, found.without) == (600, 600)
    rated = [row for row in cut if row.confidence is not None]
    assert found.stated.brier.value == pytest.approx(calibrated(rated).stated.brier.value)
    assert found.auroc2.value == pytest.approx(calibrated(rated).auroc2.value)


def test_one_participant_is_calibrated_across_pairs(rows):
    found = calibrated([row for row in rows if row.participant == 0])
    assert found.mapped is not None
    assert found.n == 50
