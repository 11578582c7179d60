"""Runs through the frameworks' own commands, against scripted subjects whose tables are known in advance.

The subjects read the conversation as a person would: what was studied, in which order, and which cue is asked for. The
expected tables are worked out here from the same conversation, not from the package's own design.
"""

import json
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest
from mindscope.errors import MindscopeError
from pal50.items import ItemRow, Outcome, read_items, write_items
from pal50.paradigm import Reply as Given
from pal50.paradigm import Session, Settings, trials
from support.commands import ROOT, Finished, Venv, verifiers_03, verifiers_04
from support.stub_server import Always, Call, ForPrompts, Reply, Request, ServerError, StubServer

STIMULI = [json.loads(line) for line in (ROOT / "data/pal50/pairs.jsonl").read_text(encoding="utf-8").splitlines()]
TRCODE = {row["cue"]: row["trcode"] for row in STIMULI}
LEVEL = {row["cue"]: row["level"] for row in STIMULI}
TARGET = {row["cue"]: row["target"] for row in STIMULI}

STUDIED = re.compile(r"Study(?: this pair)?: (\w+) - (?:<recall>)?(\w+)")
ASKED = re.compile(r"(?:paired with|Test:) (\w+)")


# ---- subjects ----


class Seen(NamedTuple):
    """What a conversation has shown so far."""

    pairs: list[tuple[str, str]]
    cue: str


def seen(prompt: str) -> Seen:
    pairs = [pair for pair in STUDIED.findall(prompt) if pair[0] in TARGET]
    return Seen(pairs, ASKED.findall(prompt)[-1])


class Expected(NamedTuple):
    outcome: Outcome
    source: str | None = None
    distance: int | None = None
    confidence: int | None = None


def perfect(now: Seen) -> tuple[str | None, Expected]:
    return dict(now.pairs)[now.cue], Expected(Outcome.CORRECT, confidence=6)


def recency_only(now: Seen) -> tuple[str | None, Expected]:
    """Has kept the last ten pairs."""
    kept = dict(now.pairs[-10:])
    if now.cue in kept:
        return kept[now.cue], Expected(Outcome.CORRECT, confidence=6)
    return "pass", Expected(Outcome.OMISSION, confidence=6)


def intrusion_only(now: Seen) -> tuple[str | None, Expected]:
    """Gives the word of the pair studied before, and of the first pair's the one after."""
    place = [cue for cue, _ in now.pairs].index(now.cue)
    other = place - 1 if place else 1
    cue, word = now.pairs[other]
    return word, Expected(Outcome.LIST_INTRUSION, TRCODE[cue], other - place, 6)


def guesser(now: Seen) -> tuple[str | None, Expected]:
    """Has studied nothing and guesses the closest pairs right."""
    if LEVEL[now.cue] == "L100":
        return TARGET[now.cue], Expected(Outcome.CORRECT, confidence=6)
    return "zebra", Expected(Outcome.EXTRA_LIST, confidence=6)


def refuser(now: Seen) -> tuple[str | None, Expected]:
    return None, Expected(Outcome.REFUSAL)


SUBJECTS = (perfect, recency_only, intrusion_only, guesser, refuser)
REWARDS = {"perfect": 1.0, "recency_only": 0.2, "intrusion_only": 0.0, "guesser": 0.2, "refuser": 0.0}


def spoken(word: str | None, raw: bool) -> str:
    if word is None:
        return "I'm sorry, I can't help with that."
    return f"{word}</recall>" if raw else f"<recall>{word}</recall>\n<confidence>6</confidence>"


def policy(subject_of: Callable[[Seen], Callable]) -> Callable[[Request], Reply]:
    def answer(request: Request) -> Reply:
        now = seen(request.prompt)
        return Reply(spoken(subject_of(now)(now)[0], request.prompt.rstrip().endswith("<recall>")))

    return answer


def by_participant(n: int, **arguments: object) -> dict[tuple, int]:
    """Which participant a conversation belongs to, by what it studied."""
    rows = trials(Settings.parse({"participants": n, **arguments}))
    return {tuple(seen("\n".join(m["content"] for m in row.prompt)).pairs): row.participant for row in rows}


# ---- runners ----


def legacy(stub: StubServer, folder: Path, n: int, **arguments: object) -> Finished:
    return verifiers_03().run(
        "vf-eval", "pal50", "--provider", "local", "--api-base-url", stub.base_url, "-m", "stub", "-n", str(n),
        "-r", "1", "-c", "10", "-s", "-d", "-A", "--disable-env-server", "-o", str(folder),
        "-a", json.dumps({"participants": n, **arguments}), cwd=folder, timeout=900,
    )  # fmt: skip


