"""The measures of a run: failures stay failures, and nothing depends on an order or on what an author
guessed."""

import random

import pytest
from infereval_env.audit import audit
from infereval_env.formats import MonotonicityStep, RsrTarget, Sample, Setup, elicitation_hash
from infereval_env.measures import (
    Frame,
    arity,
    cells,
    consensus,
    dispersion,
    frame_count,
    measure,
    measure_as_infereval,
    panel_agreement,
)
from infereval_env.monotonicity import ladders
from infereval_env.readings import Reading, belonging_warnings, rejoin, take_readings
from infereval_env.runlog import with_verdicts
from infereval_env.structure import structure
from mindscope.errors import MindscopeError

VOTES = {f"i{i:02}": letters for i, letters in enumerate(["GGG", "GGB", "BBB", "BAB", "AAA", "GGA"] * 4)}
PANEL = {f"i{i:02}": letters for i, letters in enumerate(["GGG", "GGG", "BBG", "BBB", "GAB", "-GG"] * 4)}


# -------------------------------------------------------------------------------------------------------- no data


def test_failed_calls_are_no_data_and_not_abstentions(make_eta):
    readings = take_readings(make_eta({"ok": "GGGGG", "few": "GGEEE", "none": "EEEEE", "abstains": "AAAAA"}))
    assert [reading.outcome for reading in readings] == ["good", "no_data", "no_data", "abstain"]
    found = measure(readings)
    assert (found.n_items, found.n_no_data) == (4, 2)
    assert (found.calls_answered, found.calls_failed) == (12, 8)
    assert (found.coverage.value, found.coverage.n) == (0.5, 2)
    numbers = measure_as_infereval(take_readings(make_eta({"ok": "G", "none": "E"}), compat=True))
    assert numbers.coverage == 0.5


def test_no_items_have_no_coverage(make_eta):
    found = measure(take_readings(make_eta({})))
    assert (found.coverage.value, found.coverage.n) == (None, 0)
    assert found.kappa_C.value is None
    assert found.coverage_per_analyst == []
    assert found.dispersion.mean_margin is None


def test_an_unparseable_reply_abstains_and_is_counted(make_eta):
    (reading,) = take_readings(make_eta({"x": "GUU"}))
    assert (reading.outcome, reading.counts, reading.unparseable, reading.failed) == ("abstain", (1, 0, 2), 2, 0)


def test_min_valid_can_be_asked_for(make_eta):
    eta = make_eta({"x": "GGEEE"})
    assert take_readings(eta, min_valid=2)[0].outcome == "good"
    assert take_readings(eta, compat=True)[0].outcome == "abstain"  # what the file records for no_data


def test_items_the_run_did_not_reach_are_no_data(make_eta, make_benchmark):
    benchmark = make_benchmark({"x": "GB", "y": "BB"})
    readings = take_readings(make_eta({"x": "GGG"}), benchmark)
    assert [(reading.id, reading.outcome) for reading in readings] == [("x", "good"), ("y", "no_data")]
    assert len(take_readings(make_eta({"x": "GGG"}), benchmark, compat=True)) == 1


def test_no_data_reaches_every_measure(make_eta, make_benchmark):
    items = tuple(
        item.model_copy(
            update={
                "premises": (tier,),
                "ladder": "L",
                "tags": ("base-inference",),
                "rsr_target": RsrTarget(X=("p",), A=("q",)),
                "monotonicity_step": MonotonicityStep(family="F", tier=tier, tier_index=i),
            }
        )
        for i, (item, tier) in enumerate(zip(make_benchmark(dict.fromkeys("xyz", "G")).items, "prs", strict=True))
    )
    benchmark = make_benchmark({"x": "G"}, items=items, ordinal_families={"F": ("p", "r", "s")})
    eta = make_eta({"x": "BBB", "y": "EEE", "z": "GGG"}, dict.fromkeys("xyz", "G"))
    eta = eta.model_copy(
        update={
            "items": tuple(
                item.model_copy(update={"premises": asked.premises, "tags": asked.tags})
                for item, asked in zip(eta.items, items, strict=True)
            )
        }
    )
    readings = take_readings(eta, benchmark)
    (ladder,) = ladders(readings)
    assert (ladder.sequence, ladder.gaps, ladder.missing, ladder.status) == ("B?G", 0, ["y"], "monotone")
    assert frame_count(readings).undecided == ["y"]
    assert dispersion(readings).n_items == 2
    assert {check.name: check.checked for check in structure(readings)}["base_case_stability"] == 2
    assert cells(readings, lambda reading: [arity(reading)])["single"].n_no_data == 1
    assert audit(eta).no_data == ["y"]


