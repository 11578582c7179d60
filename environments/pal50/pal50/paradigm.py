"""pal50: paired-associate learning. A list of word pairs is studied, then each cue is tested, in one conversation.

One row is one participant: a seed, with orders of its own. Unlike ps_primal, where the pair stands beside the question,
the whole list, the other cues and the model's own answers stand between study and test. What is measured, and what
makes it harder than the ceiling that a plain list is for most models, are the arguments (`settings.Settings`).

`trials` builds the rows, `Session` is the conversation, `score` says what the replies were worth: pure Python, the same
for evaluation, training and analysis.

    mindscope eval pal50 --provider local -m MODEL --env-args '{"lists": "AB-ABr"}'
    vf-eval pal50 --provider local -m MODEL -n 10 -r 1
"""

from pydantic import BaseModel, ConfigDict

from pal50.design import FIFTIES, POOL, Design, designs
from pal50.scoring import Outcome, Reply, Score, score
from pal50.session import Message, Session, gold_replies
from pal50.settings import Settings
from pal50.wording import check_examples

__all__ = [
    "DATA_FILES", "MAX_TOKENS", "STOP", "Design", "Message", "Outcome", "Reply", "Score", "Session", "Settings",
    "Trial", "gold_replies", "score", "trials",
]  # fmt: skip

DATA_FILES = (FIFTIES, POOL)

STOP = ("\n",)
"""Ends a completion: the answer is on the first line."""
MAX_TOKENS = 24
"""Longest completion: a phrase and the closing tag."""


class Trial(BaseModel):
    """One row: a participant."""

    model_config = ConfigDict(frozen=True)

    trcode: str
    condition: str
    participant: int
    design: Design

    @property
    def prompt(self) -> list[Message]:
        """What the first call sends."""
        return Session(self.design).prompt


def trials(settings: Settings) -> list[Trial]:
    """One row a participant, a pure function of the settings.

    Raises `MindscopeError` when arguments contradict each other, or the task card or the norms cannot be used.
    """
    sessions = designs(settings)
    if settings.style == "completion":
        check_examples(sessions[0].pairs)
    return [
        Trial(
            trcode=f"participant_{design.participant:04d}",
            condition=settings.label,
            participant=design.participant,
            design=design,
        )
        for design in sessions
    ]
