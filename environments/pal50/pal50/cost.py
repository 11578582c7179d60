"""What a run will consist of and cost, before it is started.

    print(describe(Settings.parse({"n_pairs": 100})))

The estimate plays one participant's session with every answer right and counts characters: a token is taken to be 3.5
of them, and a chat turn to add 4 tokens of template. Tokenisers differ: expect it to be right within a quarter. What
was really sent is in the item table, call by call.
"""

from collections import Counter

from pydantic import BaseModel, ConfigDict

from pal50.paradigm import Design, Session, Settings, trials

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


def estimate_tokens(settings: Settings) -> Estimate:
    """Raises `MindscopeError` where `trials` does."""
    return _estimate(_first(settings), settings.participants)


def describe(settings: Settings) -> str:
    """The session and its cost in a few lines; raises `MindscopeError` where `trials` does."""
    design = _first(settings)
    kinds = Counter(step.kind for step in design.steps)
    shown = sum(len(step.pairs) for step in design.steps if step.kind == "study")
    tested = [design.pairs[step.pair] for step in design.steps if step.kind == "test"]
    scored = Counter(pair.level for pair in sorted(tested, key=lambda pair: pair.similarity) if pair.scored)
    levels = ", ".join(f"{level} {count}" for level, count in scored.items())
    cost = _estimate(design, settings.participants)
    return "\n".join([
        f"pal50, {settings.label}: {settings.participants} participants",
        f"  a session    {shown} pairs in {kinds['study']} study turns, {kinds['sum']} sums, {kinds['test']} cues",
        f"  scored       {scored.total()} cues a session: {levels}",
        f"  calls        {cost.calls:,}",
        f"  tokens sent  about {cost.sent:,}, of them {cost.new:,} new to a server that keeps prefixes",
        f"  generated    about {cost.generated:,}",
    ])  # fmt: skip


def _first(settings: Settings) -> Design:
    """The first participant stands for all: sessions of one run have the same number of turns."""
    return trials(settings.model_copy(update={"participants": 1}))[0].design


def _estimate(design: Design, participants: int) -> Estimate:
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
