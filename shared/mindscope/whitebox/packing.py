"""Next-token log-probabilities for prompts that begin alike, each shared beginning computed once.

    for indices, logprobs in shared_prefix_batches(model, prompts):      # logprobs: [batch, vocabulary]
        ...

Prompts in token order form a tree: two questions about one text part where the questions do, and all texts of
one frame part at their first own word. A batch lays the nodes of such a tree side by side as one sequence. A
token attends to its own ancestors and itself, and its position is its depth, so that every prompt is computed
as if it stood alone (tested to 1e-5 against one prompt at a time). The head runs on last tokens only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel, Progress, Prompt

LONGEST_SEQUENCE = 1024
"""Tokens of one tree, at most: attention costs the square of it. A single longer prompt is a tree of its own."""


@dataclass
class PrefixTree:
    """Token sequences with each shared beginning stored once; grown by `add`, in sorted order."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """The node before each node; -1 for a first token."""
    ends: list[int] = field(default_factory=list)
    """The last node of each sequence, in the order added."""
    _path: list[int] = field(default_factory=list)

    def growth(self, row: Sequence[int]) -> int:
        """How many nodes `add(row)` would make."""
        return len(row) - self._shared(row)

    def add(self, row: Sequence[int]) -> None:
        del self._path[self._shared(row) :]
        for token in row[len(self._path) :]:
            self.parents.append(self._path[-1] if self._path else -1)
            self._path.append(len(self.tokens))
            self.tokens.append(token)
        self.ends.append(self._path[-1])

    def visible(self) -> np.ndarray:
        """[node, node], whether the first attends to the second: itself and its ancestors."""
        seen = np.eye(len(self.tokens), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen

    def _shared(self, row: Sequence[int]) -> int:
        pairs = zip(row, self._path, strict=False)
        return next(
            (i for i, (token, node) in enumerate(pairs) if token != self.tokens[node]),
            min(len(row), len(self._path)),
        )


def shared_prefix_batches(
    model: LocalModel, prompts: Sequence[Prompt], *, batch_size: int = 32, progress: Progress | None = None
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """The prompts' indices and the log-probabilities of their next tokens [batch, vocabulary], a batch at a
    time; nats, fp32, on the CPU.

    `LocalModel.next_token_batches` does the same without sharing, and is what runs where a tree cannot: with
    an attention kernel that takes no mask, or prompts longer than the model's attention window. Raises
    MindscopeError as that does.
    """
    if batch_size < 1:
        raise MindscopeError(f"batch_size is {batch_size}; it is at least 1")
    rows = model.rows(prompts)
    if not _can_share(model, max(map(len, rows), default=0)):
        yield from model.next_token_batches(rows, batch_size=batch_size, progress=progress)
        return
    done = 0
    for indices, tree in _trees(rows, batch_size):
        logits = _last_logits(model, tree)
        # The sum over a large vocabulary loses 4e-5 nats in single precision.
        yield indices, logits - logits.double().logsumexp(-1, keepdim=True).float()
        done += len(indices)
        if progress is not None:
            progress(done, len(rows))


def _can_share(model: LocalModel, longest: int) -> bool:
    config = model.hf.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    return config._attn_implementation in ("sdpa", "eager") and (window is None or longest <= window)


def _trees(rows: Sequence[list[int]], batch_size: int) -> Iterator[tuple[list[int], PrefixTree]]:
    """The rows in sorted order, so that those that begin alike are neighbours, cut into trees."""
    indices: list[int] = []
    tree = PrefixTree()
    for i in sorted(range(len(rows)), key=lambda i: rows[i]):
        full = len(indices) == batch_size or len(tree.tokens) + tree.growth(rows[i]) > LONGEST_SEQUENCE
        if indices and full:
            yield indices, tree
            indices, tree = [], PrefixTree()
        tree.add(rows[i])
        indices.append(i)
    if indices:
        yield indices, tree


def _last_logits(model: LocalModel, tree: PrefixTree) -> torch.Tensor:
    """Logits after each sequence of the tree, [sequence, vocabulary]."""

    def forward() -> torch.Tensor:
        device, dtype = model.hf.device, model.hf.dtype
        visible = torch.from_numpy(tree.visible())
        hidden = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
        with torch.no_grad():
            logits = model.hf(
                input_ids=torch.tensor([tree.tokens], device=device),
                attention_mask=hidden[None, None].to(device),
                position_ids=(visible.sum(-1) - 1)[None].to(device),
                use_cache=False,
                logits_to_keep=torch.tensor(tree.ends, device=device),
            ).logits
        return logits[0].float().cpu()

    return model.run(forward)
