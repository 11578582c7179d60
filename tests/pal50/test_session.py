"""Every byte a participant is sent: the three-pair card written out, and rules that hold in every design."""

import json
from collections.abc import Callable

import pytest
from pal50.design import TestStep
from pal50.paradigm import Design, Reply, Session, Settings, gold_replies, trials
from support.oracle import oracle

Build = Callable[..., Design]

INTRO = (
    "This is a memory test. You will study pairs of words. Later you will be shown one word of a pair and asked for "
    "the other. Reply OK to each pair.\n\n"
)
FORM = "\nGive that word, or your best guess, or pass if you have none, in exactly this form:\n<recall>...</recall>"
SCALE = (
    "\nThen give your confidence, from 1 (none) to 6 (complete), in exactly this form:\n<confidence>...</confidence>"
)
STUDIED = [
    {"role": "user", "content": INTRO + "Study this pair: cat - umbrella"},
    {"role": "assistant", "content": "OK"},
    {"role": "user", "content": "Study this pair: lion - tiger"},
    {"role": "assistant", "content": "OK"},
    {"role": "user", "content": "Study this pair: salt - pepper"},
    {"role": "assistant", "content": "OK"},
]


def ask(cue: str, lead: str = "") -> dict[str, str]:
    return {"role": "user", "content": f"{lead}Which word was paired with {cue}?{FORM}{SCALE}"}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def after(design: Design, *replies: str | None) -> Session:
    session = Session(design)
    for reply in replies:
        session.answer(Reply(text=reply))
    return session


def test_a_chat_holds_the_whole_study_before_its_first_call(design: Build) -> None:
    assert after(design()).prompt == [*STUDIED, ask("lion")]


def test_a_chat_goes_on_with_the_replies_as_they_were_given(design: Build) -> None:
    session = after(design(), "<recall>tiger</recall>\n<confidence>6</confidence>", " no tag ")
    assert session.prompt == [
        *STUDIED,
        ask("lion"),
        said("<recall>tiger</recall>\n<confidence>6</confidence>"),
        ask("salt"),
        said(" no tag "),
        ask("cat"),
    ]
    assert not session.finished
    session.answer(Reply(text=None))
    assert session.finished
    assert session.after_opening == [*session.prompt[7:-1], said("")]


def test_a_backward_probe_shows_the_second_word(design: Build) -> None:
    session = after(design(direction="backward"), "x")
    assert session.prompt == [*STUDIED, ask("tiger"), said("x"), ask("pepper")]


def test_without_confidence_the_scale_is_left_out(design: Build) -> None:
    assert after(design(confidence="off")).prompt[-1]["content"] == f"Which word was paired with lion?{FORM}"


@pytest.mark.parametrize(
    ("feedback", "first", "second"),
    [
        ("right_wrong", "Right.\n\n", "Wrong.\n\n"),
        ("corrective", "Right.\n\n", "Wrong: the pair was salt - pepper.\n\n"),
    ],
)
def test_feedback_leads_the_next_turn(design: Build, feedback: str, first: str, second: str) -> None:
    session = after(design(feedback=feedback), "<recall>Tiger.</recall>", "<recall>sugar</recall>")
    assert session.prompt[-3] == ask("salt", first)
    assert session.prompt[-1] == ask("cat", second)


def test_the_next_cycle_follows_the_last_feedback(design: Build) -> None:
    session = after(design(feedback="right_wrong", cycles=2), "x", "x", "<recall>umbrella</recall>")
    studied = [{**STUDIED[0], "content": "Right.\n\nStudy this pair: cat - umbrella"}, *STUDIED[1:]]
    assert session.prompt[-7:] == [*studied, ask("lion")]


