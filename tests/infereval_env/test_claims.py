"""Claims and the reviewer's checklist."""

import json

import pytest
from infereval_env.checklist import checklist, unanswered
from infereval_env.claims import REQUIRED, Claims, read_claims, report_verdict
from infereval_env.equivalence import equivalence
from infereval_env.formats import Setup, benchmark_hash, elicitation_hash
from infereval_env.retest import retest
from mindscope.errors import MindscopeError


def claims(scope, n_run, *, notes="so carved", rationale="one instrument"):
    return Claims.model_validate(
        {
            "mastery_sense": {"sense": "evaluative", "description": "d"},
            "scope": {"scope": scope, "justification": "j"},
            "constitution": {"position": "evidence_of_mastery", "justification": "j"},
            "carving": {"acknowledges_carving_indexed": True, "notes": notes},
            "competing_explanations": dict.fromkeys(REQUIRED[scope][:n_run], True),
            "reliability": {
                "identity_criterion": {
                    "same_provider_model_id": True, "cross_update_identity_asserted": True, "same_scaffolding": True,
                    "unverifiable_caveats": "", "rationale": rationale,
                }
            },
        }
    )  # fmt: skip


@pytest.mark.parametrize("scope", list(REQUIRED))
def test_a_failing_check_never_raises_the_label(scope):
    rank = ("not_defensible", "partially_defensible", "defensible")
    for n_run in range(len(REQUIRED[scope]) + 1):
        passing = report_verdict(claims(scope, n_run), anomalies=0, n_analysts=3, retest_stability="stable")
        for worse in (
            {"anomalies": 2},
            {"n_analysts": 1},
            {"retest_stability": "unstable"},
            {"suppress_negatives": True},
        ):
            given = {"anomalies": 0, "n_analysts": 3, "retest_stability": "stable", **worse}
            assert rank.index(report_verdict(claims(scope, n_run), **given).label) <= rank.index(passing.label)


def test_everything_run_and_in_order_is_defensible():
    for scope, required in REQUIRED.items():
        found = report_verdict(claims(scope, len(required)), anomalies=0, n_analysts=2, retest_stability="stable")
        assert (found.label, found.missing, found.reasons) == ("defensible", [], [])


def test_a_stub_that_was_not_filled_in_is_not_an_acknowledgement():
    domain, n = "domain_D_as_sampled", 6
    stub = claims(domain, n, notes="FILL IN if acknowledged", rationale="FILL IN: why")
    assert report_verdict(stub, retest_stability="stable").label == "not_defensible"
    assert report_verdict(stub, retest_stability="stable", compat=True).label == "defensible"


def test_suppressing_findings_costs_a_step_and_says_so():
    found = report_verdict(claims("items_in_benchmark", 2), n_analysts=2, suppress_negatives=True)
    assert found.label == "partially_defensible"
    assert "suppressed" in found.reasons[0]


def test_faults_of_a_claims_file_are_listed(tmp_path):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"scope": {"scope": "everything"}, "more": 1}), encoding="utf-8")
    with pytest.raises(MindscopeError) as caught:
        read_claims(path)
    for part in ("mastery_sense: found nothing", "scope scope: found 'everything'", "more:"):
        assert part in str(caught.value), part


def test_the_checklist_answers_from_the_files(make_eta, make_benchmark):
    votes = {f"i{i}": letters * 40 for i, letters in enumerate("GB" * 8)}
    panel = {name: letters[0] * 2 for name, letters in votes.items()}
    benchmark = make_benchmark(panel)
    setup = Setup(template_id="t", elicitation_hash=elicitation_hash(benchmark))
    eta = make_eta(votes, panel, setup=setup, benchmark_hash=benchmark_hash(benchmark))
    eta = eta.model_copy(update={"model": eta.model.model_copy(update={"model_id": "m-2026-01-01"})})
    other = eta.model_copy(update={"setup": setup.model_copy(update={"template_id": "u"})})
    answers = {
        line.question: line.answer
        for line in checklist(
            eta, benchmark, retest=retest(eta, eta), equivalence=equivalence(eta, other),
            verdict=report_verdict(claims("items_in_benchmark", 2), anomalies=0, n_analysts=2),
        )
    }  # fmt: skip
    unknown = [question for question, answer in answers.items() if answer != "yes"]
    assert unknown == [
        "Were the analysts asked the question that the model was?",
        "Do verdicts move one way along the ladders?",
    ]


def test_the_checklist_says_what_is_missing(make_eta, make_benchmark):
    benchmark = make_benchmark({"x": "G", "y": "B"})
    lines = {line.question: line for line in checklist(make_eta({"x": "G", "y": "E"}, {"x": "G", "y": "B"}), benchmark)}
    assert lines["Is the model's snapshot pinned?"].answer == "no"
    assert lines["Have at least two analysts answered?"].answer == "no"
    assert lines["Is the result stable on retest?"].answer == "unknown"
    assert lines["Does kappa_C rest on enough items?"].answer == "no"
    assert "1 of 2 items have no data" in lines["Are failed calls kept apart from abstentions?"].evidence
    assert len(unanswered(list(lines.values()))) > 5
