"""Read-outs against their definition: norm, head, softcap, filter, ranks, ties and scores, worked out by hand."""

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import capture
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Reading, Readout
from mindscope.whitebox.model import LocalModel
from support.tiny_models import D_MODEL, FAMILIES, tiny_local, tiny_model, tiny_tokenizer, vocab_size

IDS = [1, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220]


def random_lens(model: LocalModel, seed: int = 0) -> Lens:
    generator = torch.Generator().manual_seed(seed)
    noise = {b: torch.randn(D_MODEL, D_MODEL, generator=generator) for b in range(model.n_blocks - 1)}
    return Lens(Lens.logit(model).metadata, {b: torch.eye(D_MODEL) + 0.3 * matrix for b, matrix in noise.items()})


def some_residuals(n: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, D_MODEL, generator=torch.Generator().manual_seed(seed))


def by_definition(model: LocalModel, matrix: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    norm, head = part(model.hf, model.layout.final_norm), part(model.hf, model.layout.head)
    with torch.no_grad():
        logits = head(norm(torch.stack([matrix @ each for each in h])))
    return logits if model.softcap is None else model.softcap * torch.tanh(logits / model.softcap)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_head_of_norm_of_the_mapped_residual(family: str) -> None:
    model = tiny_local(family)
    lens = random_lens(model)
    h = some_residuals()
    logits = Readout(model, lens).logits(1, h)
    torch.testing.assert_close(logits, by_definition(model, lens.matrices[1], h), atol=1e-4, rtol=1e-4)
    transposed = by_definition(model, lens.matrices[1].T, h)
    assert not torch.allclose(logits, transposed, atol=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_block_says_what_the_model_says_and_the_logit_lens_skips_blocks(family: str) -> None:
    model = tiny_local(family)
    [found] = capture(model, [IDS], [1, 2])
    with torch.no_grad():
        expected = tiny_model(family)(torch.tensor([IDS])).logits[0]
    for lens in (Lens.logit(model), random_lens(model)):
        torch.testing.assert_close(Readout(model, lens).logits(2, found.values[2]), expected, atol=1e-4, rtol=1e-4)
    skipped = by_definition(model, torch.eye(D_MODEL), found.values[1])
    torch.testing.assert_close(Readout(model, Lens.logit(model)).logits(1, found.values[1]), skipped)


def test_the_last_block_needs_no_map_though_the_lens_leads_to_an_earlier_one() -> None:
    model = tiny_local("llama")
    metadata = Lens.logit(model).metadata.model_copy(update={"target_block": 1})
    readout = Readout(model, Lens(metadata, {0: torch.eye(D_MODEL)}))
    h = some_residuals()
    for block in (1, 2):
        torch.testing.assert_close(readout.logits(block, h), by_definition(model, torch.eye(D_MODEL), h))


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("chunk_mb", [0, 256])
def test_top_is_the_sorted_table_of_the_readable(filtered: bool, chunk_mb: int) -> None:
    model = tiny_local("gemma2")
    lens = random_lens(model)
    h = some_residuals()
    readout = Readout(model, lens, chunk_mb=chunk_mb)
    reading = readout.top(0, h, 20, filtered=filtered)
    logprobs = by_definition(model, lens.matrices[0], h).log_softmax(-1)
    readable = [any(c.isalnum() for c in tiny_tokenizer().decode([i])) for i in range(vocab_size())]
    for position, row in enumerate(logprobs):
        kept = [i for i in range(vocab_size()) if readable[i] or not filtered]
        order = sorted(kept, key=lambda i: -float(row[i]))[:20]
        assert reading.ids[position].tolist() == order
        torch.testing.assert_close(reading.logprobs[position], row[order], atol=1e-5, rtol=1e-5)


def test_the_filter_keeps_letters_digits_and_special_words() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["苹果", "né", "—", "!?", " 7"])
    model = tiny_model("llama")
    model.resize_token_embeddings(len(tokenizer) + 6)  # a head wider than the tokenizer, as Qwen's is
    readout = Readout(local := LocalModel(model, tokenizer), Lens.logit(local))
    readable = readout.readable.tolist()
    assert len(readable) == len(tokenizer) + 6
    for text, kept in {
        "苹果": True, "né": True, "—": False, "!?": False, " 7": True, "<eos>": True, "a": True, "!": False, "Ġ": False,
        "Ċ": False, "Ġred": True, "é": False,
    }.items():  # fmt: skip
        assert readable[tokenizer.convert_tokens_to_ids(text)] is kept, text
    assert readable[-6:] == [False] * 6


def with_ties() -> tuple[LocalModel, torch.Tensor]:
    """A model whose head has few different rows, so that many tokens have the same logit."""
    hf = tiny_model("llama")
    with torch.no_grad():
        hf.lm_head.weight.copy_(hf.lm_head.weight[torch.arange(vocab_size()) % 7])
    model = LocalModel(hf, tiny_tokenizer())
    return model, by_definition(model, torch.eye(D_MODEL), some_residuals())


@pytest.mark.parametrize("n", [1, 10, 60, 108, 130])
def test_equal_logits_come_in_the_order_of_their_ids(n: int) -> None:
    model, logits = with_ties()
    reading = Readout(model, Lens.logit(model)).top(1, some_residuals(), n, filtered=False)
    for position, row in enumerate(logits):
        assert len(row.unique()) <= 7
        expected = sorted(range(vocab_size()), key=lambda i: (-float(row[i]), i))[:n]
        assert reading.ids[position].tolist() == expected


def test_ranks_count_the_larger_and_the_equal_with_a_lower_id() -> None:
    model, logits = with_ties()
    readout = Readout(model, Lens.logit(model))
    letters = readout.readable.nonzero()[:, 0].tolist()
    sets = [[letters[5]], [letters[90], letters[12]], letters[60:63]]
    for filtered in (False, True):
        readable = readout.readable.tolist() if filtered else [True] * vocab_size()
        ranks = readout.ranks(1, some_residuals(), [sets] * 9, filtered=filtered)
        for position, row in enumerate(logits):
            order = sorted((i for i in range(vocab_size()) if readable[i]), key=lambda i: (-float(row[i]), i))
            assert ranks[position] == [1 + min(map(order.index, ids)) for ids in sets]


def test_each_position_has_its_own_sets() -> None:
    model = tiny_local("llama")
    readout = Readout(model, Lens.logit(model))
    h = some_residuals(3)
    top = readout.top(0, h, 30).ids.tolist()
    assert readout.ranks(0, h, [[[top[0][4]]], [], [[top[2][9], top[2][2]], [top[2][29]]]]) == [[5], [], [3, 30]]


def test_a_set_that_the_filter_removes_is_refused_or_spared() -> None:
    model = tiny_local("llama")
    readout = Readout(model, Lens.logit(model))
    dash = model.tokenizer.convert_tokens_to_ids("-")
    h = some_residuals(2)
    with pytest.raises(MindscopeError, match=rf"token set \[{dash}\] at position 1 has no token to rank"):
        readout.ranks(0, h, [[], [[dash]]])
    with pytest.raises(MindscopeError, match="no token to rank"):
        readout.ranks(0, h, [[[]], []], spare=True)
    logits = readout.logits(0, h[:1])[0]
    others = logits.masked_fill(~readout.readable, -torch.inf)
    assert readout.ranks(0, h[:1], [[[dash]]], spare=True) == [[1 + int((others > logits[dash]).sum())]]


def test_an_items_score_is_its_best_token_in_the_top_or_the_floor() -> None:
    ids = torch.tensor([[4, 9, 2], [7, 4, 1]])
    logprobs = torch.tensor([[-0.5, -1.0, -3.0], [-0.1, -2.5, -4.0]])
    reading = Reading(ids, logprobs)
    assert reading.score([2, 9]).tolist() == [-1.0, -4.0]
    assert reading.score([4]).tolist() == [-0.5, -2.5]
    assert reading.score([5]).tolist() == reading.score([]).tolist() == [-3.0, -4.0]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "olmo2"])
