"""The audit passes the corpus and fails every corruption of it; tokens are audited with small tokenizers."""

import json
import re
from collections.abc import Callable
from itertools import combinations

import pytest
from space_tracking.audit import DISTINCT_COUNTS, TEMPLATE_COUNTS, audit, audit_tokens
from space_tracking.corpus import COLOURS, Row, load, load_distinct

ROWS = load()
DISTINCT = load_distinct()

Rows = list[Row]


def changed(row: Row, **fields) -> Row:
    """A row with other fields, not validated: what a careless edit of a file leaves behind."""
    return row.model_copy(update=fields)


def edited(rows: Rows, chosen: Callable[[Row], bool], edit: Callable[[Row], Row]) -> Rows:
    assert any(map(chosen, rows))
    return [edit(row) if chosen(row) else row for row in rows]


def renamed(row: Row, old: str, new: str) -> Row:
    """The row with one word replaced everywhere: text, maps and fields agree."""
    swapped = json.loads(re.sub(rf"\b{old}\b", new, row.model_dump_json()))
    return Row(**swapped | {key: getattr(row, key) for key in ("id", "pair_id", "construction", "template")})


def first(rows: Rows, template: str, **fields) -> Row:
    return next(
        row
        for row in rows
        if row.template == template and all(getattr(row, key) == value for key, value in fields.items())
    )


def test_the_corpus_passes():
    report = audit(ROWS)
    assert report.ok
    assert report.faults == ()
    assert report.n == 1910
    counted = {template: sum(splits.values()) for rows in report.counts.values() for template, splits in rows.items()}
    assert counted == TEMPLATE_COUNTS
    assert sum(TEMPLATE_COUNTS.values()) == 1910


def test_the_heuristics_of_the_corpus_are_at_chance_and_the_control_has_no_bound():
    report = audit(ROWS)
    names = {item.name for item in report.heuristics}
    assert names >= {
        "first mention",
        "last mention",
        "most frequent",
        "fixed colour",
        "always one space",
        "lexical overlap",
        "query only",
    }
    accuracy = {(item.name, item.construction): item.accuracy for item in report.heuristics}
    for (name, construction), value in accuracy.items():
        if construction == "single_space_control":
            assert value == (0.5 if name in ("fixed colour", "query only") else 1.0)
        elif name in ("place by query", "query only"):
            assert 0.5 <= value <= 0.52
        else:
            assert value == 0.5


def test_the_four_value_variant_passes_by_its_own_counts_only():
    report = audit(DISTINCT, expected=DISTINCT_COUNTS)
    assert report.ok
    accuracy = {item.name: item.accuracy for item in report.heuristics}
    assert accuracy["first mention"] == accuracy["fixed colour"] == accuracy["query only"] == 0.25
    assert accuracy["always one space"] == 0.5
    assert not audit(DISTINCT).ok
    assert not audit(ROWS + DISTINCT).ok


# --- Every corruption is found

BELIEF = first(ROWS, "belief-thinks", query_space="belief")
PARTNER = first(ROWS, "belief-thinks", query_space="reality", pair_id=BELIEF.pair_id)
TEST_ROW = first(ROWS, "belief-thinks", split="test")
TRAIN_ROW = first(ROWS, "belief-thinks", split="train")
ABSENT = next(colour for colour in COLOURS if colour not in BELIEF.in_play)


def is_pair(row: Row) -> bool:
    return row.pair_id == BELIEF.pair_id


def swap_answer_and_foil(rows: Rows) -> Rows:
    return edited(rows, is_pair, lambda row: changed(row, answer=row.foil, foil=row.answer))


def swap_the_spaces_of_a_pair(rows: Rows) -> Rows:
    def edit(row: Row) -> Row:
        values = row.space_value_map
        turned = {"belief": values["reality"], "reality": values["belief"]}
        return changed(row, space_value_map=turned, answer=row.foil, foil=row.answer)

    return edited(rows, is_pair, edit)


