"""Relevance rules: stop-gradients put into a model's forward pass, after which ordinary autograd gives the R-lens.

    with relevance_rules(model, "relp"):        # "none" changes nothing
        ...                                     # a graph recorded here keeps its rules when used outside

Values stay what they were, bit for bit (experts: to rounding); only gradients change. With sg[.] the stop-gradient:

    residual-stream RMSNorm     x * sg[1 / rms(x)] * gain           no gradient through the variance
    activation in a gated MLP   z * sg[act(z) / z]                  a fixed factor per unit
    its product p = act * up    p / 2 + sg[p] / 2                   half the gradient to each side
    attention, linear layers, residual additions                    unchanged: query and key keep their gradients

Preset "relp" applies these and leaves routed experts as they are. "relp+moe" applies the two MLP rules inside every
expert too, stops the gradient of the mixing weights, and of a shared expert's gate, whose expert counts four times.

A module outside attention that owns parameters and has no rule is refused, since it would pass unruled gradients
unnoticed; so are compiled blocks and gradient checkpointing.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import part
from mindscope.whitebox.model import LocalModel

Rules = Literal["none", "relp", "relp+moe"]

SHARED_EXPERT_FACTOR = 4
"""How often a shared expert's gradient counts under "relp+moe"."""


@contextmanager
def relevance_rules(model: LocalModel, rules: Rules) -> Iterator[None]:
    """The preset `rules` on every block of `model` while the context is open; whatever happens inside, the model
    leaves it as it came.

    Raises MindscopeError for an unknown preset and, naming the module, for a model that it does not fully cover.
    """
    replacements = _replacements(model, rules)
    before = [vars(module).get("forward") for module, _ in replacements]  # nnsight keeps its own forward there
    try:
        for module, forward in replacements:
            module.forward = forward
        yield
    finally:
        for (module, _), stock in zip(replacements, before, strict=True):
            if stock is None:
                del module.forward
            else:
                module.forward = stock


def _replacements(model: LocalModel, rules: Rules) -> list[tuple[nn.Module, Callable[..., torch.Tensor]]]:
    """Every module to patch with its ruled forward, after all refusals."""
    if rules not in get_args(Rules):
        raise MindscopeError(f"rules is {rules!r}; it is one of {', '.join(get_args(Rules))}")
    if rules == "none":
        return []
    name = type(model.hf).__name__
    found: list[tuple[nn.Module, Callable[..., torch.Tensor]]] = []
    kinds: set[str] = set()
    for index, block in enumerate(part(model.hf, model.layout.blocks)):
        if hasattr(block, "_orig_mod") or block._compiled_call_impl is not None:
            raise MindscopeError(f"block {index} of {name} is compiled, and rules would not reach it; don't compile it")
        if getattr(block, "gradient_checkpointing", False):
            raise MindscopeError(f"block {index} of {name} uses gradient checkpointing, which drops rules; disable it")
        for path, module in _outside_attention(block):
            rule = _rule(module, rules, where=f"block {index} of {name}, {path or 'itself'}")
            if rule is None:
                continue
            if _is_patched(module):
                raise MindscopeError(f"block {index} of {name}, {path} has a patched forward already; undo that first")
            kind, forward = rule
            kinds.add(kind)
            found.append((module, partial(forward, module)))
    needed = {"norm", "gated MLP"} if rules == "relp" else {"norm", "experts"}
    if rules == "relp" and "experts" not in kinds and any(_is_experts(m) for m in model.hf.modules()):
        needed = {"norm"}
    if not needed <= kinds:
        raise MindscopeError(
            f"the rules {rules!r} found no {' and no '.join(sorted(needed - kinds))} in {name}; "
            + ("use 'relp' for a model without experts" if rules == "relp+moe" else "use 'none', the J-lens")
        )
    return found


