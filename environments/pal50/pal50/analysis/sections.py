"""What is shown of an analysis, once for the terminal and the page: titles, tables, sentences.

Every rate stands beside its n and its 95 % interval. Names from files are made visible and cut to one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mindscope.report.text import interval_text, value_text
from mindscope.report.visible import label
from mindscope.statistics import Estimate

from pal50.analysis.confidence import Calibration, Scores
from pal50.analysis.contrasts import Contrast
from pal50.analysis.curves import Axis, Curve, SerialPosition
from pal50.analysis.intrusions import Gradient, Intrusions
from pal50.analysis.regression import Regression
from pal50.analysis.runs import RunAnalysis

_LONGEST_NAME, _LONGEST_LEVEL = 40, 12
_CONFUSIONS = 10
_INTERVAL = "95 % interval"

_AXES: dict[Axis, str] = {
    "study_position": "Study position",
    "lag": "Lag",
    "test_position": "Output order",
    "cycle": "Learning",
}
_CONTRASTS = {
    "guessing": "What study adds to guessing",
    "repaired": "Studied against re-paired",
    "run": "Two runs compared",
}


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    """The first column holds names, the others numbers."""
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    key: str
    """What the section is about, the same for every run."""
    title: str
    tables: list[Table] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def name_of(text: str) -> str:
    return label(text, _LONGEST_NAME)


def level_of(text: str) -> str:
    return label(text, _LONGEST_LEVEL)


def span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def overview(run: RunAnalysis) -> list[str]:
    """What was analysed, and what to keep in mind."""
    sentences = [
        f'study="{run.study}": {run.trials} scored trials, {run.rollouts} sessions, {run.participants} participants.',
    ]
    if not run.failed_rollouts:
        sentences.append("No rollout failed.")
    if run.buffers:
        sentences.append(f"{run.buffers} trials of buffer pairs are in no number.")
    if run.tokens.n:
        tokens = run.tokens
        sentences.append(f"Tokens sent {tokens.input:,}, received {tokens.output:,} (n {tokens.n} trials).")
    return [*sentences, *run.notes]


def run_sections(run: RunAnalysis) -> list[Section]:
    return [
        _accuracy(run),
        _outcomes(run),
        _serial_position(run.serial_position),
        _curve(run.lag),
        _curve(run.output_order),
        _curve(run.learning),
        _intrusions(run.intrusions),
        _confidence(run.confidence),
        _regression(run.regression),
    ]


def contrast_section(found: Contrast) -> Section:
    first, second = name_of(found.first), name_of(found.second)
    title = f"{_CONTRASTS[found.kind]}: {first} minus {second}"
    if not found.differences:
        return Section(found.kind, title, sentences=["No cue is asked for in both, so nothing can be compared."])
    rows = [
        (level_of(one.value), *_counted(one.first), *_counted(one.second), *_pair(one.difference))
        for one in found.differences
    ]
    methods = "; ".join(sorted({one.difference.method for one in found.differences}))
    together = "the same participants, drawn together" if found.same_participants else "different participants"
    sentences = [f"Strict accuracy, paired by item. The runs have {together}. Intervals: {methods}."]
    if any(found.left_out):
        sentences.append(f"Left out because the other run lacks the cue: {found.left_out[0]} and {found.left_out[1]}.")
    return Section(
        found.kind,
        title,
        [Table(("level", "n", "first", "n", "second", "difference", _INTERVAL), rows)],
        [*sentences, _mcnemar(found)],
    )


# ---- one run ----


def _accuracy(run: RunAnalysis) -> Section:
    rows = [
        (
            name_of(row.value if row.factor in ("all", "level") else f"{row.factor} {row.value}"),
            str(row.strict.n),
            *_pair(row.strict),
            *_pair(row.lenient),
            interval_text(row.cell),
            "" if row.design_effect is None else f"{row.design_effect:.1f}",
        )
        for row in run.accuracy
    ]
    head = ("level", "n", "strict", _INTERVAL, "lenient", _INTERVAL, "Wilson alone", "design effect")
    methods = "; ".join(sorted({row.strict.method for row in run.accuracy}))
    wilson = "Wilson alone: the strict rate's interval if trials were independent."
    return Section("accuracy", "Accuracy", [Table(head, rows)], [f"Intervals: {methods}. {wilson}"])


def _outcomes(run: RunAnalysis) -> Section:
    levels = run.intrusions.levels
    rows = [
        (name_of(one.outcome), str(one.count), *_pair(one.share), *(str(one.by_level[level]) for level in levels))
        for one in run.outcomes
    ]
    head = (f"outcome of {run.trials}", "count", "share", _INTERVAL, *map(level_of, levels))
    return Section("outcomes", "What became of the trials", [Table(head, rows)])


def _serial_position(found: SerialPosition) -> Section:
    section = _curve(found.curve)
    ends = [("Primacy", "first", found.primacy), ("Recency", "last", found.recency)]
    section.sentences.extend(
        f"{name}: the {place} tenth minus the middle is {_text(value)}."
        for name, place, value in ends
        if value is not None
    )
    return section


def _curve(curve: Curve) -> Section:
    title = _AXES[curve.axis]
    if curve.note is not None:
        return Section(curve.axis, title, sentences=[curve.note])
    rows = [
        (span(one.first, one.last), str(one.accuracy.n), *_pair(one.accuracy)) for one in curve.points
    ]  # fmt: skip
    sentences = [] if curve.slope is None else [f"Slope a step: {_text(curve.slope, digits=4)}."]
    return Section(
        curve.axis, title, [Table((curve.axis.replace("_", " "), "n", "strict", _INTERVAL), rows)], sentences
    )


def _intrusions(found: Intrusions) -> Section:
    elsewhere = f", {found.elsewhere} of them from pairs that are not scored" if found.elsewhere else ""
    section = Section("intrusions", "Intrusions", sentences=[f"{found.n} intrusions{elsewhere}."])
    if not found.n:
        return section
    levels = [level_of(level) for level in found.levels]
    section.tables.append(
        Table(
            ("probed, by source", *levels, "all"),
            [
                (level, *map(str, counts), str(sum(counts)))
                for level, counts in zip(levels, found.by_level, strict=True)
            ],
        )
    )
    shown = found.confusions[:_CONFUSIONS]
    confusions = [(f"{name_of(one.probed)} ← {name_of(one.source)}", str(one.count)) for one in shown]
    section.tables.append(Table(("probed ← source", "count"), confusions))
    if len(found.confusions) > len(shown):
        section.sentences.append(f"{len(found.confusions) - len(shown)} more cells of the matrix are not listed.")
    _add_gradient(section, found.gradient)
    return section


def _add_gradient(section: Section, found: Gradient) -> None:
    if found.note is not None or found.mean_distance is None or found.expected_mean_distance is None:
        section.sentences.append(found.note or "")
        return
    rows = [
        (span(one.first, one.last), str(one.count), f"{one.expected:.1f}", f"[{one.low:.1f}, {one.high:.1f}]")
        for one in found.distances
    ]
    section.tables.append(Table(("distance", "count", "shuffled", "95 % of shuffles"), rows))
    section.sentences += [
        f"Mean distance {found.mean_distance:.2f} study positions, {found.expected_mean_distance:.2f} when shuffled; "
        f"nearer than chance: p {_p(found.p)} (one-sided, {found.shuffles} shuffles, n {found.n}).",
        f"{found.from_earlier} came from pairs studied earlier, {found.from_later} from pairs studied later.",
    ]


def _confidence(found: Calibration) -> Section:
    section = Section("confidence", "Confidence")
    if found.note is not None:
        section.sentences.append(found.note)
    if not found.n:
        return section
    section.sentences.append(f"{found.n} rated trials, {found.without} without a rating. Stated: (rating - 1) / 5.")
    ratings = [
        (str(one.rating), str(one.accuracy.n), f"{one.stated:.1f}", value_text(one.mapped), *_pair(one.accuracy))
        for one in found.ratings
    ]
    measures = [
        ("overconfidence", found.overconfidence),
        *_scores("stated", found.stated),
        *_scores("isotonic", found.mapped),
        ("AUROC2", found.auroc2),
        ("gamma", found.gamma),
    ]
    listed = [(name, str(one.n), *_pair(one)) for name, one in measures if one is not None]
    section.tables += [
        Table(("rating", "n", "stated", "isotonic", "accuracy", _INTERVAL), ratings),
        Table(("measure", "n", "value", _INTERVAL), listed),
    ]
    return section


def _scores(reading: str, scores: Scores | None) -> list[tuple[str, Estimate | None]]:
    if scores is None:
        return []
    return [
        (f"ECE, {reading}", scores.ece),
        (f"Brier, {reading}", scores.brier),
        (f"reliability, {reading}", scores.reliability),
        (f"resolution, {reading}", scores.resolution),
        (f"uncertainty, {reading}", scores.uncertainty),
    ]


def _regression(found: Regression) -> Section:
    section = Section("regression", "Regression", sentences=[found.why])
    if found.terms:
        rows = [(f"{term.name}, {term.unit}", *_pair(term.log_odds), f"{term.odds_ratio:.3g}") for term in found.terms]
        section.tables.append(Table(("term", "log-odds", _INTERVAL, "odds ratio"), rows))
        size = f"n {found.n}, {found.participants} participants, {found.pairs} pairs"
        section.sentences.append(f"{found.formula} ({size}).")
    section.sentences += [f"Random effect of {one.name}: SD {one.sd:.2f}." for one in found.random_effects]
    section.sentences += [f"Left out: {reason}" for reason in found.left_out]
    section.sentences += found.cautions
    return section


def _mcnemar(found: Contrast) -> str:
    paired = found.paired
    if paired is None:
        return "No trial has its like in the other run (same participant, rollout, cycle and cue): no McNemar test."
    if paired.p is None:
        return f"McNemar: both runs are right on the same of the {paired.n} matched trials, so p is undefined."
    return (
        f"Of {paired.n} matched trials {paired.both} are right in both, {paired.only_first} in the first only, "
        f"{paired.only_second} in the second only and {paired.neither} in neither; McNemar's exact test, which takes "
        f"trials as independent: p {_p(paired.p)}."
    )


# ---- cells ----


def _pair(estimate: Estimate) -> tuple[str, str]:
    return value_text(estimate.value), interval_text(estimate)


def _counted(estimate: Estimate) -> tuple[str, str]:
    return str(estimate.n), value_text(estimate.value)


def _p(p: float | None) -> str:
    if p is None:
        return "undefined"
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _text(estimate: Estimate, digits: int = 3) -> str:
    if estimate.value is None:
        return f"undefined (n {estimate.n})"
    known = estimate.low is not None and estimate.high is not None
    ends = f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]" if known else "interval undefined"
    return f"{estimate.value:.{digits}f} {ends} (n {estimate.n})"
