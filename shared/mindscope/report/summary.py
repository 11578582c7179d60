"""Counts a run: one typed `Summary`, and its plain-text form for a terminal.

    summary = summarise(read_run(folder))
    print(format_text(summary))

Failed calls and failed scores are counted beside the scored rollouts and never among them; every rate carries
its n and a 95 % interval.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from mindscope.report.rollouts import Rollout
from mindscope.report.runs import Run
from mindscope.report.text import interval_text, table, value_text
from mindscope.report.visible import label
from mindscope.statistics import Estimate, mean_interval

NO_CONDITION = "(none)"
"""Stands for rows without a condition, in runs where others have one."""

NO_OUTCOME = "(unnamed)"
"""Stands for scored rollouts that do not have exactly one outcome, in runs where others do."""

_LONGEST_NAME = 40
_COLUMNS_THAT_FIT = 8
"""Conditions a terminal table has room for beside the outcomes."""

_NOT_MEASURES = ("scored_ok", "num_turns")
"""Metrics that keep the books rather than measure anything."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class ConditionSummary(_Frozen):
    condition: str
    reward: Estimate
    """Mean reward over the condition's scored rollouts."""
    failed_calls: int
    failed_scores: int


class OutcomeSummary(_Frozen):
    outcome: str
    count: int
    share: Estimate
    """Share of all scored rollouts."""
    by_condition: dict[str, int]


class MetricSummary(_Frozen):
    metric: str
    mean: Estimate
    """Mean over the scored rollouts that have the metric."""


class Timing(_Frozen):
    """Seconds a rollout took, over those whose call succeeded and was timed; None where there are none."""

    n: int
    median_s: float | None
    p90_s: float | None
    max_s: float | None


class Tokens(_Frozen):
    """Totals over the `n` rollouts whose provider reported usage."""

    n: int
    input: int
    output: int


class Summary(_Frozen):
    """A run in numbers. `recorded` = `scored` + `failed_calls` + `failed_scores`."""

    environment: str | None
    model: str | None
    base_url: str | None
    recorded: int
    scored: int
    failed_calls: int
    failed_scores: int
    items: int
    """Distinct items among the recorded rollouts."""
    cut_replies: int
    """Scored rollouts in which a reply ran into the token limit."""
    torn_lines: int
    reward: Estimate
    """Mean reward over scored rollouts."""
    conditions: tuple[ConditionSummary, ...]
    """Empty when no row names a condition."""
    outcomes: tuple[OutcomeSummary, ...]
    """Empty when no rollout names its outcome, or outcomes are rates (then they are among the metrics)."""
    metrics: tuple[MetricSummary, ...]
    timing: Timing
    tokens: Tokens

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)


def summarise(run: Run) -> Summary:
    """Count `run`. Conditions come in natural order (L5 before L25), outcomes by falling count."""
    scored = [rollout for rollout in run.rollouts if rollout.failure is None]
    outcomes = _outcomes(scored)
    return Summary(
        environment=run.environment,
        model=run.model,
        base_url=run.base_url,
        recorded=len(run.rollouts),
        scored=len(scored),
        failed_calls=_failures(run.rollouts, "call"),
        failed_scores=_failures(run.rollouts, "score"),
        items=len({rollout.item for rollout in run.rollouts}),
        cut_replies=sum(rollout.finish_reason == "length" for rollout in scored),
        torn_lines=run.torn_lines,
        reward=_estimate(scored, lambda rollout: rollout.reward),
        conditions=_conditions(run.rollouts),
        outcomes=outcomes,
        metrics=_metrics(scored, outcomes_shown=bool(outcomes)),
        timing=_timing(run.rollouts),
        tokens=_tokens(run.rollouts),
    )


def condition_of(rollout: Rollout) -> str:
    return NO_CONDITION if rollout.condition is None else rollout.condition


def further_metrics(summary: Summary) -> list[MetricSummary]:
    """The metrics a reader has not seen yet: all but those that are a condition's reward by another name."""
    rewards = {c.condition: c.reward for c in summary.conditions}

    def repeats(metric: MetricSummary) -> bool:
        return any(
            metric.metric.endswith(f"_{condition}") and metric.mean == reward for condition, reward in rewards.items()
        )

    return [metric for metric in summary.metrics if not repeats(metric)]


def format_text(summary: Summary) -> str:
    """The summary as aligned plain text, safe to print whatever the run's files contain."""
    s = summary
    title = " · ".join(label(part, 2 * _LONGEST_NAME) for part in (s.environment, s.model, s.base_url) if part)
    headline = [
        f"mean reward {value_text(s.reward.value)}  95 % interval {interval_text(s.reward)}",
        f"over {s.scored} scored rollouts of {s.reward.clusters} items ({s.reward.method})",
        f"{s.recorded} recorded = {s.scored} scored + {s.failed_calls} failed calls + {s.failed_scores} failed scores",
    ]
    if s.cut_replies:
        headline.append(f"{s.cut_replies} scored replies were cut by the token limit")
    if s.torn_lines:
        headline.append(f"{s.torn_lines} half-written lines were skipped (the run was killed while writing them)")
    sections = ["\n".join([title or "unnamed run", *headline])]
    if s.conditions:
        rows = [
            (_plain(c.condition), str(c.reward.n), value_text(c.reward.value), interval_text(c.reward),
             str(c.failed_calls), str(c.failed_scores))
            for c in s.conditions
        ]  # fmt: skip
        sections.append(table(("condition", "n", "reward", "95 % interval", "failed calls", "failed scores"), rows))
    if s.outcomes:
        names = [c.condition for c in s.conditions] if len(s.conditions) <= _COLUMNS_THAT_FIT else []
        rows_of_outcomes = [
            (_plain(o.outcome), str(o.count), value_text(o.share.value), interval_text(o.share),
             *(str(o.by_condition.get(name, 0)) for name in names))
            for o in s.outcomes
        ]  # fmt: skip
        sections.append(
            table(
                (f"outcome of {s.scored}", "count", "share", "95 % interval", *map(_plain, names)),
                rows_of_outcomes,
            )
        )
    if metrics := further_metrics(s):
        rows_of_metrics = [
            (_plain(m.metric), str(m.mean.n), value_text(m.mean.value), interval_text(m.mean)) for m in metrics
        ]
        sections.append(table(("metric", "n", "mean", "95 % interval"), rows_of_metrics))
    sections.append(_costs(s))
    return "\n\n".join(sections)


