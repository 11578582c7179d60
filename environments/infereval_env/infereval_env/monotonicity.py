"""Graded evidence: along an ordinal family, a verdict should move one way only (bad below good).

    for ladder in ladders(take_readings(eta, benchmark)): …

A ladder is the items with a `monotonicity_step` of one (ladder, family, fixed bearer), in the order of the
tiers. Abstentions are gaps. A violation is a step down between neighbours that are good or bad where the
verdicts should not fall, or a step up where they should not rise. A ladder without a violation may still say
nothing: one that is good throughout is monotone and flat, and `chance` tells how often a shuffle of the same
verdicts would pass.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import comb
from typing import Literal

from mindscope.errors import MindscopeError

from infereval_env.formats import Expected
from infereval_env.measures import Result
from infereval_env.readings import Reading

_SIGN = {"good": "G", "bad": "B", "abstain": ".", "no_data": "?"}


class Ladder(Result):
    ladder: str | None
    family: str
    fixed: str | None
    expected: Expected
    sequence: str
    """One sign a step: G good, B bad, . abstain, ? no data."""
    steps: list[str]
    gaps: int
    missing: list[str]
    """Steps without data, or absent from the run."""
    status: Literal["monotone", "violated", "insufficient"]
    """`insufficient`: fewer than two steps are good or bad."""
    flat: bool
    """All substantive verdicts are the same, so the order was not tested."""
    chance: float | None
    """Share of the orders of these verdicts that are monotone; None when the status is insufficient."""
    violations: list[tuple[str, str]]


def ladders(readings: Sequence[Reading], *, compat: bool = False) -> list[Ladder]:
    """Every ladder of a run, in the order of first appearance.

    Raises MindscopeError when the steps of a ladder disagree on the expected direction; under `compat`, the
    first step's counts, as in infereval.
    """
    groups: dict[tuple[str | None, str, str | None], list[Reading]] = {}
    for reading in readings:
        if reading.step is not None:
            groups.setdefault((reading.ladder, reading.step.family, reading.step.fixed), []).append(reading)
    return [_ladder(*key, members, compat) for key, members in groups.items()]


def _ladder(name: str | None, family: str, fixed: str | None, members: list[Reading], compat: bool) -> Ladder:
    directions = [reading.step.expected for reading in members if reading.step]
    if len(set(directions)) > 1 and not compat:
        raise MindscopeError(
            f"The steps of ladder {name!r} ({family}) disagree on the expected direction: "
            f"{', '.join(f'{r.id} {direction}' for r, direction in zip(members, directions, strict=True))}."
        )
    expected = directions[0]
    steps = sorted(members, key=lambda reading: reading.step.tier_index if reading.step else 0)
    known = [reading for reading in steps if reading.outcome in ("good", "bad")]
    fall, rise = ("good", "bad"), ("bad", "good")
    forbidden = fall if expected == "non_decreasing" else rise
    violations = [
        (below.id, above.id) for below, above in pairwise(known) if (below.outcome, above.outcome) == forbidden
    ]
    n_good = sum(reading.outcome == "good" for reading in known)
    enough = len(known) >= 2
    return Ladder(
        ladder=name,
        family=family,
        fixed=fixed,
        expected=expected,
        sequence="".join(_SIGN[reading.outcome] for reading in steps),
        steps=[reading.id for reading in steps],
        gaps=sum(reading.outcome == "abstain" for reading in steps),
        missing=[reading.id for reading in steps if reading.outcome == "no_data"],
        status="violated" if violations else "monotone" if enough else "insufficient",
        flat=enough and n_good in (0, len(known)),
        chance=1 / comb(len(known), n_good) if enough else None,
        violations=violations,
    )


class VariationRow(Result):
    variation: str
    n: int
    good: int
    bad: int
    abstain: int
    no_data: int


def variations(readings: Sequence[Reading]) -> list[VariationRow]:
    """Verdicts by the role an item has in its ladder, in infereval's order, items without a role last."""
    order = (
        "base",
        "strengthen",
        "contested",
        "defeat",
        "abstain_anchor",
        "monotonicity_step",
        "unspecified",
    )
    rows = []
    for name in order:
        outcomes = [r.outcome for r in readings if (r.variation or "unspecified") == name]
        if outcomes:
            counts = {outcome: outcomes.count(outcome) for outcome in ("good", "bad", "abstain", "no_data")}
            rows.append(VariationRow(variation=name, n=len(outcomes), **counts))
    return rows
