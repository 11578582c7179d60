"""The arguments of pal50: what is accepted, and how everything wrong with them is said at once."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path
from pal50.paradigm import Session, Settings, gold_replies, score, trials

CONTRADICTIONS = {
    "nothing studied, two lists": ({"study": "none", "lists": "AB-AC"}, "lists='AB-AC' needs something to study"),
    "nothing studied, updates": ({"study": "none", "updates": 3}, "updates=3 needs something to study"),
    "nothing studied, buffers": ({"study": "none", "buffers": 2}, "buffers=2 needs something to study"),
    "nothing studied, blocks": ({"study": "none", "study_block": 5}, "study_block=5 needs something to study"),
    "nothing studied, sums": ({"study": "none", "distractor_turns": 4}, "distractor_turns=4 needs something"),
    "nothing studied, replies": ({"study": "none", "study_replies": "model"}, "study_replies='model' needs something"),
    "nothing studied, cycles": ({"study": "none", "cycles": 3}, "teaches nothing"),
    "re-paired twice by lists": ({"study": "repaired", "lists": "AB-ABr"}, "study='repaired' re-pairs one list"),
    "re-paired twice by updates": ({"study": "repaired", "updates": 2}, "study='repaired' re-pairs one list"),
    "updates of two lists": ({"updates": 2, "lists": "AB-CD"}, "updates=2 re-pairs within one list"),
    "updates backward": ({"updates": 2, "direction": "backward"}, "asks for the last word paired with a cue"),
    "lag of a fixed order": ({"order": "card", "min_lag": 3}, "order='card' fixes every lag"),
    "lag beyond half": ({"n_pairs": 20, "min_lag": 11}, "use at most 10"),
    "card and n_pairs": ({"task_card": "c.json", "n_pairs": 50}, "task_card brings its own pairs"),
    "card and buffers": ({"task_card": "c.json", "buffers": 1}, "task_card brings its own pairs"),
    "card and updates": ({"task_card": "c.json", "updates": 2}, "task_card brings its own pairs"),
    "card and new words": ({"task_card": "c.json", "lists": "AB-AC"}, "task_card has no words for a second list"),
    "card order, two lists": ({"task_card": "c.json", "order": "card", "lists": "AB-ABr"}, "know one list"),
    "pool too small for lists": ({"n_pairs": 300, "lists": "AB-CD"}, "needs 120 pairs at a level; the pool has 100"),
    "pool too small for updates": ({"n_pairs": 50, "updates": 11}, "needs 110 pairs at a level"),
    "pool too small for buffers": ({"n_pairs": 500, "buffers": 1}, "needs 101 pairs at a level"),
    "replay without card": ({"render": "psychscanner", "order": "card"}, "give task_card"),
    "replay shuffled": ({"render": "psychscanner", "task_card": "c.json"}, "set order='card'"),
    "replay with cycles": ({"render": "psychscanner", "task_card": "c.json", "order": "card", "cycles": 2}, "cycles=2"),
    "completion by blocks": ({"style": "completion", "study_block": 2}, "one transcript without study turns"),
    "completion answered": ({"style": "completion", "study_replies": "model"}, "one transcript without study turns"),
    "completion with reasoning": ({"style": "completion", "keep_reasoning": True}, "keep_reasoning=True"),
    "completion with confidence": ({"style": "completion", "confidence": "1-6"}, "no confidence to ask for"),
    "brier without confidence": ({"reward": "brier", "confidence": "off"}, "pays for confidence"),
    "brier of a completion": ({"reward": "brier", "style": "completion"}, "pays for confidence"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused_in_a_sentence(name: str) -> None:
    arguments, sentence = CONTRADICTIONS[name]
    with pytest.raises(MindscopeError, match="The arguments of pal50 contradict each other: 1 fault") as refusal:
        Settings.parse(arguments)
    assert sentence in str(refusal.value)


def test_every_contradiction_is_named_at_once() -> None:
    with pytest.raises(MindscopeError) as refusal:
        Settings.parse({"study": "none", "lists": "AB-AC", "buffers": 2, "reward": "brier", "confidence": "off"})
    assert "3 faults" in str(refusal.value)
    for word in ("lists='AB-AC'", "buffers=2", "reward='brier'"):
        assert word in str(refusal.value)


def test_every_wrong_argument_is_named_at_once() -> None:
    with pytest.raises(MindscopeError) as refusal:
        Settings.parse({"n_pairs": 12, "order": "random", "participants": 0, "shuffle": True})
    message = str(refusal.value)
    assert "4 faults" in message
    assert "n_pairs: found 12; allowed: a multiple of five from 10 to 500" in message
    assert "order: found 'random'" in message
    assert "participants: found 0" in message
    assert "shuffle: found True; allowed: no such field" in message


@pytest.mark.parametrize("n_pairs", [5, 9, 505, 11, -10])
def test_list_lengths_out_of_range(n_pairs: int) -> None:
    with pytest.raises(MindscopeError, match="n_pairs"):
        Settings.parse({"n_pairs": n_pairs})


def test_the_pool_has_what_the_check_of_its_size_assumes() -> None:
    rows = [json.loads(line) for line in Path(data_path("pal50/pool.jsonl")).read_text().splitlines()]
    fifty = [json.loads(line) for line in Path(data_path("pal50/pairs.jsonl")).read_text().splitlines()]
    assert Counter(row["level"] for row in rows) == dict.fromkeys(("L0", "L25", "L50", "L75", "L100"), 100)
    words = {(row["cue"], row["target"], row["level"]) for row in rows}
    assert {(row["cue"], row["target"], row["level"]) for row in fifty} <= words


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_pairs": 500},
        {"n_pairs": 250, "lists": "AB-CD"},
        {"n_pairs": 250, "lists": "AB-AC"},
        {"n_pairs": 500, "lists": "AB-ABr"},
        {"n_pairs": 50, "updates": 10},
        {"n_pairs": 10, "updates": 50},
        {"n_pairs": 490, "buffers": 5},
    ],
    ids=str,
)
def test_the_largest_designs_can_be_built_and_recalled(arguments: dict) -> None:
    (trial,) = trials(Settings.parse(arguments | {"participants": 1}))
    assert score(trial.design, gold_replies(trial.design)).reward == 1.0


def accepted_combinations() -> list[dict]:
    choices = {
        "lists": ["AB", "AB-AC", "AB-CD", "AB-ABr"],
        "study": ["full", "none", "repaired"],
        "order": ["card", "shuffled"],
        "direction": ["forward", "backward", "both"],
        "feedback": ["none", "right_wrong", "corrective"],
        "cycles": [1, 2],
        "updates": [1, 3],
        "buffers": [0, 2],
        "study_block": [1, 3],
        "study_replies": ["scripted", "model"],
        "style": ["chat", "completion"],
        "distractor_turns": [0, 2],
    }
    combinations = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return [arguments for arguments in combinations[::37] if is_accepted(arguments)]


def is_accepted(arguments: dict) -> bool:
    try:
        Settings.parse(arguments)
    except MindscopeError:
        return False
    return True


def test_whatever_is_accepted_runs_and_its_gold_scores_one() -> None:
    """A sample that is spread evenly over the whole grid of arguments."""
    combinations = accepted_combinations()
    assert len(combinations) > 40
    for arguments in combinations:
        (trial,) = trials(Settings.parse(arguments | {"n_pairs": 10, "participants": 1}))
        assert score(trial.design, gold_replies(trial.design)).reward == 1.0, arguments
        assert score(trial.design, []).reward == 0.0, arguments
        assert Session(trial.design).prompt == trial.prompt
