"""Conversations and their branches against plain full forward passes, for caches of every kind."""

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from mindscope.errors import MindscopeError
from mindscope.whitebox.branches import State
from mindscope.whitebox.interventions import (
    Ablate,
    Clamp,
    Directions,
    Edit,
    Editor,
    Swap,
    clamped,
    edited_logits,
    matched_control,
)
from mindscope.whitebox.model import LocalModel
from safetensors import safe_open
from safetensors.torch import save_file
from support.tiny_models import D_MODEL, FAMILIES, tiny_local, tiny_model, tiny_tokenizer, vocab_size

START = [1, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220]  # longer than the sliding windows, which are 8
QUESTIONS = [[30, 31, 32], [50, 51], [70, 71, 72], [90, 91, 92, 93, 94], [110, 111]]


@cache
def hybrid() -> LocalModel:
    """Recurrent blocks between attention blocks, as in Qwen 3.5 and Qwen 3 Next."""
    config = transformers.Qwen3NextConfig(
        vocab_size=vocab_size(), hidden_size=D_MODEL, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"], mlp_only_layers=[0, 1, 2],
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                1.5 * noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else parameter + 0.2 * noise
            )
    return LocalModel(model, tiny_tokenizer())


def local(family: str) -> LocalModel:
    return hybrid() if family == "hybrid" else tiny_local(family)


ALL = (*FAMILIES, "hybrid")
KINDS = ("llama", "gemma3", "hybrid")  # full, sliding and recurrent caches


def whole_pass(model: LocalModel, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities after every position, [position, vocabulary], with no cache."""
    with torch.no_grad():
        return model.hf(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float().log_softmax(-1)


def greedy(model: LocalModel, ids: Sequence[int], n: int, stop: Sequence[int] = ()) -> list[int]:
    said: list[int] = []
    while len(said) < n and not (said and said[-1] in stop):
        said.append(int(whole_pass(model, [*ids, *said])[-1].argmax()))
    return said


def contents(value: Any) -> Any:
    """Every value in a cache layer, tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: contents(each) for key, each in value.items()}
    return value


def snapshot(state: State) -> Any:
    return state.token_ids, [contents(vars(layer)) for layer in state.cache.layers]


@pytest.mark.parametrize("family", ALL)
def test_reading_in_pieces_and_asking_equals_one_whole_pass(family: str) -> None:
    model = local(family)
    state = State.of(model, START[:5]).read(START[5:11]).read(START[11:])
    assert state.token_ids == tuple(START)
    expected = torch.stack([whole_pass(model, START + question)[-1] for question in QUESTIONS])
    torch.testing.assert_close(state.next_token_logprobs(QUESTIONS), expected, atol=1e-4, rtol=1e-4)
    one_by_one = torch.cat([state.next_token_logprobs([question]) for question in QUESTIONS])
    torch.testing.assert_close(one_by_one, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ALL)
def test_answers_are_greedy_and_no_branch_disturbs_the_parent(family: str) -> None:
    model = local(family)
    state = State.of(model, START)
    before = copy.deepcopy(snapshot(state))
    replies = state.ask(QUESTIONS, max_new_tokens=6, stop=[])
    assert snapshot(state) == before
    for question, reply in zip(QUESTIONS, replies, strict=True):
        assert reply.token_ids == greedy(model, START + question, 6)
        assert not reply.stopped
        assert reply.text == model.tokenizer.decode(reply.token_ids)
        logprobs = whole_pass(model, [*START, *question, *reply.token_ids])[-7:-1]
        expected = logprobs.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0].tolist()
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
    for order in ([4, 2, 0, 1, 3], [0]):
        again = state.ask([QUESTIONS[i] for i in order], max_new_tokens=6, stop=[], batch_size=1)
        assert [reply.token_ids for reply in again] == [replies[i].token_ids for i in order]
        assert snapshot(state) == before


