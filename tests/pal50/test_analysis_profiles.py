"""Subjects whose tables can be written down by hand."""

import numpy as np
import pytest
from mindscope.errors import MindscopeError
from mindscope.statistics import wilson
from pal50.analysis import RunAnalysis, Source, analyse, format_text
from pal50.items import ItemRow
from support.item_rows import (
    LEVELS,
    neighbour,
    perfect,
    recency,
    refuser,
    session,
    sessions,
)

PARTICIPANTS, PAIRS = 10, 50


def analysed(rows: list[ItemRow], **source) -> RunAnalysis:
    return analyse([Source("run", rows, **source)]).runs[0]


def rate(run: RunAnalysis, value: str, factor: str = "level"):
    return next(row for row in run.accuracy if (row.factor, row.value) == (factor, value))


@pytest.fixture(scope="module")
def last_ten() -> RunAnalysis:
    return analysed(sessions(recency(10), PARTICIPANTS, order="card"))


@pytest.fixture(scope="module")
def confused() -> RunAnalysis:
    return analysed(sessions(neighbour, PARTICIPANTS))


def test_a_perfect_subject_is_right_everywhere_and_the_data_show_no_more():
    run = analysed(sessions(perfect, PARTICIPANTS))
    assert (run.participants, run.rollouts, run.trials) == (10, 10, 500)
    for row in run.accuracy:
        assert row.strict.value == row.lenient.value == 1.0
        assert row.design_effect is None
    level = rate(run, "L50")
    assert level.strict.n == 100
    assert (level.strict.low, level.strict.high) == (wilson(10, 10).low, 1.0)  # ten participants, ten pairs
    assert level.cell == wilson(100, 100)
    assert [(one.outcome, one.count) for one in run.outcomes] == [("correct", 500)]
    assert run.intrusions.n == 0
    assert run.regression.method == "none"
    assert "Every trial is right" in run.regression.why
    assert run.regression.terms == ()


def test_a_recency_only_subject_on_the_card_looks_like_a_similarity_effect_and_is_said_to(last_ten):
    assert [rate(last_ten, level).strict.value for level in LEVELS] == [0.0, 0.0, 0.0, 0.0, 1.0]
    curve = last_ten.serial_position.curve
    assert [(point.first, point.last) for point in curve.points] == [(i, i + 4) for i in range(1, 51, 5)]
    assert [point.accuracy.value for point in curve.points] == [0.0] * 8 + [1.0] * 2
    assert last_ten.serial_position.primacy.value == pytest.approx(0.0 - 5 / 40)
    assert last_ten.serial_position.recency.value == pytest.approx(1.0 - 5 / 40)
    assert last_ten.lag.points == ()
    assert "The lag is 50 on every trial" in last_ten.lag.note
    assert any("96% of the variance of study positions" in note for note in last_ten.notes)


def test_a_recency_only_subject_on_shuffled_lists_has_recency_and_falls_with_lag():
    run = analysed(sessions(recency(10), PARTICIPANTS))
    assert rate(run, "all", "all").strict.value == 0.2
    assert [point.accuracy.value for point in run.serial_position.curve.points] == [0.0] * 8 + [1.0] * 2
    low, high = run.serial_position.recency.low, run.serial_position.recency.high
    assert 0.5 < low < run.serial_position.recency.value <= high
    assert run.lag.slope.high < 0
    assert not any("variance of study positions" in note for note in run.notes)


def test_the_output_order_curve_has_the_least_squares_slope():
    rows = [row.model_copy(update={"correct": row.test_position <= 20}) for row in sessions(perfect, 4)]
    run = analysed(rows)
    expected = np.polyfit([row.test_position for row in rows], [row.correct for row in rows], 1)[0]
    assert run.output_order.slope.value == pytest.approx(expected)
    assert [point.accuracy.value for point in run.output_order.points] == [1.0] * 4 + [0.0] * 6


def test_an_intrusion_only_subject_has_a_matrix_of_neighbours(confused):
    assert rate(confused, "all", "all").strict.value == 0.0
    assert [(one.outcome, one.count) for one in confused.outcomes] == [("list_intrusion", 500)]
    assert confused.intrusions.n == 500
    assert sum(one.count for one in confused.intrusions.confusions) == 500
    assert [sum(row) for row in confused.intrusions.by_level] == [100] * 5
    gradient = confused.intrusions.gradient
    assert [one.count for one in gradient.distances] == [500, *[0] * (len(gradient.distances) - 1)]
    assert (gradient.from_earlier, gradient.from_later) == (10, 490)