def v1(venv: Venv, command: str, stub: StubServer, folder: Path, n: int, **arguments: object) -> Finished:
    given = [word for name, value in arguments.items() for word in (f"--env.taskset.{name}", str(value))]
    return venv.run(
        command, "pal50", "-m", "stub", "-n", str(n), "-c", "10", "--client.base-url", stub.base_url,
        "--client.api-key-var", "VLLM_API_KEY", "--env.taskset.participants", str(n), *given,
        "--no-push", "--no-rich", "-o", str(folder), cwd=folder, timeout=900,
    )  # fmt: skip


RUNNERS = {
    "legacy": legacy,
    "v1 on 0.3": lambda *args, **kwargs: v1(verifiers_03(), "eval", *args, **kwargs),
    "v1 on 0.4": lambda *args, **kwargs: v1(verifiers_04(), "vf-eval", *args, **kwargs),
}


def rewards(folder: Path) -> dict[int, float | None]:
    """The recorded reward of each participant."""
    (file,) = [*folder.rglob("results.jsonl"), *folder.rglob("traces.jsonl")]
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if file.name == "results.jsonl":
        return {row["info"]["participant"]: row["reward"] for row in rows}
    return {
        row["task"]["data"]["participant"]: sum(reward["score"] for reward in row["traces"][0]["rewards"].values())
        for row in rows
    }


def conversations(stub: StubServer, of: dict[tuple, int]) -> dict[int, list[Call]]:
    """The calls of each participant, in the order of their length."""
    found: dict[int, list[Call]] = defaultdict(list)
    for call in stub.requests:
        if call.prompt:
            found[of[tuple(seen(call.prompt).pairs)]].append(call)
    return {who: sorted(calls, key=lambda call: len(call.prompt or "")) for who, calls in found.items()}


def facts(row: ItemRow) -> Expected:
    return Expected(row.outcome, row.intrusion_source, row.intrusion_distance, row.confidence)


# ---- tests ----


@pytest.mark.parametrize(("runner", "each"), [("legacy", 10), ("v1 on 0.4", 10), ("v1 on 0.3", 2)])
def test_every_known_profile_comes_back(tmp_path: Path, runner: str, each: int) -> None:
    """Participant i is subject i modulo five, fifty pairs each."""
    n = each * len(SUBJECTS)
    of = by_participant(n)
    assert len(of) == n
    with StubServer(policy(lambda now: SUBJECTS[of[tuple(now.pairs)] % 5])) as stub:
        done = RUNNERS[runner](stub, tmp_path, n)
    assert done.code == 0, done

    table = read_items(tmp_path)
    assert Counter(row.participant for row in table) == dict.fromkeys(range(n), 50)
    assert {row.rollout for row in table} == {0}
    for who, calls in conversations(stub, of).items():
        rows = [row for row in table if row.participant == who]
        assert len(calls) == 50
        assert [row.test_position for row in rows] == list(range(1, 51))
        order = [cue for cue, _ in seen(calls[0].prompt or "").pairs]
        for row, call in zip(rows, calls, strict=True):
            now = seen(call.prompt or "")
            word, expected = SUBJECTS[who % 5](now)
            assert (row.cue, row.target) == (now.cue, TARGET[now.cue])
            assert (row.trcode, row.level) == (TRCODE[now.cue], LEVEL[now.cue])
            assert row.study_position == order.index(now.cue) + 1
            assert row.lag == 50 - row.study_position + row.test_position
            assert row.reply == spoken(word, raw=False)
            assert facts(row) == expected
            assert row.finish_reason == "stop"
            assert row.input_tokens == len((call.prompt or "").split())
            assert row.output_tokens == len(spoken(word, raw=False).split())
    found = rewards(tmp_path)
    assert found == {who: pytest.approx(REWARDS[SUBJECTS[who % 5].__name__]) for who in range(n)}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_completion_is_one_growing_raw_prompt(tmp_path: Path, runner: str) -> None:
    of = by_participant(5, style="completion")
    with StubServer(policy(lambda now: SUBJECTS[of[tuple(now.pairs)] % 5])) as stub:
        done = RUNNERS[runner](stub, tmp_path, 5, style="completion")
    assert done.code == 0, done
    found = rewards(tmp_path)
    expected = REWARDS | {"refuser": 0.0}
    assert found == {who: pytest.approx(expected[SUBJECTS[who].__name__]) for who in range(5)}
    assert len(read_items(tmp_path)) == 250
    for calls in conversations(stub, of).values():
        for before, after in pairwise(calls):
            assert (after.prompt or "").startswith(before.prompt or "")
    bodies = [call.body for call in stub.requests if call.prompt]
    if runner == "legacy":
        assert {call.path for call in stub.requests if call.prompt} == {"/v1/completions"}
        assert all(body["stop"] == ["\n"] and body["max_tokens"] == 24 for body in bodies)
    else:
        assert all(len(body["messages"]) == 1 for body in bodies)
        assert all(body["chat_template_kwargs"] == {"raw": True} for body in bodies)
        assert all(body["stop"] == ["\n"] and body["max_tokens"] == 24 for body in bodies)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_same_messages_whichever_generation_sends_them(tmp_path: Path, runner: str) -> None:
    """Cycles, feedback, sums and reasoning in the replies: the wire holds what the session says."""
    arguments = {"n_pairs": 10, "cycles": 2, "feedback": "corrective", "distractor_turns": 1}

    def subject(request: Request) -> Reply:
        return Reply("<think>hm</think><recall>zebra</recall><confidence>2</confidence>", reasoning="rehearsing")

    with StubServer(subject) as stub:
        done = RUNNERS[runner](stub, tmp_path, 2, **arguments)
    assert done.code == 0, done
    wire = [call.body["messages"] for call in stub.requests if call.prompt]
    sent = sorted(json.dumps([{"role": m["role"], "content": m["content"]} for m in messages]) for messages in wire)
    assert len(sent) == 40
    assert sent == sorted(expected_messages(arguments, "<recall>zebra</recall><confidence>2</confidence>"))
    assert {row.outcome for row in read_items(tmp_path)} == {Outcome.EXTRA_LIST}


