"""The validation tables of one or several models: per construction and template, paired between models.

    report = validate([load_run("outputs/scores/embedded"), load_run("outputs/scores/other")])
    report.format_text(), report.to_markdown(), report.to_html(), report.to_json()

Forced accuracy leads, pair consistency stands beside it. The one-space control is a format gate, so it is in no
headline. Replies that a model generated are another measurement and have a table of their own. What was once published
for another corpus of this design is shown beside ours and labelled so.
"""

from collections.abc import Callable, Iterable, Sequence

from mindscope.report.text import table
from mindscope.statistics import Estimate
from pydantic import BaseModel, ConfigDict
from scipy.stats import binomtest

from space_tracking.bootstrap import PairBootstrap
from space_tracking.corpus import (
    BY_NAME,
    COLOURS,
    CONSTRUCTIONS,
    DISTINCT,
    Published,
    Row,
    load,
    load_distinct,
    load_published,
)
from space_tracking.judgement import Judgement
from space_tracking.runs import ReadRun

CONTROL = CONSTRUCTIONS[0].name
TWO_SPACES = "all two-space rows"
EVERYTHING = "all rows, control included"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Measures(_Frozen):
    """One model on one group of rows. Every estimate has its own n."""

    forced: Estimate
    open: Estimate
    gap: Estimate
    """Forced minus open, over the rows that have both."""
    pair: Estimate
    """Pairs of which both rows are right, over the pairs of which both were scored."""
    contrast: Estimate
    """Pairs whose two margins sum to more than 0, which a preference for a colour can't bring about."""
    corrected: Estimate
    """Forced accuracy after the prior is subtracted."""
    p_forced: Estimate
    """Mean probability of the right colour among those in play."""
    swap_forced: Estimate
    swap_open: Estimate
    """Rows whose choice is the distractor's colour in the queried space."""
    outside: float | None
    """Mean probability of anything but the six colours."""
    ties: int
    unscored: int
    errors: dict[str, int]
    """Wrong forced choices by kind (`Judgement.error`)."""


class Line(_Frozen):
    """A group of rows: a construction, a template, or a total."""

    name: str
    chance: float
    n: int
    """Rows of the corpus."""
    models: tuple[Measures, ...]
    """In the order of the report's models."""
    published: dict[str, int]
    """Right answers by model, of as many rows, in another corpus of this design."""


class Comparison(_Frozen):
    """Two models on the rows that both have: forced accuracy, paired."""

    scope: str
    first: str
    second: str
    n: int
    only_first: int
    """Rows that only the first got right."""
    only_second: int
    p: float
    """McNemar's exact test of the two counts."""
    difference: Estimate
    """Accuracy of the first minus that of the second."""


class RepliedLine(_Frozen):
    """Generated replies to a group of rows."""

    name: str
    model: str
    right: Estimate
    swap: Estimate
    no_colour: Estimate
    """Replies in which no one colour could be read."""


class ColourTokens(_Frozen):
    """A colour after every prompt, with one model's tokenizer."""

    model: str
    colour: str
    n: int
    single: int
    ids: tuple[tuple[int, ...], ...]


class Model(_Frozen):
    label: str
    how: str
    judged: int
    """Rows of which log-probabilities were judged."""
    replied: int
    """Rows to which replies were generated."""
    unscored: int
    reasons: tuple[str, ...]
    """The first few reasons for rows without a score."""


class Validation(_Frozen):
    models: tuple[Model, ...]
    constructions: tuple[Line, ...]
    """With the two totals first."""
    templates: tuple[Line, ...]
    distinct: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]
    replied: tuple[RepliedLine, ...]
    tokens: tuple[ColourTokens, ...]
    published: Published

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    def format_text(self) -> str:
        from space_tracking.tables import tables

        parts = []
        for one in tables(self):
            body = [table(one.header, one.rows)] if one.rows else []
            parts.append("\n".join([one.title, *one.notes, *body]))
        return "\n\n".join(parts)

    def to_markdown(self) -> str:
        from space_tracking.tables import markdown, tables

        return "\n\n".join(["# space_tracking: behavioural validation", *map(markdown, tables(self))]) + "\n"

    def to_html(self) -> str:
        """One page that loads nothing; raises MindscopeError without the extra `report`."""
        from mindscope.report.html import template

        from space_tracking.tables import tables

        return template("space_tracking", "validation.html.jinja").render(tables=tables(self))


def validate(runs: Sequence[ReadRun]) -> Validation:
    """The tables of `runs`, one model each."""
    published = load_published()
    corpus = _read_by_any(load(), runs)
    distinct = _read_by_any(load_distinct(), runs)
    draws = PairBootstrap([*corpus, *distinct])
    read = [run for run in runs if run.judged]

    def line(name: str, rows: Sequence[Row], chance: float, counts: dict[str, int] | None = None) -> Line:
        return Line(
            name=name,
            chance=chance,
            n=len(rows),
            models=tuple(_measures(run, rows, draws) for run in read),
            published=counts or {},
        )

    def lines(rows: Sequence[Row], key: Callable[[Row], str]) -> list[Line]:
        cells = published.templates | published.constructions
        found = []
        for name in dict.fromkeys(map(key, rows)):
            group = [row for row in rows if key(row) == name]
            chance = 1 / BY_NAME[group[0].construction].n_values
            found.append(line(name, group, chance, cells[name].correct if name in cells else None))
        return found

    two_spaces = [row for row in corpus if row.construction != CONTROL]
    totals = [line(TWO_SPACES, two_spaces, 0.5)] if two_spaces and read else []
    if len(two_spaces) < len(corpus) and read:
        totals.append(line(EVERYTHING, corpus, 0.5, published.total.correct))
    return Validation(
        models=tuple(map(_model, runs)),
        constructions=(*totals, *(lines(corpus, lambda row: row.construction) if read else ())),
        templates=tuple(lines(corpus, lambda row: row.template)) if read else (),
        distinct=(
            *([line(DISTINCT.name, distinct, 0.25)] if distinct and read else ()),
            *(lines(distinct, lambda row: row.template) if read else ()),
        ),
        comparisons=tuple(_comparisons(read, two_spaces, draws)),
        replied=tuple(_replied(runs, [*corpus, *distinct], draws)),
        tokens=tuple(_colour_tokens(runs)),
        published=published,
    )


