"""LocalModel: loading, next-token log-probabilities, tokenizers, errors."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox import model as model_module
from mindscope.whitebox.model import LocalModel
from safetensors.torch import load_file, save_file
from support.tiny_models import FAMILIES, tiny_local, tiny_model, tiny_tokenizer, vocab_size

PROMPTS = [
    "the red car",
    "a",
    "In the painting, the car is red. In reality, the car is blue. In the painting, the car is",
    "Word pairs. chair - tiger. apple - window. river - wallet. candle -",
    "the red car and the house",
    "In the photo, the boat is",
    "the",
]


def one_by_one(model: LocalModel, prompts: list[str]) -> torch.Tensor:
    """The definition: a forward pass of each prompt alone, unpadded, all positions computed."""
    rows = []
    for prompt in prompts:
        ids = torch.tensor([tiny_tokenizer()(prompt).input_ids])
        with torch.no_grad():
            rows.append(model.hf(input_ids=ids).logits[0, -1].float().log_softmax(-1))
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_batches_equal_one_by_one_in_the_order_given(family: str, batch_size: int) -> None:
    model = tiny_local(family)
    batched = model.next_token_logprobs(PROMPTS, batch_size=batch_size)
    assert batched.dtype == torch.float32
    torch.testing.assert_close(batched, one_by_one(model, PROMPTS), atol=1e-4, rtol=0)


def test_token_ids_for_all_prompts_or_for_each() -> None:
    model = tiny_local("llama")
    full = one_by_one(model, PROMPTS)
    shared = model.next_token_logprobs(PROMPTS, [5, 300, 5], batch_size=2)
    torch.testing.assert_close(shared, full[:, [5, 300, 5]], atol=1e-4, rtol=0)
    own = [[i, 100 + i] for i in range(len(PROMPTS))]
    each = model.next_token_logprobs(PROMPTS, own, batch_size=2)
    expected = torch.stack([full[i, ids] for i, ids in enumerate(own)])
    torch.testing.assert_close(each, expected, atol=1e-4, rtol=0)


def test_batches_cover_every_prompt_once_and_report_progress() -> None:
    model = tiny_local("llama")
    full = one_by_one(model, PROMPTS)
    told: list[tuple[int, int]] = []
    seen: list[int] = []
    for indices, logprobs in model.next_token_batches(PROMPTS, batch_size=3, progress=lambda *x: told.append(x)):
        torch.testing.assert_close(logprobs, full[indices], atol=1e-4, rtol=0)
        seen += indices
    assert sorted(seen) == list(range(7))
    assert told == [(3, 7), (6, 7), (7, 7)]


def test_token_ids_as_prompts_are_used_as_they_are() -> None:
    model = tiny_local("llama")
    ids = tiny_tokenizer()("the red car").input_ids
    assert ids[0] == model.tokenizer.bos_token_id
    text, with_bos, without = (model.next_token_logprobs([p]) for p in ("the red car", ids, ids[1:]))
    assert torch.equal(text, with_bos)
    assert not torch.allclose(text, without, atol=0.01)


def test_no_prompts_give_an_empty_answer() -> None:
    model = tiny_local("llama")
    assert model.next_token_logprobs([]).shape == (0, vocab_size())
    assert model.next_token_logprobs([], [1, 2]).shape == (0, 2)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["the", "", "a"], "prompt 1 is empty"),
        (["the", []], "prompt 1 is empty"),
        (["the", "a", "red " * 300], "prompt 2 has .* context of 256"),
        ([[1, 2], [1, 5000]], "prompt 1 has a token id outside the vocabulary"),
        ([[1, 2], [-1]], "prompt 1 has a token id outside the vocabulary"),
        ("the", "prompts is one text"),
    ],
)
def test_unusable_prompts_are_named(prompts: list, said: str) -> None:
    with pytest.raises(MindscopeError, match=said):
        tiny_local("llama").next_token_logprobs(prompts)


def test_unusable_token_ids_are_refused() -> None:
    model = tiny_local("llama")
    with pytest.raises(MindscopeError, match="outside the vocabulary"):
        model.next_token_logprobs(["the"], [vocab_size()])
    with pytest.raises(MindscopeError, match=r"shape \[2, 1\]"):
        model.next_token_logprobs(["the", "a", "red"], [[1], [2]])
    with pytest.raises(MindscopeError, match="batch_size is 0"):
        model.next_token_logprobs(["the"], batch_size=0)


def test_a_prompt_that_fills_the_context_is_read() -> None:
    model = tiny_local("gpt2")
    assert model.next_token_logprobs([[7] * model.context]).isfinite().all()


@pytest.mark.parametrize("pad", [True, False])
def test_the_tokenizer_given_is_left_as_it_was(pad: bool) -> None:
    tokenizer = tiny_tokenizer(pad=pad)
    model = LocalModel(tiny_model("llama"), tokenizer)
    model.next_token_logprobs(PROMPTS)
    assert tokenizer.padding_side == "right"
    assert tokenizer.pad_token == ("<pad>" if pad else None)
    assert model.tokenizer.padding_side == "left"
    assert model.tokenizer.pad_token == ("<pad>" if pad else "<eos>")


def test_a_tokenizer_that_ends_every_text_is_refused() -> None:
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    with pytest.raises(MindscopeError, match="ends every text with '<eos>'"):
        LocalModel(tiny_model("llama"), tokenizer)


def test_dropout_is_off() -> None:
    model = LocalModel(tiny_model("gpt2").train(), tiny_tokenizer())
    first, second = model.next_token_logprobs(PROMPTS), model.next_token_logprobs(PROMPTS)
    assert torch.equal(first, second)


def test_bfloat16_weights_are_read_out_in_fp32() -> None:
    model = LocalModel(tiny_model("llama").to(torch.bfloat16), tiny_tokenizer())
    logprobs = model.next_token_logprobs(PROMPTS)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.exp().sum(-1), torch.ones(len(PROMPTS)), atol=1e-5, rtol=0)


# Loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama", seed=3).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def test_a_folder_gives_the_model_saved_there(folder: Path) -> None:
    model = LocalModel.load(str(folder))
    expected = tiny_local("llama", seed=3).next_token_logprobs(PROMPTS)
    torch.testing.assert_close(model.next_token_logprobs(PROMPTS), expected, atol=1e-5, rtol=0)
    assert model.source == str(folder)
    assert not any(parameter.requires_grad for parameter in model.hf.parameters())
    assert LocalModel.load(str(folder), dtype="bfloat16").hf.dtype == torch.bfloat16


def test_a_model_is_loaded_once_however_many_ask_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = model_module.AutoModelForCausalLM.from_pretrained

    def counted(place: str, **kwargs: object) -> object:
        calls.append(place)
        return original(place, **kwargs)

    monkeypatch.setattr(model_module.AutoModelForCausalLM, "from_pretrained", counted)
    monkeypatch.chdir(folder.parent)
    barrier = threading.Barrier(8)

    def load(i: int) -> LocalModel:
        barrier.wait(30)
        return LocalModel.load(folder.name if i % 2 else str(folder), dtype="float64")

    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(load, range(8)))
    assert len(calls) == 1
    assert all(model is models[0] for model in models)


def test_a_hub_id_is_handed_on_with_its_revision_and_no_remote_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict]] = []

    def model(place: str, **kwargs: object) -> object:
        asked.append((place, kwargs))
        return tiny_model("llama"), {"missing_keys": set()}

    def tokenizer(place: str, **kwargs: object) -> object:
        asked.append((place, kwargs))
        return tiny_tokenizer()

    monkeypatch.setattr(model_module.AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(model_module.AutoTokenizer, "from_pretrained", tokenizer)
    loaded = LocalModel.load("some-owner/some-model", revision="abc123", dtype="bfloat16")
    assert [place for place, _ in asked] == ["some-owner/some-model"] * 2
    for _, kwargs in asked:
        assert kwargs["revision"] == "abc123"
        assert kwargs["trust_remote_code"] is False
    assert asked[1][1]["dtype"] is torch.bfloat16
    assert (loaded.source, loaded.revision) == ("some-owner/some-model", "abc123")


def test_a_hub_id_that_cannot_be_had_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MindscopeError, match=r"model 'no-such-owner/no-such-model' is not a folder, and the model hub"):
        LocalModel.load("no-such-owner/no-such-model")
    with pytest.raises(MindscopeError, match="is not a folder"):
        LocalModel.load(str(tmp_path / "missing"))


def test_a_folder_without_a_model_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MindscopeError, match="no model could be loaded from the folder"):
        LocalModel.load(str(tmp_path))


def test_weights_that_are_cut_short_or_incomplete_are_refused(folder: Path, tmp_path: Path) -> None:
    cut = shutil.copytree(folder, tmp_path / "cut")
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MindscopeError, match="no model could be loaded from the folder"):
        LocalModel.load(str(cut))

    partial = shutil.copytree(folder, tmp_path / "partial")
    weights = load_file(partial / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MindscopeError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        LocalModel.load(str(partial))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "custom.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    config = {
        "model_type": "custom-made",
        "auto_map": {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(MindscopeError, match="no model could be loaded from the folder"):
        LocalModel.load(str(tmp_path))
    assert not ran.exists()


def test_options_that_cannot_be_meant_are_refused(folder: Path) -> None:
    with pytest.raises(MindscopeError, match="dtype is 'int8'"):
        LocalModel.load(str(folder), dtype="int8")
    with pytest.raises(MindscopeError, match="device 'nowhere' cannot be used here"):
        LocalModel.load(str(folder), device="nowhere")
    with pytest.raises(MindscopeError, match="has no revisions"):
        LocalModel.load(str(folder), revision="main")
    with pytest.raises(MindscopeError, match="has no revisions"):
        LocalModel.load("embedded", revision="main")
