"""Figures for a page: SVG for inlining, with no script, nothing to fetch, and the same bytes every time.

`interval_plot` draws one row a condition: its mean, its 95 % interval, and the n it rests on. Other figures are
drawn with matplotlib in the same style:

    with drawing():
        figure = Figure(figsize=(WIDTH_IN, 3), layout="constrained")
        ...
        return svg(figure)
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from mindscope.report.visible import label
from mindscope.statistics import Estimate

INK, FAINT, MARK, SECOND = "#1b1f24", "#d0d5dd", "#0b5cad", "#c2570c"
"""Text, grid, data, and a second series of data."""

WIDTH_IN = 3.9
"""Inches; a page shows this much without shrinking it on a telephone."""

_ROW_IN, _MARGIN_IN = 0.32, 0.8
_LONGEST_LABEL = 24

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "mindscope",
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def drawing() -> Iterator[None]:
    """The page's style for the figures drawn inside, whatever the user's matplotlib settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def svg(figure: Figure) -> str:
    """`figure` as an `<svg>` element; to be called within `drawing`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    markup = buffer.getvalue()
    return markup[markup.index("<svg") :]


def interval_plot(rows: Sequence[tuple[str, Estimate]], *, axis: str, reference: float | None = None) -> str:
    """An `<svg>` element with one labelled point and interval a row, top to bottom, on a common axis.

    `axis` names the axis, which spans 0 to 1 when every number lies in it, and else what the numbers and
    `reference` need; `reference` is marked by a line. A row without a value has only its label and n; one without an
    interval has only its point.
    """
    with drawing():
        figure = Figure(figsize=(WIDTH_IN, _MARGIN_IN + _ROW_IN * len(rows)), layout="constrained")
        axes = figure.subplots()
        for y, (_, estimate) in enumerate(rows):
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low, estimate.high], [y, y], color=MARK, linewidth=2.2, solid_capstyle="butt")
            if estimate.value is not None:
                axes.plot([estimate.value], [y], "o", color=MARK, markersize=6, clip_on=False, zorder=3)
        if reference is not None:
            axes.axvline(reference, color=INK, linewidth=0.8, linestyle="--", zorder=0.9)
        axes.set_xlim(_span([estimate for _, estimate in rows], reference))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [label(name, _LONGEST_LABEL) for name, _ in rows])
        axes.set_xlabel(axis)
        axes.grid(axis="x", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        counts = axes.secondary_yaxis("right")
        counts.set_yticks(range(len(rows)), [f"n {estimate.n}" for _, estimate in rows])
        counts.tick_params(length=0, pad=10)
        counts.spines[:].set_visible(False)
        return svg(figure)


def _span(estimates: Sequence[Estimate], reference: float | None) -> tuple[float, float]:
    ends = [end for e in estimates for end in (e.value, e.low, e.high, reference) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if low >= 0.0 and high <= 1.0 and reference is None:
        return 0.0, 1.0
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin
