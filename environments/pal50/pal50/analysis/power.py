"""How many participants tell two rates apart.

    plan = participants_needed(0.95, 0.85)
    plan.trials, plan.participants, plan.simulated_power

The trials a group are the normal approximation for two independent rates with a pooled variance under equality (Fleiss,
Levin & Paik 2003, Statistical Methods for Rates and Proportions, chapter 4), times the design effect. The check
draws participants whose rates vary as the design effect says (beta-binomial) and tests their means with Welch's t.
"""

import math
import warnings

import numpy as np
from mindscope.errors import MindscopeError
from mindscope.statistics import Estimate, wilson
from pydantic import BaseModel, ConfigDict
from scipy.stats import norm, ttest_ind

from pal50.analysis.trials import Array

ALPHA = 0.05
"""Two-sided."""

SIMULATIONS = 4_000
_DRAWN_AT_ONCE = 4_000_000
_MOST_PARTICIPANTS = 10_000


class Plan(BaseModel):
    """Two groups of equal size: two runs, or two levels met by different participants."""

    model_config = ConfigDict(frozen=True)

    first: float
    second: float
    power: float
    alpha: float
    trials_each: int
    """Trials of one participant at the level in question."""
    design_effect: float
    trials: int
    """Trials a group, by the approximation."""
    participants: int
    """Participants a group, by the approximation."""
    simulated_power: Estimate
    """Power of Welch's t test with that many participants a group."""
    participants_simulated: int
    """The least number from `participants` on whose simulated power reaches `power`."""


def participants_needed(
    first: float,
    second: float,
    *,
    power: float = 0.8,
    trials_each: int = 10,
    design_effect: float = 1.0,
    seed: int = 0,
) -> Plan:
    """Participants a group to tell `first` from `second` (rates strictly between 0 and 1).

    Raises MindscopeError for rates that are equal or out of range, a power outside (alpha, 1), a design effect below
    1 or above `trials_each`, or a plan of more than 10 000 participants.
    """
    _check(first, second, power, trials_each, design_effect)
    trials = math.ceil(_independent_trials(first, second, power) * design_effect)
    participants = max(2, math.ceil(trials / trials_each))
    if participants > _MOST_PARTICIPANTS:
        raise MindscopeError(
            f"Telling {first:g} from {second:g} takes {participants:,} participants a group; the simulation stops at "
            f"{_MOST_PARTICIPANTS:,}. Rates further apart, or more trials each, take fewer."
        )

    def simulated(size: int) -> Estimate:
        return _simulated_power(first, second, size, trials_each, design_effect, seed)

    at_plan = simulated(participants)
    enough, reached = participants, at_plan
    while reached.value is not None and reached.value < power:
        enough += max(1, enough // 20)
        reached = simulated(enough)
    return Plan(
        first=first,
        second=second,
        power=power,
        alpha=ALPHA,
        trials_each=trials_each,
        design_effect=design_effect,
        trials=trials,
        participants=participants,
        simulated_power=at_plan,
        participants_simulated=enough,
    )


def _check(first: float, second: float, power: float, trials_each: int, design_effect: float) -> None:
    if not (0 < first < 1 and 0 < second < 1) or first == second:
        raise MindscopeError(f"The two rates must differ and lie between 0 and 1; found {first:g} and {second:g}.")
    if not ALPHA < power < 1:
        raise MindscopeError(f"The power must lie between {ALPHA:g} and 1; found {power:g}.")
    if trials_each < 1:
        raise MindscopeError(f"A participant has at least 1 trial at the level; found {trials_each}.")
    if not 1 <= design_effect <= trials_each:
        raise MindscopeError(
            f"The design effect must lie between 1 (independent trials) and the {trials_each} trials of a "
            f"participant (all alike); found {design_effect:g}."
        )


def _independent_trials(first: float, second: float, power: float) -> float:
    mean = (first + second) / 2
    under_equality = norm.ppf(1 - ALPHA / 2) * math.sqrt(2 * mean * (1 - mean))
    under_difference = norm.ppf(power) * math.sqrt(first * (1 - first) + second * (1 - second))
    return float(((under_equality + under_difference) / (first - second)) ** 2)


def _simulated_power(
    first: float, second: float, participants: int, trials_each: int, design_effect: float, seed: int
) -> Estimate:
    rng = np.random.default_rng(seed)
    n_simulations = min(SIMULATIONS, _DRAWN_AT_ONCE // participants)
    rates = [
        _participants(rng, rate, (n_simulations, participants), trials_each, design_effect) for rate in (first, second)
    ]
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        p = ttest_ind(*rates, axis=1, equal_var=False).pvalue
    means_differ = rates[0].mean(axis=1) != rates[1].mean(axis=1)
    found = np.where(np.isnan(p), means_differ, p < ALPHA)  # no spread in either group: any difference is one
    return wilson(int(found.sum()), n_simulations)


def _participants(
    rng: np.random.Generator, rate: float, shape: tuple[int, int], trials_each: int, design_effect: float
) -> Array:
    """Share of right trials of each participant; the variance of a group's rate is `design_effect` times binomial."""
    chance: Array | float = rate
    if design_effect > 1 and trials_each > 1:
        alike = (design_effect - 1) / (trials_each - 1)
        if alike == 1:
            return np.asarray(rng.random(shape) < rate, dtype=float)
        concentration = 1 / alike - 1
        chance = rng.beta(rate * concentration, (1 - rate) * concentration, shape)
    return np.asarray(rng.binomial(trials_each, chance, shape) / trials_each)
