import math
import random
from collections import Counter

import pytest
from mindscope.errors import MindscopeError
from space_tracking.corpus import COLOURS, load, load_distinct
from space_tracking.judgement import Generated, Readout, UnscoredError, judge
from space_tracking.paradigm import (
    NEUTRAL,
    Settings,
    Trial,
    generate_prompt,
    neutral_prompt,
    policy_readout,
    readout_of,
    score,
    trials,
)


def trial(**arguments: object) -> Trial:
    return trials(Settings.parse(arguments))[10]


def random_readout(seed: int) -> Readout:
    rng = random.Random(seed)
    return policy_readout(None).model_copy(update={"logprobs": {c: math.log(rng.uniform(0.01, 0.15)) for c in COLOURS}})


@pytest.mark.parametrize(
    ("arguments", "n"),
    [
        ({}, 1910),
        ({"unit": "pair"}, 955),
        ({"part": "train"}, 1146),
        ({"part": "test", "scheme": "template"}, 124),
        ({"te_variant": "distinct"}, 240),
        ({"te_variant": "distinct", "part": "train", "unit": "pair"}, 72),
    ],
)
def test_the_rows_are_those_asked_for_each_once(arguments: dict[str, object], n: int) -> None:
    found = trials(Settings.parse(arguments))
    assert len(found) == n
    assert len({one.trcode for one in found}) == n
    assert [one.index for one in found] == list(range(n))
    assert trials(Settings.parse(arguments)) == found


def test_the_first_rows_hold_one_pair_of_every_template() -> None:
    first = trials(Settings())[:40]
    assert Counter(one.rows[0].template for one in first) == dict.fromkeys({row.template for row in load()}, 2)
    assert all(a.rows[0].pair_id == b.rows[0].pair_id for a, b in zip(first[::2], first[1::2], strict=True))


def test_nothing_but_the_prompts_is_shown() -> None:
    for one in trials(Settings(prior=True, part="test")):
        (row,) = one.rows
        assert one.prompts[0] == row.prompt
        if len(row.space_value_map) == 1:
            assert len(one.prompts) == 1
        else:
            assert not set(COLOURS) & set(one.prompts[1].replace(".", " ").replace(",", " ").replace(";", " ").split())


def test_the_prior_has_the_same_words_but_for_the_colours() -> None:
    row = next(row for row in load() if row.construction == "two_entity_selectivity")
    neutral = neutral_prompt(row)
    assert neutral is not None
    assert neutral.count(NEUTRAL) == len(row.mentions) == 4
    assert neutral.endswith(row.query)
    partner = next(other for other in load() if other.pair_id == row.pair_id and other.id != row.id)
    assert neutral.removesuffix(row.query) == (neutral_prompt(partner) or "").removesuffix(partner.query)


def test_the_question_for_a_chat_model_offers_the_same_colours_whatever_is_in_play() -> None:
    rows = load("test")
    tails = {generate_prompt(row.prompt).removeprefix(row.prompt) for row in rows}
    assert len(tails) == 1
    assert all(colour in next(iter(tails)) for colour in COLOURS)


@pytest.mark.parametrize("arguments", [{}, {"prior": True}, {"reward": "logprob"}, {"unit": "pair", "prior": True}])
def test_gold_is_rewarded_and_no_preference_is_not(arguments: dict[str, object]) -> None:
    for one in trials(Settings.parse({"part": "test", **arguments})):
        priors = [policy_readout(None)] * (len(one.prompts) - len(one.rows))
        gold = score(one, [*(policy_readout(row.answer) for row in one.rows), *priors])
        foil = score(one, [*(policy_readout(row.foil) for row in one.rows), *priors])
        nothing = score(one, [policy_readout(None)] * len(one.prompts))
        if one.reward == "forced":
            assert (gold.reward, foil.reward, nothing.reward) == (1.0, 0.0, 0.0)
        else:
            assert gold.reward == pytest.approx(5 / 6)
            assert foil.reward == pytest.approx(1 / 6)
            assert nothing.reward == pytest.approx(1 / 2)


