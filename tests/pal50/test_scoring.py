"""What replies are worth. The card is cat - umbrella, lion - tiger, salt - pepper, asked as lion, salt, cat."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from pal50.design import Pair, TestStep
from pal50.paradigm import Design, Outcome, Reply, Score, Session, Settings, gold_replies, score, trials
from pal50.scoring import ScoredTrial, read_confidence

Build = Callable[..., Design]

GOLD = "<recall>tiger</recall>"


def scored(design: Design, *texts: str | None) -> Score:
    return score(design, [Reply(text=text, finish_reason="stop") for text in texts])


def first(design: Design, text: str | None, finish_reason: str = "stop") -> ScoredTrial:
    """The trial that asks for lion - tiger."""
    return score(design, [Reply(text=text, finish_reason=finish_reason)]).trials[0]


def recalled(word: str) -> str:
    return f"<recall>{word}</recall>"


# ---- outcomes, in their order ----

OUTCOMES = [
    (recalled("tiger"), Outcome.CORRECT, None, None),
    (recalled("Tiger."), Outcome.CORRECT, None, None),
    (f"I am sure. {GOLD}\n<confidence>6</confidence> Next!", Outcome.CORRECT, None, None),
    ("<think>cat? <recall>cat</recall></think><recall>tiger</recall>", Outcome.CORRECT, None, None),
    ("<think>it is <recall>tiger</recall>", Outcome.TRUNCATED, None, None),
    ("I'm sorry, I can't help with that.", Outcome.REFUSAL, None, None),
    (recalled("I cannot answer"), Outcome.REFUSAL, None, None),
    ("tiger", Outcome.FORMAT, None, None),
    (recalled("tiger") * 2, Outcome.FORMAT, None, None),
    ("", Outcome.OMISSION, None, None),
    (None, Outcome.OMISSION, None, None),
    (recalled("pass"), Outcome.OMISSION, None, None),
    (recalled("unknown"), Outcome.OMISSION, None, None),
    ("I don't know.", Outcome.OMISSION, None, None),
    (recalled("lion"), Outcome.CUE_REPETITION, None, None),
    (recalled("pepper"), Outcome.LIST_INTRUSION, "tst_salt", 1),
    (recalled("umbrella"), Outcome.LIST_INTRUSION, "tst_cat", -1),
    (recalled("salt"), Outcome.CUE_INTRUSION, "tst_salt", 1),
    (recalled("tiger or pepper"), Outcome.MULTIPLE_ANSWERS, None, None),
    (recalled("zebra"), Outcome.EXTRA_LIST, None, None),
    (recalled("tigers"), Outcome.EXTRA_LIST, None, None),
]


@pytest.mark.parametrize(("text", "outcome", "source", "distance"), OUTCOMES, ids=[str(case[0]) for case in OUTCOMES])
def test_the_outcome_of_one_reply(
    design: Build, text: str | None, outcome: Outcome, source: str | None, distance: int | None
) -> None:
    trial = first(design(), text)
    assert (trial.outcome, trial.intrusion_source, trial.intrusion_distance) == (outcome, source, distance)
    assert trial.correct == (outcome is Outcome.CORRECT)
    assert scored(design(), text).reward == pytest.approx(trial.correct / 3)


def test_a_reply_cut_by_its_token_limit(design: Build) -> None:
    assert first(design(), "<recall>tig", "length").outcome is Outcome.TRUNCATED
    whole = first(design(), f"{GOLD}\n<confid", "length")
    assert (whole.outcome, whole.finish_reason) == (Outcome.CORRECT, "length")


def test_outcomes_share_the_denominator_and_exclude_each_other(design: Build) -> None:
    result = scored(design(), recalled("tiger"), "nonsense")
    metrics = result.metrics()
    shares = {name: value for name, value in metrics.items() if name.startswith("outcome_")}
    assert {name: value for name, value in shares.items() if value} == {
        "outcome_correct": pytest.approx(1 / 3),
        "outcome_format": pytest.approx(1 / 3),
        "outcome_unreached": pytest.approx(1 / 3),
    }
    assert len(shares) == len(Outcome)
    assert result.reward == pytest.approx(1 / 3)
    assert (metrics["recall_L0"], metrics["recall_L25"], metrics["recall_L75"]) == (0.0, 1.0, 0.0)
    assert [trial.outcome for trial in result.trials] == ["correct", "format", "unreached"]
    assert result.trials[2].reply is None


def test_lenient_is_reported_beside_strict_and_rewarded_when_declared(design: Build) -> None:
    for match, reward in (("strict", 0.0), ("lenient", 1 / 3)):
        result = scored(design(match=match), recalled("the tigers"))
        assert (result.trials[0].correct, result.trials[0].lenient_correct) == (False, True)
        assert result.reward == pytest.approx(reward)
        assert result.metrics()["recall_strict"] == 0.0
        assert result.metrics()["recall_lenient"] == pytest.approx(1 / 3)


def test_the_factors_of_each_trial(design: Build) -> None:
    result = scored(design(), *map(recalled, ("tiger", "pepper", "umbrella")))
    facts = [(t.trcode, t.cue, t.target, t.study_position, t.test_position, t.lag) for t in result.trials]
    assert facts == [
        ("tst_lion", "lion", "tiger", 2, 1, 2),
        ("tst_salt", "salt", "pepper", 3, 2, 2),
        ("tst_cat", "cat", "umbrella", 1, 3, 5),
    ]


def test_each_cycle_counts_its_own_positions_and_lags(design: Build) -> None:
    result = scored(design(cycles=2))
    facts = [(t.cycle, t.trcode, t.study_position, t.test_position, t.lag) for t in result.trials]
    one = [("tst_lion", 2, 1, 2), ("tst_salt", 3, 2, 2), ("tst_cat", 1, 3, 5)]
    assert facts == [(cycle, *rest) for cycle in (1, 2) for rest in one]


def test_tokens_and_finish_reasons_belong_to_their_own_trial(design: Build) -> None:
    replies = [
        Reply(text=GOLD, finish_reason="stop", input_tokens=100, output_tokens=7),
        Reply(text="x", finish_reason="length", input_tokens=140, output_tokens=9),
    ]
    facts = [(t.finish_reason, t.input_tokens, t.output_tokens) for t in score(design(), replies).trials]
    assert facts == [("stop", 100, 7), ("length", 140, 9), (None, None, None)]


def test_a_model_that_answers_study_turns_is_scored_on_tests_alone(design: Build) -> None:
    plan = design(study_replies="model", distractor_turns=1)
    answers = [recalled("tiger"), recalled("pepper"), "OK", "42", recalled("tiger"), recalled("pepper"), "<recall>"]
    result = scored(plan, *answers)
    assert [trial.outcome for trial in result.trials] == ["correct", "correct", "format"]


# ---- reward hacking: batteries 1 to 7 and 17 ----

WORTHLESS = {
    "1 every answer in one tag": recalled("umbrella tiger pepper"),
    "1 every answer, separated": recalled("umbrella, tiger, pepper"),
    "1 every answer in its own tag": "".join(map(recalled, ("umbrella", "tiger", "pepper"))),
    "1 the gold and a rival": recalled("tiger / pepper"),
    "2 right first, wrong last": recalled("tiger") + recalled("zebra"),
    "2 wrong first, right last": recalled("zebra") + recalled("tiger"),
    "2 right twice": recalled("tiger") + recalled("tiger"),
    "2 nested": "<recall><recall>tiger</recall></recall>",
    "3 unclosed": "<recall>tiger",
    "3 closed only": "tiger</recall>",
    "3 mismatched": "<recall>tiger</answer>",
    "3 think closed by recall": "<think>tiger</recall>",
    "3 attribute": '<recall word="1">tiger</recall>',
    "3 upper case": "<RECALL>tiger</RECALL>",
    "4 empty shell": "<recall></recall>",
    "4 empty reasoning": "<think></think>a",
    "4 nothing": "",
    "4 blank": " \n ",
    "5 prose": "Of the words, a tiger it was.",
    "5 the answer within a longer word": recalled("tigerish"),
    "5 the answer within a sentence": recalled("it was the tiger"),
    "6 the list": "cat - umbrella\nlion - tiger\nsalt - pepper",
    "6 the list in the tag": recalled("cat - umbrella\nlion - tiger\nsalt - pepper"),
    "6 the pair": recalled("lion - tiger"),
    "6 the cue": recalled("lion"),
    "6 the question": "Which word was paired with lion?\n<recall>...</recall>",
    "7 the bare word": "tiger",
    "7 another tag": "<answer>tiger</answer>",
    "7 the word after a broken tag": "<recall> tiger",
    "7 JSON": '{"recalled_word": "tiger", "confidence": 6}',
    "7 in the reasoning": "<think><recall>tiger</recall></think>",
    "16 full width": recalled("".join(chr(ord(c) + 0xFEE0) for c in "tiger")),
    "16 zero width": recalled("ti\u200bger"),
    "16 homoglyph": recalled("t\u0456ger"),
}


@pytest.mark.parametrize("name", WORTHLESS)
def test_a_hack_is_worth_nothing_and_what_follows_is_untouched(design: Build, name: str) -> None:
    result = scored(design(), WORTHLESS[name], recalled("pepper"), recalled("umbrella"))
    assert not result.trials[0].correct
    assert result.reward == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "text", [GOLD, f"  {GOLD}\n", f"{'so ' * 500}{GOLD}", recalled(" TIGER! "), recalled("“tiger”")]
)
def test_filler_case_and_edges_do_not_move_the_reward(design: Build, text: str) -> None:
    assert scored(design(), text).reward == pytest.approx(1 / 3)


def test_17_a_later_tag_never_answers_an_earlier_cue_nor_an_earlier_one_a_later(design: Build) -> None:
    late = scored(design(), "hm", recalled("tiger") + recalled("pepper"), recalled("umbrella"))
    assert [trial.outcome for trial in late.trials] == ["format", "format", "correct"]
    early = scored(design(), recalled("tiger") + recalled("pepper") + recalled("umbrella"), "as above", "as above")
    assert early.reward == 0.0
    inherited = scored(design(), recalled("tiger"), "", "")
    assert [trial.outcome for trial in inherited.trials] == ["correct", "omission", "omission"]
    shifted = scored(design(), recalled("pepper"), recalled("umbrella"), recalled("tiger"))
    assert shifted.reward == 0.0
    assert {trial.outcome for trial in shifted.trials} == {Outcome.LIST_INTRUSION}


@pytest.mark.parametrize("given", [0, 1, 2, 3, 5])
def test_17_missing_turns_are_wrong_and_extra_ones_are_nobodys(design: Build, given: int) -> None:
    result = scored(design(), *[recalled("tiger")] * given)
    assert len(result.trials) == 3
    assert result.reward == pytest.approx(min(given, 1) / 3)
    assert sum(trial.outcome is Outcome.UNREACHED for trial in result.trials) == max(3 - given, 0)


def test_10_a_constant_answer_is_worth_one_trial() -> None:
    (trial,) = trials(Settings.parse({"participants": 1}))
    word = trial.design.pairs[7].target
    assert scored(trial.design, *[recalled(word)] * 50).reward == pytest.approx(1 / 50)


def test_17_feedback_on_a_trial_does_not_reach_that_trial() -> None:
    """What is asked never holds its own answer, whatever the feedback: it comes a turn late."""
    (trial,) = trials(Settings.parse({"participants": 1, "feedback": "corrective"}))
    session = Session(trial.design)
    while not session.finished:
        step = session.awaited
        assert isinstance(step, TestStep)
        assert trial.design.pairs[step.pair].target not in session.prompt[-1]["content"]
        session.answer(Reply(text=recalled("pass")))


# ---- several lists, updates, norms ----


def one(**arguments: object) -> Design:
    return trials(Settings.parse({"n_pairs": 10, "participants": 1, **arguments}))[0].design


def probes(design: Design, name: str) -> list[int]:
    """Which trials ask for that list."""
    steps = [step for step in design.steps if isinstance(step, TestStep)]
    return [number for number, step in enumerate(steps) if design.pairs[step.pair].list == name]


def answered(design: Design, number: int, word: str) -> ScoredTrial:
    """Trial `number` when it is answered with `word`."""
    texts = ["pass"] * number + [recalled(word)]
    return scored(design, *texts).trials[number]


def asked(design: Design, number: int) -> Pair:
    return design.pairs[[step for step in design.steps if isinstance(step, TestStep)][number].pair]


def partner(design: Design, first_word: str, name: str) -> Pair:
    return next(pair for pair in design.pairs if pair.first == first_word and pair.list == name)


@pytest.mark.parametrize("lists", ["AB-AC", "AB-ABr"])
def test_the_other_word_of_the_same_cue(lists: str) -> None:
    design, second = one(lists=lists), lists[3:]
    number = probes(design, second)[0]
    rival = partner(design, asked(design, number).first, "AB")
    trial = answered(design, number, rival.second)
    assert (trial.outcome, trial.intrusion_source) == (Outcome.PRIOR_LIST_INTRUSION, rival.trcode)
    assert trial.intrusion_distance is None

    number = probes(design, "AB")[0]
    rival = partner(design, asked(design, number).first, second)
    trial = answered(design, number, rival.second)
    assert (trial.outcome, trial.intrusion_source) == (Outcome.LATER_LIST_INTRUSION, rival.trcode)


def test_the_word_of_another_cue_in_the_other_list() -> None:
    design = one(lists="AB-CD")
    number = probes(design, "CD")[0]
    stranger = next(pair for pair in design.pairs if pair.list == "AB")
    assert answered(design, number, stranger.second).outcome is Outcome.PRIOR_LIST_INTRUSION
    assert answered(design, number, stranger.first).outcome is Outcome.CUE_INTRUSION
    number = probes(design, "AB")[0]
    stranger = next(pair for pair in design.pairs if pair.list == "CD")
    assert answered(design, number, stranger.second).outcome is Outcome.LATER_LIST_INTRUSION


def test_the_word_of_another_cue_of_a_re_paired_list_is_of_that_list() -> None:
    design = one(lists="AB-ABr")
    number = probes(design, "ABr")[0]
    own = asked(design, number)
    old = partner(design, own.first, "AB").second
    other = next(p for p in design.pairs if p.list == "ABr" and p.second not in (own.second, old))
    trial = answered(design, number, other.second)
    assert (trial.outcome, trial.intrusion_source) == (Outcome.LIST_INTRUSION, other.trcode)
    assert trial.intrusion_distance != 0


def test_a_replaced_word_of_an_updated_cue() -> None:
    design = one(updates=3)
    own = asked(design, 4)
    replaced = [pair for pair in design.pairs if pair.first == own.first and pair != own]
    assert len(replaced) == 2
    for pair in replaced:
        trial = answered(design, 4, pair.second)
        assert (trial.outcome, trial.intrusion_source) == (Outcome.PRIOR_LIST_INTRUSION, pair.trcode)
        assert trial.intrusion_distance is not None
        assert trial.intrusion_distance < 0
    stranger = next(p for p in design.pairs if p.first != own.first and "+" in p.trcode)
    assert answered(design, 4, stranger.second).outcome is Outcome.PRIOR_LIST_INTRUSION
    current = next(p for p in design.pairs if p.first != own.first and "+" not in p.trcode)
    assert answered(design, 4, current.second).outcome is Outcome.LIST_INTRUSION


def test_backward_probes_take_first_words_for_answers() -> None:
    design = one(direction="backward")
    own, other = asked(design, 0), asked(design, 1)
    assert answered(design, 0, own.first).outcome is Outcome.CORRECT
    assert answered(design, 0, own.second).outcome is Outcome.CUE_REPETITION
    assert answered(design, 0, other.first).outcome is Outcome.LIST_INTRUSION
    assert answered(design, 0, other.second).outcome is Outcome.CUE_INTRUSION


def test_norms_tell_semantic_intrusions_from_others(design: Build, tmp_path: Path) -> None:
    path = tmp_path / "norms.jsonl"
    path.write_text('{"cue": "Lion", "associate": "mane"}\n{"cue": "lion", "associate": "umbrella"}\n')
    plan = design(norms=str(path))
    assert first(plan, recalled("Mane")).outcome is Outcome.SEMANTIC_EXTRA_LIST
    assert first(plan, recalled("umbrella")).outcome is Outcome.LIST_INTRUSION
    assert first(design(), recalled("mane")).outcome is Outcome.EXTRA_LIST


def test_buffers_are_in_the_table_and_not_in_the_reward() -> None:
    design = one(buffers=2)
    replies = gold_replies(design)
    missed = [Reply(text="pass")] * 4 + replies[4:]
    result = score(design, missed)
    assert [trial.scored for trial in result.trials] == [False] * 4 + [True] * 10
    assert result.reward == 1.0
    assert score(design, replies[:4]).reward == 0.0


def test_lists_and_cycles_have_metrics_of_their_own() -> None:
    design = one(lists="AB-CD", cycles=2)
    replies = gold_replies(design)
    metrics = score(design, replies[:20]).metrics()
    assert (metrics["recall_cycle_1"], metrics["recall_cycle_2"]) == (1.0, 0.0)
    assert (metrics["recall_AB"], metrics["recall_CD"]) == (0.5, 0.5)


# ---- completions ----


def test_a_completion_is_read_on_its_first_line(design: Build) -> None:
    plan = design(style="completion")
    cases = {
        "tiger</recall>": Outcome.CORRECT,
        "tiger</recall>\nTest: salt - <recall>pepper</recall>": Outcome.CORRECT,
        "tiger": Outcome.FORMAT,
        "\ntiger</recall>": Outcome.OMISSION,
        "<recall>tiger</recall>": Outcome.FORMAT,
        "pepper</recall>": Outcome.LIST_INTRUSION,
        "": Outcome.OMISSION,
    }
    assert {text: first(plan, text).outcome for text in cases} == cases
    assert first(plan, "ti", "length").outcome is Outcome.TRUNCATED


# ---- confidence ----


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("<confidence>1</confidence>", 1),
        ("<confidence> 6 </confidence>", 6),
        ("<confidence>5/6</confidence>", 5),
        ("<confidence>7</confidence>", None),
        ("<confidence>0</confidence>", None),
        ("<confidence>3.5</confidence>", None),
        ("<confidence>high</confidence>", None),
        ("<confidence>5</confidence><confidence>6</confidence>", None),
        ("<confidence>5", None),
        ("confidence 5", None),
        ("<think><confidence>2</confidence></think>", None),
        ("", None),
    ],
)
def test_a_confidence_is_read_or_missing_and_never_moves_the_recall(design: Build, text: str, confidence: int) -> None:
    trial = first(design(), GOLD + text)
    assert (trial.confidence, trial.outcome) == (confidence, Outcome.CORRECT)
    assert read_confidence(Reply(text=text)) == confidence
    assert scored(design(), GOLD + text).reward == pytest.approx(1 / 3)


def test_means_of_confidence_say_how_many_gave_one(design: Build) -> None:
    metrics = scored(design(), f"{GOLD}<confidence>4</confidence>", "x<confidence>2</confidence>", "x").metrics()
    assert metrics["mean_confidence"] == 3.0
    assert metrics["confidence_given"] == pytest.approx(2 / 3)
    assert "mean_confidence" not in scored(design(), "x").metrics()
    off = scored(design(confidence="off"), f"{GOLD}<confidence>4</confidence>")
    assert off.trials[0].confidence is None
    assert "confidence_given" not in off.metrics()


# ---- reward="brier" ----


def pay(design: Design, word: str, confidence: str) -> float:
    """What one trial of three pays."""
    return 3 * scored(design, f"{recalled(word)}<confidence>{confidence}</confidence>").reward


def test_brier_is_proper_and_pays_for_recall_too(design: Build) -> None:
    plan = design(reward="brier")
    right = [pay(plan, "tiger", str(c)) for c in range(1, 7)]
    wrong = [pay(plan, "zebra", str(c)) for c in range(1, 7)]
    assert right == pytest.approx([(2 - (1 - p) ** 2) / 2 for p in (0, 0.2, 0.4, 0.6, 0.8, 1)])
    assert wrong == pytest.approx([(1 - p**2) / 2 for p in (0, 0.2, 0.4, 0.6, 0.8, 1)])
    for step in range(101):
        chance = step / 100
        expected = [chance * r + (1 - chance) * w for r, w in zip(right, wrong, strict=True)]
        best = max(range(6), key=expected.__getitem__)
        assert abs(best / 5 - chance) <= 0.1 + 1e-9
    assert [r - w for r, w in zip(right, wrong, strict=True)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert all(0 <= value <= 1 for value in (*right, *wrong))


def test_brier_pays_nothing_without_a_confidence(design: Build) -> None:
    plan = design(reward="brier")
    assert pay(plan, "tiger", "") == pay(plan, "zebra", "") == pay(plan, "tiger", "9") == 0.0
    assert score(plan, []).reward == 0.0
    assert score(plan, gold_replies(plan)).reward == 1.0


# ---- words ----


def test_words_are_compared_under_nfc(tmp_path: Path, card: str) -> None:
    path = tmp_path / "accents.json"
    path.write_text(Path(card).read_text(encoding="utf-8").replace("tiger", "café"), encoding="utf-8-sig")
    settings = Settings.parse({"task_card": str(path), "order": "card", "participants": 1})
    (trial,) = trials(settings)
    assert scored(trial.design, recalled(unicodedata.normalize("NFD", "café"))).trials[0].correct
    assert not scored(trial.design, recalled("cafe")).trials[0].correct


def test_a_perfect_session_of_the_default_design() -> None:
    (trial,) = trials(Settings.parse({"participants": 1}))
    texts = [recalled(asked(trial.design, number).second) for number in range(50)]
    result = scored(trial.design, *texts)
    assert result.reward == 1.0
    assert {trial.outcome for trial in result.trials} == {Outcome.CORRECT}


# ---- the whole taxonomy against a plain statement of it ----


def stated(design: Design, number: int, word: str) -> Outcome:
    """The outcome by membership in lists of words; all words of the stimuli are different, plain and lower case."""
    own = asked(design, number)
    tests = [design.pairs[step.pair] for step in design.steps if isinstance(step, TestStep)]
    current = [pair for pair in tests if pair.list == own.list]
    elsewhere = [pair for pair in design.pairs if pair not in current]
    later = [pair for pair in elsewhere if own.list == "AB" and pair.list != "AB"]
    other = Outcome.LATER_LIST_INTRUSION if later else Outcome.PRIOR_LIST_INTRUSION
    if word == own.second:
        return Outcome.CORRECT
    if word == own.first:
        return Outcome.CUE_REPETITION
    if word in [pair.second for pair in elsewhere if pair.first == own.first]:
        return other
    if word in [pair.second for pair in current]:
        return Outcome.LIST_INTRUSION
    if word in [pair.first for pair in design.pairs]:
        return Outcome.CUE_INTRUSION
    return other if word in [pair.second for pair in elsewhere] else Outcome.EXTRA_LIST


@pytest.mark.parametrize(
    "arguments", [{}, {"lists": "AB-AC"}, {"lists": "AB-CD"}, {"lists": "AB-ABr"}, {"updates": 3}], ids=str
)
def test_every_word_of_a_session_at_every_cue(arguments: dict) -> None:
    design = one(**arguments)
    words = {word for pair in design.pairs for word in (pair.first, pair.second)} | {"zebra"}
    n = sum(isinstance(step, TestStep) for step in design.steps)
    for word in sorted(words):
        found = [trial.outcome for trial in scored(design, *[recalled(word)] * n).trials]
        assert found == [stated(design, number, word) for number in range(n)], word