def test_blocks_sums_and_a_model_that_answers_them(design: Build) -> None:
    plan = design(study_block=2, distractor_turns=1, study_replies="model")
    addends = next(step.addends for step in plan.steps if step.kind == "sum")
    session = Session(plan)
    sent = [session.prompt[-1]["content"]]
    for reply in ("OK", "Done!", "no idea"):
        session.answer(Reply(text=reply))
        sent.append(session.prompt[-1]["content"])
    assert sent == [
        INTRO + "Study these pairs:\ncat - umbrella\nlion - tiger",
        "Study this pair: salt - pepper",
        f"What is {addends[0]} + {addends[1]}? Reply with the number.",
        ask("lion")["content"],
    ]
    assert [message["content"] for message in session.prompt[1::2]] == ["OK", "Done!", "no idea"]


def test_scripted_sums_are_answered_rightly(design: Build) -> None:
    plan = design(distractor_turns=2)
    sums = [step.addends for step in plan.steps if step.kind == "sum"]
    assert [m["content"] for m in Session(plan).prompt[7:11:2]] == [str(a + b) for a, b in sums]


def test_a_completion_is_one_transcript(design: Build) -> None:
    session = after(design(style="completion"), "tiger</recall>", "pepper and more\nand a further line")
    (message,) = session.prompt
    assert message == {
        "role": "text",
        "content": (
            "Study: gondola - <recall>parsley</recall>\n"
            "Study: quill - <recall>parchment</recall>\n"
            "Test: gondola - <recall>parsley</recall>\n"
            "Test: quill - <recall>parchment</recall>\n"
            "\n"
            "Study: cat - <recall>umbrella</recall>\n"
            "Study: lion - <recall>tiger</recall>\n"
            "Study: salt - <recall>pepper</recall>\n"
            "Test: lion - <recall>tiger</recall>\n"
            "Test: salt - <recall>pepper and more\n"
            "Test: cat - <recall>"
        ),
    }


def test_a_completion_with_sums_feedback_and_backward_probes(design: Build) -> None:
    plan = design(style="completion", feedback="corrective", distractor_turns=1, direction="backward")
    a, b = next(step.addends for step in plan.steps if step.kind == "sum")
    (message,) = after(plan, "lion</recall>", "").prompt
    assert message["content"] == (
        "Study: gondola - <recall>parsley</recall>\n"
        "Study: quill - <recall>parchment</recall>\n"
        "Test back: parsley - <recall>gondola</recall>\n"
        "Test back: parchment - <recall>quill</recall>\n"
        "\n"
        "Study: cat - <recall>umbrella</recall>\n"
        "Study: lion - <recall>tiger</recall>\n"
        "Study: salt - <recall>pepper</recall>\n"
        f"Sum: {a} + {b} = {a + b}\n"
        "Test back: tiger - <recall>lion</recall>\n"
        "Right.\n"
        "Test back: pepper - <recall>\n"
        "Wrong: the pair was salt - pepper.\n"
        "Test back: umbrella - <recall>"
    )


def test_the_replayed_card_sends_its_own_stimuli(design: Build) -> None:
    prompt = after(design(render="psychscanner"), "<recall>tiger</recall>").prompt
    assert prompt[:3] == [
        {
            "role": "system",
            "content": '{\n    "TASK CONTEXT": "{"definition": ["Study \\u201cthree\\u201d pairs."]}"\n}',
        },
        {"role": "user", "content": '"Remember \\u2014 cat and umbrella."'},
        said("OK"),
    ]
    assert prompt[7]["content"] == f"\"What went with 'lion'?\"{FORM}{SCALE}"
    assert prompt[9]["content"] == f"\"What went with 'salt'?\"{FORM}{SCALE}"


def test_the_reference_card_replays_turn_for_turn() -> None:
    path = oracle("psychscanner/pal50.json")
    stimuli = [turn["stimulus"] for item in json.loads(path.read_text())["items"].values() for turn in item]
    arguments = {"task_card": str(path), "order": "card", "render": "psychscanner", "participants": 1}
    (trial,) = trials(Settings.parse(arguments))
    session = after(trial.design, *[reply.text for reply in gold_replies(trial.design)])
    users = [message["content"] for message in session.prompt if message["role"] == "user"]
    assert len(users) == 100
    assert users[:50] == [json.dumps(stimulus) for stimulus in stimuli[:50]]
    assert users[50:] == [json.dumps(stimulus) + FORM + SCALE for stimulus in stimuli[50:]]


