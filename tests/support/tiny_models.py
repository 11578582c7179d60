"""Tiny random causal language models of every supported family, with a tiny tokenizer; nothing is downloaded.

    model = tiny_model("llama", seed=1)     # a Hugging Face model: d_model 32, 3 blocks, fp32, eval mode
    tokenizer = tiny_tokenizer()            # byte-level BPE, padding on the right as Hugging Face's do
    local = tiny_local("gemma2")            # both, wrapped in a LocalModel
    write_tiny_gguf(path)                   # the Qwen 2 model and the tokenizer without <bos>, for llama.cpp

The same arguments give the same weights. The weights are drawn large enough that logits differ by several
nats and norm gains differ from their initial value, so that a dropped gain, softcap or mask shows in the
numbers. Sliding windows are 8 tokens wide, so that a prompt of ten tokens already leaves them.
"""

import json
from functools import cache
from pathlib import Path

import gguf
import torch
import transformers
from mindscope.whitebox.model import LocalModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

D_MODEL = 32
CONTEXT = 256

_CORPUS = [
    "In the painting, the car is red. In reality, the car is blue.",
    "In the painting, the house is green. In reality, the house is yellow.",
    "In the photo, the boat is white. In the room, the boat is black.",
    "The red house and the blue house and the green boat and the yellow car.",
    "Word pairs. chair - tiger. apple - window. river - wallet. candle - bridge.",
    "the first word is chair and the second word is tiger, in the order of the list",
]


@cache
def _trained_bpe() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(*, bos: bool = True, pad: bool = True) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE of about 400 tokens, in which common words such as " red" are one token.

    `bos`: put <bos> before every text, as Gemma and Llama do. `pad=False`: no pad token, as GPT-2 has none.
    """
    backend = Tokenizer.from_str(_trained_bpe())
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", backend.token_to_id("<bos>"))]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>" if pad else None,
        padding_side="right",
    )


def vocab_size() -> int:
    return len(tiny_tokenizer())


def _common(n_layers: int) -> dict:
    return {
        "vocab_size": vocab_size(),
        "hidden_size": D_MODEL,
        "intermediate_size": 48,
        "num_hidden_layers": n_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _llama(n: int) -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_common(n)))


def _qwen2(n: int) -> transformers.PreTrainedModel:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_common(n)))


def _qwen3(n: int) -> transformers.PreTrainedModel:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=8, **_common(n)))


def _gemma2(n: int) -> transformers.PreTrainedModel:
    config = transformers.Gemma2Config(
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=8,
        final_logit_softcapping=5.0,
        attn_implementation="eager",
        **_common(n),
    )
    return transformers.Gemma2ForCausalLM(config)


def _gemma3_text_config(n: int) -> transformers.Gemma3TextConfig:
    kinds = ["sliding_attention"] * (n - 1) + ["full_attention"]
    return transformers.Gemma3TextConfig(
        head_dim=8, query_pre_attn_scalar=8, sliding_window=8, layer_types=kinds, **_common(n)
    )


def _gemma3(n: int) -> transformers.PreTrainedModel:
    return transformers.Gemma3ForCausalLM(_gemma3_text_config(n))


def _gemma3_multimodal(n: int) -> transformers.PreTrainedModel:
    vision = transformers.SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = transformers.Gemma3Config(text_config=_gemma3_text_config(n), vision_config=vision, mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(config)


def _olmo2(n: int) -> transformers.PreTrainedModel:
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**_common(n)))


def _olmo3(n: int) -> transformers.PreTrainedModel:
    kinds = ["sliding_attention"] * (n - 1) + ["full_attention"]
    config = transformers.Olmo3Config(sliding_window=8, layer_types=kinds, **_common(n))
    return transformers.Olmo3ForCausalLM(config)


def _mistral(n: int) -> transformers.PreTrainedModel:
    return transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=8, **_common(n)))


def _gpt2(n: int) -> transformers.PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=vocab_size(),
        n_embd=D_MODEL,
        n_layer=n,
        n_head=4,
        n_positions=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def _gpt_neox(n: int) -> transformers.PreTrainedModel:
    common = _common(n)
    del common["num_key_value_heads"]
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**common))


_BUILDERS = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_multimodal": _gemma3_multimodal,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "mistral": _mistral,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
FAMILIES = tuple(_BUILDERS)


def tiny_model(family: str, *, seed: int = 0, n_layers: int = 3) -> transformers.PreTrainedModel:
    """A random fp32 model of `family` in eval mode; `seed` and `n_layers` fix its weights."""
    model = _BUILDERS[family](n_layers).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(1.5 * noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    return model


def tiny_local(family: str, *, seed: int = 0, n_layers: int = 3) -> LocalModel:
    """`tiny_model` with `tiny_tokenizer`, wrapped."""
    return LocalModel(tiny_model(family, seed=seed, n_layers=n_layers), tiny_tokenizer())


def write_tiny_gguf(path: Path, *, chat_template: str | None = None, seed: int = 0) -> None:
    """`tiny_model("qwen2", seed=seed)` and `tiny_tokenizer(bos=False)` as a GGUF file in fp32."""
    model, tokenizer = tiny_model("qwen2", seed=seed), tiny_tokenizer(bos=False)
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    bpe = json.loads(_trained_bpe())["model"]
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    kinds = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        module, _, suffix = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(module)}.{suffix}", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