def relabel_a_pair_consistently(rows: Rows) -> Rows:
    """Maps, answers and order all turned about: only the wording can tell."""

    def edit(row: Row) -> Row:
        values = row.space_value_map
        fields = {
            "space_value_map": {"belief": values["reality"], "reality": values["belief"]},
            "mention_order": row.mention_order[::-1],
            "answer": row.foil,
            "foil": row.answer,
        }
        return Row(**row.model_dump() | fields)

    return edited(rows, is_pair, edit)


def shuffle_the_answers_of_a_construction(rows: Rows) -> Rows:
    nested = [row for row in rows if row.construction == "nested_belief"]
    answers = iter([row.answer for row in nested[1:] + nested[:1]])
    return [changed(row, answer=next(answers)) if row.construction == "nested_belief" else row for row in rows]


def repeat_a_row(rows: Rows) -> Rows:
    return [*rows, rows[500]]


def repeat_a_prompt_under_another_id(rows: Rows) -> Rows:
    """One pair takes the place of another of the same template: every count stays."""
    source = [row for row in rows if row.pair_id == "nd-photo-painting-004"]
    target = [row for row in rows if row.pair_id == "nd-photo-painting-000"]
    copies = {old.id: changed(new, id=old.id, pair_id=old.pair_id) for old, new in zip(target, source, strict=True)}
    return [copies.get(row.id, row) for row in rows]


def change_one_context(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.id == BELIEF.id,
        lambda row: changed(row, prompt=row.prompt.replace("top", "low", 1)),
    )


def change_both_contexts(rows: Rows) -> Rows:
    return edited(rows, is_pair, lambda row: changed(row, prompt=row.prompt.replace("top", "low")))


def change_one_colour_of_a_pair_everywhere(rows: Rows) -> Rows:
    return edited(rows, is_pair, lambda row: renamed(row, BELIEF.answer, ABSENT))


def change_one_colour_of_a_prompt(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.id == BELIEF.id,
        lambda row: changed(row, prompt=row.prompt.replace(row.answer, ABSENT)),
    )


def drop_a_pair(rows: Rows) -> Rows:
    return [row for row in rows if not is_pair(row)]


def drop_a_row(rows: Rows) -> Rows:
    return [row for row in rows if row.id != BELIEF.id]


def leak_a_noun(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.pair_id == TEST_ROW.pair_id,
        lambda row: renamed(row, TEST_ROW.entity, TRAIN_ROW.entity),
    )


def leak_a_name(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.pair_id == TEST_ROW.pair_id,
        lambda row: renamed(row, TEST_ROW.agents[0], TRAIN_ROW.agents[0]),
    )


def move_a_pair_to_another_split(rows: Rows) -> Rows:
    return edited(rows, lambda row: row.pair_id == TEST_ROW.pair_id, lambda row: changed(row, split="train"))


def part_a_pair_over_two_splits(rows: Rows) -> Rows:
    return edited(rows, lambda row: row.id == BELIEF.id, lambda row: changed(row, split="dev"))


def change_the_order_field(rows: Rows) -> Rows:
    return edited(rows, is_pair, lambda row: changed(row, mention_order=row.mention_order[::-1]))


def tell_reality_first_more_often(rows: Rows) -> Rows:
    """A pair told belief first is told reality first: a sound pair, but one too many of its order."""

    def edit(row: Row) -> Row:
        belief, reality = row.context.removesuffix(".").split(". ")
        told = row.last_mentioned, row.first_mentioned
        fields = row.model_dump() | {
            "prompt": f"{reality}. {belief}. {row.query}",
            "mention_order": ("reality", "belief"),
            "first_mentioned": told[0],
            "last_mentioned": told[1],
        }
        return Row(**fields)

    chosen = first(rows, "belief-thinks", mention_order=("belief", "reality"))
    return edited(rows, lambda row: row.pair_id == chosen.pair_id, edit)