# ---- counting ----


def _estimate(rollouts: Iterable[Rollout], measure: Callable[[Rollout], float | None]) -> Estimate:
    pairs = [(value, rollout.item) for rollout in rollouts if (value := measure(rollout)) is not None]
    return mean_interval([value for value, _ in pairs], [item for _, item in pairs])


def _failures(rollouts: Iterable[Rollout], kind: str) -> int:
    return sum(rollout.failure is not None and rollout.failure.kind == kind for rollout in rollouts)


def _conditions(rollouts: Sequence[Rollout]) -> tuple[ConditionSummary, ...]:
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(condition_of(rollout), []).append(rollout)
    if set(groups) <= {NO_CONDITION}:
        return ()
    return tuple(
        ConditionSummary(
            condition=name,
            reward=_estimate(groups[name], lambda rollout: rollout.reward),
            failed_calls=_failures(groups[name], "call"),
            failed_scores=_failures(groups[name], "score"),
        )
        for name in sorted(groups, key=_natural)
    )


def _natural(name: str) -> tuple[bool, list[tuple[int, str]], str]:
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]
    return name == NO_CONDITION, parts, name


def _outcomes(scored: Sequence[Rollout]) -> tuple[OutcomeSummary, ...]:
    flags = [value for rollout in scored for name, value in rollout.metrics.items() if _is_outcome(name)]
    if all(rollout.outcome is None for rollout in scored) or not set(flags) <= {0.0, 1.0}:
        return ()
    measured = {name.removeprefix("outcome_") for r in scored for name in r.metrics if _is_outcome(name)}
    found = [rollout.outcome or NO_OUTCOME for rollout in scored]
    counts = {name: found.count(name) for name in measured | set(found)}

    def summarised(name: str) -> OutcomeSummary:
        by_condition: dict[str, int] = {}
        for rollout, outcome in zip(scored, found, strict=True):
            if outcome == name:
                by_condition[condition_of(rollout)] = by_condition.get(condition_of(rollout), 0) + 1
        indicators = [float(outcome == name) for outcome in found]
        return OutcomeSummary(
            outcome=name,
            count=counts[name],
            share=mean_interval(indicators, [rollout.item for rollout in scored]),
            by_condition=dict(sorted(by_condition.items(), key=lambda pair: _natural(pair[0]))),
        )

    return tuple(summarised(name) for name in sorted(counts, key=lambda name: (-counts[name], name)))


def _is_outcome(metric: str) -> bool:
    return metric.startswith("outcome_")


def _metric(name: str) -> Callable[[Rollout], float | None]:
    return lambda rollout: rollout.metrics.get(name)


def _metrics(scored: Sequence[Rollout], *, outcomes_shown: bool) -> tuple[MetricSummary, ...]:
    names = {name for rollout in scored for name in rollout.metrics if name not in _NOT_MEASURES}
    return tuple(
        MetricSummary(metric=name, mean=_estimate(scored, _metric(name)))
        for name in sorted(names, key=_natural)
        if not (outcomes_shown and _is_outcome(name))
    )


def _timing(rollouts: Sequence[Rollout]) -> Timing:
    seconds = [
        rollout.duration_s
        for rollout in rollouts
        if rollout.duration_s is not None and not (rollout.failure and rollout.failure.kind == "call")
    ]
    if not seconds:
        return Timing(n=0, median_s=None, p90_s=None, max_s=None)
    median, p90, longest = np.percentile(seconds, [50, 90, 100])
    return Timing(n=len(seconds), median_s=float(median), p90_s=float(p90), max_s=float(longest))


def _tokens(rollouts: Sequence[Rollout]) -> Tokens:
    known = [(r.input_tokens, r.output_tokens) for r in rollouts if r.input_tokens is not None]
    return Tokens(
        n=len(known), input=sum(tokens for tokens, _ in known), output=sum(tokens or 0 for _, tokens in known)
    )


# ---- text ----


def _plain(text: str) -> str:
    return label(text, _LONGEST_NAME)


def _costs(summary: Summary) -> str:
    timing, tokens = summary.timing, summary.tokens
    lines = []
    if timing.n:
        lines.append(
            f"seconds a rollout: median {timing.median_s:.2f}, 90th percentile {timing.p90_s:.2f}, "
            f"longest {timing.max_s:.2f} (n {timing.n})"
        )
    if tokens.n:
        lines.append(f"tokens: {tokens.input} in, {tokens.output} out (n {tokens.n})")
    return "\n".join(lines) or "neither times nor tokens were recorded"
