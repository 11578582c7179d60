"""Does a run hang together in the way its items were built to? Four checks on an evaluation.

    for check in structure(take_readings(eta, benchmark)): …

* containment: an item whose premises and conclusions share a bearer should be judged good. (infereval counts
  them all as in order, since its frame holds them whatever the verdict: `compat=True`.)
* roles: a supporter of a good base inference should keep it good and a defeater should make it bad; an
  irrelevant addition should leave a base inference as it is. Roles are tags; items of one `rsr_target` belong
  together.
* base stability: several base inferences of one target should have one verdict.
* thin margins: where the model agrees with the analysts, by a margin below 0.4 it might not have.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from infereval_env.formats import RsrTarget
from infereval_env.measures import THIN_MARGIN, Result, consensus
from infereval_env.readings import Reading
from infereval_env.verdicts import Outcome, Verdict

Role = Literal["supporter", "defeater", "irrelevant-addition"]
BASE = "base-inference"
EXPECTED: dict[Outcome, dict[Role, Verdict]] = {
    "good": {"supporter": "good", "defeater": "bad", "irrelevant-addition": "good"},
    "bad": {"irrelevant-addition": "bad"},
}
"""Verdict of the base inference, role of the item, expected verdict."""


class Anomaly(Result):
    item_id: str
    expected: str
    found: str


class Check(Result):
    name: Literal["containment_closure", "rsr_role_consistency", "base_case_stability", "thin_margin_agreement"]
    checked: int
    ok: int
    rate: float | None
    anomalies: list[Anomaly]


def structure(readings: Sequence[Reading], *, thin_margin: float = THIN_MARGIN, compat: bool = False) -> list[Check]:
    """The four checks. Items with no data, and for roles abstentions, are not checked."""
    known = [reading for reading in readings if reading.outcome != "no_data"]
    bases = _bases(known)
    return [
        _containment(known, compat),
        _roles(known, bases),
        _stability(bases),
        _thin_margins(known, thin_margin, compat),
    ]


def _check(name: str, checked: int, anomalies: list[Anomaly]) -> Check:
    ok = checked - len(anomalies)
    return Check.model_validate(
        {
            "name": name,
            "checked": checked,
            "ok": ok,
            "rate": ok / checked if checked else None,
            "anomalies": anomalies,
        }
    )


def _bases(readings: Sequence[Reading]) -> dict[RsrTarget, list[Reading]]:
    found: dict[RsrTarget, list[Reading]] = {}
    for reading in readings:
        if reading.rsr_target is not None and BASE in reading.tags:
            found.setdefault(reading.rsr_target, []).append(reading)
    return found


def _containment(readings: Sequence[Reading], compat: bool) -> Check:
    shared = [reading for reading in readings if reading.premises & reading.conclusions]
    failing = [] if compat else [reading for reading in shared if reading.outcome != "good"]
    return _check(
        "containment_closure",
        len(shared),
        [Anomaly(item_id=reading.id, expected="good", found=reading.outcome) for reading in failing],
    )


def _roles(readings: Sequence[Reading], bases: dict[RsrTarget, list[Reading]]) -> Check:
    cases = list(_role_cases(readings, bases))
    anomalies = [
        Anomaly(item_id=reading.id, expected=expected, found=reading.outcome)
        for reading, expected in cases
        if reading.outcome != expected
    ]
    return _check("rsr_role_consistency", len(cases), anomalies)


def _role_cases(
    readings: Sequence[Reading], bases: dict[RsrTarget, list[Reading]]
) -> Iterator[tuple[Reading, Verdict]]:
    """Items with a role beside a settled base inference, and the verdict their role asks for."""
    for reading in readings:
        verdicts: set[Outcome] = (
            {base.outcome for base in bases.get(reading.rsr_target, [])} if reading.rsr_target else set()
        )
        if len(verdicts) != 1 or reading.outcome == "abstain":
            continue
        asked = EXPECTED.get(verdicts.pop(), {})
        role = next((role for role in EXPECTED["good"] if role in reading.tags), None)
        if role in asked:
            yield reading, asked[role]


def _stability(bases: dict[RsrTarget, list[Reading]]) -> Check:
    several = [members for members in bases.values() if len(members) >= 2]
    anomalies = [
        Anomaly(
            item_id=reading.id,
            expected="one verdict for all base inferences of its target",
            found=reading.outcome,
        )
        for members in several
        if len({member.outcome for member in members}) > 1
        for reading in members
    ]
    return _check("base_case_stability", sum(map(len, several)), anomalies)


def _thin_margins(readings: Sequence[Reading], thin_margin: float, compat: bool) -> Check:
    agreeing = [
        (reading, reading.margin or 0.0)
        for reading in readings
        if reading.outcome in ("good", "bad")
        and reading.outcome == consensus(reading.analysts)
        and (compat or reading.margin is not None)
    ]
    anomalies = [
        Anomaly(item_id=reading.id, expected=f"a margin of {thin_margin} or more", found=f"{margin:.2f}")
        for reading, margin in agreeing
        if margin < thin_margin
    ]
    return _check("thin_margin_agreement", len(agreeing), anomalies)
