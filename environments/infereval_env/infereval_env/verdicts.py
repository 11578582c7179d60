"""Verdicts: the labels of each question form, how a reply becomes a verdict, and how several verdicts vote.

    parse("Verdict: GOOD", "support")          # Parsed("good", "ok")
    parse("This is not GOOD", "support")       # Parsed("abstain", "unparseable")
    vote(["good", "good", "bad"])              # Vote(2, 1, 0, "good", tie_broken=False)

An implication ⟨Γ, Δ⟩ is judged good, bad or abstain. Under `support` the question is whether the conclusion
follows; under `coherence` it is whether one can hold Γ and deny all of Δ, so INCOHERENT means good.
"""

import re
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, NamedTuple

from mindscope.answers import without_reasoning

Verdict = Literal["good", "bad", "abstain"]
Outcome = Literal["good", "bad", "abstain", "no_data"]
"""What is known of one item: a verdict, or `no_data` when too few calls succeeded for there to be one."""
QuestionForm = Literal["support", "coherence"]
TieBreak = Literal["abstain", "good", "bad", "first"]
ParseStatus = Literal["ok", "unparseable", "sample_failed", "budget_clipped"]

VERDICTS: tuple[Verdict, ...] = ("good", "bad", "abstain")
LABELS: dict[QuestionForm, dict[str, Verdict]] = {
    "support": {"GOOD": "good", "BAD": "bad", "ABSTAIN": "abstain"},
    "coherence": {"INCOHERENT": "good", "COHERENT": "bad", "UNCLEAR": "abstain"},
}

_CLIPPED = ("length", "max_tokens")
_CAPITALS = str.maketrans(ascii_lowercase, ascii_uppercase)
_DECORATION = " \t*_`#>\"'“”\u2018\u2019.!"
_LEAD_IN = re.compile(r"(?:final\s+)?(?:verdict|answer|label)\s*:", re.IGNORECASE)


class Parsed(NamedTuple):
    verdict: Verdict
    status: ParseStatus


class Vote(NamedTuple):
    good: int
    bad: int
    abstain: int
    verdict: Outcome
    tie_broken: bool


def parse(
    text: str,
    form: QuestionForm,
    *,
    finish_reason: str | None = None,
    compat: bool = False,
    pattern: str | None = None,
) -> Parsed:
    """The verdict a reply declares; one that declares none, or more than one, abstains as `unparseable`.

    A reply declares a label when, with any reasoning block removed, its last line is that label and nothing
    else (markdown, a full stop or a lead-in such as `Verdict:` may surround it) and no other line is another
    label; or when it is one line that opens with the label, then `,` `.` `;` `:` or a dash, and names no
    label again. Labels are compared without regard to case and with no Unicode folding: full-width letters
    are not a label.

    An unparseable reply that ended on its token budget is `budget_clipped`.

    `compat=True` is infereval's rule instead: the first label found anywhere, negated or not. `pattern`, a
    regular expression from a benchmark's own prompt, replaces the label search there and is ignored
    otherwise.
    """
    label = _first_label(text, form, pattern) if compat else _declared_label(text, form)
    if label is not None:
        return Parsed(LABELS[form][label], "ok")
    return Parsed("abstain", "budget_clipped" if finish_reason in _CLIPPED else "unparseable")


def vote(verdicts: Sequence[Verdict], tie_break: TieBreak = "abstain", *, min_valid: int = 1) -> Vote:
    """Plurality over the three verdicts of the calls that succeeded, in the order of their sample index.

    A tie that includes abstain is an abstention; a tie of good and bad is settled by `tie_break` (`first`:
    the one seen first). Fewer than `min_valid` verdicts is `no_data`; with `min_valid=0` no verdict at all is
    an abstention.
    """
    good, bad, abstain = (verdicts.count(verdict) for verdict in VERDICTS)
    if len(verdicts) < min_valid:
        return Vote(good, bad, abstain, "no_data", False)
    top = max(good, bad, abstain)
    tied = [verdict for verdict, count in zip(VERDICTS, (good, bad, abstain), strict=True) if count == top]
    if top == 0 or len(tied) == 1:
        return Vote(good, bad, abstain, tied[0] if top else "abstain", False)
    if "abstain" in tied:
        winner: Verdict = "abstain"
    elif tie_break == "first":
        winner = next(verdict for verdict in verdicts if verdict in tied)
    else:
        winner = tie_break
    return Vote(good, bad, abstain, winner, True)


def _declared_label(text: str, form: QuestionForm) -> str | None:
    lines = [bare for line in (without_reasoning(text) or "").splitlines() if (bare := _bare(line))]
    if not lines:
        return None
    labels = LABELS[form]
    if lines[-1] in labels:
        return lines[-1] if all(line == lines[-1] for line in lines if line in labels) else None
    names = "|".join(labels)
    opening = re.fullmatch(rf"({names})(?:[,.;:]|\s*[\u2013\u2014]|\s+-)\s(.*)", lines[0])
    if opening is None or len(lines) > 1 or re.search(rf"\b(?:{names})\b", opening[2], re.ASCII):
        return None
    return opening[1]


def _bare(line: str) -> str:
    """A line without the markdown and the lead-in around a label, its ASCII letters in capitals."""
    bare = _LEAD_IN.sub("", line.strip(_DECORATION), count=1).strip(_DECORATION)
    return bare.translate(_CAPITALS)


def _first_label(text: str, form: QuestionForm, pattern: str | None) -> str | None:
    found = re.search(pattern or rf"\b({'|'.join(LABELS[form])})\b", text, re.IGNORECASE)
    if found is None:
        return None
    label = (found[1] if found.re.groups else found[0]).upper()
    return label if label in LABELS[form] else None
