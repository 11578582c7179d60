"""What a misbehaving endpoint does to a run: retried, or failed and said so; never a reward of 0.

One run meets every fault at once, a different one for each item, so that what one item suffers must not touch
another.
"""

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Finished, Venv, verifiers_03, verifiers_04
from support.oracle import oracle
from support.stub_server import (
    Always,
    EmptyChoices,
    FirstAttempt,
    ForPrompts,
    Length,
    NullContent,
    RateLimit,
    Reply,
    Request,
    ResetMidBody,
    Rule,
    ServerError,
    Stall,
    StubServer,
    TruncatedJSON,
    Unauthorized,
    constant,
)
from support.subjects import PAIRS, cue_of, perfect

RUNNERS = {
    "v1 on 0.3": (verifiers_03, "v1"),
    "v1 on 0.4": (verifiers_04, "v1"),
    "legacy on 0.3": (verifiers_03, "legacy"),
}
CUES = [pair["cue"] for pair in PAIRS]

PASSING: list[Rule] = [RateLimit(retry_after=0.05), RateLimit(), ServerError(), ResetMidBody()]
LASTING: list[Rule] = [EmptyChoices(), TruncatedJSON()]
SILENT, CUT = CUES[10], CUES[11]
N = 14


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> tuple[Venv, str]:
    venv, api = RUNNERS[request.param]
    return venv(), api


def command(api: str, stub: StubServer, tmp_path: Path, *arguments: str) -> list[str]:
    return [
        "mindscope", "eval", "ps_primal", "--base-url", stub.base_url, "-m", "x", "--api", api,
        "-o", str(tmp_path / "run"), "--json", *arguments,
    ]  # fmt: skip


def evaluate(runner: tuple[Venv, str], stub: StubServer, tmp_path: Path, *arguments: str) -> Finished:
    venv, api = runner
    return venv.run(*command(api, stub, tmp_path, *arguments), cwd=tmp_path)


def calls(stub: StubServer) -> Counter[str]:
    """Calls by the cue they ask for."""
    return Counter(cue_of(call.prompt) for call in stub.requests if call.prompt)


def only(cue: str, rule: Rule) -> Rule:
    return ForPrompts(lambda prompt: cue_of(prompt) == cue, rule)


def misbehaving_subject(request: Request) -> Reply:
    """Recalls everything, but leaves the tag open where the stub will say that the token limit cut the reply."""
    return Reply(text="<recall>half an ans") if cue_of(request.prompt) == CUT else perfect()(request)


def test_every_fault_in_one_run(runner: tuple[Venv, str], tmp_path: Path) -> None:
    passing = dict(zip(CUES[:4], PASSING, strict=True))
    lasting = dict(zip(CUES[4:6], LASTING, strict=True))
    faults = [
        *(only(cue, FirstAttempt(fault)) for cue, fault in passing.items()),
        *(only(cue, Always(fault)) for cue, fault in lasting.items()),
        only(SILENT, Always(NullContent())),
        only(CUT, Always(Length())),
    ]
    with StubServer(misbehaving_subject, faults=faults) as stub:
        done = evaluate(runner, stub, tmp_path, "-n", str(N))
        first = calls(stub)
        stub.rules = [fault for fault in faults if fault not in faults[4:6]]
        resumed = evaluate(runner, stub, tmp_path, "-n", str(N), "--resume")
        second = calls(stub) - first

    assert done.code == 1, done
    summary = done.json
    assert (summary["scored"], summary["failed_calls"], summary["failed_scores"]) == (N - 2, 2, 0)
    assert summary["reward"]["n"] == N - 2
    assert summary["reward"]["value"] == pytest.approx((N - 4) / (N - 2))
    outcomes = {row["outcome"]: row["count"] for row in summary["outcomes"] if row["count"]}
    assert outcomes == {"correct": N - 4, "omission": 1, "truncated": 1}
    assert "2 of them failed" in done.stderr
    for cue in CUES[:N]:
        if cue in lasting:
            assert first[cue] >= 1
        else:
            assert first[cue] == (2 if cue in passing else 1), cue

    assert resumed.code == 0, resumed
    assert resumed.json["scored"] == N
    assert second == dict.fromkeys(lasting, 1)


