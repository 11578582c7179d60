"""The scored trials of an item table, in columns."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pal50.items import ItemRow

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Trials:
    """n scored trials. Every array has shape (n,), in the order of `rows`."""

    rows: tuple[ItemRow, ...]
    participant: Array
    """Number of the participant; all rollouts of one participant are one cluster."""
    pair: Array
    """Number of the pair in `pairs`."""
    level: Array
    """Number of the level in `levels`."""
    correct: Array
    """1.0 or 0.0, under strict comparison."""
    lenient: Array
    pairs: tuple[str, ...]
    """Pair codes, by level and code."""
    levels: tuple[str, ...]
    """Level names by rising similarity."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Array:
        """The numbers in field `name`, NaN where the field is None."""
        return np.array([getattr(row, name) for row in self.rows], dtype=float)


def trials_of(rows: Sequence[ItemRow]) -> Trials:
    """The scored trials of `rows`; buffer pairs are left out."""
    scored = tuple(row for row in rows if row.scored)
    levels = sorted({row.level for row in scored}, key=_similarity_in(scored))
    place = {level: number for number, level in enumerate(levels)}
    pairs = sorted({row.trcode: row for row in scored}.values(), key=lambda row: (place[row.level], row.trcode))
    number_of = {row.trcode: number for number, row in enumerate(pairs)}
    return Trials(
        rows=scored,
        participant=numbered([row.participant for row in scored])[0],
        pair=np.array([number_of[row.trcode] for row in scored], dtype=int),
        level=np.array([place[row.level] for row in scored], dtype=int),
        correct=np.array([row.correct for row in scored], dtype=float),
        lenient=np.array([row.lenient_correct for row in scored], dtype=float),
        pairs=tuple(row.trcode for row in pairs),
        levels=tuple(levels),
    )


def numbered(keys: Sequence[Hashable]) -> tuple[Array, list[Any]]:
    """A number for each key, (n,), and the distinct keys in the order in which they first appear."""
    number_of: dict[Any, int] = {}
    numbers = [number_of.setdefault(key, len(number_of)) for key in keys]
    return np.array(numbers, dtype=int), list(number_of)


def one_hot(numbers: Array, size: int) -> Array:
    """1.0 in column `numbers[i]` of row i, shape (n, size)."""
    return (numbers[:, None] == np.arange(size)).astype(float)


def _similarity_in(rows: Sequence[ItemRow]) -> Any:
    lowest: dict[str, float] = {}
    for row in rows:
        lowest[row.level] = min(row.similarity, lowest.get(row.level, row.similarity))
    return lambda level: (lowest[level], level)
