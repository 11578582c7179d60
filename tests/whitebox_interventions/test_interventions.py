"""Edits against the equations, worked out in float64 with torch.linalg.pinv, and against bare PyTorch hooks."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import capture
from mindscope.whitebox.architectures import part
from mindscope.whitebox.interventions import (
    Ablate,
    Change,
    Clamp,
    Directions,
    Edit,
    Editor,
    MatchedControl,
    Steer,
    Swap,
    clamped,
    decoy_pair,
    edited_logits,
    lens_directions,
    matched_control,
)
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from mindscope.whitebox.model import LocalModel
from support.plain_hooks import hooked, residuals
from support.tiny_models import D_MODEL, FAMILIES, tiny_local, tiny_model, tiny_tokenizer, vocab_size

IDS = [1, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220]
OTHER = [1, 9, 8, 7, 6, 5, 4]
READINGS = ("coordinate", "delta")


def random_lens(model: LocalModel) -> Lens:
    generator = torch.Generator().manual_seed(5)
    maps = {
        b: torch.eye(D_MODEL) + 0.3 * torch.randn(D_MODEL, D_MODEL, generator=generator)
        for b in range(model.n_blocks - 1)
    }
    return Lens(Lens.logit(model).metadata, maps)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PAIR = gaussian(2, D_MODEL, seed=1) * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
H = gaussian(7, D_MODEL, seed=2)
AT = list(range(1, 8))


def swapped(h: torch.Tensor, alpha: float, reading: str, vectors: torch.Tensor = PAIR) -> torch.Tensor:
    v = vectors.T
    c = torch.linalg.pinv(v) @ h
    exchanged = c.flip(0)
    return h + v @ (alpha * (exchanged - c) if reading == "delta" else alpha * exchanged - c)


def after(change: Change, h: torch.Tensor = H) -> torch.Tensor:
    return h + change.delta(h, AT)


# The swap's algebra


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_a_swap_is_its_equation(reading: str, alpha: float) -> None:
    expected = torch.stack([swapped(h, alpha, reading) for h in H])
    torch.testing.assert_close(after(Swap(Directions(PAIR), alpha, reading)), expected, atol=1e-11, rtol=0)


def test_the_two_readings_agree_at_one_and_only_there() -> None:
    d = Directions(PAIR)
    torch.testing.assert_close(after(Swap(d, 1.0, "coordinate")), after(Swap(d, 1.0, "delta")), atol=1e-11, rtol=0)
    assert (after(Swap(d, 2.0, "coordinate")) - after(Swap(d, 2.0, "delta"))).norm(dim=-1).min() > 0.01
    c = d.coordinates(H)
    doubled, overshot = (d.coordinates(after(Swap(d, 2.0, reading))) for reading in READINGS)
    torch.testing.assert_close(doubled, 2 * c.flip(-1))
    torch.testing.assert_close(overshot, torch.stack([2 * c[:, 1] - c[:, 0], 2 * c[:, 0] - c[:, 1]], -1))


@pytest.mark.parametrize("reading", READINGS)
def test_invariants_of_the_swap(reading: str) -> None:
    d = Directions(PAIR)
    once = Swap(d, 1.0, reading)
    torch.testing.assert_close(after(once, after(once)), H, atol=1e-11, rtol=0)
    complement = torch.eye(D_MODEL, dtype=torch.float64) - PAIR.T @ torch.linalg.pinv(PAIR.T)
    torch.testing.assert_close(after(Swap(d, 2.0, reading)) @ complement, H @ complement, atol=1e-11, rtol=0)
    rescaled = Directions(7 * PAIR)
    torch.testing.assert_close(after(Swap(rescaled, 2.0, reading)), after(Swap(d, 2.0, reading)), atol=1e-10, rtol=0)
    unequal = Directions(PAIR / PAIR.norm(dim=-1, keepdim=True))
    assert (after(Swap(unequal, 1.0, reading)) - after(once)).norm() > 0.1
    delta, along = once.delta(H, AT), PAIR[0] - PAIR[1]
    torch.testing.assert_close(torch.cosine_similarity(delta, along[None]).abs(), torch.ones(7, dtype=torch.float64))


def test_alpha_zero_does_nothing_or_ablates() -> None:
    d = Directions(PAIR)
    assert torch.equal(after(Swap(d, 0.0, "delta")), H)
    torch.testing.assert_close(
        d.coordinates(after(Swap(d, 0.0, "coordinate"))), torch.zeros(7, 2).double(), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(after(Ablate(d)), after(Swap(d, 0.0, "coordinate")), atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_band_of_live_delta_swaps_multiplies_the_difference(alpha: float) -> None:
    d = Directions(PAIR)
    h = H
    for _ in range(3):
        h = after(Swap(d, alpha, "delta"), h)
    c, found = d.coordinates(H), d.coordinates(h)
    torch.testing.assert_close(found[:, 0] - found[:, 1], (1 - 2 * alpha) ** 3 * (c[:, 0] - c[:, 1]))
    torch.testing.assert_close(found.sum(-1), c.sum(-1))


# The other changes


def test_a_clamp_is_idempotent_and_per_position() -> None:
    d = Directions(PAIR)
    targets = gaussian(7, 2, seed=3)
    clamp = Clamp(d, dict(zip(AT, targets, strict=True)))
    torch.testing.assert_close(d.coordinates(after(clamp)), targets, atol=1e-11, rtol=0)
    torch.testing.assert_close(after(clamp, after(clamp)), after(clamp), atol=1e-11, rtol=0)
    everywhere = Clamp(d, targets[0])
    torch.testing.assert_close(d.coordinates(after(everywhere)), targets[:1].expand(7, 2), atol=1e-11, rtol=0)
    to_swap = Clamp(d, dict(zip(AT, d.coordinates(H).flip(-1), strict=True)))
    torch.testing.assert_close(after(to_swap), after(Swap(d)), atol=1e-11, rtol=0)


def test_steering_adds_the_vectors() -> None:
    torch.testing.assert_close(after(Steer(Directions(PAIR[:1]), -1.5)), H - 1.5 * PAIR[0], atol=1e-11, rtol=0)


def test_ablation_of_one_vector_removes_the_projection() -> None:
    unit = PAIR[0] / PAIR[0].norm()
    torch.testing.assert_close(after(Ablate(Directions(PAIR[:1]))), H - (H @ unit)[:, None] * unit, atol=1e-11, rtol=0)


@pytest.mark.parametrize("reading", READINGS)
def test_the_control_is_as_long_orthogonal_one_direction_and_seeded(reading: str) -> None:
    swap = Swap(Directions(PAIR), 2.0, reading)
    control = matched_control(swap, seed=11)
    delta = control.delta(H, AT)
    torch.testing.assert_close(delta.norm(dim=-1), swap.delta(H, AT).norm(dim=-1))
    assert (delta @ PAIR.T).abs().max() < 1e-10
    assert torch.linalg.matrix_rank(delta, rtol=1e-9) == 1
    assert (delta @ delta[0] > 0).all()
    assert torch.equal(matched_control(swap, seed=11).delta(H, AT), delta)
    assert not torch.allclose(matched_control(swap, seed=12).delta(H, AT), delta)
    with pytest.raises(MindscopeError, match="lies in the span"):
        MatchedControl(swap, PAIR[0] - 2 * PAIR[1])


def test_a_decoy_is_two_others_of_the_category() -> None:
    drawn = {decoy_pair([3, 5, 7, 9, 11], avoid={5, 9}, seed=seed) for seed in range(40)}
    assert {token for pair in drawn for token in pair} == {3, 7, 11}
    assert all(first != second for first, second in drawn)
    assert decoy_pair([11, 9, 7, 5, 3], {5, 9}, seed=4) == decoy_pair([3, 5, 7, 9, 11], {9, 5}, seed=4)
    with pytest.raises(MindscopeError, match="1 tokens are left for a decoy"):
        decoy_pair([3, 5], {5}, seed=0)


# Refusals


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Directions(torch.stack([PAIR[0], PAIR[0]])), r"directions 0 and 1 have \|cos\| 1\.000000"),
        (lambda: Directions(torch.stack([PAIR[0], PAIR[1], -PAIR[0] + 0.01 * PAIR[1]])), "directions 0 and 2"),
        (lambda: Directions(torch.stack([PAIR[0], 0 * PAIR[0]])), "zero or not finite"),
        (lambda: Directions(PAIR * torch.inf), "zero or not finite"),
        (lambda: Swap(Directions(PAIR[:1])), "takes 2 directions, not 1"),
        (lambda: Swap(Directions(PAIR), reading="both"), "reading is 'both'"),
        (lambda: Swap(Directions(PAIR), alpha=torch.nan), "alpha is nan"),
    ],
)
def test_degenerate_changes_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(MindscopeError, match=said):
        make()


def test_unusable_edits_are_refused() -> None:
    model = tiny_local("llama")
    swap = Swap(Directions(PAIR))
    for edit, said in (
        (Edit(3, [1], swap), "block 3 does not exist"),
        (Edit(0, range(4), swap), "names position 0; the first token is never edited"),
        (Edit(0, [-1], swap), "positions start at 1"),
        (Edit(0, [1], Swap(Directions(PAIR[:, :9]))), "9 dimensions, the model's residual 32"),
        (Edit(0, [1, 2], Clamp(Directions(PAIR), {1: PAIR[0, :2]})), "no target for some"),
    ):
        with pytest.raises(MindscopeError, match=said):
            Editor(model, [[edit]])
    with pytest.raises(MindscopeError, match="edits for 1 prompts, and there are 2"):
        edited_logits(model, ["the", "a"], Editor(model, [[]]))
    with pytest.raises(MindscopeError, match="edits for 1 prompts, and there are 2"):
        list(capture(model, ["the", "a"], [0], editor=Editor(model, [[]])))
    with pytest.raises(MindscopeError, match="edits for 1 prompts, and 2 prompts"):
        clamped(model, ["the", "a"], [[]])
    with pytest.raises(MindscopeError, match="prompt 0 has 12 tokens and no position 12"):
        clamped(model, [IDS], [[Edit(0, [12], swap)]])


# Lens vectors


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lens_vector_times_the_residual_is_the_logit_before_or_after_the_norm(family: str) -> None:
    model = tiny_local(family)
    lens = random_lens(model)
    h = H.float()
    tokens = [3, 300, 77]
    x = h @ lens.matrices[1].T
    head = part(model.hf, model.layout.head).weight
    raw = lens_directions(model, lens, 1, tokens)
    torch.testing.assert_close((H @ raw.vectors.T).float(), (x @ head[tokens].T).detach(), atol=1e-4, rtol=1e-4)

    folded = lens_directions(model, lens, 1, tokens, gain="fold")
    logits = Readout(model, lens).logits(1, h)[:, tokens]
    if model.softcap is not None:
        logits = model.softcap * torch.atanh(logits / model.softcap)
    norm = part(model.hf, model.layout.final_norm)
    if isinstance(norm, torch.nn.LayerNorm):
        logits = logits - (norm.bias @ head[tokens].T).detach()
        scale = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    else:
        scale = (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close((H @ folded.vectors.T).float(), logits * scale, atol=2e-3, rtol=2e-3)
    assert not torch.allclose(raw.vectors, folded.vectors, rtol=0.01)


def test_unit_vectors_and_the_last_block() -> None:
    model = tiny_local("llama")
    lens = random_lens(model)
    raw = lens_directions(model, lens, 0, [3, 300]).vectors
    unit = lens_directions(model, lens, 0, [3, 300], norm="unit").vectors
    torch.testing.assert_close(unit, raw / raw.norm(dim=-1, keepdim=True))
    head = part(model.hf, model.layout.head).weight
    torch.testing.assert_close(lens_directions(model, lens, 2, [3, 300]).vectors.float(), head[[3, 300]])
    for options, said in (({"gain": "both"}, "gain is 'both'"), ({"norm": "l1"}, "norm is 'l1'")):
        with pytest.raises(MindscopeError, match=said):
            lens_directions(model, lens, 0, [3], **options)
    for tokens in ([], [vocab_size()], [-1]):
        with pytest.raises(MindscopeError, match="give ids from 0 to"):
            lens_directions(model, lens, 0, tokens)


def test_conditioning_is_reported() -> None:
    d = Directions(torch.tensor([[3.0, 0.0], [3.0, 4.0]]))
    assert d.cosine == pytest.approx(0.6)
    singular = torch.linalg.svdvals(torch.tensor([[3.0, 0.0], [3.0, 4.0]]))
    assert d.condition == pytest.approx(float(singular[0] / singular[1]))


# In a model


def by_hooks(family: str, ids: list[int], edits: list[tuple[int, list[int], Callable]]) -> torch.Tensor:
    """Logits [position, vocabulary] with h replaced by f(h) at each block's positions, by bare hooks."""
    hf = tiny_model(family)

    def replace(output: torch.Tensor, positions: list[int], f: Callable) -> torch.Tensor:
        output = output.clone()
        for at in positions:
            output[0, at] = f(output[0, at].double()).float()
        return output

    visits = {block: partial(replace, positions=positions, f=f) for block, positions, f in edits}
    with torch.no_grad(), hooked(hf, visits):
        return hf(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_over_a_batch_equals_bare_hooks(family: str) -> None:
    model = tiny_local(family)
    d = lens_directions(model, random_lens(model), 1, [33, 44])
    swap = partial(swapped, vectors=d.vectors)
    editor = Editor(model, [
        [Edit(1, range(3, 6), Swap(d, 2.0)), Edit(0, [7], Swap(d, 0.5, "delta"))],
        [],
        [Edit(1, [2], Steer(d, 0.3))],
    ])  # fmt: skip
    found = edited_logits(model, [IDS, IDS, OTHER], editor, last=7, batch_size=3)
    expected = [
        by_hooks(family, IDS, [
            (1, [3, 4, 5], lambda h: swap(h, 2.0, "coordinate")), (0, [7], lambda h: swap(h, 0.5, "delta")),
        ]),
        by_hooks(family, IDS, []),
        by_hooks(family, OTHER, [(1, [2], lambda h: h + 0.3 * d.vectors.sum(0))]),
    ]  # fmt: skip
    for got, logits in zip(found, expected, strict=True):
        torch.testing.assert_close(got, logits[-7:], atol=1e-4, rtol=1e-3)
    assert (found[0] - found[1]).abs().max() > 0.05


def test_untouched_positions_are_bit_identical_and_downstream_is_not() -> None:
    model = tiny_local("qwen3")
    d = Directions(PAIR)
    editor = Editor(model, [[Edit(1, [4, 6], Swap(d, 2.0))]])
    [clean] = capture(model, [IDS], [0, 1, 2])
    [edited] = capture(model, [IDS], [0, 1, 2], editor=editor)
    assert torch.equal(clean.values[0], edited.values[0])
    same = (clean.values[1] == edited.values[1]).all(-1)
    assert same.tolist() == [at not in (4, 6) for at in range(12)]
    same = (clean.values[2] == edited.values[2]).all(-1)
    assert same.tolist() == [at < 4 for at in range(12)]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_captured_residuals_have_their_own_prompts_edits(batch_size: int) -> None:
    model = tiny_local("llama")
    prompts = [OTHER, IDS, OTHER[:5]]
    editor = Editor(model, [[Edit(1, [at], Steer(Directions(PAIR[:1]), 1.0))] for at in (6, 2, 3)])
    for found in capture(model, prompts, [1], editor=editor, batch_size=batch_size):
        moved = found.values[1] - residuals(tiny_model("llama"), prompts[found.prompt])[1]
        expected = torch.zeros_like(moved)
        expected[(6, 2, 3)[found.prompt]] = PAIR[0]
        torch.testing.assert_close(moved, expected, atol=1e-4, rtol=1e-4)


def test_the_log_says_what_was_asked_and_reached_where() -> None:
    model = tiny_local("llama")
    d = Directions(PAIR)
    editor = Editor(model, [[], [Edit(1, [8, 3], Swap(d, 2.0)), Edit(2, range(11, 99), Ablate(d))]])
    edited_logits(model, [OTHER, IDS], editor)
    records = editor.records()
    assert [(r.row, r.block, r.position) for r in records] == [(1, 1, 3), (1, 1, 8), (1, 2, 11)]
    clean = residuals(tiny_model("llama"), IDS)[1].double()
    for record in records[:2]:
        h = clean[record.position]
        c = torch.linalg.pinv(PAIR.T) @ h
        assert record.before == pytest.approx(c.tolist(), abs=1e-4)
        assert record.asked == pytest.approx((2 * c.flip(0)).tolist(), abs=1e-4)
        assert record.reached == pytest.approx(record.asked, abs=1e-4)
        assert record.ratio == pytest.approx(float((swapped(h, 2.0, "coordinate") - h).norm() / h.norm()), rel=1e-4)
        assert (record.cosine, record.condition) == (d.cosine, d.condition)
    assert records[2].asked == (0.0, 0.0)
    assert records[2].reached == pytest.approx((0.0, 0.0), abs=1e-5)


def test_a_bf16_model_is_edited_in_fp32_and_the_log_shows_the_rounding() -> None:
    model = LocalModel(tiny_model("llama").to(torch.bfloat16), tiny_tokenizer())
    d = Directions(PAIR)
    editor = Editor(model, [[Edit(1, range(2, 12), Swap(d, 1.0))]])
    [clean] = capture(model, [IDS], [1])
    [edited] = capture(model, [IDS], [1], editor=editor)
    expected = torch.stack([swapped(h.double(), 1.0, "coordinate") for h in clean.values[1][2:]])
    assert torch.equal(edited.values[1][2:], expected.float().bfloat16())
    for record, h in zip(editor.records(), edited.values[1][2:], strict=True):
        assert record.reached == pytest.approx((torch.linalg.pinv(PAIR.T) @ h.double()).tolist(), abs=1e-5)
        assert record.reached != record.asked
        assert record.reached == pytest.approx(record.asked, abs=0.02)


def test_the_control_in_a_model_is_as_long_as_the_swap_at_every_position() -> None:
    model = tiny_local("gemma3")
    swap = Swap(Directions(PAIR), 2.0)
    edits = [[Edit(1, range(2, 9), change)] for change in (swap, matched_control(swap, seed=3))]
    editor = Editor(model, edits)
    edited_logits(model, [IDS, IDS], editor)
    records = editor.records()
    for one, other in zip(records[:7], records[7:], strict=True):
        assert (one.row, other.row) == (0, 1)
        assert other.position == one.position
        assert other.ratio == pytest.approx(one.ratio, rel=1e-4)
        assert other.asked == other.before == pytest.approx(one.before, abs=1e-4)
        assert other.reached == pytest.approx(other.before, abs=1e-4)


def test_a_clamped_band_holds_the_clean_passes_swapped_coordinates() -> None:
    """Live swaps at consecutive blocks undo each other; clamped ones do not."""
    model = tiny_local("llama")
    lens = random_lens(model)
    live = [Edit(b, range(3, 10), Swap(lens_directions(model, lens, b, [33, 44]))) for b in (0, 1)]
    prompts = [OTHER, IDS]
    fixed = clamped(model, prompts, [[], live])
    assert fixed[0] == []
    editor = Editor(model, fixed)
    edited_logits(model, prompts, editor)
    clean = residuals(tiny_model("llama"), IDS)
    records = editor.records()
    assert len(records) == 14
    for record in records:
        vectors = lens_directions(model, lens, record.block, [33, 44]).vectors
        c = torch.linalg.pinv(vectors.T) @ clean[record.block][record.position].double()
        assert record.asked == pytest.approx(c.flip(0).tolist(), abs=1e-3)
        assert record.reached == pytest.approx(record.asked, abs=1e-3)
    same_block = Editor(model, [[], [live[0]]])
    once = Editor(model, [[], [fixed[1][0]]])
    torch.testing.assert_close(
        edited_logits(model, prompts, same_block), edited_logits(model, prompts, once), atol=1e-4, rtol=1e-4
    )
