"""The environment through verifiers' own runners, both generations, and its runs read back as evaluations."""

import json
from pathlib import Path

import pytest
from infereval_env.commands import app
from infereval_env.paradigm import Settings, gold_reply, quad_rewards, trials
from infereval_env.rollouts import evaluation_of_run
from mindscope.errors import MindscopeError
from support.commands import Finished, verifiers_03, verifiers_04
from support.stub_server import Always, EmptyChoices, ForPrompts, Reply, StubServer
from typer.testing import CliRunner

KETTLE = {"benchmark": "kettle", "forms": ["support"], "items": "all"}
ROWS = trials(Settings.parse(KETTLE))
GOLD = {trial.user: gold_reply(trial) for trial in ROWS}
BROKEN = ROWS[2]
"""The row whose calls fail throughout."""


def subject(request):
    """Right on all rows but the first."""
    (user,) = [user for user in GOLD if user in request.prompt]
    return Reply("BAD" if user == ROWS[0].user else GOLD[user])


def stub_with_a_fault():
    return StubServer(subject, faults=ForPrompts(lambda prompt: BROKEN.user in prompt, Always(EmptyChoices())))


def verdicts(eta):
    return {item.id: item.model_verdict for item in eta.items}


EXPECTED = {
    trial.trcode: "no_data" if trial is BROKEN else "bad" if trial is ROWS[0] else trial.target for trial in ROWS
}


def test_agree_by_mindscope_eval(tmp_path):
    """v1 on 0.3.1. The failed call is unscored and is no data in the evaluation; a wrong answer is 0."""
    with stub_with_a_fault() as stub:
        done = verifiers_03().run(
            "mindscope", "eval", "infereval_env", "--base-url", stub.base_url, "-o", str(tmp_path / "run"),
            "--env-args", json.dumps(KETTLE), "--json", cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 1, done
    assert (done.json["scored"], done.json["failed_calls"]) == (5, 1)
    assert done.json["reward"]["value"] == pytest.approx(4 / 5)
    eta, benchmark, _ = evaluation_of_run(tmp_path / "run")
    assert verdicts(eta) == EXPECTED
    assert (benchmark.id, eta.endorsement_config.question_form, eta.model.model_id) == (
        "mindscope-kettle", "support", "embedded",
    )  # fmt: skip
    assert_metrics(tmp_path)


def assert_metrics(tmp_path):
    found = CliRunner().invoke(app, ["metrics", str(tmp_path / "run"), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["calls_failed"] == 1


def groups(folder: Path, done: Finished):
    assert done.code == 0, done
    (file,) = folder.rglob("*s.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def taking_turns():
    """Says something else each time it is asked: of three rollouts two are GOOD and one cannot be read."""
    asked: dict[str, int] = {}

    def policy(request):
        asked[request.prompt] = asked.get(request.prompt, 0) + 1
        return Reply("well, maybe" if asked[request.prompt] == 2 else "GOOD")

    return policy


def test_quad_on_verifiers_04(tmp_path):
    """An episode is a group; `finalize` scores it, and the verdict is the vote."""
    with StubServer(taking_turns()) as stub:
        done = verifiers_04().run(
            "vf-eval", "infereval-env", "-m", "m", "-n", "2", "--client.base-url", stub.base_url,
            "--client.api-key-var", "VLLM_API_KEY", "--env.taskset.benchmark", "kettle",
            "--env.taskset.forms", '["support"]', "--env.taskset.items", "all", "--env.taskset.reward", "quad",
            "--env.group-size", "3", "--no-push", "--no-rich", "-o", str(tmp_path), cwd=tmp_path,
        )  # fmt: skip
    episodes = groups(tmp_path, done)
    expected = sorted(quad_rewards(ROWS[0], ["good", "good", None]))
    assert [sorted(t["rewards"]["quad"]["score"] for t in e["traces"]) for e in episodes] == [
        pytest.approx(expected)
    ] * 2
    assert {name for episode in episodes for trace in episode["traces"] for name in trace["rewards"]} == {"quad"}
    eta, _, _ = evaluation_of_run(tmp_path)
    assert {(item.model_verdict, len(item.samples)) for item in eta.items} == {("good", 3)}


def test_quad_on_legacy(tmp_path):
    with StubServer(taking_turns()) as stub:
        done = verifiers_03().run(
            "vf-eval", "infereval_env", "-p", "local", "-b", stub.base_url, "-m", "m", "-n", "2", "-r", "3",
            "-s", "-d", "-A", "-a", json.dumps(KETTLE | {"reward": "quad"}), "-o", str(tmp_path),
            "--disable-env-server", cwd=tmp_path,
        )  # fmt: skip
    rows = groups(tmp_path, done)
    expected = sorted([*quad_rewards(ROWS[0], ["good", "good", None])] * 2)
    assert sorted(row["reward"] for row in rows) == pytest.approx(expected)
    assert {row["metrics"]["n_valid"] for row in rows} == {3.0}
    eta, _, _ = evaluation_of_run(tmp_path)
    assert {(item.model_verdict, len(item.samples)) for item in eta.items} == {("good", 3)}


def test_a_run_on_the_train_split_gets_no_kappa(tmp_path):
    row = {
        "example_id": 0, "prompt": "p", "completion": [{"role": "assistant", "content": "GOOD"}], "reward": 1.0,
        "metrics": {}, "info": ROWS[0].model_dump(exclude={"panel"}) | {"split": "train"},
    }  # fmt: skip
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    result = CliRunner().invoke(app, ["metrics", str(tmp_path)])
    assert isinstance(result.exception, MindscopeError)
    assert "trained on" in str(result.exception)
    assert ROWS[0].elicitation_hash in str(result.exception)
    assert ROWS[0].reference_hash in str(result.exception)


def test_a_run_of_several_wordings_asks_which(tmp_path):
    lines = [
        json.dumps(
            {
                "example_id": i, "prompt": "p", "completion": [{"role": "assistant", "content": "GOOD"}],
                "reward": 1.0, "metrics": {}, "info": trial.model_dump(exclude={"panel"}),
            }
        )
        for i, trial in enumerate(trials(Settings.parse(KETTLE | {"templates": ["plain-1", "listed-1"]})))
    ]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + '\n{"example_id": 99, "pro')
    with pytest.raises(MindscopeError, match="--setup"):
        evaluation_of_run(tmp_path)
    eta, _, warnings = evaluation_of_run(tmp_path, "support:listed-1:none:0")
    assert eta.setup.template_id == "listed-1"
    assert len(eta.items) == 6
    assert "cut short" in warnings[0]


def test_a_run_of_another_environment_is_said_to_be_one(tmp_path):
    row = {"example_id": 0, "prompt": "p", "completion": [], "reward": 1.0, "metrics": {}, "info": {"trcode": "x"}}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(MindscopeError, match="another environment"):
        evaluation_of_run(tmp_path)
