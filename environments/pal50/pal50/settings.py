"""The arguments of pal50: every factor of the design, and which of them contradict each other.

settings = Settings.parse({"n_pairs": 100, "lists": "AB-AC", "direction": "both"})
"""

from collections.abc import Mapping
from typing import Literal, Self

from mindscope.answers import Match
from mindscope.errors import MindscopeError
from mindscope.validation import listing, parse
from pydantic import BaseModel, ConfigDict, Field

Lists = Literal["AB", "AB-AC", "AB-CD", "AB-ABr"]
Direction = Literal["forward", "backward"]
Study = Literal["full", "none", "repaired"]
Feedback = Literal["none", "right_wrong", "corrective"]

LEVELS = 5
POOL_PER_LEVEL = 100
"""Pairs at each level of `data/pal50/pool.jsonl`, the source of every word beyond the fifty."""


class Settings(BaseModel):
    """The environment's arguments."""

    model_config = ConfigDict(extra="forbid")

    participants: int = Field(10, ge=1, le=100_000, description="a whole number from 1 to 100000")
    """Rows: independent participants. Participant i depends on the settings and i alone."""
    seed: int = Field(0, ge=0, description="a whole number from 0")
    """Fixes the list and, with the participant's number, every order."""

    n_pairs: int | None = Field(
        None, ge=10, le=500, multiple_of=LEVELS, description="a multiple of five from 10 to 500"
    )
    """Pairs of a list, the same number at each of five levels; 50 when left out, or those of the task card."""
    task_card: str | None = None
    """Path of a psychscanner task card whose pairs replace the project's own."""
    order: Literal["card", "shuffled"] = "shuffled"
    """`shuffled` orders study and test independently; `card` keeps the order of the file in both."""
    min_lag: int | None = Field(None, ge=1, description="a whole number from 1")
    """Least lag of a shuffled order (see `pal50.items.ItemRow.lag`); 5, or half the list where that is less."""
    lists: Lists = "AB"
    """A second list after the first: same cues with new targets (`AB-AC`), new pairs (`AB-CD`), or the same words
    in other pairs (`AB-ABr`). Both are tested, in mixed order, and every cue names its list."""
    updates: int = Field(1, ge=1, le=50, description="a whole number from 1 to 50")
    """Times each cue is paired, each time with another word; the last one is asked for."""
    study: Study = "full"
    """`none` tests without study, the guessing control; `repaired` studies the same words in other pairs."""
    study_block: int = Field(1, ge=1, le=500, description="a whole number from 1 to 500")
    """Pairs shown in one turn."""
    study_replies: Literal["scripted", "model"] = "scripted"
    """Who answers study and distractor turns: the script, without a call, or the model."""
    cycles: int = Field(1, ge=1, le=20, description="a whole number from 1 to 20")
    """Times the session of study and test is gone through, in new orders."""
    direction: Literal["forward", "backward", "both"] = "forward"
    """Which word is shown: the first, the second, or either for half of the pairs each."""
    feedback: Feedback = "none"
    """After each test trial, ahead of the next turn; `corrective` shows the pair again when it was missed."""
    distractor_turns: int = Field(0, ge=0, le=200, description="a whole number from 0 to 200")
    """Sums between study and test."""
    buffers: int = Field(0, ge=0, le=10, description="a whole number from 0 to 10")
    """Unscored pairs studied before, and as many after, each list; they are tested first."""

    style: Literal["chat", "completion"] = "chat"
    """`chat` for instruction-tuned models, `completion` for base models."""
    render: Literal["clean", "psychscanner"] = "clean"
    """`psychscanner` sends the stimuli of a task card as that program does."""
    confidence: Literal["1-6", "off"] | None = None
    """Whether each recall comes with a confidence from 1 (none) to 6 (complete). Left out, it does in a chat and does
    not in a completion, where a base model would only copy those of the example."""
    keep_reasoning: bool = False
    """Leave `<think>` blocks in the conversation, where they may rehearse the list."""
    match: Match = "strict"
    """`strict` ignores case and edge punctuation; `lenient` also article, hyphen and regular plural."""
    reward: Literal["recall", "brier"] = "recall"
    """`recall` is the share recalled; `brier` also pays for confidence that fits."""
    norms: str | None = None
    """Path of a JSONL file with rows `{"cue": …, "associate": …}`: tells semantic intrusions from others."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """The settings; raises `MindscopeError` that names every wrong argument, or every contradiction."""
        settings = parse(cls, arguments, "The arguments of pal50")
        settings.require_consistency()
        return settings

    def require_consistency(self) -> None:
        """Raises `MindscopeError` with one sentence for each contradiction."""
        if found := [*self._of_study(), *self._of_lists(), *self._of_sources(), *self._of_form()]:
            raise MindscopeError(listing("The arguments of pal50 contradict each other", found))

    @property
    def n_lists(self) -> int:
        return 1 if self.lists == "AB" else 2

    @property
    def asks_confidence(self) -> bool:
        return self.confidence == "1-6" or (self.confidence is None and self.style == "chat")

    @property
    def label(self) -> str:
        """The cell of the design, such as `AB full`."""
        return f"{self.lists} {self.study}"

    def _of_study(self) -> list[str]:
        found = []
        if self.study == "none":
            for name in ("lists", "updates", "buffers", "study_block", "study_replies", "distractor_turns"):
                if not self._is_default(name):
                    found.append(f"{self._as_given(name)} needs something to study, and study='none' shows nothing.")
            if self.cycles > 1 and self.feedback != "corrective":
                found.append(
                    f"cycles={self.cycles} repeats a test of which study='none' teaches nothing; "
                    "add feedback='corrective', or leave cycles out."
                )
        if self.study == "repaired":
            for name in ("lists", "updates"):
                if not self._is_default(name):
                    found.append(f"study='repaired' re-pairs one list studied once; leave {self._as_given(name)} out.")
        return found

    def _of_lists(self) -> list[str]:
        found = []
        if self.updates > 1 and self.lists != "AB":
            found.append(f"updates={self.updates} re-pairs within one list; leave {self._as_given('lists')} out.")
        if self.updates > 1 and self.direction != "forward":
            found.append(
                f"updates={self.updates} asks for the last word paired with a cue; leave {self._as_given('direction')} "
                "out."
            )
        if self.order == "card" and self.task_card is not None and self.lists == "AB-ABr":
            found.append("order='card' follows the card's turns, which know one list; set order='shuffled'.")
        if self.order == "card" and self.min_lag is not None:
            found.append(f"order='card' fixes every lag; leave min_lag={self.min_lag} out, or set order='shuffled'.")
        if self.task_card is None and self.min_lag is not None and self.min_lag > self.list_length // 2:
            found.append(
                f"min_lag={self.min_lag} is more than half of {self.list_length} pairs, so that the test would have "
                f"to repeat the order of study; use at most {self.list_length // 2}."
            )
        return found

    def _of_sources(self) -> list[str]:
        found = []
        if self.task_card is not None:
            for name in ("n_pairs", "buffers", "updates"):
                if not self._is_default(name):
                    found.append(f"task_card brings its own pairs and no others; leave {self._as_given(name)} out.")
            if self.lists in ("AB-AC", "AB-CD"):
                found.append(f"task_card has no words for a second list; {self._as_given('lists')} needs the pool.")
        elif self.pool_need > POOL_PER_LEVEL:
            found.append(
                f"n_pairs={self.list_length} with {self._as_given('lists')}, {self._as_given('updates')} and "
                f"{self._as_given('buffers')} needs {self.pool_need} pairs at a level; the pool has {POOL_PER_LEVEL}."
            )
        return found

    def _of_form(self) -> list[str]:
        found = []
        if self.render == "psychscanner":
            if self.task_card is None:
                found.append("render='psychscanner' replays a task card; give task_card.")
            if self.order != "card":
                found.append("render='psychscanner' replays a task card turn for turn; set order='card'.")
            for name in (
                "lists", "updates", "study", "study_block", "cycles", "direction", "feedback", "distractor_turns",
                "style",
            ):  # fmt: skip
                if not self._is_default(name):
                    found.append(f"render='psychscanner' has only what the card has; leave {self._as_given(name)} out.")
        if self.style == "completion":
            for name in ("study_block", "study_replies", "keep_reasoning"):
                if not self._is_default(name):
                    found.append(
                        f"style='completion' is one transcript without study turns or reasoning; "
                        f"leave {self._as_given(name)} out."
                    )
            if self.confidence == "1-6":
                found.append("style='completion' has no confidence to ask for; leave confidence='1-6' out.")
        if self.reward == "brier" and not self.asks_confidence:
            found.append("reward='brier' pays for confidence; set style='chat' and confidence='1-6'.")
        return found

    @property
    def list_length(self) -> int:
        """Pairs of a list without a task card."""
        return self.n_pairs or 50

    @property
    def pool_need(self) -> int:
        """Pairs at the level that needs most: lists, replaced targets and buffers use every word once."""
        own = self.list_length // LEVELS
        lists = self.n_lists if self.lists != "AB-ABr" else 1
        buffers = -(-2 * self.buffers * self.n_lists // LEVELS)
        return own * (lists + self.updates - 1) + buffers

    def _is_default(self, name: str) -> bool:
        return getattr(self, name) == type(self).model_fields[name].default

    def _as_given(self, name: str) -> str:
        return f"{name}={getattr(self, name)!r}"
