"""What counts as the one declared answer of a reply."""

import pytest
from mindscope.answers import Answer, Outcome, read_answer, read_completion, without_reasoning

READABLE = {
    "plain": ("<recall>umbrella</recall>", "umbrella"),
    "original kept": ("<recall>  Umbrella. </recall>", "Umbrella."),
    "filler around": (
        "Sure! The word is <recall>umbrella</recall>, as studied.\n\n" + "Thanks. " * 500,
        "umbrella",
    ),
    "several lines": ("<recall>\numbrella\n</recall>", "umbrella"),
    "phrase": ("<recall>ice cream</recall>", "ice cream"),
    "inside a code fence": ("```\n<recall>umbrella</recall>\n```", "umbrella"),
    "draft tag in thinking": ("<think><recall>sock</recall></think><recall>umbrella</recall>", "umbrella"),
    "thinking after": ("<recall>umbrella</recall><think><recall>sock</recall></think>", "umbrella"),
    "repeated blocks": ("<think>a</think>x<reasoning>b</reasoning><recall>umbrella</recall>", "umbrella"),
    "nested blocks": (
        "<think>a<think><recall>sock</recall></think>b</think><recall>umbrella</recall>",
        "umbrella",
    ),
    "blocks nested by name": (
        "<reasoning>a<think>b</think><recall>sock</recall></reasoning><recall>umbrella</recall>",
        "umbrella",
    ),
    "block in capitals": ("<THINK><recall>sock</recall></Think><recall>umbrella</recall>", "umbrella"),
    "block opened by the template": (
        "it was <recall>sock</recall>\n</think>\n<recall>umbrella</recall>",
        "umbrella",
    ),
    "tag of another name": ("<answer>sock</answer><recall>umbrella</recall>", "umbrella"),
    "a longer name is another tag": ("<recalled>sock</recalled><recall>umbrella</recall>", "umbrella"),
}

UNREADABLE = {
    "no content": (None, Outcome.OMISSION, "no_content"),
    "empty": ("", Outcome.OMISSION, "no_content"),
    "white space": (" \n\t\u00a0", Outcome.OMISSION, "no_content"),
    "nothing after thinking": ("<think>umbrella</think>\n", Outcome.OMISSION, "no_content"),
    "does not know": ("I don't know.", Outcome.OMISSION, "no_tag"),
    "does not know, curly": ("Sorry, I don\u2019t remember the word", Outcome.OMISSION, "no_tag"),
    "cannot recall is no refusal": ("I'm sorry, but I cannot recall it.", Outcome.OMISSION, "no_tag"),
    "refusal": ("I'm sorry, but I can't help with that.", Outcome.REFUSAL, "no_tag"),
    "refusal, curly": ("As an AI, I won\u2019t do this.", Outcome.REFUSAL, "no_tag"),
    "bare word": ("umbrella", Outcome.FORMAT, "no_tag"),
    "empty shell, then a word": ("<think></think>umbrella", Outcome.FORMAT, "no_tag"),
    "every word": ("umbrella sock pencil", Outcome.FORMAT, "no_tag"),
    "other tag": ("<answer>umbrella</answer>", Outcome.FORMAT, "no_tag"),
    "knows, then does not know why": ("Umbrella. I don't know why.", Outcome.FORMAT, "no_tag"),
    "two tags": ("<recall>umbrella</recall><recall>sock</recall>", Outcome.FORMAT, "multiple_answers"),
    "two tags that agree": (
        "<recall>sock</recall> <recall>sock</recall>",
        Outcome.FORMAT,
        "multiple_answers",
    ),
    "ten tags": ("<recall>umbrella</recall>" * 10, Outcome.FORMAT, "multiple_answers"),
    "unclosed": ("<recall>umbrella", Outcome.FORMAT, "malformed_tag"),
    "unopened": ("umbrella</recall>", Outcome.FORMAT, "malformed_tag"),
    "mismatched": ("<recall>umbrella</answer>", Outcome.FORMAT, "malformed_tag"),
    "reordered": ("</recall>umbrella<recall>", Outcome.FORMAT, "malformed_tag"),
    "nested": ("<recall><recall>umbrella</recall></recall>", Outcome.FORMAT, "malformed_tag"),
    "one left open after a complete one": ("<recall>a</recall><recall>b", Outcome.FORMAT, "malformed_tag"),
    "attribute": ('<recall class="x">umbrella</recall>', Outcome.FORMAT, "malformed_tag"),
    "other case": ("<Recall>umbrella</Recall>", Outcome.FORMAT, "malformed_tag"),
    "other case beside": ("<recall>umbrella</recall><RECALL>sock</RECALL>", Outcome.FORMAT, "malformed_tag"),
    "space in the tag": ("< recall >umbrella</ recall>", Outcome.FORMAT, "malformed_tag"),
    "self-closing": ("<recall/>umbrella", Outcome.FORMAT, "malformed_tag"),
    "open thinking": ("<think>it was umbrella", Outcome.TRUNCATED, "unclosed_reasoning"),
    "tag in open thinking": ("<think><recall>umbrella</recall>", Outcome.TRUNCATED, "unclosed_reasoning"),
    "thinking closed by another name": (
        "<think>a</reasoning><recall>umbrella</recall>",
        Outcome.TRUNCATED,
        "unclosed_reasoning",
    ),
    "thinking closed by a tool": (
        "<think>a</tool><recall>umbrella</recall>",
        Outcome.TRUNCATED,
        "unclosed_reasoning",
    ),
    "thinking opened again": (
        "<think>a</think><recall>b</recall><think>",
        Outcome.TRUNCATED,
        "unclosed_reasoning",
    ),
}


