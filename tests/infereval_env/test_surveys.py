"""Surveys out and in: what was asked, who answered, and what nobody answered."""

import json
import re

import pytest
from infereval_env.bearers import PENDING
from infereval_env.files import read_benchmark
from infereval_env.formats import Analyst, Item
from infereval_env.forms import google_form, qualtrics_form
from infereval_env.measures import measure
from infereval_env.readings import rejoin, take_readings
from infereval_env.surveys import (
    Respondent,
    check_asked,
    make_mapping,
    mapping_path,
    merge,
    read_mapping,
    read_responses,
    write_survey,
)
from mindscope.errors import MindscopeError


@pytest.fixture
def benchmark(make_benchmark):
    return make_benchmark({"one": "G", "item-2": "B", "three": "G"})


def export(tmp_path, rows, platform="google_forms"):
    path = tmp_path / "answers.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    return path


GOOGLE = [
    "Timestamp,Your expertise,Item 1 verdict,Item 1 rationale,Item 2 verdict,Item 3 verdict",
    't,"gardener, 3 years",Good,because,bad \u2014 no,Abstain',
    't,,GOOD,"a, b",,Bad',
]


def test_what_is_exported_can_be_read_back(tmp_path, benchmark):
    """A Qualtrics survey is written, answered as Qualtrics would export it, and imported."""
    mapping = make_mapping(benchmark, "coherence", "thin-v1")
    survey = json.loads(qualtrics_form(benchmark, mapping, "coherence", title="T"))
    asked = [e["Payload"] for e in survey["SurveyElements"] if e["Element"] == "SQ"]
    choices = {q["DataExportTag"]: [c["Display"] for c in q["Choices"].values()] for q in asked if "Choices" in q}
    assert list(choices) == ["one", "item_" + mapping[1].verdict_data_export_tag[5:], "three"]
    picked = {tag: shown[i] for i, (tag, shown) in enumerate(choices.items())}
    tags = ["ResponseId", "Finished", "expertise", *picked]
    rows = [",".join(tags), ",".join(tags), ",".join('"{""ImportId"":""x""}"' for _ in tags)]
    rows.append(",".join(["R1", "True", "x", *(f'"{choice}"' for choice in picked.values())]))
    write_survey(tmp_path / "s.qsf", "{}", mapping)
    read_back = read_mapping(mapping_path(tmp_path / "s.qsf"))
    assert read_back == mapping
    (person,) = read_responses(export(tmp_path, rows), "qualtrics", benchmark, form="coherence", mapping=read_back)
    # the choices stand in the order Coherent, Incoherent, Unclear
    assert person.verdicts == {"one": "bad", "item-2": "good", "three": "abstain"}


def test_a_qualtrics_survey_refers_only_to_what_it_holds(benchmark):
    mapping = make_mapping(benchmark, "support", "thin-v1")
    text = qualtrics_form(benchmark, mapping, "support", title="T")
    assert text == qualtrics_form(benchmark, mapping, "support", title="T")
    elements = json.loads(text)["SurveyElements"]
    by_kind = {}
    for element in elements:
        by_kind.setdefault(element["Element"], []).append(element["Payload"])
    questions = {payload["QuestionID"] for payload in by_kind["SQ"]}
    (blocks,) = by_kind["BL"]
    placed = [entry["QuestionID"] for block in blocks for entry in block["BlockElements"]]
    assert sorted(placed) == sorted(questions)
    (flow,) = by_kind["FL"]
    shuffled = flow["Flow"][1]
    assert shuffled["Type"] == "BlockRandomizer"
    assert shuffled["SubSet"] == len(shuffled["Flow"]) == 3
    ids = {block["ID"] for block in blocks}
    assert {step["ID"] for step in (flow["Flow"][0], *shuffled["Flow"])} < ids
    plain = json.loads(qualtrics_form(benchmark, mapping, "support", title="T", randomise=False))
    assert "BlockRandomizer" not in json.dumps(plain)


def test_a_survey_has_the_parts_of_infereval_s(oracle):
    benchmark = read_benchmark(oracle / "surveys/survey_preframe/benchmark.json")
    for form in ("support", "coherence"):
        theirs = json.loads((oracle / f"surveys/survey_preframe/qualtrics_{form}.qsf.json").read_text(encoding="utf-8"))
        mapping = make_mapping(benchmark, form, "thin-v1")
        ours = json.loads(qualtrics_form(benchmark, mapping, form, title="T"))

        def parts(survey):
            return [(element["Element"], element["PrimaryAttribute"][:2]) for element in survey["SurveyElements"]]

        assert sorted(parts(ours)) == sorted(parts(theirs))

        def tags(survey):
            return [e["Payload"]["DataExportTag"] for e in survey["SurveyElements"] if e["Element"] == "SQ"]

        assert tags(ours) == tags(theirs)


