"""The same-setup guard, and two runs compared item by item.

    check_same_setup(a, b)                            # MindscopeError naming every axis on which they differ
    check_same_setup(a, b, vary=("template",))        # the template is what the comparison is about
    comparison = compare(a, b, vary=("template",))

Two runs are comparable when everything but what the comparison is about is the same: model and sampling,
benchmark, question form, frame, template, variant, number of samples. infereval's guard looks at the model
and its parameters only; that is `compat=True`.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from mindscope.errors import MindscopeError
from mindscope.statistics import Estimate

from infereval_env.agreement import BAD, NO_ANSWER, Array, codes, cohen, rate
from infereval_env.formats import Evaluation, dump
from infereval_env.intervals import interval
from infereval_env.measures import Result, coverage
from infereval_env.readings import Reading, take_readings

Axis = Literal[
    "model", "params", "benchmark", "question_form", "frame", "template", "prompt", "variant", "n_samples",
    "tie_break", "verdicts", "parser",
]  # fmt: skip
AXES: tuple[Axis, ...] = get_args(Axis)
OVERLAP_FLOOR = 0.5
"""Share of items on which both runs must be substantive for a κ between them to mean anything."""


def setup(eta: Evaluation) -> dict[Axis, Any]:
    """What produced η, one value an axis; None where the file does not say."""
    config, extra = eta.endorsement_config, eta.setup
    return {
        "model": f"{eta.model.provider}:{eta.model.model_id}",
        "params": dump(eta.model.params),
        "benchmark": (extra and extra.elicitation_hash) or eta.benchmark_hash or eta.benchmark_id,
        "question_form": config.question_form,
        "frame": config.coherence_frame_id if config.question_form == "coherence" else "none",
        "template": extra and extra.template_id,
        "prompt": config.verification_prompt_id if config.question_form == "support" else "none",
        "variant": eta.paraphrase_variant,
        "n_samples": config.n_samples,
        "tie_break": config.tie_break,
        "verdicts": extra and extra.verdicts,
        "parser": extra and extra.parser,
    }


def check_same_setup(a: Evaluation, b: Evaluation, *, vary: Sequence[str] = (), compat: bool = False) -> list[str]:
    """Warnings about axes that cannot be checked, or that `vary` names though the runs agree on them.

    Raises MindscopeError naming every axis, other than those in `vary`, on which the two runs differ.
    """
    if unknown := sorted(set(vary) - set(AXES)):
        raise MindscopeError(f"There is no axis {unknown}; the axes are {', '.join(AXES)}.")
    one, other = setup(a), setup(b)
    one["benchmark"], other["benchmark"] = _benchmarks(a, b)
    axes: tuple[Axis, ...] = ("model", "params") if compat else AXES
    unsaid = [axis for axis in axes if axis not in vary and (one[axis] is None or other[axis] is None)]
    differing = [axis for axis in axes if axis not in vary and axis not in unsaid and one[axis] != other[axis]]
    if differing:
        listed = "".join(f"\n  {axis}: {one[axis]} against {other[axis]}" for axis in differing)
        raise MindscopeError(
            f"The runs {a.id!r} and {b.id!r} were not made under the same setup:{listed}\n"
            "Compare runs that differ in nothing else, or name what you mean to vary."
        )
    warnings = [f"not checked, as a run does not record it: {', '.join(unsaid)}"] if unsaid else []
    same = [axis for axis in AXES if axis in vary and one[axis] is not None and one[axis] == other[axis]]
    return warnings + [f"{axis} is to vary, but both runs have {one[axis]}" for axis in same]


def _benchmarks(a: Evaluation, b: Evaluation) -> tuple[str | None, str | None]:
    """What tells the two benchmarks apart: what the models saw if both runs recorded it, else the whole
    file."""
    if a.benchmark_id != b.benchmark_id:
        return a.benchmark_id, b.benchmark_id
    if a.setup and b.setup and a.setup.elicitation_hash and b.setup.elicitation_hash:
        return a.setup.elicitation_hash, b.setup.elicitation_hash
    return a.benchmark_hash, b.benchmark_hash


class Comparison(Result):
    """Two runs on the items of the first."""

    run_a: str
    run_b: str
    varied: list[str]
    n_items: int
    n_no_data: int
    """Items without a verdict in one run or both; they are in no measure below."""
    n_both_substantive: int
    coverage_a: Estimate
    coverage_b: Estimate
    kappa: Estimate
    """Cohen's κ of the two runs where both are good or bad."""
    kappa_three_valued: Estimate
    """The same with abstain as a third category, so that a change to or from it counts."""
    flips: Estimate
    """Share of items whose verdict differs, abstentions included."""
    mean_tv: float | None
    per_item_tv: dict[str, float | None]
    insufficient_overlap: bool
    warnings: list[str]


