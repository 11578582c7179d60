"""Numbers and tables as plain text for a terminal."""

from collections.abc import Sequence

from mindscope.statistics import Estimate


def interval_text(estimate: Estimate) -> str:
    """`[0.482, 0.741]`, or `undefined`."""
    if estimate.low is None or estimate.high is None:
        return "undefined"
    return f"[{estimate.low:.3f}, {estimate.high:.3f}]"


def value_text(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned first column, right-aligned others."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    )
