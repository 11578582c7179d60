"""The mean Jacobian from a block's residual stream to the target's, by vector-Jacobian products.

    settings = JacobianSettings(blocks=(4, 8), target_block=17)
    sums, weights = prompt_sums(model, ids, settings)       # of one prompt, to be added to other prompts'

Of a prompt of S tokens the positions K = skip_first .. S-2 are kept. With h_{l,p} the output of block l and z_{p} that
of the target at position p,

    G_{l,p}[i, :] = sum over p' in K, p' >= p of  d z_{p',i} / d h_{l,p}        one row i: one backward pass
    J_l           = mean over prompts of  mean over p in K of  G_{l,p}           the J-lens
    J_{l,e}       = sum of G_{l,p} over all p routed to e  /  their number       an expert of J++

rows = target dimensions, columns = source dimensions. The cotangent is 1 at row i of all kept targets at once.

One forward pass serves all rows. The tokens before K run first, without a graph, into a cache: no gradient at a kept
position passes through an earlier one. The last token runs not at all: nothing kept depends on it. Rows are computed
`rows_per_pass` at a time, vectorised over one graph, which bounds the memory: a pass holds about rows_per_pass x |K| x
(blocks x d_model + the widest layer) numbers beside the graph of |K| tokens. The result does not depend on it.

Recording uses plain hooks and autograd, since an nnsight trace cannot vectorise vector-Jacobian products, and eager
attention, since the fused kernels' backward is not vectorised either.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import DynamicCache

from mindscope.errors import MindscopeError
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lrp import Rules, relevance_rules
from mindscope.whitebox.lens.router import Router
from mindscope.whitebox.model import LocalModel

Sums = dict[int, torch.Tensor]
"""Block -> [E, d_model, d_model], fp32 on the CPU."""
Weights = dict[int, torch.Tensor]
"""Block -> [E] int64: what the sums of each expert are to be divided by."""


class JacobianSettings(BaseModel):
    """Everything besides model and data that decides a prompt's sums."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    blocks: tuple[int, ...] = Field(min_length=1, description="the numbers of the source blocks, from 0")
    target_block: int
    rules: Rules = "none"
    skip_first: int = Field(16, ge=0)
    max_tokens: int = Field(128, ge=2)
    rows_per_pass: int = Field(16, ge=1)

    def check(self, model: LocalModel) -> None:
        """Raises MindscopeError when `model` has no such blocks."""
        if not self.target_block < model.n_blocks:
            raise MindscopeError(f"target_block is {self.target_block}; {model.source} has 0..{model.n_blocks - 1}")
        bad = [block for block in self.blocks if not 0 <= block < self.target_block]
        if bad or sorted(set(self.blocks)) != list(self.blocks):
            raise MindscopeError(
                f"blocks is {list(self.blocks)}; give ascending numbers from 0 to {self.target_block - 1}, below the "
                f"target block {self.target_block}"
            )


def kept_positions(n_tokens: int, skip_first: int) -> range:
    """K of a prompt; raises MindscopeError when it is empty."""
    kept = range(skip_first, n_tokens - 1)
    if not kept:
        raise MindscopeError(
            f"a prompt of {n_tokens} tokens has no kept position; it needs at least {skip_first + 2} "
            f"(skip_first is {skip_first})"
        )
    return kept


@dataclass(frozen=True)
class ResidualGraph:
    """One prompt's residual streams at its kept positions, with the graph between them: `sources` block ->
    [1, |K|, d_model], and `target` [1, |K|, d_model]."""

    sources: Mapping[int, torch.Tensor]
    target: torch.Tensor

    def products(self, cotangents: torch.Tensor, rows_per_pass: int) -> Iterator[tuple[slice, dict[int, torch.Tensor]]]:
        """w^T G_{l,p} for each row w of `cotangents` [m, d_model]: which rows, and block -> [rows, |K|, d_model] in
        the model's dtype, at most `rows_per_pass` rows at a time.

        The graph is kept, so this can be called again; call it in the model's thread.
        """
        inputs = list(self.sources.values())
        everywhere = (-1, 1, *self.target.shape[1:])
        for start in range(0, len(cotangents), rows_per_pass):
            rows = slice(start, min(start + rows_per_pass, len(cotangents)))
            at_all_targets = cotangents[rows, None, None].to(self.target).expand(everywhere)
            gradients = torch.autograd.grad(
                self.target, inputs, at_all_targets, retain_graph=True, is_grads_batched=True
            )
            yield rows, {block: g[:, 0] for block, g in zip(self.sources, gradients, strict=True)}


