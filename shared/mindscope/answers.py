"""Decides what a model answered: strips reasoning, finds the one declared answer, compares words.

    read_answer("<think>a or b?</think><recall>Umbrella.</recall>", tag="recall")   # Answer(text="Umbrella.")
    read_completion("umbrella</recall> …", tag="recall")      # the prompt itself ended with `<recall>`
    same_word("Umbrella.", "umbrella")                        # True

The rules, all strict, so that only one declared answer in its declared place can be right:

- Reasoning is never graded. `<think>`, `<thinking>` and `<reasoning>` blocks are removed, in any case, nested
  or repeated. Text before a closing tag that nothing opened is reasoning too (some chat templates open the
  block in the prompt). A block that its own name never closes means that the reply was cut: `truncated`.
- What is left must hold the tag once, spelt as declared: `<recall>` then `</recall>`. Two or more complete
  tags are `format`, even when they agree. So are unclosed, nested, reordered, attribute-bearing and
  differently cased tags.
- Without a tag, white space alone is an `omission`, and so is a reply that begins by saying it does not know;
  a reply that declines the task is a `refusal`; any other is `format`. No content (None) is an `omission`.
- A reply that its token limit stopped before a tag was complete is `truncated`, whatever it says so far.
- A failed call is none of these: it has no reply, and the caller must not bring it here.
- Words are compared under Unicode NFC and case folding, with typographic quotes, hyphens and spaces made
  plain and punctuation at either end dropped. Nothing else is folded: `café` is not `cafe`, and full-width
  letters, look-alikes from another alphabet and zero-width characters make a different word.
"""

import re
import unicodedata
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

Match = Literal["strict", "lenient"]


class Outcome(StrEnum):
    """What became of one answer. The outcomes exclude each other, and only `correct` is worth anything."""

    CORRECT = "correct"
    WRONG = "wrong"
    OMISSION = "omission"
    REFUSAL = "refusal"
    FORMAT = "format"
    TRUNCATED = "truncated"
    CUE_REPETITION = "cue_repetition"
    INTRUSION = "intrusion"


class Answer(BaseModel):
    """What a reply declares: its answer, or the outcome that could be decided without comparing anything."""

    model_config = ConfigDict(frozen=True)

    text: str | None = None
    """The declared answer as written, without white space around it; None when there is none to read."""
    outcome: Outcome | None = None
    """None when the answer is still to be compared with the right one."""
    detail: str | None = None
    """`no_content`, `no_tag`, `malformed_tag`, `multiple_answers`, `unclosed_reasoning` or `token_limit`;
    `truncated` beside an answer that was complete before the reply was cut."""


def read_answer(reply: str | None, *, tag: str, finish_reason: str | None = None) -> Answer:
    """The answer that a chat reply declares in `<tag>…</tag>`."""
    text = without_reasoning(reply or "")
    if text is None:
        return Answer(outcome=Outcome.TRUNCATED, detail="unclosed_reasoning")
    return _read_tagged(text, tag, cut=finish_reason in _CUT)


def read_completion(reply: str | None, *, tag: str, finish_reason: str | None = None) -> Answer:
    """The answer that a completion gives on its first line, after a prompt that ended with `<tag>`.

    The line must close the tag; later lines are not read, and a cut in them cuts nothing.
    """
    line, newline, _ = (reply or "").partition("\n")
    text = f"<{tag}>{line}" if line.strip() else ""
    return _read_tagged(text, tag, cut=finish_reason in _CUT and not newline)


def without_reasoning(reply: str) -> str | None:
    """The reply outside its reasoning blocks; None when a block is left open."""
    kept: list[str] = []
    opened: list[str] = []
    position = 0
    for found in _REASONING_TAG.finditer(reply):
        closing, name = found[1], found[2].lower()
        if not opened:
            kept.append(reply[position : found.start()])
            if closing:
                kept.clear()
        if not closing:
            opened.append(name)
        elif opened and opened[-1] == name:
            opened.pop()
        position = found.end()
    return None if opened else "".join([*kept, reply[position:]])


