"""The classic picture of a lens: for every block and position of one prompt, the tokens it reads there.

    grid = read_grid(model, lens, "The capital of France is")
    grid.cells[i][j].tokens[0]                  # block grid.blocks[i], position grid.positions[j]

`report.lens_grid` shows it as a table or a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import checked_blocks
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from mindscope.whitebox.model import LocalModel, Prompt


@dataclass(frozen=True)
class Cell:
    """The top tokens at one block and position, the most probable first."""

    token_ids: list[int]
    tokens: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class Grid:
    """`cells[block][position]`, in the order of `blocks` and `positions`; `tokens` are the prompt's at `positions`, and
    `following` the ids that come next in it, None after the last."""

    model: str
    estimator: str
    blocks: list[int]
    positions: list[int]
    tokens: list[str]
    following: list[int | None]
    cells: list[list[Cell]]

    def at(self, position: int) -> "Grid":
        """The grid of one position alone, which counts from the end when negative; raises MindscopeError when the grid
        does not have it."""
        found = position if position >= 0 else position + max(self.positions) + 1
        if found not in self.positions:
            raise MindscopeError(
                f"the grid has no position {position}; it has {min(self.positions)} to {max(self.positions)}"
            )
        j = self.positions.index(found)
        return replace(
            self,
            positions=[found],
            tokens=[self.tokens[j]],
            following=[self.following[j]],
            cells=[[row[j]] for row in self.cells],
        )

    def to_dict(self) -> dict[str, object]:
        """For JSON: a reading for each block and position."""
        readings = [
            {"block": block, "position": position, **vars(cell)}
            for block, row in zip(self.blocks, self.cells, strict=True)
            for position, cell in zip(self.positions, row, strict=True)
        ]
        return {
            "model": self.model,
            "lens": self.estimator,
            "positions": self.positions,
            "tokens": self.tokens,
            "readings": readings,
        }


def read_grid(
    model: LocalModel,
    lens: Lens,
    prompt: Prompt,
    *,
    blocks: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    n: int = 10,
    filtered: bool = True,
) -> Grid:
    """The `n` most probable tokens at each of `blocks` (the lens's and the model's last, if left out) and `positions`
    (all, if left out; from the end when negative).

    Raises MindscopeError when the prompt cannot be read, or a block, position or that many tokens do not exist.
    """
    wanted = checked_blocks(model, [*lens.blocks, model.n_blocks - 1] if blocks is None else blocks)
    readout = Readout(model, lens)
    [row] = model.rows([prompt])
    at = list(range(len(row))) if positions is None else [position % len(row) for position in positions]
    [(_, readings)] = readout.over([row], wanted, positions, n=n, filtered=filtered)
    texts = model.run(lambda: {i: token_text(model, i) for r in readings.values() for i in r.ids.unique().tolist()})
    cells = []
    for block in wanted:
        pairs = zip(readings[block].ids.tolist(), readings[block].logprobs.exp().tolist(), strict=True)
        cells.append([Cell(ids, [texts[i] for i in ids], probabilities) for ids, probabilities in pairs])
    return Grid(
        model=model.source or "",
        estimator=lens.metadata.estimator,
        blocks=wanted,
        positions=at,
        tokens=model.run(lambda: [token_text(model, row[position]) for position in at]),
        following=[row[position + 1] if position + 1 < len(row) else None for position in at],
        cells=cells,
    )


def token_text(model: LocalModel, token_id: int) -> str:
    """A token's own text, with the space it starts with, which some tokenizers drop from a text's first token."""
    tokenizer = model.tokenizer
    if token_id >= len(tokenizer):
        return ""
    text = str(tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
    piece = str(tokenizer.convert_ids_to_tokens(token_id))
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text
