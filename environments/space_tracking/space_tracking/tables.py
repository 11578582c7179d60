"""A validation as tables of text, and a table as Markdown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mindscope.report.text import interval_text, value_text
from mindscope.statistics import Estimate

from space_tracking.bootstrap import RESAMPLES
from space_tracking.validation import CONTROL, Line, Measures, Validation


@dataclass(frozen=True)
class Table:
    """A title, what must be known to read it, and cells of text; without rows it is a paragraph."""

    title: str
    notes: tuple[str, ...]
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def tables(report: Validation) -> list[Table]:
    """Everything in `report`, the headline first."""
    return [
        _read(report),
        *_accuracies(report),
        *_details(report),
        *_swaps(report),
        *_distinct(report),
        *_comparisons(report),
        *_replied(report),
        *_tokens(report),
    ]


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        escaped = [cell.replace("|", r"\|") for cell in cells]
        return f"| {' | '.join(escaped)} |"

    parts = [f"## {table.title}", *table.notes]
    if table.rows:
        align = ["---", *["---:"] * (len(table.header) - 1)]
        parts.append("\n".join([line(table.header), line(align), *map(line, table.rows)]))
    return "\n\n".join(parts)


def _read(report: Validation) -> Table:
    notes = []
    for model in report.models:
        reasons = f" ({'; '.join(model.reasons)})" if model.reasons else ""
        scored = model.judged + model.replied
        notes.append(f"{model.label}: {model.how}; {scored:,} rows scored, {model.unscored:,} unscored{reasons}")
    return Table("What was read", tuple(notes))


def _accuracies(report: Validation) -> Iterator[Table]:
    for title, lines in (
        ("Forced accuracy by construction", report.constructions),
        ("Forced accuracy by template", report.templates),
    ):
        others = [f"{name} (another corpus)" for name in report.published.models]
        rows = [
            (
                line.name,
                f"{line.n:,}",
                *(_share(measures.forced, line.n) for measures in line.models),
                *(
                    f"{line.published[name] / _published_n(report, line):.3f}" if name in line.published else "-"
                    for name in report.published.models
                ),
            )
            for line in lines
        ]
        if rows:
            notes = (
                "The most probable of the colours in play is the right one; chance is .5, and a tie is wrong. 95 % "
                f"intervals: {RESAMPLES:,} bootstrap samples of pairs within templates. {CONTROL} is a format gate.",
                f"Right-hand columns: {report.published.label}",
            )
            yield Table(title, notes, ("", "n", *_labels(report), *others), tuple(rows))


def _published_n(report: Validation, line: Line) -> int:
    cells = report.published.constructions | report.published.templates
    return cells[line.name].n if line.name in cells else report.published.total.n


def _details(report: Validation) -> Iterator[Table]:
    columns: dict[str, Callable[[Measures], str]] = {
        "forced": lambda m: _brief(m.forced),
        "open": lambda m: _brief(m.open),
        "gap": lambda m: _brief(m.gap),
        "both of a pair": lambda m: _share(m.pair),
        "contrast > 0": lambda m: _brief(m.contrast),
        "prior-corrected": lambda m: _brief(m.corrected),
        "p(right)": lambda m: _brief(m.p_forced),
        "outside": lambda m: value_text(m.outside) if m.outside is not None else "-",
        "ties": lambda m: str(m.ties),
        "unscored": lambda m: str(m.unscored),
    }
    for place, label in enumerate(_labels(report)):
        lines = (*report.constructions, *report.templates)
        rows = [
            (line.name, *(shown(line.models[place]) for shown in columns.values()))
            for line in lines
            if line.models[place].forced.n or line.models[place].unscored
        ]
        notes = (
            "open: the most probable of all six colours is right. gap: forced minus open. both of a pair: any "
            "preference for a place, a colour or a space scores 0, independent guessing .25. contrast: the margins of "
            "a pair's rows sum to more than 0, chance .5. prior-corrected: forced, after the log-probability of each "
            "colour behind a colourless context is subtracted. p(right): among the colours in play. outside: "
            "probability of anything but the six.",
        )
        if rows:
            yield Table(f"All measures: {label}", notes, ("", *columns), tuple(rows))


def _swaps(report: Validation) -> Iterator[Table]:
    lines = [line for line in (*report.constructions, *report.templates) if line.name.startswith(("two_entity", "te-"))]
    rows = [
        (line.name, label, str(measures.swap_forced.n), _share(measures.swap_forced), _share(measures.swap_open))
        for line in lines
        for label, measures in zip(_labels(report), line.models, strict=True)
        if measures.swap_forced.n
    ]
    if rows:
        rates = ", ".join(f"{name} {rate:.3f}" for name, rate in report.published.swap_rate.items())
        notes = (
            "The choice is the distractor's colour in the queried space. The published rates don't say of which of "
            f"the two choices they are ({rates}; another corpus's numbers).",
        )
        yield Table("Swaps between two things", notes, ("", "model", "n", "of forced", "of open"), tuple(rows))


def _distinct(report: Validation) -> Iterator[Table]:
    rows = [
        (
            line.name,
            label,
            str(measures.forced.n),
            _share(measures.forced),
            _share(measures.pair),
            *(str(measures.errors[kind]) for kind in ("space", "entity", "both", "tie")),
        )
        for line in report.distinct
        for label, measures in zip(_labels(report), line.models, strict=True)
        if measures.forced.n
    ]
    if rows:
        notes = ("Chance is .25; these rows are in no total. Errors: the other space, the other thing, both, a tie.",)
        header = ("", "model", "n", "forced", "both of a pair", "space", "thing", "both", "tie")
        yield Table("Two things, four colours", notes, header, tuple(rows))


def _comparisons(report: Validation) -> Iterator[Table]:
    rows = [
        (
            f"{one.first} - {one.second}",
            one.scope,
            f"{one.n:,}",
            _share(one.difference),
            str(one.only_first),
            str(one.only_second),
            f"{one.p:.2g}",
        )
        for one in report.comparisons
    ]
    if rows:
        notes = ("Forced accuracy on the same rows; p is McNemar's, exact, not corrected for the number of lines.",)
        header = ("", "rows", "n", "difference", "only the first right", "only the second", "p")
        yield Table("Models compared", notes, header, tuple(rows))


def _replied(report: Validation) -> Iterator[Table]:
    rows = [
        (one.name, one.model, str(one.right.n), _share(one.right), _share(one.swap), _share(one.no_colour))
        for one in report.replied
    ]
    if rows:
        notes = ("The model was asked to name the colour. Not to be compared with the tables of log-probabilities.",)
        header = ("", "model", "n", "right", "swap", "no one colour")
        yield Table("Generated answers", notes, header, tuple(rows))


def _tokens(report: Validation) -> Iterator[Table]:
    rows = [
        (
            one.colour,
            one.model,
            f"{one.single:,} of {one.n:,}",
            "; ".join(" + ".join(map(str, ids)) for ids in one.ids),
        )
        for one in report.tokens
    ]
    if rows:
        notes = ("The colour, with its space, after each prompt.",)
        yield Table("Token audit", notes, ("", "model", "one token", "ids"), tuple(rows))


def _labels(report: Validation) -> list[str]:
    """The models with log-probabilities, in the order of `Line.models`."""
    return [model.label for model in report.models if model.judged]


def _share(estimate: Estimate, n: int | None = None) -> str:
    """The value with its interval, and its n where that is not the line's."""
    if estimate.value is None:
        return "-"
    spread = "" if estimate.low is None else f" {interval_text(estimate)}"
    return f"{value_text(estimate.value)}{spread}" + ("" if n in (None, estimate.n) else f" (n {estimate.n:,})")


def _brief(estimate: Estimate) -> str:
    return "-" if estimate.value is None else value_text(estimate.value)