def test_a_google_script_holds_data_as_data(make_benchmark):
    benchmark = make_benchmark({"x": "G"}, id="b\nalert('no')//")
    script = google_form(benchmark, make_mapping(benchmark, "support", "f"), "support", title='T"); evil("')
    assert [line for line in script.splitlines() if line.startswith(("alert", "evil"))] == []
    titles = re.findall(r"FormApp\.create\((.*)\);", script)
    assert json.loads(titles[0]) == 'T"); evil("'
    assert "Item 1 verdict" in script


def test_support_cannot_ask_about_two_conclusions(make_benchmark):
    item = Item(id="x", premises=("p",), conclusions=("q", "r"), analyst_verdicts=("good",))
    benchmark = make_benchmark({"x": "G"}, items=(item,))
    mapping = make_mapping(benchmark, "support", "f")
    with pytest.raises(MindscopeError, match=r"'x' has 2 conclusions.*coherence"):
        qualtrics_form(benchmark, mapping, "support", title="T")
    assert "denies" in qualtrics_form(benchmark, mapping, "coherence", title="T")


def test_the_authors_guess_is_not_shown_to_analysts(make_benchmark):
    item = Item(
        id="x", premises=("p",), conclusions=("q",), analyst_verdicts=("good",), placeholder="contested",
        construction_note="secret",
    )  # fmt: skip
    benchmark = make_benchmark({"x": "G"}, items=(item,))
    mapping = make_mapping(benchmark, "support", "f")
    for text in (
        qualtrics_form(benchmark, mapping, "support", title="T"),
        google_form(benchmark, mapping, "support", title="T"),
    ):
        assert "contested" not in text
        assert "secret" not in text


def test_numbered_columns_need_their_mapping(tmp_path, benchmark):
    path = export(tmp_path, GOOGLE)
    with pytest.raises(MindscopeError, match="without the survey's mapping file"):
        read_responses(path, "google_forms", benchmark)
    mapping = make_mapping(benchmark, "support", "thin-v1")
    first, second = read_responses(path, "google_forms", benchmark, mapping=mapping)
    assert first.verdicts == {"one": "good", "item-2": "bad", "three": "abstain"}
    assert (first.id, first.expertise, first.rationales["one"]) == ("row2", "gardener, 3 years", "because")
    assert second.verdicts == {"one": "good", "three": "bad"}


def test_surveymonkey_columns(tmp_path, benchmark):
    rows = [
        "Respondent ID,Your expertise,Item 1 verdict,Item 1 rationale,Item 2 verdict,Item 3 verdict",
        ",Open-Ended Response,Response,Open-Ended Response,Response,Response",
        "77,x,Good,,Bad,Abstain",
    ]
    mapping = make_mapping(benchmark, "support", "thin-v1")
    (person,) = read_responses(export(tmp_path, rows), "surveymonkey", benchmark, mapping=mapping)
    assert (person.id, person.verdicts) == ("77", {"one": "good", "item-2": "bad", "three": "abstain"})


def test_every_unreadable_cell_is_listed(tmp_path, benchmark):
    rows = [GOOGLE[0], "t,x,Maybe,,Good?,Abstain", "t,x,Good,,Bad,Coherent"]
    with pytest.raises(MindscopeError) as caught:
        read_responses(
            export(tmp_path, rows), "google_forms", benchmark, mapping=make_mapping(benchmark, "support", "f")
        )
    for part in ("line 2, 'Item 1 verdict': found 'Maybe'", "'Good?'", "line 3, 'Item 3 verdict': found 'Coherent'"):
        assert part in str(caught.value), part


def test_two_columns_for_one_item_are_a_fault(tmp_path, benchmark):
    rows = [GOOGLE[0] + ",Item 3 verdict", GOOGLE[1] + ",Bad"]
    with pytest.raises(MindscopeError, match="2 columns hold the verdict on item 'three'"):
        read_responses(
            export(tmp_path, rows), "google_forms", benchmark, mapping=make_mapping(benchmark, "support", "f")
        )


