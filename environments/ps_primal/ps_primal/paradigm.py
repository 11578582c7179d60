"""ps_primal: cued recall of a word pair, studied and tested in one prompt.

A single-turn proxy, not the paired-associate paradigm: nothing stands between study and test, so it shows
whether a model follows the instruction and copies the right word, and the expected result is the ceiling.
`study="none"` is the guessing control: the same prompt without the studied pair. Memory for a whole list is
what pal50 measures.

Fifty pairs, ten at each of five levels of similarity (`data/pal50`), or the tested pairs of a psychscanner
task card. The reply must hold `<recall>word</recall>` once. The reward is 1.0 for the studied word, in
whatever case, and 0.0 for anything else; the outcome says what else. Another word of the list is called an
intrusion although the list is never shown whole: it coincides with the list, it is no confusion within it.

`style="completion"` is for base models: a transcript with two worked examples, ending in the opening tag, so
that the reply is the rest of its line.

    mindscope eval ps_primal --provider local -m embedded --env-args '{"style": "completion"}'
    vf-eval ps_primal --provider local -m embedded -n 10 -r 1
"""

import random
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from mindscope.answers import Match, Outcome, read_answer, read_completion, same_word
from mindscope.errors import MindscopeError
from mindscope.paired_associates.cards import load_card
from mindscope.paired_associates.pairs import WordPair, load_pairs
from mindscope.paired_associates.recall import classify
from mindscope.validation import parse
from pydantic import BaseModel, ConfigDict, Field

Style = Literal["chat", "completion"]

DATA_FILES = ("pal50/pairs.jsonl",)

STOP = ("\n",)
"""Ends a completion: the answer is on the first line."""
MAX_TOKENS = 24
"""Longest completion: a phrase and the closing tag."""

_CHAT_STUDY = "Study this word pair: {cue} - {target}\n\n"
_CHAT_TEST = (
    "Which word was paired with {cue}? Give that word, or your best guess, in exactly this form:\n<recall>...</recall>"
)
_LINE_STUDY = "Study: {cue} - <recall>{target}</recall>\n"
_LINE_TEST = "Test: {cue} - <recall>"
_EXAMPLE_PAIRS = (("gondola", "parsley"), ("quill", "parchment"))
_WORKED_EXAMPLE = _LINE_STUDY + _LINE_TEST + "{target}</recall>\n\n"


class Settings(BaseModel):
    """The environment's arguments."""

    model_config = ConfigDict(extra="forbid")

    task_card: str | None = None
    """Path of a psychscanner task card whose tested pairs replace the project's own."""
    study: Literal["pair", "none"] = "pair"
    """`pair` shows the pair before the test; `none` asks without it, the guessing control."""
    order: Literal["card", "shuffled"] = "card"
    """Order of the rows: as in the file, or shuffled by `seed`."""
    seed: int = Field(0, ge=0)
    """Fixes the shuffled order; without effect on `card`."""
    style: Style = "chat"
    """`chat` for instruction-tuned models, `completion` for base models."""
    match: Match = "strict"
    """`strict` ignores case and edge punctuation; `lenient` also article, hyphen and regular plural."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """The settings; raises `MindscopeError` that names every wrong argument and what is allowed."""
        return parse(cls, arguments, "The arguments of ps_primal")


class Trial(BaseModel):
    """One row. It holds all that scoring needs; only `prompt` may be shown to the model."""

    model_config = ConfigDict(frozen=True)

    index: int
    trcode: str
    level: str
    similarity: float
    cue: str
    target: str
    prompt: str
    style: Style
    match: Match
    list_pairs: tuple[tuple[str, str], ...]
    """(cue, target) of every row, this one at `index`."""


class Score(BaseModel):
    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    detail: str | None
    level: str

    @property
    def reward(self) -> float:
        return 1.0 if self.outcome is Outcome.CORRECT else 0.0

    def metrics(self) -> dict[str, float]:
        """`outcome_<name>`, 1.0 for this outcome and 0.0 for the others, and `recall_<level>`, the reward."""
        outcomes = {f"outcome_{outcome}": float(outcome is self.outcome) for outcome in Outcome}
        return outcomes | {f"recall_{self.level}": self.reward}


def trials(settings: Settings) -> list[Trial]:
    """The rows, a pure function of the settings; raises `MindscopeError` if the task card cannot be used."""
    pairs = load_pairs() if settings.task_card is None else load_card(settings.task_card).pairs()
    if settings.order == "shuffled":
        random.Random(settings.seed).shuffle(pairs)
    if settings.style == "completion":
        _check_examples(pairs)
    list_pairs = tuple((pair.cue, pair.target) for pair in pairs)
    return [
        Trial(
            index=index,
            **dict(pair),
            prompt=_prompt(pair, settings),
            style=settings.style,
            match=settings.match,
            list_pairs=list_pairs,
        )
        for index, pair in enumerate(pairs)
    ]


def score(trial: Trial, reply: str | None, finish_reason: str | None = None) -> Score:
    """What the reply to this trial was. `reply` is the message's content, never its reasoning field."""
    read = read_completion if trial.style == "completion" else read_answer
    answer = read(reply, tag="recall", finish_reason=finish_reason)
    recall = classify(answer, trial.list_pairs, trial.index, trial.match)
    return Score(outcome=recall.outcome, detail=recall.detail, level=trial.level)


def gold_reply(trial: Trial) -> str:
    """The reply that is right, in the form this trial's style asks for."""
    closed = f"{trial.target}</recall>"
    return closed if trial.style == "completion" else f"<recall>{closed}"


def _prompt(pair: WordPair, settings: Settings) -> str:
    chat = settings.style == "chat"
    study, test = (_CHAT_STUDY, _CHAT_TEST) if chat else (_LINE_STUDY, _LINE_TEST)
    examples = [] if chat else [_WORKED_EXAMPLE.format(cue=cue, target=word) for cue, word in _EXAMPLE_PAIRS]
    studied = [study.format(cue=pair.cue, target=pair.target)] if settings.study == "pair" else []
    return "".join([*examples, *studied, test.format(cue=pair.cue)])


def _check_examples(pairs: Sequence[WordPair]) -> None:
    examples = [word for pair in _EXAMPLE_PAIRS for word in pair]
    for pair in pairs:
        for word in (pair.cue, pair.target):
            if any(same_word(word, example, "lenient") for example in examples):
                raise MindscopeError(
                    f"The list has the word {word!r} ({pair.trcode}), which the worked examples of "
                    f"style='completion' use too ({', '.join(examples)}); use style='chat' or another word."
                )
