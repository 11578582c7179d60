"""The two benchmarks of our own: as generated, as described, and fit to measure with."""

import subprocess
import sys
from collections import Counter

import pytest
from infereval_env.agreement import codes, cohen, fleiss, panel_codes
from infereval_env.checks import benchmark_warnings
from infereval_env.files import read_benchmark
from infereval_env.measures import ARITIES, consensus
from mindscope.stimuli import data_path, sha256

FOLDERS = ("kettle", "garden")


def test_the_files_are_what_the_generator_makes():
    made = subprocess.run(
        [sys.executable, str(data_path("infereval/make.py")), "--check"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_checksums(folder):
    lines = data_path(f"infereval/{folder}/SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    assert set(listed) == {"bearers.txt", "items.json", "benchmark.json"}
    for name, digest in listed.items():
        assert sha256(data_path(f"infereval/{folder}/{name}")) == digest


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_is_without_fault_or_warning(folder):
    benchmark = read_benchmark(data_path(f"infereval/{folder}/benchmark.json"))
    assert benchmark_warnings(benchmark) == []
    assert all(bearer.paraphrases for bearer in benchmark.bearers.values())


def test_the_garden_has_what_it_is_for():
    garden = read_benchmark(data_path("infereval/garden/benchmark.json"))
    arities = Counter(ARITIES[min(len(item.conclusions), 2)] for item in garden.items)
    assert arities == {"exclusivity": 8, "single": 47, "exhaustivity": 5}
    ladders = Counter(item.ladder for item in garden.items if item.monotonicity_step)
    assert ladders == {"soil": 5, "pots": 5, "open": 4, "frame": 4, "tomato": 4}
    assert {item.variation for item in garden.items} >= {"base", "strengthen", "contested", "defeat", "abstain_anchor"}
    assert garden.copresence_rules
    assert garden.entailment_rules
    assert any(not item.premises for item in garden.items)
    assert any(set(item.premises) & set(item.conclusions) for item in garden.items)


def test_the_panel_says_that_it_is_synthetic_and_leaves_room_to_disagree():
    garden = read_benchmark(data_path("infereval/garden/benchmark.json"))
    assert len(garden.analysts) == 5
    assert all("Synthetic" in analyst.display_name and "No person" in analyst.notes for analyst in garden.analysts)
    kappa = fleiss(panel_codes([item.analyst_verdicts for item in garden.items]))
    assert 0.5 < kappa.value() < 0.95
    assert kappa.n > 30


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_constant_answer_agrees_beyond_chance(folder):
    benchmark = read_benchmark(data_path(f"infereval/{folder}/benchmark.json"))
    panel = codes([consensus(item.analyst_verdicts) for item in benchmark.items])
    for verdict in ("good", "bad", "abstain"):
        assert cohen(codes([verdict] * len(panel)), panel).value() in (0.0, None)
    assert cohen(panel, panel).value() == 1.0
    assert 0.3 < (panel == 0).mean() < 0.7


def test_longer_is_not_better():
    """The number of premises alone says little about the consensus."""
    garden = read_benchmark(data_path("infereval/garden/benchmark.json"))
    panel = codes([consensus(item.analyst_verdicts) for item in garden.items])
    for threshold in (1, 2, 3):
        guess = codes(["good" if len(item.premises) > threshold else "bad" for item in garden.items])
        assert abs(cohen(guess, panel).value()) < 0.35
