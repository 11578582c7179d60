"""What is studied and asked in which order. Positions and lags are counted here by walking through the steps."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from mindscope.errors import MindscopeError
from pal50.design import Design, Pair, StudyStep, SumStep, TestStep, designs
from pal50.paradigm import Settings
from support.oracle import oracle

LEVELS = ["L0", "L25", "L50", "L75", "L100"]


def build(**arguments: object) -> list[Design]:
    return designs(Settings.parse(arguments))


def events(design: Design) -> list[tuple[str, int, Pair]]:
    """Every pair shown or asked for, in order: kind, cycle, pair."""
    found = []
    for step in design.steps:
        if isinstance(step, StudyStep):
            found += [("study", step.cycle, design.pairs[place]) for place in step.pairs]
        elif isinstance(step, TestStep):
            found.append(("test", step.cycle, design.pairs[step.pair]))
    return found


def studied(design: Design, cycle: int = 1, name: str | None = None) -> list[Pair]:
    return [pair for kind, n, pair in events(design) if kind == "study" and n == cycle and name in (None, pair.list)]


def asked(design: Design, cycle: int = 1) -> list[Pair]:
    return [pair for kind, n, pair in events(design) if kind == "test" and n == cycle]


def lags(design: Design) -> list[tuple[int, Pair, int]]:
    """Cycle, pair and lag of every scored trial: how many events after its last study it is asked for."""
    last: dict[str, int] = {}
    found = []
    for place, (kind, cycle, pair) in enumerate(events(design)):
        if kind == "study":
            last[pair.list + pair.trcode] = place
        elif pair.scored:
            found.append((cycle, pair, place - last[pair.list + pair.trcode]))
    return found


def words(pairs: list[Pair]) -> set[tuple[str, str]]:
    return {(pair.first, pair.second) for pair in pairs}


@pytest.mark.parametrize("n_pairs", [10, 45, 50, 55, 500])
def test_each_level_has_the_same_number_of_pairs_and_every_pair_is_studied_and_tested_once(n_pairs: int) -> None:
    (design,) = build(n_pairs=n_pairs, participants=1)
    assert Counter(pair.level for pair in studied(design)) == dict.fromkeys(LEVELS, n_pairs // 5)
    assert len(studied(design)) == len(asked(design)) == n_pairs
    assert words(studied(design)) == words(asked(design))
    assert len({word for pair in studied(design) for word in (pair.first, pair.second)}) == 2 * n_pairs


def test_participants_share_the_list_and_differ_in_both_orders() -> None:
    sessions = build(participants=20)
    assert all(words(studied(design)) == words(studied(sessions[0])) for design in sessions)
    for order in (studied, asked):
        assert len({tuple(pair.trcode for pair in order(design)) for design in sessions}) == 20
    assert all([p.trcode for p in studied(design)] != [p.trcode for p in asked(design)] for design in sessions)


def test_a_seed_draws_another_list_and_other_orders() -> None:
    one, other = (build(n_pairs=20, participants=1, seed=seed)[0] for seed in (0, 1))
    assert words(studied(one)) != words(studied(other))


def test_participant_i_depends_on_the_settings_and_i_alone() -> None:
    many, few = build(participants=7, n_pairs=20), build(participants=4, n_pairs=20)
    assert [design.steps for design in many[:4]] == [design.steps for design in few]
    assert [design.pairs for design in many[:4]] == [design.pairs for design in few]


def test_over_five_participants_every_pair_stands_once_in_every_fifth_of_the_list() -> None:
    fifths: dict[str, set[int]] = defaultdict(set)
    for design in build(participants=5):
        for place, pair in enumerate(studied(design)):
            fifths[pair.trcode].add(place // 10)
    assert len(fifths) == 50
    assert all(seen == {0, 1, 2, 3, 4} for seen in fifths.values())


def test_similarity_and_list_position_are_not_confounded() -> None:
    for design in build(participants=10):
        for start in range(0, 50, 10):
            levels = Counter(pair.level for pair in studied(design)[start : start + 10])
            assert levels == dict.fromkeys(LEVELS, 2)


@pytest.mark.parametrize("n_pairs", [10, 15, 50, 100])
def test_one_list_has_exactly_the_same_mean_lag_at_every_level(n_pairs: int) -> None:
    for design in build(n_pairs=n_pairs, participants=8):
        sums: dict[str, int] = defaultdict(int)
        for _, pair, lag in lags(design):
            sums[pair.level] += lag
        assert set(sums.values()) == {n_pairs * n_pairs // 5}


@pytest.mark.parametrize(("lists", "n_pairs"), [("AB-AC", 15), ("AB-CD", 20), ("AB-ABr", 15)])
def test_two_lists_have_mean_lags_as_equal_as_whole_numbers_can_be(lists: str, n_pairs: int) -> None:
    for design in build(lists=lists, n_pairs=n_pairs, participants=6, cycles=2, buffers=2):
        sums: dict[tuple[int, str, str], int] = defaultdict(int)
        for cycle, pair, lag in lags(design):
            sums[cycle, pair.list, pair.level] += lag
        for cycle in (1, 2):
            for name in lists.split("-"):
                of_levels = [total for key, total in sums.items() if key[:2] == (cycle, name)]
                assert len(of_levels) == 5
                assert max(of_levels) - min(of_levels) <= (0 if n_pairs == 20 else 1)


def test_two_lists_are_tested_equally_early() -> None:
    for design in build(lists="AB-CD", n_pairs=20, participants=6):
        places: dict[str, int] = defaultdict(int)
        for place, pair in enumerate(asked(design)):
            places[pair.list] += place
        assert places["AB"] == places["CD"]


@pytest.mark.parametrize("min_lag", [None, 1, 12, 25])
def test_no_lag_is_below_the_minimum(min_lag: int | None) -> None:
    shortest = min(lag for design in build(participants=40, min_lag=min_lag) for _, _, lag in lags(design))
    assert shortest >= (min_lag or 5)
    assert shortest < (min_lag or 5) + 8


def test_lags_spread_although_their_means_are_equal() -> None:
    spread = {lag for design in build(participants=5) for _, _, lag in lags(design)}
    assert min(spread) < 20
    assert max(spread) > 80


def test_card_order_is_the_order_of_the_file_with_one_lag_throughout() -> None:
    (design,) = build(order="card", participants=1)
    assert [pair.level for pair in studied(design)] == [level for level in LEVELS for _ in range(10)]
    assert studied(design) == asked(design)
    assert {lag for _, _, lag in lags(design)} == {50}


def test_the_reference_card_keeps_its_turns() -> None:
    (design,) = build(task_card=str(oracle("psychscanner/pal50.json")), order="card", participants=1)
    assert [pair.first for pair in studied(design)][:3] == ["cat", "moon", "tree"]
    assert [pair.trcode for pair in asked(design)][::10] == [f"{level}_tst_01" for level in LEVELS]
    assert {lag for _, _, lag in lags(design)} == {50}


def test_a_shuffled_card_has_its_lags_balanced_too() -> None:
    for design in build(task_card=str(oracle("psychscanner/pal50.json")), participants=5):
        sums: dict[str, int] = defaultdict(int)
        for _, pair, lag in lags(design):
            sums[pair.level] += lag
        assert set(sums.values()) == {500}


def test_a_re_paired_list_has_the_same_words_and_no_original_pair() -> None:
    (plain,) = build(participants=1)
    sessions = build(study="repaired", participants=4)
    for design in sessions:
        original, now = studied(plain), studied(design)
        assert {pair.first for pair in now} == {pair.first for pair in original}
        assert {pair.second for pair in now} == {pair.second for pair in original}
        assert not words(now) & words(original)
        assert words(asked(design)) == words(now)
        level_of = {pair.first: pair.level for pair in original} | {pair.second: pair.level for pair in original}
        assert all(pair.level == level_of[pair.first] == level_of[pair.second] for pair in now)
        assert all("+" in pair.trcode for pair in now)
    assert len({frozenset(words(studied(design))) for design in sessions}) == 4


def test_second_lists() -> None:
    for lists in ("AB-AC", "AB-CD", "AB-ABr"):
        (design,) = build(lists=lists, n_pairs=50, participants=1)
        first, second = (studied(design, name=name) for name in lists.split("-"))
        assert [pair.list for pair in studied(design)] == ["AB"] * 50 + [lists[3:]] * 50
        assert Counter(pair.level for pair in second) == dict.fromkeys(LEVELS, 10)
        a, b = {pair.first for pair in first}, {pair.second for pair in first}
        other_a, other_b = {pair.first for pair in second}, {pair.second for pair in second}
        assert (a == other_a) == (lists != "AB-CD")
        assert (b == other_b) == (lists == "AB-ABr")
        if lists == "AB-ABr":
            assert not words(first) & words(second)
        else:
            assert not (a | b) & other_b
        assert Counter(pair.list for pair in asked(design)) == {"AB": 50, lists[3:]: 50}
        kinds = "".join(pair.list[-1] for pair in asked(design))
        assert kinds not in ("B" * 50 + kinds[-1] * 50, kinds[0] * 50 + "B" * 50)


def test_an_updated_cue_is_paired_each_time_with_another_word_and_the_last_is_asked_for() -> None:
    (design,) = build(updates=4, n_pairs=20, participants=1)
    rounds = [studied(design)[start : start + 20] for start in range(0, 80, 20)]
    cues = {pair.first for pair in rounds[0]}
    assert all({pair.first for pair in shown} == cues for shown in rounds)
    assert len({pair.second for pair in studied(design)}) == 80
    assert words(asked(design)) == words(rounds[-1])
    assert len(asked(design)) == 20
    assert {pair.trcode for pair in rounds[-1]} == {pair.trcode for pair in build(n_pairs=20)[0].pairs}


def test_backward_shows_the_second_word() -> None:
    (design,) = build(direction="backward", participants=1)
    assert all((pair.cue, pair.target) == (pair.second, pair.first) for pair in asked(design))


def test_both_directions_alternate_between_participants() -> None:
    one, other = build(direction="both", participants=2)
    backward = [{pair.trcode for pair in asked(design) if pair.direction == "backward"} for design in (one, other)]
    assert [len(codes) for codes in backward] == [25, 25]
    assert not backward[0] & backward[1]
    assert Counter(pair.level for pair in asked(one) if pair.direction == "backward") == dict.fromkeys(LEVELS, 5)


def test_buffers_surround_the_list_come_first_in_the_test_and_are_unscored() -> None:
    for design in build(buffers=3, participants=3):
        shown, tests = studied(design), asked(design)
        assert [pair.scored for pair in shown] == [False] * 3 + [True] * 50 + [False] * 3
        assert {pair.trcode for pair in tests[:6]} == {pair.trcode for pair in shown if not pair.scored}
        assert len({word for pair in shown for word in (pair.first, pair.second)}) == 112


def test_blocks_and_sums() -> None:
    (design,) = build(n_pairs=20, study_block=8, distractor_turns=3, cycles=2, participants=1)
    shape = [(step.kind, len(step.pairs) if isinstance(step, StudyStep) else 1) for step in design.steps]
    cycle = [("study", 8), ("study", 8), ("study", 4), *[("sum", 1)] * 3, *[("test", 1)] * 20]
    assert shape == cycle * 2
    sums = [step.addends for step in design.steps if isinstance(step, SumStep)]
    assert len(set(sums)) > 1
    assert all(10 <= addend <= 99 for pair in sums for addend in pair)


def test_cycles_have_new_orders_of_the_same_pairs() -> None:
    (design,) = build(cycles=3, participants=1)
    orders = [[pair.trcode for pair in studied(design, cycle)] for cycle in (1, 2, 3)]
    assert len({tuple(order) for order in orders}) == 3
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}


def test_without_study_there_are_only_tests() -> None:
    (design,) = build(study="none", participants=1)
    assert {step.kind for step in design.steps} == {"test"}
    assert len(asked(design)) == 50


def test_norms_are_read_for_the_cues_of_the_session_alone(tmp_path: Path) -> None:
    (plain,) = build(n_pairs=10, participants=1)
    cue = plain.pairs[0].first
    path = tmp_path / "norms.jsonl"
    path.write_text(f'{{"cue": "{cue.upper()}", "associate": "thing"}}\n{{"cue": "elsewhere", "associate": "no"}}\n')
    (design,) = build(n_pairs=10, participants=1, norms=str(path))
    assert design.associates == {cue: ("thing",)}


def test_norms_that_cannot_be_read_are_refused_with_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "norms.jsonl"
    path.write_text('{"cue": "a"}\n{"associate": 3, "cue": "b"}\n')
    with pytest.raises(MindscopeError, match="2 faults"):
        build(norms=str(path))
