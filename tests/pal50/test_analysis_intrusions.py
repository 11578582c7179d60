"""Planted intrusions are found, unplanted ones are not."""

import numpy as np
import pytest
from pal50.analysis.intrusions import intrusions_of
from pal50.analysis.trials import trials_of
from support.item_rows import intrusion, neighbour, perfect, session, sessions


def confused_at(rng, distances, weights, share=0.3):
    def subject(trial):
        to = trial.study_position + int(rng.choice(distances, p=weights))
        if rng.random() < share and 1 <= to <= trial.n_pairs:
            return intrusion(trial, to)
        return {"outcome": "correct"}

    return subject


def confused_anywhere(rng, share=0.3):
    def subject(trial):
        others = [place for place in trial.at if place != trial.study_position]
        return intrusion(trial, int(rng.choice(others))) if rng.random() < share else {"outcome": "correct"}

    return subject


def test_planted_neighbours_are_found():
    rng = np.random.default_rng(0)
    subject = confused_at(rng, [-3, -2, -1, 1, 2, 3], [0.05, 0.1, 0.25, 0.35, 0.15, 0.1])
    gradient = intrusions_of(trials_of(sessions(subject, 10))).gradient
    nearest = gradient.distances[0]
    assert gradient.p == pytest.approx(1 / 1001)
    assert nearest.count > nearest.high
    assert gradient.mean_distance < 2 < gradient.expected_mean_distance
    assert gradient.from_later > gradient.from_earlier


def test_sources_from_anywhere_show_no_gradient():
    p, inside, bins = [], 0, 0
    for seed in range(20):
        rows = sessions(confused_anywhere(np.random.default_rng(seed)), 4, seed=seed)
        gradient = intrusions_of(trials_of(rows), n_shuffles=300).gradient
        p.append(gradient.p)
        inside += sum(one.low <= one.count <= one.high for one in gradient.distances)
        bins += len(gradient.distances)
    assert sum(value < 0.05 for value in p) <= 4  # 1 expected; 5 or more has probability 0.003
    assert 0.3 < np.mean(p) < 0.7
    assert inside / bins > 0.9


def test_the_shuffles_expect_what_all_pairs_of_positions_give():
    """Each of 10 positions is as likely as any other: P(distance d) = 2 (10 - d) / (10 * 9)."""
    rows = sessions(confused_anywhere(np.random.default_rng(1), share=1.0), 30, n_pairs=10)
    gradient = intrusions_of(trials_of(rows)).gradient
    assert gradient.n == 300
    expected = [2 * (10 - d) / 90 for d in range(1, 6)] + [sum(2 * (10 - d) / 90 for d in range(6, 10))]
    assert [one.expected / 300 for one in gradient.distances] == pytest.approx(expected, abs=0.01)
    assert gradient.expected_mean_distance == pytest.approx(11 / 3, abs=0.05)
    assert [(one.first, one.last) for one in gradient.distances] == [(d, d) for d in range(1, 6)] + [(6, 9)]


def test_the_matrix_counts_each_probe_and_source():
    rows = session(neighbour, n_pairs=10)
    found = intrusions_of(trials_of(rows))
    assert len(found.confusions) == 10
    planted = {(row.trcode, row.intrusion_source) for row in rows}
    assert {(one.probed, one.source) for one in found.confusions} == planted
    level = {row.trcode: row.level for row in rows}
    counts = np.zeros((5, 5), dtype=int)
    for probed, source in planted:
        counts[found.levels.index(level[probed]), found.levels.index(level[source])] += 1
    assert np.array(found.by_level).tolist() == counts.tolist()


def test_frequent_confusions_come_first():
    rows = session(perfect, n_pairs=10)
    probe, source = rows[0], rows[1]
    again = probe.model_copy(update={"outcome": "list_intrusion", "correct": False, "intrusion_source": source.trcode})
    other = rows[2].model_copy(update={"correct": False, "intrusion_source": source.trcode})
    trials = trials_of([*rows[1:2], other, *(again.model_copy(update={"cycle": cycle}) for cycle in (1, 2, 3))])
    found = intrusions_of(trials)
    assert found.confusions[0].model_dump() == {"probed": probe.trcode, "source": source.trcode, "count": 3}
    assert found.confusions[1].count == 1


def test_sources_that_are_not_scored_are_counted_and_left_out():
    rows = [
        row.model_copy(update={"scored": False}) if row.study_position == 1 else row
        for row in session(neighbour, n_pairs=10)
    ]
    probe = next(row for row in rows if row.study_position == 5)
    rows[rows.index(probe)] = probe.model_copy(
        update={"intrusion_source": next(row.trcode for row in rows if not row.scored)}
    )
    found = intrusions_of(trials_of(rows))
    assert (found.n, found.elsewhere, found.gradient.n) == (9, 1, 8)


def test_no_intrusions_have_no_gradient():
    found = intrusions_of(trials_of(sessions(perfect, 2)))
    assert (found.n, found.gradient.p, found.gradient.distances) == (0, None, ())
    assert "No intrusion" in found.gradient.note


def test_intrusions_without_study_have_no_gradient():
    found = intrusions_of(trials_of(sessions(neighbour, 2, study="none")))
    assert found.n == 100
    assert found.gradient.p is None
