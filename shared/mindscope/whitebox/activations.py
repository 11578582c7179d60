"""The residual stream of a local model: seen, kept, or replaced, at chosen blocks and positions.

    for found in capture(model, prompts, blocks=[8, 12], positions=[-1]):
        found.prompt, found.values[8]           # which prompt; [position, d_model]

Block l's residual is its output, so block 0 is the first, and the last block's is what the final norm reads.
Positions count a prompt's tokens from 0, or from its end when negative. A batch at a time is held, never all
prompts.

`forward` is the one pass under everything here and in `interventions` and `branches`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, Protocol

import torch
from transformers import Cache, PreTrainedModel

from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel, Progress, Prompt, left_padded, length_batches

Positions = Sequence[int] | Sequence[Sequence[int]] | None
"""The same positions for every prompt, or a list for each; None is every position."""
Visit = Callable[[int, torch.Tensor], torch.Tensor | None]
"""Takes a block and its residual [row, position, d_model]; what it returns, if anything, goes on in its place."""


class Editing(Protocol):
    """What `interventions.Editor` is to a pass: it changes residuals on their way."""

    blocks: list[int]

    def __len__(self) -> int:
        """How many rows there are edits for."""
        ...

    def visit(self, rows: Sequence[int], positions: Sequence[Sequence[int]]) -> Visit:
        """What to do in a pass over `rows`, whose columns hold the tokens at `positions` [row][column], or padding
        where negative."""
        ...


def leave(block: int, residual: torch.Tensor) -> torch.Tensor | None:
    """The visit that does nothing."""
    return None


@dataclass(frozen=True)
class Residuals:
    """One prompt's residuals: `values[block]` is [len(positions), d_model], in the model's dtype and on its
    device."""

    prompt: int
    token_ids: list[int]
    positions: list[int]
    values: dict[int, torch.Tensor]


def capture(
    model: LocalModel,
    prompts: Sequence[Prompt],
    blocks: Sequence[int],
    positions: Positions = None,
    *,
    editor: Editing | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Iterator[Residuals]:
    """Every prompt's residuals at `blocks` and `positions`, as soon as its batch has run; prompts of like
    length share a batch, the longest first. With an `editor`, those that its edits leave.

    The pass ends at the last of `blocks`. Equal to one prompt at a time within 1e-4. Raises MindscopeError for
    a block or a position that does not exist, and for prompts the model cannot read (see `LocalModel.rows`).
    """
    blocks = checked_blocks(model, blocks)
    rows = model.rows(prompts)
    wanted = positions_of(rows, positions)
    check_editor(editor, len(rows))
    done = 0
    for indices in length_batches([len(row) for row in rows], batch_size):
        batch = [rows[i] for i in indices]
        kept: list[dict[int, torch.Tensor]] = [{} for _ in indices]
        columns = [[at - len(row) for at in wanted[i]] for i, row in zip(indices, batch, strict=True)]

        def keep(block: int, residual: torch.Tensor, columns: Any = columns, kept: Any = kept) -> None:
            for row, (at, found) in enumerate(zip(columns, kept, strict=True)):
                found[block] = residual[row, at]

        read(model, batch, blocks, keep, editor=editor, names=indices, logits=0)
        for i, values in zip(indices, kept, strict=True):
            yield Residuals(i, rows[i], wanted[i], values)
        done += len(indices)
        if progress is not None:
            progress(done, len(rows))


def read(
    model: LocalModel,
    rows: Sequence[Sequence[int]],
    blocks: Sequence[int] = (),
    see: Visit = leave,
    *,
    editor: Editing | None = None,
    names: Sequence[int] | None = None,
    logits: int = 1,
) -> torch.Tensor:
    """One pass over rows of token ids, padded on the left: `editor` changes the residuals, then `see` is shown those
    of `blocks`. `names` are the rows' numbers in the editor, 0, 1, … if left out. Returns as `forward` does."""
    inputs = left_padded(rows, pad=model.tokenizer.pad_token_id or 0, device=model.hf.device)
    longest = max(map(len, rows))
    positions = [[column - longest + len(row) for column in range(longest)] for row in rows]
    edited: list[int] = []
    edit: Visit = leave
    if editor is not None:
        edited, edit = editor.blocks, editor.visit(range(len(rows)) if names is None else names, positions)

    def visit(block: int, residual: torch.Tensor) -> torch.Tensor | None:
        replaced = edit(block, residual) if block in edited else None
        if block in blocks:
            see(block, residual if replaced is None else replaced)
        return replaced

    visited = {*blocks, *edited}
    if not logits:
        visited = {block for block in visited if block <= max(blocks)}
    return forward(model, inputs, sorted(visited), visit, logits=logits)