def test_a_missing_analyst_is_not_an_abstaining_one(make_eta):
    eta = make_eta({"x": "G", "y": "B"}, {"x": "G-", "y": "BA"})
    found = measure(take_readings(eta))
    assert [(c.value, c.n) for c in found.coverage_per_analyst] == [(1.0, 2), (0.0, 1)]
    numbers = measure_as_infereval(take_readings(eta, compat=True))
    assert numbers.coverage_per_analyst == [1.0, 0.0]


def test_label_probabilities_decide_without_a_vote(make_eta):
    def scored(good, bad, abstain):
        return Sample(
            sample_index=0,
            raw_response="",
            parsed_verdict="abstain",
            wall_time_ms=1.0,
            label_probabilities={"good": good, "bad": bad, "abstain": abstain},
        )

    eta = make_eta({"x": "G", "y": "G"}, setup=Setup(verdicts="logprob"))
    items = tuple(
        item.model_copy(update={"samples": (sample,)})
        for item, sample in zip(eta.items, (scored(0.3, 0.1, 0.1), scored(0.2, 0.2, 0.1)), strict=True)
    )
    first, second = take_readings(with_verdicts(eta.model_copy(update={"items": items})))
    assert (first.outcome, first.label_mass) == ("good", pytest.approx(0.5))
    assert first.shares == pytest.approx((0.6, 0.2, 0.2))
    assert first.margin == pytest.approx(0.4)
    assert (second.outcome, second.tie_broken) == ("abstain", True)


# --------------------------------------------------------------------------------------------------------- invariance


def rounded(found):
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 9) if isinstance(found, float) else found


def numbers(readings):
    """Everything measured to nine digits, with what follows the order of items or analysts sorted."""
    found = measure(readings, n_resamples=500).model_dump()
    for name in ("members", "undecided"):
        found["frame"][name] = sorted(found["frame"][name])
    found = rounded(found)
    per_analyst = zip(found.pop("kappa_C_per_analyst"), found.pop("coverage_per_analyst"), strict=True)
    return found, sorted(map(str, per_analyst))


def test_permuting_items_analysts_or_samples_changes_nothing(make_eta):
    rng = random.Random(3)
    base = numbers(take_readings(make_eta(VOTES, PANEL)))
    names = list(VOTES)
    rng.shuffle(names)
    shuffled = {name: "".join(rng.sample(VOTES[name], 3)) for name in names}
    columns = [2, 0, 1]
    swapped = {name: "".join(letters[column] for column in columns) for name, letters in PANEL.items()}
    assert numbers(take_readings(make_eta(shuffled, swapped))) == base


def test_the_first_of_a_tie_goes_by_sample_index_and_not_by_place(make_eta):
    eta = make_eta({"x": "BG"})
    config = eta.endorsement_config.model_copy(update={"tie_break": "first"})
    (item,) = eta.items
    for samples in (item.samples, item.samples[::-1]):
        turned = eta.model_copy(
            update={
                "endorsement_config": config,
                "items": (item.model_copy(update={"samples": samples}),),
            }
        )
        assert take_readings(turned)[0].outcome == "bad"


