"""The white-box readout of ps_primal on a tiny random model: the numbers of a plain forward pass, item by item."""

import json
from pathlib import Path

import numpy as np
import pytest
from mindscope.errors import MindscopeError
from ps_primal.paradigm import Settings, trials
from ps_primal.readout import score

torch = pytest.importorskip("torch")
from support.tiny_models import tiny_model, tiny_tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_model("qwen2").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def by_hand(study: str) -> tuple[list[float], list[bool]]:
    model, tokenizer = tiny_model("qwen2"), tiny_tokenizer()
    sums, first = [], []
    for trial in trials(Settings(style="completion", study=study)):
        head = tokenizer(trial.prompt).input_ids
        ids = tokenizer(trial.prompt + trial.target).input_ids
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        steps = range(len(head) - 1, len(ids) - 1)
        sums.append(sum(logprobs[step, ids[step + 1]].item() for step in steps))
        first.append(logprobs[len(head) - 1].argmax().item() == ids[len(head)])
    return sums, first


def test_levels_and_total_are_those_of_single_forward_passes(folder: Path) -> None:
    readout = score(str(folder), batch_size=7, env_args={})
    studied, first = by_hand("pair")
    control, _ = by_hand("none")
    assert [row.level for row in readout.levels] == ["L0", "L25", "L50", "L75", "L100", "all"]
    for position, row in enumerate(readout.levels):
        items = slice(0, 50) if row.level == "all" else slice(10 * position, 10 * position + 10)
        assert row.logprob_studied.value == pytest.approx(np.mean(studied[items]), abs=1e-4)
        assert row.gain.value == pytest.approx(np.mean(studied[items]) - np.mean(control[items]), abs=1e-4)
        assert row.first_studied.value == pytest.approx(np.mean(first[items]))
        assert row.gain.n == len(studied[items])
    assert json.loads(readout.to_json())["levels"][-1]["level"] == "all"


def test_a_level_of_one_pair_has_a_value_and_no_interval(folder: Path, tmp_path: Path) -> None:
    items = {
        code: [{"trcode": code, "stimulus": "x", "phase": phase, "word1": "oven", "word2": "cabin", "similarity": 0.0,
                "parser": None, "fb": False}]
        for code, phase in (("L0_enc_01", "encoding"), ("L0_test_01", "test"))
    }  # fmt: skip
    card = {"tasktype": "episodic", "taskname": "one", "instructions": {}, "context_present": False, "items": items,
            "parser": None, "chain_type": "task"}  # fmt: skip
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card))
    text = score(str(folder), batch_size=2, env_args={"task_card": str(path)}).format_text()
    assert "undefined" in text


def test_arguments_that_the_readout_sets_itself_are_refused(folder: Path) -> None:
    with pytest.raises(MindscopeError, match="leave out"):
        score(str(folder), batch_size=2, env_args={"style": "chat"})
