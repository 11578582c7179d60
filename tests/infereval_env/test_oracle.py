"""infereval 0.17.7's own outputs, reproduced under `compat` to 1e-12."""

import json
import math

import pytest
from infereval_env.audit import audit
from infereval_env.bearers import (
    build_benchmark,
    compile_constraints,
    is_saturated,
    parse_bearers,
    read_items,
)
from infereval_env.claims import REQUIRED, Claims, report_verdict
from infereval_env.equivalence import equivalence_as_infereval
from infereval_env.files import read_benchmark, read_evaluation
from infereval_env.formats import (
    Benchmark,
    CopresenceRule,
    EndorsementConfig,
    EntailmentRule,
    Item,
    MonotonicityStep,
    benchmark_hash,
    dump,
)
from infereval_env.guard import compare_as_infereval
from infereval_env.measures import consensus, measure_as_infereval, plurality
from infereval_env.monotonicity import ladders, variations
from infereval_env.readings import take_readings
from infereval_env.retest import retest
from infereval_env.structure import structure
from infereval_env.surveys import decode, export_tag, merge, read_mapping, read_responses
from infereval_env.verdicts import parse, vote
from infereval_env.wording import strip_tex
from mindscope.errors import MindscopeError
from pydantic import ValidationError

SYNTHETIC = (
    "all_abstain", "single_item_agree", "single_item_disagree", "empty", "single_category", "perfect_two_class",
    "mixed_panel", "provider_errors", "arity_and_containment", "duplicate_implication_last_wins", "no_analysts_one",
)  # fmt: skip
REAL = {
    "stop_sign_replay-eta": ("stop_sign_replay", "metrics"),
    "stop_sign_perceptual_deepseek-v4-flash-eta-0": ("stop_sign_perceptual_retest", "eta0"),
    "stop_sign_perceptual_deepseek-v4-flash-eta-1": ("stop_sign_perceptual_retest", "eta1"),
    "clinical_gpt-4.1_dryrun-eta": ("clinical_gpt41_dryrun", "metrics"),
}


