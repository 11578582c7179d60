import json
import os
import signal
import time
from pathlib import Path

import pytest
from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel
from space_tracking.corpus import load
from space_tracking.readout import colour_ids, local_readouts, score
from space_tracking.runs import READOUTS, load_run
from space_tracking.validation import validate
from support.commands import verifiers_03
from support.space_subjects import POLICIES, policy_model
from support.tiny_models import tiny_local, tiny_model, tiny_tokenizer

TEST = {"part": "test", "scheme": "template"}
N_PROMPTS = 124 + 116
"""Rows of that part, and neutral prompts of those with two spaces."""


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> LocalModel:
    local = LocalModel(*policy_model(POLICIES["first mention"]))
    monkeypatch.setattr(LocalModel, "load", lambda *_, **__: local)
    return local


def records(folder: Path) -> dict[str, dict]:
    lines = (folder / READOUTS).read_text(encoding="utf-8").splitlines()
    found = {record["prompt"]: record["readout"] for record in map(json.loads, lines)}
    assert len(found) == len(lines), "a prompt is recorded twice"
    return found


def test_a_scored_folder_gives_the_tables_again(subject: LocalModel, tmp_path: Path) -> None:
    at_once = score("subject", env_args=TEST, output=tmp_path / "run")
    assert len(records(tmp_path / "run")) == N_PROMPTS
    again = validate([load_run(tmp_path / "run")])
    assert again == at_once
    assert again.models[0].label == "subject"
    assert (again.models[0].judged, again.models[0].unscored) == (124, 0)


def test_an_interrupted_run_goes_on_without_reading_anything_twice(
    subject: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        assert total == N_PROMPTS
        if done >= 60:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        score("subject", batch_size=10, env_args=TEST, output=folder, progress=stop)
    kept = records(folder)
    assert 60 <= len(kept) < N_PROMPTS
    partial = load_run(folder)
    assert len(partial.judged) + len(partial.unscored) == 124
    assert set(partial.unscored.values()) == {"not read yet"}

    with (folder / READOUTS).open("a") as file:
        file.write('{"prompt": "In the pain')
    seen: list[tuple[int, int]] = []
    resumed = score(
        "subject", batch_size=10, env_args=TEST, output=folder, resume=True, progress=lambda *at: seen.append(at)
    )
    assert seen[0] == (len(kept) + 10, N_PROMPTS)
    assert seen[-1] == (N_PROMPTS, N_PROMPTS)
    assert records(folder).items() >= kept.items()
    assert resumed == score("subject", env_args=TEST)


def test_a_finished_run_is_not_read_again(subject: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = score("subject", env_args=TEST, output=tmp_path / "run")
    monkeypatch.setattr(LocalModel, "load", lambda *_, **__: pytest.fail("the model was loaded for nothing"))
    assert score("subject", env_args=TEST, output=tmp_path / "run", resume=True) == first


def test_a_folder_is_neither_overwritten_nor_mixed(subject: LocalModel, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    score("subject", env_args=TEST, output=folder)
    before = (folder / READOUTS).read_bytes()
    with pytest.raises(MindscopeError, match="--resume"):
        score("subject", env_args=TEST, output=folder)
    with pytest.raises(MindscopeError, match=r"other settings.*env_args"):
        score("subject", env_args={**TEST, "prior": False}, output=folder, resume=True)
    with pytest.raises(MindscopeError, match=r"other settings.*model"):
        score("another", env_args=TEST, output=folder, resume=True)
    with pytest.raises(MindscopeError, match=r"other settings.*dtype"):
        score("subject", env_args=TEST, output=folder, resume=True, dtype="bfloat16")
    with pytest.raises(MindscopeError, match=r"no mindscope\.json"):
        score("subject", env_args=TEST, output=tmp_path / "absent", resume=True)
    assert (folder / READOUTS).read_bytes() == before


def test_damaged_and_foreign_folders_are_named(subject: LocalModel, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    score("subject", env_args=TEST, output=folder)
    text = (folder / READOUTS).read_text()
    (folder / READOUTS).write_text(text.replace('"route"', '"rout"', 1))
    with pytest.raises(MindscopeError, match=rf"{READOUTS}:1: not a readout"):
        load_run(folder)
    (folder / READOUTS).write_text(text)
    about = json.loads((folder / "mindscope.json").read_text())
    about["data_sha256"]["space_tracking/test.jsonl"] = "0" * 64
    (folder / "mindscope.json").write_text(json.dumps(about))
    with pytest.raises(MindscopeError, match=r"other stimuli: space_tracking/test\.jsonl"):
        load_run(folder)
    with pytest.raises(MindscopeError, match="no such file or folder"):
        load_run(tmp_path / "absent")


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_killed_process_goes_on_where_it_was(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = json.dumps({**TEST, "multi_token": "sequence", "prior": False})

    def command(out: str, *more: str) -> list[str]:
        return ["mindscope", "space-tracking", "score", "-m", str(tiny_folder), "-o", str(tmp_path / out),
                "--batch-size", "2", "--env-args", arguments, *more]  # fmt: skip

    whole = verifiers_03().run(*command("whole", "--json"), cwd=tmp_path)
    assert whole.code == 0, whole
    process = verifiers_03().start(*command("killed"), cwd=tmp_path)
    file = tmp_path / "killed" / READOUTS
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (file.exists() and file.read_bytes().count(b"\n") >= 6):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 6 <= file.read_bytes().count(b"\n") < 124
    resumed = verifiers_03().run(*command("killed", "--resume", "--json"), cwd=tmp_path)
    assert resumed.code == 0, resumed
    found, expected = records(tmp_path / "killed"), records(tmp_path / "whole")
    assert found.keys() == expected.keys()
    for prompt, readout in expected.items():
        assert found[prompt]["logprobs"] == pytest.approx(readout["logprobs"], abs=1e-5)
    assert resumed.json["models"] == whole.json["models"]


def test_several_tokens_are_refused_or_summed() -> None:
    local = tiny_local("gpt2")
    prompts = [row.prompt for row in load("test")[:3]]
    ids = colour_ids(local.tokenizer, prompts)
    assert {len(tokens) for each in ids for tokens in each.values()} > {1}
    with pytest.raises(MindscopeError, match=r"more than one token.*' br?'.*multi_token='sequence'"):
        list(local_readouts(local, prompts, batch_size=2))
    found = {i: r for batch, some in local_readouts(local, prompts, batch_size=2, multi_token="sequence")
             for i, r in zip(batch, some, strict=True)}  # fmt: skip
    for i, prompt in enumerate(prompts):
        assert found[i].scoring == "sequence"
        for colour, tokens in ids[i].items():
            row = local.encode(prompt)
            expected = 0.0
            for token in tokens:
                expected += local.next_token_logprobs([row])[0, token].item()
                row = [*row, token]
            assert found[i].logprobs[colour] == pytest.approx(expected, abs=1e-4)
        assert found[i].token_ids == ids[i]


def test_a_colour_that_joins_the_prompts_last_word_is_refused() -> None:
    class Joining:
        def __call__(self, texts: list[str]) -> object:
            ids = [[hash(text.removesuffix(" blue"))] if text.endswith(" blue") else [1, 2] for text in texts]
            return type("Encoding", (), {"input_ids": ids})()

    with pytest.raises(MindscopeError, match="'blue' joins the last word"):
        colour_ids(Joining(), ["the kite is"])