def test_good_and_bad_can_be_exchanged(make_eta):
    mirror = str.maketrans("GB", "BG")
    one = measure(take_readings(make_eta(VOTES, PANEL)))
    other = measure(
        take_readings(
            make_eta(
                {name: letters.translate(mirror) for name, letters in VOTES.items()},
                {name: letters.translate(mirror) for name, letters in PANEL.items()},
            )
        )
    )
    for name in (
        "coverage", "kappa_C", "kappa_F", "kappa_F_star", "kappa_C_minus_kappa_F_star", "ac1", "alpha", "alpha_panel",
    ):  # fmt: skip
        assert getattr(other, name).value == pytest.approx(getattr(one, name).value), name
    assert other.dispersion == one.dispersion


def test_adding_a_failed_call_changes_no_verdict(make_eta):
    """One failed call more in the log, with the configured number of samples as it was."""
    eta = make_eta({**VOTES, "thin": "GGE", "none": "EEE"}, {**PANEL, "thin": "GGG", "none": "GGG"})
    before = {reading.id: reading.outcome for reading in take_readings(eta)}
    failed = Sample(sample_index=99, raw_response="", parse_status="sample_failed", provider_error="429")
    more = eta.model_copy(
        update={"items": tuple(item.model_copy(update={"samples": (*item.samples, failed)}) for item in eta.items)}
    )
    after = take_readings(more)
    assert {reading.id: reading.outcome for reading in after} == before
    assert measure(after).kappa_C == measure(take_readings(eta)).kappa_C


def test_the_authors_guess_cannot_reach_a_number(make_eta, make_benchmark):
    assert "placeholder" not in Reading._fields
    assert "construction_note" not in Reading._fields
    benchmark = make_benchmark(PANEL)
    eta = make_eta(VOTES, PANEL)
    found = [
        measure(
            take_readings(
                eta,
                benchmark.model_copy(
                    update={"items": tuple(i.model_copy(update={"placeholder": guess}) for i in benchmark.items)}
                ),
            )
        )
        for guess in ("good", "bad", "contested", None)
    ]
    assert all(one == found[0] for one in found)


# -------------------------------------------------------------------------------------------------- single measures


def test_the_numbers_of_a_run_worked_by_hand(make_eta):
    """Model GGBB and A, consensus GBBB and G: 3 of 4 agree, chance (2*1 + 2*3)/16 = 1/2, kappa 1/2."""
    eta = make_eta(
        {"a": "GGG", "b": "GGB", "c": "BBB", "d": "BBA", "e": "AAA"},
        {"a": "GGG", "b": "BBG", "c": "BBB", "d": "BBB", "e": "GGG"},
    )
    found = measure(take_readings(eta))
    assert found.kappa_C.value == pytest.approx(0.5)
    assert (found.kappa_C.n, found.n_substantive) == (4, 4)
    # analysts: items agree fully but b (1 of 3 pairs); 7 good of 15: P = 13/15, chance (49 + 64)/225
    assert found.kappa_F_star.value == pytest.approx((13 / 15 - 113 / 225) / (1 - 113 / 225))
    assert found.kappa_F_star.n == 5
    assert found.kappa_C_minus_kappa_F_star.value == pytest.approx(found.kappa_C.value - found.kappa_F_star.value)
    # AC1 on the same four items: prevalence of good (2 + 1)/8, chance 2 * 3/8 * 5/8
    assert found.ac1.value == pytest.approx((0.75 - 15 / 32) / (1 - 15 / 32))
    assert found.ac1.n == 4


def test_an_analyst_as_the_reference(make_eta):
    readings = take_readings(make_eta(VOTES, PANEL))
    by_analyst = measure(readings).kappa_C_per_analyst
    for position, value in enumerate(by_analyst):
        assert measure(readings, analyst=position).kappa_C.value == value
    with pytest.raises(MindscopeError, match="no analyst 3"):
        measure(readings, analyst=3)


