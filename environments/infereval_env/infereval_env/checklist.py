"""The reviewer's checklist: what a reader of a study asks of it, answered from the files as far as they can
tell.

    for line in checklist(eta, benchmark, retest=retest):
        print(line.answer, line.question, line.evidence)

`unknown` is an honest answer: it means that the files given do not say.
"""

import re
from collections.abc import Sequence
from typing import Literal

from infereval_env.audit import audit
from infereval_env.bearers import PENDING
from infereval_env.claims import Claims, ReportVerdict, report_verdict
from infereval_env.equivalence import Equivalence, equivalence
from infereval_env.formats import Benchmark, Evaluation, benchmark_hash, elicitation_hash
from infereval_env.measures import Result, measure
from infereval_env.monotonicity import ladders
from infereval_env.readings import take_readings
from infereval_env.retest import Retest, retest
from infereval_env.structure import structure

_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}|@[0-9a-f]{7,}")
"""A date or a commit in a model's name: the mark of a pinned snapshot."""


class Line(Result):
    part: Literal["instrument", "use", "inference"]
    question: str
    answer: Literal["yes", "no", "unknown"]
    evidence: str


def checklist(
    eta: Evaluation,
    benchmark: Benchmark,
    *,
    retest: Retest | None = None,
    equivalence: Equivalence | None = None,
    verdict: ReportVerdict | None = None,
) -> list[Line]:
    """The questions with their answers, in three parts: the instrument, its use, and the inference drawn."""
    readings = take_readings(eta, benchmark)
    metrics = measure(readings)
    audited = audit(eta)
    form, setup = eta.endorsement_config.question_form, eta.setup
    shown = setup.elicitation_hash if setup else None
    same_text = shown == elicitation_hash(benchmark) if shown else eta.benchmark_hash == benchmark_hash(benchmark)
    replies = [sample for item in eta.items for sample in item.samples if not sample.failed]
    unasked = [item.id for item in eta.items if form == "support" and len(item.conclusions) != 1]
    panel = [analyst.id for analyst in benchmark.analysts if analyst.id != PENDING]
    steps = ladders(readings)
    violated = [ladder.ladder or ladder.family for ladder in steps if ladder.status == "violated"]
    flat = [ladder.ladder or ladder.family for ladder in steps if ladder.flat]
    kappa, ceiling = metrics.kappa_C, metrics.kappa_F_star
    return [
        _line(
            "instrument",
            "Is the benchmark that was run the one given?",
            same_text,
            eta.benchmark_hash or "no hash",
        ),
        _line(
            "instrument",
            "Are verdicts reproducible from the replies on record?",
            bool(replies) and not audited.mismatched and not audited.misread,
            f"of {len(replies)} replies {len(audited.misread)} read otherwise; of the items "
            f"{len(audited.mismatched)} vote otherwise",
        ),
        _line(
            "instrument",
            "Are failed calls kept apart from abstentions?",
            not audited.suspected,
            f"{audited.known} failed, {len(audited.suspected)} abstentions look like failures, "
            f"{metrics.n_no_data} of {metrics.n_items} items have no data",
        ),
        _line(
            "use",
            "Is the model's snapshot pinned?",
            bool(_DATED.search(eta.model.model_id)),
            eta.model.model_id,
        ),
        _line(
            "use",
            "Are the question form and the template on record?",
            bool(setup and setup.template_id),
            f"{form}, {setup.template_id if setup and setup.template_id else 'template not recorded'}",
        ),
        _line(
            "use",
            "Can the question form ask about every item?",
            not unasked,
            f"{len(unasked)} items it cannot ask",
        ),
        _line("use", "Have at least two analysts answered?", len(panel) >= 2, f"{len(panel)} analysts"),
        Line(
            part="use",
            question="Were the analysts asked the question that the model was?",
            answer="unknown",
            evidence="the benchmark does not record the survey's question form",
        ),
        _line(
            "inference",
            "Is there a ceiling to read kappa_C against?",
            None if kappa.value is None else ceiling.value is not None,
            f"{_number(kappa.value)} on {kappa.n} items; kappa_F* {_number(ceiling.value)} on {ceiling.n}",
        ),
        _line(
            "inference",
            "Does kappa_C rest on enough items?",
            metrics.n_substantive >= 10,
            f"{metrics.n_substantive} of {metrics.n_items} items are good or bad on both sides",
        ),
        _line(
            "inference",
            "Do verdicts move one way along the ladders?",
            not violated if violated or len(flat) < len(steps) else None,
            f"{len(steps)} ladders, violated: {', '.join(violated) or 'none'}; one verdict throughout, so not tested: "
            f"{', '.join(flat) or 'none'}",
        ),
        _line(
            "inference",
            "Is the result stable on retest?",
            retest.stability == "stable" if retest else None,
            f"{retest.stability} after {retest.interval_s} s" if retest else "no retest given",
        ),
        _line(
            "inference",
            "Does another template give the same verdicts?",
            equivalence.verdict == "equivalent" if equivalence else None,
            equivalence.verdict if equivalence else "no second template given",
        ),
        _line(
            "inference",
            "Do the checks carry the claim?",
            verdict.label == "defensible" if verdict else None,
            "; ".join([verdict.label, *verdict.reasons]) if verdict else "no claims given",
        ),
    ]


def review(
    eta: Evaluation,
    benchmark: Benchmark,
    *,
    again: Evaluation | None = None,
    other: Evaluation | None = None,
    claims: Claims | None = None,
    compat: bool = False,
) -> tuple[list[Line], ReportVerdict | None]:
    """The checklist from all that there is: the run made `again`, with an `other` template, and the author's claims,
    with the verdict on these."""
    repeated = retest(eta, again, benchmark) if again else None
    verdict = None
    if claims is not None:
        checks = structure(take_readings(eta, benchmark), compat=compat)
        verdict = report_verdict(
            claims,
            anomalies=sum(len(check.anomalies) for check in checks),
            n_analysts=len(benchmark.analysts),
            retest_stability=repeated.stability if repeated else None,
            compat=compat,
        )
    same = equivalence(eta, other) if other else None
    return checklist(eta, benchmark, retest=repeated, equivalence=same, verdict=verdict), verdict


def unanswered(lines: Sequence[Line]) -> list[Line]:
    """The lines a reviewer has to pursue."""
    return [line for line in lines if line.answer != "yes"]


def _line(part: Literal["instrument", "use", "inference"], question: str, holds: bool | None, evidence: str) -> Line:
    answer: Literal["yes", "no", "unknown"] = "unknown" if holds is None else "yes" if holds else "no"
    return Line(part=part, question=question, answer=answer, evidence=evidence)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
