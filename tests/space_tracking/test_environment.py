"""The environment as users run it: the commands of both verifiers generations, against scripted endpoints."""

import json
from pathlib import Path

import pytest
from space_tracking.runs import load_run
from space_tracking.validation import TWO_SPACES, validate
from support.commands import Finished, Venv, verifiers_03, verifiers_04
from support.next_token_server import NextTokenServer
from support.space_subjects import POLICIES, distribution, rows
from support.stub_server import CHAT, COMPLETIONS, Always, EmptyChoices, ForPrompts, Reply, Request
from support.tiny_models import tiny_model, tiny_tokenizer

FIRST = POLICIES["first mention"]
ROWS = {row["id"]: row for row in rows()}


def legacy(url: str, cwd: Path, n: int = 40, **arguments: object) -> Finished:
    return verifiers_03().run(
        "vf-eval", "space_tracking", "--provider", "local", "-b", url, "-m", "subject", "-n", str(n), "-r", "1", "-s",
        "-d", "-A", "--disable-env-server", "--max-retries", "0", "-o", "legacy", "-a", json.dumps(arguments), cwd=cwd,
    )  # fmt: skip


def v1(generation: str, url: str, cwd: Path, n: int = 40, **arguments: object) -> Finished:
    venv, program = (verifiers_03(), "eval") if generation == "0.3" else (verifiers_04(), "vf-eval")
    chosen = [part for name, value in arguments.items() for part in (f"--env.taskset.{name}", str(value))]
    return venv.run(
        program, "space-tracking", "-m", "subject", "-n", str(n), "--client.base-url", url, "--client.api-key-var",
        "VLLM_API_KEY", "--no-push", "--no-rich", "-o", "v1", "--run.name", "run", *chosen, cwd=cwd,
    )  # fmt: skip