def test_a_refused_key_is_never_retried_never_shown_and_stops_no_other_rollout(
    runner: tuple[Venv, str], tmp_path: Path
) -> None:
    venv, api = runner
    key = "sk-canary-0123456789"
    with StubServer(perfect(), faults=only(CUES[1], Always(Unauthorized()))) as stub:
        done = venv.run(*command(api, stub, tmp_path, "-n", "4", "-c", "1"), cwd=tmp_path, VLLM_API_KEY=key)
        assert calls(stub) == dict.fromkeys(CUES[:4], 1)
        assert all(key in call.headers["Authorization"] for call in stub.requests if call.prompt)
    assert done.code == 1, done
    assert (done.json["scored"], done.json["failed_calls"]) == (3, 1)
    assert key not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_a_rollout_that_runs_out_of_time_is_unscored(tmp_path: Path) -> None:
    slow = only(CUES[1], Always(Stall(30)))
    with StubServer(perfect(), faults=slow) as stub:
        legacy = verifiers_03().run(
            "vf-eval", "ps_primal", "-p", "local", "-b", stub.base_url, "-m", "x", "-n", "3", "-r", "1", "-s", "-d",
            "-A", "-o", str(tmp_path / "legacy"), "--timeout", "3", "--disable-env-server", cwd=tmp_path,
        )  # fmt: skip
        assert legacy.code == 0, legacy
        v1 = verifiers_04().run(
            "vf-eval", "ps-primal", "-m", "x", "-n", "3", "--client.base-url", stub.base_url, "--client.api-key-var",
            "VLLM_API_KEY", "--env.agent.timeout.rollout", "3", "--no-push", "--no-rich", "-o", str(tmp_path / "v1"),
            cwd=tmp_path,
        )  # fmt: skip
        assert v1.code == 0, v1
    for folder in ("legacy", "v1"):
        done = verifiers_03().run("mindscope", "report", str(tmp_path / folder), "--json", cwd=tmp_path)
        assert done.code == 0, done
        assert done.json["scored"] == 2
        assert done.json["reward"]["value"] == 1.0


def test_two_processes_do_not_share_a_folder_and_a_run_resumes_at_another_pace(tmp_path: Path) -> None:
    venv = verifiers_03()
    hanging = only(CUES[3], Always(Stall(60)))
    with StubServer(perfect(), faults=hanging) as stub:
        first = venv.start(*command("v1", stub, tmp_path, "-n", "4"), cwd=tmp_path)
        wait_for(lambda: sum(calls(stub).values()) == 4)
        second = venv.run(*command("v1", stub, tmp_path, "-n", "4", "--resume"), cwd=tmp_path)
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        assert second.code == 2, second
        assert "another process is running" in second.stderr
        stub.rules = []
        third = venv.run(*command("v1", stub, tmp_path, "-n", "4", "--resume", "-c", "1"), cwd=tmp_path)
    assert third.code == 0, third
    assert third.json["scored"] == 4


