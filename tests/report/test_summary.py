import json
from pathlib import Path

import numpy as np
import pytest
from mindscope.report.runs import read_run
from mindscope.report.summary import NO_OUTCOME, Summary, format_text, further_metrics, summarise
from mindscope.statistics import wilson


@pytest.fixture
def summary(write_run, make_row, tmp_path: Path) -> Summary:
    """Ten rollouts of ten items: L5 right three times, wrong, and a failed score; L25 right, omission (cut),
    wrong, and a failed call; L100 wrong."""
    rows = [
        make_row("a", "L5", metrics={"recall_L5": 1.0, "lenient": 1.0}, seconds=1.0),
        make_row("b", "L5", metrics={"recall_L5": 1.0, "lenient": 1.0}, seconds=2.0),
        make_row("c", "L5", metrics={"recall_L5": 1.0, "lenient": 1.0}, seconds=3.0),
        make_row("d", "L5", outcome="wrong", metrics={"recall_L5": 0.0, "lenient": 0.0}, seconds=4.0),
        make_row("e", "L5", score_error="broke", seconds=5.0),
        make_row("f", "L25", metrics={"recall_L25": 1.0, "lenient": 1.0}, seconds=6.0),
        make_row("g", "L25", outcome="omission", metrics={"recall_L25": 0.0}, cut=True, seconds=7.0),
        make_row("h", "L25", outcome="wrong", metrics={"recall_L25": 0.0}, seconds=8.0),
        make_row("i", "L25", call_error="500", seconds=99.0),
        make_row("j", "L100", outcome="wrong", metrics={"recall_L100": 0.0}, seconds=9.0),
    ]
    return summarise(read_run(write_run(tmp_path, rows)))


def test_the_headline_is_over_scored_rollouts_only(summary: Summary) -> None:
    assert summary.reward == wilson(4, 8)
    assert (summary.recorded, summary.scored, summary.failed_calls, summary.failed_scores) == (10, 8, 1, 1)
    assert (summary.items, summary.cut_replies, summary.torn_lines) == (10, 1, 0)


def test_conditions_have_their_own_denominators(summary: Summary) -> None:
    assert [entry.condition for entry in summary.conditions] == ["L5", "L25", "L100"]
    l5, l25, l100 = summary.conditions
    assert (l5.reward, l5.failed_calls, l5.failed_scores) == (wilson(3, 4), 0, 1)
    assert (l25.reward, l25.failed_calls, l25.failed_scores) == (wilson(1, 3), 1, 0)
    assert (l100.reward, l100.failed_calls, l100.failed_scores) == (wilson(0, 1), 0, 0)


def test_every_scored_rollout_has_one_outcome(summary: Summary) -> None:
    counts = {entry.outcome: (entry.count, entry.by_condition) for entry in summary.outcomes}
    assert counts == {
        "correct": (4, {"L5": 3, "L25": 1}),
        "wrong": (3, {"L5": 1, "L25": 1, "L100": 1}),
        "omission": (1, {"L25": 1}),
    }
    assert [entry.share for entry in summary.outcomes] == [wilson(4, 8), wilson(3, 8), wilson(1, 8)]


def test_metrics_are_over_the_rollouts_that_have_them(summary: Summary) -> None:
    means = {entry.metric: entry.mean for entry in summary.metrics}
    assert means == {
        "recall": wilson(4, 8),
        "recall_L5": wilson(3, 4),
        "recall_L25": wilson(1, 3),
        "recall_L100": wilson(0, 1),
        "lenient": wilson(4, 5),
    }
    assert [entry.metric for entry in further_metrics(summary)] == ["lenient", "recall"]


def test_times_are_of_calls_that_succeeded(summary: Summary) -> None:
    timing = summary.timing
    expected = np.percentile([1, 2, 3, 4, 5, 6, 7, 8, 9], [50, 90])
    assert timing.n == 9
    assert (timing.median_s, timing.p90_s, timing.max_s) == pytest.approx((*expected, 9.0))
    assert (summary.tokens.n, summary.tokens.input, summary.tokens.output) == (9, 99, 45)


