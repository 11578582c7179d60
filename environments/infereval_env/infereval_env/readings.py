"""What measurement sees of a run: one `Reading` an item.

    readings = take_readings(eta)              # from the samples in η
    readings = take_readings(eta, benchmark)   # with ladders, tags and clusters; items η lacks are no_data

Every measure takes readings, so no note an author made can reach a number: a `Reading` has no
placeholder, note or rationale. Verdicts are voted anew from the samples, and an item with no more than
half of its configured calls answered has the outcome `no_data`, which is neither an abstention nor an error.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mindscope.errors import MindscopeError

from infereval_env.formats import (
    Benchmark,
    Evaluation,
    EvaluationItem,
    Item,
    MonotonicityStep,
    RsrTarget,
    Sample,
    Variation,
    benchmark_hash,
    elicitation_hash,
    reference_hash,
)
from infereval_env.verdicts import VERDICTS, Outcome, TieBreak, Verdict, Vote, vote

Shares = tuple[float, float, float]
"""How an item's answers divide over good, bad and abstain; the three sum to 1."""


class Reading(NamedTuple):
    """One item of a run."""

    id: str
    premises: frozenset[str]
    conclusions: frozenset[str]
    analysts: tuple[Verdict | None, ...]
    """One entry an analyst; None where one gave no answer."""
    outcome: Outcome
    tie_broken: bool
    counts: tuple[int, int, int]
    """Answered calls that said good, bad, abstain. A reply with no readable verdict counts as abstain."""
    shares: Shares | None
    """From the counts, or the mean of the label probabilities; None when no call was answered."""
    failed: int
    unparseable: int
    label_mass: float | None
    """Mean probability that fell on the three labels; None unless the verdicts are label probabilities."""
    cluster: str
    """Items of one ladder, or of one RSR target, share a cluster; any other item is its own."""
    tags: tuple[str, ...] = ()
    ladder: str | None = None
    variation: Variation | None = None
    rsr_target: RsrTarget | None = None
    step: MonotonicityStep | None = None

    @property
    def answered(self) -> int:
        return sum(self.counts)

    @property
    def margin(self) -> float | None:
        """Share of the first verdict less that of the second; None when no call was answered."""
        if self.shares is None:
            return None
        by_count = self.label_mass is None
        top, second, _ = sorted(self.counts if by_count else self.shares, reverse=True)
        return (top - second) / (self.answered if by_count else 1)

    @property
    def entropy(self) -> float | None:
        """Entropy of the shares over ln 3, so 1 is an even three-way split; None when no call was
        answered."""
        if self.shares is None:
            return None
        return -sum(p * math.log(p) for p in self.shares if p > 0) / math.log(3) + 0.0


def take_readings(
    eta: Evaluation, benchmark: Benchmark | None = None, *, min_valid: int | None = None, compat: bool = False
) -> list[Reading]:
    """The items of η in its order, then, as `no_data`, those of `benchmark` that η lacks.

    `min_valid`: answered calls an item needs to have a verdict; by default more than half of the configured
    `n_samples`, or one when the verdicts are label probabilities.
    `compat=True` is infereval's reading: the recorded verdict stands, an item without any answered call is an
    abstention, a missing analyst is one too, and items that η lacks are passed over.
    """
    design = {item.id: item for item in benchmark.items} if benchmark else {}
    if min_valid is None:
        by_probability = eta.setup is not None and eta.setup.verdicts == "logprob"
        min_valid = 1 if by_probability else eta.endorsement_config.n_samples // 2 + 1
    least = 0 if compat else min_valid
    readings = [_reading(item, eta, design.get(item.id), least, compat) for item in eta.items]
    if compat:
        return readings
    held = {item.id for item in eta.items}
    return readings + [_unread(item) for item in design.values() if item.id not in held]


def belonging_warnings(eta: Evaluation, benchmark: Benchmark) -> list[str]:
    """Check that η was made from `benchmark`; what differs without affecting what the model saw is a warning.

    Raises MindscopeError when the ids differ, when the texts shown to the model differ, or when an item of η
    is not the same implication in the benchmark.
    """
    if eta.benchmark_id != benchmark.id:
        raise MindscopeError(
            f"The evaluation {eta.id!r} is of benchmark {eta.benchmark_id!r}, not of {benchmark.id!r}."
        )
    listed = {item.id: (item.premises, item.conclusions) for item in benchmark.items}
    changed = [item.id for item in eta.items if listed.get(item.id) != (item.premises, item.conclusions)]
    if changed:
        raise MindscopeError(
            f"The evaluation's items {changed} are not in benchmark {benchmark.id!r} with the same premises "
            "and conclusions. Give the version of the benchmark that was run."
        )
    shown = eta.setup.elicitation_hash if eta.setup else None
    if shown is not None and shown != elicitation_hash(benchmark):
        raise MindscopeError(
            f"The wording of benchmark {benchmark.id!r} has changed since the evaluation was made: "
            f"it saw {shown}, the benchmark now is {elicitation_hash(benchmark)}."
        )
    warnings = []
    if shown is None and eta.benchmark_hash != benchmark_hash(benchmark):
        warnings.append(
            f"the benchmark's hash is {benchmark_hash(benchmark)[:19]}…, the evaluation's "
            f"{(eta.benchmark_hash or 'none')[:19]}…: the implications are the same, their wording may not be"
        )
    said = {item.id: item.analyst_verdicts for item in benchmark.items}
    if any(said[item.id] != item.analyst_verdicts for item in eta.items):
        warnings.append("the analysts' verdicts in the evaluation are not the benchmark's; `survey rejoin` fixes it")
    return warnings


