"""One answer to one cue: right, or which kind of error.

    pairs = [("cat", "umbrella"), ("moon", "pencil")]
    classify(read_answer("<recall>pencil</recall>", tag="recall"), pairs, probed=0)
    # Recall(outcome=intrusion, detail="list_target", source=1)

The order of decision: an answer that could not be read (truncated, refusal, format, omission), correct, the
cue repeated, a target of the list, a cue of the list, any other word. A provider error has no answer and is
not decided here.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from mindscope.answers import Answer, Match, Outcome, offers_several, same_word


class Recall(BaseModel):
    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    detail: str | None = None
    """Of an intrusion, `list_target` or `list_cue`; of a wrong answer, `multiple_answers` if it offered
    several; else what `Answer.detail` says."""
    source: int | None = None
    """Of an intrusion, the index in `pairs` of the pair that its word belongs to."""


def classify(answer: Answer, pairs: Sequence[tuple[str, str]], probed: int, match: Match = "strict") -> Recall:
    """What `answer` is to the cue of `pairs[probed]`, where `pairs` are the (cue, target) of the whole list.

    A target that reads like an omission ("pass") is correct all the same. `lenient` forgives article, hyphen
    and regular plural, except where another word of the list would be forgiven just as well.
    """
    text = answer.text or ""
    if _is_target(text, pairs, probed, match):
        return Recall(outcome=Outcome.CORRECT, detail=answer.detail)
    if answer.outcome is not None:
        return Recall(outcome=answer.outcome, detail=answer.detail)
    for rule in ("strict", match):
        if same_word(text, pairs[probed][0], rule):
            return Recall(outcome=Outcome.CUE_REPETITION, detail=answer.detail)
        for place, detail in ((1, "list_target"), (0, "list_cue")):
            for source, pair in enumerate(pairs):
                if source != probed and same_word(text, pair[place], rule):
                    return Recall(outcome=Outcome.INTRUSION, detail=detail, source=source)
    return Recall(outcome=Outcome.WRONG, detail="multiple_answers" if offers_several(text) else answer.detail)


def _is_target(text: str, pairs: Sequence[tuple[str, str]], probed: int, match: Match) -> bool:
    target = pairs[probed][1]
    if same_word(text, target):
        return True
    if not same_word(text, target, match):
        return False
    words = [word for pair in pairs for word in pair if not same_word(word, target)]
    return not any(same_word(text, word, match) for word in words)
