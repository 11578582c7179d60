"""The standard names, checked against what each family computes."""

import pytest
import torch
import transformers
from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import find_layout, part
from mindscope.whitebox.model import LocalModel
from support.tiny_models import D_MODEL, FAMILIES, tiny_local, tiny_model, tiny_tokenizer, vocab_size

IDS = torch.tensor([[1, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220], [1, 9, 8, 7, 6, 5, 4, 3, 30, 31, 32, 33]])


def block_outputs(model: LocalModel) -> list[torch.Tensor]:
    def traced() -> list[torch.Tensor]:
        outputs = []
        with torch.no_grad(), model.nn.trace(input_ids=IDS):
            for block in model.blocks:
                outputs.append(block.output.save())
        return outputs

    return model.run(traced)


@pytest.mark.parametrize("family", FAMILIES)
def test_block_outputs_are_the_residual_stream_as_plain_tensors(family: str) -> None:
    model = tiny_local(family)
    outputs = block_outputs(model)
    with torch.no_grad():
        hidden = model.hf(IDS, output_hidden_states=True).hidden_states
    assert len(outputs) == model.n_blocks == 3
    for depth, output in enumerate(outputs):
        assert type(output) is torch.Tensor
        assert output.shape == (2, 12, D_MODEL)
        if depth < model.n_blocks - 1:  # the last entry of Hugging Face's list has passed the final norm
            torch.testing.assert_close(output, hidden[depth + 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_norm_head_and_softcap_turn_the_last_block_into_the_logits(family: str) -> None:
    model = tiny_local(family)
    norm, head = part(model.hf, model.layout.final_norm), part(model.hf, model.layout.head)
    with torch.no_grad():
        logits = head(norm(block_outputs(model)[-1]))
        if model.softcap is not None:
            logits = model.softcap * torch.tanh(logits / model.softcap)
        torch.testing.assert_close(logits, model.hf(IDS).logits)
    assert (model.softcap is not None) == (family == "gemma2")


@pytest.mark.parametrize("family", FAMILIES)
def test_handles_and_sizes(family: str) -> None:
    model = tiny_local(family)
    assert (model.d_model, model.vocab_size, model.context) == (D_MODEL, vocab_size(), 256)

    def traced() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.no_grad(), model.nn.trace(input_ids=IDS):
            embedded = model.embedding.output.save()
            normed = model.final_norm.output.save()
            logits = model.head.output.save()
        return embedded, normed, logits

    embedded, normed, logits = model.run(traced)
    assert embedded.shape == normed.shape == (2, 12, D_MODEL)
    assert logits.shape == (2, 12, vocab_size())


def test_an_unknown_architecture_is_refused_with_what_was_looked_for() -> None:
    config = transformers.OPTConfig(
        vocab_size=50, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=16
    )
    with pytest.raises(MindscopeError) as refused:
        LocalModel(transformers.OPTForCausalLM(config), tiny_tokenizer())
    said = str(refused.value)
    assert "OPTForCausalLM" in said
    for path in ("model.layers", "model.norm", "lm_head", "model.embed_tokens", "transformer.h", "gpt_neox.layers"):
        assert path in said


def test_one_missing_part_is_enough_to_refuse() -> None:
    model = tiny_model("llama")
    del model.model.norm
    with pytest.raises(MindscopeError, match="LlamaForCausalLM"):
        find_layout(model)


def test_a_model_that_scales_its_logits_after_the_head_is_refused() -> None:
    config = transformers.CohereConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    assert config.logit_scale != 1
    with pytest.raises(MindscopeError, match=r"CohereForCausalLM scales its logits .*logit_scale"):
        find_layout(transformers.CohereForCausalLM(config))
