import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from mindscope.endpoint import (
    Endpoint,
    EndpointError,
    NextToken,
    Offer,
    TokenLogprob,
    Via,
    probe,
    probe_once,
    public_url,
)
from openai import AsyncOpenAI, AuthenticationError, InternalServerError
from support.next_token_server import NextTokenServer, honour_only
from support.stub_server import (
    CHAT,
    COMPLETIONS,
    Always,
    EmptyChoices,
    FirstAttempt,
    RateLimit,
    Reply,
    Rule,
    ServerError,
    StubServer,
    TruncatedJSON,
    Unauthorized,
)

T = TypeVar("T")

SKY = {" blue": 0.5, " grey": 0.3, " red": 0.1, " green": 0.05, " mauve": 0.03, " dun": 0.02}
IDS = {token: [i] for i, token in enumerate(SKY, start=7)} | {" ecru": [90, 91]}
PROMPT = "On a cloudy day the sky is"


def ask(server: StubServer, question: Callable[[AsyncOpenAI], Awaitable[T]], retries: int = 0) -> T:
    async def run() -> T:
        async with AsyncOpenAI(base_url=server.base_url, api_key="sk-test", max_retries=retries) as client:
            return await question(client)

    return asyncio.run(run())


def probed(server: StubServer) -> Offer:
    return ask(server, lambda client: probe(client, "m"))


def logprobs_of(
    server: StubServer, *tokens: str, via: Via = "completions", longest: int = 3
) -> tuple[NextToken, dict[str, TokenLogprob]]:
    offer = Offer(via=via, longest=longest, notes=())
    return ask(server, lambda client: Endpoint(client, "m", offer).logprobs_of(PROMPT, tokens))


def known(found: TokenLogprob, p: float, how: str) -> bool:
    """Whether the token is known to have probability `p`."""
    return (found.how, found.at_most) == (how, None) and found.logprob == pytest.approx(math.log(p), abs=1e-9)


def bounded(found: TokenLogprob, p: float, how: str) -> bool:
    """Whether the token is known only to have at most probability `p`."""
    return (found.how, found.logprob) == (how, None) and found.at_most == pytest.approx(math.log(p), abs=1e-9)


@pytest.mark.parametrize("shape", ["legacy", "chat"])
@pytest.mark.parametrize("via", ["completions", "template_kwargs", "chat_template"])
def test_every_way_and_shape_gives_the_same_list_after_the_verbatim_prompt(via: Via, shape: str) -> None:
    with NextTokenServer(lambda prompt: SKY if prompt == PROMPT else {"?": 1.0}, completions_logprobs=shape) as server:
        offer = Offer(via=via, longest=100, notes=())
        reply = ask(server, lambda client: Endpoint(client, "m", offer).next_token(PROMPT, k=3))
    assert reply.logprobs == pytest.approx({" blue": math.log(0.5), " grey": math.log(0.3), " red": math.log(0.1)})
    assert list(reply.logprobs) == [" blue", " grey", " red"]
    assert (reply.top, reply.chosen, reply.k) == (" blue", " blue", 3)
    assert reply.prompt_tokens == len(PROMPT.split())


def test_the_first_way_in_that_works_is_offered_with_its_longest_list() -> None:
    with NextTokenServer(lambda _: SKY) as server:
        assert probed(server) == Offer(
            via="completions", longest=1000, notes=("completions: lists of up to 1000 tokens",)
        )
    with NextTokenServer(lambda _: SKY, longest=20) as server:
        assert probed(server).longest == 20
    with NextTokenServer(lambda _: SKY, longest=7) as server:
        assert probed(server).longest == 5


def test_a_chat_route_is_offered_only_when_the_prompt_arrives_verbatim(monkeypatch: pytest.MonkeyPatch) -> None:
    with NextTokenServer(lambda _: SKY, routes=(CHAT,)) as server:
        offer = probed(server)
        assert offer.via == "template_kwargs"
        assert offer.notes[0] == "completions: status 404"
        honour_only(monkeypatch, "chat_template")
        assert probed(server).via == "chat_template"
        honour_only(monkeypatch)
        refused = probed(server)
    assert (refused.via, refused.longest) == (None, 0)
    assert refused.notes[1:] == (
        "template_kwargs: no sign that the prompt arrives verbatim",
        "chat_template: no sign that the prompt arrives verbatim",
    )


