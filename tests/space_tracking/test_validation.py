import itertools
import json
import math
import random
import re

import numpy as np
import pytest
from scipy.stats import chi2
from space_tracking.bootstrap import PairBootstrap
from space_tracking.corpus import Row, load, load_distinct, load_published
from space_tracking.judgement import Judgement, judge
from space_tracking.paradigm import policy_readout
from space_tracking.runs import ReadRun
from space_tracking.tables import markdown, tables
from space_tracking.validation import EVERYTHING, TWO_SPACES, Validation, validate

TEST = load("test")


def run(label: str, rows: list[Row], right: set[str], **more: object) -> ReadRun:
    """A run that has the rows in `right` right, and the foil elsewhere."""
    judged = {row.id: judge(row, policy_readout(row.answer if row.id in right else row.foil)) for row in rows}
    given: dict = {"how": "scripted", "judged": judged, "replied": {}, "unscored": {}, "tokens": {}} | more
    return ReadRun(label=label, **given)


def some(share: float, seed: int) -> set[str]:
    rng = random.Random(seed)
    return {row.id for row in TEST if rng.random() < share}


def of_template(template: str) -> list[Row]:
    return [row for row in TEST if row.template == template]


def test_intervals_match_a_bootstrap_written_out() -> None:
    rows = of_template("te-photo") + of_template("cf-dream")
    rng = random.Random(5)
    values = [(row, float(rng.random() < 0.7)) for row in rows]
    found = PairBootstrap(rows).mean(values)

    generator = np.random.default_rng(99)
    by_template: dict[str, dict[str, list[float]]] = {}
    for row, value in values:
        by_template.setdefault(row.template, {}).setdefault(row.pair_id, []).append(value)
    means = []
    for _ in range(4000):
        drawn = [
            pair
            for pairs in by_template.values()
            for i in generator.integers(0, len(pairs), len(pairs))
            for pair in [list(pairs.values())[i]]
        ]
        means.append(np.mean(list(itertools.chain(*drawn))))
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.value == pytest.approx(sum(value for _, value in values) / len(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.025), pytest.approx(high, abs=0.025))
    assert (found.n, found.clusters) == (len(rows), len(rows) // 2)


def test_pairs_are_the_units_not_rows() -> None:
    rows = of_template("belief-thinks")
    together = [(row, float(int(row.pair_id[-3:]) % 2)) for row in rows]
    apart = [(row, float(i % 2)) for i, row in enumerate(rows)]
    wide, none = PairBootstrap(rows).mean(together), PairBootstrap(rows).mean(apart)
    assert wide.value == pytest.approx(0.5, abs=0.05)
    assert wide.high - wide.low > 0.25  # type: ignore[operator]
    assert (none.value, none.low, none.high) == (0.5, None, None)


def test_templates_are_strata() -> None:
    rows = of_template("te-photo") + of_template("cf-dream")
    values = [(row, float(row.template == "te-photo")) for row in rows]
    found = PairBootstrap(rows).mean(values)
    assert (found.low, found.high) == (None, None)


def test_all_right_has_wilsons_interval_over_pairs() -> None:
    rows = of_template("te-photo")
    found = PairBootstrap(rows).mean([(row, 1.0) for row in rows])
    m = len(rows) // 2
    z2 = chi2.ppf(0.95, 1)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(m / (m + z2))
    assert PairBootstrap(rows).mean([]).value is None


def test_the_same_runs_give_the_same_report() -> None:
    runs = [run("a", TEST, some(0.7, 1)), run("b", TEST, some(0.6, 2))]
    assert validate(runs).to_json() == validate(runs).to_json()


def test_counts_are_those_of_the_rows() -> None:
    right = some(0.7, 1)
    report = validate([run("a", TEST, right)])
    for line in (*report.constructions, *report.templates):
        rows = [
            row
            for row in TEST
            if line.name in (row.template, row.construction, EVERYTHING)
            or (line.name == TWO_SPACES and row.construction != "single_space_control")
        ]
        (measures,) = line.models
        assert line.n == measures.forced.n == len(rows), line.name
        assert measures.forced.value == pytest.approx(sum(row.id in right for row in rows) / len(rows))
        pairs: dict[str, list[bool]] = {}
        for row in rows:
            pairs.setdefault(row.pair_id, []).append(row.id in right)
        assert measures.pair.value == pytest.approx(sum(map(all, pairs.values())) / len(pairs))
        assert measures.pair.n == len(pairs)
    assert {line.name for line in report.templates} == {row.template for row in TEST}


def test_mcnemar_and_the_paired_difference() -> None:
    a, b = some(0.7, 1), some(0.5, 2)
    report = validate([run("a", TEST, a), run("b", TEST, b)])
    two_spaces = {row.id for row in TEST if row.construction != "single_space_control"}
    (whole,) = [one for one in report.comparisons if one.scope == TWO_SPACES]
    only_a, only_b = len((a - b) & two_spaces), len((b - a) & two_spaces)
    assert (whole.only_first, whole.only_second, whole.n) == (only_a, only_b, len(two_spaces))
    assert whole.difference.value == pytest.approx((only_a - only_b) / len(two_spaces))
    differ = only_a + only_b
    tail = sum(math.comb(differ, k) for k in range(min(only_a, only_b) + 1))
    assert whole.p == pytest.approx(2 * tail / 2**differ)
    assert {one.scope for one in report.comparisons} == {TWO_SPACES} | {
        row.construction for row in TEST if row.id in two_spaces
    }


def test_mcnemar_by_hand() -> None:
    rows = of_template("te-photo")
    ids = [row.id for row in rows]
    report = validate([run("a", rows, set(ids[:10])), run("b", rows, set(ids[8:12]))])
    (whole, _) = report.comparisons
    assert (whole.only_first, whole.only_second) == (8, 2)
    assert whole.p == pytest.approx(2 * (1 + 10 + 45) / 2**10)
    same = validate([run("a", rows, set(ids)), run("b", rows, set(ids))]).comparisons[0]
    assert (same.only_first, same.only_second, same.p) == (0, 0, 1.0)


def test_models_are_compared_on_the_rows_that_both_have() -> None:
    rows = of_template("te-photo")
    half = rows[: len(rows) // 2]
    report = validate([run("a", rows, set()), run("b", half, {row.id for row in half})])
    assert report.comparisons[0].n == len(half)
    line = next(line for line in report.templates if line.name == "te-photo")
    assert [measures.forced.n for measures in line.models] == [len(rows), len(half)]
    (accuracies,) = [table for table in tables(report) if table.title == "Forced accuracy by template"]
    assert accuracies.rows[0][3].endswith(f"(n {len(half)})")


def test_unscored_rows_are_counted_and_in_no_rate() -> None:
    rows = of_template("te-photo")
    lost = {row.id: "te-photo: unknown log-probability of red" for row in rows[:3]}
    report = validate([run("a", rows[3:], {row.id for row in rows}, unscored=lost)])
    line = next(line for line in report.templates if line.name == "te-photo")
    (measures,) = line.models
    assert (line.n, measures.unscored, measures.forced.n, measures.forced.value) == (len(rows), 3, len(rows) - 3, 1.0)
    assert measures.pair.n == len(rows) // 2 - 2
    assert "3 unscored (te-photo: unknown log-probability of red)" in report.format_text()


def test_published_counts_are_shown_as_anothers_and_compared_with_nothing() -> None:
    report = validate([run("a", TEST, some(0.7, 1))])
    published = load_published()
    text = report.format_text()
    assert published.label in text
    rows = {row[0]: row for table in tables(report) if table.title.startswith("Forced") for row in table.rows}
    assert rows["nb-thinks-knows"][-2:] == ("0.688", "0.713")
    assert rows["two_entity_selectivity"][-2:] == ("0.858", "0.854")
    assert rows[EVERYTHING][-2:] == ("0.871", "0.904")
    assert rows[TWO_SPACES][-2:] == ("-", "-")
    assert all("another corpus" in cell for table in tables(report) if table.title.startswith("Forced")
               for cell in table.header[-2:])  # fmt: skip
    assert not {one.first for one in report.comparisons} & set(published.models)


def test_the_control_is_in_no_headline() -> None:
    control = [row for row in TEST if row.construction == "single_space_control"]
    others = [row for row in TEST if row.construction != "single_space_control"]
    report = validate([run("a", TEST, {row.id for row in control})])
    lines = {line.name: line.models[0].forced.value for line in report.constructions}
    assert lines[TWO_SPACES] == 0.0
    assert lines[EVERYTHING] == pytest.approx(len(control) / (len(control) + len(others)))


def test_distinct_rows_have_their_own_table_with_the_kinds_of_error() -> None:
    rows = load_distinct("test")
    kinds = {"space": 0, "entity": 0, "both": 0, "tie": 0}
    judged: dict[str, Judgement] = {}
    for i, row in enumerate(rows):
        distractor = row.distractor_value_map or {}
        choices = {
            None: row.answer,
            "space": row.foil,
            "entity": distractor[row.query_space],
            "both": next(value for space, value in distractor.items() if space != row.query_space),
        }
        kind = list(choices)[i % 4]
        if kind:
            kinds[kind] += 1
        judged[row.id] = judge(row, policy_readout(choices[kind]))
    report = validate([run("a", [], set(), judged=judged)])
    assert report.constructions == ()
    assert report.distinct[0].models[0].errors == kinds
    assert report.distinct[0].models[0].forced.value == pytest.approx(0.25)
    assert report.distinct[0].chance == 0.25


def rendered() -> Validation:
    nasty = "<script>alert(1)</script>|b"
    return validate([run(nasty, TEST, some(0.7, 1)), run("b", TEST, some(0.6, 2))])


def test_markdown_tables_are_whole() -> None:
    report = rendered()
    for table in tables(report):
        lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(lines) in (0, len(table.rows) + 2)
        assert widths <= {len(table.header) + 1}, table.title
    assert report.to_markdown().startswith("# space_tracking")


def test_html_shows_names_as_text_and_loads_nothing() -> None:
    page = rendered().to_html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    for table in tables(rendered()):
        assert table.title.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;") in page


def test_json_is_one_document_of_finite_numbers() -> None:
    document = json.loads(rendered().to_json(), parse_constant=lambda name: pytest.fail(name))
    assert document["constructions"][0]["name"] == TWO_SPACES
    assert document["constructions"][0]["models"][0]["forced"]["low"] is not None
