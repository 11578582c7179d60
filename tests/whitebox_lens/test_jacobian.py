"""The estimator against brute force, and against every plausible mistake in its sums, means and positions."""

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.jacobian import (
    JacobianSettings,
    data_sha256,
    kept_positions,
    prompt_sums,
    record,
)
from mindscope.whitebox.lens.router import fit_router
from support.pair_jacobians import mean_over_sources, pair_jacobians, random_ids, relative
from support.tiny_models import FAMILIES, tiny_local

EXACT = 1e-5
"""fp32: the families cast to it inside norms and softmax even when loaded in fp64."""
LAST = 2


def settings(**changes) -> JacobianSettings:
    return JacobianSettings(**{"blocks": (0, 1), "target_block": LAST, "skip_first": 10, **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_brute_force_in_every_family(family: str) -> None:
    """19 tokens, windows of 8: the tokens before K (0..9) reach beyond the window."""
    model, ids = tiny_local(family), random_ids(19)
    sums, weights = prompt_sums(model, ids, settings())
    for block in (0, 1):
        pairs = pair_jacobians(model, ids, block=block, target=LAST)
        assert sums[block].shape == (1, model.d_model, model.d_model)
        assert relative(sums[block][0], mean_over_sources(pairs, range(10, 18))) < EXACT
        assert weights[block].tolist() == [1]


def test_fp64_products_equal_brute_force_to_1e_11() -> None:
    model, ids = tiny_local("gpt2"), random_ids(12)
    model.hf.double()
    chosen = settings(blocks=(0,), skip_first=3)
    graph = model.run(lambda: record(model, ids, chosen))
    parts = model.run(lambda: list(graph.products(torch.eye(32), 5)))
    products = torch.cat([by_block[0] for _, by_block in parts])
    pairs = pair_jacobians(model, ids, block=0, target=LAST)
    kept = range(3, 11)
    expected = torch.stack([sum(pairs[t, :, s] for t in kept if t >= s) for s in kept], dim=1)
    assert products.dtype == torch.float64
    assert relative(products, expected) < 1e-11


@pytest.fixture(scope="module")
def example():
    model, ids = tiny_local("llama"), random_ids(14)
    pairs = pair_jacobians(model, ids, block=0, target=LAST)
    sums, _ = prompt_sums(model, ids, settings(blocks=(0,), skip_first=3))
    return pairs, sums[0][0]


def test_no_gradient_flows_backwards_in_time(example) -> None:
    pairs, _ = example
    assert all(pairs[t, :, s].abs().max() == 0 for s in range(14) for t in range(s))


@pytest.mark.parametrize(
    "mistake",
    [
        "all targets",
        "diagonal",
        "sum over sources",
        "mean over pairs",
        "with the last",
        "skip + 1",
        "skip - 1",
        "transposed",
    ],
)
def test_each_mistake_would_show(example, mistake: str) -> None:
    pairs, got = example
    kept = range(3, 13)
    right = mean_over_sources(pairs, kept)
    wrong = {
        "all targets": lambda: sum(pairs[t, :, s] for s in kept for t in range(s, 14)) / len(kept),
        "diagonal": lambda: sum(pairs[s, :, s] for s in kept) / len(kept),
        "sum over sources": lambda: right * len(kept),
        "mean over pairs": lambda: right * 2 / (len(kept) + 1),
        "with the last": lambda: mean_over_sources(pairs, range(3, 14)),
        "skip + 1": lambda: mean_over_sources(pairs, range(4, 13)),
        "skip - 1": lambda: mean_over_sources(pairs, range(2, 13)),
        "transposed": lambda: right.T,
    }[mistake]()
    assert relative(got, right) < EXACT
    assert relative(got, wrong) > 1e-2


@pytest.mark.parametrize("rows_per_pass", [1, 5, 32, 100])
def test_rows_per_pass_does_not_change_the_result(rows_per_pass: int) -> None:
    model, ids = tiny_local("gemma2"), random_ids(16)
    reference, _ = prompt_sums(model, ids, settings(rows_per_pass=16))
    sums, _ = prompt_sums(model, ids, settings(rows_per_pass=rows_per_pass))
    assert all(relative(sums[block], reference[block]) < 1e-6 for block in (0, 1))


def test_a_pass_holds_only_its_rows() -> None:
    model, ids = tiny_local("llama"), random_ids(16)

    def shapes() -> list[int]:
        graph = record(model, ids, settings())
        return [len(g) for _, by_block in graph.products(torch.eye(32), 5) for g in by_block.values()]

    assert model.run(shapes) == [5, 5] * 6 + [2, 2]


def test_linear_blocks_give_the_product_of_their_matrices() -> None:
    model, ids = tiny_local("llama", n_layers=4), random_ids(15)
    maps = [torch.randn(32, 32, generator=torch.Generator().manual_seed(i)) * 0.1 for i in range(4)]
    for block, w in zip(part(model.hf, model.layout.blocks), maps, strict=True):
        block.forward = lambda hidden_states, *args, w=w, **kwargs: hidden_states + hidden_states @ w.T
    sums, _ = prompt_sums(model, ids, settings(blocks=(0, 1, 2), target_block=3, skip_first=4))
    identity = torch.eye(32)
    for block in range(3):
        product = identity
        for w in maps[block + 1 :]:
            product = (identity + w) @ product
        assert relative(sums[block][0], product) < EXACT


def test_late_blocks_are_nearer_the_identity() -> None:
    model, ids = tiny_local("llama", n_layers=5), random_ids(20)
    sums, _ = prompt_sums(model, ids, settings(blocks=(0, 1, 2, 3), target_block=4))
    distances = [relative(sums[block][0], torch.eye(32)) for block in range(4)]
    assert distances == sorted(distances, reverse=True)


def test_a_penultimate_target_stops_there() -> None:
    model, ids = tiny_local("qwen3", n_layers=4), random_ids(14)
    sums, _ = prompt_sums(model, ids, settings(blocks=(1,), target_block=2, skip_first=5))
    pairs = pair_jacobians(model, ids, block=1, target=2)
    assert relative(sums[1][0], mean_over_sources(pairs, range(5, 13))) < EXACT


def test_longer_prompts_are_cut() -> None:
    model, ids = tiny_local("llama"), random_ids(30)
    cut, _ = prompt_sums(model, ids, settings(max_tokens=16))
    short, _ = prompt_sums(model, ids[:16], settings())
    assert torch.equal(cut[0], short[0])


def test_experts_sum_the_positions_routed_to_them() -> None:
    model, ids = tiny_local("llama"), random_ids(19)
    chosen = settings(blocks=(1,), skip_first=5)
    kept = range(5, 18)
    generator = torch.Generator().manual_seed(1)
    router = fit_router(torch.randn(200, 32, generator=generator), n_experts=3, n_components=4)
    sums, counts = prompt_sums(model, ids, chosen, {1: router})
    pairs = pair_jacobians(model, ids, block=1, target=LAST)

    def residual() -> torch.Tensor:
        with torch.no_grad():
            return model.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states[2][0]

    experts = router.assign(model.run(residual)[kept.start : kept.stop])
    assert len(set(experts.tolist())) > 1
    for e in range(3):
        positions = [p for p, own in zip(kept, experts.tolist(), strict=True) if own == e]
        assert counts[1][e] == len(positions)
        expected = sum((pairs[t, :, s] for s in positions for t in kept if t >= s), torch.zeros(32, 32))
        assert torch.allclose(sums[1][e], expected, atol=1e-4, rtol=1e-4)
    pooled, _ = prompt_sums(model, ids, chosen)
    assert relative(sums[1].sum(0) / len(kept), pooled[1][0]) < EXACT


def test_a_finite_difference_agrees() -> None:
    """(z(h + eps u) - z(h - eps u)) / 2 eps, with h moved at all kept positions alike: the column sums of G."""
    model, ids = tiny_local("gemma3"), random_ids(16)
    u = torch.randn(32, generator=torch.Generator().manual_seed(3))
    block = part(model.hf, model.layout.blocks)[0]

    def target(shift: torch.Tensor) -> torch.Tensor:
        def move(module, args, output):
            output = output.clone()
            output[:, 10:15] += shift
            return output

        hook = block.register_forward_hook(move)
        kept = {}
        last = part(model.hf, model.layout.blocks)[LAST]
        end = last.register_forward_hook(lambda module, args, output: kept.update(z=output[0, 10:15].sum(0)))
        with torch.no_grad():
            model.hf(torch.tensor([ids]), use_cache=False)
        hook.remove()
        end.remove()
        return kept["z"]

    eps = 1e-2
    difference = model.run(lambda: (target(eps * u) - target(-eps * u)) / (2 * eps))
    sums, _ = prompt_sums(model, ids, settings(blocks=(0,)))
    predicted = 5 * sums[0][0] @ u
    assert torch.nn.functional.cosine_similarity(difference, predicted, dim=0) > 0.999


def test_the_model_is_left_as_it_was() -> None:
    model, ids = tiny_local("llama"), random_ids(14)
    before = model.next_token_logprobs([ids])
    with pytest.raises(MindscopeError):
        prompt_sums(model, ids[:5], settings())
    prompt_sums(model, ids, settings(rules="relp"))
    assert model.hf.config._attn_implementation == "sdpa"
    assert not any(block._forward_hooks for block in part(model.hf, model.layout.blocks))
    assert torch.equal(model.next_token_logprobs([ids]), before)


def test_kept_positions() -> None:
    assert kept_positions(128, 16) == range(16, 127)
    assert len(kept_positions(18, 16)) == 1
    with pytest.raises(MindscopeError, match="at least 18"):
        kept_positions(17, 16)


def test_training_mode_is_refused() -> None:
    model = tiny_local("llama")
    part(model.hf, model.layout.blocks)[1].mlp.train()
    with pytest.raises(MindscopeError, match=r"layers\.1\.mlp is in training mode"):
        prompt_sums(model, random_ids(14), settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"blocks": (0, 2)}, "below the target"), ({"blocks": (1, 0)}, "ascending"), ({"target_block": 3}, "has 0..2")],
)
def test_settings_that_the_model_lacks_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(MindscopeError, match=message):
        settings(**changes).check(tiny_local("llama"))


def test_the_data_hash_knows_order_and_bounds() -> None:
    hashes = {data_sha256(prompts) for prompts in ([[1, 2], [3]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2, 3]])}
    assert len(hashes) == 4
