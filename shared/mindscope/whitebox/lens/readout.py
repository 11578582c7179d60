"""What a residual would say through a lens: its most probable tokens, the rank of a word, the score of an item.

    readout = Readout(model, lens)                          # Lens.logit(model) for the logit lens
    reading = readout.top(12, h, 100)                       # h [position, d_model] after block 12
    reading.ids, reading.logprobs                           # [position, 100], the most probable first
    reading.score(apple_ids)                                # [position]
    readout.ranks(12, h, [[apple_ids, pear_ids]] * len(h))  # [position][set], 1 is the top
    for prompt, readings in readout.over(prompts, blocks=[8, 12], n=10): ...

    logits = softcap(W_U norm(J_l h)),   log-probabilities = log_softmax over the whole head

Norm and head are computed in fp32 (fp64 for an fp64 model), whatever the weights' dtype: in bf16 most of the top 100
tie. Equal logits rank by token id. Readout Filtering drops the ids whose text has no letter or digit, after the
normalisation. The last block is read without a map, so that there the lens says what the model says.

However many positions are read, the logits of at most `chunk_mb` megabytes of them exist at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import Positions, capture, working_dtype
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.model import LocalModel, Progress, Prompt

_HEAD_ROWS = 16_384
"""Rows of the head cast to fp32 at a time, where it is stored in another dtype."""


@dataclass(frozen=True)
class Reading:
    """The n most probable tokens at each position: `ids` [position, n] and their `logprobs` in nats, normalised over
    the whole head, on the CPU."""

    ids: torch.Tensor
    logprobs: torch.Tensor

    def score(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[position]: the largest log-probability among those of `token_ids` that are in the top n; where none is,
        that of rank n, which is as much as an item outside the top n can have."""
        wanted = torch.isin(self.ids, torch.tensor(list(token_ids), dtype=torch.long))
        best = self.logprobs.masked_fill(~wanted, -torch.inf).amax(-1)
        return torch.where(wanted.any(-1), best, self.logprobs[:, -1])


