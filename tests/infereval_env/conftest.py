"""Small benchmarks and evaluations written as letters: G good, B bad, A abstain, U unparseable, E a failed
call."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from infereval_env.formats import Analyst, Bearer, Benchmark, Evaluation, EvaluationItem, Item, Model, Sample
from infereval_env.runlog import with_verdicts

REPOSITORY = Path(__file__).resolve().parents[2]
ORACLE = REPOSITORY.parent / "shared" / "oracle" / "infereval"
VERDICT = {"G": "good", "B": "bad", "A": "abstain", "-": None}


def verdicts(letters: str) -> tuple[Any, ...]:
    return tuple(VERDICT[letter] for letter in letters)


def samples(letters: str) -> tuple[Sample, ...]:
    made = []
    for index, letter in enumerate(letters):
        if letter == "E":
            made.append(
                Sample(
                    sample_index=index,
                    raw_response="",
                    parsed_verdict=None,
                    parse_status="sample_failed",
                    provider_error="timeout",
                )
            )
        elif letter == "U":
            made.append(
                Sample(
                    sample_index=index,
                    raw_response="well",
                    parsed_verdict="abstain",
                    parse_status="unparseable",
                    wall_time_ms=5.0,
                )
            )
        else:
            reply = {"G": "GOOD", "B": "BAD", "A": "ABSTAIN"}[letter]
            made.append(
                Sample(sample_index=index, raw_response=reply, parsed_verdict=VERDICT[letter], wall_time_ms=5.0)
            )
    return tuple(made)


def build_eta(
    votes: Mapping[str, str], panel: Mapping[str, str] | None = None, *, run: str = "run", **changes: Any
) -> Evaluation:
    """`votes` gives each item's samples, `panel` its analysts' verdicts (GB where not given)."""
    items = tuple(
        EvaluationItem(
            id=name,
            premises=("p",),
            conclusions=("q",),
            analyst_verdicts=verdicts((panel or {}).get(name, "GB")),
            model_verdict="no_data",
            samples=samples(letters),
        )
        for name, letters in votes.items()
    )
    eta = Evaluation(id=run, benchmark_id="letters", model=Model(provider="test", model_id="m"), items=items)
    eta = eta.model_copy(update=changes)
    longest = max((len(letters) for letters in votes.values()), default=5)
    if "endorsement_config" not in changes:
        config = eta.endorsement_config.model_copy(update={"n_samples": max(1, longest)})
        eta = eta.model_copy(update={"endorsement_config": config})
    return with_verdicts(eta)


def build_benchmark(panel: Mapping[str, str], **changes: Any) -> Benchmark:
    width = max(len(letters) for letters in panel.values())
    return Benchmark(
        id="letters",
        bearers={name: Bearer(expression=f"{name} holds") for name in "pqrst"},
        analysts=tuple(Analyst(id=f"a{i}") for i in range(width)),
        items=tuple(
            Item(id=name, premises=("p",), conclusions=("q",), analyst_verdicts=verdicts(letters))
            for name, letters in panel.items()
        ),
    ).model_copy(update=changes)


@pytest.fixture
def make_eta() -> Callable[..., Evaluation]:
    return build_eta


@pytest.fixture
def make_benchmark() -> Callable[..., Benchmark]:
    return build_benchmark


@pytest.fixture
def letters() -> Callable[[str], Sequence[Any]]:
    return verdicts


@pytest.fixture(scope="session")
def oracle() -> Path:
    if not ORACLE.is_dir():
        pytest.skip("infereval's outputs are not here")
    return ORACLE


@pytest.fixture(scope="session")
def expected(oracle: Path) -> dict[str, Any]:
    return json.loads((oracle / "expected.json").read_text(encoding="utf-8"))