def exchange_the_queries_of_a_pair(rows: Rows) -> Rows:
    prompts = {BELIEF.id: PARTNER.prompt, PARTNER.id: BELIEF.prompt}
    return edited(rows, is_pair, lambda row: changed(row, prompt=prompts[row.id]))


def ask_twice_about_the_same_space(rows: Rows) -> Rows:
    def edit(row: Row) -> Row:
        return changed(BELIEF, id=row.id, prompt=BELIEF.prompt.replace("opinion", "view"))

    return edited(rows, lambda row: row.id == PARTNER.id, edit)


def wrong_depth(rows: Rows) -> Rows:
    return edited(rows, lambda row: row.id == BELIEF.id, lambda row: changed(row, depth=2))


def trailing_space(rows: Rows) -> Rows:
    return edited(rows, lambda row: row.id == BELIEF.id, lambda row: changed(row, prompt=row.prompt + " "))


def no_copula(rows: Rows) -> Rows:
    return edited(
        rows, lambda row: row.id == BELIEF.id, lambda row: changed(row, prompt=row.prompt.removesuffix(" is"))
    )


def distractor_not_mirrored(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.pair_id == "te-photo-000",
        lambda row: changed(row, distractor_value_map=row.space_value_map),
    )


def tell_the_target_first_more_often(rows: Rows) -> Rows:
    """The two entities of a context change places in the text and nothing else."""
    chosen = next(row for row in rows if row.template == "te-photo" and row.distractor_first)
    assert chosen.distractor_entity is not None
    one, other = chosen.entity, chosen.distractor_entity

    def edit(row: Row) -> Row:
        context = row.context.replace(one, "#").replace(other, one).replace("#", other)
        turned = changed(row, prompt=f"{context} {row.query}")
        values, mirrored = row.distractor_value_map, row.space_value_map
        assert values is not None
        answer = values[row.query_space]
        fields = {
            "space_value_map": values,
            "distractor_value_map": mirrored,
            "answer": answer,
            "foil": row.answer,
        }
        return Row(**turned.model_dump() | fields)

    return edited(rows, lambda row: row.pair_id == chosen.pair_id, edit)


def repeat_a_verb_in_a_nested_query(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.template == "nb-thinks-knows" and row.query_space == "inner",
        lambda row: changed(row, prompt=row.prompt.replace("realises that", "believes that")),
    )


def the_same_verb_for_both_people(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.template == "nb-thinks-knows",
        lambda row: changed(row, prompt=row.prompt.replace(" thinks ", " knows ")),
    )


def queries_in_the_words_of_their_clause(rows: Rows) -> Rows:
    return edited(
        rows,
        lambda row: row.template == "cf-painting" and row.query_space == "alternative",
        lambda row: changed(
            row, prompt=row.prompt.replace("Inside the picture frame", "In the painting above the fireplace")
        ),
    )


def a_noun_per_context(rows: Rows) -> Rows:
    """Mirrored contexts get nouns of their own, so that a query, with its noun, gives its answer away."""
    chosen = [row for row in rows if row.template == "nd-photo-painting"]
    follower = {}
    for split in ("train", "dev", "test"):
        nouns = list(dict.fromkeys(row.entity for row in chosen if row.split == split))
        follower |= dict(zip(nouns, nouns[1:] + nouns[:1], strict=True))

    def mirrored(row: Row) -> bool:
        return row.template == "nd-photo-painting" and int(row.pair_id.rpartition("-")[2]) % 2 == 1

    return edited(rows, mirrored, lambda row: renamed(row, row.entity, follower[row.entity]))