def test_bf16_weights_are_read_in_fp32(family: str) -> None:
    hf = tiny_model(family).to(torch.bfloat16)
    model = LocalModel(hf, tiny_tokenizer())
    upcast = LocalModel(tiny_model(family).to(torch.bfloat16).float(), tiny_tokenizer())
    h = some_residuals(50).to(torch.bfloat16)
    readout = Readout(model, Lens.logit(model))
    logits = readout.logits(1, h)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, by_definition(upcast, torch.eye(D_MODEL), h.float()), atol=1e-5, rtol=1e-5)
    in_fp32 = sum(len(row.unique()) for row in readout.top(1, h, 50, filtered=False).logprobs)
    in_bf16 = sum(len(row.unique()) for row in logits.bfloat16().topk(50).values)
    print(f"{family}: of {50 * 50} top-50 values, {in_fp32} differ in fp32 and {in_bf16} in bf16")
    assert in_bf16 < in_fp32


def test_what_all_tokens_share_changes_no_log_probability() -> None:
    hf = tiny_model("llama")
    with torch.no_grad():
        hf.lm_head.weight += torch.randn(D_MODEL, generator=torch.Generator().manual_seed(3))
    shifted, plain = LocalModel(hf, tiny_tokenizer()), tiny_local("llama")
    one, other = (Readout(m, Lens.logit(m)).logits(1, some_residuals()) for m in (shifted, plain))
    assert (one - other).abs().max() > 0.1
    torch.testing.assert_close(one.log_softmax(-1), other.log_softmax(-1), atol=1e-4, rtol=0)


def test_many_positions_of_many_prompts() -> None:
    model = tiny_local("mistral")
    lens = random_lens(model)
    prompts = ["the red car and the house", "a", "In the photo, the boat is"]
    readings = dict(Readout(model, lens).over(prompts, [0, 2], [-1], n=4, batch_size=2))
    assert sorted(readings) == [0, 1, 2]
    for found in capture(model, prompts, [0, 2], [-1]):
        for block, matrix in ((0, lens.matrices[0]), (2, torch.eye(D_MODEL))):
            logprobs = by_definition(model, matrix, found.values[block]).log_softmax(-1)
            got = readings[found.prompt][block]
            assert got.ids.shape == (1, 4)
            torch.testing.assert_close(got.logprobs, logprobs.gather(1, got.ids), atol=1e-4, rtol=1e-4)


def test_what_cannot_be_read_is_a_sentence() -> None:
    model = tiny_local("llama")
    readout = Readout(model, Lens.logit(model))
    with pytest.raises(MindscopeError, match=r"residual has shape \[32\]; a reading takes \[position, 32\]"):
        readout.top(0, some_residuals()[0])
    with pytest.raises(MindscopeError, match="the lens has no block 7"):
        readout.top(7, some_residuals())
    with pytest.raises(MindscopeError, match="the top 0 cannot be shown"):
        readout.top(0, some_residuals(), 0)
    with pytest.raises(MindscopeError, match="1 lists of token sets for 9 positions"):
        readout.ranks(0, some_residuals(), [[]])
    other = Lens(Lens.logit(model).metadata, {0: torch.eye(8)})
    with pytest.raises(MindscopeError, match="d_model 8"):
        Readout(model, other)