def record(model: LocalModel, ids: Sequence[int], settings: JacobianSettings) -> ResidualGraph:
    """Run `ids`, cut to max_tokens, and record the graph from the lowest source block to the target, under the
    settings' relevance rules; call it in the model's thread.

    Raises MindscopeError when no position is kept, a submodule is in training mode (its dropout would make the
    Jacobian that of no forward pass), or the rules do not cover the model.
    """
    ids = ids[: settings.max_tokens]
    kept = kept_positions(len(ids), settings.skip_first)
    training = next((name for name, module in model.hf.named_modules() if module.training), None)
    if training is not None:
        raise MindscopeError(f"{training or 'the model'} is in training mode; call eval() on the model first")
    tokens = torch.tensor([list(ids[: kept.stop])], device=model.hf.device)
    with _eager_attention(model), relevance_rules(model, settings.rules), torch.enable_grad():
        cache = {cache_argument(model): DynamicCache(config=model.hf.config)}
        if kept.start:
            with torch.no_grad():
                model.hf(tokens[:, : kept.start], use_cache=True, logits_to_keep=1, **cache)
        with _capture(model, settings) as outputs:
            model.hf(tokens[:, kept.start :], use_cache=True, logits_to_keep=1, **cache)
    return ResidualGraph({block: outputs[block] for block in settings.blocks}, outputs[settings.target_block])


def prompt_sums(
    model: LocalModel,
    ids: Sequence[int],
    settings: JacobianSettings,
    routers: Mapping[int, Router] | None = None,
    *,
    on_rows: Callable[[int], None] | None = None,
) -> tuple[Sums, Weights]:
    """What one prompt adds to a fit.

    Without `routers`: block -> [1, d, d], the mean over K of G_{l,p}, with weight 1: every prompt counts the same.
    With them: block -> [E, d, d], the sums of G_{l,p} over the positions routed to each expert, with their counts:
    every position counts the same. `on_rows` is told the rows of each pass. Raises MindscopeError as `record` does.
    """

    def compute() -> tuple[Sums, Weights]:
        graph = record(model, ids, settings)
        shares = {block: _shares(h[0], routers[block] if routers else None) for block, h in graph.sources.items()}
        d = graph.target.shape[-1]
        sums = {block: torch.empty(share.shape[0], d, d) for block, share in shares.items()}
        on_device = {block: share.to(graph.target.device) for block, share in shares.items()}
        for rows, gradients in graph.products(torch.eye(d), settings.rows_per_pass):
            for block, g in gradients.items():
                sums[block][:, rows] = torch.einsum("ep,ipj->eij", on_device[block], g.float()).cpu()
            if on_rows is not None:
                on_rows(rows.stop - rows.start)
        if routers is None:
            return sums, {block: torch.ones(1, dtype=torch.int64) for block in sums}
        return sums, {block: share.sum(1).long() for block, share in shares.items()}

    return model.run(compute)


def data_sha256(prompts: Sequence[Sequence[int]]) -> str:
    """Hash of all prompts' token ids, in order."""
    return hashlib.sha256("\n".join(prompt_sha256(ids) for ids in prompts).encode()).hexdigest()


def prompt_sha256(ids: Sequence[int]) -> str:
    """Hash of one prompt's token ids as little-endian int64."""
    return hashlib.sha256(b"".join(int(token).to_bytes(8, "little") for token in ids)).hexdigest()


def _shares(activations: torch.Tensor, router: Router | None) -> torch.Tensor:
    """How each kept position enters each expert's sum, [E, |K|] fp32."""
    n = len(activations)
    if router is None:
        return torch.full((1, n), 1 / n)
    return torch.nn.functional.one_hot(router.assign(activations), router.n_experts).T.float()


@contextmanager
def _capture(model: LocalModel, settings: JacobianSettings) -> Iterator[dict[int, torch.Tensor]]:
    """The outputs of the source and target blocks, filled by the next forward pass; the graph starts at the lowest."""
    outputs: dict[int, torch.Tensor] = {}
    blocks = part(model.hf, model.layout.blocks)
    first = min(settings.blocks)

    def keep(index: int, output: torch.Tensor) -> torch.Tensor:
        outputs[index] = output.detach().requires_grad_() if index == first else output
        return outputs[index]

    with ExitStack() as hooks:
        for index in (*settings.blocks, settings.target_block):
            handle = blocks[index].register_forward_hook(lambda module, args, output, index=index: keep(index, output))
            hooks.callback(handle.remove)
        yield outputs


def cache_argument(model: LocalModel) -> str:
    """What this version of transformers calls the cache in a forward pass of `model`."""
    return "cache" if "cache" in signature(type(model.hf).forward).parameters else "past_key_values"


@contextmanager
def _eager_attention(model: LocalModel) -> Iterator[None]:
    before = model.hf.config.get_text_config()._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.hf.set_attn_implementation(before)
