"""What the author of a study claims, and whether the checks behind it carry the claim.

    claims = read_claims(Path("claims.json"))          # infereval's claims file
    verdict = report_verdict(claims, anomalies=0, n_analysts=5, retest_stability="stable")

A claim about these items needs two checks, one about the domain six, one about a general capacity nine. A
claim is defensible when none is missing, what was learnt depends on how the domain was carved up and the
author says so, and no audit caps it. infereval lets a failing audit lift `not_defensible` to
`partially_defensible`; here an audit only ever lowers the label (`compat=True` for the former).
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from infereval_env.files import faults_error, read_json, shape_faults
from infereval_env.formats import Strict
from infereval_env.measures import Result
from infereval_env.retest import Stability

Scope = Literal["items_in_benchmark", "domain_D_as_sampled", "general_capacity"]
Label = Literal["defensible", "partially_defensible", "not_defensible"]

_ITEMS = ("structural_check_run", "sensitivity_sweep_run")
_DOMAIN = (*_ITEMS, "paraphrase_sweep_run", "cross_panel_check_run", "held_out_items_used", "test_retest_run")
_GENERAL = (
    *_DOMAIN,
    "training_data_separation_verified",
    "cross_domain_comparison_run",
    "replication_attempted",
)
REQUIRED: dict[Scope, tuple[str, ...]] = {
    "items_in_benchmark": _ITEMS,
    "domain_D_as_sampled": _DOMAIN,
    "general_capacity": _GENERAL,
}
_LOWER: dict[Label, Label] = {
    "defensible": "partially_defensible",
    "partially_defensible": "not_defensible",
    "not_defensible": "not_defensible",
}


class MasterySense(Strict):
    sense: Literal["evaluative", "generative", "standing", "combination"]
    description: str


class ScopeClaim(Strict):
    scope: Scope
    justification: str


class Constitution(Strict):
    position: Literal["evidence_of_mastery", "constitutive_of_mastery"]
    justification: str


class Carving(Strict):
    acknowledges_carving_indexed: bool
    notes: str = ""


class Explanations(Strict):
    """Checks of the other explanations of agreement, each run or not."""

    paraphrase_sweep_run: bool = False
    sensitivity_sweep_run: bool = False
    structural_check_run: bool = False
    cross_panel_check_run: bool = False
    independent_reference_panel_used: bool = False
    held_out_items_used: bool = False
    training_data_separation_verified: bool = False
    cross_domain_comparison_run: bool = False
    replication_attempted: bool = False
    test_retest_run: bool = False


class Identity(Strict):
    same_benchmark_hash: bool = True
    same_endorsement_config: bool = True
    same_paraphrase_variant: bool = True
    same_provider_model_id: bool
    cross_update_identity_asserted: bool
    same_scaffolding: bool
    unverifiable_caveats: str
    rationale: str


class Reliability(Strict):
    identity_criterion: Identity


class Claims(Strict):
    mastery_sense: MasterySense
    scope: ScopeClaim
    constitution: Constitution
    carving: Carving
    competing_explanations: Explanations = Explanations()
    reliability: Reliability | None = None


class ReportVerdict(Result):
    label: Label
    missing: list[str]
    """Required checks that were not run."""
    reasons: list[str]


def read_claims(path: Path) -> Claims:
    """The claims file. Raises MindscopeError listing every fault."""
    text, data = read_json(path)
    try:
        return Claims.model_validate_json(text)
    except ValidationError as error:
        raise faults_error(str(path), list(shape_faults(error, data))) from error


def report_verdict(
    claims: Claims,
    *,
    anomalies: int | None = None,
    n_analysts: int | None = None,
    retest_stability: Stability | None = None,
    suppress_negatives: bool = False,
    compat: bool = False,
) -> ReportVerdict:
    """Whether the claims are defensible, and why not.

    `anomalies` of the structure checks, `n_analysts` of the panel and the stability of the retest are None
    where there is no such result. A text still beginning with FILL IN counts as absent, save under `compat`.
    """
    scope, run = claims.scope.scope, claims.competing_explanations
    beyond_items = scope != "items_in_benchmark"
    required = REQUIRED[scope]
    missing = [name for name in required if not getattr(run, name)]
    rationale = claims.reliability.identity_criterion.rationale if claims.reliability else ""
    caps = []
    if anomalies and (run.structural_check_run or not compat):
        caps.append(f"the structure checks found {anomalies} anomalies")
    if not beyond_items and n_analysts is not None and n_analysts < 2:
        caps.append("the panel has fewer than two analysts")
    if run.test_retest_run or not compat:
        if retest_stability in ("unstable", "undefined"):
            caps.append(f"the retest is {retest_stability}")
        if beyond_items and not _written(rationale, compat):
            caps.append("no rationale says why the two administrations are of one instrument")
    carved = not beyond_items or (
        claims.carving.acknowledges_carving_indexed and _written(claims.carving.notes, compat)
    )
    unmet = 2 * len(missing) > len(required) or not carved
    if not missing and carved and not caps:
        label: Label = "defensible"
    elif unmet and not (compat and caps):
        label = "not_defensible"
    else:
        label = "partially_defensible"
    reasons = [f"{len(missing)} of {len(required)} required checks were not run"] if missing else []
    if not carved:
        reasons.append("the dependence on how the domain was carved up is not acknowledged with notes")
    if suppress_negatives:
        reasons.append("negative findings are suppressed, which costs one step")
        label = _LOWER[label]
    return ReportVerdict(label=label, missing=missing, reasons=reasons + caps)


def _written(text: str, compat: bool) -> bool:
    return bool(text.strip()) and (compat or not text.lstrip().upper().startswith("FILL IN"))
