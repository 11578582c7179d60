"""Participants needed."""

import pytest
from mindscope.errors import MindscopeError
from pal50.analysis import format_plan, participants_needed
from statsmodels.stats.proportion import samplesize_proportions_2indep_onetail


def test_telling_95_from_85_takes_about_140_trials():
    plan = participants_needed(0.95, 0.85)
    assert plan.trials == 141
    assert plan.participants == 15
    assert 0.75 < plan.simulated_power.value < 0.87
    assert "141 trials a group" in format_plan(plan)


@pytest.mark.parametrize(("first", "second"), [(0.95, 0.85), (0.5, 0.7), (0.2, 0.1)])
def test_the_approximation_is_statsmodels_own(first, second):
    expected = samplesize_proportions_2indep_onetail(first - second, second, 0.8, alpha=0.05, alternative="two-sided")
    assert participants_needed(first, second).trials == pytest.approx(expected, abs=1)


def test_the_order_of_the_rates_does_not_matter():
    assert participants_needed(0.6, 0.8).trials == participants_needed(0.8, 0.6).trials


def test_clustering_multiplies_the_trials_and_the_simulation_agrees():
    alone, clustered = participants_needed(0.9, 0.75), participants_needed(0.9, 0.75, design_effect=3.0)
    assert clustered.trials == pytest.approx(3 * alone.trials, abs=3)
    assert 0.72 < clustered.simulated_power.value < 0.9


def test_too_few_participants_show_in_the_simulation():
    """The normal approximation is rosy for five participants a group; the simulation asks for more."""
    plan = participants_needed(0.98, 0.60)
    assert plan.participants <= 3
    assert plan.simulated_power.value < 0.8
    assert plan.participants_simulated > plan.participants
    assert f"By simulation it takes {plan.participants_simulated}" in format_plan(plan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.9, 0.9, {}), "must differ"),
        ((1.0, 0.9, {}), "lie between 0 and 1"),
        ((0.9, 0.8, {"power": 0.01}), "power must lie"),
        ((0.9, 0.8, {"trials_each": 0}), "at least 1 trial"),
        ((0.9, 0.8, {"design_effect": 11.0}), "design effect must lie"),
        ((0.5, 0.5001, {}), "participants a group; the simulation stops"),
    ],
)
def test_plans_that_make_no_sense_are_errors(arguments, message):
    first, second, settings = arguments
    with pytest.raises(MindscopeError, match=message):
        participants_needed(first, second, **settings)
