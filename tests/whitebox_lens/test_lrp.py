"""Relevance rules: values unchanged, each rule's gradient in closed form, conservation, and every refusal."""

from contextlib import contextmanager

import pytest
import torch
import transformers
from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.jacobian import JacobianSettings, prompt_sums
from mindscope.whitebox.lens.lrp import relevance_rules
from mindscope.whitebox.model import LocalModel
from support.pair_jacobians import mean_over_sources, pair_jacobians, random_ids, relative
from support.tiny_models import D_MODEL, tiny_local, tiny_tokenizer, vocab_size

DENSE = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_multimodal", "olmo2", "olmo3", "mistral")
MIXTURES = ("mixtral", "qwen3_moe", "qwen2_moe")


def tiny_mixture(family: str) -> LocalModel:
    common = {
        "vocab_size": vocab_size(),
        "hidden_size": D_MODEL,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "num_experts_per_tok": 2,
    }
    if family == "mixtral":
        config = transformers.MixtralConfig(num_local_experts=4, **common)
    elif family == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(num_experts=4, moe_intermediate_size=24, head_dim=8, **common)
    else:
        config = transformers.Qwen2MoeConfig(
            num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=40, **common
        )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(1.5 * noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    return LocalModel(model, tiny_tokenizer())


def blocks(model: LocalModel):
    return part(model.hf, model.layout.blocks)


def logits(model: LocalModel, ids: list[int]) -> torch.Tensor:
    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model.hf(torch.tensor([ids]), use_cache=False).logits

    return model.run(forward)


def gradient(module, x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(module(x), x, cotangent)[0]


@pytest.mark.parametrize("family", DENSE)
def test_values_are_bit_equal(family: str) -> None:
    model, ids = tiny_local(family), random_ids(19)
    before = logits(model, ids)
    with relevance_rules(model, "relp"):
        assert torch.equal(logits(model, ids), before)
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("family", MIXTURES)
def test_values_of_mixtures_are_equal_to_rounding(family: str) -> None:
    model, ids = tiny_mixture(family), random_ids(19)
    before = logits(model, ids)
    for rules in ("relp", "relp+moe"):
        with relevance_rules(model, rules):
            assert torch.allclose(logits(model, ids), before, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("family", DENSE)
def test_norm_rule_is_a_diagonal(family: str) -> None:
    """cotangent * gain / rms(x), for every norm of the block outside attention; those inside keep autograd's."""
    model = tiny_local(family)
    generator = torch.Generator().manual_seed(1)
    x, cotangent = (torch.randn(5, D_MODEL, generator=generator) for _ in range(2))
    seen = 0
    for name, module in blocks(model)[0].named_modules():
        if not type(module).__name__.endswith("RMSNorm"):
            continue
        width = module.weight.shape[0]
        stock = gradient(module, x[:, :width], cotangent[:, :width])
        with relevance_rules(model, "relp"):
            ruled = gradient(module, x[:, :width], cotangent[:, :width])
        if name.startswith("self_attn"):
            assert torch.equal(ruled, stock)
            continue
        seen += 1
        gain = module.weight.detach() + (1 if "Gemma" in type(module).__name__ else 0)
        eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
        assert torch.allclose(ruled, cotangent * gain / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt(), atol=1e-5)
        assert relative(ruled, stock) > 1e-2
    assert seen == (4 if "gemma" in family else 2)


@pytest.mark.parametrize("family", DENSE)
def test_mlp_rules(family: str) -> None:
    """Half of: W_down^T(c) times up through the fixed gate factor, plus times act, which is constant for it."""
    model = tiny_local(family)
    mlp = blocks(model)[1].mlp
    generator = torch.Generator().manual_seed(1)
    x, cotangent = (torch.randn(5, D_MODEL, generator=generator) for _ in range(2))
    with relevance_rules(model, "relp"):
        ruled = gradient(mlp, x, cotangent)
    with torch.no_grad():
        z, up = mlp.gate_proj(x), mlp.up_proj(x)
        act = mlp.act_fn(z)
        back = cotangent @ mlp.down_proj.weight
        through_gate = (back * up * (act / z)) @ mlp.gate_proj.weight
        through_up = (back * act) @ mlp.up_proj.weight
    assert torch.allclose(ruled, 0.5 * (through_gate + through_up), atol=1e-4)
    assert relative(through_gate + through_up, gradient(mlp, x, cotangent)) > 1e-2  # the identity rule matters too


@contextmanager
def frozen_attention():
    """Softmax without gradient: what full conservation needs, and the preset does not do."""
    stock = torch.nn.functional.softmax
    torch.nn.functional.softmax = lambda *args, **kwargs: stock(*args, **kwargs).detach()
    try:
        yield
    finally:
        torch.nn.functional.softmax = stock


@pytest.mark.parametrize("family", ["llama", "gemma3", "olmo2", "mistral"])
def test_relevance_is_conserved_once_attention_is_frozen_too(family: str) -> None:
    """sum over s of G_{t,s} h_s = z_t; with the preset's live attention it must fail.

    Except where queries and keys are normed (Gemma 3, OLMo 2): attention then ignores the length of its input, and a
    gradient through something that ignores length adds nothing along the input.
    """
    model, ids = tiny_local(family), random_ids(9)
    model.hf.set_attn_implementation("eager")

    def residuals() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            outputs = []
            hooks = [blocks(model)[i].register_forward_hook(lambda m, a, o: outputs.append(o[0])) for i in (0, 2)]
            model.hf(torch.tensor([ids]), use_cache=False)
            for hook in hooks:
                hook.remove()
        return outputs[0], outputs[1]

    h, z = model.run(residuals)
    with relevance_rules(model, "relp"):
        live = torch.einsum("tisj,sj->ti", pair_jacobians(model, ids, block=0, target=2), h)
        with frozen_attention():
            frozen = torch.einsum("tisj,sj->ti", pair_jacobians(model, ids, block=0, target=2), h)
    assert relative(frozen, z) < 1e-5
    assert (relative(live, z) < 1e-5) if family in ("gemma3", "olmo2") else (relative(live, z) > 1e-2)


@pytest.mark.parametrize("family", DENSE)
def test_the_r_lens_is_the_estimator_on_the_ruled_graph(family: str) -> None:
    model, ids = tiny_local(family), random_ids(14)
    settings = JacobianSettings(blocks=(1,), target_block=2, skip_first=9, rules="relp")
    sums, _ = prompt_sums(model, ids, settings)
    stock = mean_over_sources(pair_jacobians(model, ids, block=1, target=2), range(9, 13))
    with relevance_rules(model, "relp"):
        ruled = mean_over_sources(pair_jacobians(model, ids, block=1, target=2), range(9, 13))
    assert relative(sums[1][0], ruled) < 1e-5
    assert relative(sums[1][0], stock) > 1e-2


def test_a_graph_keeps_its_rules_after_the_context() -> None:
    model = tiny_local("llama")
    norm, x = blocks(model)[0].input_layernorm, torch.randn(5, D_MODEL).requires_grad_()
    with relevance_rules(model, "relp"):
        inside = norm(x)
    ruled = torch.autograd.grad(inside, x, torch.ones(5, D_MODEL))[0]
    with relevance_rules(model, "relp"):
        assert torch.equal(ruled, gradient(norm, x.detach(), torch.ones(5, D_MODEL)))
    assert not torch.allclose(ruled, gradient(norm, x.detach(), torch.ones(5, D_MODEL)), atol=1e-3)


def test_an_exception_restores_the_model() -> None:
    model = tiny_local("qwen3")
    before = {name: vars(module).get("forward") for name, module in model.hf.named_modules()}
    with pytest.raises(ZeroDivisionError), relevance_rules(model, "relp"):
        raise ZeroDivisionError
    assert {name: vars(module).get("forward") for name, module in model.hf.named_modules()} == before


@pytest.mark.parametrize("family", MIXTURES)
def test_expert_rules(family: str) -> None:
    """Top-k experts with constant mixing weights, half rule and identity rule inside each."""
    model = tiny_mixture(family)
    block = blocks(model)[0].mlp
    generator = torch.Generator().manual_seed(1)
    x, cotangent = (torch.randn(1, 5, D_MODEL, generator=generator) for _ in range(2))
    with relevance_rules(model, "relp+moe"):
        ruled = gradient(block, x, cotangent)[0]

    def half(gate_weight, up_weight, down_weight, row, c):
        z, up = gate_weight @ row, up_weight @ row
        act = torch.nn.functional.silu(z)
        back = c @ down_weight
        return 0.5 * ((back * up * torch.sigmoid(z)) @ gate_weight + (back * act) @ up_weight)

    with torch.no_grad():
        _, weights, chosen = block.gate(x[0])
        expected = torch.zeros(5, D_MODEL)
        for t in range(5):
            for weight, e in zip(weights[t], chosen[t], strict=True):
                gate, up = block.experts.gate_up_proj[e].chunk(2)
                expected[t] += weight * half(gate, up, block.experts.down_proj[e], x[0, t], cotangent[0, t])
            if family == "qwen2_moe":
                shared, share = block.shared_expert, torch.sigmoid(block.shared_expert_gate(x[0, t]))
                one = half(
                    shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight, x[0, t], cotangent[0, t]
                )
                expected[t] += 4 * share * one
    assert torch.allclose(ruled, expected, atol=1e-4)


def test_the_dense_preset_leaves_routed_experts_alone() -> None:
    model = tiny_mixture("mixtral")
    block = blocks(model)[0].mlp
    x, cotangent = torch.randn(1, 5, D_MODEL), torch.randn(1, 5, D_MODEL)
    stock = gradient(block, x, cotangent)
    with relevance_rules(model, "relp"):
        assert torch.equal(gradient(block, x, cotangent), stock)


@pytest.mark.parametrize("family", MIXTURES)
def test_mixtures_fit(family: str) -> None:
    model, ids = tiny_mixture(family), random_ids(14)
    settings = JacobianSettings(blocks=(1,), target_block=2, skip_first=9, rules="relp+moe")
    sums, _ = prompt_sums(model, ids, settings)
    with relevance_rules(model, "relp+moe"):
        expected = mean_over_sources(pair_jacobians(model, ids, block=1, target=2), range(9, 13))
    assert relative(sums[1][0], expected) < 1e-4


class StrangeRMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(D_MODEL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def spoil(model: LocalModel, how: str) -> None:
    block = blocks(model)[1]
    if how == "unknown norm":
        block.input_layernorm = StrangeRMSNorm()
    elif how == "unknown MLP":
        block.mlp.__class__ = type("StrangeMLP", (type(block.mlp),), {})
    elif how == "unknown activation":
        block.mlp.act_fn = torch.nn.ReLU()
    elif how == "extra parameters":
        block.adapter = torch.nn.Conv1d(2, 2, 1)
    elif how == "patched":
        block.mlp.forward = lambda x: x
    elif how == "compiled":
        block._compiled_call_impl = lambda *args: None
    elif how == "checkpointing":
        block.gradient_checkpointing = True


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("unknown norm", "block 1 of LlamaForCausalLM, input_layernorm is a StrangeRMSNorm"),
        ("unknown MLP", "block 1 of LlamaForCausalLM, mlp is a StrangeMLP"),
        ("unknown activation", "block 1 of LlamaForCausalLM, mlp has the activation ReLU"),
        ("extra parameters", "adapter is a Conv1d"),
        ("patched", "mlp has a patched forward"),
        ("compiled", "is compiled"),
        ("checkpointing", "gradient checkpointing"),
    ],
)
def test_what_the_rules_would_miss_is_refused(how: str, message: str) -> None:
    model = tiny_local("llama")
    spoil(model, how)
    with pytest.raises(MindscopeError, match=message), relevance_rules(model, "relp"):
        pass


@pytest.mark.parametrize(
    ("family", "rules", "message"),
    [
        ("gpt2", "relp", "is a LayerNorm"),
        ("gpt_neox", "relp", "is a LayerNorm"),
        ("llama", "relp+moe", "no experts in LlamaForCausalLM; use 'relp'"),
        ("llama", "lrp", "one of none, relp, relp\\+moe"),
    ],
)
def test_models_and_presets_that_do_not_fit_are_refused(family: str, rules: str, message: str) -> None:
    with pytest.raises(MindscopeError, match=message), relevance_rules(tiny_local(family), rules):
        pass
