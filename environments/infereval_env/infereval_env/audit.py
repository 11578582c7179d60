"""What a finished evaluation may be hiding: failures counted as abstentions, and verdicts that do not follow.

    report = audit(eta)

Known failures are samples recorded as failed. Suspected ones abstain with a blank reply or no time spent:
older tools stored failed calls so. Coverage and κ_C are given as read and again without both. Verdicts are
voted and replies parsed afresh, and what disagrees with the record is listed.
"""

from infereval_env.agreement import codes, cohen
from infereval_env.formats import Evaluation, EvaluationItem, Sample
from infereval_env.measures import Result, consensus, coverage
from infereval_env.readings import Reading, take_readings, voted
from infereval_env.verdicts import Outcome, Verdict, parse


class Suspect(Result):
    item_id: str
    sample_index: int
    why: str


class Misread(Result):
    """A sample whose recorded verdict is not what its reply declares by the strict rule."""

    item_id: str
    sample_index: int
    recorded: Verdict | None
    declared: Verdict
    reply: str


class Mismatch(Result):
    """An item whose recorded verdict is not what its samples vote for."""

    item_id: str
    recorded: Outcome
    voted: Outcome


class Audit(Result):
    scanned: int
    known: int
    suspected: list[Suspect]
    no_data: list[str]
    """Items without enough answered calls for a verdict."""
    misread: list[Misread]
    mismatched: list[Mismatch]
    coverage: float | None
    kappa_C: float | None  # noqa: N815
    recomputed_coverage: float | None
    recomputed_kappa_C: float | None  # noqa: N815

    @property
    def clean(self) -> bool:
        return not (self.suspected or self.misread or self.mismatched)


def audit(eta: Evaluation, *, compat: bool = False) -> Audit:
    """The samples and verdicts of η, checked against each other.

    The recomputed numbers leave out known and suspected failures. Under `compat` they are infereval's: an
    item left without samples is an abstention and every tie is one.
    """
    form = eta.endorsement_config.question_form
    readings = take_readings(eta, compat=compat)
    cleaned = [_cleaned(item, eta, compat) for item in eta.items]
    samples = [(item, sample) for item in eta.items for sample in item.samples]
    outcomes = {reading.id: reading.outcome for reading in take_readings(eta)}
    return Audit(
        scanned=len(samples),
        known=sum(sample.failed for _, sample in samples),
        suspected=[
            Suspect(item_id=item.id, sample_index=sample.sample_index, why=why)
            for item, sample in samples
            if (why := _suspicion(sample))
        ],
        no_data=[name for name, outcome in outcomes.items() if outcome == "no_data"],
        misread=[
            Misread(
                item_id=item.id,
                sample_index=sample.sample_index,
                recorded=sample.parsed_verdict,
                declared=parsed.verdict,
                reply=sample.raw_response[:200],
            )
            for item, sample in samples
            if not sample.failed
            and sample.label_probabilities is None
            and (parsed := parse(sample.raw_response, form)).verdict != sample.parsed_verdict
        ],
        mismatched=[
            Mismatch(item_id=item.id, recorded=item.model_verdict, voted=outcomes[item.id])
            for item in eta.items
            if item.samples and not _consistent(item, outcomes[item.id])
        ],
        coverage=_coverage([reading.outcome for reading in readings], compat),
        kappa_C=_kappa_c([reading.outcome for reading in readings], readings),
        recomputed_coverage=_coverage(cleaned, compat),
        recomputed_kappa_C=_kappa_c(cleaned, readings),
    )


def _consistent(item: EvaluationItem, outcome: Outcome) -> bool:
    """infereval records an item without data as an abstention; that is the failure told by `no_data`, not
    another."""
    return item.model_verdict == outcome or outcome == "no_data"


def _suspicion(sample: Sample) -> str | None:
    if sample.failed or sample.parsed_verdict != "abstain":
        return None
    if not sample.raw_response.strip():
        return "abstains with a blank reply"
    return None if sample.wall_time_ms else "abstains with no time spent"


def _cleaned(item: EvaluationItem, eta: Evaluation, compat: bool) -> Outcome:
    if not item.samples:
        return item.model_verdict
    kept = [sample for sample in item.samples if not _suspicion(sample)]
    config = eta.endorsement_config
    return voted(kept, "abstain", 0 if compat else config.n_samples // 2 + 1).verdict


def _coverage(outcomes: list[Outcome], compat: bool) -> float | None:
    value = coverage(codes(outcomes)).value()
    return 0.0 if compat and value is None else value


def _kappa_c(outcomes: list[Outcome], readings: list[Reading]) -> float | None:
    return cohen(codes(outcomes), codes([consensus(reading.analysts) for reading in readings])).value()
