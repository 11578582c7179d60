"""What a participant's replies were: every trial's outcome, and the reward of the session.

    score(design, [Reply(text="<recall>almond</recall>"), …]).reward

A reply is read alone and belongs to the cue it was given to: nothing in it can answer an earlier cue or a later one. A
trial that was never reached is wrong, and the denominators are those of the design.

`reward="brier"` pays (1 + y - (p - y)²) / 2 a trial, where y is 1 for a correct answer and 0 otherwise, and p is the
stated confidence, (c - 1) / 5. Whatever the chance that the answer is right, saying so pays best; and at the same
confidence a right answer pays p more than a wrong one. Without a confidence, and without a reply, a trial pays 0.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from mindscope import answers
from mindscope.answers import Answer, Match, folded, offers_several, read_answer, read_completion, same_word
from mindscope.paired_associates.recall import classify
from pydantic import BaseModel, ConfigDict

from pal50.design import Design, Pair, StudyStep, TestStep
from pal50.settings import Direction, Settings, Study


class Outcome(StrEnum):
    """What became of one test trial. The outcomes exclude each other; the first that fits, in this order, holds.

    One exception: a word that belongs to the same cue elsewhere is a prior- or later-list intrusion even where it is a
    word of the same list too, as every word of an AB-ABr session is.
    """

    UNREACHED = "unreached"
    """The conversation ended before this cue: wrong, and counted in the denominator."""
    TRUNCATED = "truncated"
    REFUSAL = "refusal"
    FORMAT = "format"
    OMISSION = "omission"
    CORRECT = "correct"
    CUE_REPETITION = "cue_repetition"
    LIST_INTRUSION = "list_intrusion"
    """The word that answers another cue of the same list."""
    CUE_INTRUSION = "cue_intrusion"
    """The cue of another pair."""
    PRIOR_LIST_INTRUSION = "prior_list_intrusion"
    """A word of an earlier list, or one that a later word for the same cue has replaced."""
    LATER_LIST_INTRUSION = "later_list_intrusion"
    """A word of the second list where the first was asked for."""
    SEMANTIC_EXTRA_LIST = "semantic_extra_list"
    """A word of no list that the supplied norms give as an associate of the cue."""
    MULTIPLE_ANSWERS = "multiple_answers"
    EXTRA_LIST = "extra_list"


class Reply(BaseModel):
    """What the model gave to one turn."""

    model_config = ConfigDict(frozen=True)

    text: str | None
    """The message's content, never its reasoning field."""
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class ScoredTrial(BaseModel):
    """One test trial with all its factors and what became of it."""

    model_config = ConfigDict(frozen=True)

    cycle: int
    """From 1."""
    list: str
    """`AB`, `AC`, `CD` or `ABr`: the list that the trial asks for."""
    level: str
    """The level of the pair that the first word belongs to in the stimuli, such as `L25`; re-pairing keeps it."""
    similarity: float
    trcode: str
    """The identity of the pair; of a re-paired one, `<code of the first word's pair>+<code of the second's>`."""
    direction: Direction
    """`forward` shows the first word and asks for the second."""
    study: Study
    study_position: int | None
    """Place of the pair among the pairs of its study phase, from 1; None when it was not studied."""
    test_position: int
    """Place of the trial among the trials of its test phase, from 1."""
    lag: int | None
    """Pairs shown and cues asked from the pair's last study to this trial, this trial included and distractor turns
    left out: 1 when the cue follows at once, and 50 throughout the reference's card. None when it was not studied."""
    cue: str
    """The word shown."""
    target: str
    """The word asked for."""
    reply: str | None
    """As the model wrote it; None when there is none."""
    outcome: Outcome
    correct: bool
    """Under strict comparison, whatever the run was rewarded for."""
    lenient_correct: bool
    intrusion_source: str | None
    """`trcode` of the pair whose word was given."""
    intrusion_distance: int | None
    """Study position of that pair minus that of the pair asked for, where both were studied in the same phase."""
    confidence: int | None
    """1 to 6; None when it was not asked for, or not given as one."""
    finish_reason: str | None
    input_tokens: int | None
    """Tokens of the prompt of this trial's call: the whole conversation so far."""
    output_tokens: int | None
    scored: bool
    """False for buffer pairs."""
    feedback: str