def expected_messages(arguments: dict, kept: str) -> list[str]:
    found = []
    for row in trials(Settings.parse({"participants": 2, **arguments})):
        session = Session(row.design)
        while not session.finished:
            found.append(json.dumps(session.prompt))
            session.answer(Given(text=kept))
    return found


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_lasting_failure_leaves_the_participant_unscored(tmp_path: Path, runner: str) -> None:
    of = by_participant(3, n_pairs=10)
    broken = next(pairs for pairs, who in of.items() if who == 1)

    def at_the_fifth_cue_of_one(prompt: str) -> bool:
        return tuple(seen(prompt).pairs) == broken and len(ASKED.findall(prompt)) == 5

    faults = ForPrompts(at_the_fifth_cue_of_one, Always(ServerError(400)))
    with StubServer(policy(lambda now: perfect), faults=faults) as stub:
        done = RUNNERS[runner](stub, tmp_path, 3, n_pairs=10)
    assert done.code == 0, done
    assert Counter(row.participant for row in read_items(tmp_path)) == {0: 10, 2: 10}
    found = rewards(tmp_path)
    assert (found[0], found[2]) == (1.0, 1.0)
    assert found[1] != found[1] or found[1] == 0  # NaN in legacy; v1 records no reward at all


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_conversation_that_outgrows_the_context_is_scored_as_far_as_it_went(tmp_path: Path, runner: str) -> None:
    def subject(request: Request) -> Reply:
        if len(ASKED.findall(request.prompt)) > 6:
            raise ValueError("This model's maximum context length is 512 tokens")
        return policy(lambda now: perfect)(request)

    with pytest.raises(ValueError, match="context length"), StubServer(subject) as stub:
        done = RUNNERS[runner](stub, tmp_path, 1, n_pairs=10)
    assert done.code == 0, done
    table = read_items(tmp_path)
    assert [row.outcome for row in table] == ["correct"] * 6 + ["unreached"] * 4
    assert rewards(tmp_path) == {0: pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("venv", "api"),
    [(verifiers_03, "v1"), (verifiers_04, "v1"), (verifiers_03, "legacy")],
    ids=["v1 on 0.3", "v1 on 0.4", "legacy"],
)
def test_a_participant_killed_at_test_turn_37_starts_again_from_zero(tmp_path: Path, venv: Callable, api: str) -> None:
    """The first of two has finished, the second is killed under way. Nothing of it is kept or mixed in."""
    of = by_participant(2)
    late = [pairs for pairs, who in of.items() if who == 1]
    command = [
        "mindscope", "eval", "pal50", "--api", api, "-m", "stub", "-c", "1", "--json",
        "--env-args", '{"participants": 2}', "-o", str(tmp_path / "run"),
    ]  # fmt: skip

    def subject(request: Request) -> Reply:
        slow = tuple(seen(request.prompt).pairs) in late and len(ASKED.findall(request.prompt)) == 37
        reply = policy(lambda now: perfect)(request)
        return Reply(reply.text, delay_s=60.0 if slow and not resumed else 0.0)

    resumed = False
    with StubServer(subject) as stub:
        command += ["--base-url", stub.base_url]
        process = venv().start(*command, cwd=tmp_path)
        deadline = time.monotonic() + 240
        while not any(len(ASKED.findall(call.prompt or "")) == 37 and tuple(seen(call.prompt or "").pairs) in late
                      for call in list(stub.requests) if call.prompt) and time.monotonic() < deadline:  # fmt: skip
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert {row.participant for row in read_items(tmp_path / "run")} == {0}
        before, resumed = len(stub.requests), True
        done = venv().run(*command, "--resume", cwd=tmp_path)
        again = [call for call in stub.requests[before:] if call.prompt]
    assert done.code == 0, done
    table = read_items(tmp_path / "run")
    assert Counter((row.participant, row.rollout) for row in table) == {(0, 0): 50, (1, 0): 50}
    assert all(row.correct for row in table)
    assert len(again) == 50
    assert sorted(len(ASKED.findall(call.prompt or "")) for call in again) == list(range(1, 51))
    assert {tuple(seen(call.prompt or "").pairs) for call in again} == set(late)


