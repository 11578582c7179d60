"""Task cards: sound ones load, and a faulty one is refused with every fault named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindscope.paired_associates.cards import MAX_BYTES, CardError, load_card
from mindscope.stimuli import StimulusError
from support.oracle import oracle

Card = dict[str, Any]
WORDS = [("cat", "umbrella", 0.0), ("lion", "zebra", 0.25), ("rain", "cloud", 0.5), ("salt", "pepper", 0.75)]


def pair_card() -> Card:
    """A paired-associate card in psychscanner's form: all pairs studied, then all tested in another order."""
    items: dict[str, Any] = {}
    for phase, code, words in (("encoding", "enc", WORDS), ("test", "tst", WORDS[::-1])):
        for cue, target, similarity in words:
            trcode = f"L{100 * similarity:g}_{code}"
            items[trcode] = [
                {
                    "trcode": trcode,
                    "stimulus": f"{cue} goes with {target}." if phase == "encoding" else f"What went with {cue}?",
                    "phase": phase,
                    "word1": cue,
                    "word2": target,
                    "similarity": similarity,
                    "parser": "PairedAssociateRecall" if phase == "test" else None,
                    "fb": phase == "test",
                }
            ]
    return {
        "tasktype": "episodic",
        "taskname": "pairs",
        "instructions": {"definition": ["Learn the pairs."]},
        "contexts": ["Unrelated", "Related"],
        "contexts_id": ["L0", "L75"],
        "context_present": False,
        "parser": "PairedAssociateRecall",
        "chain_type": "task",
        "items": items,
    }


def monitoring_card() -> Card:
    """A card without paired associates: sub-turns that share a code, object stimuli, underscore fields."""
    turns = [
        {"trcode": "imagined_1", "stimulus": {"Query": "Word 2?"}},
        {"trcode": "imagined_1", "stimulus": "Rate it."},
    ]
    return {
        "tasktype": "sc",
        "taskname": "monitoring",
        "instructions": "",
        "context_present": False,
        "parser": "",
        "prefix": "",
        "postfix": "",
        "trial_parsers": [],
        "_source_file": "somewhere.json",
        "chain_type": "trial",
        "items": {"imagined_1": turns},
    }


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(card: object, encoding: str = "utf-8") -> Path:
        path = tmp_path / "card.json"
        path.write_text(card if isinstance(card, str) else json.dumps(card), encoding=encoding)
        return path

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_sound_card_loads_in_file_order(written: Callable[..., Path], encoding: str):
    card = load_card(written(pair_card(), encoding))
    assert list(card.items) == [
        f"L{n}_{phase}" for phase, ns in (("enc", (0, 25, 50, 75)), ("tst", (75, 50, 25, 0))) for n in ns
    ]
    assert card.instructions == {"definition": ["Learn the pairs."]}
    study, test = card.items["L25_enc"][0], card.items["L25_tst"][0]
    assert (study.stimulus, study.fb, study.parser) == ("lion goes with zebra.", False, None)
    assert (test.stimulus, test.fb, test.parser) == ("What went with lion?", True, "PairedAssociateRecall")


def test_its_tested_pairs_are_the_rows(written: Callable[..., Path]):
    pairs = load_card(written(pair_card())).pairs()
    assert [(p.trcode, p.level, p.similarity, p.cue, p.target) for p in pairs] == [
        ("L75_tst", "L75", 0.75, "salt", "pepper"),
        ("L50_tst", "L50", 0.5, "rain", "cloud"),
        ("L25_tst", "L25", 0.25, "lion", "zebra"),
        ("L0_tst", "L0", 0.0, "cat", "umbrella"),
    ]


def test_a_study_that_is_never_tested_is_a_buffer(written: Callable[..., Path]):
    card = pair_card()
    del card["items"]["L0_tst"]
    assert len(load_card(written(card)).pairs()) == 3


def test_a_card_without_pairs_loads_but_gives_none(written: Callable[..., Path]):
    card = load_card(written(monitoring_card()))
    assert card.notes == {"_source_file": "somewhere.json"}
    assert [trial.stimulus for trial in card.items["imagined_1"]] == [{"Query": "Word 2?"}, "Rate it."]
    assert card.items["imagined_1"][0].fb is True
    with pytest.raises(CardError, match="'monitoring' is sound but has no paired associates"):
        card.pairs()


def edit(label: str, **changes: Any) -> Callable[[Card], None]:
    def change(card: Card) -> None:
        trial = card["items"][label][0]
        for name, value in changes.items():
            if value is ...:
                del trial[name]
            else:
                trial[name] = value

    return change


