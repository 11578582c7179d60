import math

import pytest
from mindscope.answers import Outcome
from pydantic import TypeAdapter
from space_tracking.corpus import COLOURS, Row, load, load_distinct
from space_tracking.judgement import TIED, Generated, Reading, Readout, UnscoredError, judge, judge_reply


def rows_of(construction: str) -> list[Row]:
    return [row for row in (*load(), *load_distinct()) if row.construction == construction]


def readout(values: dict[str, float], at_most: dict[str, float] | None = None) -> Readout:
    """From probabilities."""
    return Readout(
        route="endpoint",
        via="completions",
        scoring="first_token",
        logprobs={colour: math.log(p) for colour, p in values.items()},
        at_most={colour: math.log(p) for colour, p in (at_most or {}).items()},
        how=dict.fromkeys(values, "listed") | dict.fromkeys(at_most or {}, "not_listed"),
        top=" the",
    )


def spread(row: Row, **chosen: float) -> Readout:
    """Probability .01 for every colour but those named by their role in `row`."""
    values = dict.fromkeys(COLOURS, 0.01)
    return readout(values | {getattr(row, role): p for role, p in chosen.items()})


BELIEF = rows_of("belief_reality")[0]
MIRRORED = rows_of("two_entity_selectivity")[0]
DISTINCT = rows_of("two_entity_distinct")[0]


def test_forced_open_and_the_gap_between_them() -> None:
    unused = next(colour for colour in COLOURS if colour not in BELIEF.in_play)
    drifted = judge(BELIEF, readout(dict.fromkeys(COLOURS, 0.01) | {BELIEF.answer: 0.2, unused: 0.3}))
    assert (drifted.forced, drifted.open, drifted.tie) == (True, False, False)
    assert drifted.open_choice == unused
    assert drifted.metrics()["gap"] == 1.0
    right = judge(BELIEF, spread(BELIEF, answer=0.4, foil=0.2))
    assert (right.forced, right.open, right.metrics()["gap"]) == (True, True, 0.0)
    wrong = judge(BELIEF, spread(BELIEF, answer=0.2, foil=0.4))
    assert (wrong.forced, wrong.open, wrong.error) == (False, False, "space")


def test_the_probability_of_the_right_colour_is_normalised_over_those_in_play() -> None:
    assert judge(BELIEF, spread(BELIEF, answer=0.2, foil=0.3)).p_answer == pytest.approx(0.4)
    assert judge(BELIEF, spread(BELIEF, answer=1e-30, foil=1e-31)).p_answer == pytest.approx(10 / 11)
    four = dict(zip(DISTINCT.in_play, (0.1, 0.2, 0.3, 0.2), strict=True))
    expected = four[DISTINCT.answer] / 0.8
    assert judge(DISTINCT, readout(dict.fromkeys(COLOURS, 0.01) | four)).p_answer == pytest.approx(expected)


@pytest.mark.parametrize(("difference", "tied"), [(0.0, True), (9e-5, True), (1.1e-4, False)])
def test_what_batching_could_turn_round_is_a_tie_and_a_tie_is_wrong(difference: float, tied: bool) -> None:
    judged = judge(BELIEF, spread(BELIEF, answer=0.2, foil=0.2 * math.exp(-difference)))
    assert (judged.tie, judged.forced) == (tied, not tied)
    assert judged.metrics()["outcome_tie"] == float(tied)
    assert judged.metrics()["outcome_wrong"] == 0.0


def test_swaps_are_counted_of_both_choices() -> None:
    swapped = MIRRORED.distractor_value_map[MIRRORED.query_space]  # type: ignore[index]
    unused = next(colour for colour in COLOURS if colour not in MIRRORED.in_play)
    judged = judge(MIRRORED, readout(dict.fromkeys(COLOURS, 0.01) | {swapped: 0.2, unused: 0.3}))
    assert (judged.swap_forced, judged.swap_open, judged.open_choice) == (True, False, unused)
    assert judge(MIRRORED, spread(MIRRORED, answer=0.5)).swap_forced is False
    assert judge(BELIEF, spread(BELIEF, foil=0.5)).swap_forced is None
    assert "swap_forced" not in judge(BELIEF, spread(BELIEF, foil=0.5)).metrics()


def test_four_colours_tell_why_a_choice_is_wrong() -> None:
    other = next(space for space in DISTINCT.space_value_map if space != DISTINCT.query_space)
    distractor = DISTINCT.distractor_value_map
    assert distractor is not None
    for colour, error in (
        (DISTINCT.answer, None),
        (DISTINCT.space_value_map[other], "space"),
        (distractor[DISTINCT.query_space], "entity"),
        (distractor[other], "both"),
    ):
        judged = judge(DISTINCT, readout(dict.fromkeys(COLOURS, 0.01) | {colour: 0.5}))
        assert judged.error == error
        kinds = {name: value for name, value in judged.metrics().items() if name.startswith("error_")}
        assert kinds == {f"error_{kind}": float(kind == error) for kind in ("space", "entity", "both")}
    assert judge(DISTINCT, readout(dict.fromkeys(COLOURS, 0.1))).error == "tie"