def legacy_rows(folder: Path) -> list[dict]:
    (file,) = folder.rglob("results.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def traces(folder: Path) -> list[dict]:
    (file,) = folder.rglob("traces.jsonl")
    return [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]


def rewards(folder: Path) -> dict[str, float]:
    """By row id, whichever generation wrote them."""
    if list(folder.rglob("results.jsonl")):
        return {row["info"]["trcode"]: row["reward"] for row in legacy_rows(folder)}
    return {trace["task"]["data"]["trcode"]: trace["rewards"]["space_tracked"]["score"] for trace in traces(folder)}


def expected(ids: dict[str, float]) -> dict[str, float]:
    return {row_id: float(ROWS[row_id]["first_mentioned"] == ROWS[row_id]["answer"]) for row_id in ids}


def run(generation: str, url: str, cwd: Path, n: int = 40, **arguments: object) -> Finished:
    return legacy(url, cwd, n, **arguments) if generation == "legacy" else v1(generation, url, cwd, n, **arguments)


@pytest.mark.parametrize("generation", ["legacy", "0.3", "0.4"])
def test_the_readmes_command_reads_log_probabilities(tmp_path: Path, generation: str) -> None:
    with NextTokenServer(distribution(FIRST), completions_logprobs="chat") as server:
        done = run(generation, server.base_url, tmp_path)
        paths = {call.path for call in server.requests if call.prompt in {row["prompt"] for row in rows()}}
    assert done.code == 0, done
    found = rewards(tmp_path)
    assert len(found) == 40
    assert found == expected(found)
    assert set(found.values()) == {0.0, 1.0}
    assert paths == {COMPLETIONS if generation == "legacy" else CHAT}
    way = "completions" if generation == "legacy" else "template_kwargs"
    assert f"next-token log-probabilities by {way}, lists of up to 1000 tokens" in done.stdout + done.stderr

    report = validate([load_run(next(tmp_path.iterdir()))])
    lines = {line.name: line.models[0] for line in report.constructions}
    assert (lines[TWO_SPACES].forced.value, lines[TWO_SPACES].pair.value) == (0.5, 0.0)
    assert lines["single_space_control"].forced.value == 1.0
    assert lines[TWO_SPACES].outside == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("generation", ["legacy", "0.3", "0.4"])
def test_a_colour_that_is_not_told_is_unscored_and_never_wrong(tmp_path: Path, generation: str) -> None:
    def silent_about_blue(prompt: str) -> dict[str, float]:
        return {token: p for token, p in distribution(FIRST)(prompt).items() if token != " blue"} | {" azure": 1e-9}

    with NextTokenServer(silent_about_blue) as server:
        run(generation, server.base_url, tmp_path)
    told, untold = [], []
    if generation == "legacy":
        for row in legacy_rows(tmp_path):
            in_play = {ROWS[row["info"]["trcode"]][field] for field in ("answer", "foil")}
            (untold if "blue" in in_play else told).append(row)
        assert all(row["reward"] in (0.0, 1.0) and row.get("error") is None for row in told)
        for row in untold:
            assert row["reward"] != row["reward"]
            assert row["metrics"]["scored_ok"] == 0.0
            assert "unknown log-probability of blue (at most" in row["error"]["error_chain_repr"]
    else:
        for trace in traces(tmp_path):
            row = trace["task"]["data"]["rows"][0]
            (untold if "blue" in (row["answer"], row["foil"]) else told).append(trace)
        assert all(trace["ok"] and trace["rewards"]["space_tracked"]["score"] in (0.0, 1.0) for trace in told)
        for trace in untold:
            assert (trace["ok"], trace["rewards"]["space_tracked"]) == (False, None)
            assert "unknown log-probability of blue (at most" in trace["errors"][-1]["message"]
    assert told
    assert untold
    report = validate([load_run(next(tmp_path.iterdir()))])
    assert (report.models[0].judged, report.models[0].unscored) == (len(told), len(untold))


@pytest.mark.parametrize("generation", ["legacy", "0.4"])
def test_a_failed_call_is_unscored_and_touches_no_other_row(tmp_path: Path, generation: str) -> None:
    lost = next(row["prompt"] for row in rows() if row["template"] == "te-photo")
    fault = ForPrompts(lambda prompt: prompt == lost, Always(EmptyChoices()))
    with NextTokenServer(distribution(FIRST), faults=[fault]) as server:
        run(generation, server.base_url, tmp_path)
    loaded = load_run(next(tmp_path.iterdir()))
    assert len(loaded.judged) == 39
    assert [ROWS[row_id]["prompt"] for row_id in loaded.unscored] == [lost]


@pytest.mark.parametrize("generation", ["legacy", "0.4"])
def test_without_log_probabilities_the_model_is_asked_to_name_the_colour_and_that_is_said(
    tmp_path: Path, generation: str
) -> None:
    by_prompt = {row["prompt"]: row for row in rows()}

    class Chat(NextTokenServer):
        def _reply(self, request: Request) -> Reply:
            row = by_prompt.get(request.last_user.partition(" ...\n")[0])
            return Reply("So" if row is None else f"<colour>{FIRST(row)}</colour>")

    with Chat(distribution(FIRST)) as server:
        done = run(generation, server.base_url, tmp_path)
    assert "no next-token log-probabilities" in done.stdout + done.stderr
    assert "another measurement" in done.stdout + done.stderr
    found = rewards(tmp_path)
    assert len(found) == 40
    assert found == expected(found)
    report = validate([load_run(next(tmp_path.iterdir()))])
    assert report.constructions == ()
    assert {line.name: line.right.value for line in report.replied}["nested_belief"] == 0.5


def test_an_endpoint_that_must_have_log_probabilities_and_has_none_fails_every_row(tmp_path: Path) -> None:
    with NextTokenServer(distribution(FIRST), logprobs=False) as server:
        legacy(server.base_url, tmp_path, n=3, route="endpoint")
    for row in legacy_rows(tmp_path):
        assert row["reward"] != row["reward"]
        assert "gives no next-token log-probabilities" in row["error"]["error_chain_repr"]


def test_v1_asks_a_server_that_takes_no_raw_chat_on_its_completions_route(tmp_path: Path) -> None:
    with NextTokenServer(distribution(FIRST), routes=(COMPLETIONS,)) as server:
        done = v1("0.4", server.base_url, tmp_path, n=8)
    assert "log-probabilities by completions" in done.stdout + done.stderr
    found = rewards(tmp_path)
    assert len(found) == 8
    assert found == expected(found)
    assert all(trace["info"]["readings"][0]["via"] == "completions" for trace in traces(tmp_path))


@pytest.mark.parametrize(
    ("generation", "venv", "replay"), [("0.3", verifiers_03, "replay"), ("0.4", verifiers_04, "vf-replay")]
)
def test_a_replay_scores_again_from_the_trace_alone(tmp_path: Path, generation: str, venv: object, replay: str) -> None:
    with NextTokenServer(distribution(FIRST)) as server:
        v1(generation, server.base_url, tmp_path, n=6, reward="logprob", prior="true")
    before = rewards(tmp_path)
    assert len(before) == 6
    assert all(0.1 < reward < 0.9 for reward in before.values())
    done = venv().run(replay, "v1/run", "--rich", "false", cwd=tmp_path)  # type: ignore[operator]
    assert done.code == 0, done
    files = sorted(tmp_path.rglob("traces.jsonl"), key=lambda file: file.stat().st_mtime)
    again = [json.loads(line)["traces"][0] for line in files[-1].read_text().splitlines()]
    assert {trace["task"]["data"]["trcode"]: trace["rewards"]["space_tracked"]["score"] for trace in again} == before


def test_validate_sends_gold_and_no_preference_through_the_real_score(tmp_path: Path) -> None:
    done = verifiers_04().run(
        "vf-validate", "space-tracking", "--no-rich", "--runtime.type", "subprocess", "-n", "40", cwd=tmp_path
    )
    assert done.code == 0, done
    assert "40/40" in done.stdout + done.stderr, done


def test_pairs_as_rollouts(tmp_path: Path) -> None:
    with NextTokenServer(distribution(FIRST)) as server:
        legacy(server.base_url, tmp_path, n=20, unit="pair", prior=True)
    found = legacy_rows(tmp_path)
    assert len(found) == 20
    for row in found:
        control = row["info"]["condition"] == "single_space_control"
        assert row["reward"] == row["metrics"]["pair_consistent"] == float(control)
        assert row["metrics"]["forced"] == (1.0 if control else 0.5)
        assert ("corrected" in row["metrics"]) == (not control)


@pytest.mark.parametrize("venv", [verifiers_03, verifiers_04])
def test_mindscope_eval_exits_by_what_happened(tmp_path: Path, venv: object) -> None:
    runner: Venv = venv()  # type: ignore[operator]
    command = ["mindscope", "eval", "space_tracking", "-m", "subject", "-n", "20", "--json"]
    with NextTokenServer(distribution(FIRST)) as server:
        done = runner.run(*command, "--base-url", server.base_url, "-o", "run", cwd=tmp_path)
        assert done.code == 0, done
        assert done.json["scored"] == 20
        server.rules.append(Always(EmptyChoices()))
        failed = runner.run(*command, "--base-url", server.base_url, "-o", "failed", cwd=tmp_path)
    assert failed.code == 1, failed
    assert (failed.json["scored"], failed.json["reward"]["value"]) == (0, None)
    tables = verifiers_03().run("mindscope", "space-tracking", "validate", "run", "--json", cwd=tmp_path)
    assert tables.json["models"][0]["judged"] == 20


@pytest.mark.parametrize("generation", ["legacy", "0.3"])
def test_the_whitebox_route_calls_no_endpoint(tmp_path: Path, generation: str) -> None:
    model = tmp_path / "tiny"
    tiny_model("llama").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    chosen = {"route": "whitebox", "whitebox_model": str(model), "multi_token": "sequence"}
    (tmp_path / "out").mkdir()
    done = run(generation, "http://127.0.0.1:9/v1", tmp_path / "out", 6, **chosen)
    loaded = load_run(next((tmp_path / "out").iterdir()))
    assert len(loaded.judged) == 6, done
    scored = verifiers_03().run(
        "mindscope", "space-tracking", "score", "-m", str(model), "-o", "scored", "--env-args",
        '{"multi_token": "sequence", "prior": false}', cwd=tmp_path,
    )  # fmt: skip
    assert scored.code == 0, scored
    batched = load_run(tmp_path / "scored")
    for row_id, judged in loaded.judged.items():
        assert judged.in_play == pytest.approx(batched.judged[row_id].in_play, abs=1e-4)