@pytest.mark.parametrize(("reply", "text"), READABLE.values(), ids=READABLE)
@pytest.mark.parametrize("finish_reason", [None, "stop"])
def test_one_declared_answer_is_read(reply: str, text: str, finish_reason: str | None):
    assert read_answer(reply, tag="recall", finish_reason=finish_reason) == Answer(text=text)


@pytest.mark.parametrize(("reply", "outcome", "detail"), UNREADABLE.values(), ids=UNREADABLE)
def test_anything_else_is_a_named_outcome(reply: str | None, outcome: Outcome, detail: str):
    assert read_answer(reply, tag="recall", finish_reason="stop") == Answer(outcome=outcome, detail=detail)


@pytest.mark.parametrize(
    "text",
    ["I don't know", "unknown", "Unknown.", "pass", "(none)", "n/a", "", " ", "...", "\u2026", "?", "IDK"],
)
def test_an_omission_inside_the_tag(text: str):
    answer = read_answer(f"<recall>{text}</recall>", tag="recall")
    assert (answer.outcome, answer.text) == (Outcome.OMISSION, text.strip())


def test_a_refusal_inside_the_tag():
    reply = "<recall>I cannot answer that</recall>"
    assert read_answer(reply, tag="recall").outcome is Outcome.REFUSAL


@pytest.mark.parametrize("word", ["passport", "nonesuch", "island", "help", "answer", "cannot"])
def test_a_word_that_resembles_an_omission_or_refusal_is_an_answer(word: str):
    assert read_answer(f"<recall>{word}</recall>", tag="recall") == Answer(text=word)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (None, Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("I don't know", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("The word is", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("<recall>umbr", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("<recall>umbrella</rec", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("<recall>umbrella</recall> because", Answer(text="umbrella", detail="truncated")),
        ("<recall>a</recall><recall>b", Answer(outcome=Outcome.FORMAT, detail="malformed_tag")),
        ("<think>hm", Answer(outcome=Outcome.TRUNCATED, detail="unclosed_reasoning")),
    ],
)
@pytest.mark.parametrize("finish_reason", ["length", "max_tokens"])
def test_the_token_limit_takes_precedence_unless_a_tag_was_complete(
    reply: str | None, expected: Answer, finish_reason: str
):
    assert read_answer(reply, tag="recall", finish_reason=finish_reason) == expected


@pytest.mark.parametrize(
    ("reply", "finish_reason", "expected"),
    [
        ("umbrella</recall>", "stop", Answer(text="umbrella")),
        (" umbrella </recall> and so on", "stop", Answer(text="umbrella")),
        ("umbrella</recall>\nTest: sky - <recall>carrot</recall>", "length", Answer(text="umbrella")),
        ("umbrella</recall>\r\nTest:", "stop", Answer(text="umbrella")),
        ("umbrella</recall> Test:", "length", Answer(text="umbrella", detail="truncated")),
        ("unknown</recall>", "stop", Answer(text="unknown", outcome=Outcome.OMISSION)),
        ("umbrella", "stop", Answer(outcome=Outcome.FORMAT, detail="malformed_tag")),
        ("umbrella\n</recall>", "stop", Answer(outcome=Outcome.FORMAT, detail="malformed_tag")),
        ("umbrella", "length", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
        ("umbrella\nmore", "length", Answer(outcome=Outcome.FORMAT, detail="malformed_tag")),
        ("a</recall><recall>b</recall>", "stop", Answer(outcome=Outcome.FORMAT, detail="multiple_answers")),
        ("<recall>umbrella</recall>", "stop", Answer(outcome=Outcome.FORMAT, detail="malformed_tag")),
        ("", "stop", Answer(outcome=Outcome.OMISSION, detail="no_content")),
        ("\numbrella</recall>", "stop", Answer(outcome=Outcome.OMISSION, detail="no_content")),
        (None, "stop", Answer(outcome=Outcome.OMISSION, detail="no_content")),
        ("", "length", Answer(outcome=Outcome.TRUNCATED, detail="token_limit")),
    ],
)
def test_a_completion_answers_on_its_first_line(reply: str | None, finish_reason: str, expected: Answer):
    assert read_completion(reply, tag="recall", finish_reason=finish_reason) == expected


def test_a_tag_name_is_taken_literally():
    assert read_answer("<a.b>x</a.b><acb>y</acb>", tag="a.b") == Answer(text="x")


@pytest.mark.parametrize(
    ("reply", "outside"),
    [
        ("a<think>b</think>c<thinking>d</thinking>e", "ace"),
        ("b</think>c", "c"),
        ("a<think>b</think>c</think>d", "d"),
        ("a<think>b", None),
        ("thinking about <b>think</b>", "thinking about <b>think</b>"),
    ],
)
def test_reasoning_is_removed(reply: str, outside: str | None):
    assert without_reasoning(reply) == outside


@pytest.mark.parametrize("unit", ["<think", "<think>", "</think>", "<recall", "<recall>", "<recall>a</recall>", "< "])
def test_a_pathological_reply_is_read_all_the_same(unit: str):
    assert read_answer(unit * 50_000, tag="recall").outcome is not None
