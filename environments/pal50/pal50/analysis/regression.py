"""Mixed logistic regression of strict recall:

    correct ~ similarity + study_position + lag + cycle + (1 + similarity | participant) + (1 | pair)

    regression_of(trials)

statsmodels' `BinomialBayesMixedGLM` fits it by variational Bayes, with a N(0, 2²) prior on each slope per standard
deviation of its predictor and a N(0, 1) prior on the logarithm of each random effect's standard deviation. The
random intercept and the random slope of a participant are independent. The factorised posterior of variational
Bayes is far too narrow for effects that vary between participants, so intervals come from the curvature of the joint
log-posterior of fixed and random effects at the estimate, as they do in a Laplace fit. When the fit fails, a
population-averaged logistic model with cluster-robust errors (GEE) stands in, and the result says so.

Predictors that the design holds constant, or that others determine, are left out by name.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from mindscope.statistics import CONFIDENCE, Estimate
from pydantic import BaseModel, ConfigDict
from scipy import sparse
from scipy.special import expit
from scipy.stats import norm

from pal50.analysis.trials import Array, Trials

_PRIOR_SLOPE_SD, _PRIOR_LOG_SD = 2.0, 1.0
_MOST_ITERATIONS, _TOLERANCE = 2_000, 1e-7
_SAME = 1e-8
"""Share of a predictor's variance that others leave open, below which they determine it."""

_ENTANGLED = 0.9
"""Share of a predictor's variance that the others explain, above which its slope is no finding by itself."""