def test_an_endpoint_without_logprobs_offers_nothing_and_cannot_be_opened() -> None:
    with NextTokenServer(lambda _: SKY, logprobs=False) as server:
        offer = probed(server)
        assert offer.via is None
        assert set(offer.notes) == {f"{via}: no log-probabilities" for via in
                                    ("completions", "template_kwargs", "chat_template")}  # fmt: skip
        with pytest.raises(EndpointError, match=r"gives no next-token log-probabilities for 'm'.*mindscope serve"):
            ask(server, lambda client: _open(client, offer))


async def _open(client: AsyncOpenAI, offer: Offer) -> Endpoint:
    return Endpoint(client, "m", offer)


@pytest.mark.parametrize(
    ("fault", "error"), [(Unauthorized(), AuthenticationError), (ServerError(), InternalServerError)]
)
def test_a_failing_endpoint_is_not_one_that_offers_nothing(fault: Rule, error: type[Exception]) -> None:
    with NextTokenServer(lambda _: SKY, faults=[Always(fault)]) as server, pytest.raises(error):
        probed(server)


def test_the_client_retries_what_passes() -> None:
    with NextTokenServer(lambda _: SKY, faults=[FirstAttempt(RateLimit(retry_after=0.01))]) as server:
        offer = ask(server, lambda client: probe(client, "m"), retries=2)
        assert offer.via == "completions"
        assert server.count(status=429) == 1


def test_many_that_ask_at_once_probe_once() -> None:
    async def many(client: AsyncOpenAI) -> list[Offer]:
        return list(await asyncio.gather(*(probe_once(client, "m") for _ in range(20))))

    with NextTokenServer(lambda _: SKY) as server:
        offers = ask(server, many)
        assert len(server.requests) == 1
    assert {offer.via for offer in offers} == {"completions"}


@pytest.mark.parametrize(
    ("listed", "bound"),
    [
        ({" a": 0.5, " b": 0.3}, math.log(0.2)),
        ({" a": 0.5, " b": 0.3, " c": 0.1}, math.log(0.1)),
        ({" a": 0.9, " b": 0.06}, math.log(0.04)),
        ({" a": 0.7, " b": 0.3}, math.log(1e-6)),
    ],
)
def test_the_bound_is_the_last_of_the_list_or_what_it_leaves(listed: dict[str, float], bound: float) -> None:
    reply = NextToken(
        logprobs={token: math.log(p) for token, p in listed.items()},
        k=len(listed), chosen=" a", chosen_logprob=0.0, prompt_tokens=None,
    )  # fmt: skip
    assert reply.at_most == pytest.approx(bound, abs=1e-9)
    assert math.isfinite(reply.at_most)


def test_a_token_outside_the_list_has_a_bound_and_no_value() -> None:
    with NextTokenServer(lambda _: SKY) as server:
        first, found = logprobs_of(server, " blue", " mauve", " never")
    assert known(found[" blue"], 0.5, "listed")
    assert bounded(found[" mauve"], 0.1, "not_listed")
    assert bounded(found[" never"], 0.1, "not_listed")
    assert list(first.logprobs) == [" blue", " grey", " red"]


def test_a_longer_list_is_asked_for_where_it_is_allowed() -> None:
    many = {f" w{i}": 0.009 for i in range(110)} | {" mauve": 0.001}
    with NextTokenServer(lambda _: many) as server:
        _, found = logprobs_of(server, " w3", " mauve", longest=1000)
        asked = [call.body["logprobs"] for call in server.requests]
    assert asked == [100, 1000]
    assert known(found[" w3"], 0.009, "listed")
    assert known(found[" mauve"], 0.001, "longer_list")


