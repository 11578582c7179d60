import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel
from mindscope.whitebox.packing import LONGEST_SEQUENCE, PrefixTree, shared_prefix_batches
from support.tiny_models import FAMILIES, tiny_local, tiny_model, tiny_tokenizer

CONTEXTS = [
    "In the painting, the car is red. In reality, the car is blue.",
    "In the painting, the house is red. In reality, the house is blue.",
    "In the photo, the boat is white.",
]
QUERIES = [" In the painting, it is", " In reality, it is"]
PROMPTS = [
    *(context + query for query in QUERIES for context in CONTEXTS),
    "In the painting",
    "In",
    CONTEXTS[0] + QUERIES[0],
]
"""Shared contexts out of order, one prompt that begins all others of its kind, and one that occurs twice."""


def unlimited(local: LocalModel) -> LocalModel:
    """The model with an attention window that its prompts do not leave."""
    config = local.hf.config.get_text_config()
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window = 256
    for module in local.hf.modules():
        if getattr(module, "sliding_window", None) is not None:
            module.sliding_window = 256
    return local


def one_at_a_time(local: LocalModel, prompts: list[str]) -> torch.Tensor:
    return torch.cat([local.next_token_logprobs([prompt]) for prompt in prompts])


def packed(local: LocalModel, prompts: list, batch_size: int = 32) -> torch.Tensor:
    out = torch.full((len(prompts), local.vocab_size), torch.nan)
    for indices, logprobs in shared_prefix_batches(local, prompts, batch_size=batch_size):
        assert torch.isnan(out[indices]).all(), "a prompt came twice"
        out[indices] = logprobs
    return out


@pytest.mark.parametrize("batch_size", [1, 4, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_beginning_changes_nothing(family: str, batch_size: int) -> None:
    local = unlimited(tiny_local(family))
    assert (packed(local, PROMPTS, batch_size) - one_at_a_time(local, PROMPTS)).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "mistral", "olmo3"])
def test_prompts_that_leave_the_attention_window_are_right_too(family: str) -> None:
    local = tiny_local(family)
    assert max(map(len, local.rows(PROMPTS))) > local.hf.config.get_text_config().sliding_window
    assert (packed(local, PROMPTS) - one_at_a_time(local, PROMPTS)).abs().max() < 1e-5


def test_double_precision_agrees_to_rounding() -> None:
    local = LocalModel(tiny_model("llama").double(), tiny_tokenizer())
    assert (packed(local, PROMPTS).double() - one_at_a_time(local, PROMPTS).double()).abs().max() < 1e-6


def test_a_shared_beginning_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    local = tiny_local("llama")
    read: list[int] = []
    forward = local.hf.forward

    def counted(*args: object, **kwargs: torch.Tensor) -> object:
        read.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    monkeypatch.setattr(local.hf, "forward", counted)
    packed(local, PROMPTS)
    rows = local.rows(PROMPTS)
    beginnings = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert read == [len(beginnings)]
    assert len(beginnings) < 0.6 * sum(map(len, rows))


def test_long_prompts_are_cut_into_several_trees_and_every_prompt_is_read() -> None:
    local = tiny_local("llama")
    prompts = [[1, 20 + i, *range(30, 30 + 250)] for i in range(9)]
    sizes = [len(indices) for indices, _ in shared_prefix_batches(local, prompts)]
    assert sizes == [LONGEST_SEQUENCE // 252] * 2 + [1]
    assert (
        packed(local, prompts) - torch.cat([local.next_token_logprobs([row]) for row in prompts])
    ).abs().max() < 1e-5


def test_progress_counts_prompts_up_to_all_of_them() -> None:
    seen: list[tuple[int, int]] = []
    list(shared_prefix_batches(tiny_local("gpt2"), PROMPTS, batch_size=4, progress=lambda *at: seen.append(at)))
    assert seen == [(4, 9), (8, 9), (9, 9)]


def test_no_prompts_are_no_batches() -> None:
    assert list(shared_prefix_batches(tiny_local("gpt2"), [])) == []


def test_what_cannot_be_read_says_why() -> None:
    with pytest.raises(MindscopeError, match="prompt 1 is empty"):
        list(shared_prefix_batches(tiny_local("gpt2"), ["the", ""]))
    with pytest.raises(MindscopeError, match="batch_size is 0"):
        list(shared_prefix_batches(tiny_local("gpt2"), ["the"], batch_size=0))


def test_a_tree_of_three_sequences() -> None:
    tree = PrefixTree()
    for row in ([5, 6], [5, 6, 7], [5, 8]):
        tree.add(row)
    assert (tree.tokens, tree.parents, tree.ends) == ([5, 6, 7, 8], [-1, 0, 1, 0], [1, 2, 3])
    assert tree.visible().tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, False, False, True],
    ]
