"""Scripted subjects of ps_primal whose scores are known in advance. They read the stimuli file on their own."""

import json
import re

from support.commands import ROOT
from support.stub_server import Policy, Reply, Request

PAIRS = [json.loads(line) for line in (ROOT / "data/pal50/pairs.jsonl").read_text(encoding="utf-8").splitlines()]
TARGET = {pair["cue"]: pair["target"] for pair in PAIRS}
LEVEL = {pair["cue"]: pair["level"] for pair in PAIRS}


def cue_of(prompt: str) -> str:
    """The cue that a prompt of either style asks for."""
    return re.findall(r"(?:paired with|Test:) ([a-z]+)", prompt)[-1]


def answers(wanted: dict[str, str]) -> Policy:
    """Replies `wanted[cue]` in the declared tag, and the closing tag alone where the prompt opened it."""

    def policy(request: Request) -> Reply:
        word = wanted[cue_of(request.prompt)]
        opened = request.prompt.rstrip().endswith("<recall>")
        return Reply(text=f"{word}</recall>" if opened else f"<recall>{word}</recall>")

    return policy


def perfect() -> Policy:
    """Recalls every pair."""
    return answers(TARGET)


def recalls_levels(*levels: str) -> Policy:
    """Recalls the pairs of these levels and answers `zebra` to all others."""
    return answers({cue: target if LEVEL[cue] in levels else "zebra" for cue, target in TARGET.items()})