def test_a_run_killed_before_its_first_row_can_be_resumed(runner: tuple[Venv, str], tmp_path: Path) -> None:
    venv, api = runner
    with StubServer(perfect(), faults=Always(Stall(60))) as stub:
        process = venv.start(*command(api, stub, tmp_path, "-n", "2"), cwd=tmp_path)
        wait_for(lambda: sum(calls(stub).values()) == 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        stub.rules = []
        done = evaluate(runner, stub, tmp_path, "-n", "2", "--resume")
    assert done.code == 0, done
    assert done.json["scored"] == 2


def test_a_task_card_that_changed_is_not_resumed(tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    card.write_bytes(oracle("psychscanner/pal50.json").read_bytes())
    arguments = ("-n", "2", "--env-args", json.dumps({"task_card": str(card)}))
    runner = verifiers_03(), "v1"
    with StubServer(constant("<recall>umbrella</recall>")) as stub:
        assert evaluate(runner, stub, tmp_path, *arguments).code == 0
        card.write_text(card.read_text().replace("umbrella", "parasol"))
        done = evaluate(runner, stub, tmp_path, *arguments, "--resume")
    assert done.code == 2
    assert "data_sha256" in done.stderr


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_run_resumes_with_each_missing_call_made_once(runner: tuple[Venv, str], tmp_path: Path) -> None:
    venv, api = runner
    n = 12

    def slow(request: Request) -> Reply:
        reply = perfect()(request)
        return Reply(text=reply.text, delay_s=0.2)

    arguments = ("-n", str(n), "-c", "2")
    with StubServer(slow) as stub:
        process = venv.start(*command(api, stub, tmp_path, *arguments), cwd=tmp_path)
        wait_for(lambda: sum(calls(stub).values()) >= 7)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        saved = saved_cues(tmp_path / "run")
        answered = calls(stub)
        assert 0 < len(saved) < n
        done = evaluate(runner, stub, tmp_path, *arguments, "--resume")
        again = calls(stub) - answered
    assert done.code == 0, done
    assert done.json["scored"] == n
    assert again == {cue: 1 for cue in CUES[:n] if cue not in saved}


def saved_cues(folder: Path) -> set[str]:
    """Cues of the whole rows on disk, whichever runner wrote them."""
    (file,) = [*folder.rglob("traces.jsonl"), *folder.rglob("results.jsonl")]
    saved = set()
    for line in file.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        saved.add(row["info"]["cue"] if "info" in row else row["traces"][0]["task"]["data"]["cue"])
    return saved


def test_resume_refuses_to_mix_settings_and_a_new_run_to_overwrite(tmp_path: Path) -> None:
    runner = verifiers_03(), "v1"
    with StubServer(perfect()) as stub:
        assert evaluate(runner, stub, tmp_path, "-n", "2").code == 0
        mixed = evaluate(runner, stub, tmp_path, "-n", "2", "--resume", "--env-args", '{"study": "none"}')
        again = evaluate(runner, stub, tmp_path, "-n", "2")
        assert sum(calls(stub).values()) == 2
    assert mixed.code == 2
    assert "env_args" in mixed.stderr
    assert again.code == 2
    assert "--resume" in again.stderr


def test_a_dry_run_says_what_would_be_run_and_writes_nothing(tmp_path: Path) -> None:
    done = verifiers_03().run("mindscope", "eval", "ps_primal", "-n", "7", "-r", "3", "--dry-run", cwd=tmp_path)
    assert done.code == 0, done
    assert "21 rollouts, 3 an item" in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["eval", "ps_primal", "--base-url", "http://127.0.0.1:9/v1"],
            "nothing answers at http://127.0.0.1:9/v1",
        ),
        (["eval", "no_such_env"], "'no_such_env' is not installed"),
        (["eval", "ps_primal", "--env-args", "{"], "--env-args is not JSON"),
        (["eval", "ps_primal", "--env-args", "[]"], "--env-args is a JSON list"),
        (["eval", "ps_primal", "--env-args", '{"study": "all", "ordr": 1}'], "2 faults"),
        (["eval", "ps_primal", "--provider", "nowhere"], "--provider is 'nowhere'"),
        (["eval", "ps_primal", "--api", "v2"], "--api is 'v2'"),
        (["eval", "ps_primal", "--resume"], "--resume needs -o"),
        (["eval", "ps_primal", "--base-url", "http://me:pw@127.0.0.1:9/v1", "-m", "x"], "user name or password"),
        (["eval", "ps_primal", "--api-key-var", "sk-a-key"], "not the name of a variable"),
        (["eval", "ps_primal", "--sampling", '{"temperature": NaN}'], "NaN"),
        (["eval", "ps_primal", "--provider", "openai"], "-m is missing"),
        (["eval", "os"], "no environment"),
        (["eval", "ps_primal", "--env-args", '{"task_card": "absent.json"}'], "absent.json"),
    ],
)
def test_what_cannot_run_says_why_before_anything_is_written(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = verifiers_03().run("mindscope", *arguments, cwd=tmp_path)
    assert done.code == 2, done
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_a_legacy_row_of_a_failed_rollout_has_no_number_for_a_reward(tmp_path: Path) -> None:
    with StubServer(perfect(), faults=only(CUES[2], Always(EmptyChoices()))) as stub:
        verifiers_03().run(
            "vf-eval", "ps_primal", "-p", "local", "-b", stub.base_url, "-m", "x", "-n", "5", "-r", "1", "-s", "-d",
            "-A", "-o", str(tmp_path), "--max-retries", "0", "--disable-env-server", cwd=tmp_path,
        )  # fmt: skip
    (file,) = tmp_path.rglob("results.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (failed,) = [row for row in rows if row.get("error") is not None]
    assert math.isnan(failed["reward"])
    assert failed["metrics"]["scored_ok"] == 0.0
    assert [row["reward"] for row in rows if row.get("error") is None] == [1.0] * 4
