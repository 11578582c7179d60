"""Makes the two benchmarks from what a person wrote: `bearers.txt` and `items.json` in each folder.

    python data/infereval/make.py            # writes benchmark.json and SHA256SUMS in each folder
    python data/infereval/make.py --check    # exits 1 when a file is not what would be written

The garden's panel is synthetic. Each of its five analysts reads the author's own guess (the item's
`placeholder`) and departs from it by chance, more often where the guess is that gardeners differ; one analyst
is stricter than the rest and one more lenient. The draws depend on the analyst's and the item's names only.
"""

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path

from infereval_env.bearers import Entry, ItemsDocument, build_benchmark, parse_bearers, read_items
from infereval_env.formats import Analyst, dump
from infereval_env.verdicts import VERDICTS, Verdict

HERE = Path(__file__).parent
SEED = "garden panel 1"
LENIENCY = {"synthetic-1": 1.0, "synthetic-2": 1.0, "synthetic-3": 1.0, "synthetic-4": 0.5, "synthetic-5": 2.0}
"""How much likelier each analyst is to say good than the weights below make it."""
WEIGHTS = {"good": (90, 5, 5), "bad": (5, 90, 5), "abstain": (5, 20, 75), "contested": (40, 40, 20)}
"""For each guess of the author's: how often an analyst says good, bad, abstain."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the files instead of writing them")
    check = parser.parse_args().check
    wrong = []
    for folder in ("kettle", "garden"):
        files = {"benchmark.json": benchmark_text(folder)}
        sources = {name: (HERE / folder / name).read_text(encoding="utf-8") for name in ("bearers.txt", "items.json")}
        files["SHA256SUMS"] = "".join(
            f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n"
            for name, text in sorted({**sources, **files}.items())
        )
        for name, text in files.items():
            path = HERE / folder / name
            if not check:
                path.write_text(text, encoding="utf-8")
            elif not path.exists() or path.read_text(encoding="utf-8") != text:
                wrong.append(str(path))
    for path in wrong:
        print(f"{path} is not what make.py makes")
    return 1 if wrong else 0


def benchmark_text(folder: str) -> str:
    """The text of a folder's benchmark.json."""
    bearers = parse_bearers((HERE / folder / "bearers.txt").read_text(encoding="utf-8"))
    document = read_items(HERE / folder / "items.json")
    if folder == "garden":
        document = with_panel(document)
    return json.dumps(dump(build_benchmark(bearers, document)), indent=2, ensure_ascii=False) + "\n"


def with_panel(document: ItemsDocument) -> ItemsDocument:
    """The document with five synthetic analysts and their verdicts."""
    analysts = tuple(
        Analyst(
            id=name,
            display_name=f"Synthetic analyst {name[-1]}",
            notes="Synthetic: drawn by make.py from the author's guesses. No person gave these verdicts.",
        )
        for name in LENIENCY
    )
    items = tuple(
        entry.model_copy(update={"analyst_verdicts": tuple(verdict(name, entry) for name in LENIENCY)})
        for entry in document.items
    )
    return document.model_copy(update={"meta": document.meta.model_copy(update={"analysts": analysts}), "items": items})


def verdict(analyst: str, entry: Entry) -> Verdict:
    draw = random.Random(f"{SEED}|{analyst}|{entry.id}")
    good, bad, abstain = WEIGHTS[entry.placeholder or "contested"]
    return draw.choices(VERDICTS, (good * LENIENCY[analyst], bad, abstain))[0]


if __name__ == "__main__":
    sys.exit(main())
