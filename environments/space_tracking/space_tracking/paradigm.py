"""space_tracking: whose colour is it, the painting's or the room's?

A prompt gives a thing one colour in each of two spaces and stops on a copula. The answer is the distribution of
the next token. *Forced*: which of the colours in play is most probable, the question the minimal pair asks.
*Open*: which of all six colours is. *Pair*: whether both rows of a pair are right, which no preference for a
place, a colour or a space can bring about.

The reward is 1.0 for a right forced choice; `reward="logprob"` pays the probability of the right colour among those
in play, which moves with every update. `route="generate"` has a chat model name the colour instead: a different
measurement, in metrics of its own.

    mindscope eval space_tracking --provider local -m embedded -n 40
    vf-eval space_tracking --provider local -m embedded -n 40 -r 1
    mindscope score space_tracking --model embedded

A row whose readout lacks a colour in play is unscored: an error that says so, never a 0.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

from mindscope.validation import parse
from pydantic import BaseModel, ConfigDict, model_validator

from space_tracking.corpus import COLOURS, Part, Row, Scheme, load, load_distinct
from space_tracking.judgement import (
    COLOUR_TAG,
    Generated,
    Readout,
    UnscoredError,
    judge,
    judge_reply,
)

DATA_FILES = tuple(f"space_tracking/{name}.jsonl" for name in ("train", "dev", "test", "distinct"))

NEUTRAL = "a certain colour"
"""What stands for every colour of a context in the prior."""

_COLOUR = re.compile(rf"\b({'|'.join(COLOURS)})\b")
_GENERATE = (
    "{prompt} ...\n\nComplete the last sentence with one of these colours: {colours}. "
    f"Give it in exactly this form:\n<{COLOUR_TAG}>...</{COLOUR_TAG}>"
)


class Settings(BaseModel):
    """The environment's arguments."""

    model_config = ConfigDict(extra="forbid")

    part: Part = "all"
    """Rows of one split, or of all."""
    scheme: Scheme = "entity"
    """What a split holds apart: nouns and names, or besides them one template of each construction."""
    te_variant: Literal["mirrored", "distinct"] = "mirrored"
    """`distinct`: the 240 two-entity rows with four colours in play, and no others."""
    unit: Literal["row", "pair"] = "row"
    """What one rollout asks: one row, or both rows of a pair, which is then worth its worse row."""
    route: Literal["auto", "endpoint", "whitebox", "generate"] = "auto"
    """Where the readout comes from; `auto` is `endpoint` where log-probabilities are offered, else `generate`."""
    reward: Literal["forced", "logprob"] = "forced"
    """1 or 0 for the forced choice, or the probability of the right colour among those in play."""
    prior: bool = False
    """Read each query after a context without colours too, and report accuracy corrected for that prior."""
    multi_token: Literal["refuse", "sequence"] = "refuse"
    """What to do where a colour is several tokens: refuse, or score whole words (`whitebox` only)."""
    whitebox_model: str = "embedded"
    """The local model that `route="whitebox"` reads: a hub id, a folder, or embedded."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """The settings; raises `MindscopeError` that names every wrong argument and what is allowed."""
        return parse(cls, arguments, "The arguments of space_tracking")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.route == "generate" and (self.prior or self.reward == "logprob"):
            raise ValueError("no prior and no reward='logprob' with route='generate', which gives no log-probabilities")
        if self.multi_token == "sequence" and self.route != "whitebox":
            raise ValueError("multi_token='sequence' only with route='whitebox'; an endpoint tells one token at a time")
        return self


class Trial(BaseModel):
    """One rollout: a row, or the two rows of a pair. Only its prompts may be shown to the model."""

    model_config = ConfigDict(frozen=True)

    index: int
    trcode: str
    """The row's id, or the pair's."""
    condition: str
    """The construction."""
    prompt: str
    """The first row's prompt."""
    answer: str
    rows: tuple[Row, ...]
    reward: Literal["forced", "logprob"]
    prior: bool

    @property
    def prompts(self) -> tuple[str, ...]:
        """What is to be read out: each row, then with `prior` each row's neutral prompt."""
        neutral = [neutral_prompt(row) for row in self.rows] if self.prior else []
        return (*(row.prompt for row in self.rows), *(prompt for prompt in neutral if prompt is not None))


class Score(BaseModel):
    """What a rollout is worth, and everything measured on the way."""

    model_config = ConfigDict(frozen=True)

    reward: float
    measured: dict[str, float]

    def metrics(self) -> dict[str, float]:
        return self.measured


def trials(settings: Settings) -> list[Trial]:
    """The rollouts, a pure function of the settings. Pairs stay together and templates take turns, so that the
    first rows of any number are a fair sample of the templates."""
    rows = (load_distinct if settings.te_variant == "distinct" else load)(settings.part, settings.scheme)
    pairs = interleaved(rows)
    by_pair = settings.unit == "pair"
    groups = pairs if by_pair else [(row,) for pair in pairs for row in pair]
    return [
        Trial(
            index=index,
            trcode=group[0].pair_id if by_pair else group[0].id,
            condition=group[0].construction,
            prompt=group[0].prompt,
            answer=" and ".join(row.answer for row in group),
            rows=group,
            reward=settings.reward,
            prior=settings.prior,
        )
        for index, group in enumerate(groups)
    ]


