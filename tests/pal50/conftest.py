"""A task card of three pairs, small enough to write its whole conversation out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pal50.paradigm import Design, Settings, trials

STUDY = [("cat", "umbrella", 0.0), ("lion", "tiger", 0.25), ("salt", "pepper", 0.75)]
ASKED = ["lion", "salt", "cat"]


@pytest.fixture
def card(tmp_path: Path) -> str:
    """The path of the card: cat - umbrella, lion - tiger, salt - pepper, tested as lion, salt, cat."""
    of = {first: (second, similarity) for first, second, similarity in STUDY}
    items = {}
    for first, second, similarity in STUDY:
        turn = {"phase": "encoding", "word1": first, "word2": second, "similarity": similarity, "fb": False}
        items[f"enc_{first}"] = [turn | {"trcode": f"enc_{first}", "stimulus": f"Remember — {first} and {second}."}]
    for first in ASKED:
        second, similarity = of[first]
        turn = {"phase": "test", "word1": first, "word2": second, "similarity": similarity}
        items[f"tst_{first}"] = [turn | {"trcode": f"tst_{first}", "stimulus": f"What went with '{first}'?"}]
    path = tmp_path / "card.json"
    path.write_text(
        json.dumps(
            {
                "tasktype": "episodic",
                "taskname": "three",
                "instructions": {"definition": ["Study “three” pairs."]},
                "context_present": False,
                "parser": None,
                "chain_type": "task",
                "items": items,
            }
        ),
        encoding="utf-8",
    )
    return str(path)


@pytest.fixture
def design(card: str) -> Callable[..., Design]:
    """Builds participant 0 over the card in its own order, with any further arguments."""

    def build(**arguments: object) -> Design:
        settings = Settings.parse({"task_card": card, "order": "card", "participants": 1, **arguments})
        return trials(settings)[0].design

    return build