def test_a_missing_colour_in_play_is_unscored_and_the_message_has_its_bound() -> None:
    listed = {colour: 0.1 for colour in COLOURS if colour != BELIEF.foil}
    for missing in (BELIEF.foil, BELIEF.answer):
        kept = {colour: 0.1 for colour in listed | {BELIEF.foil: 0} if colour != missing}
        with pytest.raises(UnscoredError, match=rf"{BELIEF.id}: .* of {missing} \(at most -4.61; not_listed\)"):
            judge(BELIEF, readout(kept, {missing: 0.01}))


def test_the_open_choice_needs_no_value_for_a_colour_that_its_bound_rules_out() -> None:
    unused = next(colour for colour in COLOURS if colour not in BELIEF.in_play)
    values = {colour: 0.01 for colour in COLOURS if colour != unused} | {BELIEF.answer: 0.2}
    assert judge(BELIEF, readout(values, {unused: 0.009})).open is True
    undecided = judge(BELIEF, readout(values, {unused: 0.21}))
    assert (undecided.forced, undecided.open, undecided.open_choice) == (True, None, None)
    assert not {"open", "gap", "mass_outside"} & set(undecided.metrics())


def test_the_prior_is_subtracted_before_the_choice() -> None:
    plain = spread(BELIEF, answer=0.2, foil=0.3)
    assert judge(BELIEF, plain).corrected is None
    assert judge(BELIEF, plain, spread(BELIEF, answer=0.1, foil=0.3)).corrected is True
    assert judge(BELIEF, plain, spread(BELIEF, answer=0.3, foil=0.1)).corrected is False
    level = judge(BELIEF, plain, spread(BELIEF, answer=0.2, foil=0.3))
    assert (level.corrected_choice, level.corrected) == (TIED, False)


def test_mass_outside_is_what_the_six_leave() -> None:
    assert readout(dict.fromkeys(COLOURS, 0.1)).mass_outside == pytest.approx(0.4)
    assert readout({"blue": 0.1}, {"red": 0.01}).mass_outside is None


def test_a_readout_survives_json() -> None:
    adapter: TypeAdapter[Reading] = TypeAdapter(Reading)
    for reading in (spread(BELIEF, answer=0.5), Generated(reply=None)):
        assert adapter.validate_json(adapter.dump_json(reading)) == reading


GOLD = "<colour>{}</colour>"


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (GOLD.format("{answer}"), Outcome.CORRECT),
        (
            GOLD.format(" {answer}. ").upper().replace("COLOUR", "colour").replace("{ANSWER}", "{answer}"),
            Outcome.CORRECT,
        ),
        ("<think>{foil}?</think>" + GOLD.format("{answer}"), Outcome.CORRECT),
        (GOLD.format("{foil}"), Outcome.WRONG),
        (GOLD.format("pink"), Outcome.WRONG),
        (GOLD.format("{answer} or {foil}"), Outcome.FORMAT),
        (GOLD.format("blue, green, red, brown, yellow, purple"), Outcome.FORMAT),
        (GOLD.format("the {answer} one"), Outcome.WRONG),
        (GOLD.format("{answer}") + GOLD.format("{foil}"), Outcome.FORMAT),
        (GOLD.format("{answer}") * 2, Outcome.FORMAT),
        ("{answer}", Outcome.FORMAT),
        ("<color>{answer}</color>", Outcome.FORMAT),
        ("<think>" + GOLD.format("{answer}"), Outcome.TRUNCATED),
        (GOLD.format(""), Outcome.OMISSION),
        (GOLD.format("I don't know"), Outcome.OMISSION),
        ("I can't help with that.", Outcome.REFUSAL),
        ("", Outcome.OMISSION),
        (None, Outcome.OMISSION),
    ],
)
def test_only_the_right_colour_alone_in_its_tag_is_right(reply: str | None, outcome: Outcome) -> None:
    text = None if reply is None else reply.format(answer=BELIEF.answer, foil=BELIEF.foil)
    found = judge_reply(BELIEF, Generated(reply=text))
    assert found["generated"] == float(outcome is Outcome.CORRECT)
    assert [name for name, value in found.items() if name.startswith("outcome_") and value] == [f"outcome_{outcome}"]


def test_a_reply_with_the_distractors_colour_is_a_swap() -> None:
    swapped = MIRRORED.distractor_value_map[MIRRORED.query_space]  # type: ignore[index]
    assert judge_reply(MIRRORED, Generated(reply=GOLD.format(swapped)))["swap_generated"] == 1.0
    assert judge_reply(MIRRORED, Generated(reply=GOLD.format(MIRRORED.answer)))["swap_generated"] == 0.0