def interleaved(rows: Iterable[Row]) -> list[tuple[Row, ...]]:
    """The pairs of `rows`: the first of each template, then the second of each, and so on."""
    templates: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        templates.setdefault(row.template, {}).setdefault(row.pair_id, []).append(row)
    columns = [[tuple(pair) for pair in pairs.values()] for pairs in templates.values()]
    longest = max(map(len, columns), default=0)
    return [column[turn] for turn in range(longest) for column in columns if turn < len(column)]


def neutral_prompt(row: Row) -> str | None:
    """The prompt with every colour of its context made `NEUTRAL`, as a prior for the same query.

    None for the one-space control, where the context holds nothing to confuse.
    """
    return None if len(row.space_value_map) == 1 else _COLOUR.sub(NEUTRAL, row.prompt)


def generate_prompt(prompt: str) -> str:
    """What a chat model is asked: always the same six colours in the same order, whatever is in play."""
    return _GENERATE.format(prompt=prompt, colours=", ".join(COLOURS))


def score(trial: Trial, readings: Sequence[Readout | Generated]) -> Score:
    """The worth of a rollout whose `trial.prompts` were read as `readings`, in that order.

    Raises `UnscoredError` when a colour in play is unknown or a reading is missing, and when replies stand where
    the trial needs log-probabilities.
    """
    if len(readings) != len(trial.prompts):
        raise UnscoredError(f"{trial.trcode} has {len(readings)} readings; it takes {len(trial.prompts)}")
    replies = [reading for reading in readings if isinstance(reading, Generated)]
    readouts = [reading for reading in readings if isinstance(reading, Readout)]
    if readouts and not replies:
        return _score_readouts(trial, readouts)
    if readouts or trial.prior or trial.reward == "logprob":
        raise UnscoredError(f"{trial.trcode} needs log-probabilities, and a generated reply has none")
    measured = [judge_reply(row, reply) for row, reply in zip(trial.rows, replies, strict=True)]
    return Score(reward=min(each["generated"] for each in measured), measured=_mean(measured) | {"route_generate": 1.0})


def readout_of(measured: Mapping[str, float], prefix: str = "logprob_") -> Readout | None:
    """The readout that a row's metrics hold, as `score` put it there (or its prior, with `prefix="prior_"`)."""
    logprobs = {c: measured[f"{prefix}{c}"] for c in COLOURS if f"{prefix}{c}" in measured}
    bounds = {c: measured[f"{prefix}{c}_at_most"] for c in COLOURS if f"{prefix}{c}_at_most" in measured}
    if not logprobs:
        return None
    return Readout(
        route="whitebox" if "route_whitebox" in measured else "endpoint",
        via="verifiers",
        scoring="first_token",
        logprobs=logprobs,
        at_most=bounds,
        how={},
        top="",
    )


def policy_readout(colour: str | None) -> Readout:
    """The readout of a subject that puts half of its belief on one colour; on none in particular for None."""
    return Readout(
        route="whitebox",
        via="policy",
        scoring="first_token",
        logprobs={c: math.log(0.5 if c == colour else 0.1) for c in COLOURS},
        how=dict.fromkeys(COLOURS, "vocabulary"),
        top=f" {colour}",
    )


def _score_readouts(trial: Trial, readouts: Sequence[Readout]) -> Score:
    n = len(trial.rows)
    priors: Sequence[Readout | None] = readouts[n:] or [None] * n
    judged = [judge(*each) for each in zip(trial.rows, readouts[:n], priors, strict=True)]
    rewards = [one.p_answer if trial.reward == "logprob" else float(one.forced) for one in judged]
    measured = _mean([one.metrics() for one in judged])
    if n > 1:
        measured["pair_consistent"] = float(all(one.forced for one in judged))
        measured["pair_contrast"] = float(sum(one.margin for one in judged) > 0)
    else:
        measured |= _values(readouts[0], "logprob_")
        if priors[0] is not None:
            measured |= _values(priors[0], "prior_")
    return Score(reward=min(rewards), measured=measured | {f"route_{readouts[0].route}": 1.0})


def _values(readout: Readout, prefix: str) -> dict[str, float]:
    """The readout as metrics, from which `readout_of` makes it again."""
    known = {f"{prefix}{colour}": value for colour, value in readout.logprobs.items()}
    return known | {f"{prefix}{colour}_at_most": bound for colour, bound in readout.at_most.items()}


def _mean(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the rows of those measures that all of them have."""
    names = [name for name in each[0] if all(name in measures for measures in each)]
    return {name: math.fsum(measures[name] for measures in each) / len(each) for name in names}
