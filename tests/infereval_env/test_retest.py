"""Test-retest reliability: what counts as stable, and what does not count as a retest."""

from datetime import UTC, datetime

import pytest
from infereval_env.formats import Setup
from infereval_env.retest import retest, retest_series, stability
from mindscope.errors import MindscopeError


def test_a_verdict_that_wavers_to_abstain_counts(make_eta):
    a = make_eta({f"i{i}": letter for i, letter in enumerate("GGBBA")})
    b = make_eta({f"i{i}": letter for i, letter in enumerate("GGBBG")})
    ours, theirs = retest(a, b), retest(a, b, compat=True)
    assert ours.kappa.value == theirs.kappa.value == 1.0
    assert (theirs.stability, ours.stability) == ("stable", "moderately_stable")
    assert ours.kappa_three_valued.value == pytest.approx((0.8 - 0.4) / 0.6)
    assert [change.item_id for change in ours.flipped] == ["i4"]


def test_two_models_are_not_one_instrument(make_eta):
    a = make_eta({"x": "G", "y": "B"})
    b = a.model_copy(update={"model": a.model.model_copy(update={"model_id": "other"})})
    with pytest.raises(MindscopeError, match="model"):
        retest(a, b)
    assert retest(a, b, compat=True).identity.same_model_and_sampling is False


def test_two_templates_are_not_one_instrument(make_eta):
    a, b = (make_eta({"x": "G", "y": "B"}, setup=Setup(template_id=name)) for name in "ab")
    with pytest.raises(MindscopeError, match="template"):
        retest(a, b)


def test_failed_items_are_neither_kept_nor_flipped(make_eta):
    found = retest(make_eta({"x": "G", "y": "B", "z": "G"}), make_eta({"x": "G", "y": "B", "z": "E"}))
    assert (found.n_items, found.n_no_data, found.n_agreements) == (3, 1, 2)
    assert (found.flips.value, found.flips.n, found.flipped) == (0.0, 2, [])
    assert found.flips.high > 0.5  # two items say little: Wilson, not [0, 0]


def test_unanimity_leaves_kappa_undefined_and_ac1_defined(make_eta):
    a = make_eta({"x": "G", "y": "G"})
    found = retest(a, a)
    assert (found.kappa.value, found.stability, found.ac1_three_valued.value) == (None, "undefined", 1.0)


@pytest.mark.parametrize(
    ("kappa", "label"),
    [(0.8, "stable"), (0.79, "moderately_stable"), (0.6, "moderately_stable"), (0.59, "unstable"), (None, "undefined")],
)
def test_labels(kappa, label):
    assert stability(kappa) == label


def test_a_series_names_its_worst_and_the_longest_wait_among_equals(make_eta):
    def run(name, letters, hour):
        return make_eta(
            {f"i{i}": letter for i, letter in enumerate(letters)},
            run=name,
            started_at=datetime(2026, 1, 1, hour, tzinfo=UTC),
        )

    base = run("base", "GGGGGBBBBB", 1)
    later = [run("late", "GGGGBBBBBG", 9), run("early", "GGGGBBBBBG", 2), run("same", "GGGGGBBBBB", 5)]
    series = retest_series(base, later)
    assert [(pair.run_b, pair.interval_s) for pair in series.pairs] == [
        ("early", 3600),
        ("same", 4 * 3600),
        ("late", 8 * 3600),
    ]
    assert series.worst == "late"
    with pytest.raises(MindscopeError, match="second evaluation"):
        retest_series(base, [])


def test_a_clock_that_ran_backwards_gives_no_interval(make_eta):
    a = make_eta({"x": "G", "y": "B"}, started_at=datetime(2026, 1, 2, tzinfo=UTC))
    b = a.model_copy(update={"started_at": datetime(2026, 1, 1, tzinfo=UTC)})
    found = retest(a, b)
    assert found.interval_s is None
    assert any("before the first" in warning for warning in found.warnings)


def test_items_of_one_run_only_are_left_out_aloud(make_eta):
    found = retest(make_eta({"x": "G", "y": "B", "z": "B"}), make_eta({"x": "G", "y": "B"}))
    assert found.n_items == 2
    assert any("1 item(s) are in one run only" in warning for warning in found.warnings)
