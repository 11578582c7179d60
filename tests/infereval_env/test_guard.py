"""Two runs: what must be the same for a comparison, and what the comparison says."""

import pytest
from infereval_env.formats import Setup
from infereval_env.guard import AXES, check_same_setup, compare
from mindscope.errors import MindscopeError

SETUP = Setup(template_id="t", elicitation_hash="sha256:e")


@pytest.fixture
def eta(make_eta):
    return make_eta({f"i{i}": letters for i, letters in enumerate(["GGG", "BBB", "GGB", "BBA"] * 5)}, setup=SETUP)


def changed(eta, axis):
    model, config = eta.model, eta.endorsement_config
    params = model.params.model_copy(update={"temperature": 0.1})
    coherent = eta.model_copy(update={"endorsement_config": config.model_copy(update={"question_form": "coherence"})})
    return {
        "model": eta.model_copy(update={"model": model.model_copy(update={"model_id": "n"})}),
        "params": eta.model_copy(update={"model": model.model_copy(update={"params": params})}),
        "benchmark": eta.model_copy(update={"setup": SETUP.model_copy(update={"elicitation_hash": "sha256:f"})}),
        "question_form": coherent,
        "template": eta.model_copy(update={"setup": SETUP.model_copy(update={"template_id": "u"})}),
        "prompt": eta.model_copy(
            update={"endorsement_config": config.model_copy(update={"verification_prompt_id": "own"})}
        ),
        "variant": eta.model_copy(update={"paraphrase_variant": 1}),
        "n_samples": eta.model_copy(update={"endorsement_config": config.model_copy(update={"n_samples": 4})}),
        "tie_break": eta.model_copy(update={"endorsement_config": config.model_copy(update={"tie_break": "good"})}),
        "verdicts": eta.model_copy(update={"setup": SETUP.model_copy(update={"verdicts": "logprob"})}),
        "parser": eta.model_copy(update={"setup": SETUP.model_copy(update={"parser": "first_label"})}),
    }[axis]


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis != "frame"])
def test_each_axis_is_guarded_and_can_be_varied(eta, axis):
    other = changed(eta, axis)
    with pytest.raises(MindscopeError, match=rf"\n  {axis}: "):
        check_same_setup(eta, other)
    also = ("frame", "prompt") if axis == "question_form" else ()
    assert all("both runs have" in warning for warning in check_same_setup(eta, other, vary=(axis, *also)))
    assert compare(eta, other, vary=(axis, *also)).varied[0] == axis


def test_the_frame_counts_under_coherence_only(eta):
    def framed(run, frame, form):
        config = run.endorsement_config.model_copy(update={"coherence_frame_id": frame, "question_form": form})
        return run.model_copy(update={"endorsement_config": config})

    assert check_same_setup(framed(eta, "a", "support"), framed(eta, "b", "support")) == []
    with pytest.raises(MindscopeError, match="frame: a against b"):
        check_same_setup(framed(eta, "a", "coherence"), framed(eta, "b", "coherence"))


def test_every_difference_is_named_at_once(eta):
    with pytest.raises(MindscopeError) as caught:
        check_same_setup(eta, changed(changed(eta, "model"), "variant"))
    assert "model:" in str(caught.value)
    assert "variant:" in str(caught.value)


def test_what_a_file_does_not_say_is_a_warning(eta, make_eta):
    plain = make_eta({"i0": "GGG"})
    (warning,) = check_same_setup(plain, plain)
    for axis in ("benchmark", "template", "verdicts", "parser"):
        assert axis in warning
    with pytest.raises(MindscopeError, match="no axis"):
        check_same_setup(eta, eta, vary=("templat",))
    assert "both runs have t" in check_same_setup(eta, eta, vary=("template",))[0]


def test_different_benchmarks_are_told_apart_by_name(eta):
    with pytest.raises(MindscopeError, match="benchmark: letters against other"):
        check_same_setup(eta, eta.model_copy(update={"benchmark_id": "other"}))


def test_a_comparison_by_hand(make_eta):
    """Six items: two agree, one flips, one goes from bad to abstain, one failed, one agrees on bad."""
    a = make_eta({"a": "GGGG", "b": "GGGB", "c": "GGGG", "d": "BBBB", "e": "BBBB", "f": "BBBB"})
    b = make_eta({"a": "GGGG", "b": "GGGG", "c": "BBBB", "d": "AAAA", "e": "EEEE", "f": "BBBB"})
    found = compare(a, b)
    assert (found.n_items, found.n_no_data, found.n_both_substantive) == (6, 1, 4)
    assert found.per_item_tv == {"a": 0.0, "b": 0.25, "c": 1.0, "d": 1.0, "e": None, "f": 0.0}
    assert found.mean_tv == pytest.approx(2.25 / 5)
    assert (found.flips.value, found.flips.n) == (pytest.approx(2 / 5), 5)
    assert found.kappa.value == pytest.approx(0.5)  # 3 of 4 agree, chance (3*2 + 1*2)/16
    # three-valued: 3 of 5 agree, chance (3*2 + 2*2 + 0*1)/25
    assert found.kappa_three_valued.value == pytest.approx((3 / 5 - 10 / 25) / (1 - 10 / 25))
    assert (found.coverage_a.value, found.coverage_b.value) == (1.0, pytest.approx(0.8))


def test_kappa_is_withheld_where_the_runs_hardly_meet(make_eta):
    a, b = make_eta({"a": "G", "b": "B", "c": "G"}), make_eta({"a": "G", "b": "A", "c": "A"})
    found = compare(a, b)
    assert found.insufficient_overlap
    assert (found.kappa.value, found.kappa.method) == (None, "too little overlap")
    assert compare(a, b, floor=0.3).insufficient_overlap is False


def test_items_missing_from_the_second_run_are_named(make_eta):
    a, b = make_eta({"a": "G", "b": "B"}), make_eta({"a": "G", "c": "B"})
    with pytest.raises(MindscopeError, match=r"lacks 1 item\(s\) of 'run': \['b'\]"):
        compare(a, b)
    found = compare(make_eta({"a": "G"}), b)
    assert any("1 item(s) of 'run' are not in" in warning for warning in found.warnings)
