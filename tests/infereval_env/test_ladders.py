"""Ladders, structure checks and the audit, where they go beyond infereval's."""

import pytest
from infereval_env.audit import audit
from infereval_env.formats import MonotonicityStep, RsrTarget
from infereval_env.monotonicity import ladders
from infereval_env.readings import Reading, take_readings
from infereval_env.structure import structure
from mindscope.errors import MindscopeError

TARGET = RsrTarget(X=("p",), A=("q",))


def reading(name, outcome, *, tags=(), target=None, step=None, ladder=None, counts=(5, 0, 0), shares=(1.0, 0.0, 0.0),
            premises=("p",), conclusions=("q",), analysts=("good",)):  # fmt: skip
    return Reading(
        id=name, premises=frozenset(premises), conclusions=frozenset(conclusions), analysts=analysts, outcome=outcome,
        tie_broken=False, counts=counts, shares=shares, failed=0, unparseable=0, label_mass=None, cluster=name,
        tags=tags, ladder=ladder, rsr_target=target, step=step,
    )  # fmt: skip


def steps(outcomes, expected="non_decreasing"):
    words = {"G": "good", "B": "bad", "A": "abstain", "E": "no_data"}
    return [
        reading(
            f"i{i}", words[letter], ladder="L",
            step=MonotonicityStep(family="F", tier=f"t{i}", tier_index=i, expected=expected),
        )
        for i, letter in enumerate(outcomes)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcomes", "status", "flat", "chance"),
    [
        ("BBGG", "monotone", False, 1 / 6),
        ("GGGG", "monotone", True, 1.0),
        ("BGBG", "violated", False, 1 / 6),
        ("BEAG", "monotone", False, 1 / 2),
        ("BEAE", "insufficient", False, None),
    ],
)
def test_a_ladder_says_whether_its_order_was_tested(outcomes, status, flat, chance):
    (ladder,) = ladders(steps(outcomes))
    assert (ladder.status, ladder.flat, ladder.chance) == (status, flat, chance)


def test_steps_come_in_the_order_of_their_tiers():
    (ladder,) = ladders(steps("BBG")[::-1])
    assert (ladder.steps, ladder.sequence) == (["i0", "i1", "i2"], "BBG")


def test_steps_that_disagree_on_the_direction_are_an_error():
    mixed = [steps("BG")[0], steps("BG", "non_increasing")[1]]
    with pytest.raises(MindscopeError, match="i0 non_decreasing, i1 non_increasing"):
        ladders(mixed)
    assert ladders(mixed, compat=True)[0].status == "monotone"


def test_ladders_are_told_apart_by_family_and_fixed_bearer():
    step = MonotonicityStep(family="F", tier="t", tier_index=0)
    readings = [
        reading("a", "good", ladder="L", step=step),
        reading("b", "good", ladder="L", step=step.model_copy(update={"fixed": "p"})),
        reading("c", "good", ladder="L", step=step.model_copy(update={"family": "H"})),
        reading("d", "good", ladder="M", step=step),
    ]
    assert len(ladders(readings)) == 4


def check(readings, name, **options):
    return next(found for found in structure(readings, **options) if found.name == name)


@pytest.mark.parametrize(
    ("base", "role", "outcome", "wrong"),
    [
        ("good", "supporter", "good", False),
        ("good", "supporter", "bad", True),
        ("good", "defeater", "bad", False),
        ("good", "defeater", "good", True),
        ("good", "irrelevant-addition", "good", False),
        ("good", "irrelevant-addition", "bad", True),
        ("bad", "irrelevant-addition", "bad", False),
        ("bad", "irrelevant-addition", "good", True),
    ],
)
def test_roles(base, role, outcome, wrong):
    readings = [
        reading("base", base, tags=("base-inference",), target=TARGET),
        reading("item", outcome, tags=(role,), target=TARGET),
    ]
    found = check(readings, "rsr_role_consistency")
    assert (found.checked, bool(found.anomalies)) == (1, wrong)


@pytest.mark.parametrize(
    ("base", "role", "outcome"),
    [("bad", "supporter", "good"), ("bad", "defeater", "bad"), ("abstain", "supporter", "good"),
     ("good", "supporter", "abstain"), ("no_data", "supporter", "bad"), ("good", "supporter", "no_data")],
)  # fmt: skip
def test_roles_that_ask_nothing(base, role, outcome):
    readings = [
        reading("base", base, tags=("base-inference",), target=TARGET),
        reading("item", outcome, tags=(role,), target=TARGET),
        reading("stray", "bad", tags=("supporter",)),
    ]
    assert check(readings, "rsr_role_consistency").checked == 0


def test_containment_is_about_the_verdict():
    readings = [reading("in", "bad", conclusions=("p", "q")), reading("out", "bad")]
    assert [a.item_id for a in check(readings, "containment_closure").anomalies] == ["in"]
    assert check(readings, "containment_closure", compat=True).ok == 1


def test_thin_margins_are_looked_for_among_agreements():
    readings = [
        reading("thin", "good", counts=(2, 1, 0), shares=(2 / 3, 1 / 3, 0.0)),
        reading("wide", "good"),
        reading("disagrees", "bad", counts=(1, 2, 0), shares=(1 / 3, 2 / 3, 0.0)),
    ]
    found = check(readings, "thin_margin_agreement")
    assert (found.checked, [a.item_id for a in found.anomalies]) == (2, ["thin"])
    assert check(readings, "thin_margin_agreement", thin_margin=0.3).ok == 2


# ----------------------------------------------------------------------------------------------------------- audit


def edited(eta, item, sample, **changes):
    items = list(eta.items)
    samples = list(items[item].samples)
    samples[sample] = samples[sample].model_copy(update=changes)
    items[item] = items[item].model_copy(update={"samples": tuple(samples)})
    return eta.model_copy(update={"items": tuple(items)})


def test_failures_stored_as_abstentions_are_suspected(make_eta):
    eta = make_eta({"x": "AAA", "y": "GGG", "z": "BBB"})
    eta = edited(edited(eta, 0, 0, raw_response="  "), 0, 1, wall_time_ms=None)
    found = audit(eta)
    assert [(suspect.item_id, suspect.sample_index) for suspect in found.suspected] == [("x", 0), ("x", 1)]
    assert found.coverage == pytest.approx(2 / 3)
    assert found.recomputed_coverage == 1.0  # x has one answer of three left: no data, and not an abstention
    assert not found.clean


def test_verdicts_that_do_not_follow_are_listed(make_eta):
    eta = make_eta({"x": "GGG", "y": "BBB"})
    wrong = eta.items[0].model_copy(update={"model_verdict": "bad"})
    eta = eta.model_copy(update={"items": (wrong, eta.items[1])})
    eta = edited(eta, 1, 0, raw_response="This is not BAD")
    found = audit(eta)
    assert [(m.item_id, m.recorded, m.voted) for m in found.mismatched] == [("x", "bad", "good")]
    assert [(m.item_id, m.recorded, m.declared) for m in found.misread] == [("y", "bad", "abstain")]


def test_an_honest_run_is_clean(make_eta):
    assert audit(make_eta({"x": "GGE", "y": "UBB", "z": "EEE"})).clean


def test_readings_of_a_run_without_samples_keep_the_record(make_eta):
    eta = make_eta({"x": "G"})
    bare = eta.items[0].model_copy(update={"samples": (), "model_verdict": "bad"})
    (found,) = take_readings(eta.model_copy(update={"items": (bare,)}))
    assert (found.outcome, found.shares) == ("bad", None)
