"""Analyses one run or several together.

Each run is analysed by itself. A run that studied nothing (`study="none"`) is also the guessing baseline of the other
runs of its model, and one that studied re-paired words (`study="repaired"`) their control for item effects. Among
the runs that studied the pairs, each further one is compared with the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindscope.errors import MindscopeError
from pydantic import BaseModel, ConfigDict

from pal50.analysis.accuracy import Accuracy, OutcomeCount, accuracy_by, outcomes_of
from pal50.analysis.confidence import Calibration, calibration_of
from pal50.analysis.contrasts import Contrast, Kind, contrast
from pal50.analysis.curves import Curve, SerialPosition, curve_of, serial_position
from pal50.analysis.intrusions import Intrusions, intrusions_of
from pal50.analysis.regression import Regression, regression_of
from pal50.analysis.resampling import Resampler
from pal50.analysis.trials import Trials, trials_of
from pal50.items import ItemRow, Outcome, Study

_FEW_UNITS = 10
_ENTANGLED = 0.5
"""Share of the variance of study positions between levels, above which level and position are not told apart."""


@dataclass(frozen=True)
class Source:
    """What is analysed: a run's item table, and what the table does not say."""

    name: str
    rows: Sequence[ItemRow]
    model: str | None = None
    failed_rollouts: int = 0
    """Rollouts without rows because a call or the scoring failed."""


class Tokens(BaseModel):
    """Totals over the `n` trials whose provider reported usage; prompts are counted as often as they were sent."""

    model_config = ConfigDict(frozen=True)

    n: int
    input: int
    output: int


class RunAnalysis(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    model: str | None
    study: Study
    participants: int
    rollouts: int
    """Participants' sessions with rows."""
    failed_rollouts: int
    trials: int
    """Scored trials: the denominator of every rate here unless it names its own n."""
    buffers: int
    """Trials of unscored buffer pairs; in no number here."""
    unreached: int
    """Scored trials that their conversation never reached; wrong."""
    accuracy: tuple[Accuracy, ...]
    outcomes: tuple[OutcomeCount, ...]
    serial_position: SerialPosition
    lag: Curve
    output_order: Curve
    """Along the test positions."""
    learning: Curve
    """Along the cycles."""
    intrusions: Intrusions
    confidence: Calibration
    regression: Regression
    tokens: Tokens
    notes: tuple[str, ...]
    """What to keep in mind with this run's numbers."""


class Analysis(BaseModel):
    model_config = ConfigDict(frozen=True)

    runs: tuple[RunAnalysis, ...]
    contrasts: tuple[Contrast, ...]


def analyse(sources: Sequence[Source]) -> Analysis:
    """Analyse `sources`, in their order.

    Raises MindscopeError when there are none, when one has no scored trial or mixes studies, or when two have one name.
    """
    faults = _faults(sources)
    if faults:
        raise MindscopeError("\n".join(faults))
    trials = [trials_of(source.rows) for source in sources]
    studies: list[Study] = [one.rows[0].study for one in trials]
    contrasts = []
    first_full: int | None = None
    for i, source in enumerate(sources):
        if studies[i] != "full":
            continue
        for j, control in enumerate(sources):
            if studies[j] != "full" and control.model == source.model:
                kind: Kind = "guessing" if studies[j] == "none" else "repaired"
                contrasts.append(contrast(kind, (source.name, control.name), trials[i], trials[j]))
        if first_full is None:
            first_full = i
        else:
            names = (sources[first_full].name, source.name)
            contrasts.append(contrast("run", names, trials[first_full], trials[i]))
    guessed = {found.first for found in contrasts if found.kind == "guessing"}
    runs = [_analyse(source, one, source.name in guessed) for source, one in zip(sources, trials, strict=True)]
    return Analysis(runs=tuple(runs), contrasts=tuple(contrasts))


def _faults(sources: Sequence[Source]) -> list[str]:
    if not sources:
        return ["There is no run to analyse; name at least one."]
    faults = []
    names = [source.name for source in sources]
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(f"{name}: two runs have this name; each needs its own.")
    for source in sources:
        studies = sorted({row.study for row in source.rows})
        if not any(row.scored for row in source.rows):
            failed = f" ({source.failed_rollouts} rollouts failed)" if source.failed_rollouts else ""
            faults.append(f"{source.name}: no scored trial, so there is nothing to analyse{failed}.")
        if len(studies) > 1:
            faults.append(f"{source.name}: mixes study={' and '.join(studies)}; analyse them as separate runs.")
    return faults


def _analyse(source: Source, trials: Trials, guessing_known: bool) -> RunAnalysis:
    resampler = Resampler(trials.participant, trials.pair, pair_strata=trials.level)
    unreached = sum(row.outcome == Outcome.UNREACHED for row in trials.rows)
    metered = [row for row in source.rows if row.input_tokens is not None]
    return RunAnalysis(
        name=source.name,
        model=source.model,
        study=trials.rows[0].study,
        participants=len(np.unique(trials.participant)),
        rollouts=len({(row.participant, row.rollout) for row in trials.rows}),
        failed_rollouts=source.failed_rollouts,
        trials=len(trials),
        buffers=len(source.rows) - len(trials),
        unreached=unreached,
        accuracy=accuracy_by(trials, resampler),
        outcomes=outcomes_of(trials, resampler),
        serial_position=serial_position(trials, resampler),
        lag=curve_of(trials, resampler, "lag"),
        output_order=curve_of(trials, resampler, "test_position"),
        learning=curve_of(trials, resampler, "cycle"),
        intrusions=intrusions_of(trials),
        confidence=calibration_of(trials, resampler),
        regression=regression_of(trials),
        tokens=Tokens(
            n=len(metered),
            input=sum(row.input_tokens or 0 for row in metered),
            output=sum(row.output_tokens or 0 for row in metered),
        ),
        notes=tuple(_notes(source, trials, unreached, guessing_known)),
    )


def _notes(source: Source, trials: Trials, unreached: int, guessing_known: bool) -> list[str]:
    notes = []
    study, participants = trials.rows[0].study, len(np.unique(trials.participant))
    if source.failed_rollouts:
        notes.append(f"{source.failed_rollouts} rollouts failed and are in no number: they were not measured.")
    if unreached:
        notes.append(f"{unreached} trials were never reached; they count as wrong.")
    if participants < _FEW_UNITS:
        units = f"{participants} participants are" if participants > 1 else "One participant is"
        notes.append(f"{units} few: intervals tell little about other participants.")
    if study == "full" and not guessing_known:
        notes.append(
            'Related pairs can be guessed without study. No run with study="none" is given, so accuracy by level '
            "mixes memory and guessing."
        )
    if study == "none":
        notes.append("Nothing was studied: accuracy here is the rate of lucky guesses.")
    shared = _between_levels(trials)
    if shared is not None and shared > _ENTANGLED:
        notes.append(
            f"Levels explain {shared:.0%} of the variance of study positions, so a difference between levels may be "
            f'one between early and late pairs. order="shuffled" separates them.'
        )
    if any(row.feedback == "corrective" and row.cycle > 1 for row in trials.rows):
        notes.append("Corrective feedback shows the pair again, so later cycles are not memory of the study alone.")
    return notes


def _between_levels(trials: Trials) -> float | None:
    """Share of the variance of study positions that lies between levels; None where there is none to share."""
    position = trials.column("study_position")
    if len(trials.levels) < 2 or not np.isfinite(position).all() or np.ptp(position) == 0:
        return None
    sizes = np.bincount(trials.level)
    means = np.bincount(trials.level, position) / sizes
    return float(sizes @ (means - position.mean()) ** 2 / len(position) / position.var())