def same_word(a: str, b: str, match: Match = "strict") -> bool:
    """Whether two answers are the same word or phrase.

    `lenient` also sets a leading article aside, takes a hyphen for a space, and a regular plural for its
    singular. It knows nothing of other words: whoever compares against a list must see to it that no other
    word of the list fits as well.
    """
    a, b = folded(a), folded(b)
    if not a or not b:
        return False
    if a == b or match == "strict":
        return a == b
    a, b = _bare(a), _bare(b)
    return a == b or a in _plurals(b) or b in _plurals(a)


def folded(text: str) -> str:
    """The form in which words are compared; empty when nothing but punctuation is there."""
    plain = unicodedata.normalize("NFC", text).translate(_PLAIN).casefold()
    plain = unicodedata.normalize("NFC", plain)
    first, last = 0, len(plain)
    while first < last and _is_edge(plain[first]):
        first += 1
    while first < last and _is_edge(plain[last - 1]):
        last -= 1
    return " ".join(plain[first:last].split())


def offers_several(text: str) -> bool:
    """Whether an answer offers several candidates: "umbrella or sock", "umbrella, sock", one a line."""
    return _SEPARATOR.search(text.strip()) is not None


_CUT = ("length", "max_tokens")
_REASONING_TAG = re.compile(r"<(/?)(think|thinking|reasoning)\b[^<>]*>", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,;/|&+\n]|\s(?:or|and)\s", re.IGNORECASE)
_PLAIN = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u2010\u2011", "'''\"\"--")
_OMITTED = {"", "n/a", "none", "nothing", "unknown", "pass", "idk", "not sure", "unsure", "no idea"}
_NOT_KNOWN = re.compile(
    r"(?:(?:i'm |i am )?sorry[,.]? |unfortunately[,.]? )?(?:but )?(?:i|i'm|i am) (?:really |honestly )?"
    r"(?:(?:don'?t|do not|didn'?t|did not|can'?t|cannot|can not|unable to|not able to) "
    r"(?:know|recall|remember)|have no idea|not sure)\b"
)
_DECLINED = re.compile(
    r"\b(?:can'?t|cannot|can not|won'?t|will not|(?:unable|not able|not willing|refuse|decline) to) (?:\w+ )?"
    r"(?:help|assist|comply|answer|provide|participate|continue|engage|discuss|respond|do (?:this|that))\b"
    r"|\bas an ai\b"
)


def _read_tagged(text: str, tag: str, cut: bool) -> Answer:
    marks = list(re.finditer(rf"<\s*/?\s*{re.escape(tag)}\b[^<>]*>", text, re.IGNORECASE))
    kinds = "".join({f"<{tag}>": "(", f"</{tag}>": ")"}.get(mark[0], "?") for mark in marks)
    if kinds == "()":
        answer = text[marks[0].end() : marks[1].start()].strip()
        return Answer(text=answer, outcome=_unanswered(answer), detail="truncated" if cut else None)
    if cut and "()" not in kinds:
        return Answer(outcome=Outcome.TRUNCATED, detail="token_limit")
    if kinds:
        several = kinds.count("()") > 1
        return Answer(outcome=Outcome.FORMAT, detail="multiple_answers" if several else "malformed_tag")
    detail = "no_tag" if text.strip() else "no_content"
    return Answer(outcome=_unanswered(text) or Outcome.FORMAT, detail=detail)


def _unanswered(text: str) -> Outcome | None:
    """`omission` or `refusal` when the text says so."""
    plain = folded(text)
    if plain in _OMITTED or _NOT_KNOWN.match(plain):
        return Outcome.OMISSION
    return Outcome.REFUSAL if _DECLINED.search(plain) else None


def _is_edge(character: str) -> bool:
    return character.isspace() or character == "`" or unicodedata.category(character).startswith("P")


def _bare(folded: str) -> str:
    words = folded.replace("-", " ").split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in {"a", "an", "the"} else words)


def _plurals(word: str) -> set[str]:
    if re.search(r"(?:[sxz]|ch|sh)$", word):
        return {f"{word}es"}
    if re.search(r"[^aeiou]y$", word):
        return {f"{word[:-1]}ies"}
    return {f"{word}s", f"{word}es"} if word.endswith("o") else {f"{word}s"}