class Score(BaseModel):
    """A session's trials in the order of test, and what they come to."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    trials: tuple[ScoredTrial, ...]

    @property
    def reward(self) -> float:
        """In [0, 1]: the mean over the scored trials of what the settings pay for."""
        if self.settings.reward == "brier":
            return _mean([_brier_pay(trial.outcome is Outcome.CORRECT, trial.confidence) for trial in self._scored])
        return _mean([trial.outcome is Outcome.CORRECT for trial in self._scored])

    def metrics(self) -> dict[str, float]:
        """Shares of the scored trials: `outcome_<name>`, `recall_strict`, `recall_lenient`, and within a level
        `recall_<level>`, a list `recall_<list>`, a cycle `recall_cycle_<n>` where there are several. `mean_confidence`
        is over the trials that have one, and missing when none has."""
        trials = self._scored
        values = {f"outcome_{outcome}": _mean([trial.outcome is outcome for trial in trials]) for outcome in Outcome}
        values["recall_strict"] = _mean([trial.correct for trial in trials])
        values["recall_lenient"] = _mean([trial.lenient_correct for trial in trials])
        groups: dict[str, list[bool]] = defaultdict(list)
        for trial in sorted(trials, key=lambda trial: trial.similarity):
            names = [trial.level]
            names += [trial.list] if self.settings.n_lists == 2 else []
            names += [f"cycle_{trial.cycle}"] if self.settings.cycles > 1 else []
            for name in names:
                groups[f"recall_{name}"].append(trial.outcome is Outcome.CORRECT)
        values |= {name: _mean(group) for name, group in groups.items()}
        given = [trial.confidence for trial in trials if trial.confidence is not None]
        if self.settings.asks_confidence:
            values["confidence_given"] = len(given) / len(trials)
        if given:
            values["mean_confidence"] = _mean(given)
        return values

    @property
    def _scored(self) -> list[ScoredTrial]:
        return [trial for trial in self.trials if trial.scored]


def score(design: Design, replies: Sequence[Reply]) -> Score:
    """The session of `design` with the replies to its awaited turns, in order, as far as it went."""
    judge = Judge(design)
    given = iter(replies)
    by_model = design.settings.study_replies == "model"
    trials = []
    for place, step in zip(_places(design), design.steps, strict=True):
        reply = next(given, None) if by_model or isinstance(step, TestStep) else None
        if place is not None and isinstance(step, TestStep):
            trials.append(_scored(design, step, place, reply, judge))
    return Score(settings=design.settings, trials=tuple(trials))


# ---- one answer ----


class Judgement(NamedTuple):
    outcome: Outcome
    source: int | None = None
    """Of an intrusion, the place in `Design.pairs` of the pair whose word was given."""


class _Words(NamedTuple):
    """The words of a session as the probes of one list and direction have them."""

    places: list[int]
    """Places in `Design.pairs`, those of the list first."""
    pairs: list[tuple[str, str]]
    """Of each, the word on the shown side and the word on the asked side."""


class Judge:
    """Decides what a reply is to a cue of one session."""

    def __init__(self, design: Design) -> None:
        self._pairs = design.pairs
        self._settings = design.settings
        self._associates = design.associates
        self._tested = {step.pair for step in design.steps if isinstance(step, TestStep)}
        self._known = {folded(word) for pair in design.pairs for word in (pair.first, pair.second)}
        self._words: dict[tuple[str, Direction], _Words] = {}
        self._rivals: dict[str, list[int]] = defaultdict(list)
        for place, pair in enumerate(design.pairs):
            self._rivals[folded(pair.first)].append(place)

    def read(self, reply: Reply) -> Answer:
        read = read_completion if self._settings.style == "completion" else read_answer
        return read(reply.text, tag="recall", finish_reason=reply.finish_reason)

    def __call__(self, probed: int, answer: Answer, match: Match) -> Judgement:
        """What `answer` is to the cue of `Design.pairs[probed]`."""
        if match == "strict" and folded(answer.text or "") not in self._known:
            return Judgement(self._unlisted(probed, answer))
        words = self._words_for(self._pairs[probed])
        place = words.places.index(probed)
        recall = classify(answer, words.pairs, place, match)
        if recall.outcome not in (answers.Outcome.INTRUSION, answers.Outcome.WRONG):
            return Judgement(Outcome(recall.outcome.value))
        text = answer.text or ""
        for rival in self._rivals[folded(self._pairs[probed].first)]:
            if rival != probed and same_word(text, words.pairs[words.places.index(rival)][1], match):
                return Judgement(self._of_other_list(rival, probed), rival)
        if recall.source is None:
            return Judgement(self._unlisted(probed, answer))
        source = words.places[recall.source]
        if recall.detail == "list_cue":
            return Judgement(Outcome.CUE_INTRUSION, source)
        if self._in_list(source, self._pairs[probed].list):
            return Judgement(Outcome.LIST_INTRUSION, source)
        return Judgement(self._of_other_list(source, probed), source)

    def accepts(self, probed: int, answer: Answer, match: Match) -> bool:
        """Whether `answer` is right under that rule."""
        near = same_word(answer.text or "", self._pairs[probed].target, match)
        return near and self(probed, answer, match).outcome is Outcome.CORRECT

    def _words_for(self, asked: Pair) -> _Words:
        key = asked.list, asked.direction
        if key not in self._words:
            places = sorted(range(len(self._pairs)), key=lambda place: not self._in_list(place, asked.list))
            both = [(self._pairs[place].first, self._pairs[place].second) for place in places]
            forward = asked.direction == "forward"
            self._words[key] = _Words(places, both if forward else [(second, first) for first, second in both])
        return self._words[key]

    def _in_list(self, place: int, name: str) -> bool:
        """Whether the pair belongs to that list and no later word has replaced it."""
        pair = self._pairs[place]
        replaced = self._settings.updates > 1 and pair.scored and place not in self._tested
        return pair.list == name and not replaced

    def _of_other_list(self, source: int, probed: int) -> Outcome:
        later = self._pairs[probed].list == "AB" != self._pairs[source].list
        return Outcome.LATER_LIST_INTRUSION if later else Outcome.PRIOR_LIST_INTRUSION

    def _unlisted(self, probed: int, answer: Answer) -> Outcome:
        """What an answer is that gives no word of the session."""
        if answer.outcome is not None:
            return Outcome(answer.outcome.value)
        text = answer.text or ""
        near = self._associates.get(folded(self._pairs[probed].cue), ())
        if any(same_word(text, word, self._settings.match) for word in near):
            return Outcome.SEMANTIC_EXTRA_LIST
        return Outcome.MULTIPLE_ANSWERS if offers_several(text) else Outcome.EXTRA_LIST


def read_confidence(reply: Reply) -> int | None:
    """The confidence from 1 to 6 that a reply declares once in `<confidence>…</confidence>`; "5/6" is 5."""
    found = re.fullmatch(r"([1-6])(?:\s*/\s*6)?", read_answer(reply.text, tag="confidence").text or "")
    return int(found[1]) if found else None


# ---- one trial ----


class _Place(NamedTuple):
    """Where a test trial stands. `studied` gives phase and position of every pair studied so far in this cycle."""

    test_position: int
    lag: int | None
    studied: dict[int, tuple[str, int]]


def _places(design: Design) -> list[_Place | None]:
    """One entry for each step; None for what is no test."""
    places: list[_Place | None] = []
    cycle = shown = asked = 0
    last: dict[int, int] = {}
    studied: dict[int, tuple[str, int]] = {}
    counts: dict[str, int] = defaultdict(int)
    for step in design.steps:
        if step.cycle != cycle:
            cycle, asked, studied, counts = step.cycle, 0, {}, defaultdict(int)
        if isinstance(step, StudyStep):
            for pair in step.pairs:
                shown += 1
                name = design.pairs[pair].list
                counts[name] += 1
                last[pair], studied[pair] = shown, (name, counts[name])
        if isinstance(step, TestStep):
            shown, asked = shown + 1, asked + 1
            lag = shown - last[step.pair] if step.pair in last else None
            places.append(_Place(asked, lag, studied))
        else:
            places.append(None)
    return places


def _scored(design: Design, step: TestStep, place: _Place, reply: Reply | None, judge: Judge) -> ScoredTrial:
    pair, settings = design.pairs[step.pair], design.settings
    given = reply or Reply(text=None)
    answer = judge.read(given)
    outcome, source = judge(step.pair, answer, settings.match) if reply else Judgement(Outcome.UNREACHED)
    own = place.studied.get(step.pair)
    return ScoredTrial(
        cycle=step.cycle,
        list=pair.list,
        level=pair.level,
        similarity=pair.similarity,
        trcode=pair.trcode,
        direction=pair.direction,
        study=settings.study,
        study_position=own[1] if own else None,
        test_position=place.test_position,
        lag=place.lag,
        cue=pair.cue,
        target=pair.target,
        reply=given.text,
        outcome=outcome,
        correct=judge.accepts(step.pair, answer, "strict"),
        lenient_correct=judge.accepts(step.pair, answer, "lenient"),
        intrusion_source=None if source is None else design.pairs[source].trcode,
        intrusion_distance=None if source is None else _distance(own, place.studied.get(source)),
        confidence=read_confidence(given) if settings.asks_confidence else None,
        finish_reason=given.finish_reason,
        input_tokens=given.input_tokens,
        output_tokens=given.output_tokens,
        scored=pair.scored,
        feedback=settings.feedback,
    )


def _distance(own: tuple[str, int] | None, other: tuple[str, int] | None) -> int | None:
    """From one place of study to another, in the same phase."""
    return other[1] - own[1] if own and other and own[0] == other[0] else None


def _brier_pay(correct: bool, confidence: int | None) -> float:
    if confidence is None:
        return 0.0
    p = (confidence - 1) / 5
    return (1 + correct - (p - correct) ** 2) / 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
