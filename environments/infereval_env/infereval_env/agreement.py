"""Coefficients of agreement, each written as a function of sums over items.

    kappa = cohen(model, reference)        # codes, shape (items,)
    kappa.value()                          # the coefficient, or None where it is undefined
    interval(kappa, clusters)              # the same with its interval, see `intervals`

An `Additive` holds one row of numbers an item and a formula for the coefficient from the sum of the rows. A
bootstrap then needs no second formula: a resample of the items is a weighted sum of the same rows.

Codes are 0 good, 1 bad, 2 abstain, 3 no answer. A coefficient is undefined, never 0, where its formula
divides by zero: no items, or one category throughout.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Codes = NDArray[np.int8]

GOOD, BAD, ABSTAIN, NO_ANSWER = range(4)
SUBSTANTIVE = (GOOD, BAD)
_CODE = {"good": GOOD, "bad": BAD, "abstain": ABSTAIN, "no_data": NO_ANSWER, None: NO_ANSWER}
_NEGLIGIBLE = 1e-12
"""A denominator smaller than this is zero up to rounding."""


class Additive(NamedTuple):
    rows: Array
    """Shape (items, d)."""
    of: Callable[[Array], Array]
    """Sums of rows, shape (…, d), to coefficients, shape (…); NaN where undefined."""
    n: int
    """Items the coefficient rests on."""
    is_rate: bool = False
    """The coefficient is a proportion of items."""

    def value(self) -> float | None:
        found = float(self.of(self.rows.sum(axis=0)))
        return None if np.isnan(found) else found


def codes(outcomes: Sequence[str | None]) -> Codes:
    """Verdicts as codes, shape (items,)."""
    return np.array([_CODE[outcome] for outcome in outcomes], dtype=np.int8)


def panel_codes(rows: Sequence[Sequence[str | None]]) -> Codes:
    """One row of analysts' verdicts an item, as codes of shape (items, analysts)."""
    width = len(rows[0]) if rows else 0
    coded = [[_CODE[verdict] for verdict in row] for row in rows]
    return np.array(coded, dtype=np.int8).reshape(len(rows), width)


def rate(hits: Array, counted: Array) -> Additive:
    """The share of `counted` items that are `hits`; both boolean of shape (items,)."""
    rows = _columns(counted & hits, counted)
    return Additive(rows, lambda sums: _ratio(sums[..., 0], sums[..., 1]), int(counted.sum()), is_rate=True)


def cohen(
    model: Codes, reference: Codes, *, categories: Sequence[int] = SUBSTANTIVE, weights: Array | None = None
) -> Additive:
    """Cohen's κ (1960) over the items on which both sides are in `categories`."""
    q = len(categories)
    cells = [(model == a) & (reference == b) for a in categories for b in categories]
    rows = _columns(*cells)
    n = int(rows.sum())

    def kappa(sums: Array) -> Array:
        table = sums.reshape(*sums.shape[:-1], q, q)
        total = table.sum(axis=(-1, -2))
        observed = _ratio(np.trace(table, axis1=-2, axis2=-1), total)
        expected = _ratio((table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1), total * total)
        return _beyond_chance(observed, expected)

    return Additive(_weighted(rows, weights), kappa, n)


def fleiss(votes: Codes, *, weights: Array | None = None) -> Additive:
    """Fleiss' κ (1971) over the items that every rater called good or bad; `votes`: (items, raters)."""
    k = votes.shape[1]
    kept = (votes <= BAD).all(axis=1) & (k >= 2)
    tallies = _tallies(votes, SUBSTANTIVE)
    agreeing = (tallies * (tallies - 1)).sum(axis=1) / max(k * (k - 1), 1)
    rows = kept[:, None] * np.column_stack([np.ones(len(votes)), agreeing, tallies / max(k, 1)])

    def kappa(sums: Array) -> Array:
        total = sums[..., 0]
        expected = _ratio(sums[..., 2], total) ** 2 + _ratio(sums[..., 3], total) ** 2
        return _beyond_chance(_ratio(sums[..., 1], total), expected)

    return Additive(_weighted(rows, weights), kappa, int(kept.sum()))


def krippendorff(votes: Codes, *, categories: Sequence[int] = SUBSTANTIVE) -> Additive:
    """Krippendorff's nominal alpha (2004), in which an answer outside `categories` is a gap and not a
    category.

    Items with fewer than two answers in `categories` carry no information and are left out. `votes` has shape
    (items, raters).
    """
    tallies = _tallies(votes, categories)
    answers = tallies.sum(axis=1)
    pairable = answers >= 2
    q = len(categories)
    together = tallies[:, :, None] * (tallies[:, None, :] - np.eye(q))
    rows = (together / np.maximum(answers - 1, 1)[:, None, None] * pairable[:, None, None]).reshape(-1, q * q)

    def alpha(sums: Array) -> Array:
        table = sums.reshape(*sums.shape[:-1], q, q)
        margin = table.sum(axis=-1)
        total = margin.sum(axis=-1)
        observed = total - np.trace(table, axis1=-2, axis2=-1)
        expected = _ratio(total * total - (margin * margin).sum(axis=-1), total - 1)
        return 1 - _ratio(observed, expected)

    return Additive(rows, alpha, int(pairable.sum()))


def gwet(votes: Codes, *, categories: Sequence[int] = SUBSTANTIVE) -> Additive:
    """Gwet's AC1 (2008), gaps allowed: an answer outside `categories` is a gap. `votes`: (items, raters).

    Unlike κ it is defined, and 1, when every answer is in one category.
    """
    tallies = _tallies(votes, categories)
    answers = tallies.sum(axis=1)
    pairable, seen = answers >= 2, answers >= 1
    agreeing = (tallies * (tallies - 1)).sum(axis=1) / np.maximum(answers * (answers - 1), 1)
    rows = np.column_stack([pairable, agreeing * pairable, seen, tallies / np.maximum(answers, 1)[:, None]])
    q = len(categories)

    def ac1(sums: Array) -> Array:
        prevalence = _ratio(sums[..., 3:], sums[..., 2:3])
        expected = (prevalence * (1 - prevalence)).sum(axis=-1) / (q - 1)
        return _beyond_chance(_ratio(sums[..., 1], sums[..., 0]), expected)

    return Additive(rows.astype(float), ac1, int(pairable.sum()))


def difference(one: Additive, other: Additive) -> Additive:
    """`one` less `other` on the same items, for a paired interval."""
    d = one.rows.shape[1]
    return Additive(
        np.hstack([one.rows, other.rows]),
        lambda sums: one.of(sums[..., :d]) - other.of(sums[..., d:]),
        min(one.n, other.n),
    )


def _tallies(votes: Codes, categories: Sequence[int]) -> Array:
    """Answers in each category, shape (items, categories)."""
    return np.stack([(votes == category).sum(axis=1) for category in categories], axis=1).astype(float)


def _columns(*columns: Array) -> Array:
    return np.stack(columns, axis=1).astype(float)


def _weighted(rows: Array, weights: Array | None) -> Array:
    return rows if weights is None else rows * weights[:, None]


def _ratio(part: Array, whole: Array) -> Array:
    """part / whole, NaN where the whole is not positive."""
    whole = np.asarray(whole, dtype=float)
    undefined = np.full(np.broadcast(part, whole).shape, np.nan)
    return np.divide(part, whole, out=undefined, where=whole > _NEGLIGIBLE)


def _beyond_chance(observed: Array, expected: Array) -> Array:
    """(observed - expected) / (1 - expected), NaN where chance alone would agree throughout."""
    return _ratio(observed - expected, 1 - expected)
