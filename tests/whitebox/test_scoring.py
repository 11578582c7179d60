"""Continuation scores against a chain of plain forward passes, one token at a time."""

import math

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel
from mindscope.whitebox.scoring import ContinuationScore, continuation_ids, score_continuations
from support.tiny_models import tiny_local, tiny_tokenizer

PAIRS = [
    ("the red", " car"),
    ("In the painting, the car is", " red"),
    ("In the painting, the car is red. In reality, the car is", " blue. In the painting, the car is red."),
    ("Word pairs. chair - tiger. chair -", " tiger"),
    ("Word pairs. chair - tiger. chair -", " unheard-of zebra"),
    ("a", " the house and the boat"),
    ("the red house", "\n"),
]


def by_chain(model: LocalModel, prompt: str, continuation: str) -> ContinuationScore:
    tokenizer = tiny_tokenizer()
    ids, whole = tokenizer(prompt).input_ids, tokenizer(prompt + continuation).input_ids
    total, n, top = 0.0, len(whole) - len(ids), None
    for token in whole[len(ids) :]:
        with torch.no_grad():
            logprobs = model.hf(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        if top is None:
            top = logprobs.argmax().item() == token
        total += logprobs[token].item()
        ids = [*ids, token]
    return ContinuationScore(total, n, bool(top))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_scores_are_those_of_the_chain(family: str, batch_size: int) -> None:
    model = tiny_local(family)
    prompts, continuations = zip(*PAIRS, strict=True)
    told: list[tuple[int, int]] = []
    scores = score_continuations(
        model, prompts, continuations, batch_size=batch_size, progress=lambda *x: told.append(x)
    )
    for score, (prompt, continuation) in zip(scores, PAIRS, strict=True):
        expected = by_chain(model, prompt, continuation)
        assert score.n_tokens == expected.n_tokens
        assert score.logprob == pytest.approx(expected.logprob, abs=1e-4 * expected.n_tokens)
        assert score.first_is_top == expected.first_is_top
    assert told[-1] == (7, 7)
    assert {score.n_tokens for score in scores} == {1, 5, 11, 14}


def test_the_likeliest_token_is_top_and_the_next_is_not() -> None:
    model = tiny_local("llama", seed=2)
    prompt = "the red car and the"
    ranked = model.next_token_logprobs([prompt])[0].argsort(descending=True).tolist()
    words = [text for text in (model.tokenizer.decode([i]) for i in ranked) if text.startswith(" ")]
    usable = [word for word in words if len(continuation_ids(model.tokenizer, prompt, word)) == 1][:2]
    first, second = score_continuations(model, [prompt, prompt], usable)
    assert first.logprob > second.logprob
    assert not second.first_is_top
    assert first.first_is_top == (model.encode(prompt + usable[0])[-1] == ranked[0])


def test_all_first_tokens_together_have_probability_one() -> None:
    model = tiny_local("llama")
    prompt = "the red"
    ids = range(model.vocab_size)
    total = model.next_token_logprobs([prompt] * 2, [list(ids)] * 2)[0].exp().sum().item()
    assert math.isclose(total, 1, abs_tol=1e-5)


def test_a_single_token_is_one_id_in_its_place() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.convert_ids_to_tokens(continuation_ids(tokenizer, "the car is", " red")) == ["Ġred"]
    assert len(continuation_ids(tokenizer, "the car is", " zebra")) > 1


def test_a_continuation_that_merges_with_the_prompt_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(MindscopeError, match=r"'red' does not start a token of its own after 'the car is '"):
        continuation_ids(tokenizer, "the car is ", "red")
    with pytest.raises(MindscopeError, match="does not start a token of its own"):
        continuation_ids(tokenizer, "the car", "")


def test_unusable_pairs_are_named() -> None:
    model = tiny_local("llama")
    with pytest.raises(MindscopeError, match="2 prompts and 1 continuations"):
        score_continuations(model, ["the", "a"], [" red"])
    with pytest.raises(MindscopeError, match="pair 1: 'red' does not start"):
        score_continuations(model, ["the", "the car is "], [" car", "red"])
    with pytest.raises(MindscopeError, match="prompt 1 is empty"):
        score_continuations(model, ["the", ""], [" car", " red"])
    with pytest.raises(MindscopeError, match=r"prompt 1 has .* context of 256"):
        score_continuations(model, ["the", "the"], [" car", " red" * 300])


def test_nothing_to_score() -> None:
    assert score_continuations(tiny_local("llama"), [], []) == []
