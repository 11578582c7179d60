"""The measures of one run: coverage, agreement with the panel against the panel's own, and the implication
frame.

    metrics = measure(take_readings(eta, benchmark))       # with intervals; no_data is counted apart
    numbers = measure_as_infereval(take_readings(eta, compat=True))

Names follow the paper and infereval: κ_C is Cohen's κ between the model and the analysts' consensus on the
items where both are good or bad (the index S); κ_F is Fleiss' κ of the analysts and the model together; κ_F*
that of the analysts alone, the ceiling κ_C is read against. They rest on different items, so each carries its
own n.
"""

# ruff: noqa: N815 (κ_C and κ_F keep the paper's capitals, as they do in infereval's files)

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from mindscope.errors import MindscopeError
from mindscope.statistics import Estimate
from pydantic import BaseModel, ConfigDict

from infereval_env.agreement import (
    BAD,
    NO_ANSWER,
    Additive,
    Array,
    Codes,
    codes,
    cohen,
    difference,
    fleiss,
    gwet,
    krippendorff,
    panel_codes,
    rate,
)
from infereval_env.formats import Benchmark
from infereval_env.intervals import N_RESAMPLES, interval
from infereval_env.readings import Reading
from infereval_env.verdicts import VERDICTS, Verdict

Arity = Literal["exclusivity", "single", "exhaustivity"]
ARITIES: tuple[Arity, ...] = ("exclusivity", "single", "exhaustivity")
UNDER_POWERED = 10
"""A κ on fewer substantive items than this is marked."""
THIN_MARGIN = 0.4


class Result(BaseModel):
    """What a command reports; frozen, and JSON as it stands."""

    model_config = ConfigDict(frozen=True)


class Cell(Result):
    """Agreement on some of the items."""

    n_items: int
    n_no_data: int
    n_substantive: int
    model: dict[str, int]
    reference: dict[str, int]
    kappa_C: float | None
    kappa_F: float | None
    under_powered: bool


class FrameCount(Result):
    """The implication frame the model's verdicts derive."""

    members: list[str]
    n_members: int
    by_containment: int
    n_distinct: int
    undecided: list[str]
    """Items with no data, or the same implication asked twice with different verdicts."""


class Dispersion(Result):
    """How undivided the samples of an item were."""

    n_items: int
    mean_entropy: float | None
    mean_margin: float | None
    n_thin_margin: int
    n_tie_broken: int


class Metrics(Result):
    """The measures of one run. An `Estimate` has value, low, high, n, clusters and method."""

    n_items: int
    n_no_data: int
    calls_answered: int
    calls_failed: int
    calls_unparseable: int
    label_mass: float | None
    reference: str
    coverage: Estimate
    coverage_per_analyst: list[Estimate]
    n_substantive: int
    thin_consensus: int
    """Items whose consensus rests on good and bad verdicts of fewer than half of the analysts who
    answered."""
    kappa_C: Estimate
    kappa_F: Estimate
    kappa_F_star: Estimate
    kappa_C_minus_kappa_F_star: Estimate
    kappa_C_margin_weighted: float | None
    kappa_C_per_analyst: list[float | None]
    ac1: Estimate
    """Gwet's AC1 of model and reference on the items of κ_C."""
    ac1_panel: Estimate
    alpha: Estimate
    """Krippendorff's alpha of analysts and model, good against bad, abstentions and missing answers as
    gaps."""
    alpha_panel: Estimate
    alpha_panel_three_valued: Estimate
    """The same with abstain as a third category and only missing answers as gaps."""
    frame: FrameCount
    dispersion: Dispersion
    arity: dict[str, Cell]


class InferevalMetrics(Result):
    """infereval's numbers, by its conventions."""

    n: int
    coverage: float
    coverage_per_analyst: list[float]
    consensus: list[Verdict]
    S: list[int]
    kappa_C: float | None
    kappa_C_margin_weighted: float | None
    kappa_C_per_analyst: list[float | None]
    kappa_F: float | None
    kappa_F_margin_weighted: float | None
    kappa_F_star: float | None
    arity: dict[str, list[str]]
    frame: FrameCount
    dispersion: Dispersion


def consensus(analysts: Iterable[Verdict | None]) -> Verdict:
    """Definition 8: whichever of good and bad more analysts gave, abstentions aside; abstain when they
    tie."""
    said = list(analysts)
    good, bad = said.count("good"), said.count("bad")
    return "good" if good > bad else "bad" if bad > good else "abstain"


def plurality(analysts: Iterable[Verdict | None]) -> Verdict:
    """infereval's second rule, used under `compat` between panels: abstain is counted, and wins any tie."""
    said = [verdict for verdict in analysts if verdict is not None]
    top = Counter(said).most_common()
    return top[0][0] if top and (len(top) == 1 or top[0][1] > top[1][1]) else "abstain"


def arity(reading: Reading) -> Arity:
    return ARITIES[min(len(reading.conclusions), 2)]


