"""What a run will cost, before it is started.

The estimate plays one participant's session with every answer right and counts characters: a token is taken to be 3.5
of them, and a chat turn to add 4 tokens of template. Tokenisers differ: expect it to be right within a quarter. What
was really sent is in the item table, call by call.
"""

from pydantic import BaseModel, ConfigDict

from pal50.design import Design
from pal50.session import Session

_CHARACTERS_PER_TOKEN = 3.5
_TOKENS_PER_TURN = 4


class Estimate(BaseModel):
    """Of a whole run. All numbers but `calls` are approximate tokens."""

    model_config = ConfigDict(frozen=True)

    calls: int
    sent: int
    """Over all calls; each sends the conversation so far."""
    new: int
    """Of those, the ones that no earlier call of the conversation sent: what a server that keeps prefixes reads."""
    generated: int


def estimate(design: Design, participants: int) -> Estimate:
    """Of that many participants with sessions like this one."""
    template = _TOKENS_PER_TURN if design.settings.style == "chat" else 0
    session = Session(design)
    calls, sent, new, generated = 0, 0.0, 0.0, 0.0
    while not session.finished:
        prompt = sum(_tokens(message["content"]) + template for message in session.prompt)
        reply = session.gold()
        calls, sent, new, generated = calls + 1, sent + prompt, prompt, generated + _tokens(reply.text or "")
        session.answer(reply)
    return Estimate(
        calls=calls * participants,
        sent=round(sent * participants),
        new=round(new * participants),
        generated=round(generated * participants),
    )


def _tokens(text: str) -> float:
    return len(text) / _CHARACTERS_PER_TOKEN