class InferevalComparison(Result):
    """infereval's comparison, by its conventions."""

    n_items: int
    n_both_substantive: int
    coverage_a: float
    coverage_b: float
    cross_run_kappa: float | None
    mean_tv: float
    per_item_tv: dict[str, float]
    insufficient_overlap: bool
    intersection_fraction: float


def compare(a: Evaluation, b: Evaluation, *, vary: Sequence[str] = (), floor: float = OVERLAP_FLOOR) -> Comparison:
    """The two runs, item by item; every item of `a` must be in `b`.

    κ is withheld when both are substantive on less than `floor` of the items that have a verdict in both.
    Total variation is half the summed difference of an item's shares of good, bad and abstain; None without
    answers. Raises MindscopeError when the setups differ on an axis outside `vary`, or items are missing.
    """
    warnings = check_same_setup(a, b, vary=vary)
    one, other = paired(take_readings(a), take_readings(b), a.id, b.id)
    if extra := len(b.items) - len(one):
        warnings.append(f"{extra} item(s) of {b.id!r} are not in {a.id!r} and are left out")
    left, right = codes([r.outcome for r in one]), codes([r.outcome for r in other])
    known = (left != NO_ANSWER) & (right != NO_ANSWER)
    both = int(((left <= BAD) & (right <= BAD)).sum())
    insufficient = both < floor * known.sum() or not known.any()
    distances = total_variation(one, other)
    kappa = interval(cohen(left, right))
    if insufficient:
        kappa = kappa.model_copy(update={"value": None, "low": None, "high": None, "method": "too little overlap"})
    return Comparison(
        run_a=a.id,
        run_b=b.id,
        varied=list(vary),
        n_items=len(one),
        n_no_data=int((~known).sum()),
        n_both_substantive=both,
        coverage_a=interval(coverage(left)),
        coverage_b=interval(coverage(right)),
        kappa=kappa,
        kappa_three_valued=interval(cohen(left, right, categories=(0, 1, 2))),
        flips=interval(rate(left != right, known)),
        mean_tv=float(np.nanmean(distances)) if np.isfinite(distances).any() else None,
        per_item_tv={
            reading.id: None if np.isnan(distance) else float(distance)
            for reading, distance in zip(one, distances, strict=True)
        },
        insufficient_overlap=bool(insufficient),
        warnings=warnings,
    )


def compare_as_infereval(
    a: Evaluation, b: Evaluation, *, floor: float = OVERLAP_FLOOR, require_same_setup: bool = True
) -> InferevalComparison:
    """infereval's comparison: failed items are abstentions, and an unanswered item is at 0 or 0.5 from any
    other."""
    if require_same_setup:
        check_same_setup(a, b, compat=True)
    one, other = paired(take_readings(a, compat=True), take_readings(b, compat=True), a.id, b.id)
    left, right = codes([r.outcome for r in one]), codes([r.outcome for r in take_readings(b, compat=True)])
    matched = codes([reading.outcome for reading in other])
    both = int(((left <= BAD) & (matched <= BAD)).sum())
    fraction = both / len(one) if one else 0.0
    distances = np.abs(_shares(one) - _shares(other)).sum(axis=1) / 2
    insufficient = not one or fraction < floor
    return InferevalComparison(
        n_items=len(one),
        n_both_substantive=both,
        coverage_a=coverage(left).value() or 0.0,
        coverage_b=coverage(right).value() or 0.0,
        cross_run_kappa=None if insufficient else cohen(left, matched).value(),
        mean_tv=float(distances.mean()) if one else 0.0,
        per_item_tv={r.id: float(distance) for r, distance in zip(one, distances, strict=True)},
        insufficient_overlap=insufficient,
        intersection_fraction=fraction,
    )


def paired(one: list[Reading], other: list[Reading], name: str, other_name: str) -> tuple[list[Reading], list[Reading]]:
    """The items of `one` and the same items of `other`. Raises MindscopeError when `other` lacks some."""
    by_id = {reading.id: reading for reading in other}
    if missing := [reading.id for reading in one if reading.id not in by_id]:
        raise MindscopeError(f"The run {other_name!r} lacks {len(missing)} item(s) of {name!r}: {missing}.")
    return one, [by_id[reading.id] for reading in one]


def total_variation(one: Sequence[Reading], other: Sequence[Reading]) -> Array:
    """Half the summed difference of the shares, shape (items,); NaN where either has no answer."""
    unanswered = [a.shares is None or b.shares is None for a, b in zip(one, other, strict=True)]
    return np.where(unanswered, np.nan, np.abs(_shares(one) - _shares(other)).sum(axis=1) / 2)


def _shares(readings: Sequence[Reading]) -> Array:
    return np.array([reading.shares or (0.0, 0.0, 0.0) for reading in readings]).reshape(len(readings), 3)