def test_the_table_is_written_whole_and_reads_back(tmp_path: Path) -> None:
    with StubServer(policy(lambda now: perfect)) as stub:
        legacy(stub, tmp_path, 2, n_pairs=10)
    rows = read_items(tmp_path)
    write_items(rows, tmp_path / "items.jsonl")
    lines = (tmp_path / "items.jsonl").read_text(encoding="utf-8").splitlines()
    assert [ItemRow.model_validate_json(line) for line in lines] == rows
    assert json.loads(lines[0])["outcome"] == "correct"


def test_a_run_of_another_environment_is_refused(tmp_path: Path) -> None:
    with StubServer(policy(lambda now: guesser)) as stub:
        verifiers_03().run(
            "vf-eval", "ps_primal", "-p", "local", "-b", stub.base_url, "-m", "stub", "-n", "1", "-r", "1", "-s", "-d",
            "-A", "--disable-env-server", "-o", str(tmp_path), cwd=tmp_path,
        )  # fmt: skip
    with pytest.raises(MindscopeError, match=r"results\.jsonl:1: this rollout has no design of pal50"):
        read_items(tmp_path)


def test_the_command_as_the_readme_has_it_with_verifiers_own_workers(tmp_path: Path) -> None:
    with StubServer(policy(lambda now: perfect)) as stub:
        done = verifiers_03().run(
            "vf-eval", "pal50", "--provider", "local", "--api-base-url", stub.base_url, "-m", "stub", "-n", "2",
            "-r", "2", "-s", "-d", "-A", "-o", str(tmp_path), "-a", '{"n_pairs": 10}', cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 0, done
    table = read_items(tmp_path)
    assert Counter((row.participant, row.rollout) for row in table) == dict.fromkeys(product((0, 1), (0, 1)), 10)
    assert all(row.correct for row in table)


@pytest.mark.parametrize("runner", ["v1 on 0.3", "v1 on 0.4"])
def test_a_chat_is_one_branch_of_the_trace_so_that_training_sees_one_sequence(tmp_path: Path, runner: str) -> None:
    with StubServer(policy(lambda now: perfect)) as stub:
        done = RUNNERS[runner](stub, tmp_path, 1, n_pairs=10)
    assert done.code == 0, done
    (file,) = tmp_path.rglob("traces.jsonl")
    (trace,) = json.loads(file.read_text(encoding="utf-8"))["traces"]
    assert [node.get("parent") for node in trace["nodes"]] == [None, *range(39)]
    assert [node["sampled"] for node in trace["nodes"]] == [False] * 20 + [False, True] * 10


def test_v1_validates_and_scores_again_offline(tmp_path: Path) -> None:
    with StubServer(policy(lambda now: recency_only)) as stub:
        RUNNERS["v1 on 0.4"](stub, tmp_path, 2)
    valid = verifiers_04().run("vf-validate", "pal50", "--no-rich", "--runtime.type", "subprocess", cwd=tmp_path)
    assert valid.code == 0, valid
    (file,) = tmp_path.rglob("traces.jsonl")
    before = rewards(file.parent)
    again = verifiers_04().run("vf-replay", str(file.parent), "--rich", "false", cwd=tmp_path)
    assert again.code == 0, again
    found = [rewards(folder.parent) for folder in tmp_path.rglob("traces.jsonl")]
    assert before == {0: pytest.approx(0.2), 1: pytest.approx(0.2)}
    assert all(scores == before for scores in found)
