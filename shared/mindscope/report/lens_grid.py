"""A lens's readings (`whitebox.lens.grid`) as a table for the terminal and as the grid page.

print(format_text(grid))
write_grid(grid, Path("grid.html"))         # one offline page: blocks x positions, shade = probability
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mindscope.report.html import template, write_page
from mindscope.report.text import table
from mindscope.report.visible import label, visible

if TYPE_CHECKING:
    from mindscope.whitebox.lens.grid import Grid

_LONGEST_TOKEN = 24
_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
"""Blanks as signs: a token's space is part of it."""


def shown_token(text: str) -> str:
    """A token's text on one line, with blanks as signs and invisible characters as code points; ∅ for none."""
    return "".join(_SIGNS.get(char, char) for char in visible(text)) or "∅"


def format_text(grid: "Grid") -> str:
    """A table for each position: a row a block, its tokens with their probabilities."""
    parts = []
    for j, (position, token) in enumerate(zip(grid.positions, grid.tokens, strict=True)):
        cells = [row[j] for row in grid.cells]
        header = ["block", *(str(rank) for rank in range(1, len(cells[0].tokens) + 1))]
        rows = [
            [str(block), *(_entry(*pair) for pair in zip(cell.tokens, cell.probabilities, strict=True))]
            for block, cell in zip(grid.blocks, cells, strict=True)
        ]
        parts.append(f"after position {position}, {label(shown_token(token), _LONGEST_TOKEN)}\n{table(header, rows)}")
    return "\n\n".join(parts)


def write_grid(grid: "Grid", path: Path) -> None:
    """Write the page; raises MindscopeError when it cannot be written or the `report` extra is missing."""
    page = template("mindscope.report", "lens_grid.html.jinja")
    write_page(page.render(grid=grid, shown=shown_token, probability=_probability), path)


def _entry(token: str, probability: float) -> str:
    return f"{label(shown_token(token), _LONGEST_TOKEN)} {_probability(probability)}"


def _probability(p: float) -> str:
    return f"{p:.2f}" if p >= 0.005 else "<.01"
