"""run.jsonl is the source of truth: an evaluation made from it, whole, torn, resumed or misread."""

import json

import pytest
from infereval_env.files import read_benchmark, read_evaluation
from infereval_env.formats import Setup, benchmark_hash, elicitation_hash
from infereval_env.runlog import rebuild
from mindscope.errors import MindscopeError


@pytest.fixture
def benchmark(make_benchmark):
    return make_benchmark({"x": "GB", "y": "BB"})


def event(name, **fields):
    return {
        "ts": "2026-01-01T00:00:00.000Z", "level": "INFO", "logger": "l", "event": name, "run_id": "r",
        "benchmark_id": "letters", "framework_version": "0.1", **fields,
    }  # fmt: skip


def started(benchmark, n_samples=3, **fields):
    return event(
        "run.started", benchmark_hash=benchmark_hash(benchmark), n_items=2, provider="p", model_id="m",
        params={"temperature": 1.0}, endorsement_config={"n_samples": n_samples}, template_id="t", **fields,
    )  # fmt: skip


def item(name):
    return event("item.started", item_id=name, premise_ids=["p"], conclusion_ids=["q"], prompt_hash="h", prompt="?")


def completed(name, index, verdict="good", reply="GOOD", status="ok", **fields):
    return event(
        "sample.completed", item_id=name, sample_index=index, raw_response=reply, parsed_verdict=verdict,
        parse_status=status, wall_time_ms=1.0, **fields,
    )  # fmt: skip


def failed(name, index):
    return event("sample.failed", item_id=name, sample_index=index, err="429")


FINISHED = event("run.finished", n_items=2, wall_time_s=1.0)


def write(tmp_path, events, tail=""):
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in events) + tail, encoding="utf-8")
    return path


def test_infereval_s_log_makes_infereval_s_evaluation(oracle):
    benchmark = read_benchmark(oracle / "real/stop_sign_benchmark.json")
    eta, warnings = rebuild(oracle / "real/stop_sign_replay_run.jsonl", benchmark)
    theirs = read_evaluation(oracle / "real/stop_sign_replay-eta.json")
    times = {"started_at": theirs.started_at, "finished_at": theirs.finished_at}
    assert warnings == []
    assert eta.model_copy(update={"setup": None, **times}) == theirs
    assert eta.setup.template_id == "framework-default-v1"
    assert eta.setup.elicitation_hash == elicitation_hash(benchmark)


def test_a_run_that_was_killed_loses_nothing(tmp_path, benchmark):
    events = [started(benchmark), item("x"), completed("x", 0), completed("x", 1)]
    eta, warnings = rebuild(write(tmp_path, events, '{"ts": "2026-01-01T00:00:00Z", "event": "sample.comp'), benchmark)
    assert [(i.id, i.model_verdict, len(i.samples)) for i in eta.items] == [("x", "good", 2)]
    assert any("cut short" in warning for warning in warnings)
    assert any("did not finish" in warning for warning in warnings)


def test_a_torn_line_in_the_middle_is_a_fault(tmp_path, benchmark):
    path = write(tmp_path, [started(benchmark)], '{"torn\n' + json.dumps(item("x")) + "\n")
    with pytest.raises(MindscopeError, match="line 2: not JSON"):
        rebuild(path, benchmark)


def test_every_malformed_line_is_listed(tmp_path, benchmark):
    broken = completed("x", 0)
    del broken["raw_response"]
    path = write(tmp_path, [started(benchmark), broken, {"no": "event"}, completed("x", 0, verdict="maybe"), FINISHED])
    with pytest.raises(MindscopeError) as caught:
        rebuild(path, benchmark)
    for part in ("line 2 raw_response", "line 3: not an event", "line 4 parsed_verdict: found 'maybe'"):
        assert part in str(caught.value), part


def test_a_call_made_again_after_a_failure_counts_as_answered(tmp_path, benchmark):
    events = [started(benchmark), item("x"), failed("x", 0), completed("x", 1), failed("x", 2)]
    resumed = [started(benchmark), item("x"), completed("x", 0), completed("x", 2, "bad", "BAD"), FINISHED]
    eta, warnings = rebuild(write(tmp_path, [*events, *resumed]), benchmark)
    (found,) = eta.items
    assert [sample.parsed_verdict for sample in found.samples] == ["good", "good", "bad"]
    assert warnings == []