def test_both_formats_give_the_same_summary(writers, make_row, tmp_path: Path) -> None:
    rows = [
        make_row(
            f"item{i // 3}",
            f"L{i % 2}",
            outcome=("correct", "wrong", "omission")[i % 3],
            reward=i / 12,
            metrics={"depth": i * 0.5},
            cut=i == 4,
            seconds=i + 0.25,
            tokens=(100 + i, i),
        )
        for i in range(12)
    ]
    rows += [make_row("x", "L0", call_error="boom"), make_row("y", None, score_error="broke")]
    old = summarise(read_run(writers["legacy"](tmp_path / "old", rows)))
    new = summarise(read_run(writers["v1"](tmp_path / "new", rows)))
    assert old == new
    assert old.conditions[-1].condition == "(none)"
    assert "bootstrap" in old.reward.method


def test_several_rollouts_an_item_do_not_pass_for_several_items(write_run, make_row, tmp_path: Path) -> None:
    """Four items, ten agreeing rollouts each: 20 of 40 right shows what two of four would, and no more."""
    rows = [make_row(f"i{i}", outcome="correct" if i < 2 else "wrong") for i in range(4) for _ in range(10)]
    reward = summarise(read_run(write_run(tmp_path, rows))).reward
    assert (reward.value, reward.n, reward.clusters) == (0.5, 40, 4)
    assert (reward.low, reward.high) == (wilson(2, 4).low, wilson(2, 4).high)


def test_a_run_without_scored_rollouts_has_no_mean(write_run, make_row, tmp_path: Path) -> None:
    failed = summarise(read_run(write_run(tmp_path / "failed", [make_row("a", call_error="boom")])))
    empty = summarise(read_run(write_run(tmp_path / "empty", [])))
    for summary in (failed, empty):
        assert (summary.reward.value, summary.reward.low, summary.reward.n) == (None, None, 0)
        assert "undefined" in format_text(summary)
    assert (failed.recorded, failed.failed_calls, failed.timing.n) == (1, 1, 0)
    assert failed.conditions[0].failed_calls == 1


def test_a_rollout_with_no_single_outcome_is_counted_as_such(write_run, make_row, tmp_path: Path) -> None:
    rows = [make_row("a"), make_row("b", outcome=None), make_row("c", metrics={"outcome_wrong": 1.0})]
    outcomes = {e.outcome: e.count for e in summarise(read_run(write_run(tmp_path, rows))).outcomes}
    assert outcomes == {"correct": 1, "wrong": 0, "omission": 0, NO_OUTCOME: 2}


def test_outcomes_that_are_rates_are_metrics(write_run, make_row, tmp_path: Path) -> None:
    """A row that is a whole participant reports shares of outcomes, not one."""
    rates = {"outcome_correct": 0.75, "outcome_wrong": 0.25}
    rows = [make_row("p1", outcome=None, reward=0.75, metrics=rates), make_row("p2")]
    summary = summarise(read_run(write_run(tmp_path, rows)))
    assert summary.outcomes == ()
    assert {e.metric: e.mean.value for e in summary.metrics}["outcome_correct"] == pytest.approx(0.875)


def test_json_is_one_document_of_plain_numbers(summary: Summary) -> None:
    document = json.loads(summary.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert document["scored"] == 8
    assert document["reward"]["value"] == 0.5
    assert Summary.model_validate(document) == summary


def test_text_states_n_intervals_and_denominators(summary: Summary) -> None:
    text = format_text(summary)
    assert "pa_toy · org/toy · http://127.0.0.1:8000/v1" in text
    assert "10 recorded = 8 scored + 1 failed calls + 1 failed scores" in text
    rate = wilson(3, 4)
    assert ["L5", "4", "0.750", f"[{rate.low:.3f},", f"{rate.high:.3f}]", "0", "1"] in [
        line.split() for line in text.splitlines()
    ]
    table = [line for line in text.splitlines() if line.startswith(("condition", "L5", "L25", "L100"))]
    assert len({len(line) for line in table}) == 1


def test_text_cannot_be_made_to_drive_the_terminal(write_run, make_row, tmp_path: Path) -> None:
    text = format_text(summarise(read_run(write_run(tmp_path, [make_row("a", "L5\x1b[2J\nL6\u202e")]))))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "L5⟨U+001B⟩[2J L6⟨U+202E⟩" in text
