"""Two runs against each other."""

import numpy as np
import pytest
from pal50.analysis import Source, analyse
from pal50.analysis.contrasts import contrast
from pal50.analysis.trials import trials_of
from scipy.stats import binom
from support.item_rows import perfect, random_subject, refuser, session, sessions


def compared(first, second, kind="run"):
    return contrast(kind, ("a", "b"), trials_of(first), trials_of(second))


def by_value(found):
    return {one.value: one for one in found.differences}


def with_right(rows, right):
    return [row.model_copy(update={"correct": bool(one)}) for row, one in zip(rows, right, strict=True)]


def test_mcnemar_is_the_binomial_tail_of_the_discordant_trials():
    rows = session(perfect, n_pairs=50)
    first = with_right(rows, [1] * 30 + [0] * 20)
    second = with_right(rows, [1] * 21 + [0] * 9 + [1] * 2 + [0] * 18)
    paired = compared(first, second).paired
    assert (paired.n, paired.both, paired.only_first, paired.only_second, paired.neither) == (50, 21, 9, 2, 18)
    assert paired.p == pytest.approx(2 * binom.cdf(2, 11, 0.5))  # (1 + 11 + 55) / 1024


def test_without_a_discordant_trial_p_is_undefined():
    rows = sessions(perfect, 2)
    assert compared(rows, rows).paired.p is None


def test_trials_of_other_participants_have_no_mcnemar_test():
    found = compared(session(perfect, 0), session(refuser, 1))
    assert found.paired is None
    assert not found.same_participants


def test_pairing_by_item_removes_what_pairs_have_in_common():
    """Hard and easy pairs, the same for both runs: the difference is known far better than either rate."""
    rng = np.random.default_rng(0)
    pairs = {}

    def subject(bonus):
        def answer(trial):
            ease = pairs.setdefault(trial.pair, rng.normal(0, 3))
            return {"outcome": "correct" if rng.random() < 1 / (1 + np.exp(-ease - bonus)) else "omission"}

        return answer

    one = by_value(compared(sessions(subject(0.0), 40), sessions(subject(0.5), 40)))["all"]

    def width(estimate):
        return estimate.high - estimate.low

    assert width(one.difference) < 0.6 * width(one.first)
    assert one.difference.value == pytest.approx(one.first.value - one.second.value)


def test_the_difference_of_equal_subjects_covers_zero():
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        runs = [sessions(random_subject(rng, participant_sd=0.5), 8, n_pairs=20) for _ in range(2)]
        difference = by_value(compared(*runs))["all"].difference
        covered += difference.low <= 0 <= difference.high
    assert covered >= 35


def test_the_second_run_is_weighted_to_the_first_ones_cues():
    """The first run asks for A twice as often as for B, the second for each once: A counts double there too."""
    easy, hard = session(perfect, n_pairs=10)[:2]
    first = [easy, easy.model_copy(update={"cycle": 2}), hard]
    second = [easy, hard.model_copy(update={"correct": False})]
    one = by_value(compared(first, second))["all"]
    assert one.second.value == pytest.approx(2 / 3)
    assert one.difference.value == pytest.approx(1 / 3)


def test_cues_of_one_run_only_are_left_out_and_counted():
    rows = session(perfect, n_pairs=50)
    found = compared(rows[:30], rows[20:])
    assert found.left_out == (20, 20)
    assert by_value(found)["all"].first.n == 10


def test_no_common_cue_no_difference():
    rows = session(perfect, n_pairs=50)
    found = compared(rows[:20], rows[20:])
    assert (found.differences, found.paired) == ((), None)


def test_a_perfect_and_a_blank_run_still_have_an_interval():
    difference = by_value(compared(sessions(perfect, 10), sessions(refuser, 10), "guessing"))["L25"].difference
    assert difference.value == 1.0
    assert difference.low == pytest.approx(1 - np.hypot(1 - 0.7225, 0.2775), abs=1e-3)  # Wilson of 10/10 and 0/10
    assert difference.high == 1.0
    assert "Newcombe" in difference.method


def test_repaired_words_are_matched_by_their_cue():
    repaired = [
        row.model_copy(update={"trcode": f"{row.trcode}+L0_00", "correct": row.level != "L100"})
        for row in sessions(perfect, 5, study="repaired")
    ]
    one = by_value(compared(sessions(perfect, 5), repaired, "repaired"))
    assert one["L100"].difference.value == 1.0
    assert one["L0"].difference.value == 0.0


def test_runs_are_sorted_by_what_they_studied_and_by_model():
    def source(name, model, study):
        return Source(name, sessions(perfect, 2, study=study), model=model)

    analysis = analyse(
        [
            source("none-x", "x", "none"),
            source("x", "x", "full"),
            source("repaired-x", "x", "repaired"),
            source("y", "y", "full"),
            source("none-y", "y", "none"),
        ]
    )
    assert [(one.kind, one.first, one.second) for one in analysis.contrasts] == [
        ("guessing", "x", "none-x"),
        ("repaired", "x", "repaired-x"),
        ("guessing", "y", "none-y"),
        ("run", "x", "y"),
    ]