def test_a_pair_is_worth_its_worse_row() -> None:
    pair = trial(unit="pair")
    right, wrong = policy_readout(pair.rows[0].answer), policy_readout(pair.rows[1].foil)
    one_sided = score(pair, [right, wrong])
    assert one_sided.reward == 0.0
    assert {name: one_sided.measured[name] for name in ("forced", "pair_consistent", "pair_contrast")} == {
        "forced": 0.5, "pair_consistent": 0.0, "pair_contrast": 0.0,
    }  # fmt: skip
    both = score(pair, [policy_readout(row.answer) for row in pair.rows])
    assert (both.reward, both.measured["pair_consistent"], both.measured["pair_contrast"]) == (1.0, 1.0, 1.0)
    dense = score(trial(unit="pair", reward="logprob"), [right, wrong])
    assert dense.reward == pytest.approx(1 / 6)


def test_position_and_colour_preferences_earn_nothing_by_pairs_and_half_by_rows() -> None:
    for choose in (lambda row: row.first_mentioned, lambda row: row.last_mentioned, lambda row: "blue"):
        for unit, expected in (("row", 0.5), ("pair", 0.0)):
            rewards = [
                score(one, [policy_readout(choose(row)) for row in one.rows]).reward
                for one in trials(Settings(unit=unit))
                if one.condition == "nested_depictive" and all(choose(row) in row.in_play for row in one.rows)
            ]
            assert sum(rewards) / len(rewards) == expected


def test_metrics_hold_the_readout_of_a_row_and_its_prior() -> None:
    one = trial(prior=True)
    given, prior = random_readout(1), random_readout(2)
    measured = score(one, [given, prior]).metrics()
    for original, prefix in ((given, "logprob_"), (prior, "prior_")):
        again = readout_of(measured, prefix)
        assert again is not None
        assert (again.logprobs, again.at_most) == (original.logprobs, {})
    assert judge(one.rows[0], given, prior).metrics().items() <= measured.items()
    assert measured["route_whitebox"] == 1.0
    assert all(math.isfinite(value) for value in measured.values())
    assert readout_of({"generated": 1.0}) is None


def test_bounds_travel_with_the_metrics() -> None:
    one = trial()
    unused = next(colour for colour in COLOURS if colour not in one.rows[0].in_play)
    full = random_readout(3)
    given = full.model_copy(
        update={"logprobs": {c: v for c, v in full.logprobs.items() if c != unused}, "at_most": {unused: -9.5}}
    )
    again = readout_of(score(one, [given]).metrics())
    assert again is not None
    assert (again.logprobs, again.at_most) == (given.logprobs, {unused: -9.5})


@pytest.mark.parametrize(
    ("arguments", "readings"),
    [
        ({}, []),
        ({"prior": True}, [policy_readout(None)]),
        ({"unit": "pair"}, [policy_readout(None)]),
        ({"reward": "logprob"}, [Generated(reply="<colour>blue</colour>")]),
        ({"unit": "pair"}, [policy_readout(None), Generated(reply="")]),
    ],
)
def test_readings_that_are_missing_or_of_the_wrong_kind_are_unscored(
    arguments: dict[str, object], readings: list[Readout | Generated]
) -> None:
    with pytest.raises(UnscoredError):
        score(trial(**arguments), readings)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"part": "valid", "rout": "x"}, ["2 faults", "part", "rout"]),
        ({"reward": "accuracy"}, ["reward", "forced"]),
        ({"route": "generate", "reward": "logprob"}, ["route='generate'"]),
        ({"route": "generate", "prior": True}, ["route='generate'"]),
        ({"multi_token": "sequence"}, ["route='whitebox'"]),
    ],
)
def test_wrong_arguments_are_named_with_what_is_allowed(arguments: dict[str, object], words: list[str]) -> None:
    with pytest.raises(MindscopeError) as caught:
        Settings.parse(arguments)
    assert all(word in str(caught.value) for word in words), caught.value


def test_distinct_rows_choose_between_four() -> None:
    one = trials(Settings(te_variant="distinct"))[0]
    assert len(one.rows[0].in_play) == 4
    assert one.rows[0] in load_distinct()
    assert score(one, [policy_readout(one.rows[0].foil)]).measured["error_space"] == 1.0
