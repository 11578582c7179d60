"""The regression finds what was planted, says what it did, and keeps quiet where there is nothing to say."""

import numpy as np
import pytest
from pal50.analysis.regression import Regression, regression_of
from pal50.analysis.trials import trials_of
from scipy.special import expit, logit
from support.item_rows import perfect, random_subject, refuser, session, sessions


def term(found: Regression, name: str):
    return next(one for one in found.terms if one.name == name)


def planted(seed=0, participants=20, slope=2.0, **settings):
    rng = np.random.default_rng(seed)
    return sessions(
        random_subject(rng, base=0.5, slope=slope, participant_sd=0.8, slope_sd=0.8, pair_sd=0.5),
        participants,
        **settings,
    )


def test_a_planted_slope_is_recovered_with_honest_intervals():
    """Over replications the mean estimate is near the truth and the intervals cover it; an interval that took
    participants' slopes as known would be half as wide and would cover in two of three cases only."""
    found = [regression_of(trials_of(planted(seed))) for seed in range(10)]
    slopes = [term(one, "similarity").log_odds for one in found]
    assert all(one.method == "mixed" for one in found)
    assert np.mean([slope.value for slope in slopes]) == pytest.approx(2.0, abs=0.3)
    assert sum(slope.low <= 2.0 <= slope.high for slope in slopes) >= 8
    assert np.mean([slope.low <= 0 for slope in slopes]) < 0.1
    sds = np.mean([[effect.sd for effect in one.random_effects] for one in found], axis=0)
    assert sds == pytest.approx([0.8, 0.8, 0.5], abs=0.3)
    assert [effect.name for effect in found[0].random_effects] == [
        "participant, intercept",
        "participant, similarity",
        "pair, intercept",
    ]


def test_without_an_effect_the_interval_holds_zero_about_as_often_as_it_should():
    slopes = [term(regression_of(trials_of(planted(seed, slope=0.0))), "similarity") for seed in range(100, 106)]
    assert sum(one.log_odds.low <= 0 <= one.log_odds.high for one in slopes) >= 5


def test_a_slope_is_reported_in_the_unit_it_names():
    """Recall falls with study position by 0.1 log-odds a position: the reported slope is for ten positions."""
    rng = np.random.default_rng(1)

    def subject(trial):
        right = rng.random() < expit(2.5 - 0.1 * trial.study_position)
        return {"outcome": "correct" if right else "omission"}

    found = regression_of(trials_of(sessions(subject, 20)))
    slope = term(found, "study position")
    assert slope.unit == "per 10"
    assert slope.log_odds.value == pytest.approx(-1.0, abs=0.2)
    assert slope.odds_ratio == pytest.approx(np.exp(slope.log_odds.value))
    assert term(found, "lag").log_odds.low < 0 < term(found, "lag").log_odds.high


def test_the_intercept_is_the_log_odds_of_the_average_trial():
    rng = np.random.default_rng(4)
    rows = sessions(random_subject(rng, base=1.0), 20)
    accuracy = np.mean([row.correct for row in rows])
    found = regression_of(trials_of(rows))
    assert term(found, "intercept").log_odds.value == pytest.approx(logit(accuracy), abs=0.15)


def test_what_the_design_holds_constant_is_left_out_by_name():
    found = regression_of(trials_of(planted(order="card")))
    assert [one.name for one in found.terms] == ["intercept", "similarity", "study position"]
    assert "lag: the same on every trial." in found.left_out
    assert "cycle: the same on every trial." in found.left_out
    assert any("can hardly be told apart" in caution for caution in found.cautions)
    shuffled = regression_of(trials_of(planted()))
    assert shuffled.cautions == ()


def test_a_predictor_that_others_determine_is_left_out():
    """Tested in reverse study order, lag is a function of study position."""
    rows = [
        row.model_copy(update={"lag": 2 * (50 - row.study_position) + 1, "test_position": 51 - row.study_position})
        for row in planted()
    ]
    found = regression_of(trials_of(rows))
    assert any(reason.startswith("lag: determined by") for reason in found.left_out)


def test_without_study_positions_are_left_out():
    found = regression_of(trials_of(planted(study="none")))
    assert [one.name for one in found.terms] == ["intercept", "similarity"]
    assert "study position: nothing was studied." in found.left_out


def test_when_the_mixed_model_fails_gee_stands_in_and_says_so(monkeypatch):
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    honest = BinomialBayesMixedGLM.fit_vb

    def too_short(self, **settings):
        return honest(self, **settings | {"minim_opts": {"maxiter": 1}})

    monkeypatch.setattr(BinomialBayesMixedGLM, "fit_vb", too_short)
    rows = planted(participants=30)
    found = regression_of(trials_of(rows))
    assert found.method == "gee"
    assert "because the mixed model did not converge" in found.why
    assert found.random_effects == ()
    slope = term(found, "similarity").log_odds
    assert 0.8 < slope.value < 2.5
    assert slope.low > 0


@pytest.mark.parametrize(("subject", "word"), [(perfect, "right"), (refuser, "wrong")])
def test_degenerate_data_get_a_sentence_and_no_numbers(subject, word):
    found = regression_of(trials_of(sessions(subject, 4)))
    assert found.method == "none"
    assert f"Every trial is {word}" in found.why
    assert (found.terms, found.random_effects) == ((), ())


def test_one_participant_gets_a_sentence():
    rows = session(random_subject(np.random.default_rng(0)))
    assert "one participant" in regression_of(trials_of(rows)).why
