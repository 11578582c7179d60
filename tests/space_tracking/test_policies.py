"""Subjects with a known policy get the table that can be worked out by hand, by every route: white-box on the whole
corpus, endpoints on its test part, which is as balanced."""

import asyncio
from collections.abc import Callable

import pytest
from mindscope.endpoint import Endpoint, probe
from mindscope.whitebox.model import LocalModel
from openai import AsyncOpenAI
from space_tracking.corpus import Row, load
from space_tracking.judgement import Generated, Readout, judge_reply
from space_tracking.readout import read_endpoint, read_reply, score
from space_tracking.runs import ReadRun, local_run
from space_tracking.validation import EVERYTHING, TWO_SPACES, Line, Validation, validate
from support.next_token_server import NextTokenServer
from support.space_subjects import POLICIES, by_prompt, distribution, policy_model
from support.stub_server import CHAT, Reply, Request, StubServer

TWO_SPACE = {
    "belief_reality": 1 / 6,
    "counterfactual_or_alternative_space": 1 / 4,
    "nested_depictive": 1 / 4,
    "two_entity_selectivity": 1 / 4,
    "nested_belief": 1 / 4,
}
"""Constructions with two spaces, and how often blue is right in each."""


def read_all(url: str, rows: list[Row], read: Callable) -> dict[str, Readout | Generated]:
    async def run() -> dict[str, Readout | Generated]:
        async with AsyncOpenAI(base_url=url, api_key="EMPTY") as client:
            reader, gate = await read(client), asyncio.Semaphore(16)

            async def one(row: Row) -> tuple[str, Readout | Generated]:
                async with gate:
                    return row.prompt, await reader(row.prompt)

            return dict(await asyncio.gather(*map(one, rows)))

    return asyncio.run(run())


async def endpoint_reader(client: AsyncOpenAI) -> Callable:
    endpoint = Endpoint(client, "subject", await probe(client, "subject"))
    return lambda prompt: read_endpoint(endpoint, prompt)


async def reply_reader(client: AsyncOpenAI) -> Callable:
    return lambda prompt: read_reply(client, "subject", prompt)


def by_endpoint(name: str, **options: object) -> Validation:
    rows = load("test")
    with NextTokenServer(distribution(POLICIES[name]), **options) as server:  # type: ignore[arg-type]
        return validate([local_run("subject", rows, read_all(server.base_url, rows, endpoint_reader))])


def by_whitebox(name: str, monkeypatch: pytest.MonkeyPatch) -> Validation:
    local = LocalModel(*policy_model(POLICIES[name]))
    monkeypatch.setattr(LocalModel, "load", lambda *_, **__: local)
    return score("subject", batch_size=32)


ROUTES = {
    "completions, legacy shape": lambda name, _: by_endpoint(name),
    "completions, chat shape": lambda name, _: by_endpoint(name, completions_logprobs="chat"),
    "raw chat": lambda name, _: by_endpoint(name, routes=(CHAT,)),
    "whitebox": by_whitebox,
}


@pytest.fixture(params=ROUTES)
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Line]]:
    def make(name: str) -> dict[str, Line]:
        report = ROUTES[request.param](name, monkeypatch)
        assert [model.unscored for model in report.models] == [0]
        return {line.name: line for line in (*report.constructions, *report.templates)}

    return make


def values(line: Line, *names: str) -> list[float | None]:
    (measures,) = line.models
    found = [getattr(measures, name).value for name in names]
    return [None if value is None else pytest.approx(value, abs=1e-12) for value in found]


def test_space_correct(table: Callable[[str], dict[str, Line]]) -> None:
    lines = table("space-correct")
    assert lines[EVERYTHING].n in (1910, 420)
    for line in lines.values():
        assert values(line, "forced", "open", "gap", "pair", "contrast") == [1, 1, 0, 1, 1]
    assert values(lines["two_entity_selectivity"], "swap_forced", "swap_open") == [0, 0]
    assert lines[EVERYTHING].models[0].outside == pytest.approx(0.05, abs=1e-6)


def test_first_mention(table: Callable[[str], dict[str, Line]]) -> None:
    lines = table("first mention")
    for name in (*TWO_SPACE, TWO_SPACES, "belief-thinks", "nb-thinks-knows"):
        assert values(lines[name], "forced", "open", "gap", "pair", "contrast") == [0.5, 0.5, 0, 0, 0], name
    assert values(lines["single_space_control"], "forced", "pair") == [1, 1]
    assert values(lines["two_entity_selectivity"], "swap_forced", "swap_open") == [0.5, 0.5]


def test_colour_prior(table: Callable[[str], dict[str, Line]]) -> None:
    lines = table("colour prior")
    for name, blue in TWO_SPACE.items():
        assert values(lines[name], "forced", "pair", "open", "gap") == [0.5, 0, blue, 0.5 - blue], name
    assert values(lines["single_space_control"], "forced", "pair") == [0.5, 0]


def test_swap_to_distractor(table: Callable[[str], dict[str, Line]]) -> None:
    lines = table("swap to distractor")
    assert values(lines["two_entity_selectivity"], "forced", "pair", "swap_forced", "swap_open") == [0, 0, 1, 1]
    for name in set(TWO_SPACE) - {"two_entity_selectivity"}:
        assert values(lines[name], "forced", "pair", "swap_forced") == [1, 1, None], name


def test_a_prior_that_prefers_nothing_corrects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first mention", "space-correct"):
        lines = {line.name: line for line in by_whitebox(name, monkeypatch).constructions}
        measures = lines[TWO_SPACES].models[0]
        assert measures.corrected.value == measures.forced.value
        assert lines["single_space_control"].models[0].corrected.n == 0


@pytest.mark.parametrize(
    ("name", "right", "swap"),
    [("space-correct", 1.0, 0.0), ("first mention", 0.5, 0.5), ("swap to distractor", None, 1.0)],
)
def test_generated_answers_have_a_table_of_their_own(name: str, right: float | None, swap: float) -> None:
    def chat(request: Request) -> Reply:
        prompt = request.last_user.partition(" ...")[0]
        return Reply(f"<colour>{POLICIES[name](by_prompt()[prompt]).title()}.</colour>")

    rows = load("test")
    with StubServer(chat) as server:
        replies = read_all(server.base_url, rows, reply_reader)
    replied = {row.id: judge_reply(row, replies[row.prompt]) for row in rows}
    run = ReadRun(label="subject", how="chat", judged={}, replied=replied, unscored={}, tokens={})
    report = validate([run])
    assert (report.constructions, report.templates, report.comparisons) == ((), (), ())
    lines = {line.name: line for line in report.replied}
    for construction in TWO_SPACE:
        expected = (0.0 if "entity" in construction else 1.0) if right is None else right
        assert lines[construction].right.value == pytest.approx(expected), construction
        assert lines[construction].no_colour.value == 0
    assert lines["two_entity_selectivity"].swap.value == pytest.approx(swap)
    assert lines["belief_reality"].swap.n == 0