@pytest.mark.parametrize("bias", ["listed before", "listed after"])
@pytest.mark.parametrize("via", ["completions", "template_kwargs", "chat_template"])
def test_a_biased_answer_gives_the_unbiased_value(bias: str, via: Via) -> None:
    with NextTokenServer(lambda _: SKY, bias=bias, tokenizer=IDS) as server:
        _, found = logprobs_of(server, " mauve", " dun", " red", via=via)
    assert known(found[" mauve"], 0.03, "logit_bias")
    assert known(found[" dun"], 0.02, "logit_bias")
    assert known(found[" red"], 0.1, "listed")


@pytest.mark.parametrize("bias", ["ignored", "refused"])
def test_a_bias_that_is_not_applied_gives_no_value(bias: str) -> None:
    with NextTokenServer(lambda _: SKY, bias=bias, tokenizer=IDS) as server:
        _, found = logprobs_of(server, " mauve")
    assert bounded(found[" mauve"], 0.1, "not_listed")


def test_a_word_of_several_tokens_has_no_value() -> None:
    with NextTokenServer(lambda _: SKY, tokenizer=IDS) as server:
        _, found = logprobs_of(server, " ecru")
    assert bounded(found[" ecru"], 0.1, "several_tokens")


def test_values_that_are_no_numbers_are_as_if_not_listed() -> None:
    top = {" a": math.log(0.9), " b": -math.inf, " c": math.nan}
    with StubServer(lambda _: Reply(" a", tokens=[" a"], top_logprobs=[top])) as server:
        _, found = logprobs_of(server, " b", " c")
    assert all(bounded(one, 0.1, "not_listed") for one in found.values())


@pytest.mark.parametrize(
    ("reply", "faults", "sentence"),
    [
        (Reply(" a", tokens=[" a"], top_logprobs=[{" a": math.nan}]), [], "are not numbers"),
        (Reply(" a", tokens=[" a"], top_logprobs=[{" a": 0.7, " b": 0.3}]), [], "above 0"),
        (Reply("", tokens=[], top_logprobs=[]), [], "no log-probabilities where they should be"),
        (Reply(" a"), [], "no log-probabilities where they should be"),
        (Reply(" a"), [Always(EmptyChoices())], "no log-probabilities where they should be"),
        (Reply(" a", tokens=[" a"], top_logprobs=[{" a": -0.1}]), [Always(TruncatedJSON())], "no log-probabilities"),
    ],
)
def test_a_useless_answer_is_an_error(reply: Reply, faults: list[Rule], sentence: str) -> None:
    with StubServer(lambda _: reply, faults=faults) as server, pytest.raises(EndpointError, match=sentence):
        logprobs_of(server, " a")


def test_marks_for_a_space_are_spaces() -> None:
    top = {"Ġblue": math.log(0.5), "▁grey": math.log(0.3), "blue": math.log(0.1)}
    with StubServer(lambda _: Reply("Ġblue", tokens=["Ġblue"], top_logprobs=[top])) as server:
        first, found = logprobs_of(server, " blue", " grey")
    assert list(first.logprobs) == [" blue", " grey", "blue"]
    assert found[" grey"].logprob == pytest.approx(math.log(0.3))


def test_messages_do_not_show_what_is_secret_in_an_address() -> None:
    client = AsyncOpenAI(base_url="http://user:sk-canary@127.0.0.1:9/v1?key=sk-canary", api_key="sk-canary")
    assert "canary" not in public_url(client)
    assert public_url(client).endswith("127.0.0.1:9/v1")
    with pytest.raises(EndpointError) as caught:
        Endpoint(client, "m", Offer(via=None, longest=0, notes=("completions: status 404",)))
    assert "canary" not in str(caught.value)


def test_only_the_declared_paths_are_asked() -> None:
    with NextTokenServer(lambda _: SKY, tokenizer=IDS) as server:
        logprobs_of(server, " mauve")
        assert {call.path for call in server.requests} == {COMPLETIONS, "/tokenize"}
