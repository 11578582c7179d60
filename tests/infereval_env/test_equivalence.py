"""The template test: exact item by item, and as often wrong as it says it is."""

from itertools import permutations

import numpy as np
import pytest
from infereval_env.equivalence import equivalence, equivalence_as_infereval, holm, permutation_test
from infereval_env.formats import Sample, Setup
from mindscope.errors import MindscopeError


def draw(rng, make_eta, distributions, n, template):
    votes = {
        f"i{i:02}": "".join(rng.choice(list("GBA"), size=n, p=distribution))
        for i, distribution in enumerate(distributions)
    }
    return make_eta(votes, setup=Setup(template_id=template, elicitation_hash="h"))


def verdicts(make_eta, first, second, n, runs, seed=0):
    rng = np.random.default_rng(seed)
    return [
        equivalence(draw(rng, make_eta, first, n, "a"), draw(rng, make_eta, second, n, "b")).verdict
        for _ in range(runs)
    ]


@pytest.mark.parametrize(("x", "y"), [((3, 0, 1), (1, 2, 0)), ((2, 2, 0), (4, 0, 0)), ((1, 1, 2), (0, 3, 1))])
def test_the_permutation_test_by_brute_force(x, y):
    pool = [letter for letter, count in zip("GBA", np.add(x, y), strict=True) for _ in range(count)]
    n, m = sum(x), sum(y)

    def tv(order):
        first, second = order[:n], order[n:]
        return sum(abs(first.count(v) / n - second.count(v) / m) for v in "GBA") / 2

    found = sum(abs(a / n - b / m) for a, b in zip(x, y, strict=True)) / 2
    distances = np.array([tv(order) for order in permutations(pool)])
    p, mean = permutation_test(x, y)
    assert p == pytest.approx(np.mean(distances >= found - 1e-12))
    assert mean == pytest.approx(distances.mean())


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([0.02, 0.02], 0.05) == [True, True]
    assert holm([], 0.05) == []


@pytest.mark.parametrize(("p", "n"), [(0.5, 30), (0.9, 30), (0.7, 10)])
def test_the_same_distribution_twice_is_seldom_called_different(make_eta, p, n):
    """infereval's gate fails such a pair of runs always: at p = 0.5 two items in five differ by 0.10 or
    more."""
    same = [(p, 1 - p, 0.0)] * 35
    found = verdicts(make_eta, same, same, n, 60)
    assert found.count("different") / 60 <= 0.1
    gate = [
        equivalence_as_infereval(draw(rng, make_eta, same, 30, "a"), draw(rng, make_eta, same, 30, "b")).passed
        for rng in map(np.random.default_rng, range(10))
    ]
    assert not any(gate)


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_runs_at_the_margin_are_seldom_called_equivalent(make_eta, p):
    """Every item shifted so that the mean |d|² is 3/2 * 0.10²: at most one such pair in twenty may pass."""
    shift = (1.5 * 0.10**2 / 2) ** 0.5
    first, second = [(p, 1 - p, 0.0)] * 35, [(p + shift, 1 - p - shift, 0.0)] * 35
    found = verdicts(make_eta, first, second, 30, 100)
    assert found.count("equivalent") / 100 <= 0.10


def test_one_item_that_turns_round_is_found(make_eta):
    steady = [(0.95, 0.05, 0.0)] * 34
    a, b = [*steady, (0.95, 0.05, 0.0)], [*steady, (0.05, 0.95, 0.0)]
    rng = np.random.default_rng(2)
    found = equivalence(draw(rng, make_eta, a, 30, "a"), draw(rng, make_eta, b, 30, "b"))
    assert found.verdict == "different"
    assert [offender.item_id for offender in found.offenders] == ["i34"]
    assert found.offenders[0].tv > 0.7


def test_equivalence_can_be_shown(make_eta):
    mixed = [(0.9, 0.05, 0.05), (0.1, 0.85, 0.05), (0.5, 0.5, 0.0), (0.97, 0.03, 0.0)] * 9
    found = verdicts(make_eta, mixed, mixed, 60, 20)
    assert found.count("equivalent") >= 18


def test_too_few_samples_are_inconclusive_and_never_a_pass(make_eta):
    a = make_eta({"x": "GGGGG", "y": "BBBBB"}, setup=Setup(template_id="a"))
    b = a.model_copy(update={"setup": Setup(template_id="b")})
    found = equivalence(a, b)
    assert found.verdict == "inconclusive"
    assert found.power < 0.1
    assert found.rms_tv_bound > found.margin


def test_items_that_failed_are_not_tested(make_eta):
    a = make_eta({"x": "G" * 300, "y": "E" * 300}, setup=Setup(template_id="a"))
    b = make_eta({"x": "G" * 300, "y": "B" * 300}, setup=Setup(template_id="b"))
    found = equivalence(a, b)
    assert (found.n_items, found.n_untestable, found.verdict) == (2, 1, "equivalent")


def test_nothing_to_test_is_inconclusive(make_eta):
    a = make_eta({}, setup=Setup(template_id="a"))
    found = equivalence(a, a.model_copy(update={"setup": Setup(template_id="b")}))
    assert (found.verdict, found.mean_tv, found.rms_tv_bound) == ("inconclusive", None, None)


def test_label_probabilities_are_compared_exactly(make_eta):
    def scored(goods, template):
        eta = make_eta(dict.fromkeys(["x", "y"], "G"), setup=Setup(template_id=template, verdicts="logprob"))
        items = tuple(
            item.model_copy(
                update={
                    "samples": (
                        Sample(
                            sample_index=0, raw_response="GOOD", parsed_verdict="good",
                            label_probabilities={"good": good, "bad": 0.9 - good, "abstain": 0.1},
                        ),
                    )
                }
            )
            for item, good in zip(eta.items, goods, strict=True)
        )  # fmt: skip
        return eta.model_copy(update={"items": items})

    near = equivalence(scored([0.8, 0.1], "a"), scored([0.75, 0.1], "b"))
    assert (near.verdict, near.method, near.rms_tv_bound) == ("equivalent", "exact", pytest.approx(0.05))
    edge = equivalence(scored([0.9, 0.1], "a"), scored([0.8, 0.1], "b"))
    assert (edge.verdict, [o.item_id for o in edge.offenders]) == ("different", ["x"])


def test_anything_else_that_differs_is_refused(make_eta):
    a = make_eta({"x": "GG"}, setup=Setup(template_id="a"))
    b = make_eta({"x": "GG"}, setup=Setup(template_id="b"), paraphrase_variant=1)
    with pytest.raises(MindscopeError, match="variant"):
        equivalence(a, b)
    assert equivalence(a, b, vary=("template", "variant")).n_items == 1
