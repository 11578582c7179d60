"""What was read after a prompt, and what it says about the row.

    judged = judge(row, readout)            # from log-probabilities
    judged.forced, judged.open, judged.p_answer, judged.metrics()

Two log-probabilities within `TIE` of each other are tied, and a tie is wrong, since nothing was chosen.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from mindscope.answers import Outcome, offers_several, read_answer, same_word
from mindscope.errors import MindscopeError
from pydantic import BaseModel, ConfigDict, Field

from space_tracking.corpus import COLOURS, Row

TIE = 1e-4
"""Nats by which two log-probabilities must differ to be told apart: more than batching changes them by."""

TIED = "tie"

COLOUR_TAG = "colour"
"""The tag that a generated answer stands in."""


class Readout(BaseModel):
    """What a model's next-token distribution says about the six colours after one prompt."""

    model_config = ConfigDict(frozen=True)

    route: Literal["endpoint", "whitebox"]
    via: str
    """The endpoint's way in, or the model that was read."""
    scoring: Literal["first_token", "sequence"]
    """What a log-probability is of: the one token that is the colour, or the sum over its tokens."""
    logprobs: dict[str, float]
    """In nats, by colour; normalised over the whole vocabulary."""
    at_most: dict[str, float] = {}
    """Bounds on the log-probabilities of the colours that the endpoint did not tell."""
    how: dict[str, str]
    """By colour, where the value came from or why there is none (`mindscope.endpoint.TokenLogprob.how`), or
    `vocabulary` where the whole distribution was at hand. All but the bounds are exact."""
    top: str
    """The most probable token of all."""
    token_ids: dict[str, tuple[int, ...]] | None = None
    """The ids of each colour after this prompt, where the tokenizer was at hand."""

    @property
    def mass_outside(self) -> float | None:
        """Probability of anything but the six colours; None when one of them is unknown."""
        if set(self.logprobs) != set(COLOURS):
            return None
        return max(0.0, 1.0 - math.fsum(map(math.exp, self.logprobs.values())))


class Generated(BaseModel):
    """What a chat model wrote when asked to complete the sentence."""

    model_config = ConfigDict(frozen=True)

    route: Literal["generate"] = "generate"
    reply: str | None = None
    finish_reason: str | None = None


Reading = Annotated[Readout | Generated, Field(discriminator="route")]


class UnscoredError(MindscopeError):
    """A row that can't be scored, because something in its readout is missing."""


class Judgement(BaseModel):
    """One row's readout, judged."""

    model_config = ConfigDict(frozen=True)

    row: Row
    in_play: dict[str, float]
    """Log-probabilities of the colours that the forced choice is between."""
    forced_choice: str
    """The most probable of them, or `TIED`."""
    open_choice: str | None
    """The most probable of the six, or `TIED`; None when it might be one that the endpoint did not tell."""
    corrected_choice: str | None
    """The forced choice after the prior is subtracted, or `TIED`; None without a prior."""
    mass_outside: float | None
    """Probability of anything but the six colours; None when one of them is unknown."""

    @property
    def forced(self) -> bool:
        return self.forced_choice == self.row.answer

    @property
    def open(self) -> bool | None:
        return None if self.open_choice is None else self.open_choice == self.row.answer

    @property
    def corrected(self) -> bool | None:
        return None if self.corrected_choice is None else self.corrected_choice == self.row.answer

    @property
    def tie(self) -> bool:
        return self.forced_choice == TIED

    @property
    def swap_forced(self) -> bool | None:
        """Whether the forced choice is the distractor's colour in the queried space; None without a distractor."""
        return None if (swap := swap_colour(self.row)) is None else self.forced_choice == swap

    @property
    def swap_open(self) -> bool | None:
        """The same of the open choice; None also where that is."""
        swap = swap_colour(self.row)
        return None if swap is None or self.open_choice is None else self.open_choice == swap

    @property
    def p_answer(self) -> float:
        """Probability of the right colour, normalised over those in play."""
        return 1.0 / math.fsum(math.exp(v - self.in_play[self.row.answer]) for v in self.in_play.values())

    @property
    def margin(self) -> float:
        """log p(answer) - log p(foil), in nats."""
        return self.in_play[self.row.answer] - self.in_play[self.row.foil]

    @property
    def error(self) -> Literal["space", "entity", "both", "tie"] | None:
        """Why the forced choice is wrong: another space of the same thing, the other thing in the queried space,
        or both (told apart only where four colours are in play). None when it is right."""
        if self.forced:
            return None
        if self.tie:
            return "tie"
        if self.forced_choice in self.row.space_value_map.values() or self.row.distractor_value_map is None:
            return "space"
        return "entity" if self.swap_forced else "both"

    def metrics(self) -> dict[str, float]:
        """Every measure that is defined for this row, as a number; `gap` is forced minus open."""
        found: dict[str, bool | float | None] = {
            "forced": self.forced,
            "open": self.open,
            "gap": None if self.open is None else float(self.forced) - float(self.open),
            "p_forced": self.p_answer,
            "mass_outside": self.mass_outside,
            "swap_forced": self.swap_forced,
            "swap_open": self.swap_open,
            "corrected": self.corrected,
            "outcome_correct": self.forced,
            "outcome_wrong": not self.forced and not self.tie,
            "outcome_tie": self.tie,
        }
        if len(self.in_play) > 2:
            found |= {f"error_{kind}": self.error == kind for kind in ("space", "entity", "both")}
        return {name: float(value) for name, value in found.items() if value is not None}


