"""The item table of pal50: one row a test trial, with every factor of the trial and what became of it.

    rows = read_items("outputs/pal50--model")       # of either verifiers generation
    write_items(rows, "items.jsonl")

The table is rebuilt from the run's own results file, by reading each recorded reply again; no side file is needed.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

Direction = Literal["forward", "backward"]
Study = Literal["full", "none", "repaired"]


class Outcome(StrEnum):
    """What became of one test trial. The outcomes exclude each other; the first that fits, in this order, holds."""

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
    """The cue of another pair of the same list."""
    PRIOR_LIST_INTRUSION = "prior_list_intrusion"
    """A word of an earlier list, or one that a later word for the same cue has replaced."""
    LATER_LIST_INTRUSION = "later_list_intrusion"
    """A word of the second list where the first was asked for."""
    SEMANTIC_EXTRA_LIST = "semantic_extra_list"
    """A word of no list that the supplied norms give as an associate of the cue."""
    MULTIPLE_ANSWERS = "multiple_answers"
    EXTRA_LIST = "extra_list"


class ItemRow(BaseModel):
    """One test trial. A rollout whose model call failed has no rows: its trials were not measured."""

    model_config = ConfigDict(frozen=True)

    run: str
    """The run's folder."""
    participant: int
    rollout: int
    """0 for the participant's first recorded rollout in this run, 1 for the second, …"""
    cycle: int
    """From 1."""
    list: str
    """`AB`, `AC`, `CD` or `ABr`: the list that the trial asks for."""
    level: str
    """The level of the pair that the cue belongs to in the stimuli, such as `L25`; a re-paired cue keeps it."""
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
    outcome: str
    """One of `Outcome`."""
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
