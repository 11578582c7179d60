"""Run folders as verifiers leave them, written from one list of rows in either generation's format.

The shapes were taken from real runs of verifiers 0.3.1 (`vf-eval -s`, `eval`) and 0.4.0 (`vf-eval`).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Row:
    """One rollout as the test means it: an outcome, or the message of a failed call or a failed score."""

    trcode: str
    condition: str | None = "L25"
    outcome: str | None = "correct"
    reply: str = "<recall>apple</recall>"
    reward: float | None = None
    call_error: str | None = None
    score_error: str | None = None
    cut: bool = False
    seconds: float = 1.0
    tokens: tuple[int, int] = (11, 5)
    metrics: dict[str, float] = field(default_factory=dict)
    prompt: str = "Which word was paired with orchard?"
    target: str = "apple"

    @property
    def scored(self) -> bool:
        return self.call_error is None and self.score_error is None

    @property
    def value(self) -> float:
        return float(self.outcome == "correct") if self.reward is None else self.reward

    def measured(self, outcomes: Iterable[str]) -> dict[str, float]:
        flags = {f"outcome_{name}": float(name == self.outcome) for name in outcomes}
        return {"scored_ok": 1.0} | flags | self.metrics

    @property
    def factors(self) -> dict[str, Any]:
        named = {} if self.condition is None else {"condition": self.condition}
        return {"trcode": self.trcode, "similarity": 0.25, "target": self.target} | named


OUTCOMES = ("correct", "wrong", "omission")
START = 1_700_000_000.0


def legacy_row(row: Row, number: int) -> dict[str, Any]:
    error = None
    if row.call_error is not None:
        chain = f"ModelError() -> {row.call_error}"
        error = {
            "error": "ModelError",
            "message": "ModelError",
            "error_chain_repr": chain,
            "error_chain_str": "",
        }
    if row.score_error is not None:
        chain = f"ScoringError('{row.score_error}')"
        error = {
            "error": "ScoringError",
            "message": row.score_error,
            "error_chain_repr": chain,
            "error_chain_str": "",
        }
    metrics = (
        row.measured(OUTCOMES) | {"recall": row.value} if row.scored else {"scored_ok": 0.0, "recall": float("nan")}
    )
    record = {
        "example_id": number,
        "prompt": [{"role": "user", "content": row.prompt}],
        "completion": [] if row.call_error else [{"role": "assistant", "content": row.reply}],
        "info": row.factors,
        "reward": row.value if row.scored else float("nan"),
        "error": error,
        "timing": {
            "start_time": START,
            "generation": {"start": START, "end": START + row.seconds, "duration": row.seconds},
            "total": row.seconds + 0.5,
        },
        "is_completed": True,
        "is_truncated": row.cut,
        "stop_condition": "has_error" if row.call_error else "max_turns_reached",
        "metrics": metrics | {"num_turns": 0.0 if row.call_error else 1.0},
        "tool_defs": [],
    }
    if not row.call_error:
        record["token_usage"] = {"input_tokens": float(row.tokens[0]), "output_tokens": float(row.tokens[1])}
    return record


def v1_row(row: Row, number: int) -> dict[str, Any]:
    task = {
        "type": "PaTask",
        "data": {"idx": number, "prompt": row.prompt, "network_allow": ["*"], "timeout": {}, "resources": {}}
        | row.factors,
    }
    errors, rewards, metrics = [], {"recall": {"score": row.value, "weight": 1.0}}, row.measured(OUTCOMES)
    if row.call_error is not None:
        errors, rewards, metrics = (
            [{"type": "ProviderError", "message": row.call_error, "status_code": 400}],
            {},
            {},
        )
    if row.score_error is not None:
        errors, rewards, metrics = (
            [{"type": "TaskError", "message": row.score_error}],
            {"recall": None},
            {"details": None},
        )
    nodes = [
        {"message": {"role": "user", "content": row.prompt}, "sampled": False, "token_ids": []},
        {
            "parent": 0,
            "message": {"role": "assistant", "content": row.reply},
            "sampled": True,
            "token_ids": [],
        },
    ]
    call = {
        "node": 1,
        "finish_reason": "length" if row.cut else "stop",
        "usage": {"prompt_tokens": row.tokens[0], "completion_tokens": row.tokens[1]},
    }
    failed_call = {"model": "org/toy", "error": {"type": "ProviderError", "message": row.call_error}}
    trace = {
        "version": 1,
        "id": f"trace{number}",
        "verifiers": {"version": "0.4.0"},
        "task": task,
        "agent": {
            "name": "agent",
            "config": {
                "model": "org/toy",
                "client": {"base_url": "http://127.0.0.1:8000/v1"},
                "sampling": {"temperature": 0.0},
            },
        },
        "nodes": [] if row.call_error else nodes,
        "calls": [failed_call if row.call_error else call],
        "rewards": rewards,
        "metrics": metrics,
        "ok": row.scored,
        "stop_condition": "provider_error" if row.call_error else "agent_completed",
        "errors": errors,
        "timing": {
            "start": START,
            "agent": {"start": START, "end": START + row.seconds, "model": {"duration": 0.1}},
        },
    }
    return {
        "id": f"e{number}",
        "env": {"id": "pa_toy"},
        "task": task,
        "ok": row.scored,
        "errors": [],
        "traces": [trace],
    }


def write_legacy(folder: Path, rows: Iterable[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(legacy_row(row, number)) for number, row in enumerate(rows)]
    (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
    metadata = {
        "env_id": "pa_toy",
        "env_args": {},
        "model": "org/toy",
        "base_url": "http://127.0.0.1:8000/v1",
        "sampling_args": {"n": 1, "extra_body": {}, "max_tokens": None, "temperature": 0.0},
        "avg_reward": float("nan"),
        "version_info": {"vf_version": "0.3.1", "vf_commit": None},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def write_v1(folder: Path, rows: Iterable[Row]) -> Path:
    config = folder / "configs" / "resolved" / "eval.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(v1_row(row, number)) for number, row in enumerate(rows)]
    (folder / "traces.jsonl").write_text("".join(f"{line}\n" for line in lines))
    config.write_text(
        json.dumps(
            {
                "env": {"id": "", "taskset": {"id": "pa_toy", "task": {"judges": []}, "system_prompt": None}},
                "model": "org/toy",
                "client": {"base_url": "http://127.0.0.1:8000/v1", "api_key_var": "VLLM_API_KEY"},
                "sampling": {"temperature": 0.0, "top_p": None},
            }
        )
    )
    return folder


Writer = Callable[[Path, Iterable[Row]], Path]


@pytest.fixture
def make_row() -> type[Row]:
    return Row


@pytest.fixture(params=[write_legacy, write_v1], ids=["legacy", "v1"])
def write_run(request: pytest.FixtureRequest) -> Writer:
    """Writes a run folder; a test that uses it runs once for each format."""
    return request.param


@pytest.fixture
def writers() -> dict[str, Writer]:
    return {"legacy": write_legacy, "v1": write_v1}