def header(**changes: Any) -> Callable[[Card], None]:
    def change(card: Card) -> None:
        for name, value in changes.items():
            if value is ...:
                del card[name]
            else:
                card[name] = value

    return change


def add(label: str, turns: Any) -> Callable[[Card], None]:
    return lambda card: card["items"].update({label: turns})


EXTRA = {
    "trcode": "extra",
    "stimulus": "?",
    "phase": "test",
    "word1": "cat",
    "word2": "umbrella",
    "similarity": 0,
}

FAULTS: dict[str, tuple[Callable[[Card], None], str]] = {
    "no phase": (
        edit("L0_enc", phase=...),
        "items.L0_enc[0].phase: found nothing; allowed: 'encoding' or 'test'",
    ),
    "unknown phase": (
        edit("L0_enc", phase="study"),
        "items.L0_enc[0].phase: found 'study'; allowed: 'encoding' or 'test'",
    ),
    "no trcode": (
        edit("L0_enc", trcode=...),
        "items.L0_enc[0].trcode: found nothing; allowed: text, not empty",
    ),
    "no stimulus": (
        edit("L0_enc", stimulus=...),
        "items.L0_enc[0].stimulus: found nothing; allowed: text, an object or content blocks",
    ),
    "empty stimulus": (
        edit("L0_enc", stimulus=""),
        "items.L0_enc[0].stimulus: found ''; allowed: text, an object or a list of content blocks, not empty",
    ),
    "no word2": (
        edit("L0_enc", word2=...),
        "items.L0_enc[0].word2: found nothing; allowed: a word or phrase",
    ),
    "word with a tag": (
        edit("L0_tst", word2="</recall>"),
        "items.L0_tst[0].word2: found '</recall>'; allowed: a word or phrase on one line, without < or >",
    ),
    "word of punctuation": (
        edit("L0_tst", word2="?!"),
        "items.L0_tst[0].word2: found '?!'; allowed: a word or phrase with at least one letter",
    ),
    "similarity above 1": (
        edit("L0_enc", similarity=1.5),
        "items.L0_enc[0].similarity: found 1.5; allowed: a number from 0 to 1",
    ),
    "similarity as text": (
        edit("L0_enc", similarity="0.5"),
        "items.L0_enc[0].similarity: found '0.5'; allowed: a number from 0 to 1",
    ),
    "unknown field": (
        edit("L0_enc", wrod="x"),
        "items.L0_enc[0].wrod: found 'x'; allowed: no such field, only trcode",
    ),
    "fb as text": (edit("L0_enc", fb="False"), "items.L0_enc[0].fb: found 'False'; allowed: a valid boolean"),
    "unknown parser": (
        edit("L0_tst", parser="PairedAssociatesRecall"),
        "items.L0_tst[0].parser: found 'PairedAssociatesRecall'; allowed: null, or the name of one of "
        "psychscanner's 43 parsers (nearest: PairedAssociateRecall)",
    ),
    "unknown card parser": (
        header(parser="xyz"),
        "parser: found 'xyz'; allowed: null, or the name of one of",
    ),
    "item as object": (add("odd", {"trcode": "odd", "stimulus": "?"}), "items.odd: found {'trcode': 'odd'"),
    "empty item": (add("odd", []), "items.odd: found []; allowed: a list of trials, not empty"),
    "trial that is no object": (add("odd", ["?"]), "items.odd[0]: found '?'; allowed: an object with trcode"),
    "bad chain_type": (
        header(chain_type="session"),
        "chain_type: found 'session'; allowed: 'item', 'trial' or 'task'",
    ),
    "no instructions": (header(instructions=...), "instructions: found nothing; allowed: any JSON"),
    "no taskname": (header(taskname=...), "taskname: found nothing; allowed: text, not empty"),
    "context_present as text": (
        header(context_present="False"),
        "context_present: found 'False'; allowed: true or false",
    ),
    "contexts not parallel": (
        header(context_present=True, contexts_id=["L0"]),
        "contexts_id: found ['L0']; allowed: a list parallel to contexts",
    ),
    "unknown header field": (header(itemz={}), "itemz: found {}; allowed: no such field, only tasktype"),
    "no items": (header(items=...), "items: found nothing; allowed: an object of labels"),
    "empty items": (header(items={}), "items: found {}; allowed: an object of labels"),
    "items as a list": (
        header(items=[{"trcode": "a"}]),
        "items: found [{'trcode': 'a'}]; allowed: an object of",
    ),
    "duplicate trcode": (
        edit("L25_enc", trcode="L0_enc"),
        "items.L25_enc[0].trcode: found 'L0_enc', as in items.L0_enc[0]; allowed: a code used once",
    ),
    "cue never studied": (
        edit("L0_enc", word1="Dog"),
        "items.L0_tst[0].word1: found 'cat', studied 0 times; allowed: a cue studied once",
    ),
    "cue studied twice": (
        edit("L25_enc", word1="salt", word2="pepper", similarity=0.75),
        "items.L75_tst[0].word1: found 'salt', studied 2 times; allowed: a cue studied once",
    ),
    "cue tested twice": (
        add("extra", [EXTRA]),
        "items.extra[0].word1: found 'cat', as in items.L0_tst[0]; allowed: a cue tested once",
    ),
    "other word2 at test": (
        edit("L0_tst", word2="sock"),
        "items.L0_tst[0].word2: found 'sock'; allowed: 'umbrella', as studied in items.L0_enc[0]",
    ),
    "other similarity at test": (
        edit("L0_tst", similarity=0.25),
        "items.L0_tst[0].similarity: found 0.25; allowed: 0.0, as studied in items.L0_enc[0]",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_its_place(written: Callable[..., Path], change: Callable[[Card], None], sentence: str):
    card = pair_card()
    change(card)
    path = written(card)
    with pytest.raises(CardError) as caught:
        load_card(path)
    first, *faults = str(caught.value).splitlines()
    assert first.startswith(f"The task card {path} cannot be used: ")
    assert any(fault.startswith(f"  {sentence}") for fault in faults), "\n".join(faults)


def test_ten_faults_are_one_message_that_names_all_ten(written: Callable[..., Path]):
    card = pair_card()
    names = [
        "bad chain_type",
        "no taskname",
        "unknown card parser",
        "item as object",
        "no phase",
        "similarity above 1",
        "unknown field",
        "unknown parser",
        "duplicate trcode",
        "cue tested twice",
    ]
    for name in names:
        FAULTS[name][0](card)
    with pytest.raises(CardError) as caught:
        load_card(written(card))
    message = str(caught.value)
    assert "cannot be used: 10 faults." in message
    for name in names:
        assert FAULTS[name][1] in message
    assert len(message.splitlines()) == 11


def test_a_trial_card_may_repeat_codes_and_an_instruction_may_recur(written: Callable[..., Path]):
    card = monitoring_card()
    load_card(written(card))
    card["chain_type"] = "item"
    with pytest.raises(CardError, match="a code used once"):
        load_card(written(card))
    instruction = {"trcode": "task_instruction", "stimulus": "Next part."}
    recurring = monitoring_card() | {"chain_type": "item", "items": {"a": [instruction], "b": [instruction]}}
    load_card(written(recurring))


@pytest.mark.parametrize(
    "card",
    [
        {
            "tasktype": "task",
            "taskname": "n",
            "instructions": [],
            "routines": {"nback_1": {}},
            "routines_flow": [],
        },
        {"taskname": "n", "items": {"1-back": {"letters": "KVZ", "corrans": "match"}}},
    ],
)
def test_an_n_back_card_is_refused_in_one_sentence(written: Callable[..., Path], card: Card):
    with pytest.raises(CardError, match=r"is an n-back card: .* neither ps_primal nor pal50 can run it\.$"):
        load_card(written(card))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"taskname": NaN}', "is not valid JSON: NaN is not a JSON number"),
        ('{"taskname": "a", "taskname": "b"}', "is not valid JSON: duplicate keys: taskname"),
        ('{"items": {"a": [], "a": []}}', "is not valid JSON: duplicate keys: a"),
        ("{", "is not valid JSON: "),
        ("", "is not valid JSON: "),
        ("[1, 2]", "a task card is one JSON object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_is_no_card_is_a_sentence(written: Callable[..., Path], text: str, sentence: str):
    with pytest.raises(CardError) as caught:
        load_card(written(text))
    assert sentence in str(caught.value)


def test_a_missing_or_huge_file_is_a_sentence(tmp_path: Path):
    with pytest.raises(StimulusError, match=r"Cannot read .*absent"):
        load_card(tmp_path / "absent.json")
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(CardError, match="larger than a task card may be"):
        load_card(huge)


@pytest.mark.parametrize(
    ("name", "items", "pairs"),
    [
        ("pal50", 100, 50),
        ("rm_episodic_demo", 16, 0),
        ("rm_episodic_fb_demo", 16, 0),
        ("rm_singleturn_demo", 8, 0),
        ("rm_trialchain_demo", 8, 0),
    ],
)
def test_psychscanner_cards(name: str, items: int, pairs: int):
    card = load_card(oracle("psychscanner") / f"{name}.json")
    assert len(card.items) == items
    if pairs:
        assert len(card.pairs()) == pairs
    else:
        with pytest.raises(CardError, match="has no paired associates"):
            card.pairs()
