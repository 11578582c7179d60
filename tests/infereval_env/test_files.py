"""Benchmarks and evaluations as files: every fault at once, nothing silent, and what infereval can read
back."""

import copy
import json
import random
from contextlib import suppress

import pytest
from infereval_env.checks import benchmark_warnings
from infereval_env.files import for_infereval, read_benchmark, read_evaluation, write_evaluation, write_model
from infereval_env.formats import (
    Bearer,
    CopresenceRule,
    Item,
    MonotonicityStep,
    PluginBuilder,
    Setup,
    benchmark_hash,
    dump,
    elicitation_hash,
    reference_hash,
)
from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path


@pytest.fixture
def data():
    return {
        "id": "b",
        "bearers": {"p": {"expression": "p"}, "q": {"expression": "q"}},
        "analysts": [{"id": "a"}],
        "items": [{"id": "x", "premises": ["p"], "conclusions": ["q"], "analyst_verdicts": ["good"]}],
    }


def read(tmp_path, data, reader=read_benchmark):
    path = tmp_path / "file.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return reader(path)


def faults(tmp_path, data, reader=read_benchmark):
    with pytest.raises(MindscopeError) as caught:
        read(tmp_path, data, reader)
    return str(caught.value).splitlines()[1:]


def test_all_faults_of_a_benchmark_are_listed_at_once(tmp_path, data):
    data.update(
        foo=1,
        schema_version="2.0",
        primary_panel="nobody",
        targets=["q"],
        ordinal_families={"F": ["p", "zz"]},
        copresence_rules=[{"families": ["F"]}],
        entailment_rules=[{"antecedent": "p", "consequent": "yy"}],
        regularities=[{"description": "d", "test_item_ids": ["no such item"]}],
        factors={"f": ["l"]},
        factor_constraints={"min_items_per_cell": 1},
        factor_kinds={"g": "substantive"},
    )
    data["analysts"].append({"id": "a"})
    data["bearers"]["q"]["ordinal_family"] = "H"
    data["items"] = [
        {"id": "x", "premises": ["xx"], "conclusions": ["q"], "analyst_verdicts": ["good"], "target": "r"},
        {"id": "x", "premises": ["p"], "conclusions": ["q"], "analyst_verdicts": ["good", "maybe"]},
        {
            "id": "y", "premises": ["p"], "conclusions": ["q"], "analyst_verdicts": ["good", "bad"],
            "factor_levels": {"f": "m", "h": "n"},
            "monotonicity_step": {"family": "F", "tier": "p", "tier_index": 1, "fixed": "ww"},
        },
        {"premises": ["p"], "conclusions": ["q"], "analyst_verdicts": ["good", "bad"]},
    ]  # fmt: skip
    found = faults(tmp_path, data)
    for part in (
        "foo: found 1; allowed: no such field",
        "schema_version: found '2.0'; allowed: '1.0'",
        "analyst id 'a': used 2 times",
        "primary_panel: found 'nobody'",
        "ordinal_families F: ['zz'] are not bearers",
        "bearers q ordinal_family: found 'H'",
        "copresence_rules[0]: found ['F']; it takes two",
        "entailment_rules[0]: ['yy'] are not bearers",
        "regularities[0] test_item_ids: ['no such item']",
        "factor_kinds g",
        "the cell {'f': 'l'} holds 0 items",
        "items[0] 'x' premises: ['xx'] are not bearers",
        "items[0] 'x' analyst_verdicts: found 1; there are 2 analysts",
        "items[0] 'x' target: found 'r'",
        "items[1] 'x' analyst_verdicts[1]: found 'maybe'; allowed: 'good', 'bad' or 'abstain'",
        "items[2] 'y' factor_levels f: found 'm'; the levels are ['l']",
        "items[2] 'y' factor_levels h",
        "items[2] 'y' monotonicity_step tier_index: found 1; 'p' is at 0",
        "items[2] 'y' monotonicity_step fixed: 'ww' is not a bearer",
        "items[3] id: found nothing",
    ):
        assert any(part in line for line in found), (part, found)
    assert len(found) == 20


