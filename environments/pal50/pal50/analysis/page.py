"""The analysis as one HTML page that needs nothing else.

write_analysis(analyse(sources), Path("analysis.html"))
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindscope.report.html import extra, markup, template, write_page

from pal50.analysis.contrasts import Contrast
from pal50.analysis.runs import Analysis, RunAnalysis
from pal50.analysis.sections import contrast_section, overview, run_sections


def write_analysis(analysis: Analysis, path: Path) -> None:
    """Write the page to `path`, whole or not at all.

    Raises MindscopeError when the `report` extra of mindscope is missing or `path` cannot be written.
    """
    write_page(render(analysis), path)


def render(analysis: Analysis) -> str:
    """The page as one string of HTML; the same analysis gives the same bytes."""
    page, figures = template("pal50.analysis", "page.html.jinja"), extra("pal50.analysis.figures")
    guessing = {contrast.first: contrast for contrast in analysis.contrasts if contrast.kind == "guessing"}
    runs = [
        (
            run,
            overview(run),
            [(section, _drawn(figures, section.key, run, guessing.get(run.name))) for section in run_sections(run)],
        )
        for run in analysis.runs
    ]
    contrasts = [
        (contrast_section(contrast), [markup(figures.contrast_figure(contrast))] if contrast.differences else [])
        for contrast in analysis.contrasts
    ]
    return str(page.render(runs=runs, contrasts=contrasts))


def _drawn(figures: Any, key: str, run: RunAnalysis, guessing: Contrast | None) -> list[Any]:
    """The figures of one section of a run; none where there is nothing to draw."""
    curves = {curve.axis: curve for curve in (run.serial_position.curve, run.lag, run.output_order, run.learning)}
    drawings: list[Callable[[], str]] = []
    if key == "accuracy":
        drawings.append(lambda: figures.accuracy_figure(run.accuracy, guessing))
    elif key in curves and curves[key].points:
        drawings.append(lambda: figures.curve_figure(curves[key]))
    elif key == "intrusions" and run.intrusions.n > run.intrusions.elsewhere:
        drawings.append(lambda: figures.intrusion_figure(run.intrusions))
        if run.intrusions.gradient.distances:
            drawings.append(lambda: figures.gradient_figure(run.intrusions.gradient))
    elif key == "confidence" and run.confidence.n:
        drawings.append(lambda: figures.calibration_figure(run.confidence))
    elif key == "regression" and len(run.regression.terms) > 1:
        drawings.append(lambda: figures.regression_figure(run.regression))
    return [markup(draw()) for draw in drawings]
