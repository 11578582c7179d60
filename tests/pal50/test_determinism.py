"""Same seed, same bytes: across processes, hash seeds and both verifiers generations."""

import hashlib
import json
from pathlib import Path

import pytest
from pal50.cost import describe, estimate_tokens
from pal50.paradigm import Session, Settings, trials
from support.commands import Finished, Venv, verifiers_03, verifiers_04

ARGUMENTS = {
    "lists": "AB-ABr",
    "n_pairs": 20,
    "participants": 3,
    "cycles": 2,
    "distractor_turns": 2,
    "feedback": "corrective",
}

DIGEST = """
import hashlib, json, sys
from pal50.paradigm import Session, Settings, trials
digest = hashlib.sha256()
for trial in trials(Settings.parse(json.loads(sys.argv[1]))):
    session = Session(trial.design)
    while not session.finished:
        digest.update(json.dumps(session.prompt).encode())
        session.answer(session.gold())
print(digest.hexdigest())
"""

LEGACY = """
import hashlib, json, sys
from pal50 import load_environment
rows = load_environment(**json.loads(sys.argv[1])).get_eval_dataset()
prompts = [
    [{"role": m["role"].replace("text", "user"), "content": m["content"]} for m in row["prompt"]] for row in rows
]
print(hashlib.sha256(json.dumps([prompts, [json.loads(row["info"])["design"] for row in rows]]).encode()).hexdigest())
"""

V1 = """
import hashlib, json, sys
from pal50 import Pal50Taskset
from pal50.taskset import Pal50Config
tasks = list(Pal50Taskset(Pal50Config(id="pal50", **json.loads(sys.argv[1]))).load())
prompts = [[{"role": m.role, "content": m.content} for m in task.data.prompt] for task in tasks]
designs = [task.data.design.model_dump(mode="json") for task in tasks]
print(hashlib.sha256(json.dumps([prompts, designs]).encode()).hexdigest())
"""


def digest(venv: Venv, code: str, folder: Path, arguments: dict, **environment: str) -> str:
    done: Finished = venv.run("python", "-c", code, json.dumps(arguments), cwd=folder, **environment)
    assert done.code == 0, done
    return done.stdout.split()[-1]


def here(arguments: dict) -> str:
    found = hashlib.sha256()
    for trial in trials(Settings.parse(arguments)):
        session = Session(trial.design)
        while not session.finished:
            found.update(json.dumps(session.prompt).encode())
            session.answer(session.gold())
    return found.hexdigest()


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_whole_sessions_are_the_same_in_every_process(tmp_path: Path, style: str) -> None:
    arguments = ARGUMENTS | {"style": style}
    known = here(arguments)
    for seed in ("0", "1", "4242"):
        assert digest(verifiers_03(), DIGEST, tmp_path, arguments, PYTHONHASHSEED=seed) == known
    assert digest(verifiers_04(), DIGEST, tmp_path, arguments, PYTHONHASHSEED="7") == known


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_both_generations_send_the_same_first_prompts(tmp_path: Path, style: str) -> None:
    arguments = ARGUMENTS | {"style": style}
    legacy = digest(verifiers_03(), LEGACY, tmp_path, arguments)
    assert digest(verifiers_03(), V1, tmp_path, arguments) == legacy
    assert digest(verifiers_04(), V1, tmp_path, arguments) == legacy


def test_another_seed_is_another_session() -> None:
    assert here(ARGUMENTS) != here(ARGUMENTS | {"seed": 1})


# ---- cost, which is deterministic too ----


def test_the_estimate_counts_calls_exactly_and_tokens_by_length() -> None:
    arguments = {"n_pairs": 10, "participants": 3, "study_replies": "model", "distractor_turns": 2}
    estimate = estimate_tokens(Settings.parse(arguments))
    assert estimate.calls == 3 * (10 + 2 + 10)
    (trial, *_) = trials(Settings.parse(arguments))
    session, sent = Session(trial.design), []
    while not session.finished:
        sent.append(sum(len(message["content"]) for message in session.prompt))
        session.answer(session.gold())
    turns = range(1, 2 * len(sent), 2)
    assert estimate.sent == pytest.approx(3 * (sum(sent) / 3.5 + 4 * sum(turns)), abs=2)
    assert estimate.new == pytest.approx(3 * (sent[-1] / 3.5 + 4 * turns[-1]), abs=2)
    assert 0 < estimate.generated < estimate.new < estimate.sent


def test_the_description_states_session_and_cost() -> None:
    text = describe(Settings.parse({"buffers": 1, "study_block": 4, "participants": 2}))
    assert "2 participants" in text
    assert "52 pairs in 13 study turns, 0 sums, 52 cues" in text
    assert "50 cues a session: L0 10, L25 10, L50 10, L75 10, L100 10" in text
    assert "calls        104" in text