def close(ours, theirs):
    """Equal, with floats equal to 1e-12 however deep; keys that only ours has do not matter."""
    if isinstance(theirs, dict):
        return all(close(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(theirs, float) and ours is not None:
        return math.isclose(ours, theirs, rel_tol=0, abs_tol=1e-12)
    return ours == theirs


def metrics_of(expected, where):
    found = dict(expected)
    for key in where:
        found = found[key]
    found = dict(found)
    frame = dict(found.pop("frame"))
    frame["n_distinct"] = frame.pop("n_distinct_queried")
    dispersion = {key: value for key, value in found.pop("dispersion").items() if key != "thin_margin_threshold"}
    return {**found, "frame": frame, "dispersion": dispersion}


def cases():
    for name in SYNTHETIC:
        yield f"synthetic/{name}-eta.json", ("synthetic", name, "metrics")
    for name, where in REAL.items():
        yield f"real/{name}.json", where


@pytest.mark.parametrize(("name", "where"), list(cases()))
def test_metrics(oracle, expected, name, where):
    theirs = metrics_of(expected, where)
    eta = read_evaluation(oracle / name)
    readings = take_readings(eta, compat=True)
    per_item = theirs.pop("verdict_distributions")
    audited = theirs.pop("audit")
    assert close(measure_as_infereval(readings).model_dump(), theirs)
    ours = {r.id: [*r.counts, r.outcome, r.tie_broken, r.entropy or 0.0, r.margin or 0.0] for r in readings}
    assert close(ours, per_item)
    found = audit(eta, compat=True)
    assert (found.scanned, found.known, len(found.suspected)) == (
        audited["scanned"],
        audited["known"],
        audited["suspected"],
    )
    assert close(found.recomputed_coverage, audited["recomputed_coverage"])
    assert close(found.recomputed_kappa_C, audited["recomputed_kappa_C"])


def test_votes(expected, letters):
    for case in expected["synthetic"]["majority_vote"]:
        found = vote(list(letters(case["votes"])), case["tie_break"], min_valid=0)
        assert [found.verdict, found.tie_broken] == case["out"], case


def test_consensus(expected, letters):
    for case in expected["synthetic"]["consensus"]:
        assert consensus(letters(case["panel"])) == case["metrics_rule"], case
        assert plurality(letters(case["panel"])) == case["panel_plurality_rule"], case


@pytest.mark.parametrize("form", ["support", "coherence"])
def test_parsing(expected, form):
    for case in expected["synthetic"][f"parse_{form}"]:
        assert list(parse(case["text"], form, compat=True)) == case["out"], case


def test_a_clipped_reply(expected):
    clipped = expected["synthetic"]["evaluate_budget_clipped_with_request_id"]["value"][0]["status"]
    assert {parse("The premises", "support", finish_reason="length", compat=True).status} == set(clipped)


@pytest.mark.parametrize("file", ["stop_sign", "clinical_pilot"])
def test_hashes_of_real_files(oracle, expected, file):
    theirs = {
        "stop_sign": expected["benchmark_hash"]["stop_sign_benchmark.json"],
        "clinical_pilot": expected["synthetic"]["bearers_import_real"]["hash"],
    }
    assert benchmark_hash(read_benchmark(oracle / "real" / f"{file}_benchmark.json")) == theirs[file]


def test_hash_of_the_exact_bytes(expected):
    vectors = expected["synthetic"]["hash_vectors"]
    minimal = Benchmark.model_validate_json(vectors["minimal_canonical_json"])
    assert benchmark_hash(minimal) == vectors["minimal"] == vectors["minimal_key_order_swapped"]
    assert json.dumps(dump(minimal), sort_keys=True, separators=(",", ":")) == vectors["minimal_canonical_json"]
    guessed = minimal.model_copy(update={"items": (minimal.items[0].model_copy(update={"placeholder": "good"}),)})
    assert (benchmark_hash(guessed) != vectors["minimal"]) is vectors["placeholder_changes_hash"]


# ------------------------------------------------------------------------------------------------------------ runs


@pytest.fixture
def run(oracle):
    return lambda name: read_evaluation(oracle / "synthetic" / f"cmp_{name}-eta.json")


def test_comparisons(expected, run, oracle):
    theirs = {key.split("(")[0]: value for key, value in expected["synthetic"]["compare"].items()}
    a, b, c = run("A"), run("B"), run("C")

    def same(ours, key):
        assert close(ours.model_dump(), theirs[key]["value"]), key

    same(compare_as_infereval(a, b), "A_B")
    same(compare_as_infereval(a, b, floor=0.51), "A_B_floor_0.51")
    same(compare_as_infereval(a, c), "A_C")
    same(compare_as_infereval(c, c), "C_C")
    same(compare_as_infereval(a.model_copy(update={"items": a.items[:3]}), a), "b_has_extra")
    empty = a.model_copy(update={"items": ()})
    same(compare_as_infereval(empty, empty), "empty")
    hotter = a.model.model_copy(update={"params": a.model.params.model_copy(update={"temperature": 0.0})})
    same(
        compare_as_infereval(a, a.model_copy(update={"model": hotter}), require_same_setup=False),
        "params_differ_override",
    )
    coherent = a.endorsement_config.model_copy(update={"question_form": "coherence"})
    same(
        compare_as_infereval(a, a.model_copy(update={"endorsement_config": coherent})),
        "question_form_differs_not_guarded",
    )
    same(compare_as_infereval(a, a.model_copy(update={"benchmark_id": "x"})), "benchmark_differs_not_guarded")
    other = a.model.model_copy(update={"model_id": "other"})
    for broken in (
        a.model_copy(update={"model": other}),
        a.model_copy(update={"model": hotter}),
        a.model_copy(update={"items": a.items[:3]}),
    ):
        with pytest.raises(MindscopeError):
            compare_as_infereval(a, broken)
    real = [read_evaluation(oracle / f"real/stop_sign_perceptual_deepseek-v4-flash-eta-{i}.json") for i in (0, 1)]
    assert close(compare_as_infereval(*real).model_dump(), expected["stop_sign_perceptual_retest"]["compare"]["value"])


@pytest.mark.parametrize(
    ("key", "a", "b", "floor"),
    [
        ("tv_0.10_24of40_vs_20of40", "G" * 24 + "B" * 16, "G" * 20 + "B" * 20, 30),
        ("tv_0.1333", "G" * 26 + "B" * 4, "G" * 30, 30),
        ("pass_tv_0.0667_n30", "G" * 28 + "B" * 2, "G" * 30, 30),
        ("tv_nominal_0.10_27of30_passes_by_float(0.0999..)", "G" * 27 + "B" * 3, "G" * 30, 30),
        ("n29_under_powered", "G" * 29, "G" * 29, 30),
        ("n20_floor20", "G" * 19 + "B", "G" * 20, 20),
        ("abstain_counts_toward_floor", "G" * 20 + "A" * 10, "G" * 20 + "A" * 10, 30),
    ],
)
def test_equivalence_gate(expected, make_eta, key, a, b, floor):
    theirs = expected["synthetic"]["template_equivalence"][key]["value"]
    names = ["i0", "i1"] if key == "n29_under_powered" else ["i0"]
    ours = equivalence_as_infereval(make_eta(dict.fromkeys(names, a)), make_eta(dict.fromkeys(names, b)), n_floor=floor)
    assert close(ours.model_dump(), {key: value for key, value in theirs.items() if key != "summary"})


@pytest.mark.parametrize(
    ("key", "a", "b"),
    [
        ("identical_two_class", "GGBB", "GGBB"),
        ("single_class_None", "GGGG", "GGGG"),
        ("abstain_flip_counts_as_disagreement_but_not_in_kappa", "GGBBA", "GGBBG"),
        ("kappa_0.6_boundary", "GGGGGBBBBB", "GGGGBBBBBG"),
        ("moderate", "GGGGGBBBBB", "GGGGGBBBBG"),
    ],
)
def test_retests(expected, make_eta, key, a, b):
    theirs = expected["synthetic"]["retest"][key]["value"]
    ours = retest(*(make_eta({f"i{i}": letter * 3 for i, letter in enumerate(side)}) for side in (a, b)), compat=True)
    assert (ours.n_items, ours.n_agreements) == (theirs["n_items"], theirs["n_agreements"])
    assert close(ours.agreement.value, theirs["agreement_rate"])
    assert close(ours.flips.value, theirs["flip_rate"])
    assert close(ours.kappa.value, theirs["test_retest_kappa"])
    assert [change.item_id for change in ours.flipped] == [item["item_id"] for item in theirs["flipped_items"]]
    words = {"stable": "is stable", "moderately_stable": "moderately stable", "undefined": "undefined"}
    assert words[ours.stability] in theirs["stability_verdict"]


def test_the_published_retest(oracle, expected):
    theirs = expected["stop_sign_perceptual_retest"]["retest"]["value"]
    runs = [read_evaluation(oracle / f"real/stop_sign_perceptual_deepseek-v4-flash-eta-{i}.json") for i in (0, 1)]
    ours = retest(*runs, compat=True)
    assert (ours.interval_s, ours.stability) == (theirs["interval_s"], "unstable")
    assert close(ours.kappa.value, theirs["test_retest_kappa"])
    for item, their_item in zip(ours.items, theirs["item_deltas"], strict=True):
        shared = {key: value for key, value in their_item.items() if not key.endswith("_delta")}
        assert close(item.model_dump(), shared)


def test_retest_refusals(expected, make_eta):
    a = make_eta({"i0": "GGG", "i1": "BBB"}, benchmark_hash="sha256:h")
    longer = a.endorsement_config.model_copy(update={"n_samples": 5})
    for change in (
        {"benchmark_hash": "sha256:z"},
        {"endorsement_config": longer},
        {"paraphrase_variant": 1},
    ):
        with pytest.raises(MindscopeError):
            retest(a, a.model_copy(update=change), compat=True)
    unhashed = a.model_copy(update={"benchmark_hash": None})
    assert retest(a, unhashed, compat=True).kappa.value == 1.0
    other = a.model.model_copy(update={"model_id": "other"})
    assert retest(a, a.model_copy(update={"model": other}), compat=True).kappa.value == 1.0


def test_monotonicity(expected, make_eta, make_benchmark):
    for key, theirs in expected["synthetic"]["monotonicity"].items():
        missing = key == "missing_items_skipped"
        sequence, expects = ("G..B", "non_decreasing") if missing else key.split("|")
        tiers = [f"t{i}" for i in range(len(sequence))]
        items = tuple(
            Item(
                id=f"i{i}",
                premises=(tier,),
                conclusions=("q",),
                analyst_verdicts=("good",),
                ladder="L",
                monotonicity_step=MonotonicityStep(family="F", tier=tier, tier_index=i, expected=expects),
            )
            for i, tier in enumerate(tiers)
        )
        benchmark = make_benchmark({"i0": "G"}, items=items, ordinal_families={"F": tuple(tiers)})
        eta = make_eta({f"i{i}": letter for i, letter in enumerate(sequence) if letter != "."})
        ours = ladders(take_readings(eta, benchmark, compat=True), compat=True)
        assert close([ladder.model_dump() for ladder in ours], theirs), key


def test_the_clinical_run(oracle, expected):
    theirs = expected["clinical_gpt41_dryrun"]
    eta = read_evaluation(oracle / "real/clinical_gpt-4.1_dryrun-eta.json")
    readings = take_readings(eta, read_benchmark(oracle / "real/clinical_pilot_benchmark.json"), compat=True)
    assert close([ladder.model_dump() for ladder in ladders(readings, compat=True)], theirs["monotonicity"])
    rows = [{key: value for key, value in row.items() if key != "coverage"} for row in theirs["variation"]]
    assert close([row.model_dump() for row in variations(readings)], rows)


def test_structure(oracle, expected):
    eta = read_evaluation(oracle / "real/stop_sign_replay-eta.json")
    readings = take_readings(eta, read_benchmark(oracle / "real/stop_sign_benchmark.json"), compat=True)
    ours = [check.model_dump() for check in structure(readings, compat=True)]
    assert close(ours, expected["stop_sign_replay"]["structure"])


# ----------------------------------------------------------------------------------------------------------- files


def test_grammar_of_bearers(expected):
    for key, case in expected["synthetic"]["bearers_grammar"].items():
        if "error" in case:
            with pytest.raises(MindscopeError):
                parse_bearers(case["text"], compat=True)
            continue
        found = parse_bearers(case["text"], compat=True)
        ours = {
            "bearers": found.bearers,
            "families": found.families,
            "copresence": found.copresence,
            "entailments": found.entailments,
            "regularities": found.regularities,
            "map": found.family_of(),
        }
        assert close(ours, case["value"]), key


def test_import_of_the_clinical_files(oracle, expected):
    theirs = expected["synthetic"]["bearers_import_real"]
    shipped = read_benchmark(oracle / "real/clinical_pilot_benchmark.json")
    declared = parse_bearers((oracle / "bearers/bearers_v0.5.txt").read_text(encoding="utf-8"), compat=True)
    document = read_items(oracle / "bearers/benchmark_v0.5.json")
    made = build_benchmark(declared, document, compat=True)
    stand_in = made.analysts[0]
    assert stand_in.id == shipped.analysts[0].id
    # The stand-in's note is prose of infereval's; with it in place, the two files are one.
    assert made.model_copy(update={"analysts": shipped.analysts}) == shipped
    assert benchmark_hash(made.model_copy(update={"analysts": shipped.analysts})) == theirs["hash"]
    assert (len(made.bearers), len(made.items)) == (theirs["n_bearers"], theirs["n_items"])
    assert {family.name: len(family.tiers) for family in declared.families} == theirs["families"]
    assert declared.regularities == theirs["regularities"]
    assert len(compile_constraints(made.ordinal_families).exclusivity) == theirs["compiled_exclusivity"]


def test_compiler(expected):
    theirs = expected["synthetic"]["compiler"]
    families = {"F": ("t0", "t1", "t2"), "H": ("h0", "h1")}

    def listed(sequents):
        return [[sorted(sequent.premises), sorted(sequent.conclusions)] for sequent in sequents]

    plain = compile_constraints(families, [CopresenceRule(families=("F", "H"))])
    assert listed(plain.sequents) == theirs["plain"]["sequents"]
    assert [list(rule) for rule in plain.admissibility] == theirs["plain"]["admissibility"]
    full = compile_constraints(
        families,
        [CopresenceRule(families=("F", "H"), exhaustivity=True)],
        [EntailmentRule(antecedent="t0", consequent="h0")],
    )
    assert listed(full.sequents) == theirs["exhaustive+entail"]["sequents"]
    for key, value in theirs["saturated"].items():
        premises = json.loads(key.replace("'", '"'))
        assert is_saturated(premises, ("F", "H"), families) is value, key


def respondents(found):
    return [
        {
            "id": r.id, "finished": r.finished, "expertise": r.expertise, "verdicts": r.verdicts,
            "rationales": r.rationales,
        }
        for r in found
    ]  # fmt: skip


@pytest.fixture
def five(make_benchmark):
    return make_benchmark({f"item_00{i}": "G" for i in range(1, 6)})


def test_survey_answers(oracle, expected, five):
    theirs = expected["synthetic"]["survey"]
    folder = oracle / "surveys"
    mapping = read_mapping(folder / "google_forms/responses_known_good.csv.mapping.json")
    qualtrics = read_responses(folder / "qualtrics/responses_known_good.csv", "qualtrics", five)
    assert respondents(qualtrics) == theirs["qualtrics"]
    google = folder / "google_forms/responses_known_good.csv"
    assert respondents(read_responses(google, "google_forms", five, mapping=mapping)) == theirs["google"]
    legacy = read_responses(folder / "google_forms/responses_v0_9_0_legacy.csv", "google_forms", five)
    assert respondents(legacy) == theirs["google_legacy_090"]
    with pytest.raises(MindscopeError, match="item_005"):
        merge(five, qualtrics)
    merged = merge(five, qualtrics, allow_partial=True, compat=True)
    partial = theirs["merge_allow_partial"]["value"]
    assert [analyst.id for analyst in merged.analysts][1:] == partial["analysts"][1:]
    assert [list(item.analyst_verdicts)[1:] for item in merged.items] == [row[1:] for row in partial["verdicts"]]
    assert [list(item.analyst_rationales) for item in merged.items] == partial["rationales"]


def test_survey_cells_and_tags(expected):
    theirs = expected["synthetic"]["survey"]
    for item_id, tag in theirs["sanitize"].items():
        assert list(export_tag(item_id)) == tag
    for form in ("support", "coherence"):
        for cell, outcome in theirs[f"choice_{form}"].items():
            if "value" in outcome:
                assert decode(cell, form) == outcome["value"]
            else:
                with pytest.raises(ValueError, match="begins with"):
                    decode(cell, form)


def test_tex(expected):
    for text, stripped in expected["synthetic"]["strip_tex"].items():
        assert strip_tex(text, compat=True) == stripped


def test_no_samples_is_no_configuration(expected):
    assert "error" in expected["synthetic"]["n_samples_zero"]
    with pytest.raises(ValidationError):
        EndorsementConfig(n_samples=0)


def claims(scope, run, *, carved=True, rationale="one instrument"):
    return Claims.model_validate(
        {
            "mastery_sense": {"sense": "evaluative", "description": "as the panel judges"},
            "scope": {"scope": scope, "justification": "so"},
            "constitution": {"position": "evidence_of_mastery", "justification": "so"},
            "carving": {"acknowledges_carving_indexed": carved, "notes": "as carved" if carved else ""},
            "competing_explanations": dict.fromkeys(run, True),
            "reliability": {
                "identity_criterion": {
                    "same_provider_model_id": True,
                    "cross_update_identity_asserted": False,
                    "same_scaffolding": True,
                    "unverifiable_caveats": "",
                    "rationale": rationale,
                }
            },
        }
    )


def test_report_verdicts(expected):
    items, domain = "items_in_benchmark", "domain_D_as_sampled"
    every = REQUIRED[domain]
    ours = {
        "items_all": report_verdict(claims(items, every), anomalies=0, n_analysts=2, compat=True),
        "items_none": report_verdict(claims(items, ()), n_analysts=2, compat=True),
        "items_one": report_verdict(claims(items, every[:1]), anomalies=0, n_analysts=2, compat=True),
        "items_m1": report_verdict(claims(items, every), anomalies=0, n_analysts=1, compat=True),
        "items_structural_anomaly": report_verdict(claims(items, every), anomalies=1, n_analysts=2, compat=True),
        "domain_all": report_verdict(claims(domain, every), anomalies=0, retest_stability="stable", compat=True),
        "domain_no_carving": report_verdict(claims(domain, every, carved=False), anomalies=0, compat=True),
        "domain_no_identity": report_verdict(claims(domain, every, rationale=""), anomalies=0, compat=True),
        "domain_unstable": report_verdict(claims(domain, every), retest_stability="unstable", compat=True),
        "general_only_structural_PASSING": report_verdict(
            claims("general_capacity", every[:1]), anomalies=0, compat=True
        ),
        "general_only_structural_FAILING(audit failure raises the label: peer bug)": report_verdict(
            claims("general_capacity", every[:1]), anomalies=1, compat=True
        ),
    }
    assert {key: verdict.label for key, verdict in ours.items()} == expected["synthetic"]["report_verdict"]