def _read_by_any(rows: Iterable[Row], runs: Sequence[ReadRun]) -> list[Row]:
    ids = {row_id for run in runs for row_id in (*run.judged, *run.replied, *run.unscored)}
    return [row for row in rows if row.id in ids]


def _model(run: ReadRun) -> Model:
    return Model(
        label=run.label,
        how=run.how,
        judged=len(run.judged),
        replied=len(run.replied),
        unscored=len(run.unscored),
        reasons=tuple(dict.fromkeys(run.unscored.values()))[:3],
    )


def _measures(run: ReadRun, rows: Sequence[Row], draws: PairBootstrap) -> Measures:
    judged = [run.judged[row.id] for row in rows if row.id in run.judged]
    pairs: dict[str, list[Judgement]] = {}
    for one in judged:
        pairs.setdefault(one.row.pair_id, []).append(one)
    whole = [pair for pair in pairs.values() if len(pair) == 2]

    def mean(measure: Callable[[Judgement], float | None]) -> Estimate:
        values = [(one.row, measure(one)) for one in judged]
        return draws.mean([(row, float(value)) for row, value in values if value is not None])

    kinds = [one.error for one in judged if one.error is not None]
    masses = [mass for one in judged if (mass := one.mass_outside) is not None]
    return Measures(
        forced=mean(lambda one: one.forced),
        open=mean(lambda one: one.open),
        gap=mean(lambda one: None if one.open is None else one.forced - one.open),
        pair=draws.mean([(pair[0].row, float(all(one.forced for one in pair))) for pair in whole]),
        contrast=draws.mean([(pair[0].row, float(sum(one.margin for one in pair) > 0)) for pair in whole]),
        corrected=mean(lambda one: one.corrected),
        p_forced=mean(lambda one: one.p_answer),
        swap_forced=mean(lambda one: one.swap_forced),
        swap_open=mean(lambda one: one.swap_open),
        outside=sum(masses) / len(masses) if masses else None,
        ties=sum(one.tie for one in judged),
        unscored=sum(row.id in run.unscored for row in rows),
        errors={kind: kinds.count(kind) for kind in ("space", "entity", "both", "tie")},
    )


def _comparisons(runs: Sequence[ReadRun], rows: Sequence[Row], draws: PairBootstrap) -> Iterable[Comparison]:
    scopes = {TWO_SPACES: list(rows)}
    for row in rows:
        scopes.setdefault(row.construction, []).append(row)
    for i, first in enumerate(runs):
        for second in runs[i + 1 :]:
            for scope, group in scopes.items():
                both = [row for row in group if row.id in first.judged and row.id in second.judged]
                if both:
                    yield _comparison(scope, first, second, both, draws)


def _comparison(scope: str, first: ReadRun, second: ReadRun, rows: Sequence[Row], draws: PairBootstrap) -> Comparison:
    right = [(first.judged[row.id].forced, second.judged[row.id].forced) for row in rows]
    only_first = sum(a and not b for a, b in right)
    only_second = sum(b and not a for a, b in right)
    differ = only_first + only_second
    return Comparison(
        scope=scope,
        first=first.label,
        second=second.label,
        n=len(rows),
        only_first=only_first,
        only_second=only_second,
        p=float(binomtest(only_first, differ).pvalue) if differ else 1.0,
        difference=draws.mean([(row, float(a) - float(b)) for row, (a, b) in zip(rows, right, strict=True)]),
    )


def _replied(runs: Sequence[ReadRun], rows: Sequence[Row], draws: PairBootstrap) -> Iterable[RepliedLine]:
    for run in runs:
        replied = [row for row in rows if row.id in run.replied]
        for name in dict.fromkeys(row.construction for row in replied):
            group = [row for row in replied if row.construction == name]
            measures = {row.id: run.replied[row.id] for row in group}
            yield RepliedLine(
                name=name,
                model=run.label,
                right=draws.mean([(row, measures[row.id]["generated"]) for row in group]),
                swap=draws.mean(
                    [(row, each["swap_generated"]) for row in group if "swap_generated" in (each := measures[row.id])]
                ),
                no_colour=draws.mean(
                    [
                        (row, 1.0 - measures[row.id]["outcome_correct"] - measures[row.id]["outcome_wrong"])
                        for row in group
                    ]
                ),
            )


def _colour_tokens(runs: Sequence[ReadRun]) -> Iterable[ColourTokens]:
    for run in runs:
        for colour in COLOURS:
            if colour in run.tokens:
                counts = run.tokens[colour]
                yield ColourTokens(
                    model=run.label,
                    colour=colour,
                    n=sum(counts.values()),
                    single=sum(n for ids, n in counts.items() if len(ids) == 1),
                    ids=tuple(sorted(counts)),
                )
