"""What a recalled word was, given the list."""

import pytest
from mindscope.answers import Outcome, read_answer
from mindscope.paired_associates.recall import Recall, classify

PAIRS = [
    ("cat", "umbrella"),
    ("moon", "pencil"),
    ("dessert", "ice cream"),
    ("exam", "pass"),
    ("tea", "cup and saucer"),
]
TWINS = [
    ("desk", "glass"),
    ("lamp", "glasses"),
    ("tree", "ice-cream"),
    ("fog", "ice cream"),
    ("lens", "the cats"),
    ("cat", "fig"),
]


def recalled(text: str, probed: int, match: str = "strict", pairs=PAIRS) -> Recall:
    return classify(read_answer(f"<recall>{text}</recall>", tag="recall"), pairs, probed, match)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Umbrella.", Recall(outcome=Outcome.CORRECT)),
        ("cat", Recall(outcome=Outcome.CUE_REPETITION)),
        ("pencil", Recall(outcome=Outcome.INTRUSION, detail="list_target", source=1)),
        ("Ice Cream", Recall(outcome=Outcome.INTRUSION, detail="list_target", source=2)),
        ("moon", Recall(outcome=Outcome.INTRUSION, detail="list_cue", source=1)),
        ("sock", Recall(outcome=Outcome.WRONG)),
        ("umbrellas", Recall(outcome=Outcome.WRONG)),
        ("an umbrella", Recall(outcome=Outcome.WRONG)),
        ("umbrella or pencil", Recall(outcome=Outcome.WRONG, detail="multiple_answers")),
        ("umbrella, pencil, ice cream", Recall(outcome=Outcome.WRONG, detail="multiple_answers")),
        ("cat - umbrella", Recall(outcome=Outcome.WRONG)),
        ("I don't know", Recall(outcome=Outcome.OMISSION)),
        ("I can't help with that", Recall(outcome=Outcome.REFUSAL)),
    ],
)
def test_each_kind_of_answer(text: str, expected: Recall):
    assert recalled(text, probed=0) == expected


def test_a_list_that_names_the_target_is_not_the_target():
    assert recalled(" ".join(target for _, target in PAIRS), probed=0).outcome is Outcome.WRONG


@pytest.mark.parametrize("probed", range(len(PAIRS)))
@pytest.mark.parametrize("match", ["strict", "lenient"])
def test_every_target_is_correct_for_its_own_cue(probed: int, match: str):
    assert recalled(PAIRS[probed][1], probed, match) == Recall(outcome=Outcome.CORRECT)


def test_a_word_that_reads_like_an_omission_is_one_where_it_is_not_the_target():
    assert recalled("pass", probed=0).outcome is Outcome.OMISSION


@pytest.mark.parametrize("text", ["umbrellas", "an umbrella", "The Umbrellas!"])
def test_lenient_forgives_what_strict_does_not(text: str):
    assert recalled(text, probed=0).outcome is Outcome.WRONG
    assert recalled(text, probed=0, match="lenient").outcome is Outcome.CORRECT


@pytest.mark.parametrize("match", ["strict", "lenient"])
@pytest.mark.parametrize("probed", range(len(TWINS)))
def test_no_rule_accepts_a_different_word_of_the_list(probed: int, match: str):
    for other, pair in enumerate(TWINS):
        for place, word in enumerate(pair):
            recall = recalled(word, probed, match, TWINS)
            if (other, place) == (probed, 1):
                assert recall.outcome is Outcome.CORRECT
            elif (other, place) == (probed, 0):
                assert recall.outcome is Outcome.CUE_REPETITION
            else:
                assert recall == Recall(
                    outcome=Outcome.INTRUSION, detail=("list_cue", "list_target")[place], source=other
                )


def test_lenient_does_not_choose_between_two_words_that_fit_alike():
    expected = Recall(outcome=Outcome.INTRUSION, detail="list_target", source=1)
    assert recalled("the glasses", probed=0, match="lenient", pairs=TWINS) == expected


def test_a_word_that_is_both_a_target_and_a_cue_intrudes_as_the_target():
    chain = [("fog", "lamp"), ("sea", "fog"), ("oak", "tin")]
    expected = Recall(outcome=Outcome.INTRUSION, detail="list_target", source=1)
    assert recalled("fog", probed=2, pairs=chain) == expected


@pytest.mark.parametrize(
    ("reply", "finish_reason", "outcome"),
    [
        ("<recall>umbrella</recall> and", "length", Outcome.CORRECT),
        ("<recall>umbr", "length", Outcome.TRUNCATED),
        ("I can't help with that.", "stop", Outcome.REFUSAL),
        ("umbrella", "stop", Outcome.FORMAT),
        ("", "stop", Outcome.OMISSION),
    ],
)
def test_an_outcome_decided_in_reading_stands(reply: str, finish_reason: str, outcome: Outcome):
    answer = read_answer(reply, tag="recall", finish_reason=finish_reason)
    recall = classify(answer, PAIRS, probed=0)
    assert (recall.outcome, recall.detail) == (outcome, answer.detail)
