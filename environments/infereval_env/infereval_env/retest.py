"""Test-retest reliability (R22): one instrument, one model, asked again after an interval.

    result = retest(a, b)                     # agreement, flips and κ over three verdicts, with intervals
    series = retest_series(baseline, later)   # several intervals against one baseline; the worst one is named

A retest means something when the instrument is the same: the identity criterion says which parts of that the
files show and which the author asserts. Here the model and its sampling are checked too, which infereval
leaves to the author, and stability is read from κ over all three verdicts, so that a verdict that wavers
between good and abstain counts against it. `compat=True` is infereval's R22: κ over the items where both
verdicts are good or bad.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from mindscope.errors import MindscopeError
from mindscope.statistics import Estimate

from infereval_env.agreement import NO_ANSWER, cohen, gwet, panel_codes, rate
from infereval_env.formats import Benchmark, Evaluation, dump
from infereval_env.guard import check_same_setup
from infereval_env.intervals import interval
from infereval_env.measures import Result
from infereval_env.readings import Reading, take_readings
from infereval_env.verdicts import Outcome

Stability = Literal["stable", "moderately_stable", "unstable", "undefined"]
WORST_FIRST: tuple[Stability, ...] = ("undefined", "unstable", "moderately_stable", "stable")


class ItemChange(Result):
    """One item in the two runs. Entropy and margin are None where no call was answered."""

    item_id: str
    verdict_a: Outcome
    verdict_b: Outcome
    entropy_a: float | None
    entropy_b: float | None
    margin_a: float | None
    margin_b: float | None


class IdentityCriterion(Result):
    """What makes the two runs administrations of one instrument: shown by the files, or asserted by the
    author."""

    same_benchmark: bool
    same_endorsement_config: bool
    same_paraphrase_variant: bool
    same_model_and_sampling: bool
    no_silent_model_update_asserted: bool = False
    same_scaffolding_asserted: bool = False
    caveats: str = ""
    rationale: str = ""


class Retest(Result):
    """Two administrations compared on the items of both."""

    run_a: str
    run_b: str
    interval_s: int | None
    n_items: int
    n_no_data: int
    n_agreements: int
    agreement: Estimate
    flips: Estimate
    kappa: Estimate
    """Cohen's κ where both verdicts are good or bad."""
    kappa_three_valued: Estimate
    ac1_three_valued: Estimate
    """Gwet's AC1, which stays defined when both runs give one verdict throughout."""
    stability: Stability
    flipped: list[ItemChange]
    items: list[ItemChange]
    identity: IdentityCriterion
    warnings: list[str]


class RetestSeries(Result):
    """One baseline against later runs, by increasing interval."""

    baseline: str
    pairs: list[Retest]
    worst: str
    """The run with the worst stability; among equals, the one after the longest interval."""


def stability(kappa: float | None) -> Stability:
    """`stable` from 0.8, `moderately_stable` from 0.6, `unstable` below, `undefined` without a κ."""
    if kappa is None:
        return "undefined"
    return "stable" if kappa >= 0.8 else "moderately_stable" if kappa >= 0.6 else "unstable"