@pytest.mark.parametrize("family", ALL)
def test_a_reply_is_read_to_its_last_token(family: str) -> None:
    model = local(family)
    state = State.of(model, START)
    before = copy.deepcopy(snapshot(state))
    reply, after = state.reply([30, 31], max_new_tokens=4, stop=[])
    assert snapshot(state) == before
    assert after.token_ids == (*START, 30, 31, *reply.token_ids)
    expected = whole_pass(model, [*after.token_ids, 9])[-1:]
    torch.testing.assert_close(after.next_token_logprobs([[9]]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", KINDS)
def test_each_row_stops_by_itself_at_its_stop_token(family: str) -> None:
    model = local(family)
    free = [greedy(model, START + question, 8) for question in QUESTIONS]
    stop = {free[0][2], free[2][0]}  # question 0 and 2 are in one batch
    replies = State.of(model, START).ask(QUESTIONS, max_new_tokens=8, stop=stop)
    for question, reply in zip(QUESTIONS, replies, strict=True):
        assert reply.token_ids == greedy(model, START + question, 8, list(stop))
        assert reply.stopped == (reply.token_ids[-1] in stop)
        spoken = reply.token_ids[:-1] if reply.stopped else reply.token_ids
        assert reply.text == model.tokenizer.decode(spoken)
    assert len({len(reply.token_ids) for reply in replies}) > 1


def test_the_tokenizers_end_of_text_stops_by_default() -> None:
    model = copy.copy(tiny_local("llama"))
    said = greedy(model, [*START, 30], 5)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.eos_token = model.tokenizer.convert_ids_to_tokens(said[1])
    [reply] = State.of(model, START).ask([[30]], max_new_tokens=5)
    assert (reply.token_ids, reply.stopped) == (said[: said.index(said[1]) + 1], True)


# Edits


PAIR = Directions(torch.randn(2, D_MODEL, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("family", ALL)
def test_cached_generation_equals_a_teacher_forced_pass_with_the_same_edits(family: str) -> None:
    model = local(family)
    state = State.of(model, START[:9])
    edits = [
        Edit(1, range(10, 15), Swap(PAIR, 2.0)),
        Edit(0, [13, 11], Swap(PAIR, 0.5, "delta")),
        Edit(1, [12], matched_control(Swap(PAIR), seed=4)),
    ]
    cached, forced = Editor(model, [edits]), Editor(model, [edits])
    reply, after = state.reply(START[9:], max_new_tokens=5, stop=[], editor=cached)
    logits = edited_logits(model, [after.token_ids], forced, last=6)[0].log_softmax(-1)
    assert logits[:5].argmax(-1).tolist() == reply.token_ids
    assert reply.logprobs == pytest.approx(logits[:5].amax(-1).tolist(), abs=1e-4)
    torch.testing.assert_close(
        after.next_token_logprobs([[7]])[0],
        edited_logits(model, [[*after.token_ids, 7]], Editor(model, [edits]))[0, 0].log_softmax(-1),
        atol=1e-4,
        rtol=1e-4,
    )
    clean, _ = state.reply(START[9:], max_new_tokens=5, stop=[])
    assert reply.logprobs != pytest.approx(clean.logprobs, abs=1e-2)

    def keyed(editor: Editor) -> dict:
        return {(r.block, r.position, len(r.asked), r.condition): r for r in editor.records() if r.position != 12}

    assert keyed(cached).keys() == keyed(forced).keys()
    assert len(cached.records()) == len(forced.records()) == 8
    for key, record in keyed(cached).items():
        assert record.reached == pytest.approx(keyed(forced)[key].reached, abs=1e-3)


def test_in_bf16_cached_generation_chooses_what_a_teacher_forced_pass_does_up_to_rounding() -> None:
    model = LocalModel(tiny_model("llama").bfloat16(), tiny_tokenizer())
    edits = [[Edit(1, range(10, 15), Swap(PAIR, 2.0))]]
    reply, after = State.of(model, START).reply([30, 31], max_new_tokens=5, stop=[], editor=Editor(model, edits))
    logits = edited_logits(model, [after.token_ids], Editor(model, edits), last=6)[0, :5]
    chosen = logits.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    print("teacher-forced logits of the chosen tokens below the largest:", (logits.amax(-1) - chosen).tolist())
    assert (logits.amax(-1) - chosen).max() <= 2**-5 * logits.abs().max()


def test_the_cache_differs_only_above_the_edit_and_from_its_first_position() -> None:
    model = tiny_local("llama", n_layers=4)
    clean = State.of(model, START)
    edited = State.of(model, START, editor=Editor(model, [[Edit(1, [6, 7], Swap(PAIR, 2.0))]]))
    for block, (one, other) in enumerate(zip(clean.cache.layers, edited.cache.layers, strict=True)):
        same = ((one.keys == other.keys) & (one.values == other.values)).all(-1).all(1)[0]
        changed = {0: [], 1: [], 2: [6, 7], 3: list(range(6, 12))}[block]
        assert [at for at, equal in enumerate(same.tolist()) if not equal] == changed


def test_the_questions_see_the_edited_state_and_are_not_edited_themselves() -> None:
    model = tiny_local("gemma2")
    editor = Editor(model, [[Edit(0, range(5, 99), Swap(PAIR, 2.0))]])
    state = State.of(model, START, editor=editor)
    n_records = len(editor.records())
    found = state.next_token_logprobs(QUESTIONS)
    assert len(editor.records()) == n_records == 7
    within = [[Edit(0, range(5, 12), Swap(PAIR, 2.0))]]
    for question, logprobs in zip(QUESTIONS, found, strict=True):
        expected = edited_logits(model, [START + question], Editor(model, within))[0, 0].log_softmax(-1)
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=1e-4)


def test_each_question_may_have_edits_of_its_own() -> None:
    model = tiny_local("llama")
    edits = [[], [Edit(1, [13], Ablate(PAIR))], [Edit(0, [12, 14], Swap(PAIR, 2.0))], [], [Edit(1, [12], Swap(PAIR))]]
    state = State.of(model, START)
    found = state.next_token_logprobs(QUESTIONS, editor=Editor(model, edits))
    expected = edited_logits(model, [START + question for question in QUESTIONS], Editor(model, edits))[:, 0]
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=1e-4, rtol=1e-4)
    with pytest.raises(MindscopeError, match="edits for 5 prompts, and there are 2"):
        state.ask(QUESTIONS[:2], max_new_tokens=1, editor=Editor(model, edits))
    with pytest.raises(MindscopeError, match="edits for 5 prompts, and there are 1"):
        state.reply([3], max_new_tokens=1, editor=Editor(model, edits))


@pytest.mark.parametrize("family", KINDS)
def test_a_reply_that_ends_early_ends_its_edits(family: str) -> None:
    model = local(family)
    edits = [[Edit(1, range(12, 60), Swap(PAIR, 2.0))] for _ in QUESTIONS]
    state = State.of(model, START)
    free = state.ask(QUESTIONS, max_new_tokens=8, stop=[], editor=Editor(model, edits))
    stop = [free[0].token_ids[1]]
    editor = Editor(model, edits)
    replies = state.ask(QUESTIONS, max_new_tokens=8, stop=stop, editor=editor)
    for i, (question, reply) in enumerate(zip(QUESTIONS, replies, strict=True)):
        n = next((at + 1 for at, token in enumerate(free[i].token_ids) if token in stop), 8)
        assert reply.token_ids == free[i].token_ids[:n]
        positions = [record.position for record in editor.records() if record.row == i]
        assert positions == list(range(12, 12 + len(question) + n - 1))


def test_a_band_clamped_to_a_clean_run_holds_during_generation() -> None:
    model = tiny_local("llama")
    state = State.of(model, START)
    _, after = state.reply([30, 31], max_new_tokens=4, stop=[])
    band = [Edit(block, range(14, 17), Swap(PAIR)) for block in (0, 1, 2)]
    [fixed] = clamped(model, [after.token_ids], [band])
    assert all(isinstance(edit.change, Clamp) for edit in fixed)
    editor = Editor(model, [fixed])
    _, held = state.reply([30, 31], max_new_tokens=4, stop=[], editor=editor)
    assert len(editor.records()) == 9
    for record in editor.records():
        target = fixed[record.block].change.targets[record.position]
        assert record.reached == pytest.approx(target.tolist(), abs=1e-4)
    forced = edited_logits(model, [held.token_ids], Editor(model, [fixed]), last=5)[0]
    assert forced[:4].argmax(-1).tolist() == list(held.token_ids[-4:])


# Files


@pytest.mark.parametrize("family", ALL)
def test_a_saved_state_is_reloaded_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = local(family)
    _, state = State.of(model, START).reply([30, 31], max_new_tokens=2, stop=[])
    state.save(tmp_path / "state.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    loaded = State.load(model, tmp_path / "state.safetensors")
    assert loaded.token_ids == state.token_ids
    assert torch.equal(loaded.next_token_logprobs(QUESTIONS), state.next_token_logprobs(QUESTIONS))
    assert loaded.ask(QUESTIONS, max_new_tokens=3) == state.ask(QUESTIONS, max_new_tokens=3)
    assert loaded.read([5]).token_ids == (*state.token_ids, 5)


def test_files_that_are_no_state_of_this_model_are_refused(tmp_path: Path) -> None:
    model = tiny_local("llama")
    path = tmp_path / "state.safetensors"
    State.of(model, START).save(path)
    for other in (tiny_local("llama", seed=1), LocalModel(copy.deepcopy(model.hf).bfloat16(), tiny_tokenizer())):
        with pytest.raises(MindscopeError, match="other weights or another dtype"):
            State.load(other, path)
    whole = path.read_bytes()
    for name, content in (("cut", whole[:-40]), ("short", whole[:20]), ("text", b"hello"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MindscopeError, match=f"{name} cannot be read as a saved state"):
            State.load(model, tmp_path / name)
    with pytest.raises(MindscopeError, match="cannot be read as a saved state"):
        State.load(model, tmp_path / "absent")
    save_file({"a": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(MindscopeError, match="is no saved state"):
        State.load(model, tmp_path / "weights")
    with pytest.raises(MindscopeError, match="cannot be written"):
        State.of(model, START).save(tmp_path / "no" / "folder")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda header: header["layers"][0].update(kind="DynamicSlidingWindowLayer"),
            "where the model has a DynamicLayer",
        ),
        (lambda header: header["layers"][0]["values"]["items"].append(["update", 1]), "has a value 'update'"),
        (lambda header: header["layers"].pop(), "2 layers, the model's has 3"),
    ],
)
def test_a_spoilt_header_is_refused(spoil: Any, said: str, tmp_path: Path) -> None:
    model = tiny_local("llama")
    path = tmp_path / "state.safetensors"
    State.of(model, START).save(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["mindscope"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    spoil(header)
    save_file(tensors, path, metadata={"mindscope": json.dumps(header)})
    with pytest.raises(MindscopeError, match=said):
        State.load(model, path)


def test_what_cannot_be_asked_is_a_sentence() -> None:
    model = tiny_local("llama")
    state = State.of(model, START)
    for ask, said in (
        (lambda: State.of(model, []), "prompt 0 is empty"),
        (lambda: state.ask([[3], []], max_new_tokens=2), "prompt 1 is empty"),
        (lambda: state.ask([[3], [9999]], max_new_tokens=2), "prompt 1 has a token id outside"),
        (lambda: state.ask([[3]], max_new_tokens=0), "max_new_tokens is 0"),
        (lambda: state.ask([[3]], max_new_tokens=244), "conversation of 257 tokens"),
        (lambda: state.read([3] * 245), "conversation of 257 tokens"),
        (lambda: state.ask([[3]], max_new_tokens=1, batch_size=0), "batch_size is 0"),
    ):
        with pytest.raises(MindscopeError, match=said):
            ask()
    assert state.ask([], max_new_tokens=2) == []