def reference_codes(readings: Sequence[Reading], analyst: int | None = None) -> tuple[Codes, str]:
    """What the model is compared with, and its name: the consensus, or the analyst at a position.

    Raises MindscopeError when there is no such analyst.
    """
    if analyst is None:
        return codes([consensus(reading.analysts) for reading in readings]), "consensus"
    width = min((len(reading.analysts) for reading in readings), default=0)
    if not 0 <= analyst < width:
        raise MindscopeError(f"There is no analyst {analyst}; the evaluation has {width}, counted from 0.")
    return codes([reading.analysts[analyst] for reading in readings]), f"analyst {analyst}"


class _Arrays(NamedTuple):
    model: Codes
    panel: Codes
    reference: Codes
    margins: Array

    @property
    def everyone(self) -> Codes:
        return np.column_stack([self.panel, self.model])

    def of_analyst(self, position: int) -> Codes:
        return self.panel[:, position]


def _arrays(readings: Sequence[Reading], reference: Codes) -> _Arrays:
    return _Arrays(
        codes([reading.outcome for reading in readings]),
        panel_codes([reading.analysts for reading in readings]),
        reference,
        np.array([reading.margin or 0.0 for reading in readings]),
    )


def measure(
    readings: Sequence[Reading], *, analyst: int | None = None, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Metrics:
    """The measures of a run, with intervals over clusters of items; `analyst` picks one as the reference."""
    reference, name = reference_codes(readings, analyst)
    data = _arrays(readings, reference)
    clusters = [reading.cluster for reading in readings]

    def estimate(measured: Additive) -> Estimate:
        return interval(measured, clusters, n_resamples=n_resamples, seed=seed)

    masses = [reading.label_mass for reading in readings if reading.label_mass is not None]
    kappa_c, kappa_f_star = cohen(data.model, reference), fleiss(data.panel)
    both = np.where((data.model <= BAD) & (reference <= BAD), 0, NO_ANSWER)[:, None]
    pair = np.maximum(np.column_stack([data.model, reference]), both)
    return Metrics(
        n_items=len(readings),
        n_no_data=sum(reading.outcome == "no_data" for reading in readings),
        calls_answered=sum(reading.answered for reading in readings),
        calls_failed=sum(reading.failed for reading in readings),
        calls_unparseable=sum(reading.unparseable for reading in readings),
        label_mass=sum(masses) / len(masses) if masses else None,
        reference=name,
        coverage=estimate(coverage(data.model)),
        coverage_per_analyst=[estimate(coverage(column)) for column in data.panel.T],
        n_substantive=kappa_c.n,
        thin_consensus=sum(_is_thin(reading.analysts) for reading in readings),
        kappa_C=estimate(kappa_c),
        kappa_F=estimate(fleiss(data.everyone)),
        kappa_F_star=estimate(kappa_f_star),
        kappa_C_minus_kappa_F_star=estimate(difference(kappa_c, kappa_f_star)),
        kappa_C_margin_weighted=cohen(data.model, reference, weights=data.margins).value(),
        kappa_C_per_analyst=[cohen(data.model, column).value() for column in data.panel.T],
        ac1=estimate(gwet(pair)),
        ac1_panel=estimate(gwet(data.panel)),
        alpha=estimate(krippendorff(data.everyone)),
        alpha_panel=estimate(krippendorff(data.panel)),
        alpha_panel_three_valued=estimate(krippendorff(data.panel, categories=(0, 1, 2))),
        frame=frame_count(readings),
        dispersion=dispersion(readings),
        arity=cells(readings, lambda reading: [arity(reading)], analyst=analyst),
    )


def measure_as_infereval(readings: Sequence[Reading]) -> InferevalMetrics:
    """infereval's numbers from readings taken with `compat=True`."""
    reference, _ = reference_codes(readings)
    data = _arrays(readings, reference)
    both = (data.model <= BAD) & (reference <= BAD)
    return InferevalMetrics(
        n=len(readings),
        coverage=coverage(data.model).value() or 0.0,
        coverage_per_analyst=[coverage(column).value() or 0.0 for column in data.panel.T],
        consensus=[consensus(reading.analysts) for reading in readings],
        S=[int(position) for position in np.flatnonzero(both)],
        kappa_C=cohen(data.model, reference).value(),
        kappa_C_margin_weighted=cohen(data.model, reference, weights=data.margins).value(),
        kappa_C_per_analyst=[cohen(data.model, column).value() for column in data.panel.T],
        kappa_F=fleiss(data.everyone).value(),
        kappa_F_margin_weighted=fleiss(data.everyone, weights=data.margins).value(),
        kappa_F_star=fleiss(data.panel).value(),
        arity={name: [r.id for r in readings if arity(r) == name] for name in ARITIES},
        frame=frame_count(readings, compat=True),
        dispersion=dispersion(readings, compat=True),
    )


def coverage(outcomes: Codes) -> Additive:
    """The share of items with an answer whose answer is good or bad."""
    return rate(outcomes <= BAD, outcomes != NO_ANSWER)


def cells(
    readings: Sequence[Reading], key: Callable[[Reading], Iterable[str]], *, analyst: int | None = None
) -> dict[str, Cell]:
    """Agreement within each group of items; `key` gives the groups of an item."""
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        for group in key(reading):
            groups.setdefault(group, []).append(reading)
    return {group: _cell(members, analyst) for group, members in sorted(groups.items())}


def _cell(readings: Sequence[Reading], analyst: int | None) -> Cell:
    reference, _ = reference_codes(readings, analyst)
    data = _arrays(readings, reference)
    kappa = cohen(data.model, reference)
    return Cell(
        n_items=len(readings),
        n_no_data=int((data.model == NO_ANSWER).sum()),
        n_substantive=kappa.n,
        model={name: int((data.model == code).sum()) for code, name in enumerate(VERDICTS)},
        reference={name: int((reference == code).sum()) for code, name in enumerate(VERDICTS)},
        kappa_C=kappa.value(),
        kappa_F=fleiss(data.everyone).value(),
        under_powered=kappa.n < UNDER_POWERED,
    )


class Frame:
    """The derived implication frame ⟨B, I_M⟩ (Definition 3) of a run.

    ⟨Γ, Δ⟩ is in I_M when Γ and Δ share a bearer or the model's verdict on it is good; ⟨∅, ∅⟩ never is. The
    same implication asked under two ids counts once: when the verdicts differ it is undecided, and under
    `compat=True` the last one stands.
    """

    def __init__(self, readings: Sequence[Reading], *, compat: bool = False) -> None:
        self._verdicts: dict[tuple[frozenset[str], frozenset[str]], set[str]] = {}
        for reading in readings:
            implication = (reading.premises, reading.conclusions)
            if compat or implication not in self._verdicts:
                self._verdicts[implication] = set()
            if reading.outcome != "no_data":
                self._verdicts[implication].add(reading.outcome)

    def __len__(self) -> int:
        return len(self._verdicts)

    def contains(self, premises: frozenset[str], conclusions: frozenset[str]) -> bool | None:
        """Whether the implication is a member; None when it was asked and is undecided. Unasked ones are
        not."""
        if premises & conclusions:
            return True
        verdicts = self._verdicts.get((premises, conclusions))
        if verdicts is None or not (premises or conclusions):
            return False
        return verdicts == {"good"} if len(verdicts) == 1 else None


def frame_count(readings: Sequence[Reading], *, compat: bool = False) -> FrameCount:
    """Which items are members of the derived frame."""
    frame = Frame(readings, compat=compat)
    inside = {reading.id: frame.contains(reading.premises, reading.conclusions) for reading in readings}
    members = [name for name, held in inside.items() if held]
    return FrameCount(
        members=members,
        n_members=len(members),
        by_containment=sum(bool(reading.premises & reading.conclusions) for reading in readings),
        n_distinct=len(frame),
        undecided=[name for name, held in inside.items() if held is None],
    )


def dispersion(readings: Sequence[Reading], *, compat: bool = False) -> Dispersion:
    """Mean entropy and margin of the items' answers; under `compat` an item without answers counts as 0 of
    both."""
    if compat:
        spread = [(reading.entropy or 0.0, reading.margin or 0.0) for reading in readings]
    else:
        spread = [(r.entropy, r.margin) for r in readings if r.entropy is not None and r.margin is not None]
    empty = 0.0 if compat else None
    return Dispersion(
        n_items=len(spread),
        mean_entropy=sum(entropy for entropy, _ in spread) / len(spread) if spread else empty,
        mean_margin=sum(margin for _, margin in spread) / len(spread) if spread else empty,
        n_thin_margin=sum(margin < THIN_MARGIN for _, margin in spread),
        n_tie_broken=sum(reading.tie_broken for reading in readings),
    )


class Panels(Result):
    """Agreement within and between the panels of a benchmark."""

    kappa_F_star: dict[str, float | None]
    between: float | None
    """Cohen's κ of the two panels' consensus; None unless there are two panels."""


def panel_agreement(benchmark: Benchmark, *, compat: bool = False) -> Panels:
    """κ_F* of each panel, and κ between the two consensus columns.

    The consensus is that of κ_C; under `compat` it is infereval's second rule, which counts abstentions.
    """
    rule = plurality if compat else consensus
    votes = {
        name: [[item.analyst_verdicts[position] for position in at] for item in benchmark.items]
        for name, at in sorted(benchmark.panels().items())
    }
    columns = [codes([rule(row) for row in rows]) for rows in votes.values()]
    return Panels(
        kappa_F_star={name: fleiss(panel_codes(rows)).value() for name, rows in votes.items()},
        between=cohen(*columns).value() if len(columns) == 2 else None,
    )


def _is_thin(analysts: Sequence[Verdict | None]) -> bool:
    answered = sum(verdict is not None for verdict in analysts)
    substantive = sum(verdict in ("good", "bad") for verdict in analysts)
    return 0 < 2 * substantive < answered
