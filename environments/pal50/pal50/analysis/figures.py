"""The figures of the page, each an `<svg>` element for inlining."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mindscope.report.figure import FAINT, INK, MARK, SECOND, WIDTH_IN, drawing, interval_plot, svg
from mindscope.statistics import Estimate

from pal50.analysis.accuracy import Accuracy
from pal50.analysis.confidence import Calibration
from pal50.analysis.contrasts import Contrast
from pal50.analysis.curves import Curve
from pal50.analysis.intrusions import Gradient, Intrusions
from pal50.analysis.regression import Regression
from pal50.analysis.sections import level_of, span

_HEIGHT_IN = 2.9
_UPRIGHT = 7
"""Levels whose names fit beside each other under an axis; more are turned."""

Points = Sequence[tuple[float, Estimate]]


def accuracy_figure(rows: Sequence[Accuracy], guessing: Contrast | None) -> str:
    """Strict and lenient accuracy by level, and the rate without study where it is known."""
    levels = [row for row in rows if row.factor == "level"]
    series = [
        ("strict", MARK, "o", {row.value: row.strict for row in levels}),
        ("lenient", INK, "D", {row.value: row.lenient for row in levels}),
    ]
    if guessing is not None:
        series.append(("without study", SECOND, "s", {one.value: one.second for one in guessing.differences}))
    with drawing():
        figure, axes = _blank("level", "accuracy, 95 % interval")
        for number, (name, colour, marker, estimates) in enumerate(series):
            aside = 0.16 * (number - (len(series) - 1) / 2)
            points = [(x + aside, estimates[row.value]) for x, row in enumerate(levels) if row.value in estimates]
            _points(axes, points, colour, marker, name)
        axes.set_xlim(-0.5, len(levels) - 0.5)
        axes.set_xticks(
            range(len(levels)),
            [level_of(row.value) for row in levels],
            rotation=0 if len(levels) <= _UPRIGHT else 90,
        )
        axes.set_ylim(-0.02, 1.02)
        figure.legend(loc="outside upper center", ncols=len(series), frameon=False, handletextpad=0.2)
        return svg(figure)


def curve_figure(curve: Curve) -> str:
    """Accuracy along one axis of the session; a pooled point stands in the middle of its bin."""
    points = [((one.first + one.last) / 2, one.accuracy) for one in curve.points]
    with drawing():
        figure, axes = _blank(curve.axis.replace("_", " "), "strict accuracy, 95 % interval")
        axes.plot(*np.array([(x, e.value) for x, e in points]).T, color=MARK, linewidth=1, alpha=0.6)
        _points(axes, points, MARK, "o")
        axes.set_ylim(-0.02, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return svg(figure)


def intrusion_figure(found: Intrusions) -> str:
    """The intrusion matrix: a mark for each confused pair, its area growing with the count. Pairs stand by level."""
    pairs, levels_of_pairs = found.pairs, found.levels_of_pairs
    place = {pair: number for number, pair in enumerate(pairs)}
    cells = [
        (place[one.source], place[one.probed], one.count)
        for one in found.confusions
        if one.source in place and one.probed in place
    ]
    x, y, counts = np.array(cells, dtype=float).reshape(-1, 3).T
    area = float(np.clip(4000 / len(pairs), 3, 60))
    with drawing():
        figure = Figure(figsize=(WIDTH_IN, WIDTH_IN * 0.92), layout="constrained")
        axes = figure.subplots()
        _bare(axes)
        axes.scatter(
            x, y, s=area * counts / counts.max(), color=MARK, alpha=0.75, linewidths=0, zorder=3, clip_on=False
        )
        axes.set_xlim(-0.5, len(pairs) - 0.5)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        middles, borders = _blocks(levels_of_pairs)
        for border in borders:
            axes.axhline(border, color=FAINT, linewidth=0.8)
            axes.axvline(border, color=FAINT, linewidth=0.8)
        names = [level_of(name) for name in middles]
        axes.set_xticks(list(middles.values()), names, rotation=0 if len(names) <= _UPRIGHT else 90)
        axes.set_yticks(list(middles.values()), names)
        axes.set_xlabel("source pair, by level")
        axes.set_ylabel("probed pair, by level")
        return svg(figure)


def gradient_figure(found: Gradient) -> str:
    """Intrusions by distance, against the middle 95 % of shuffled study positions."""
    places = range(len(found.distances))
    with drawing():
        figure, axes = _blank("study positions between probe and source", "intrusions")
        axes.bar(
            places,
            [one.high - one.low for one in found.distances],
            bottom=[one.low for one in found.distances],
            width=0.8,
            color=FAINT,
            label="95 % of shuffles",
        )
        counts = [one.count for one in found.distances]
        axes.plot(places, counts, "o-", color=MARK, linewidth=1, label="observed", clip_on=False)
        *names, _ = [span(one.first, one.last) for one in found.distances]
        axes.set_xticks(places, [*names, f"{found.distances[-1].first}+"], fontsize=8)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        return svg(figure)


def calibration_figure(found: Calibration) -> str:
    """Accuracy at each rating against the rating read as a probability; the diagonal is perfect calibration."""
    with drawing():
        figure, axes = _blank("confidence, (c - 1) / 5", "accuracy, 95 % interval")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
        _points(axes, [(one.stated, one.accuracy) for one in found.ratings], MARK, "o")
        axes.set_xlim(-0.06, 1.06)
        axes.set_ylim(-0.02, 1.02)
        counts = axes.secondary_xaxis("top")
        counts.set_xticks(
            [one.stated for one in found.ratings], [str(one.accuracy.n) for one in found.ratings], fontsize=8
        )
        counts.set_xlabel("n", fontsize=8)
        counts.tick_params(length=0)
        counts.spines[:].set_visible(False)
        return svg(figure)


def regression_figure(found: Regression) -> str:
    """Slopes in log-odds; the intercept is in the table only."""
    rows = [(f"{term.name}, {term.unit}", term.log_odds) for term in found.terms[1:]]
    return interval_plot(rows, axis="log-odds, 95 % interval", reference=0.0)


def contrast_figure(found: Contrast) -> str:
    rows = [(level_of(one.value), one.difference) for one in found.differences]
    return interval_plot(rows, axis="difference in accuracy, 95 % interval", reference=0.0)


# ---- pieces ----


def _blank(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    _bare(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def _bare(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _points(axes: Axes, points: Points, colour: str, marker: str, name: str | None = None) -> None:
    for x, estimate in points:
        if estimate.low is not None and estimate.high is not None:
            axes.plot([x, x], [estimate.low, estimate.high], color=colour, linewidth=2, solid_capstyle="butt")
    known = np.array([(x, estimate.value) for x, estimate in points if estimate.value is not None]).reshape(-1, 2)
    axes.plot(*known.T, marker, color=colour, markersize=5, clip_on=False, zorder=3, label=name)


def _blocks(levels: Sequence[str]) -> tuple[dict[str, float], list[float]]:
    """Middle of each run of equal levels, and the borders between them."""
    middles = {
        level: float(np.mean([number for number, own in enumerate(levels) if own == level]))
        for level in dict.fromkeys(levels)
    }
    return middles, [number - 0.5 for number in range(1, len(levels)) if levels[number] != levels[number - 1]]