@pytest.mark.parametrize(
    ("corrupt", "finding"),
    [
        (swap_answer_and_foil, "should have answer"),
        (swap_the_spaces_of_a_pair, "should have a context that mentions"),
        (relabel_a_pair_consistently, "wordings of the"),
        (shuffle_the_answers_of_a_construction, "should have answer"),
        (repeat_a_row, "2 rows have the same prompt"),
        (repeat_a_prompt_under_another_id, "2 rows have the same prompt"),
        (change_one_context, "not the same, byte for byte"),
        (change_both_contexts, "belief-thinks: 2 wordings of the"),
        (change_one_colour_of_a_pair_everywhere, "LEFT ITS BOUND  gold colour, belief_reality"),
        (change_one_colour_of_a_prompt, "should have first_mentioned"),
        (drop_a_pair, "belief-thinks: 148 rows, should be 150"),
        (drop_a_row, f"pair {BELIEF.pair_id}: 1 rows, should be 2"),
        (leak_a_noun, f"{TRAIN_ROW.entity!r} occurs in train and test"),
        (leak_a_name, f"{TRAIN_ROW.agents[0]!r} occurs in train and test"),
        (move_a_pair_to_another_split, f"{TEST_ROW.entity!r} occurs in train and test"),
        (part_a_pair_over_two_splits, f"pair {BELIEF.pair_id}: the rows differ in split"),
        (change_the_order_field, "should have a context that mentions"),
        (tell_reality_first_more_often, "LEFT ITS BOUND  order of mention, belief"),
        (exchange_the_queries_of_a_pair, "belief-thinks: 2 wordings of the belief query"),
        (ask_twice_about_the_same_space, "the answer of each row must be the foil of the other"),
        (wrong_depth, "should have depth 1 (of belief), not 2"),
        (trailing_space, "none at its ends"),
        (no_copula, "ends on a copula"),
        (distractor_not_mirrored, "that swaps the target's colours"),
        (tell_the_target_first_more_often, "LEFT ITS BOUND  entity told first, te-photo"),
        (repeat_a_verb_in_a_nested_query, "nb-thinks-knows: the query repeats belie"),
        (the_same_verb_for_both_people, "nb-thinks-knows: both people's clauses have knows"),
        (queries_in_the_words_of_their_clause, "LEFT ITS BOUND  lexical overlap, counterfactual"),
        (a_noun_per_context, "LEFT ITS BOUND  query only, nested_depictive"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_corruption_is_found_and_named(corrupt, finding):
    report = audit(corrupt(ROWS))
    assert not report.ok
    assert finding in "\n".join([*report.faults, report.format_text()])
    assert report.format_text().endswith("failed")
    assert report.to_json()["ok"] is False


def test_an_empty_corpus_fails_and_says_what_is_missing():
    report = audit([])
    assert not report.ok
    assert "belief-thinks: 0 rows, should be 150" in report.faults


# --- The two forms of the report


def test_the_json_form_is_json_and_agrees_with_the_object():
    report = audit(ROWS)
    document = json.loads(json.dumps(report.to_json()))
    assert document["ok"] is True
    assert document["n"] == 1910
    assert document["counts"]["two_entity_selectivity"]["te-photo"] == {"train": 48, "dev": 16, "test": 16}
    assert len(document["heuristics"]) == len(report.heuristics)
    assert all(item["ok"] for item in document["heuristics"] + document["balances"])
    assert document["tokens"] is None


def test_the_text_form_shows_counts_balance_and_every_heuristic():
    text = audit(ROWS).format_text()
    assert text.startswith("space_tracking: 1,910 rows\n")
    assert text.endswith("\npassed")
    line = next(line for line in text.splitlines() if line.startswith("  belief-thinks"))
    assert line.split()[1:] == ["90", "24", "36", "150"]
    assert "gold colour, nested_belief: blue 60  green 60  red 60  brown 60" in text
    for item in audit(ROWS).heuristics:
        assert any(line.strip().startswith(item.name) for line in text.splitlines())


# --- Tokens


class Words:
    """One id a word; `parts` gives some words several, and `joined` makes one id of some pairs of words."""

    def __init__(self, parts: dict[str, list[str]] | None = None, joined: tuple[str, ...] = ()) -> None:
        self.parts = parts or {}
        self.joined = joined
        self.vocabulary: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        for pair in self.joined:
            text = text.replace(pair, pair.replace(" ", "_"))
        pieces = [piece for word in text.split() for piece in self.parts.get(word, [word])]
        return [0, *(self.vocabulary.setdefault(piece, len(self.vocabulary) + 1) for piece in pieces)]


def test_colours_of_one_token_each_pass():
    report = audit(ROWS, tokenizer=Words())
    assert report.ok
    assert report.tokens is not None
    assert [item.colour for item in report.tokens.colours] == list(COLOURS)
    for item in report.tokens.colours:
        assert item.n == item.single == 1910
        assert list(item.first_ids.values()) == [1910]
        assert item.counter_example is None
    assert "one more id in 1910 of 1910" in report.format_text()


def test_a_colour_of_two_tokens_fails_the_audit_and_is_named():
    tokenizer = Words({"purple": ["pur", "ple"]})
    report = audit(ROWS, tokenizer=tokenizer)
    assert not report.ok
    assert report.tokens is not None
    single = {item.colour: item.single for item in report.tokens.colours}
    assert single == dict.fromkeys(COLOURS, 1910) | {"purple": 0}
    purple = report.tokens.colours[-1]
    assert purple.counter_example == ROWS[0].id
    assert purple.first_ids == {tokenizer.vocabulary["pur"]: 1910}
    assert report.tokens.collisions == ()
    assert "first-token scoring is not valid here" in report.format_text()


def test_colours_that_share_a_first_token_are_reported_with_its_id():
    tokenizer = Words({"blue": ["b", "lue"], "brown": ["b", "rown"]})
    tokens = audit_tokens(ROWS, tokenizer)
    assert not tokens.ok
    (collision,) = tokens.collisions
    assert collision.colours == ("blue", "brown")
    assert collision.token == tokenizer.vocabulary["b"]
    assert collision.n == 1910
    assert collision.both_in_play == sum({row.answer, row.foil} == {"blue", "brown"} for row in ROWS)


def test_two_colours_that_are_the_same_single_token_fail():
    tokens = audit_tokens(ROWS[:10], Words({colour: ["unknown"] for colour in ("red", "green")}))
    assert all(item.single == 10 for item in tokens.colours)
    assert [collision.colours for collision in tokens.collisions] == [("green", "red")]
    assert not tokens.ok


def test_a_token_that_swallows_the_end_of_the_prompt_is_found_in_context_only():
    """Alone every colour is one token; after "be" blue is not."""
    tokenizer = Words(joined=("be blue",))
    assert all(len(tokenizer.encode(colour)) == 2 for colour in COLOURS)
    tokens = audit_tokens(ROWS, tokenizer)
    single = {item.colour: item.single for item in tokens.colours}
    ending_on_be = sum(row.prompt.endswith(" be") for row in ROWS)
    assert ending_on_be == 130
    assert single["blue"] == 1910 - ending_on_be
    assert all(single[colour] == 1910 for colour in COLOURS[1:])
    blue = tokens.colours[0]
    assert blue.counter_example == next(row.id for row in ROWS if row.prompt.endswith(" be"))
    assert set(blue.first_ids) == {tokenizer.vocabulary["blue"], tokenizer.vocabulary["be_blue"]}


def test_a_tokenizer_that_closes_its_text_cannot_be_scored_by_first_token():
    class Closing(Words):
        def encode(self, text: str) -> list[int]:
            return [*super().encode(text), 999]

    tokens = audit_tokens(ROWS[:5], Closing())
    assert not tokens.ok
    assert all(item.single == 0 for item in tokens.colours)


def test_collisions_of_every_pair_of_colours_are_listed():
    tokens = audit_tokens(ROWS[:3], Words({colour: ["colour", colour] for colour in COLOURS}))
    assert [collision.colours for collision in tokens.collisions] == list(combinations(COLOURS, 2))
