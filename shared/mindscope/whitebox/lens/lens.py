"""A fitted lens: for each source block the linear map that carries its residual stream to the target block.

    lens = Lens.logit(model)            # or files.read_lens(path, model), or the lens of a fit
    lens.blocks                         # the source blocks, ascending
    lens.matrix(5) @ h                  # h: residual after block 5, [d_model] -> its image at the target block

Blocks are counted from 0 and h is always a block's output. A matrix J_l is [d_model, d_model] with rows = target
dimensions and columns = source dimensions, so the lens reads W_U norm(J_l h).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedTokenizerBase

from mindscope.errors import MindscopeError
from mindscope.records import installed_versions
from mindscope.whitebox.lens.router import Router
from mindscope.whitebox.model import LocalModel

Estimator = Literal["logit", "J", "R", "J++"]

MIN_POSITIONS = 50
"""An expert that fewer kept positions were routed to is replaced by the pooled map."""


class LensMetadata(BaseModel):
    """Where a lens came from. A field is None where a file from elsewhere does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Hub id, folder or "embedded"."""
    revision: str | None = None
    tokenizer_sha256: str | None = None
    """Of every token with its id; see `tokenizer_sha256`."""
    estimator: Estimator
    target_block: int
    """The block whose output the maps lead to; the last one, or for some public lenses the one before."""
    rules: str | None = None
    """Preset of relevance rules, see `lrp`; "none" for ordinary gradients."""
    skip_first: int | None = None
    """Kept positions of a prompt of S tokens are skip_first .. S-2."""
    max_tokens: int | None = None
    """Prompts were cut to this many tokens."""
    data_sha256: str | None = None
    """Of the token ids of all prompts; see `jacobian.data_sha256`."""
    n_prompts: int = 0
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class Experts:
    """Jacobians of one block averaged over kinds of positions: `maps` [E, d_model, d_model], `counts` [E] int64 the
    kept positions routed to each, `router` what routed them.

    `fallback` [E] marks the experts with too few positions, whose map is the pooled one.
    """

    maps: torch.Tensor
    counts: torch.Tensor
    fallback: torch.Tensor
    router: Router

    @staticmethod
    def from_sums(
        sums: torch.Tensor, counts: torch.Tensor, router: Router, min_positions: int = MIN_POSITIONS
    ) -> "Experts":
        """J_e = sums_e / counts_e, from `sums` [E, d, d] of position Jacobians; see `pooled_map` for the fallback.

        Raises MindscopeError when no position was counted.
        """
        few = counts < min_positions
        maps = sums / counts.clamp(min=1)[:, None, None]
        maps[few] = pooled_map(sums, counts)
        return Experts(maps, counts, few, router)


def pooled_map(sums: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_e sums_e / sum_e weights_e, [E, d, d] and [E] -> [d, d]; raises MindscopeError when all weights are 0."""
    if not weights.sum() > 0:
        raise MindscopeError("the fit has no kept position; give prompts longer than skip_first + 1 tokens")
    return sums.sum(0) / weights.sum()


class Lens:
    """The maps of one model's source blocks, with their provenance.

    `experts` is there when the lens was fitted with a router, `weights` (block -> [E]) once they have been weighted.
    """

    def __init__(
        self,
        metadata: LensMetadata,
        matrices: Mapping[int, torch.Tensor],
        *,
        experts: Mapping[int, Experts] | None = None,
        weights: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """`matrices`: block -> [d_model, d_model], in any float dtype.

        Raises MindscopeError when there are none, one is not square or not of the others' size, or a block does not
        lie below the target.
        """
        if not matrices:
            raise MindscopeError("a lens needs the matrix of at least one block")
        self.metadata = metadata
        self.matrices = {block: matrices[block] for block in sorted(matrices)}
        self.experts = dict(experts or {})
        self.weights = dict(weights or {})
        self.d_model: int = next(iter(self.matrices.values())).shape[-1]
        for block, matrix in self.matrices.items():
            if tuple(matrix.shape) != (self.d_model, self.d_model):
                raise MindscopeError(
                    f"the matrix of block {block} has shape {list(matrix.shape)}; all must be "
                    f"[{self.d_model}, {self.d_model}]"
                )
            if not 0 <= block < metadata.target_block:
                raise MindscopeError(
                    f"block {block} does not lie below the target block {metadata.target_block}; blocks are counted "
                    "from 0"
                )

    @property
    def blocks(self) -> tuple[int, ...]:
        """The source blocks, ascending; the target block, whose map is the identity, is not among them."""
        return tuple(self.matrices)

    def matrix(self, block: int) -> torch.Tensor:
        """J of `block`, [d_model, d_model] fp32 on the CPU: rows = target dimensions, columns = source dimensions.

        The identity for the target block. Raises MindscopeError for a block that the lens does not have.
        """
        if block == self.metadata.target_block:
            return torch.eye(self.d_model)
        if block not in self.matrices:
            raise MindscopeError(
                f"the lens has no block {block}; it has {listed(self.blocks)} and its target "
                f"{self.metadata.target_block}"
            )
        return self.matrices[block].to(torch.float32)

    def with_weights(self, weights: Mapping[int, torch.Tensor]) -> "Lens":
        """The lens whose map at each weighted block is sum_e w_e J_e, w [E]; the other blocks stay as they are.

        Raises MindscopeError when a block has no experts, or another number of them.
        """
        combined = dict(self.matrices)
        for block, w in weights.items():
            if block not in self.experts:
                raise MindscopeError(f"block {block} has no experts to weight; fit the lens with a router")
            maps = self.experts[block].maps
            if w.shape != maps.shape[:1]:
                raise MindscopeError(f"block {block} has {len(maps)} experts and {w.numel()} weights; give one each")
            combined[block] = torch.einsum("e,eij->ij", w.float(), maps.float())
        return Lens(self.metadata, combined, experts=self.experts, weights={**self.weights, **weights})

    def check(self, model: LocalModel) -> None:
        """Raises MindscopeError when the lens cannot be `model`'s: another width, depth or tokenizer. The names are
        not compared: a folder and a hub id may hold the same weights."""
        if self.d_model != model.d_model:
            raise MindscopeError(
                f"the lens of {self.metadata.model} has d_model {self.d_model}, {model.source} has {model.d_model}"
            )
        if self.metadata.target_block >= model.n_blocks:
            raise MindscopeError(
                f"the lens of {self.metadata.model} leads to block {self.metadata.target_block}, and "
                f"{model.source} has blocks 0..{model.n_blocks - 1}"
            )
        known = self.metadata.tokenizer_sha256
        if known is not None and known != tokenizer_sha256(model.tokenizer):
            raise MindscopeError(
                f"the lens of {self.metadata.model} was fitted with another tokenizer than that of {model.source}"
            )

    @staticmethod
    def logit(model: LocalModel) -> "Lens":
        """The logit lens: the identity at every block."""
        target = model.n_blocks - 1
        identity = torch.eye(model.d_model)
        metadata = LensMetadata(
            model=model.source or "",
            revision=model.revision,
            tokenizer_sha256=tokenizer_sha256(model.tokenizer),
            estimator="logit",
            target_block=target,
            versions=installed_versions(),
        )
        return Lens(metadata, dict.fromkeys(range(target), identity))


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the vocabulary: every token with its id, in the order of ids."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0]))
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()


def listed(blocks: Sequence[int]) -> str:
    """Ascending block numbers with runs shortened: 0-3, 8."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