def test_lists_are_named_and_updates_are_announced() -> None:
    (lists,) = trials(Settings.parse({"lists": "AB-AC", "n_pairs": 10, "participants": 1}))
    prompt = lists.prompt
    assert "pairs of words, in two lists. " in prompt[0]["content"]
    assert "Study this pair of list 1: " in prompt[18]["content"]
    assert prompt[20]["content"].startswith("Study this pair of list 2: ")
    asked = lists.design.pairs[lists.design.steps[20].pair]
    number = {"AB": 1, "AC": 2}[asked.list]
    assert prompt[40]["content"].startswith(f"In list {number}, which word was paired with {asked.cue}?")

    (updates,) = trials(Settings.parse({"updates": 3, "n_pairs": 10, "participants": 1}))
    assert "A word may be paired again with another; the last one counts." in updates.prompt[0]["content"]
    assert updates.prompt[-1]["content"].startswith("Which word was last paired with ")


def test_the_guessing_control_asks_the_same_and_shows_nothing(design: Build) -> None:
    prompt = after(design(study="none")).prompt
    assert prompt == [
        ask(
            "lion",
            "This is a test of word pairs. You will be shown one word of a pair and asked for the other. The pairs are "
            "not shown beforehand.\n\n",
        )
    ]


def test_reasoning_leaves_the_conversation_unless_it_is_kept(design: Build) -> None:
    reply = "<think>cat umbrella, lion tiger</think><recall>tiger</recall>"
    assert after(design(), reply).prompt[-2] == said("<recall>tiger</recall>")
    assert after(design(keep_reasoning=True), reply).prompt[-2] == said(reply)
    assert after(design(), "<think>never closed").prompt[-2] == said("")


DESIGNS = [
    {},
    {"style": "completion"},
    {"lists": "AB-ABr", "cycles": 2, "feedback": "right_wrong", "buffers": 2, "distractor_turns": 2},
    {"updates": 3, "study_replies": "model", "study_block": 4},
    {"study": "repaired", "direction": "both", "style": "completion", "feedback": "corrective", "cycles": 2},
]


@pytest.mark.parametrize("arguments", DESIGNS, ids=str)
def test_what_was_sent_never_changes(arguments: dict) -> None:
    """Every prompt begins with the one before it and the reply to that, so that a server can keep the prefix."""
    (trial,) = trials(Settings.parse({"n_pairs": 10, "participants": 1, **arguments}))
    session = Session(trial.design)
    while not session.finished:
        before, reply = session.prompt, session.gold()
        session.answer(reply)
        now = session.prompt
        if trial.design.settings.style == "completion":
            assert now[0]["content"].startswith(before[0]["content"] + reply.text)
        else:
            assert now[: len(before) + 1] == [*before, said(reply.text)]


@pytest.mark.parametrize("arguments", [{}, {"style": "completion"}, {"lists": "AB-AC"}, {"updates": 3}], ids=str)
def test_no_word_of_the_list_is_sent_after_study_but_the_cues(arguments: dict) -> None:
    (trial,) = trials(Settings.parse({"participants": 1, "n_pairs": 20, **arguments}))
    design = trial.design
    session = Session(design)
    opening = "".join(message["content"] for message in session.prompt)
    while not session.finished:
        session.answer(Reply(text="pass"))
    sent = "".join(message["content"] for message in session.prompt)
    later = sent[len(opening) :].lower()
    _, *tests = [design.pairs[step.pair] for step in design.steps if isinstance(step, TestStep)]
    for pair in design.pairs:
        assert later.count(f" {pair.second}") == 0, pair
        assert later.count(f" {pair.first}") == sum(test.first == pair.first for test in tests)


def test_gold_is_nowhere_in_the_guessing_control() -> None:
    (trial,) = trials(Settings.parse({"participants": 1, "study": "none"}))
    session = Session(trial.design)
    while not session.finished:
        session.answer(Reply(text="pass"))
    sent = "".join(message["content"] for message in session.prompt)
    assert not [pair.target for pair in trial.design.pairs if pair.target in sent]
