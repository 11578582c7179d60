"""One run on one HTML page: κ against its ceiling, the ladders as figures, the reviewer's checklist, every item.

    lines, verdict = review(eta, benchmark)
    write_page(render(eta, benchmark, lines, verdict, warnings), Path("report.html"))

The page needs nothing else (no network, script or font), and shows what a model or a file contains as text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mindscope.report.html import extra, markup, template

from infereval_env.checklist import Line
from infereval_env.claims import ReportVerdict
from infereval_env.formats import Benchmark, Evaluation, benchmark_hash, elicitation_hash, reference_hash
from infereval_env.guard import setup
from infereval_env.measures import consensus, measure
from infereval_env.monotonicity import Ladder, ladders
from infereval_env.readings import Reading, take_readings
from infereval_env.structure import structure
from infereval_env.verdicts import VERDICTS

_LADDER_SIZE_IN = (3.0, 1.7)
_NAMES = {
    "containment_closure": "containment: a conclusion among the premises is good",
    "rsr_role_consistency": "roles: supporters keep a verdict, defeaters turn it",
    "base_case_stability": "bases of one target have one verdict",
    "thin_margin_agreement": "agreement with the panel is not by a thin margin",
}


def render(
    eta: Evaluation,
    benchmark: Benchmark,
    lines: Sequence[Line],
    verdict: ReportVerdict | None,
    warnings: Sequence[str],
) -> str:
    """The page as one string of HTML. Raises MindscopeError when the `report` extra is not installed."""
    page = template("infereval_env", "page.html.jinja")
    readings = take_readings(eta, benchmark)
    asked = {item.id for item in eta.items}
    metrics = measure(readings)
    by_id = {reading.id: reading for reading in readings}
    agreement = [
        ("\u03ba_C, model and panel", metrics.kappa_C),
        ("\u03ba_F*, the panel itself", metrics.kappa_F_star),
        ("AC1, model and panel", metrics.ac1),
        ("AC1, the panel itself", metrics.ac1_panel),
        ("\u03b1, with the model", metrics.alpha),
        ("\u03b1, the panel itself", metrics.alpha_panel),
    ]
    figure = extra("mindscope.report.figure")
    return page.render(
        eta=eta,
        benchmark=benchmark,
        metrics=metrics,
        n_asked=len(asked),
        one_verdict=_one_verdict(readings),
        agreement=agreement,
        agreement_plot=markup(figure.interval_plot(agreement, axis="agreement, 95 % interval", reference=0.0)),
        ladders=[
            (ladder, markup(_ladder_plot(ladder, by_id))) for ladder in ladders(readings) if asked & set(ladder.steps)
        ],
        checks=[(_NAMES[check.name], check) for check in structure(readings)],
        lines=lines,
        verdict=verdict,
        warnings=warnings,
        setup=[(axis, _text(value)) for axis, value in setup(eta).items()],
        hashes=[
            ("benchmark", eta.benchmark_hash, benchmark_hash(benchmark)),
            ("elicitation (what the model saw)", eta.setup and eta.setup.elicitation_hash, elicitation_hash(benchmark)),
            ("reference (what the analysts said)", eta.setup and eta.setup.reference_hash, reference_hash(benchmark)),
        ],
        items=[_row(reading) for reading in readings if reading.id in asked],
    )


def _one_verdict(readings: Sequence[Reading]) -> str | None:
    """The verdict that all items have, where there are several and it is one."""
    found = [reading.outcome for reading in readings if reading.outcome != "no_data"]
    return found[0] if len(found) > 1 and len(set(found)) == 1 else None


def _text(value: Any) -> str:
    if value is None:
        return "not recorded"
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _row(reading: Reading) -> dict[str, Any]:
    said = [sum(verdict == named for verdict in reading.analysts) for named in VERDICTS]
    return {
        "id": reading.id,
        "ladder": reading.ladder or "",
        "panel": " / ".join(map(str, said)),
        "consensus": consensus(reading.analysts),
        "shares": " / ".join(f"{share:.2f}" for share in reading.shares) if reading.shares else "no answer",
        "mass": reading.label_mass,
        "outcome": reading.outcome,
        "failed": reading.failed,
    }


def _ladder_plot(ladder: Ladder, readings: Mapping[str, Reading]) -> str:
    """An `<svg>`: at each step, of good and bad the share that is good, in the model's answers and in the panel's."""
    figures = extra("mindscope.report.figure")
    steps = [readings[name] for name in ladder.steps]
    model = [_share_good(reading.shares[:2] if reading.shares else (0, 0)) for reading in steps]
    panel = [_share_good([reading.analysts.count(verdict) for verdict in ("good", "bad")]) for reading in steps]
    with figures.drawing():
        figure = extra("matplotlib.figure").Figure(figsize=_LADDER_SIZE_IN, layout="constrained")
        axes = figure.subplots()
        axes.axhline(0.5, color=figures.FAINT, linewidth=0.8)
        places = range(len(steps))
        axes.plot(places, panel, "s--", color=figures.SECOND, markersize=5, linewidth=1.2, clip_on=False, label="panel")
        axes.plot(places, model, "o-", color=figures.MARK, markersize=6, linewidth=2, clip_on=False, label="model")
        axes.set_ylim(0, 1)
        axes.set_xlim(-0.3, len(steps) - 0.7)
        axes.set_yticks([0, 0.5, 1], ["bad", "", "good"])
        axes.set_xticks(places, [str(place + 1) for place in places])
        axes.tick_params(length=0, pad=8)
        axes.spines[:].set_visible(False)
        return str(figures.svg(figure))


def _share_good(pair: Sequence[float]) -> float:
    good, bad = pair
    return good / (good + bad) if good + bad else float("nan")