def test_a_failure_after_the_answer_does_not_unmake_it(tmp_path, benchmark):
    events = [started(benchmark, 1), item("x"), completed("x", 0), failed("x", 0), FINISHED]
    assert rebuild(write(tmp_path, events), benchmark)[0].items[0].model_verdict == "good"


def test_an_answer_given_twice_counts_once(tmp_path, benchmark):
    events = [started(benchmark, 1), item("x"), completed("x", 0), completed("x", 0, "bad", "BAD"), FINISHED]
    eta, warnings = rebuild(write(tmp_path, events), benchmark)
    assert eta.items[0].model_verdict == "good"
    assert "answered twice" in warnings[0]


def test_failed_calls_make_no_data(tmp_path, benchmark):
    events = [started(benchmark), item("x"), failed("x", 0), failed("x", 1), completed("x", 2), item("y"), FINISHED]
    eta, _ = rebuild(write(tmp_path, events), benchmark)
    assert [i.model_verdict for i in eta.items] == ["no_data", "no_data"]
    assert eta.items[0].samples[0].provider_error == "429"


def test_a_run_cannot_be_continued_under_another_setup(tmp_path, benchmark):
    path = write(tmp_path, [started(benchmark), started(benchmark, 5)])
    with pytest.raises(MindscopeError, match="another endorsement_config"):
        rebuild(path, benchmark)


def test_one_of_several_runs(tmp_path, benchmark):
    other = [{**e, "run_id": "s"} for e in (started(benchmark, 1), item("x"), completed("x", 0, "bad", "BAD"))]
    path = write(tmp_path, [started(benchmark, 1), item("x"), completed("x", 0), *other])
    with pytest.raises(MindscopeError, match=r"\['r', 's'\]; say which"):
        rebuild(path, benchmark)
    assert rebuild(path, benchmark, run_id="s")[0].items[0].model_verdict == "bad"
    with pytest.raises(MindscopeError, match="no run 'q'"):
        rebuild(path, benchmark, run_id="q")
    with pytest.raises(MindscopeError, match="no run"):
        rebuild(write(tmp_path, []), benchmark)


def test_replies_can_be_read_anew(tmp_path, benchmark):
    events = [started(benchmark, 1), item("x"), completed("x", 0, "good", "This is not GOOD"), FINISHED]
    path = write(tmp_path, events)
    assert rebuild(path, benchmark)[0].items[0].model_verdict == "good"
    eta, _ = rebuild(path, benchmark, reparse=True)
    assert (eta.items[0].model_verdict, eta.items[0].samples[0].parse_status) == ("abstain", "unparseable")
    assert eta.setup.parser == "strict"


def test_our_own_events_keep_setup_and_probabilities(tmp_path, benchmark):
    setup = Setup(template_id="own", verdicts="logprob", elicitation_hash=elicitation_hash(benchmark))
    probabilities = {"good": 0.2, "bad": 0.5, "abstain": 0.1}
    events = [
        started(benchmark, 1, setup=setup.model_dump()), item("x"),
        completed("x", 0, "bad", "", label_probabilities=probabilities), FINISHED,
    ]  # fmt: skip
    eta, _ = rebuild(write(tmp_path, events), benchmark)
    assert (eta.setup.template_id, eta.setup.verdicts) == ("own", "logprob")
    assert eta.items[0].model_verdict == "bad"
    assert eta.items[0].samples[0].label_probabilities == probabilities


def test_a_log_of_another_benchmark(tmp_path, benchmark):
    path = write(tmp_path, [started(benchmark), item("x")])
    with pytest.raises(MindscopeError, match="not of 'other'"):
        rebuild(path, benchmark.model_copy(update={"id": "other"}))
    moved = benchmark.model_copy(
        update={"items": (benchmark.items[0].model_copy(update={"premises": ("r",)}), benchmark.items[1])}
    )
    with pytest.raises(MindscopeError, match=r"\['x'\]"):
        rebuild(path, moved)


def test_events_of_other_kinds_are_passed_over(tmp_path, benchmark):
    events = [started(benchmark, 1), event("provider.p.sample", x=1), item("x"), completed("x", 0), FINISHED]
    assert rebuild(write(tmp_path, events), benchmark)[0].items[0].model_verdict == "good"