def _outside_attention(block: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    yield prefix, block
    for name, child in block.named_children():
        if name == "self_attn":
            continue
        if name == "linear_attn" and importlib.util.find_spec("fla") is not None:
            raise MindscopeError("the package fla replaces linear attention by kernels without rules; uninstall it")
        yield from _outside_attention(child, f"{prefix}.{name}".lstrip("."))


def _rule(module: nn.Module, rules: Rules, *, where: str) -> tuple[str, Callable[..., torch.Tensor]] | None:
    kind = type(module).__name__
    if kind in _NORMS:
        return "norm", _NORMS[kind]
    if kind in _GATED_MLPS:
        if type(module.act_fn).__name__ not in _GATES:
            raise MindscopeError(f"{where} has the activation {type(module.act_fn).__name__}, which has no rule")
        return "gated MLP", _gated_mlp
    if _is_experts(module):
        if rules == "relp":
            return None
        if type(module.act_fn).__name__ not in _GATES:
            raise MindscopeError(f"{where} has the activation {type(module.act_fn).__name__}, which has no rule")
        return "experts", _experts
    if kind in _SHARED_EXPERT_BLOCKS:
        return ("shared expert", _shared_expert_block) if rules == "relp+moe" else None
    owns_parameters = next(module.parameters(recurse=False), None) is not None
    looks_gated = hasattr(module, "up_proj") or kind.endswith(("MLP", "Experts"))
    if looks_gated or (owns_parameters and not isinstance(module, nn.Linear) and kind not in _UNCHANGED):
        raise MindscopeError(
            f"{where} is a {kind}, for which there is no relevance rule; the R-lens covers "
            f"{', '.join(sorted(_NORMS))} and their MLPs"
        )
    return None


def _is_patched(module: nn.Module) -> bool:
    """Whether something other than nnsight, which calls the module's own, stands in for its forward."""
    forward = vars(module).get("forward")
    return forward is not None and not type(forward).__module__.startswith("nnsight.")


def _is_experts(module: nn.Module) -> bool:
    return type(module).__name__ in _EXPERTS


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps).detach()


def _norm_gain_after_cast(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    x = hidden_states.to(torch.float32)
    return module.weight * (x * _inverse_rms(x, module.variance_epsilon)).to(hidden_states.dtype)


def _norm_gain_before_cast(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    x = hidden_states.to(torch.float32)
    return (module.weight * (x * _inverse_rms(x, module.variance_epsilon))).to(hidden_states.dtype)


def _norm_one_plus_gain(module: Any, x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * _inverse_rms(wide, module.eps) * (1.0 + module.weight.float())).type_as(x)


def _gated(act_fn: nn.Module, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """act(gate) * up under the two MLP rules; the added terms are zeros that carry the gradients."""
    factor = _GATES[type(act_fn).__name__](gate.detach())
    act = act_fn(gate).detach() + (gate - gate.detach()) * factor
    product = act * up
    return 0.5 * product + 0.5 * product.detach()


def _gated_mlp(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module.down_proj(_gated(module.act_fn, module.gate_proj(x), module.up_proj(x)))


def _experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Each token's chosen experts, [token, d], with `top_k_index` and `top_k_weights` [token, k]."""
    mixed = torch.zeros_like(hidden_states)
    for expert in top_k_index.unique().tolist():
        token, slot = torch.where(top_k_index == expert)
        gate, up = nn.functional.linear(hidden_states[token], module.gate_up_proj[expert]).chunk(2, dim=-1)
        out = nn.functional.linear(_gated(module.act_fn, gate, up), module.down_proj[expert])
        out = out * top_k_weights[token, slot, None].detach()
        mixed = mixed.index_add(0, token, out.to(mixed.dtype))
    return mixed


def _shared_expert_block(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    _, weights, chosen = module.gate(flat)
    shared = torch.sigmoid(module.shared_expert_gate(flat)).detach() * module.shared_expert(flat)
    shared = shared + (SHARED_EXPERT_FACTOR - 1) * (shared - shared.detach())
    return (module.experts(flat, chosen, weights) + shared).reshape(hidden_states.shape)


def _tanh_gelu_gate(z: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


_NORMS = {
    "LlamaRMSNorm": _norm_gain_after_cast,
    "MistralRMSNorm": _norm_gain_after_cast,
    "MixtralRMSNorm": _norm_gain_after_cast,
    "Qwen2RMSNorm": _norm_gain_after_cast,
    "Qwen2MoeRMSNorm": _norm_gain_after_cast,
    "Qwen3RMSNorm": _norm_gain_after_cast,
    "Qwen3MoeRMSNorm": _norm_gain_after_cast,
    "Olmo2RMSNorm": _norm_gain_before_cast,
    "Olmo3RMSNorm": _norm_gain_before_cast,
    "Gemma2RMSNorm": _norm_one_plus_gain,
    "Gemma3RMSNorm": _norm_one_plus_gain,
}
_GATED_MLPS = {
    "LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen2MoeMLP", "Qwen3MLP", "Qwen3MoeMLP", "Olmo2MLP", "Olmo3MLP", "Gemma2MLP",
    "Gemma3MLP",
}  # fmt: skip
_EXPERTS = {"MixtralExperts", "Qwen2MoeExperts", "Qwen3MoeExperts"}
_SHARED_EXPERT_BLOCKS = {"Qwen2MoeSparseMoeBlock"}
_UNCHANGED = {"MixtralTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter"}
_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SiLUActivation": torch.sigmoid,
    "GELUTanh": _tanh_gelu_gate,
}
"""act(z) / z of each activation."""
