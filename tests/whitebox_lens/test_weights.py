"""Expert weights: linear logits, margins against ranks, the search, the split."""

import json

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lens import Experts, Lens
from mindscope.whitebox.lens.router import fit_router
from mindscope.whitebox.lens.weights import (
    Objective,
    WeightItem,
    candidate_ids,
    fit_weights,
    linear_logits,
    read_items,
    split,
)
from mindscope.whitebox.model import LocalModel
from support.tiny_models import tiny_local, vocab_size


def unembed(model: LocalModel, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return part(model.hf, model.layout.head)(part(model.hf, model.layout.final_norm)(x))


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "gpt2"])
def test_logits_are_linear_in_the_weights_under_an_rmsnorm_only(family: str) -> None:
    model = tiny_local(family)
    generator = torch.Generator().manual_seed(0)
    images, w = torch.randn(6, 3, 32, generator=generator), torch.tensor([0.5, -2.0, 1.0])
    every = torch.arange(vocab_size())
    mixed = torch.einsum("e,pec->pc", w, linear_logits(model, images, every))
    x = torch.einsum("e,ped->pd", w, images)
    direct = unembed(model, x) * x.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(mixed, direct, rtol=1e-3, atol=1e-3) == (family != "gpt2")


def items_for(candidates: torch.Tensor) -> list[WeightItem]:
    return [WeightItem(f"task {i % 3}", str(i), (1,), -1, (tuple(ids),)) for i, ids in enumerate(candidates.tolist())]


def test_margin_is_at_least_zero_just_when_the_rank_is_at_most_k() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(200, 1, 40, generator=generator) * 2).round() / 2  # many ties
    candidates = torch.randint(0, 40, (200, 3), generator=generator)
    for k in (1, 10, 40):
        margin, _ = Objective(logits, torch.arange(40), items_for(candidates), k).margins(torch.ones(1))
        best = logits[:, 0].gather(1, candidates).amax(1)
        ranks = 1 + (logits[:, 0] > best[:, None]).sum(1)
        assert torch.equal(margin >= 0, ranks <= k)


def test_tasks_count_alike_whatever_their_number_of_pairs() -> None:
    logits = torch.zeros(4, 1, 5)
    logits[:, 0, 0] = 1.0
    items = [
        WeightItem("a", "1", (1,), -1, ((0,), (3,))),
        WeightItem("a", "2", (1,), -1, ((0,),)),
        WeightItem("a", "3", (1,), -1, ((0,),)),
        WeightItem("b", "1", (1,), -1, ((4,),)),
    ]
    exact, _ = Objective(logits, torch.arange(5), items, 1).score(torch.ones(1))
    assert exact == pytest.approx((3 / 4 + 0 / 1) / 2)


@pytest.fixture(scope="module")
def hard() -> Objective:
    """Experts 0 and 2 say the candidate, 2 with the wrong sign; 1 and 3 are noise. Only a signed mix finds all."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(60, 4, 50, generator=generator)
    candidates = torch.randint(0, 50, (60, 1), generator=generator)
    rows = torch.arange(60)
    logits[rows, 0, candidates[:, 0]] += 1.5
    logits[rows, 2, candidates[:, 0]] -= 2.5
    return Objective(logits, torch.arange(50), items_for(candidates), 3)


def test_the_search_beats_its_starts_and_finds_the_sign(hard: Objective) -> None:
    found = hard.search(steps=120, learning_rate=0.05, exact_every=5)
    starts = hard._starts()
    assert all((found.pass_at_k, found.surrogate) >= hard.score(w) for w in starts.values())
    assert found.pass_at_k > max(hard.score(w)[0] for w in starts.values()) + 0.1
    assert found.weights[0] > 0 > found.weights[2]
    assert found.weights.norm().item() == pytest.approx(1, abs=1e-5)
    assert hard.score(found.weights)[0] == found.pass_at_k


def test_no_steps_give_the_best_start(hard: Objective) -> None:
    found = hard.search(steps=0, learning_rate=0.05, exact_every=5)
    assert (found.pass_at_k, found.surrogate) == pytest.approx(max(hard.score(w) for w in hard._starts().values()))
    assert found.step == 0


def test_scale_does_not_matter_and_sign_does(hard: Objective) -> None:
    w = torch.tensor([1.0, 0.2, -1.0, 0.1])
    assert hard.score(3 * w) == pytest.approx(hard.score(w))
    assert hard.score(-w)[0] < hard.score(w)[0]


def lens_with_experts(model: LocalModel) -> Lens:
    logit = Lens.logit(model)
    generator = torch.Generator().manual_seed(0)
    router = fit_router(torch.randn(40, 32, generator=generator), n_experts=2, n_components=3)
    maps = torch.stack([torch.eye(32), torch.randn(32, 32, generator=generator)])
    experts = Experts(maps, torch.tensor([60, 60]), torch.tensor([False, False]), router)
    return Lens(logit.metadata.model_copy(update={"estimator": "J++"}), logit.matrices, experts={1: experts})


def test_fit_weights_prefers_the_expert_that_knows(model: LocalModel) -> None:
    """The first expert is the identity, and each item's candidate is what the logit lens says at its position."""
    lens = lens_with_experts(model)
    prompts = [model.encode(text) for text in ("the red car", "In the painting", "apple - window", "a blue boat is")]

    def read(ids: list[int], position: int) -> int:
        with torch.no_grad():
            h = model.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states[2][0, position]
        logits = unembed(model, h)
        text = [model.tokenizer.decode([i]) for i in range(len(logits))]
        return max((i for i in range(len(logits)) if any(map(str.isalnum, text[i]))), key=lambda i: float(logits[i]))

    items = [
        WeightItem("t", str(i), tuple(ids), position, ((model.run(lambda i=ids, p=position: read(i, p)),),))
        for i, ids in enumerate(prompts)
        for position in (-1, 1)
    ]
    found = fit_weights(model, lens, items, k=1, steps=20)
    assert list(found) == [1]
    assert found[1].pass_at_k == 1.0
    assert found[1].weights[0] > 0.5 > abs(found[1].weights[1])
    tuned = lens.with_weights({1: found[1].weights})
    expected = torch.einsum("e,eij->ij", found[1].weights, lens.experts[1].maps)
    assert torch.allclose(tuned.matrix(1), expected)
    assert torch.equal(tuned.matrix(0), lens.matrix(0))


