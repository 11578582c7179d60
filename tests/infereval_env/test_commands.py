"""`mindscope infereval …` as a user runs it: exit codes, one JSON document on stdout, errors in words."""

import json
from importlib.metadata import entry_points

import pytest
from infereval_env.commands import app
from infereval_env.files import read_benchmark, read_evaluation, write_evaluation, write_model
from infereval_env.formats import (
    EndorsementConfig,
    Evaluation,
    EvaluationItem,
    Model,
    Sample,
    Setup,
    benchmark_hash,
    elicitation_hash,
)
from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path
from typer.testing import CliRunner

RUNNER = CliRunner()
GARDEN = str(data_path("infereval/garden/benchmark.json"))
VOTES = {f"i{i:02}": letters * 8 for i, letters in enumerate(["GGGGG", "BBBBB", "GGBGG", "BABBB"] * 4)}
PANEL = {name: ("GGG" if letters[0] == "G" else "BBG") for name, letters in VOTES.items()}


def run(*arguments, code=0):
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def document(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def files(tmp_path, make_eta, make_benchmark):
    """A benchmark and three runs of it: a, another template b, a retest c."""
    benchmark = make_benchmark(PANEL)
    write_model(benchmark, tmp_path / "benchmark.json")
    setup = Setup(template_id="t", elicitation_hash=elicitation_hash(benchmark))
    for name, template in (("a", "t"), ("b", "u"), ("c", "t")):
        eta = make_eta(VOTES, PANEL, run=name, setup=setup.model_copy(update={"template_id": template}))
        write_evaluation(eta, tmp_path / f"{name}.json")
    return {name: tmp_path / f"{name}.json" for name in ("benchmark", "a", "b", "c")}


def test_the_command_is_found_by_mindscope():
    (entry,) = [entry for entry in entry_points(group="mindscope.commands") if entry.name == "infereval"]
    assert entry.load() is app


def test_metrics_in_compat_uses_the_fixed_keys(oracle, expected):
    eta = oracle / "synthetic/mixed_panel-eta.json"
    found = document("metrics", eta, "--compat")
    theirs = expected["synthetic"]["mixed_panel"]["metrics"]
    for key in ("coverage", "kappa_C", "kappa_F", "kappa_F_star"):
        assert found[key] == pytest.approx(theirs[key], abs=1e-12)


def test_metrics(files):
    found = document("metrics", files["a"], "--benchmark", files["benchmark"], "--by", "arity")
    assert found["kappa_C"]["n"] == 16
    assert set(found["kappa_C"]) == {"value", "low", "high", "n", "clusters", "method"}
    assert found["by"]["single"]["n_items"] == 16
    assert found["warnings"] == []
    analyst = document("metrics", files["a"], "--benchmark", files["benchmark"], "--reference", "analyst:a2")
    assert analyst["reference"] == "analyst 2"
    assert analyst["kappa_C"]["value"] == found["kappa_C_per_analyst"][2]
    text = run("metrics", files["a"]).stdout
    assert "kappa_C" in text
    assert "16 items, 0 without data" in text


@pytest.mark.parametrize("reference", ["analyst:nobody", "analyst:9", "somebody", "analyst:"])
def test_a_reference_that_is_none(files, reference):
    with pytest.raises(MindscopeError):
        run("metrics", files["a"], "--benchmark", files["benchmark"], "--reference", reference)


def test_a_benchmark_that_is_not_the_runs(files):
    with pytest.raises(MindscopeError, match="mindscope-garden"):
        run("metrics", files["a"], "--benchmark", GARDEN)
    with pytest.raises(MindscopeError, match="mindscope-garden"):
        run("monotonicity", files["a"], GARDEN)


def test_validate(files, tmp_path):
    assert document("validate", files["benchmark"])["kind"] == "benchmark"
    assert document("validate", files["a"]) == {
        "path": str(files["a"]), "kind": "evaluation", "valid": True, "faults": [], "warnings": [],
    }  # fmt: skip
    (tmp_path / "bad.json").write_text('{"id": 3, "foo": 1}', encoding="utf-8")
    found = document("validate", tmp_path / "bad.json", code=1)
    assert len(found["faults"]) == 5
    assert "5 faults" in run("validate", tmp_path / "bad.json", code=1).stdout
    with pytest.raises(MindscopeError, match="Cannot read"):
        run("validate", tmp_path / "none.json")


def test_describe():
    found = document("describe", GARDEN, "--items")
    assert (found["n_items"], found["arity"]["exhaustivity"], len(found["items"])) == (60, 5, 60)
    assert "soil" in run("describe", GARDEN).stdout


def test_import_bearers(tmp_path):
    folder = data_path("infereval/kettle")
    out = tmp_path / "kettle.json"
    found = document("import-bearers", folder / "bearers.txt", folder / "items.json", "-o", out)
    assert found["n_items"] == 6
    assert read_benchmark(out) == read_benchmark(folder / "benchmark.json")
    printed = json.loads(run("import-bearers", folder / "bearers.txt", folder / "items.json").stdout)
    assert printed["id"] == "mindscope-kettle"


def test_compare(files):
    with pytest.raises(MindscopeError, match="template: t against u"):
        run("compare", files["a"], files["b"])
    found = document("compare", files["a"], files["b"], "--vary", "template")
    assert (found["varied"], found["kappa"]["value"], found["mean_tv"]) == (["template"], 1.0, 0.0)
    assert document("compare", files["a"], files["b"], "--compat")["cross_run_kappa"] == 1.0
    with pytest.raises(MindscopeError, match=r"no axis \['colour'\]; the axes are model, params"):
        run("compare", files["a"], files["b"], "--vary", "colour")


def test_retest(files):
    found = document("retest", files["a"], files["c"], "--benchmark", files["benchmark"])
    assert (found["worst"], found["pairs"][0]["stability"]) == ("c", "stable")
    assert "stable" in run("retest", files["a"], files["c"]).stdout


def test_equivalence_and_its_exit_code(files, tmp_path, make_eta):
    assert document("equivalence", files["a"], files["b"])["verdict"] == "equivalent"
    assert document("equivalence", files["a"], files["b"], "--compat")["passed"] is True
    turned = {name: letters.translate(str.maketrans("GB", "BG")) for name, letters in VOTES.items()}
    eta = make_eta(turned, PANEL, run="d")
    eta = eta.model_copy(update={"setup": read_evaluation(files["b"]).setup})
    write_evaluation(eta, tmp_path / "d.json")
    assert document("equivalence", files["a"], tmp_path / "d.json", code=1)["verdict"] == "different"
    assert document("equivalence", files["a"], tmp_path / "d.json", "--compat", code=1)["passed"] is False


def test_monotonicity_and_its_exit_code(oracle, tmp_path):
    eta = oracle / "real/clinical_gpt-4.1_dryrun-eta.json"
    benchmark = oracle / "real/clinical_pilot_benchmark.json"
    found = document("monotonicity", eta, benchmark)
    assert [ladder["sequence"] for ladder in found["ladders"]] == ["BGGGG", "GGG", "GGGGG"]
    assert "wording" in found["warnings"][0]
    read = read_evaluation(eta)
    items = tuple(
        item.model_copy(update={"model_verdict": "good" if item.id == "C1" else "bad", "samples": ()})
        if item.id in ("C1", "C2")
        else item
        for item in read.items
    )
    write_evaluation(read.model_copy(update={"items": items}), tmp_path / "down.json")
    assert document("monotonicity", tmp_path / "down.json", benchmark, code=1)["ladders"][0]["status"] == "violated"


def test_structure(oracle):
    found = document("structure", oracle / "real/stop_sign_replay-eta.json", oracle / "real/stop_sign_benchmark.json")
    assert [check["checked"] for check in found["checks"]] == [0, 3, 0, 4]


def test_audit_and_its_exit_code(files, oracle, tmp_path):
    assert document("audit", files["a"])["clean"] is True
    broken = document("audit", oracle / "synthetic/provider_errors-eta.json")
    assert broken["known"] == 11
    wrong = read_evaluation(files["a"])
    items = (wrong.items[0].model_copy(update={"model_verdict": "bad"}), *wrong.items[1:])
    write_evaluation(wrong.model_copy(update={"items": items}), tmp_path / "wrong.json")
    assert document("audit", tmp_path / "wrong.json", code=1)["mismatched"][0]["voted"] == "good"


def test_checklist(files, tmp_path):
    claims = {
        "mastery_sense": {"sense": "evaluative", "description": "d"},
        "scope": {"scope": "items_in_benchmark", "justification": "j"},
        "constitution": {"position": "evidence_of_mastery", "justification": "j"},
        "carving": {"acknowledges_carving_indexed": False},
        "competing_explanations": {"structural_check_run": True, "sensitivity_sweep_run": True},
    }
    (tmp_path / "claims.json").write_text(json.dumps(claims), encoding="utf-8")
    found = document(
        "checklist", files["a"], files["benchmark"], "--retest", files["c"], "--other-template", files["b"],
        "--claims", tmp_path / "claims.json",
    )  # fmt: skip
    answers = {line["question"]: line["answer"] for line in found["checklist"]}
    assert found["verdict"]["label"] == "defensible"
    for question in (
        "Is the result stable on retest?",
        "Does another template give the same verdicts?",
        "Do the checks carry the claim?",
    ):
        assert answers[question] == "yes"
    bare = document("checklist", files["a"], files["benchmark"])
    assert bare["verdict"] is None
    assert "[unknown] Is the result stable on retest?" in run("checklist", files["a"], files["benchmark"]).stdout


def test_a_survey_there_and_back(files, tmp_path):
    survey = tmp_path / "survey.qsf"
    made = document("survey", "export", files["benchmark"], "-o", survey)
    mapping = json.loads((tmp_path / "survey.qsf.mapping.json").read_text(encoding="utf-8"))
    assert made["n_items"] == len(mapping) == 16
    tags = [row["verdict_data_export_tag"] for row in mapping]
    rows = [
        ",".join(["ResponseId", "Finished", "expertise", *tags]),
        ",".join(["x"] * 19),
        ",".join(["{ImportId}"] * 19),
        ",".join(["R1", "True", "me", *(["Good"] * 8), *(["Bad"] * 8)]),
        ",".join(["R2", "True", "me", *(["Good"] * 15), ""]),
    ]
    (tmp_path / "answers.csv").write_text("\n".join(rows), encoding="utf-8")
    arguments = ("survey", "import", files["benchmark"], "-r", tmp_path / "answers.csv", "-o", tmp_path / "new.json")
    with pytest.raises(MindscopeError, match="'R2' gave no verdict"):
        run(*arguments)
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "answers.csv.mapping.json").write_text(
        (tmp_path / "survey.qsf.mapping.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    found = document(*arguments, "--allow-partial", "--analyst-id-prefix", "gardener-")
    assert (found["n_respondents"], found["n_analysts"]) == (2, 5)
    with pytest.raises(MindscopeError, match="There is no response"):
        run(*arguments, "--respondent", "R9")
    with pytest.raises(MindscopeError, match="question form"):
        run(*arguments, "--allow-partial", "--question-form", "coherence")
    document("survey", "rejoin", files["a"], tmp_path / "new.json", "-o", tmp_path / "joined.json")
    joined = document("metrics", tmp_path / "joined.json", "--benchmark", tmp_path / "new.json")
    assert len(joined["kappa_C_per_analyst"]) == 5
    with pytest.raises(MindscopeError, match="SurveyMonkey"):
        run("survey", "export", files["benchmark"], "-o", tmp_path / "s", "--platform", "surveymonkey")
    run("survey", "export", files["benchmark"], "-o", tmp_path / "s.gs", "--platform", "google_forms")
    assert "makeForm" in (tmp_path / "s.gs").read_text(encoding="utf-8")


def test_rebuild(oracle, tmp_path):
    out = tmp_path / "eta.json"
    log, benchmark = oracle / "real/stop_sign_replay_run.jsonl", oracle / "real/stop_sign_benchmark.json"
    found = document("rebuild", log, "--benchmark", benchmark, "-o", out)
    assert (found["n_items"], found["n_no_data"], found["warnings"]) == (4, 0, [])
    assert read_evaluation(out).setup.template_id == "framework-default-v1"
    lossy = document("rebuild", log, "--benchmark", benchmark, "-o", out, "--compat")
    assert "left out" in lossy["warnings"][0]
    assert read_evaluation(out).setup is None


def test_every_command_explains_itself():
    assert set(run("--help").stdout.split()) >= {
        "validate", "describe", "import-bearers", "metrics", "compare", "retest", "equivalence", "monotonicity",
        "structure", "audit", "checklist", "survey", "rebuild",
    }  # fmt: skip


def test_a_run_on_one_page(files, tmp_path):
    """The page has the numbers, loads nothing, and shows what a model or file says as text."""
    page = tmp_path / "report.html"
    found = document("report", files["a"], "--benchmark", files["benchmark"], "--retest", files["c"], "-o", page)
    assert len(found["checklist"]) == 14
    html = page.read_text(encoding="utf-8")
    metrics = document("metrics", files["a"], "--benchmark", files["benchmark"])
    assert f"{metrics['kappa_C']['value']:.3f}" in html
    assert f"{metrics['kappa_F_star']['value']:.3f}" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_the_page_of_the_garden_draws_every_ladder(tmp_path):
    benchmark = read_benchmark(data_path("infereval/garden/benchmark.json"))
    evil = "<img src=x onerror=alert(1)>"
    items = tuple(
        EvaluationItem(
            id=item.id, premises=item.premises, conclusions=item.conclusions, analyst_verdicts=item.analyst_verdicts,
            model_verdict="good", samples=(Sample(sample_index=0, raw_response="INCOHERENT", parsed_verdict="good"),),
        )
        for item in benchmark.items
    )  # fmt: skip
    config = EndorsementConfig(n_samples=1, question_form="coherence")
    eta = Evaluation(
        id=evil, benchmark_id=benchmark.id, benchmark_hash=benchmark_hash(benchmark),
        model=Model(provider="p", model_id=evil), endorsement_config=config, items=items,
    )  # fmt: skip
    write_evaluation(eta, tmp_path / "eta.json")
    run("report", tmp_path / "eta.json", "--benchmark", GARDEN, "-o", tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 1 + 5
    assert "good on every item" in html
    assert "<img" not in html


def test_a_report_needs_the_benchmark(files, tmp_path):
    with pytest.raises(MindscopeError, match="--benchmark"):
        run("report", files["a"], "-o", tmp_path / "r.html")