class Readout:
    """Reads residuals of `model` through `lens`."""

    def __init__(self, model: LocalModel, lens: Lens, *, chunk_mb: int = 256) -> None:
        """`chunk_mb`: megabytes of logits held at a time. Raises MindscopeError when the lens is not the model's."""
        lens.check(model)
        self.model = model
        self.lens = lens
        self.dtype = working_dtype(model)
        self._head: nn.Linear = part(model.hf, model.layout.head)
        self._norm: nn.Module = part(model.hf, model.layout.final_norm)
        self._chunk = max(1, chunk_mb * 2**20 // (model.vocab_size * self.dtype.itemsize))

    @cached_property
    def readable(self) -> torch.Tensor:
        """[vocabulary] bool on the model's device: whether a token's text has a letter or digit of any script.

        Special tokens decode to words and are readable; ids that no token has are not.
        """
        tokenizer = self.model.tokenizer
        ids = [[i] for i in range(min(len(tokenizer), self.model.vocab_size))]
        texts = self.model.run(lambda: tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False))
        readable = torch.zeros(self.model.vocab_size, dtype=torch.bool)
        readable[: len(texts)] = torch.tensor([any(map(str.isalnum, text)) for text in texts])
        return readable.to(self.model.hf.device)

    def logits(self, block: int, residual: torch.Tensor) -> torch.Tensor:
        """All logits of residuals [position, d_model] after `block`: [position, vocabulary] on the model's device.

        For a few positions; the other methods never hold this for many. Raises MindscopeError when the lens has no
        such block, or the residuals another width.
        """
        return torch.cat([logits for _, logits in self._chunks(block, residual)])

    def top(self, block: int, residual: torch.Tensor, n: int = 10, *, filtered: bool = True) -> Reading:
        """The `n` most probable tokens at each position of `residual` [position, d_model].

        `filtered` leaves out unreadable tokens (see `readable`). Raises MindscopeError as `logits` does, and when there
        are not `n` tokens.
        """
        available = int(self.readable.sum()) if filtered else self.model.vocab_size
        if not 1 <= n <= available:
            raise MindscopeError(
                f"the top {n} cannot be shown; n is between 1 and the {available} tokens to choose from"
            )
        parts = []
        for _, logits in self._chunks(block, residual):
            normaliser = logits.logsumexp(-1, keepdim=True)
            if filtered:
                logits.masked_fill_(~self.readable, -torch.inf)
            values, ids = _top(logits, n)
            parts.append((ids.cpu(), (values - normaliser).cpu()))
        return Reading(torch.cat([ids for ids, _ in parts]), torch.cat([logprobs for _, logprobs in parts]))

    def ranks(
        self,
        block: int,
        residual: torch.Tensor,
        token_sets: Sequence[Sequence[Sequence[int]]],
        *,
        filtered: bool = True,
        spare: bool = False,
    ) -> list[list[int]]:
        """Rank among all tokens of the best token of each set: `token_sets[i]` are the sets of ids to rank at position
        i of `residual` [position, d_model]. 1 is the top.

        `filtered` leaves out unreadable tokens, except, with `spare`, those of the set in question. Raises
        MindscopeError as `logits` does, and for a set of which nothing is left to rank.
        """
        if len(token_sets) != len(residual):
            raise MindscopeError(
                f"{len(token_sets)} lists of token sets for {len(residual)} positions; give one for each"
            )
        found = []
        for start, logits in self._chunks(block, residual):
            for i, row in enumerate(logits, start):
                others = row.masked_fill(~self.readable, -torch.inf) if filtered else row
                found.append([self._rank(row if spare else others, others, ids, i) for ids in token_sets[i]])
        return found

    def over(
        self,
        prompts: Sequence[Prompt],
        blocks: Sequence[int],
        positions: Positions = None,
        *,
        n: int = 10,
        filtered: bool = True,
        batch_size: int = 16,
        progress: Progress | None = None,
    ) -> Iterator[tuple[int, dict[int, Reading]]]:
        """Each prompt's index and its readings at `blocks`, over its `positions`, as `activations.capture` finds
        them."""
        for found in capture(self.model, prompts, blocks, positions, batch_size=batch_size, progress=progress):
            yield found.prompt, {b: self.top(b, h, n, filtered=filtered) for b, h in found.values.items()}

    def _rank(self, own: torch.Tensor, others: torch.Tensor, ids: Sequence[int], position: int) -> int:
        wanted = torch.tensor(sorted(set(ids)), dtype=torch.long, device=own.device)
        best = own[wanted].max() if len(wanted) else own.new_tensor(-torch.inf)
        if best == -torch.inf:
            raise MindscopeError(
                f"the token set {list(ids)} at position {position} has no token to rank; give ids whose text has a "
                "letter or digit, or pass spare=True"
            )
        first = wanted[own[wanted] == best][0]
        return 1 + int((others > best).sum() + (others[:first] == best).sum())

    def _chunks(self, block: int, residual: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Logits a chunk of positions at a time, each with the index of its first position."""
        if residual.dim() != 2 or residual.shape[1] != self.model.d_model:
            raise MindscopeError(
                f"residual has shape {list(residual.shape)}; a reading takes [position, {self.model.d_model}]"
            )
        matrix = matrix_at(self.model, self.lens, block).to(self.model.hf.device, self.dtype)
        for start in range(0, max(len(residual), 1), self._chunk):
            x = residual[start : start + self._chunk].to(self.model.hf.device, self.dtype)
            yield start, self._unembed(x @ matrix.T)

    def _unembed(self, x: torch.Tensor) -> torch.Tensor:
        """Norm, head and softcap of [position, d_model], in x's dtype."""

        def run() -> torch.Tensor:
            with torch.no_grad():
                gains = {name: gain.to(x.dtype) for name, gain in self._norm.named_parameters()}
                normed = torch.func.functional_call(self._norm, gains, (x,))
                logits = x.new_empty(len(x), self.model.vocab_size)
                for start in range(0, self.model.vocab_size, _HEAD_ROWS):
                    rows = self._head.weight[start : start + _HEAD_ROWS].to(x.dtype)
                    logits[:, start : start + _HEAD_ROWS] = normed @ rows.T
                if self._head.bias is not None:
                    logits += self._head.bias.to(x.dtype)
                if self.model.softcap is not None:
                    logits.div_(self.model.softcap).tanh_().mul_(self.model.softcap)
            return logits

        return self.model.run(run)


def matrix_at(model: LocalModel, lens: Lens, block: int) -> torch.Tensor:
    """The lens's map of `block`, [d_model, d_model] fp32; the identity for the model's last block, which no lens has.

    Raises MindscopeError when the lens does not have the block.
    """
    return torch.eye(model.d_model) if block == model.n_blocks - 1 else lens.matrix(block)


def _top(logits: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The n largest of each row and their ids, equal ones by id; `topk` alone leaves the order of equals open."""
    threshold, ids = logits.topk(n)
    threshold = threshold[:, -1:]
    crowded = (logits >= threshold).sum(-1) > n
    for row, floor, found in zip(logits[crowded], threshold[crowded], crowded.nonzero()[:, 0], strict=True):
        candidates = (row >= floor).nonzero()[:, 0]
        ids[found] = candidates[row[candidates].sort(descending=True, stable=True).indices[:n]]
    ids = ids.sort(-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
