"""Item tables of pal50 made without a run: whole sessions of subjects whose behaviour is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pal50.items import ItemRow

LEVELS = ("L0", "L25", "L50", "L75", "L100")


@dataclass(frozen=True)
class Trial:
    """What a subject knows when it answers. Positions count from 1."""

    participant: int
    pair: str
    similarity: float
    study_position: int
    test_position: int
    n_pairs: int
    at: dict[int, str]
    """The pair at each study position."""


Subject = Callable[[Trial], dict[str, Any]]
"""Fields of the row: at least `outcome`."""


def perfect(_: Trial) -> dict[str, Any]:
    return {"outcome": "correct", "confidence": 6}


def refuser(_: Trial) -> dict[str, Any]:
    return {"outcome": "refusal"}


def recency(last: int) -> Subject:
    """Knows the pairs of the last study positions and omits the others."""

    def subject(trial: Trial) -> dict[str, Any]:
        known = trial.study_position > trial.n_pairs - last
        return {"outcome": "correct" if known else "omission", "confidence": 6 if known else 1}

    return subject


def neighbour(trial: Trial) -> dict[str, Any]:
    """Answers each cue with the word of the pair studied next; the last, with that before it."""
    to = trial.study_position + (1 if trial.study_position < trial.n_pairs else -1)
    return intrusion(trial, to)


def intrusion(trial: Trial, to: int) -> dict[str, Any]:
    return {
        "outcome": "list_intrusion",
        "intrusion_source": trial.at[to],
        "intrusion_distance": to - trial.study_position,
        "confidence": 4,
    }


def session(
    subject: Subject,
    participant: int = 0,
    n_pairs: int = 50,
    *,
    order: str = "shuffled",
    pool: int | None = None,
    seed: int = 0,
    **fields: Any,
) -> list[ItemRow]:
    """One participant's test trials, in test order. Pairs are the first of each level, or drawn from `pool` a level."""
    rng = np.random.default_rng([seed, participant])
    each = n_pairs // len(LEVELS)
    chosen = [np.arange(each) if pool is None else rng.permutation(pool)[:each] for _ in LEVELS]
    pairs = [
        (f"{level}_{i:02}", level, k / (len(LEVELS) - 1))
        for k, (level, own) in enumerate(zip(LEVELS, chosen, strict=True))
        for i in own
    ]
    study, test = range(n_pairs), range(n_pairs)
    if order == "shuffled":
        study, test = rng.permutation(n_pairs), rng.permutation(n_pairs)
    at = {place + 1: pairs[index][0] for place, index in enumerate(study)}
    place_of = {pair: place for place, pair in at.items()}
    rows = []
    for test_position, index in enumerate(test, start=1):
        pair, level, similarity = pairs[index]
        trial = Trial(participant, pair, similarity, place_of[pair], test_position, n_pairs, at)
        rows.append(item_row(trial, level, subject(trial), fields))
    return rows


def item_row(trial: Trial, level: str, answered: dict[str, Any], fields: dict[str, Any]) -> ItemRow:
    correct = answered["outcome"] == "correct"
    lag = trial.n_pairs - trial.study_position + trial.test_position
    studied = fields.get("study", "full") != "none"
    made = {
        "run": "run", "participant": trial.participant, "rollout": 0, "cycle": 1, "list": "AB", "level": level,
        "similarity": trial.similarity, "trcode": trial.pair, "direction": "forward", "study": "full",
        "study_position": trial.study_position if studied else None, "test_position": trial.test_position,
        "lag": lag if studied else None, "cue": f"cue of {trial.pair}", "target": f"target of {trial.pair}",
        "reply": None, "correct": correct, "lenient_correct": correct, "intrusion_source": None,
        "intrusion_distance": None, "confidence": None, "finish_reason": "stop", "input_tokens": 100,
        "output_tokens": 5, "scored": True, "feedback": "none",
    }  # fmt: skip
    return ItemRow.model_validate(made | answered | fields)


def sessions(subject: Subject, participants: int = 10, **settings: Any) -> list[ItemRow]:
    return [row for number in range(participants) for row in session(subject, number, **settings)]


def random_subject(
    rng: np.random.Generator,
    *,
    base: float = 0.5,
    slope: float = 0.0,
    participant_sd: float = 0.0,
    slope_sd: float = 0.0,
    pair_sd: float = 0.0,
    pairs: Sequence[str] = (),
    confidence: Callable[[np.random.Generator, float, bool], int | None] | None = None,
) -> Subject:
    """Right with log-odds base + slope * (similarity - 0.5) and random effects, else wrong."""
    of_participant: dict[int, tuple[float, float]] = {}
    of_pair = {pair: rng.normal(0, pair_sd) for pair in pairs}

    def subject(trial: Trial) -> dict[str, Any]:
        shift, tilt = of_participant.setdefault(
            trial.participant, (rng.normal(0, participant_sd), rng.normal(0, slope_sd))
        )
        item = of_pair.setdefault(trial.pair, rng.normal(0, pair_sd))
        log_odds = base + shift + item + (slope + tilt) * (trial.similarity - 0.5)
        p = 1 / (1 + np.exp(-log_odds))
        right = bool(rng.random() < p)
        rating = confidence(rng, float(p), right) if confidence else None
        return {"outcome": "correct" if right else "extra_list", "confidence": rating}

    return subject