def test_a_refuser_is_wrong_and_has_no_confidence():
    run = analysed(sessions(refuser, PARTICIPANTS))
    assert rate(run, "all", "all").strict.value == 0.0
    assert [(one.outcome, one.count, one.by_level["L75"]) for one in run.outcomes] == [("refusal", 500, 100)]
    assert run.confidence.n == 0
    assert run.confidence.auroc2 is None
    assert run.confidence.without == 500


def test_a_guesser_knows_as_much_without_study_as_with_it():
    def guesser(trial):
        return {"outcome": "correct" if trial.similarity == 1.0 else "extra_list"}

    analysis = analyse(
        [
            Source("full", sessions(guesser, PARTICIPANTS), model="m"),
            Source("none", sessions(guesser, PARTICIPANTS, study="none"), model="m"),
        ]
    )
    guessing = analysis.contrasts[0]
    assert (guessing.kind, guessing.first, guessing.second) == ("guessing", "full", "none")
    by_level = {one.value: one for one in guessing.differences}
    assert by_level["L100"].first.value == by_level["L100"].second.value == 1.0
    assert [one.difference.value for one in guessing.differences] == [0.0] * 6
    none = analysis.runs[1]
    assert none.serial_position.curve.points == ()
    assert "nothing was studied" in none.serial_position.curve.note
    assert not any("can be guessed" in note for note in analysis.runs[0].notes)


def test_lists_directions_and_cycles_are_told_apart():
    rows = session(perfect, list="AB") + session(refuser, list="AC", cycle=2) + session(perfect, direction="backward")
    run = analysed(rows)
    assert rate(run, "AB", "list").strict.value == 1.0
    assert rate(run, "AC", "list").strict.value == 0.0
    assert rate(run, "forward", "direction").strict.value == 0.5
    assert [(point.first, point.accuracy.value) for point in run.learning.points] == [(1, 1.0), (2, 0.0)]
    assert run.learning.slope.value == pytest.approx(-1.0)


def test_strict_and_lenient_stand_side_by_side():
    rows = [
        row.model_copy(update={"correct": False, "outcome": "extra_list"}) if row.level == "L0" else row
        for row in sessions(perfect, 3)
    ]
    level = rate(analysed(rows), "L0")
    assert (level.strict.value, level.lenient.value) == (0.0, 1.0)


def test_buffers_unreached_trials_and_failed_rollouts_are_counted_apart():
    rows = session(perfect)
    rows[0] = rows[0].model_copy(update={"scored": False, "correct": False})
    rows[1] = rows[1].model_copy(update={"outcome": "unreached", "correct": False, "lenient_correct": False})
    run = analysed(rows, failed_rollouts=3)
    assert (run.trials, run.buffers, run.unreached, run.failed_rollouts) == (49, 1, 1, 3)
    assert rate(run, "all", "all").strict.value == pytest.approx(48 / 49)
    assert "3 rollouts failed" in " ".join(run.notes)
    assert "1 trials were never reached" in " ".join(run.notes)


def test_tokens_are_added_up():
    assert analysed(sessions(perfect, 2)).tokens.model_dump() == {"n": 100, "input": 10_000, "output": 500}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "no run to analyse"),
        ([Source("a", session(perfect)), Source("a", session(perfect))], "two runs have this name"),
        ([Source("a", [], failed_rollouts=2)], r"no scored trial.*2 rollouts failed"),
        ([Source("a", session(perfect) + session(perfect, study="none"))], "mixes study=full and none"),
    ],
)
def test_what_cannot_be_analysed_is_an_error(sources, message):
    with pytest.raises(MindscopeError, match=message):
        analyse(sources)


def test_the_same_rows_give_the_same_numbers_in_any_order():
    rows = sessions(neighbour, 4) + sessions(recency(20), 4)
    rows = [row.model_copy(update={"rollout": i // 200}) for i, row in enumerate(rows)]
    first, second = analysed(rows), analysed(rows)
    assert first == second
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    for one, other in zip(first.accuracy, analysed(shuffled).accuracy, strict=True):
        assert one.strict.value == pytest.approx(other.strict.value)
        assert one.cell == other.cell


def test_every_rate_of_the_text_has_its_n(last_ten):
    text = format_text(analyse([Source("run", sessions(recency(10), 10, order="card"))]))
    assert "L100   100   1.000  [0.722, 1.000]" in text
    assert "recall" not in text.split("Regression")[0]
    assert "Primacy: the first tenth minus the middle is -0.125" in text
