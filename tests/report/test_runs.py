import json
import math
from pathlib import Path

import pytest
from mindscope.errors import MindscopeError
from mindscope.report.runs import read_run

REAL = Path(__file__).parent / "data"
"""What verifiers themselves wrote for a six-item toy environment; paths and tracebacks were taken out."""


@pytest.mark.parametrize(
    ("folder", "version"), [("legacy-0.3.1", "0.3.1"), ("v1-0.3.1", "0.3.1"), ("v1-0.4.0", "0.4.0")]
)
def test_reads_what_verifiers_write(folder: str, version: str) -> None:
    run = read_run(REAL / folder)
    assert (run.environment, run.model, run.base_url) == ("pa_toy", "org/toy", "http://127.0.0.1:8000/v1")
    assert (run.verifiers, run.manifest, run.torn_lines) == (version, None, 0)
    by_item = {rollout.item: rollout for rollout in run.rollouts}
    assert sorted(by_item) == [f"PA-0{i}" for i in range(6)]

    right, wrong, thinking = by_item["PA-00"], by_item["PA-01"], by_item["PA-02"]
    assert (right.reward, right.condition, right.gold, right.outcome) == (1.0, "L50", "alpha", "correct")
    assert right.factors["cue"] == "alpha"
    assert right.factors["similarity"] == 0.5
    assert "network_allow" not in right.factors
    assert [(m.role, m.text) for m in right.prompt] == [("user", "cue alpha right")]
    assert [(m.role, m.text) for m in right.reply] == [("assistant", "<recall>alpha</recall>")]
    assert (right.input_tokens, right.output_tokens) == (11, 5)
    assert 0.0 < right.duration_s < 60.0
    assert (wrong.reward, wrong.failure, wrong.outcome) == (0.0, None, "wrong")
    assert wrong.metrics == {**wrong.metrics, "scored_ok": 1.0, "outcome_wrong": 1.0, "recall_L25": 0.0}
    assert thinking.reply[0].reasoning == "hmm"

    call, score = by_item["PA-03"], by_item["PA-04"]
    assert (call.reward, call.failure.kind, call.outcome) == (None, "call", None)
    assert "bad request" in call.failure.message
    assert [m.text for m in call.prompt] == ["cue delta fail"]
    assert call.reply == ()
    assert (score.reward, score.failure.kind) == (None, "score")
    assert "scorer exploded" in score.failure.message
    assert [m.text for m in score.reply] == ["<recall>eps</recall>"]
    assert by_item["PA-05"].finish_reason == "length"
    assert right.finish_reason != "length"


def test_the_resolved_sampling_is_read_without_what_was_left_open() -> None:
    assert read_run(REAL / "v1-0.4.0").sampling == {"temperature": 0.0}
    assert read_run(REAL / "legacy-0.3.1").sampling == {}


def test_a_trace_file_alone_says_what_was_run(tmp_path: Path) -> None:
    file = tmp_path / "copied.jsonl"
    file.write_bytes((REAL / "v1-0.4.0" / "traces.jsonl").read_bytes())
    run = read_run(file)
    assert (run.environment, run.model, run.base_url) == ("pa_toy", "org/toy", "http://127.0.0.1:8000/v1")
    assert len(run.rollouts) == 6


def test_wrong_answers_failed_calls_and_failed_scores_stay_apart(write_run, make_row, tmp_path: Path) -> None:
    rows = [
        make_row("a", outcome="wrong"),
        make_row("b", call_error="upstream 500"),
        make_row("c", score_error="the scorer broke"),
    ]
    wrong, call, score = read_run(write_run(tmp_path, rows)).rollouts
    assert (wrong.reward, wrong.failure) == (0.0, None)
    assert (call.reward, call.failure.kind) == (None, "call")
    assert (score.reward, score.failure.kind) == (None, "score")
    assert "upstream 500" in call.failure.message
    assert "the scorer broke" in score.failure.message


def edited(folder: Path, **changes: object) -> Path:
    """The run in `folder` with its first line changed; dotted names reach into v1's only trace."""
    file = next(folder.glob("*.jsonl"))
    first, *rest = file.read_text().splitlines()
    record = json.loads(first)
    for name, value in changes.items():
        target = record["traces"][0] if name.startswith("trace_") else record
        target[name.removeprefix("trace_")] = value
    file.write_text("\n".join([json.dumps(record), *rest]) + "\n")
    return folder