def test_one_consensus_rule_and_a_mark_where_it_is_thin(make_eta, make_benchmark, letters):
    assert consensus(letters("GAAAA")) == "good"
    assert consensus(letters("G-")) == "good"
    assert measure(take_readings(make_eta({"x": "G"}, {"x": "GAAAA"}))).thin_consensus == 1
    assert measure(take_readings(make_eta({"x": "G"}, {"x": "G----"}))).thin_consensus == 0
    panel = {"x": "GAAGG", "y": "BABBB", "z": "GGGBB", "w": "BBBGG"}
    benchmark = make_benchmark(panel)
    analysts = tuple(
        a.model_copy(update={"panel": "one" if i < 3 else "two"}) for i, a in enumerate(benchmark.analysts)
    )
    panelled = benchmark.model_copy(update={"analysts": analysts})
    # by the rule of kappa_C the panels say G/G, B/B, G/B, B/G: half agree, kappa 0
    assert panel_agreement(panelled).between == pytest.approx(0.0)
    # counting abstentions, x is abstain for the first panel: two of three disagree
    assert panel_agreement(panelled, compat=True).between == pytest.approx(-0.5)


def test_frame_membership(make_eta):
    eta = make_eta({"good": "G", "bad": "B", "again": "B", "empty": "G", "contained": "B"})
    shapes = {
        "good": (("p",), ("q",)), "bad": (("r",), ("q",)), "again": (("p",), ("q",)), "empty": ((), ()),
        "contained": (("p", "q"), ("q",)),
    }  # fmt: skip
    items = tuple(
        item.model_copy(update=dict(zip(("premises", "conclusions"), shapes[item.id], strict=True)))
        for item in eta.items
    )
    readings = take_readings(eta.model_copy(update={"items": items}))
    found = frame_count(readings)
    assert (found.members, found.undecided, found.n_distinct) == (["contained"], ["good", "again"], 4)
    assert frame_count(readings, compat=True).undecided == []
    frame = Frame(readings)
    assert frame.contains(frozenset("s"), frozenset("q")) is False
    assert frame.contains(frozenset("s"), frozenset("s")) is True
    assert frame.contains(frozenset(), frozenset()) is False
    assert frame.contains(frozenset("p"), frozenset("q")) is None


# ------------------------------------------------------------------------------------- a run and its benchmark


def test_an_evaluation_of_another_benchmark_is_refused(make_eta, make_benchmark):
    benchmark = make_benchmark({"x": "GB"})
    eta = make_eta({"x": "G"})
    with pytest.raises(MindscopeError, match="'other'"):
        belonging_warnings(eta, benchmark.model_copy(update={"id": "other"}))
    with pytest.raises(MindscopeError, match=r"\['y'\]"):
        belonging_warnings(make_eta({"x": "G", "y": "G"}), benchmark)
    assert "wording may not be" in belonging_warnings(eta, benchmark)[0]
    sealed = eta.model_copy(update={"setup": Setup(elicitation_hash=elicitation_hash(benchmark))})
    assert belonging_warnings(sealed, benchmark) == []
    reworded = benchmark.model_copy(update={"bearers": {**benchmark.bearers, "p": benchmark.bearers["q"]}})
    with pytest.raises(MindscopeError, match="wording"):
        belonging_warnings(sealed, reworded)


def test_a_new_panel_is_rejoined_without_a_model_call(make_eta, make_benchmark):
    eta = make_eta({"x": "G", "y": "B"}, {"x": "GB", "y": "GB"})
    renewed = make_benchmark({"x": "GGG", "y": "BB-"})
    assert any("rejoin" in warning for warning in belonging_warnings(eta, renewed))
    joined = rejoin(eta, renewed)
    assert [item.analyst_verdicts for item in joined.items] == [("good",) * 3, ("bad", "bad", None)]
    assert joined.items[0].samples == eta.items[0].samples
    assert belonging_warnings(joined, renewed) == []
    assert measure(take_readings(joined)).kappa_C.value == 1.0
