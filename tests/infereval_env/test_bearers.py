"""Bearers files, items documents and what they compile to, where they go beyond infereval's."""

import json

import pytest
from infereval_env.bearers import PENDING, build_benchmark, compile_constraints, parse_bearers, read_items
from mindscope.errors import MindscopeError

BEARERS = """# A garden
# @ordinal soil = [dry, wet] @target water
# @mutex season = [spring, autumn]
# @entails frost -> cold
# @copresent soil & season prose
# ~regularity: the wetter the soil,
#   the less it needs water
# and this is prose
dry "the soil is dry"
wet "the soil is wet"
spring "it is spring"
autumn "it is autumn"
frost "there is frost"
cold "it is cold"
water "the bed needs water"
"""


def items_file(tmp_path, items, **meta):
    path = tmp_path / "items.json"
    path.write_text(json.dumps({"_meta": {"id": "g", **meta}, "items": items}), encoding="utf-8")
    return path


def test_a_benchmark_from_its_two_files(tmp_path):
    step = {"family": "soil", "tier": "dry", "tier_index": 0, "expected": "non_increasing"}
    items = [
        {"id": "a", "premises": ["dry", "spring"], "target": "water", "monotonicity": step, "note": "n",
         "variation": "monotonicity_step", "ladder": "L", "placeholder": "good"},
        {"id": "b", "premises": ["dry", "wet"], "conclusions": [], "placeholder": "contested"},
    ]  # fmt: skip
    document = read_items(items_file(tmp_path, items, targets=["water"], paraphrases={"dry": ["dry soil"]}, unknown=1))
    made = build_benchmark(parse_bearers(BEARERS), document)
    first, second = made.items
    assert (first.conclusions, first.target, first.construction_note) == (("water",), "water", "n")
    assert first.monotonicity_step.expected == "non_increasing"
    assert (second.conclusions, second.target) == ((), None)
    assert [analyst.id for analyst in made.analysts] == [PENDING]
    assert first.analyst_verdicts == (None,)
    assert build_benchmark(parse_bearers(BEARERS), document, compat=True).items[0].analyst_verdicts == ("abstain",)
    assert made.bearers["dry"].paraphrases == ("dry soil",)
    assert made.bearers["spring"].ordinal_family == "season"
    assert made.regularities[0].description == "the wetter the soil, the less it needs water"
    assert made.copresence_rules[0].families == ("soil", "season")
    assert made.entailment_rules[0].consequent == "cold"


@pytest.mark.parametrize(
    "line",
    ["# @ordinals F = [dry]", "# @ordinal F-x = [dry]", "# ~regularities: x", "# @entails frost cold", "#@mutex F dry"],
)
def test_a_mistyped_annotation_is_a_fault_and_not_a_comment(line):
    with pytest.raises(MindscopeError, match=r"line 16: .* is not a readable"):
        parse_bearers(BEARERS + line)
    assert parse_bearers(BEARERS + line, compat=True)


def test_prose_that_mentions_an_annotation_is_prose():
    assert len(parse_bearers(BEARERS + "# the @ordinal lines above\n").families) == 2


def test_every_fault_of_a_bearers_file_at_once():
    text = BEARERS + 'nonsense\ndry "other"\n# @ordinal F = []\n# @entails frost -> nowhere\n# @mutex H = [dry]\n'
    with pytest.raises(MindscopeError) as caught:
        parse_bearers(text, "garden.txt")
    message = str(caught.value)
    assert message.startswith("garden.txt: 5 faults")
    for part in ("line 16", "line 17", "line 18", "['nowhere']", "'dry' is in the families ['soil', 'H']"):
        assert part in message, part


def test_a_family_declared_twice_is_a_fault():
    with pytest.raises(MindscopeError, match=r"\['soil'\] are declared more than once"):
        parse_bearers(BEARERS + "# @mutex soil = [frost]\n")


def test_a_ladder_needs_an_order(tmp_path):
    step = {"family": "season", "tier": "spring", "tier_index": 0}
    path = items_file(tmp_path, [{"id": "a", "premises": ["spring"], "target": "water", "monotonicity": step}])
    with pytest.raises(MindscopeError, match="@mutex 'season' has no order"):
        build_benchmark(parse_bearers(BEARERS), read_items(path))


def test_faults_of_an_items_document_are_listed(tmp_path):
    path = items_file(tmp_path, [{"id": "a"}, {"id": "b", "premises": ["dry"], "placeholder": "maybe", "x": 1}])
    with pytest.raises(MindscopeError) as caught:
        read_items(path)
    for part in ("items[0] 'a' premises", "items[1] 'b' placeholder: found 'maybe'", "items[1] 'b' x"):
        assert part in str(caught.value), part


def test_the_compiled_count_of_a_family_is_that_of_its_pairs():
    families = {"f": tuple("abcde"), "g": tuple("xyz")}
    assert len(compile_constraints(families).sequents) == 10 + 3