def test_a_legacy_reward_beside_an_error_counts_for_nothing(writers, make_row, tmp_path: Path) -> None:
    """verifiers' own rubric scores rollouts whose call failed; 1.0 and 0.0 have both been seen."""
    folder = writers["legacy"](tmp_path, [make_row("a", call_error="boom")])
    for reward in (0.0, 1.0):
        rollout = read_run(edited(folder, reward=reward)).rollouts[0]
        assert (rollout.reward, rollout.failure.kind) == (None, "call")


def test_a_rollout_that_ran_out_of_time_is_a_failed_call(writers, make_row, tmp_path: Path) -> None:
    legacy = writers["legacy"](tmp_path / "old", [make_row("a", outcome="wrong")])
    v1 = writers["v1"](tmp_path / "new", [make_row("a", outcome="wrong")])
    edited(legacy, stop_condition="timeout_reached")
    edited(v1, trace_is_timeout=True, trace_stop_condition="agent_timeout")
    for folder in (legacy, v1):
        rollout = read_run(folder).rollouts[0]
        assert (rollout.reward, rollout.failure.kind) == (None, "call")
        assert "time limit" in rollout.failure.message


def test_a_v1_rollout_saved_by_a_retry_is_scored(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a")])
    edited(folder, trace_errors=[{"type": "ProviderError", "message": "first attempt"}])
    assert read_run(folder).rollouts[0].reward == 1.0


def test_a_v1_episode_that_failed_after_its_trace_is_a_failed_score(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a")])
    edited(folder, ok=False, errors=[{"type": "EnvError", "message": "finalize raised"}])
    rollout = read_run(folder).rollouts[0]
    assert (rollout.reward, rollout.failure.kind) == (None, "score")


def test_a_v1_episode_without_a_trace_is_kept_as_a_failure(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a", prompt="Which word?")])
    edited(folder, ok=False, traces=[], errors=[{"type": "SandboxError", "message": "no room"}])
    rollout = read_run(folder).rollouts[0]
    assert (rollout.item, rollout.failure.kind, rollout.failure.message) == (
        "a",
        "call",
        "SandboxError: no room",
    )
    assert rollout.prompt[0].text == "Which word?"


@pytest.mark.parametrize(
    "changes",
    [{"trace_rewards": {}}, {"trace_rewards": {"recall": None}}, {"trace_metrics": {"scored_ok": 0.0}}],
    ids=["none", "null", "not ok"],
)
def test_a_v1_rollout_without_a_reward_is_a_failed_score(writers, make_row, tmp_path: Path, changes) -> None:
    folder = edited(writers["v1"](tmp_path, [make_row("a")]), **changes)
    assert read_run(folder).rollouts[0].failure.kind == "score"


@pytest.mark.parametrize("changes", [{"reward": None}, {"reward": math.nan}, {"metrics": {"scored_ok": 0.0}}])
def test_a_legacy_rollout_without_a_reward_is_a_failed_score(writers, make_row, tmp_path: Path, changes) -> None:
    folder = edited(writers["legacy"](tmp_path, [make_row("a")]), **changes)
    assert read_run(folder).rollouts[0].failure.kind == "score"


def test_v1_rewards_add_up_with_their_weights(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a")])
    edited(folder, trace_rewards={"x": {"score": 0.5, "weight": 2.0}, "y": {"score": 1.0, "weight": -0.25}})
    rollout = read_run(folder).rollouts[0]
    assert rollout.reward == 0.75
    assert (rollout.metrics["x"], rollout.metrics["y"]) == (0.5, 1.0)


def test_a_conversation_is_the_path_to_its_last_message(writers, make_row, tmp_path: Path) -> None:
    """A branch left behind is not on it, an example answer in the prompt is no reply, and the scripted user's
    turn is part of the reply."""

    def node(parent: int | None, role: str, content: str, *, sampled: bool = False) -> dict:
        return {"parent": parent, "message": {"role": role, "content": content}, "sampled": sampled}

    nodes = [
        node(None, "system", "s"),
        node(0, "assistant", "example"),
        node(1, "user", "u1"),
        node(2, "assistant", "left behind", sampled=True),
        node(2, "assistant", "a1", sampled=True),
        node(4, "user", "u2"),
        node(5, "assistant", "a2", sampled=True),
    ]
    rollout = read_run(edited(writers["v1"](tmp_path, [make_row("a")]), trace_nodes=nodes)).rollouts[0]
    assert [m.text for m in rollout.prompt] == ["s", "example", "u1"]
    assert [(m.role, m.text) for m in rollout.reply] == [
        ("assistant", "a1"),
        ("user", "u2"),
        ("assistant", "a2"),
    ]


def test_message_parts_and_plain_string_prompts(writers, make_row, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    folder = writers["legacy"](tmp_path, [make_row("a")])
    edited(folder, prompt="orchard -", completion=[{"role": "assistant", "content": parts}])
    rollout = read_run(folder).rollouts[0]
    assert (rollout.prompt[0].role, rollout.prompt[0].text) == ("text", "orchard -")
    assert rollout.reply[0].text == "look\n[image_url]"


def test_nested_row_fields_become_factors(writers, make_row, tmp_path: Path) -> None:
    info = {
        "trcode": "a",
        "condition": "L25",
        "trial": {"cue": "orchard", "target": "apple", "lures": ["pear"]},
    }
    rollout = read_run(edited(writers["legacy"](tmp_path, [make_row("a")]), info=info)).rollouts[0]
    assert rollout.factors == {"trcode": "a", "condition": "L25", "cue": "orchard", "target": "apple"}
    assert rollout.gold == "apple"


def test_a_row_without_a_code_goes_by_its_number(writers, make_row, tmp_path: Path) -> None:
    rollout = read_run(edited(writers["legacy"](tmp_path, [make_row("a")]), info={}, example_id=17)).rollouts[0]
    assert (rollout.item, rollout.condition, rollout.gold) == ("17", None, None)


# ---- lines ----


def test_a_torn_last_line_is_counted(write_run, make_row, tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_row(name) for name in "abc"])
    file = next(folder.glob("*.jsonl"))
    whole = file.read_bytes()
    for cut in (1, 2, 40, 300):
        file.write_bytes(whole[:-cut])
        run = read_run(folder)
        lost = cut > 1  # without its last byte the line only misses its line break
        assert (len(run.rollouts), run.torn_lines) == (3 - lost, int(lost))


def test_a_line_torn_before_a_resume_is_counted_where_it_stands(write_run, make_row, tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_row(name) for name in "abc"])
    file = next(folder.glob("*.jsonl"))
    first, second, third = file.read_text().splitlines()
    file.write_text("\n".join([first, second[:200], third]) + "\n")
    run = read_run(folder)
    assert [rollout.item for rollout in run.rollouts] == ["a", "c"]
    assert run.torn_lines == 1


@pytest.mark.parametrize("bad", ["garbage", '{"a": 1} trailing', "[1, 2]", '{"a" 1}', "null", '"text"'])
def test_any_other_bad_line_is_an_error_with_its_place(write_run, make_row, tmp_path: Path, bad: str) -> None:
    folder = write_run(tmp_path, [make_row("a")])
    file = next(folder.glob("*.jsonl"))
    file.write_text(file.read_text() + bad + "\n")
    with pytest.raises(MindscopeError) as error:
        read_run(folder)
    assert f"{file}:2:" in str(error.value)


def test_all_bad_lines_and_fields_are_named_at_once(writers, make_row, tmp_path: Path) -> None:
    folder = writers["legacy"](tmp_path, [make_row(name) for name in "abc"])
    file = folder / "results.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    del records[0]["metrics"]
    records[2]["reward"] = "high"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(MindscopeError) as error:
        read_run(folder)
    first, second = str(error.value).splitlines()
    assert f"{file}:1:" in first
    assert "metrics" in first
    assert f"{file}:3:" in second
    assert "reward" in second
    assert "'high'" in second


def test_a_missing_ok_flag_is_not_taken_for_success(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a")])
    file = folder / "traces.jsonl"
    record = json.loads(file.read_text())
    del record["traces"][0]["ok"]
    file.write_text(json.dumps(record))
    with pytest.raises(MindscopeError, match=r"traces\.0\.ok"):
        read_run(folder)


def test_several_agents_are_refused(writers, make_row, tmp_path: Path) -> None:
    folder = writers["v1"](tmp_path, [make_row("a")])
    trace = json.loads((folder / "traces.jsonl").read_text())["traces"][0]
    judge = trace | {"agent": trace["agent"] | {"name": "judge"}}
    with pytest.raises(MindscopeError, match="agent, judge"):
        read_run(edited(folder, traces=[trace, judge]))


def test_a_byte_order_mark_and_blank_lines_are_no_fault(write_run, make_row, tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_row("a"), make_row("b")])
    file = next(folder.glob("*.jsonl"))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\n\n"))
    assert len(read_run(folder).rollouts) == 2


# ---- finding ----


def test_a_folder_around_one_run_will_do(write_run, make_row, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "evals" / "toy--org--toy" / "0a1b2c3d", [make_row("a")])
    by_folder, by_parent, by_file = (
        read_run(folder), read_run(tmp_path), read_run(next(folder.glob("*.jsonl")))
    )  # fmt: skip
    assert by_folder == by_parent == by_file


def test_several_runs_are_listed(writers, make_row, tmp_path: Path) -> None:
    first = writers["legacy"](tmp_path / "one", [make_row("a")])
    second = writers["v1"](tmp_path / "two", [make_row("a")])
    with pytest.raises(MindscopeError) as error:
        read_run(tmp_path)
    assert "2 runs" in str(error.value)
    assert str(first / "results.jsonl") in str(error.value)
    assert str(second / "traces.jsonl") in str(error.value)


def test_no_run_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(MindscopeError, match=r"results\.jsonl or traces\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(MindscopeError, match="no such file or folder"):
        read_run(tmp_path / "absent")


def test_a_run_that_has_not_begun_is_a_run_of_nothing(writers, tmp_path: Path) -> None:
    run = read_run(writers["v1"](tmp_path, []))
    assert (run.rollouts, run.environment, run.model) == ((), "pa_toy", "org/toy")


# ---- what the run was ----

MANIFEST = {
    "environment": "ps_primal",
    "environment_version": "0.1.0",
    "mindscope_version": "0.1.0",
    "data_sha256": {"pal50/pairs.jsonl": "ab" * 32},
    "api": "v1",
    "model": "embedded",
    "base_url": "http://127.0.0.1:8000/v1",
    "api_key_var": "VLLM_API_KEY",
    "sampling": {"temperature": 0},
    "env_args": {"style": "completion"},
    "n": None,
    "rollouts": 1,
    "versions": {"verifiers": "0.3.1"},
    "started": "2026-01-01T00:00:00+00:00",
}


def test_the_manifest_speaks_for_the_run(write_run, make_row, tmp_path: Path) -> None:
    folder = write_run(tmp_path, [make_row("a")])
    (folder / "mindscope.json").write_text(json.dumps(MANIFEST))
    run = read_run(folder)
    assert (run.environment, run.model, run.env_args) == ("ps_primal", "embedded", {"style": "completion"})
    assert (run.sampling, run.verifiers) == ({"temperature": 0}, "0.3.1")
    assert run.manifest.data_sha256 == MANIFEST["data_sha256"]


def test_a_manifest_above_speaks_only_for_its_one_run(write_run, make_row, tmp_path: Path) -> None:
    first = write_run(tmp_path / "evals" / "toy" / "1", [make_row("a")])
    (tmp_path / "mindscope.json").write_text(json.dumps(MANIFEST))
    assert read_run(first).model == "embedded"
    write_run(tmp_path / "evals" / "toy" / "2", [make_row("a")])
    assert read_run(first).model == "org/toy"


@pytest.mark.parametrize("name", ["mindscope.json", "metadata.json"])
def test_a_companion_file_that_is_not_one_is_named(writers, make_row, tmp_path: Path, name: str) -> None:
    folder = writers["legacy"](tmp_path, [make_row("a")])
    (folder / name).write_text('{"model": 3}')
    with pytest.raises(MindscopeError, match=name):
        read_run(folder)


def test_credentials_in_an_endpoint_stay_out(writers, make_row, tmp_path: Path) -> None:
    folder = writers["legacy"](tmp_path, [make_row("a")])
    metadata = json.loads((folder / "metadata.json").read_text())
    metadata["base_url"] = "https://me:hunter2@host:8443/v1?key=hunter2"
    (folder / "metadata.json").write_text(json.dumps(metadata))
    run = read_run(folder)
    assert run.base_url == "https://host:8443/v1"
    assert "hunter2" not in run.model_dump_json()