def forward(
    model: LocalModel,
    inputs: Mapping[str, torch.Tensor],
    blocks: Sequence[int] = (),
    visit: Visit = leave,
    *,
    cache: Cache | None = None,
    logits: int = 1,
) -> torch.Tensor:
    """One pass over `inputs` in which `visit` sees the residual of each of `blocks`, in ascending order.

    `cache` holds what came before and grows by what is read. Returns the logits [row, logits, vocabulary] at
    the last `logits` positions, in the model's dtype; with `logits=0` none, and the pass ends at the last of
    `blocks`.
    """
    options: dict[str, Any] = {"use_cache": cache is not None, "logits_to_keep": max(logits, 1)}
    if cache is not None:
        options[_cache_argument(model.hf.__class__)] = cache

    def traced() -> torch.Tensor:
        found = torch.empty(0)
        with torch.no_grad(), model.nn.trace(**inputs, **options) as tracer:
            for block in blocks:
                replaced = visit(block, model.blocks[block].output)
                if replaced is not None:
                    model.blocks[block].output = replaced
            if logits:
                found = model.nn.output.logits.save()
            else:
                tracer.stop()
        return found

    return model.run(traced)


def working_dtype(model: LocalModel) -> torch.dtype:
    """What residuals are computed with: fp32, or fp64 in an fp64 model."""
    return torch.float64 if model.hf.dtype == torch.float64 else torch.float32


def check_editor(editor: Editing | None, n: int) -> None:
    """Raises MindscopeError when there is an editor, but not one with edits for `n` rows."""
    if editor is not None and len(editor) != n:
        raise MindscopeError(f"the editor has edits for {len(editor)} prompts, and there are {n}; give a list for each")


def checked_blocks(model: LocalModel, blocks: Sequence[int]) -> list[int]:
    """`blocks` in ascending order, each once; raises MindscopeError when there is none or one does not exist."""
    if not blocks:
        raise MindscopeError(f"no block is named; the model's blocks are 0 to {model.n_blocks - 1}")
    for block in blocks:
        if not 0 <= block < model.n_blocks:
            raise MindscopeError(f"block {block} does not exist; the model's blocks are 0 to {model.n_blocks - 1}")
    return sorted(set(blocks))


def positions_of(rows: Sequence[Sequence[int]], positions: Positions) -> list[list[int]]:
    """For each row of token ids the wanted positions, counted from 0.

    Raises MindscopeError, naming the row, for one that does not exist, and when there is a list for each row
    but not as many lists as rows.
    """
    if positions is None:
        return [list(range(len(row))) for row in rows]
    each: list[Any] = list(positions)
    if not each or isinstance(each[0], int):
        each = [each] * len(rows)
    if len(each) != len(rows):
        raise MindscopeError(f"positions has {len(each)} lists for {len(rows)} prompts; give one for each prompt")
    found = []
    for i, (row, wanted) in enumerate(zip(rows, each, strict=True)):
        for at in wanted:
            if not -len(row) <= at < len(row):
                raise MindscopeError(f"prompt {i} has {len(row)} tokens and no position {at}")
        found.append([at % len(row) for at in wanted])
    return found


@cached
def _cache_argument(kind: type[PreTrainedModel]) -> str:
    """What a model's forward calls its cache: transformers renamed it in the course of version 5."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
