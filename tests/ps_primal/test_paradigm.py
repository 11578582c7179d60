"""ps_primal as an optimiser would meet it: prompts, scores, and the policies that must not pay."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindscope.answers import Outcome
from mindscope.errors import MindscopeError
from ps_primal.paradigm import MAX_TOKENS, STOP, Settings, Trial, gold_reply, score, trials

STYLES = ("chat", "completion")
Policy = Callable[[Trial], str | None]


def rows(**arguments: Any) -> list[Trial]:
    return trials(Settings.parse(arguments))


def earned(policy: Policy, **arguments: Any) -> float:
    return math.fsum(score(trial, policy(trial), "stop").reward for trial in rows(**arguments))


def tagged(trial: Trial, text: str) -> str:
    """`text` as the declared answer in the style of the trial."""
    return f"{text}</recall>" if trial.style == "completion" else f"<recall>{text}</recall>"


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("study", ["pair", "none"])
@pytest.mark.parametrize("match", ["strict", "lenient"])
def test_gold_earns_everything_and_silence_nothing(style: str, study: str, match: str):
    arguments = {"style": style, "study": study, "match": match}
    assert earned(gold_reply, **arguments) == 50
    assert earned(lambda trial: gold_reply(trial).upper().replace("RECALL", "recall"), **arguments) == 50
    assert earned(lambda trial: "", **arguments) == 0
    assert earned(lambda trial: None, **arguments) == 0


POLICIES: dict[str, tuple[Policy, float]] = {
    "constant target": (lambda t: tagged(t, t.list_pairs[0][1]), 1),
    "constant word off the list": (lambda t: tagged(t, "xylophone"), 0),
    "all targets, one tag": (lambda t: tagged(t, " ".join(target for _, target in t.list_pairs)), 0),
    "all targets, commas": (lambda t: tagged(t, ", ".join(target for _, target in t.list_pairs)), 0),
    "all targets, a tag each": (lambda t: "".join(f"<recall>{w}</recall>" for _, w in t.list_pairs), 0),
    "all targets, no tag": (lambda t: " ".join(target for _, target in t.list_pairs), 0),
    "gold or another": (lambda t: tagged(t, f"{t.target} or {t.list_pairs[t.index - 1][1]}"), 0),
    "gold, then another tag": (lambda t: gold_reply(t) + "<recall>sock</recall>", 0),
    "another tag, then gold": (lambda t: "<recall>sock</recall>" + gold_reply(t), 0),
    "gold twice": (lambda t: f"<recall>{t.target}</recall>" * 2, 0),
    "mismatched": (lambda t: gold_reply(t).replace("</recall>", "</answer>"), 0),
    "unclosed": (lambda t: gold_reply(t).replace("</recall>", ""), 0),
    "empty shell": (lambda t: f"<think></think>{t.target}", 0),
    "gold in open reasoning": (lambda t: f"<think>{gold_reply(t)}", 0),
    "gold in reasoning only": (lambda t: f"<think><recall>{t.target}</recall></think>", 0),
    "bare gold": (lambda t: t.target, 0),
    "gold in a sentence": (lambda t: tagged(t, f"the word is {t.target}"), 0),
    "gold inside a longer word": (lambda t: tagged(t, f"x{t.target}x"), 0),
    "prompt echoed": (lambda t: t.prompt, 0),
    "prompt echoed, then gold": (lambda t: t.prompt + "\n" + gold_reply(t), 0),
    "cue copied": (lambda t: tagged(t, t.cue), 0),
    "cue and target": (lambda t: tagged(t, f"{t.cue} - {t.target}"), 0),
    "full width": (lambda t: tagged(t, "".join(chr(ord(c) + 0xFEE0) for c in t.target)), 0),
    "zero width": (lambda t: tagged(t, t.target[0] + "\u200b" + t.target[1:]), 0),
    "does not know": (lambda t: tagged(t, "I don't know"), 0),
    "filler after": (lambda t: gold_reply(t) + " That is the word. " * 50, 50),
    "filler on later lines": (lambda t: gold_reply(t) + "\nThat is the word." * 50, 50),
    "edge punctuation": (lambda t: tagged(t, f' "{t.target}." '), 50),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("policy", "reward"), POLICIES.values(), ids=POLICIES)
def test_a_policy_earns_what_is_stated(policy: Policy, reward: float, style: str):
    assert earned(policy, style=style) == reward


@pytest.mark.parametrize("style", STYLES)
def test_outcomes_name_what_happened(style: str):
    trial, other = rows(style=style)[:2]
    replies = {
        Outcome.CORRECT: gold_reply(trial),
        Outcome.WRONG: tagged(trial, "xylophone"),
        Outcome.OMISSION: tagged(trial, "unknown"),
        Outcome.REFUSAL: tagged(trial, "I can't help with that"),
        Outcome.FORMAT: trial.target,
        Outcome.CUE_REPETITION: tagged(trial, trial.cue.upper()),
        Outcome.INTRUSION: tagged(trial, other.target),
    }
    for outcome, reply in replies.items():
        result = score(trial, reply, "stop")
        metrics = result.metrics()
        assert result.outcome is outcome
        assert [name for name, value in metrics.items() if name.startswith("outcome_") and value == 1.0] == [
            f"outcome_{outcome}"
        ]
        assert metrics[f"recall_{trial.level}"] == result.reward == float(outcome is Outcome.CORRECT)
        assert set(metrics) == {f"outcome_{name}" for name in Outcome} | {f"recall_{trial.level}"}
    assert score(trial, trial.target, "length").outcome is Outcome.TRUNCATED
    assert score(trial, tagged(trial, other.cue), "stop").detail == "list_cue"


def test_lenient_forgives_what_strict_does_not():
    strict, lenient = rows()[0], rows(match="lenient")[0]
    reply = f"<recall>the {strict.target}</recall>"
    assert score(strict, reply).reward == 0.0
    assert score(lenient, reply).reward == 1.0


@pytest.mark.parametrize("style", STYLES)
def test_lenient_never_accepts_another_word_of_the_list(style: str):
    for trial in rows(style=style, match="lenient"):
        for pair in trial.list_pairs:
            for word in pair:
                assert score(trial, tagged(trial, word)).reward == float(word == trial.target)


@pytest.mark.parametrize("style", STYLES)
def test_a_reply_that_is_not_text_is_an_error_and_not_a_score(style: str):
    trial = rows(style=style)[0]
    for reply in (math.nan, 1.0, ["umbrella"]):
        with pytest.raises((TypeError, AttributeError)):
            score(trial, reply)  # type: ignore[arg-type]


@pytest.mark.parametrize("style", STYLES)
def test_the_prompt_shows_this_pair_once_and_no_other(style: str):
    listed = {word for pair in rows()[0].list_pairs for word in pair}
    for trial in rows(style=style):
        assert Counter(word for word in words(trial.prompt) if word in listed) == {
            trial.cue: 2,
            trial.target: 1,
        }
        study = next(line for line in trial.prompt.splitlines() if trial.target in words(line))
        assert words(study).index(trial.cue) < words(study).index(trial.target)


@pytest.mark.parametrize("style", STYLES)
def test_the_control_shows_the_cue_and_nothing_of_the_list(style: str):
    listed = {word for pair in rows()[0].list_pairs for word in pair}
    for trial, studied in zip(rows(style=style, study="none"), rows(style=style), strict=True):
        assert Counter(word for word in words(trial.prompt) if word in listed) == {trial.cue: 1}
        lines = iter(studied.prompt.splitlines())
        assert all(line in lines for line in trial.prompt.splitlines()), "the same prompt, less the study"


def test_a_chat_prompt_states_the_contract_and_a_completion_prompt_opens_it():
    assert all("<recall>...</recall>" in trial.prompt for trial in rows())
    for trial in rows(style="completion"):
        assert trial.prompt.endswith(f"{trial.cue} - <recall>")
        assert not trial.prompt[-1].isspace()
        assert STOP == ("\n",)
        assert len(gold_reply(trial)) < MAX_TOKENS * 2


def test_card_order_is_file_order_and_shuffled_order_is_a_seeded_permutation():
    card = [trial.trcode for trial in rows()]
    orders = [[trial.trcode for trial in rows(order="shuffled", seed=seed)] for seed in range(4)]
    assert all(sorted(order) == sorted(card) and order != card for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert [trial.index for trial in rows(order="shuffled")] == list(range(50))
    assert [trial.trcode for trial in rows(seed=7)] == card
    by_code = {trial.trcode: trial.prompt for trial in rows()}
    assert all(by_code[trial.trcode] == trial.prompt for trial in rows(order="shuffled", seed=3))


DIGEST = """
import hashlib, json
from ps_primal.paradigm import Settings, trials
settings = [
    Settings(order=order, seed=seed, style=style, study=study)
    for order in ("card", "shuffled") for seed in (0, 11)
    for style in ("chat", "completion") for study in ("pair", "none")
]
rows = [trial.model_dump() for setting in settings for trial in trials(setting)]
digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
"""


def test_the_same_seed_gives_the_same_bytes_in_every_process(tmp_path: Path):
    here: dict[str, str] = {}
    exec(DIGEST, here)
    for hash_seed in ("0", "1", "4242"):
        there = subprocess.run(
            [sys.executable, "-c", DIGEST + "print(digest)"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here["digest"]


@pytest.mark.parametrize("style", STYLES)
def test_a_trial_read_back_from_its_record_scores_the_same(style: str):
    for trial in rows(style=style, match="lenient", order="shuffled"):
        again = Trial.model_validate_json(trial.model_dump_json())
        assert again == trial
        assert score(again, gold_reply(trial)) == score(trial, gold_reply(trial))


def test_wrong_arguments_are_one_message_of_sentences():
    with pytest.raises(MindscopeError) as caught:
        Settings.parse({"study": "full", "order": "random", "seed": -1, "style": "raw", "match": "fuzzy", "n": 3})
    assert str(caught.value).splitlines() == [
        "The arguments of ps_primal: 6 faults.",
        "  study: found 'full'; allowed: 'pair' or 'none'",
        "  order: found 'random'; allowed: 'card' or 'shuffled'",
        "  seed: found -1; allowed: greater than or equal to 0",
        "  style: found 'raw'; allowed: 'chat' or 'completion'",
        "  match: found 'fuzzy'; allowed: 'strict' or 'lenient'",
        "  n: found 3; allowed: no such field, only task_card, study, order, seed, style, match",
    ]


def card_file(path: Path, *pairs: tuple[str, str]) -> str:
    def turn(phase: str, number: int, cue: str, target: str) -> dict[str, Any]:
        return {
            "trcode": f"{phase}_{number}",
            "stimulus": f"{cue}?",
            "phase": phase,
            "word1": cue,
            "word2": target,
            "similarity": 0.5,
        }

    turns = [turn(phase, n, *pair) for phase in ("encoding", "test") for n, pair in enumerate(pairs)]
    card = {
        "tasktype": "episodic",
        "taskname": "own",
        "instructions": {},
        "context_present": False,
        "parser": None,
        "chain_type": "task",
        "items": {t["trcode"]: [t] for t in turns},
    }
    path.write_text(json.dumps(card), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("style", STYLES)
def test_a_task_card_replaces_the_pairs(tmp_path: Path, style: str):
    pairs = [("cat", "ice cream"), ("exam", "pass"), ("{cue}", "caf\u00e9")]
    card = card_file(tmp_path / "card.json", *pairs)
    own = rows(task_card=card, style=style)
    assert [(t.trcode, t.cue, t.target, t.similarity, t.level) for t in own] == [
        (f"test_{n}", cue, target, 0.5, "L50") for n, (cue, target) in enumerate(pairs)
    ]
    assert earned(gold_reply, task_card=card, style=style) == 3
    assert score(own[2], tagged(own[2], "cafe\u0301")).reward == 1.0
    assert score(own[2], tagged(own[2], "cafe")).reward == 0.0
    assert score(own[0], tagged(own[0], "ice-cream")).reward == 0.0


def test_a_card_that_uses_the_worked_examples_is_refused_for_completion_only(tmp_path: Path):
    card = card_file(tmp_path / "card.json", ("cat", "Parchment"))
    assert len(rows(task_card=card)) == 1
    with pytest.raises(MindscopeError, match=r"'Parchment' \(test_0\), which the worked examples"):
        rows(task_card=card, style="completion")


def test_a_card_that_cannot_be_used_is_a_sentence(tmp_path: Path):
    with pytest.raises(MindscopeError, match=r"Cannot read .*absent\.json"):
        rows(task_card=str(tmp_path / "absent.json"))