def test_two_items_with_one_id_are_a_fault(tmp_path, data):
    data["items"].append(data["items"][0])
    assert faults(tmp_path, data) == ["  item id 'x': used 2 times; each must be unique"]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": NaN}', '{"id": 1e999}', '{"id": "b", "id": "c"}', "[" * 100_000, "{", "", "null", "[]", '"b"',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)  # fmt: skip
def test_what_is_not_plain_json_is_an_error_to_act_on(tmp_path, text):
    for reader in (read_benchmark, read_evaluation):
        with pytest.raises(MindscopeError, match=r"file\.json"):
            read(tmp_path, text, reader)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(MindscopeError, match="Cannot read"):
        read_benchmark(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(MindscopeError, match="UTF-8"):
        read_benchmark(tmp_path / "bytes.json")


def test_a_byte_order_mark_is_no_fault(tmp_path, data):
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(data).encode())
    assert read_benchmark(tmp_path / "bom.json").id == "b"


@pytest.mark.parametrize("seed", range(5))
def test_no_mutation_of_a_file_breaks_the_reader(tmp_path, seed):
    """Values anywhere in a real file replaced by wrong ones: read, or refused in words, never a traceback."""
    rng = random.Random(seed)
    whole = json.loads(data_path("infereval/garden/benchmark.json").read_text(encoding="utf-8"))
    whole["items"] = whole["items"][:6]
    wrong = [None, 3, -1.5, True, "x", [], {}, ["x"], {"id": 3}, [None], [[["p"]]]]
    for _ in range(40):
        mutant = copy.deepcopy(whole)
        for _ in range(rng.randint(1, 3)):
            place, key = mutant, rng.choice(list(mutant))
            while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
                place = place[key]
                key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            place[key] = rng.choice(wrong)
        with suppress(MindscopeError):
            read(tmp_path, mutant)


def test_sets_forget_order_and_repetition_and_strings_become_references(tmp_path, data):
    data["items"][0].update(premises=["q", "p", "p"], references=["A book"])
    item = read(tmp_path, data).items[0]
    assert item.premises == ("p", "q")
    assert item.references[0].citation == "A book"


def test_a_missing_analyst_is_null_and_stays_null(tmp_path, data):
    data["items"][0]["analyst_verdicts"] = [None]
    benchmark = read(tmp_path, data)
    write_model(benchmark, tmp_path / "again.json")
    assert read_benchmark(tmp_path / "again.json").items[0].analyst_verdicts == (None,)


def test_hashes_move_with_what_they_cover(make_benchmark):
    benchmark = make_benchmark({"x": "GB", "y": "BB"})
    first, second = benchmark.items
    noted = benchmark.model_copy(
        update={"items": (first.model_copy(update={"construction_note": "typo", "placeholder": "good"}), second)}
    )
    judged = benchmark.model_copy(
        update={"items": (first.model_copy(update={"analyst_verdicts": ("bad", "bad")}), second)}
    )
    worded = benchmark.model_copy(update={"bearers": {**benchmark.bearers, "p": Bearer(expression="P!")}})
    reordered = benchmark.model_copy(update={"items": (second, first)})
    hashes = (benchmark_hash, elicitation_hash, reference_hash)

    def moved(other):
        return [of(other) != of(benchmark) for of in hashes]

    assert moved(noted) == [True, False, False]
    assert moved(judged) == [True, False, True]
    assert moved(worded) == [True, True, False]
    assert moved(reordered) == [True, False, False]


def test_reference_hash_ignores_the_order_of_analysts(make_benchmark):
    benchmark = make_benchmark({"x": "GB"})
    swapped = benchmark.model_copy(
        update={
            "analysts": benchmark.analysts[::-1],
            "items": (benchmark.items[0].model_copy(update={"analyst_verdicts": ("bad", "good")}),),
        }
    )
    assert reference_hash(swapped) == reference_hash(benchmark)


def test_warnings_name_what_infereval_passes_over(make_benchmark):
    step = MonotonicityStep(family="F", tier="p", tier_index=0)
    items = (
        Item(id="none", premises=(), conclusions=(), analyst_verdicts=("abstain",)),
        Item(id="one", premises=("p",), conclusions=("q",), analyst_verdicts=(None,)),
        Item(id="two", premises=("p",), conclusions=("q",), analyst_verdicts=("abstain",)),
        Item(
            id="up", premises=("r",), conclusions=("q",), analyst_verdicts=("abstain",), ladder="L",
            monotonicity_step=step,
        ),
        Item(
            id="down", premises=("p",), conclusions=("r",), analyst_verdicts=("abstain",), ladder="L",
            variation="monotonicity_step", monotonicity_step=step.model_copy(update={"expected": "non_increasing"}),
        ),
    )  # fmt: skip
    benchmark = make_benchmark(
        {"x": "G"},
        items=items,
        ordinal_families={"F": ("p",), "H": ("s",)},
        copresence_rules=(CopresenceRule(families=("F", "H")),),
    )
    builders = benchmark.context_builders.model_copy(
        update={"premise": PluginBuilder(kind="plugin", plugin="os:system")}
    )
    found = " | ".join(benchmark_warnings(benchmark.model_copy(update={"context_builders": builders})))
    for part in (
        "'none' has neither premises nor conclusions",
        "'two' asks the same implication as 'one'",
        "'up' has a variation and a monotonicity_step that disagree",
        "'p', that is not among its premises",
        "has a tier of ['F'] but none of ['H']",
        "disagree on the expected direction",
        "'os:system' is code",
        "['a0'] gave no substantive verdict",
    ):
        assert part in found, part


def test_an_evaluation_of_ragged_panels_is_refused(tmp_path, make_eta):
    eta = dump(make_eta({"x": "G", "y": "B", "z": "B"}))
    eta["items"][1]["analyst_verdicts"] = ["good"]
    eta["items"][2]["samples"][0]["sample_index"] = "0"
    found = faults(tmp_path, eta, read_evaluation)
    assert any("items[2] 'z' samples[0] sample_index: found '0'" in line for line in found)
    assert any("items[1] 'y' analyst_verdicts: found 1" in line or "found 2" in line for line in found)


def test_impossible_samples_are_refused(tmp_path, make_eta):
    eta = dump(make_eta({"x": "GG"}))
    first, second = eta["items"][0]["samples"]
    second["sample_index"] = 0
    first["label_probabilities"] = {"good": 0.9, "bad": 0.4}
    del second["parsed_verdict"]
    found = " ".join(faults(tmp_path, eta, read_evaluation))
    assert "sample_index '0': used 2 times" in found
    assert "not probabilities" in found
    assert "did not fail" in found


def test_an_evaluation_survives_the_round_trip(tmp_path, make_eta):
    eta = make_eta({"x": "GGE", "y": "EEE", "z": "UBB"}, {"x": "G-", "y": "GB", "z": "BB"})
    eta = eta.model_copy(update={"setup": Setup(template_id="t")})
    assert write_evaluation(eta, tmp_path / "eta.json") == []
    assert read_evaluation(tmp_path / "eta.json") == eta


def test_what_infereval_cannot_hold_is_said(tmp_path, make_eta):
    eta = make_eta({"x": "GGE", "y": "EEE"}, {"x": "G-", "y": "GB"})
    eta = eta.model_copy(update={"setup": Setup(template_id="t")})
    plain, lost = for_infereval(eta)
    assert [item.model_verdict for item in plain.items] == ["good", "abstain"]
    assert plain.items[0].analyst_verdicts == ("good", "abstain")
    assert len(lost) == 3
    text = json.dumps(dump(plain))
    assert "no_data" not in text
    assert "setup" not in text


def test_real_files_of_infereval_are_written_as_they_were_read(oracle, tmp_path):
    for path in sorted(oracle.glob("*/*-eta*.json")):
        eta = read_evaluation(path)
        write_evaluation(eta, tmp_path / "eta.json", compat=True)
        assert json.loads((tmp_path / "eta.json").read_text(encoding="utf-8")) == json.loads(
            path.read_text(encoding="utf-8")
        )


def test_infereval_refuses_are_ours_too(expected, tmp_path, data):
    """Each malformed benchmark of infereval's own list, rebuilt, is refused; each well-formed one is read."""
    family = {"F": ["p", "r"]}
    step = {"family": "F", "tier": "p", "tier_index": 1}
    data["bearers"]["r"] = {"expression": "r"}
    item = data["items"][0]
    changed = {
        "ok": {},
        "extra_key": {"foo": 1},
        "dup_item": {"items": [item, item]},
        "unknown_bearer": {"items": [{**item, "premises": ["zz"]}]},
        "verdict_len": {"items": [{**item, "analyst_verdicts": ["good", "bad"]}]},
        "bad_verdict": {"items": [{**item, "analyst_verdicts": ["contested"]}]},
        "no_analyst": {"analysts": []},
        "dup_analyst": {"analysts": [{"id": "a"}, {"id": "a"}]},
        "partial_panel": {"analysts": [{"id": "a", "panel": "X"}, {"id": "b"}]},
        "primary_unknown": {"primary_panel": "z"},
        "rationale_len": {"items": [{**item, "analyst_rationales": ["a", "b"]}]},
        "schema_version": {"schema_version": "2.0"},
        "family_unknown_tier": {"ordinal_families": {"F": ["zz"]}},
        "placeholder_contested_ok": {"items": [{**item, "placeholder": "contested"}]},
        "step_wrong_index": {"ordinal_families": family, "items": [{**item, "monotonicity_step": step}]},
        "zero_items_ok": {"items": []},
        "factor_undeclared": {"items": [{**item, "factor_levels": {"f": "x"}}]},
        "min_items_per_cell": {"factors": {"f": ["x", "y"]}, "factor_constraints": {"min_items_per_cell": 1}},
    }
    vectors = expected["synthetic"]["benchmark_validation"]
    assert set(vectors) == {*changed, "dedup", "string_reference"}
    for key, change in changed.items():
        if "error" in vectors[key]:
            assert faults(tmp_path, {**data, **change}), key
        else:
            read(tmp_path, {**data, **change})