def test_fit_weights_refusals(model: LocalModel) -> None:
    item = WeightItem("t", "1", (5, 6), -1, ((7,),))
    with pytest.raises(MindscopeError, match="no experts"):
        fit_weights(model, Lens.logit(model), [item])
    with pytest.raises(MindscopeError, match="no items"):
        fit_weights(model, lens_with_experts(model), [])
    with pytest.raises(MindscopeError, match="tokens that compete"):
        fit_weights(model, lens_with_experts(model), [item], k=10_000)
    gpt2 = tiny_local("gpt2")
    with pytest.raises(MindscopeError, match="through LayerNorm"):
        fit_weights(gpt2, lens_with_experts(gpt2), [item])


def many(drop: str = "") -> list[WeightItem]:
    items = [WeightItem(task, f"{task} {i}", (1,), -1, ((2,),)) for task in ("poetry", "typo") for i in range(40)]
    return [item for item in items if item.name != drop]


def test_the_split_is_stratified_disjoint_and_of_about_the_fraction() -> None:
    tuning, held_out = split(many())
    assert split(many()) == (tuning, held_out)
    assert sorted(item.name for item in tuning + held_out) == sorted(item.name for item in many())
    for task in ("poetry", "typo"):
        assert 3 <= sum(item.task == task for item in tuning) <= 14
    assert split(many(), seed=1)[0] != tuning
    one_each, _ = split(many(), fraction=0.0)
    assert sorted(item.task for item in one_each) == ["poetry", "typo"]


def test_dropping_an_item_moves_no_other() -> None:
    tuning, held_out = split(many())
    for gone in (tuning[0], held_out[0]):
        fewer_tuning, fewer_held_out = split(many(drop=gone.name))
        assert fewer_tuning == [item for item in tuning if item != gone]
        assert fewer_held_out == [item for item in held_out if item != gone]


def test_candidates_are_single_tokens_with_and_without_a_space(model: LocalModel) -> None:
    texts = {model.tokenizer.decode([i]) for i in candidate_ids(model.tokenizer, "red")}
    assert " red" in texts
    assert {text.strip().lower() for text in texts} == {"red"}
    assert candidate_ids(model.tokenizer, "xylophone") == ()


def test_items_are_read_with_what_this_tokenizer_can_say(model: LocalModel, tmp_path) -> None:
    rows = [
        {"task": "multihop", "name": "a", "prompt": "the car", "intermediates": ["red", "xylophone"]},
        {"task": "multihop", "name": "b", "prompt": "the car", "intermediates": ["xylophone"]},
        {
            "task": "typo",
            "name": "c",
            "prompt": "the blue car",
            "intermediates": ["blue"],
            "position": 1,
            "answer": "x",
        },
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    items = read_items(path, model)
    assert [(item.name, item.position, len(item.candidates)) for item in items] == [("a", -1, 1), ("c", 1, 1)]
    assert list(items[0].ids) == model.encode("the car")
    path.write_text(json.dumps(rows[1]))
    with pytest.raises(MindscopeError, match="no intermediate is a single token"):
        read_items(path, model)
    path.write_text(json.dumps({**rows[0], "intermediates": []}))
    with pytest.raises(MindscopeError, match="intermediates"):
        read_items(path, model)