def test_a_qualtrics_export_without_its_third_header_row(tmp_path, benchmark):
    tags = ["ResponseId", "Finished", *(row.verdict_data_export_tag for row in make_mapping(benchmark, "support", "f"))]
    with pytest.raises(MindscopeError, match="ImportId"):
        read_responses(export(tmp_path, [",".join(tags), "R1,True,Good,Good,Good"]), "qualtrics", benchmark)


def test_items_that_are_not_in_the_benchmark(tmp_path, benchmark, make_benchmark):
    mapping = make_mapping(make_benchmark({"other": "G"}), "support", "f")
    with pytest.raises(MindscopeError, match=r"\['other'\] are not in benchmark"):
        read_responses(export(tmp_path, GOOGLE), "google_forms", benchmark, mapping=mapping)


def test_the_question_asked_is_the_question_declared(benchmark):
    mapping = make_mapping(benchmark, "coherence", "thin-v1")
    assert check_asked(mapping, "coherence", "thin-v1") == []
    with pytest.raises(MindscopeError, match="question form"):
        check_asked(mapping, "support", "thin-v1")
    with pytest.raises(MindscopeError, match="coherence frame"):
        check_asked(mapping, "coherence", "other")
    mixed = [mapping[0], mapping[1].model_copy(update={"frame_id": "other"})]
    with pytest.raises(MindscopeError, match="coherence frame"):
        check_asked(mixed, "coherence", "thin-v1")
    unsaid = [row.model_copy(update={"question_form": None, "frame_id": None}) for row in mapping]
    assert len(check_asked(unsaid, "coherence", "thin-v1")) == 2


def test_two_items_cannot_share_a_column(make_benchmark):
    with pytest.raises(MindscopeError, match="x_rationale"):
        make_mapping(make_benchmark({"x": "G", "x_rationale": "G"}), "support", "f")


PEOPLE = [
    Respondent("r1", True, "botanist", {"one": "good", "item-2": "bad", "three": "good"}, {"one": "why"}),
    Respondent("r2", True, None, {"one": "bad", "three": "bad"}),
]


def test_missing_answers_stay_missing(benchmark, make_eta):
    with pytest.raises(MindscopeError, match=r"'r2' gave no verdict on 1 item\(s\): \['item-2'\]"):
        merge(benchmark, PEOPLE)
    merged = merge(benchmark, PEOPLE, allow_partial=True, prefix="p-")
    assert [analyst.id for analyst in merged.analysts] == ["a0", "p-r1", "p-r2"]
    assert merged.items[1].analyst_verdicts == ("bad", "bad", None)
    assert merged.items[0].analyst_rationales == ("", "why", "")
    eta = make_eta({"one": "G", "item-2": "B", "three": "G"}, {"one": "G", "item-2": "B", "three": "G"})
    found = measure(take_readings(rejoin(eta, merged)))
    assert found.kappa_F_star.n == 2  # Fleiss needs every analyst
    assert found.alpha_panel.n == 3  # alpha takes the gap


def test_unfinished_answers_are_refused(benchmark):
    person = Respondent("r", False, None, {item.id: "good" for item in benchmark.items})
    with pytest.raises(MindscopeError, match="did not finish"):
        merge(benchmark, [person])


def test_respondents_join_a_panel(benchmark):
    panelled = benchmark.model_copy(update={"analysts": (Analyst(id="a0", panel="first"),)})
    with pytest.raises(MindscopeError, match="name the respondents' panel"):
        merge(panelled, PEOPLE[:1])
    merged = merge(panelled, PEOPLE[:1], panel="second")
    assert merged.panels() == {"first": [0], "second": [1]}
    with pytest.raises(MindscopeError, match="have no panels"):
        merge(benchmark, PEOPLE[:1], panel="second")


def test_the_stand_in_gives_way_to_the_panel(make_benchmark):
    benchmark = make_benchmark({"one": "A", "item-2": "A", "three": "A"}, analysts=(Analyst(id=PENDING),))
    assert [a.id for a in merge(benchmark, PEOPLE[:1]).analysts] == ["clinician-r1"]
    assert len(merge(benchmark, PEOPLE[:1], compat=True).analysts) == 2


def test_a_respondent_imported_twice_is_a_fault(benchmark):
    once = merge(benchmark, PEOPLE[:1])
    with pytest.raises(MindscopeError, match="analyst id 'clinician-r1': used 2 times"):
        merge(once, PEOPLE[:1])
