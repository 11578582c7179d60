"""Captured residuals against bare PyTorch hooks, one prompt at a time."""

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import capture
from support.plain_hooks import residuals
from support.tiny_models import FAMILIES, tiny_local, tiny_model

PROMPTS = [
    "the red car",
    "a",
    "In the painting, the car is red. In reality, the car is blue. In the painting, the car is",
    "Word pairs. chair - tiger. apple - window. river -",
    "In the photo, the boat is",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_equal_bare_hooks_on_each_prompt_alone(family: str) -> None:
    model, plain = tiny_local(family), tiny_model(family)
    seen = []
    for found in capture(model, PROMPTS, [2, 0], batch_size=2):
        expected = residuals(plain, model.encode(PROMPTS[found.prompt]))
        assert found.token_ids == model.encode(PROMPTS[found.prompt])
        assert found.positions == list(range(len(found.token_ids)))
        assert list(found.values) == [0, 2]
        for block, values in found.values.items():
            torch.testing.assert_close(values, expected[block], atol=1e-4, rtol=1e-4)
        seen.append(found.prompt)
    assert sorted(seen) == list(range(len(PROMPTS)))


def test_positions_for_all_prompts_or_for_each() -> None:
    model, plain = tiny_local("llama"), tiny_model("llama")
    rows = [model.encode(prompt) for prompt in PROMPTS]
    own = [[0], [1, 0], [-1, 3, 3], [], [2]]
    for positions, wanted in (([-2, 0], [[-2, 0]] * len(rows)), (own, own)):
        for found in capture(model, PROMPTS, [1], positions, batch_size=3):
            row = rows[found.prompt]
            expected = residuals(plain, row)[1][wanted[found.prompt]]
            torch.testing.assert_close(found.values[1], expected, atol=1e-5, rtol=1e-5)
            assert found.positions == [at % len(row) for at in wanted[found.prompt]]


def test_progress_and_no_prompts() -> None:
    model = tiny_local("llama")
    told: list[tuple[int, int]] = []
    list(capture(model, PROMPTS, [0], batch_size=2, progress=lambda *counts: told.append(counts)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert list(capture(model, [], [0])) == []


def test_blocks_beyond_the_last_wanted_do_not_run() -> None:
    model = tiny_local("llama")
    ran: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda *_, i=i: ran.append(i)) for i, block in enumerate(model.hf.model.layers)
    ]
    try:
        list(capture(model, ["the red car"], [1]))
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["the"], [3]), "block 3 does not exist; the model's blocks are 0 to 2"),
        ((["the"], [-1]), "block -1 does not exist"),
        ((["the"], []), "no block is named"),
        ((["the", "a"], [0], [[0], [9]]), "prompt 1 has 2 tokens and no position 9"),
        ((["the", "a"], [0], [[0]]), "positions has 1 lists for 2 prompts"),
        (([""], [0]), "prompt 0 is empty"),
    ],
)
def test_what_does_not_exist_is_named(arguments: tuple, said: str) -> None:
    with pytest.raises(MindscopeError, match=said):
        list(capture(tiny_local("llama"), *arguments))