class Term(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    unit: str
    """The change of the predictor that the coefficient is for."""
    log_odds: Estimate
    odds_ratio: float


class RandomEffect(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    sd: float
    """Standard deviation in log-odds."""


class Regression(BaseModel):
    model_config = ConfigDict(frozen=True)

    method: Literal["mixed", "gee", "none"]
    why: str
    """How it was fitted, or why by GEE, or why not at all."""
    formula: str
    """What was fitted in the end; empty for `none`."""
    n: int
    participants: int
    pairs: int
    terms: tuple[Term, ...]
    """The intercept is the log-odds of recall on the average trial."""
    random_effects: tuple[RandomEffect, ...]
    left_out: tuple[str, ...]
    """Predictors that could not enter, each with the reason."""
    cautions: tuple[str, ...]


class _Predictor(NamedTuple):
    name: str
    field: str
    step: float
    unit: str


_PREDICTORS = (
    _Predictor("similarity", "similarity", 1.0, "0 to 1"),
    _Predictor("study position", "study_position", 10.0, "per 10"),
    _Predictor("lag", "lag", 10.0, "per 10"),
    _Predictor("cycle", "cycle", 1.0, "per 1"),
)


class _Design(NamedTuple):
    """Standardised predictors, and how to read a slope in the predictor's own unit."""

    used: list[_Predictor]
    columns: Array
    """(n, 1 + predictors): the intercept first."""
    per_unit: Array
    """Factor from a coefficient of `columns` to one of the reported unit, (1 + predictors,)."""
    left_out: list[str]
    cautions: list[str]


class _Fit(NamedTuple):
    coefficients: Array
    covariance: Array
    random_sds: list[tuple[str, float]]


class _NotFittedError(Exception):
    """Says why, as the end of a sentence."""


def regression_of(trials: Trials) -> Regression:
    participants, pairs = len(np.unique(trials.participant)), len(trials.pairs)
    design = _design(trials)
    reason = _hopeless(trials, participants, design)
    if reason is not None:
        return Regression(
            method="none", why=reason, formula="", n=len(trials), participants=participants, pairs=pairs, terms=(),
            random_effects=(), left_out=tuple(design.left_out), cautions=(),
        )  # fmt: skip
    random = "(1 + similarity | participant)" if _has_similarity(design) else "(1 | participant)"
    fixed = " + ".join(predictor.field for predictor in design.used)
    method: Literal["mixed", "gee"] = "mixed"
    try:
        fit = _mixed(trials, design)
        formula = f"correct ~ {fixed} + {random} + (1 | pair)"
        why = "Mixed logistic regression by variational Bayes (statsmodels BinomialBayesMixedGLM), Laplace intervals."
    except _NotFittedError as error:
        fit = _gee(trials, design)
        method, formula = "gee", f"correct ~ {fixed}, clustered by participant"
        why = (
            f"Logistic GEE with cluster-robust errors, because the mixed model {error}. Its slopes are averages over "
            f"the population, nearer to zero than a mixed model's, and it knows nothing of differences between pairs."
        )
    return Regression(
        method=method,
        why=why,
        formula=formula,
        n=len(trials),
        participants=participants,
        pairs=pairs,
        terms=_terms(fit, design, len(trials), participants),
        random_effects=tuple(RandomEffect(name=name, sd=sd) for name, sd in fit.random_sds),
        left_out=tuple(design.left_out),
        cautions=tuple(design.cautions),
    )


def _hopeless(trials: Trials, participants: int, design: _Design) -> str | None:
    rate = trials.correct.mean() if len(trials) else 0.0
    if not len(trials):
        return "There are no scored trials, so there is nothing to fit."
    if rate in (0.0, 1.0):
        return f"Every trial is {'right' if rate else 'wrong'}, so no predictor can explain anything."
    if participants < 2:
        return "There is one participant, so differences between participants cannot be told from the effects."
    if not design.used:
        return "No predictor varies, so there is nothing to fit beyond the accuracy itself."
    return None


def _design(trials: Trials) -> _Design:
    used: list[_Predictor] = []
    columns = [np.ones(len(trials))]
    per_unit = [1.0]
    left_out = []
    for predictor in _PREDICTORS:
        values = trials.column(predictor.field)
        if not np.isfinite(values).all():
            left_out.append(f"{predictor.name}: nothing was studied.")
        elif len(values) == 0 or np.ptp(values) == 0:
            left_out.append(f"{predictor.name}: the same on every trial.")
        else:
            standard = (values - values.mean()) / values.std()
            if _unexplained(standard, columns) < _SAME:
                known = ", ".join(other.name for other in used)
                left_out.append(f"{predictor.name}: determined by {known} in this design.")
                continue
            used.append(predictor)
            columns.append(standard)
            per_unit.append(predictor.step / values.std())
    design = np.column_stack(columns)
    return _Design(used, design, np.array(per_unit), left_out, _cautions(used, columns))


def _cautions(used: Sequence[_Predictor], columns: Sequence[Array]) -> list[str]:
    cautions = []
    for place, predictor in enumerate(used, start=1):
        explained = 1 - _unexplained(columns[place], [*columns[:place], *columns[place + 1 :]])
        if explained > _ENTANGLED:
            cautions.append(
                f"The other predictors explain {explained:.0%} of the variance of {predictor.name}: its slope and "
                f"theirs can hardly be told apart in this design."
            )
    return cautions


def _unexplained(standard: Array, columns: Sequence[Array]) -> float:
    others = np.column_stack(columns)
    fitted = others @ np.linalg.lstsq(others, standard, rcond=None)[0]
    return float(np.mean((standard - fitted) ** 2))


def _has_similarity(design: _Design) -> bool:
    return any(predictor.field == "similarity" for predictor in design.used)


# ---- fits ----


def _mixed(trials: Trials, design: _Design) -> _Fit:
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    x, n_fixed = design.columns, design.columns.shape[1]
    blocks = [("participant, intercept", _indicator(trials.participant))]
    if _has_similarity(design):
        blocks.append(("participant, similarity", sparse.diags(x[:, 1]) @ _indicator(trials.participant)))
    blocks.append(("pair, intercept", _indicator(trials.pair)))
    z = sparse.hstack([block for _, block in blocks]).tocsr()
    kind = np.repeat(np.arange(len(blocks)), [block.shape[1] for _, block in blocks])
    model = BinomialBayesMixedGLM(
        trials.correct, x, z, kind, vcp_p=_PRIOR_LOG_SD, fe_p=_PRIOR_SLOPE_SD
    )  # fmt: skip
    start = np.full(n_fixed + len(blocks) + z.shape[1], 0.3)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = model.fit_vb(
            sd=start, fit_method="L-BFGS-B", minim_opts={"maxiter": _MOST_ITERATIONS, "ftol": _TOLERANCE}
        )
    if not result.optim_retvals.success:
        raise _NotFittedError("did not converge")
    sds = np.exp(result.vcp_mean)
    p = expit(x @ result.fe_mean + z @ result.vc_mean)
    both = sparse.hstack([sparse.csr_matrix(x), z]).tocsr()
    precision = np.concatenate([np.full(n_fixed, _PRIOR_SLOPE_SD**-2), sds[kind] ** -2.0])
    curvature = (both.T @ both.multiply((p * (1 - p))[:, None])).toarray() + np.diag(precision)
    covariance = np.linalg.inv(curvature)[:n_fixed, :n_fixed]
    if not (np.isfinite(covariance).all() and np.isfinite(result.fe_mean).all()):
        raise _NotFittedError("has no finite solution")
    scale = {"participant, similarity": design.per_unit[1] if _has_similarity(design) else 1.0}
    names = [name for name, _ in blocks]
    return _Fit(
        result.fe_mean,
        covariance,
        [(name, float(sd * scale.get(name, 1.0))) for name, sd in zip(names, sds, strict=True)],
    )


def _gee(trials: Trials, design: _Design) -> _Fit:
    from statsmodels.genmod.cov_struct import Independence
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_estimating_equations import GEE

    model = GEE(
        trials.correct,
        design.columns,
        groups=trials.participant,
        family=Binomial(),
        cov_struct=Independence(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = model.fit(cov_type="bias_reduced")
    return _Fit(np.asarray(result.params), np.asarray(result.cov_params()), [])


def _indicator(numbers: Array) -> sparse.csr_matrix:
    n = len(numbers)
    return sparse.csr_matrix((np.ones(n), (np.arange(n), numbers)), shape=(n, int(numbers.max()) + 1))


def _terms(fit: _Fit, design: _Design, n: int, participants: int) -> tuple[Term, ...]:
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    names = [("intercept", "average trial"), *((predictor.name, predictor.unit) for predictor in design.used)]
    terms = []
    for place, (name, unit) in enumerate(names):
        value = float(fit.coefficients[place] * design.per_unit[place])
        half = float(z * np.sqrt(fit.covariance[place, place]) * design.per_unit[place])
        terms.append(
            Term(
                name=name,
                unit=unit,
                log_odds=Estimate(
                    value=value, low=value - half, high=value + half, n=n, clusters=participants, method="Wald"
                ),
                odds_ratio=float(np.exp(value)),
            )
        )
    return tuple(terms)
