"""A score that fails is neither a wrong answer nor a failed call, whichever runner was used."""

from pathlib import Path

import pytest
from support.commands import Venv, verifiers_03, verifiers_04
from support.stub_server import Reply, Request, StubServer

ENVIRONMENTS = str(Path(__file__).parent / "environments")
RUNNERS = [(verifiers_03, "v1"), (verifiers_04, "v1"), (verifiers_03, "legacy")]


def says_right(request: Request) -> Reply:
    return Reply(text="right")


@pytest.mark.parametrize(("venv", "api"), RUNNERS, ids=["v1 on 0.3", "v1 on 0.4", "legacy on 0.3"])
@pytest.mark.parametrize("rollouts", [1, 2])
def test_failed_scores_are_counted_apart_and_fail_the_command(venv, api: str, rollouts: int, tmp_path: Path) -> None:
    with StubServer(says_right) as stub:
        python: Venv = venv()
        done = python.run(
            "mindscope", "eval", "faulty_env", "--base-url", stub.base_url, "--api", api, "-r", str(rollouts),
            "-o", str(tmp_path / "run"), "--json", cwd=tmp_path, PYTHONPATH=ENVIRONMENTS,
        )  # fmt: skip
    assert done.code == 1, done
    summary = done.json
    counts = summary["scored"], summary["failed_calls"], summary["failed_scores"]
    assert counts == (2 * rollouts, 0, 2 * rollouts)
    assert summary["reward"]["value"] == 0.5
    assert stub.count(path="/v1/chat/completions") == 4 * rollouts