def refuse_trained(eta: Evaluation) -> None:
    """Raises MindscopeError for a run on the train split: agreement on items that were trained on measures nothing."""
    if eta.setup is not None and eta.setup.split == "train":
        raise MindscopeError(
            f"The evaluation {eta.id!r} is of the train split (elicitation {eta.setup.elicitation_hash}, reference "
            f"{eta.setup.reference_hash}), whose items may have been trained on; they get no κ. Run the test split."
        )


def rejoin(eta: Evaluation, benchmark: Benchmark) -> Evaluation:
    """η with the analysts of `benchmark` in place of its own, so that a new panel needs no new model calls.

    Raises MindscopeError when η was not made from this benchmark (see `belonging_warnings`).
    """
    belonging_warnings(eta, benchmark)
    listed = {item.id: item for item in benchmark.items}
    items = tuple(
        item.model_copy(
            update={
                "analyst_verdicts": listed[item.id].analyst_verdicts,
                "analyst_rationales": listed[item.id].analyst_rationales,
            }
        )
        for item in eta.items
    )
    setup = eta.setup and eta.setup.model_copy(update={"reference_hash": reference_hash(benchmark)})
    return eta.model_copy(update={"items": items, "setup": setup, "benchmark_hash": benchmark_hash(benchmark)})


def voted(samples: Iterable[Sample], tie_break: TieBreak, min_valid: int) -> Vote:
    """The vote over the calls that were answered, in the order of their sample index."""
    answered = [sample for sample in samples if not sample.failed]
    if tie_break == "first":
        answered.sort(key=lambda sample: sample.sample_index)
    return _vote(tuple([s.parsed_verdict for s in answered if s.parsed_verdict]), tie_break, min_valid)


@lru_cache(maxsize=4096)
def _vote(verdicts: tuple[Verdict, ...], tie_break: TieBreak, min_valid: int) -> Vote:
    return vote(verdicts, tie_break, min_valid=min_valid)


def _reading(item: EvaluationItem, eta: Evaluation, design: Item | None, min_valid: int, compat: bool) -> Reading:
    answered = [sample for sample in item.samples if not sample.failed]
    tally = voted(answered, eta.endorsement_config.tie_break, min_valid)
    good, bad, abstain = counts = tally[:3]
    total = good + bad + abstain
    shares: Shares | None = (good / total, bad / total, abstain / total) if total else None
    outcome, tie_broken = tally.verdict, tally.tie_broken
    probabilities = [s.label_probabilities for s in answered if s.label_probabilities]
    label_mass = None
    if probabilities and len(probabilities) == len(answered):
        label_mass = math.fsum(sum(p.values()) for p in probabilities) / len(probabilities)
        shares = _mean_shares(probabilities)
        outcome, tie_broken = _most_probable(shares) if len(answered) >= min_valid else ("no_data", False)
    if compat or not item.samples:
        outcome = item.model_verdict
        tie_broken = item.majority_vote.tie_broken if item.majority_vote else tie_broken
    if compat and outcome == "no_data":
        outcome = "abstain"
    return Reading(
        id=item.id,
        premises=frozenset(item.premises),
        conclusions=frozenset(item.conclusions),
        analysts=tuple(v or "abstain" for v in item.analyst_verdicts) if compat else item.analyst_verdicts,
        outcome=outcome,
        tie_broken=tie_broken,
        counts=counts,
        shares=shares,
        failed=len(item.samples) - len(answered),
        unparseable=len([None for sample in answered if sample.parse_status != "ok"]),
        label_mass=label_mass,
        cluster=cluster_of(item.id, design),
        tags=item.tags,
        ladder=design.ladder if design else None,
        variation=design.variation if design else None,
        rsr_target=design.rsr_target if design else None,
        step=design.monotonicity_step if design else None,
    )


def _unread(item: Item) -> Reading:
    return Reading(
        id=item.id,
        premises=frozenset(item.premises),
        conclusions=frozenset(item.conclusions),
        analysts=item.analyst_verdicts,
        outcome="no_data",
        tie_broken=False,
        counts=(0, 0, 0),
        shares=None,
        failed=0,
        unparseable=0,
        label_mass=None,
        cluster=cluster_of(item.id, item),
        tags=item.tags,
        ladder=item.ladder,
        variation=item.variation,
        rsr_target=item.rsr_target,
        step=item.monotonicity_step,
    )


def cluster_of(item_id: str, design: Item | None) -> str:
    """The cluster an item stands and falls with: its ladder, else its RSR target, else itself."""
    if design is not None and design.ladder is not None:
        return f"ladder {design.ladder}"
    if design is not None and design.rsr_target is not None:
        return f"target {','.join(design.rsr_target.X)} / {','.join(design.rsr_target.A)}"
    return f"item {item_id}"


def _mean_shares(probabilities: Sequence[dict[Verdict, float]]) -> Shares | None:
    sums = [math.fsum(p.get(verdict, 0.0) for p in probabilities) for verdict in VERDICTS]
    total = math.fsum(sums)
    return (sums[0] / total, sums[1] / total, sums[2] / total) if total > 0 else None


def _most_probable(shares: Shares | None) -> tuple[Outcome, bool]:
    if shares is None:
        return "abstain", False
    tied = [verdict for verdict, share in zip(VERDICTS, shares, strict=True) if share == max(shares)]
    return (tied[0], False) if len(tied) == 1 else ("abstain", True)
