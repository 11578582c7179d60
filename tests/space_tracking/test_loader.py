"""A bad file is refused with every fault of it, each with its line."""

import json

import pytest
from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path
from space_tracking.corpus import Row, digests, load, load_distinct, read

BELIEF = next(row for row in load() if row.template == "belief-thinks").model_dump(mode="json")
TWO_ENTITY = next(row for row in load() if row.template == "te-photo").model_dump(mode="json")
FOUR_VALUES = load_distinct()[0].model_dump(mode="json")


def written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_a_good_file_comes_back_as_it_is(tmp_path):
    assert read(written(tmp_path, BELIEF, "", TWO_ENTITY)) == [Row(**BELIEF), Row(**TWO_ENTITY)]


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BELIEF).encode())
    assert len(read(path)) == 1


def test_all_faults_of_a_file_are_in_one_error_with_their_lines(tmp_path):
    wrong_answer = BELIEF | {"answer": BELIEF["foil"]}
    incomplete = {key: value for key, value in BELIEF.items() if key != "agents"} | {"depth": "1"}
    with pytest.raises(MindscopeError) as caught:
        read(written(tmp_path, wrong_answer, BELIEF, incomplete))
    message = str(caught.value)
    assert "rows.jsonl:1" in message
    assert f"answer {BELIEF['answer']!r} (the {BELIEF['query_space']} colour), not {BELIEF['foil']!r}" in message
    assert "rows.jsonl:2" not in message
    assert "rows.jsonl:3.agents" in message
    assert "rows.jsonl:3.depth" in message


def test_a_line_that_is_no_json_object_is_named(tmp_path):
    with pytest.raises(MindscopeError, match=r"rows\.jsonl:2"):
        read(written(tmp_path, BELIEF, "{'id': 1}"))


OTHER = next(colour for colour in ("blue", "red", "green") if colour not in (BELIEF["answer"], BELIEF["foil"]))
A, B = BELIEF["answer"], BELIEF["foil"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (BELIEF | {"construction": "belief"}, "a construction among"),
        (BELIEF | {"template": "cf-dream"}, "a template of belief_reality"),
        (BELIEF | {"pair_id": "other-001"}, "a pair_id that starts with 'belief-thinks-'"),
        (BELIEF | {"id": "belief"}, "an id that starts with"),
        (BELIEF | {"split": "validation"}, "'train', 'dev' or 'test'"),
        (BELIEF | {"n_colours": 4}, "n_colours 6, not 4"),
        (BELIEF | {"agents": []}, "1 different agents, not []"),
        (BELIEF | {"agents": ["Nobody"]}, "'Nobody' in the context"),
        (BELIEF | {"depth": 0}, "depth 1 (of belief), not 0"),
        (BELIEF | {"query_space": "dream"}, "a query_space among belief and reality"),
        (
            BELIEF | {"space_value_map": {"belief": A}},
            "a space_value_map of belief and reality, not of belief",
        ),
        (BELIEF | {"space_value_map": {"belief": A, "reality": A}}, "a different colour in each space"),
        (BELIEF | {"space_value_map": {"reality": A, "belief": B}}, "a context that mentions"),
        (BELIEF | {"mention_order": ["reality", "belief"]}, "a context that mentions"),
        (BELIEF | {"mention_order": ["belief"]}, "a mention_order of belief and reality"),
        (BELIEF | {"foil": OTHER}, "a foil that is the colour of the space not asked about"),
        (BELIEF | {"first_mentioned": B, "last_mentioned": A}, "first_mentioned and last_mentioned"),
        (BELIEF | {"entity": "sofa"}, "its entity, 'sofa', in the query"),
        (BELIEF | {"distractor_entity": "sofa"}, "no distractor"),
        (BELIEF | {"prompt": BELIEF["prompt"] + " "}, "none at its ends"),
        (BELIEF | {"prompt": BELIEF["prompt"].removesuffix(" is")}, "a prompt that ends on a copula"),
        (BELIEF | {"prompt": BELIEF["prompt"] + " red, is it or is"}, "no colour in the query"),
        (BELIEF | {"prompt": BELIEF["prompt"].replace(A, "grey")}, "a context that mentions"),
        (BELIEF | {"prompt": ""}, "prompt"),
        (BELIEF | {"note": "hello"}, "note"),
        (TWO_ENTITY | {"distractor_value_map": None}, "a distractor other than the target"),
        (TWO_ENTITY | {"distractor_entity": TWO_ENTITY["entity"]}, "a distractor other than the target"),
        (
            TWO_ENTITY | {"distractor_value_map": TWO_ENTITY["space_value_map"]},
            "that swaps the target's colours",
        ),
        (FOUR_VALUES | {"distractor_value_map": FOUR_VALUES["space_value_map"]}, "four different colours"),
        (
            json.loads(json.dumps(BELIEF).replace(A, "teal")),
            "colours among blue, green, red, brown, yellow, purple, not teal",
        ),
    ],
)
def test_each_kind_of_bad_row_is_refused_with_what_would_be_right(tmp_path, row, fault):
    with pytest.raises(MindscopeError) as caught:
        read(written(tmp_path, BELIEF, row))
    assert "rows.jsonl:2" in str(caught.value)
    assert fault in str(caught.value)


def test_values_of_a_four_colour_construction_must_be_among_the_four(tmp_path):
    text = json.dumps(TWO_ENTITY).replace(TWO_ENTITY["answer"], "purple")
    with pytest.raises(MindscopeError, match="colours among blue, green, red, brown, not purple"):
        read(written(tmp_path, text))


def test_digests_name_every_file():
    found = digests()
    assert set(found) == {"train.jsonl", "dev.jsonl", "test.jsonl", "distinct.jsonl"}
    sums = data_path("space_tracking/SHA256SUMS").read_text()
    assert all(f"{digest}  {name}\n" in sums for name, digest in found.items())