def retest(a: Evaluation, b: Evaluation, benchmark: Benchmark | None = None, *, compat: bool = False) -> Retest:
    """How far run `b` repeats run `a`; with a benchmark, intervals are over its clusters of items.

    Raises MindscopeError when the two are not one instrument: any axis of the same-setup guard, or under
    `compat` the benchmark, the endorsement configuration or the paraphrase variant.
    """
    warnings = _same_instrument_as_infereval(a, b) if compat else check_same_setup(a, b)
    one = take_readings(a, benchmark, compat=compat)
    other = {reading.id: reading for reading in take_readings(b, benchmark, compat=compat)}
    shared = [(reading, other[reading.id]) for reading in one if reading.id in other]
    if left_out := len(one) + len(other) - 2 * len(shared):
        warnings.append(f"{left_out} item(s) are in one run only and are left out")
    if b.started_at and a.started_at and b.started_at < a.started_at:
        warnings.append("the second run began before the first; the interval is unknown")
    changes = [_change(x, y) for x, y in shared]
    outcomes = panel_codes([(change.verdict_a, change.verdict_b) for change in changes]).reshape(-1, 2)
    left, right = outcomes.T
    known = (left != NO_ANSWER) & (right != NO_ANSWER)
    clusters = [reading.cluster for reading, _ in shared]
    three_valued = cohen(left, right, categories=(0, 1, 2))
    kappa = cohen(left, right)
    return Retest(
        run_a=a.id,
        run_b=b.id,
        interval_s=seconds_between(a.started_at, b.started_at),
        n_items=len(shared),
        n_no_data=int((~known).sum()),
        n_agreements=int((known & (left == right)).sum()),
        agreement=interval(rate(left == right, known), clusters),
        flips=interval(rate(left != right, known), clusters),
        kappa=interval(kappa, clusters),
        kappa_three_valued=interval(three_valued, clusters),
        ac1_three_valued=interval(gwet(outcomes, categories=(0, 1, 2)), clusters),
        stability=stability((kappa if compat else three_valued).value()),
        flipped=[
            change for change, agrees, data in zip(changes, left == right, known, strict=True) if data and not agrees
        ],
        items=changes,
        identity=_identity(a, b),
        warnings=warnings,
    )


def retest_series(
    baseline: Evaluation,
    later: Sequence[Evaluation],
    benchmark: Benchmark | None = None,
    *,
    compat: bool = False,
) -> RetestSeries:
    """Every later run against the baseline. Raises MindscopeError when there is none, or one is not
    comparable."""
    if not later:
        raise MindscopeError("A retest needs a second evaluation to compare the first with.")
    pairs = sorted((retest(baseline, run, benchmark, compat=compat) for run in later), key=_waited)
    worst = min(pairs, key=lambda pair: (WORST_FIRST.index(pair.stability), -_waited(pair)))
    return RetestSeries(baseline=baseline.id, pairs=pairs, worst=worst.run_b)


def seconds_between(start: datetime | None, end: datetime | None) -> int | None:
    """Whole seconds between two starts; None when one is unknown or they are in the wrong order."""
    if start is None or end is None or end < start:
        return None
    return int((end - start).total_seconds())


def _waited(pair: Retest) -> int:
    return pair.interval_s or 0


def _change(one: Reading, other: Reading) -> ItemChange:
    return ItemChange(
        item_id=one.id,
        verdict_a=one.outcome,
        verdict_b=other.outcome,
        entropy_a=one.entropy,
        entropy_b=other.entropy,
        margin_a=one.margin,
        margin_b=other.margin,
    )


def _identity(a: Evaluation, b: Evaluation) -> IdentityCriterion:
    return IdentityCriterion(
        same_benchmark=a.benchmark_id == b.benchmark_id and a.benchmark_hash == b.benchmark_hash,
        same_endorsement_config=a.endorsement_config == b.endorsement_config and a.setup == b.setup,
        same_paraphrase_variant=a.paraphrase_variant == b.paraphrase_variant,
        same_model_and_sampling=a.model == b.model,
    )


def _same_instrument_as_infereval(a: Evaluation, b: Evaluation) -> list[str]:
    differing = []
    if a.benchmark_id != b.benchmark_id:
        differing.append(f"benchmark: {a.benchmark_id} against {b.benchmark_id}")
    if a.benchmark_hash and b.benchmark_hash and a.benchmark_hash != b.benchmark_hash:
        differing.append(f"benchmark_hash: {a.benchmark_hash} against {b.benchmark_hash}")
    if a.endorsement_config != b.endorsement_config:
        differing.append(f"endorsement_config: {dump(a.endorsement_config)} against {dump(b.endorsement_config)}")
    if a.paraphrase_variant != b.paraphrase_variant:
        differing.append(f"paraphrase_variant: {a.paraphrase_variant} against {b.paraphrase_variant}")
    if differing:
        raise MindscopeError("\n  ".join([f"{a.id!r} and {b.id!r} are not one instrument:", *differing]))
    return []