def judge(row: Row, readout: Readout, prior: Readout | None = None) -> Judgement:
    """Judges one row; raises `UnscoredError` when the readout or the prior lacks a colour in play.

    The open choice needs no value for a colour that its bound already rules out. The forced choice is held to
    more, so that accuracy, probability and contrast rest on the same rows.
    """
    in_play = _known(row, readout, "")
    corrected = None
    if prior is not None:
        base = _known(row, prior, " in the prior")
        corrected = choose({colour: in_play[colour] - base[colour] for colour in in_play})
    decided = all(bound < max(readout.logprobs.values()) for bound in readout.at_most.values())
    return Judgement(
        row=row,
        in_play=in_play,
        forced_choice=choose(in_play),
        open_choice=choose(readout.logprobs) if decided else None,
        corrected_choice=corrected,
        mass_outside=readout.mass_outside,
    )


def judge_reply(row: Row, reading: Generated) -> dict[str, float]:
    """The measures of a generated answer: one of the six colours, alone in its tag, or an outcome worth nothing."""
    answer = read_answer(reading.reply, tag=COLOUR_TAG, finish_reason=reading.finish_reason)
    outcome, named = answer.outcome, None
    if outcome is None and answer.text is not None:
        named = next((colour for colour in COLOURS if same_word(answer.text, colour)), None)
        if named is None:
            outcome = Outcome.FORMAT if offers_several(answer.text) else Outcome.WRONG
        else:
            outcome = Outcome.CORRECT if named == row.answer else Outcome.WRONG
    found = {"generated": float(outcome is Outcome.CORRECT)}
    if (swap := swap_colour(row)) is not None:
        found["swap_generated"] = float(named == swap)
    return found | {f"outcome_{name}": float(name is outcome) for name in Outcome}


def swap_colour(row: Row) -> str | None:
    """The distractor's colour in the queried space; None without a distractor."""
    return None if row.distractor_value_map is None else row.distractor_value_map[row.query_space]


def choose(logprobs: Mapping[str, float]) -> str:
    """The most probable colour, or `TIED` when another comes within `TIE` of it."""
    best = max(logprobs, key=logprobs.__getitem__)
    tied = any(logprobs[best] - value < TIE for colour, value in logprobs.items() if colour != best)
    return TIED if tied else best


def _known(row: Row, readout: Readout, where: str) -> dict[str, float]:
    missing = [colour for colour in row.in_play if colour not in readout.logprobs]
    if missing:
        bounds = [
            f"{colour} (at most {readout.at_most[colour]:.2f}; {readout.how.get(colour, 'not_listed')})"
            if colour in readout.at_most
            else colour
            for colour in missing
        ]
        raise UnscoredError(f"{row.id}: unknown log-probability{where} of {', '.join(bounds)}")
    return {colour: readout.logprobs[colour] for colour in row.in_play}
