"""Where wrong words come from.

    intrusions_of(trials)

Every word that belongs to another pair is an intrusion: the other pair is its source. The distance gradient asks
whether sources were studied near the probed pair (Davis, Geller, Rizzuto & Kahana 2008, Psychonomic Bulletin &
Review 15:64). Its null model deals the study positions of each list anew among its pairs and leaves everything
else as it was, so that which pairs are confused, and how often, is the same under both.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from mindscope.statistics import CONFIDENCE
from pydantic import BaseModel, ConfigDict

from pal50.analysis.trials import Array, Trials
from pal50.items import ItemRow

SHUFFLES = 1_000
_EDGES = (1, 2, 3, 4, 5, 6, 11, 21)
"""First distance of each bin; the last bin has no end."""


class Confusion(BaseModel):
    model_config = ConfigDict(frozen=True)

    probed: str
    source: str
    """Pair codes."""
    count: int


class Distance(BaseModel):
    model_config = ConfigDict(frozen=True)

    first: int
    last: int
    """Study positions between probe and source, in either direction, both included."""
    count: int
    expected: float
    """Mean over the shuffles."""
    low: float
    high: float
    """Central 95 % of the shuffles, for this distance by itself."""


class Gradient(BaseModel):
    model_config = ConfigDict(frozen=True)

    n: int
    """Intrusions whose probe and source are scored pairs of one studied list."""
    distances: tuple[Distance, ...]
    mean_distance: float | None
    expected_mean_distance: float | None
    """Mean over the shuffles."""
    p: float | None
    """Share of shuffles (the observed order counted among them) whose mean distance is as small; one-sided."""
    from_earlier: int
    from_later: int
    """Intrusions from pairs studied before and after the probed one."""
    shuffles: int
    note: str | None
    """Why there is no gradient; else None."""


class Intrusions(BaseModel):
    model_config = ConfigDict(frozen=True)

    n: int
    """Scored trials whose answer belongs to another pair."""
    confusions: tuple[Confusion, ...]
    """The intrusion matrix without its empty cells, most frequent first."""
    pairs: tuple[str, ...]
    """The matrix's rows and columns: every scored pair, by level."""
    levels_of_pairs: tuple[str, ...]
    levels: tuple[str, ...]
    by_level: tuple[tuple[int, ...], ...]
    """Row: level of the probed pair; column: level of the source. Sources outside the scored pairs are left out."""
    elsewhere: int
    """Intrusions whose source is not a scored pair of the table, such as a buffer pair."""
    gradient: Gradient


def intrusions_of(trials: Trials, *, n_shuffles: int = SHUFFLES, seed: int = 0) -> Intrusions:
    probes = [row for row in trials.rows if row.intrusion_source is not None]
    number_of = {code: number for number, code in enumerate(trials.pairs)}
    level_of = dict(zip(trials.pair.tolist(), trials.level.tolist(), strict=True))
    by_level = np.zeros((len(trials.levels), len(trials.levels)), dtype=int)
    elsewhere = 0
    for row in probes:
        source = number_of.get(row.intrusion_source or "")
        if source is None:
            elsewhere += 1
        else:
            by_level[level_of[number_of[row.trcode]], level_of[source]] += 1
    return Intrusions(
        n=len(probes),
        confusions=tuple(_confusions(probes)),
        pairs=trials.pairs,
        levels_of_pairs=tuple(trials.levels[level_of[number]] for number in range(len(trials.pairs))),
        levels=trials.levels,
        by_level=tuple(tuple(counts) for counts in by_level.tolist()),
        elsewhere=elsewhere,
        gradient=_gradient(trials, n_shuffles, seed),
    )


def _confusions(probes: Iterable[ItemRow]) -> list[Confusion]:
    counts = Counter((row.trcode, row.intrusion_source or "") for row in probes)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Confusion(probed=probed, source=source, count=count) for (probed, source), count in ordered]


def _gradient(trials: Trials, n_shuffles: int, seed: int) -> Gradient:
    lists = [found for rows in _by_list(trials) if (found := _positions(rows)) is not None]
    observed = np.concatenate([to - at for _, at, to in lists]) if lists else np.array([], dtype=int)
    if not len(observed):
        note = "No intrusion came from another scored pair of the same studied list."
        return Gradient(
            n=0, distances=(), mean_distance=None, expected_mean_distance=None, p=None, from_earlier=0,
            from_later=0, shuffles=0, note=note,
        )  # fmt: skip
    rng = np.random.default_rng(seed)
    shuffled = np.concatenate([_shuffled(rng, *one, n_shuffles) for one in lists], axis=1)
    farthest = max(int(positions.max() - positions.min()) for positions, _, _ in lists)
    edges = [edge for edge in _EDGES if edge <= farthest]
    counts = _histogram(np.abs(observed)[None], edges)[0]
    null = _histogram(shuffled, edges)
    low, high = np.quantile(null, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    totals = shuffled.sum(axis=1)
    as_near = int((totals <= np.abs(observed).sum()).sum())
    return Gradient(
        n=len(observed),
        distances=tuple(
            Distance(
                first=edge,
                last=(*edges[1:], farthest + 1)[i] - 1,
                count=int(counts[i]),
                expected=float(null[:, i].mean()),
                low=float(low[i]),
                high=float(high[i]),
            )
            for i, edge in enumerate(edges)
        ),
        mean_distance=float(np.abs(observed).mean()),
        expected_mean_distance=float(shuffled.mean()),
        p=(1 + as_near) / (1 + n_shuffles),
        from_earlier=int((observed < 0).sum()),
        from_later=int((observed > 0).sum()),
        shuffles=n_shuffles,
        note=None,
    )


def _by_list(trials: Trials) -> Iterable[list[ItemRow]]:
    """The trials of one list, as one participant studied it once."""
    lists: dict[tuple[object, ...], list[ItemRow]] = {}
    for row in trials.rows:
        lists.setdefault((row.participant, row.rollout, row.cycle, row.list), []).append(row)
    return lists.values()


def _positions(rows: list[ItemRow]) -> tuple[Array, Array, Array] | None:
    """The list's study positions, and of each intrusion within it those of the probe and of the source."""
    position = {row.trcode: row.study_position for row in rows if row.study_position is not None}
    pairs = [
        (position[row.trcode], position[row.intrusion_source])
        for row in rows
        if row.intrusion_source in position and row.trcode in position and row.intrusion_source != row.trcode
    ]
    if not pairs:
        return None
    probes, sources = np.array(pairs).T
    return np.array(list(position.values())), probes, sources


def _shuffled(rng: np.random.Generator, positions: Array, probes: Array, sources: Array, size: int) -> Array:
    """Distances of the same intrusions after `size` new deals of `positions`, (size, intrusions)."""
    place = {position: i for i, position in enumerate(positions.tolist())}
    dealt = rng.permuted(np.tile(positions, (size, 1)), axis=1)
    at = [place[position] for position in probes.tolist()]
    to = [place[position] for position in sources.tolist()]
    return np.abs(dealt[:, to] - dealt[:, at])


def _histogram(distances: Array, edges: list[int]) -> Array:
    """How many distances of each row, (r, n), fall into each bin, (r, bins)."""
    bins = np.searchsorted(edges, distances, side="right") - 1
    return np.stack([(bins == number).sum(axis=1) for number in range(len(edges))], axis=1)
