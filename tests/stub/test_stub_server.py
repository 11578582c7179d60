"""The scripted server, seen by a client we did not write: the `openai` SDK, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import math
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from support.stub_server import (
    CHAT,
    COMPLETIONS,
    Always,
    EmptyChoices,
    Fault,
    FirstAttempt,
    ForPrompts,
    Length,
    NullContent,
    RateLimit,
    Reply,
    Request,
    ResetMidBody,
    ServerError,
    Stall,
    StubServer,
    TruncatedJSON,
    Unauthorized,
    constant,
    echo,
    scripted,
)

HALF, QUARTER, EIGHTH = math.log(0.5), math.log(0.25), math.log(0.125)
PETS = {" cat": QUARTER, " dog": HALF, " eel": EIGHTH, " fox": EIGHTH}
TWO_WORDS = Reply(" cat dog", top_logprobs=[PETS, PETS])


def sync_client(stub: StubServer, max_retries: int = 0, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=stub.base_url, api_key="sk-canary", max_retries=max_retries, **options)


def chat(stub: StubServer, text: str = "one two three", **options):
    with sync_client(stub) as client:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        answer = client.chat.completions.create(model="m", messages=messages, **options)
        return list(answer) if options.get("stream") else answer


def complete(stub: StubServer, prompt: str | list[str], **options):
    with sync_client(stub) as client:
        return client.completions.create(model="m", prompt=prompt, **options)


def get(url: str, data: dict | None = None) -> tuple[int, str]:
    body = None if data is None else json.dumps(data).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# Shapes


def test_a_chat_answer_has_text_reasoning_finish_and_usage():
    with StubServer(lambda request: Reply("four five", reasoning="Count on.")) as stub:
        answer = chat(stub)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "four five")
    assert choice.message.reasoning_content == "Count on."
    assert (choice.finish_reason, choice.logprobs, answer.model) == ("stop", None, "m")
    usage = answer.usage  # 7 words read: "system: Be brief." and "user: one two three"
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 2, 9)


def test_chat_parts_are_joined_and_n_choices_are_told_apart():
    with StubServer(lambda request: Reply(f"{request.last_user} {request.choice}")) as stub:
        answer = chat(stub, [{"type": "text", "text": "re"}, {"type": "text", "text": "ply"}], n=3)
    assert [(one.index, one.message.content) for one in answer.choices] == [
        (0, "reply 0"),
        (1, "reply 1"),
        (2, "reply 2"),
    ]


def test_chat_logprobs_are_cut_to_the_k_highest_and_keep_the_chosen_token():
    with StubServer(lambda request: TWO_WORDS) as stub:
        without = chat(stub).choices[0].logprobs
        answer = chat(stub, logprobs=True, top_logprobs=1).choices[0]
    assert without is None
    cat, dog = answer.logprobs.content
    assert (cat.token, cat.logprob, bytes(cat.bytes)) == (" cat", QUARTER, b" cat")
    assert (dog.token, dog.logprob) == (" dog", HALF)
    assert [(top.token, top.logprob) for top in cat.top_logprobs] == [(" dog", HALF)]


def test_a_policy_without_distributions_gives_null_logprobs():
    with StubServer(constant("yes")) as stub:
        assert chat(stub, logprobs=True, top_logprobs=5).choices[0].logprobs is None
        assert complete(stub, "so", logprobs=5).choices[0].logprobs is None


def test_a_stream_adds_up_to_the_plain_answer():
    with StubServer(lambda request: TWO_WORDS) as stub:
        options = {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": "g"}
        plain = chat(stub, **options)
        *chunks, last = chat(stub, stream=True, stream_options={"include_usage": True}, **options)
    assert (last.choices, last.usage) == ([], plain.usage)
    for choice in plain.choices:
        steps = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert (steps[0].delta.role, steps[0].delta.content) == ("assistant", "")
        assert [step.delta.content for step in steps[1:]] == [" cat", " do", None]
        assert [step.finish_reason for step in steps] == [None, None, None, choice.finish_reason]
        entries = [entry for step in steps if step.logprobs for entry in step.logprobs.content]
        assert entries == choice.logprobs.content


def test_a_stream_ends_with_done_and_has_no_usage_unasked():
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with StubServer() as stub:
        _, text = get(f"{stub.base_url}/chat/completions", body)
    *events, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    assert all("usage" not in json.loads(event) for event in events)


def test_a_completion_list_gives_n_choices_for_each_prompt_in_order():
    with StubServer(lambda request: Reply(f"{request.prompt} {request.choice}")) as stub:
        one = complete(stub, "a b")
        answer = complete(stub, ["a b", "c"], n=2)
        with sync_client(stub) as client:
            events = list(client.completions.create(model="m", prompt=["a b", "c"], n=2, stream=True))
    assert [choice.text for choice in one.choices] == ["a b 0"]
    expected = [(0, "a b 0"), (1, "a b 1"), (2, "c 0"), (3, "c 1")]
    assert [(choice.index, choice.text) for choice in answer.choices] == expected
    assert [(choice.index, choice.text) for event in events for choice in event.choices] == expected
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 10)


def test_completion_logprobs_in_the_legacy_shape():
    with StubServer(lambda request: TWO_WORDS) as stub:
        logprobs = complete(stub, "pets:", logprobs=2).choices[0].logprobs
    assert logprobs.tokens == [" cat", " dog"]
    assert logprobs.token_logprobs == [QUARTER, HALF]
    assert logprobs.top_logprobs == [{" dog": HALF, " cat": QUARTER}] * 2
    assert logprobs.text_offset == [0, 4]


def test_completion_logprobs_in_the_chat_shape():
    with StubServer(lambda request: TWO_WORDS, completions_logprobs="chat") as stub:
        logprobs = complete(stub, "pets:", logprobs=1).choices[0].logprobs
    assert logprobs.tokens is None
    cat, dog = logprobs.content
    assert (cat["token"], cat["logprob"], dog["token"], dog["logprob"]) == (" cat", QUARTER, " dog", HALF)
    assert [(top["token"], top["logprob"]) for top in cat["top_logprobs"]] == [(" dog", HALF)]


@pytest.mark.parametrize(
    ("options", "text", "finish"),
    [
        ({}, "one two. three", "stop"),
        ({"max_tokens": 2}, "one two.", "length"),
        ({"max_tokens": 3}, "one two. three", "length"),
        ({"max_tokens": 4}, "one two. three", "stop"),
        ({"stop": "."}, "one two", "stop"),
        ({"stop": " three"}, "one two.", "stop"),
        ({"stop": [" three", "wo"]}, "one t", "stop"),
        ({"stop": "four"}, "one two. three", "stop"),
        ({"stop": "three", "max_tokens": 2}, "one two.", "length"),
        ({"stop": ".", "max_tokens": 2}, "one two", "stop"),
    ],
)
def test_max_tokens_and_stop_cut_both_routes_alike(options, text, finish):
    with StubServer(constant("one two. three")) as stub:
        from_chat = chat(stub, **options)
        from_completion = complete(stub, "count", **options)
        limit = {"max_completion_tokens": options["max_tokens"]} if "max_tokens" in options else {}
        renamed = chat(stub, **({key: options[key] for key in options if key == "stop"} | limit))
    assert (from_chat.choices[0].message.content, from_chat.choices[0].finish_reason) == (text, finish)
    assert (from_completion.choices[0].text, from_completion.choices[0].finish_reason) == (text, finish)
    assert renamed.choices[0] == from_chat.choices[0]
    assert from_chat.usage.completion_tokens == len(text.split())


def test_the_raw_prompt_reaches_the_policy_to_the_letter():
    seen: list[Request] = []

    def note(request: Request) -> Reply:
        seen.append(request)
        return Reply("ok")

    prompt = "cat - dog\n\ncat - "
    with StubServer(note) as stub:
        chat(stub, prompt)
        chat(stub, prompt, extra_body={"chat_template_kwargs": {"raw": True}})
        chat(stub, prompt, extra_body={"chat_template": "<{{ messages[-1].content }}>"})
        complete(stub, prompt)
    assert [request.raw_prompt for request in seen] == [None, prompt, f"<{prompt}>", prompt]
    assert [request.last_user for request in seen] == [prompt] * 4
    assert seen[0].prompt == f"system: Be brief.\nuser: {prompt}\n"
    assert [call.prompt for call in stub.requests] == [request.prompt for request in seen]
    assert [call.attempt for call in stub.requests] == [1, 1, 1, 1]  # attempts are counted for each path


def test_the_ready_policies():
    with StubServer(echo) as stub:
        assert chat(stub, "same").choices[0].message.content == "same"
    with StubServer(scripted({"cat -": "dog", "sun -": Reply("moon", finish_reason="length")})) as stub:
        assert chat(stub, "cat -").choices[0].message.content == "dog"
        assert complete(stub, "sun -").choices[0].finish_reason == "length"
    with StubServer(scripted(str.upper)) as stub:
        assert complete(stub, "abc").choices[0].text == "ABC"


def test_models_health_and_everything_else():
    with StubServer() as stub:
        with sync_client(stub) as client:
            assert [model.id for model in client.models.list()] == ["stub"]
        root = stub.base_url.removesuffix("/v1")
        assert get(f"{root}/health") == (200, '{"status": "ok"}')
        status, body = get(f"{stub.base_url}/chat/completions/completions", {"prompt": "x"})
        assert (status, json.loads(body)["error"]["code"]) == (404, 404)
        assert get(f"{stub.base_url}/chat/completions")[0] == 404
        assert stub.count(status=404) == stub.count("/v1/chat/completions/completions") + stub.count(CHAT) == 2


@pytest.mark.parametrize("body", [{}, {"prompt": []}, {"prompt": [1, 2]}, {"prompt": "x", "echo": True}])
def test_a_request_it_cannot_read_is_a_400(body):
    with StubServer() as stub:
        status, text = get(f"{stub.base_url}/completions", body)
    assert status == 400
    assert "cannot read this request" in json.loads(text)["error"]["message"]


# Faults

WITH_NO_RETRY = {
    RateLimit(): openai.RateLimitError,
    RateLimit(0.05): openai.RateLimitError,
    ServerError(): openai.InternalServerError,
    ServerError(503): openai.InternalServerError,
    Unauthorized(): openai.AuthenticationError,
    ResetMidBody(): openai.APIConnectionError,
    TruncatedJSON(): json.JSONDecodeError,
    Stall(60): openai.APITimeoutError,
}
TIMEOUT_S = {Stall(60): 1}  # of the client; 60 s for the other faults
NEVER_RETRIED_BY_THE_SDK = (Unauthorized, TruncatedJSON)


@pytest.mark.parametrize("fault", WITH_NO_RETRY, ids=repr)
def test_each_failure_is_the_sdks_own_exception(fault: Fault):
    with StubServer(faults=[Always(fault)]) as stub:
        for call in (lambda c: c.completions.create(model="m", prompt="x"), chat_once):
            client = sync_client(stub, timeout=TIMEOUT_S.get(fault, 60))
            with client, pytest.raises(WITH_NO_RETRY[fault]) as caught:
                call(client)
            assert type(caught.value) is WITH_NO_RETRY[fault]
        assert (stub.count(COMPLETIONS, fault=type(fault)), stub.count(CHAT, fault=type(fault))) == (1, 1)


def chat_once(client):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


def test_by_default_the_sdk_retries_twice_what_may_pass():
    async def calls_made(fault: Fault) -> int:
        with StubServer(faults=fault) as stub:
            timeout = TIMEOUT_S.get(fault, 60)
            async with openai.AsyncOpenAI(base_url=stub.base_url, api_key="k", timeout=timeout) as client:
                with pytest.raises(WITH_NO_RETRY[fault]):
                    await chat_once(client)
            assert [call.attempt for call in stub.requests] == list(range(1, stub.count(CHAT) + 1))
            return stub.count()

    async def all_at_once() -> list[int]:
        return await asyncio.gather(*map(calls_made, WITH_NO_RETRY))

    expected = {fault: 1 if isinstance(fault, NEVER_RETRIED_BY_THE_SDK) else 3 for fault in WITH_NO_RETRY}
    assert dict(zip(WITH_NO_RETRY, asyncio.run(all_at_once()), strict=True)) == expected


@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_first_attempt_fault_strikes_each_distinct_prompt_once_in_any_order(concurrency: int):
    async def ask_all(stub: StubServer) -> list[str]:
        gate = asyncio.Semaphore(concurrency)
        async with openai.AsyncOpenAI(base_url=stub.base_url, api_key="k") as client:

            async def ask(text: str) -> str:
                async with gate:
                    answer = await client.completions.create(model="m", prompt=text)
                    return answer.choices[0].text

            return await asyncio.gather(*(ask(f"prompt {i}") for i in range(16)))

    with StubServer(faults=[FirstAttempt(RateLimit(0.01))]) as stub:
        texts = asyncio.run(ask_all(stub))
        assert texts == [f"prompt {i}" for i in range(16)]
        assert (stub.count(COMPLETIONS, status=429), stub.count(COMPLETIONS, status=200)) == (16, 16)
        assert stub.max_in_flight <= concurrency
        assert asyncio.run(ask_all(stub)) == texts
        assert (stub.count(status=429), stub.count(status=200)) == (16, 32)


def test_rules_combine_and_the_first_to_name_a_fault_decides():
    def is_cat(prompt: str) -> bool:
        return "cat" in prompt

    rules = [ForPrompts(is_cat, FirstAttempt(ServerError(), times=2)), ForPrompts(is_cat, Length())]
    with StubServer(faults=rules) as stub:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):
                chat(stub, "cat")
        assert chat(stub, "cat").choices[0].finish_reason == "length"
        assert chat(stub, "dog").choices[0].finish_reason == "stop"
        with pytest.raises(openai.InternalServerError):
            complete(stub, "cat")
    assert [call.fault for call in stub.requests] == [
        ServerError(),
        ServerError(),
        Length(),
        None,
        ServerError(),
    ]
    assert [call.attempt for call in stub.requests] == [1, 2, 3, 1, 1]

    with StubServer(faults=lambda request, attempt: NullContent() if attempt % 2 else None) as stub:
        assert [chat(stub).choices[0].message.content for _ in range(3)] == [None, "one two three", None]


def test_answers_that_are_sound_http_but_no_answer():
    with StubServer(faults=EmptyChoices()) as stub:
        assert chat(stub).choices == []
        assert complete(stub, "x").choices == []
        assert all(chunk.choices == [] for chunk in chat(stub, stream=True))
    with StubServer(faults=NullContent()) as stub:
        assert chat(stub).choices[0].message.content is None
        assert [chunk.choices[0].delta.content for chunk in chat(stub, stream=True)] == [None, None]
    with StubServer(faults=Length()) as stub:
        choice = chat(stub, "cut short").choices[0]
        assert (choice.message.content, choice.finish_reason) == ("cut short", "length")
    with StubServer(faults=Stall(0.01)) as stub:
        assert chat(stub, "late").choices[0].message.content == "late"


def test_a_broken_stream_never_reaches_its_finish():
    with StubServer(faults=TruncatedJSON()) as stub:
        chunks = chat(stub, stream=True)
        assert chunks
        assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    with StubServer(faults=ResetMidBody()) as stub, sync_client(stub, max_retries=2) as client:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        arrived = []
        with pytest.raises(Exception, match=r"(?i)connection") as caught:
            arrived.extend(stream)
        assert not isinstance(caught.value, openai.APIStatusError)
        assert stub.count(CHAT, status=200) == 1


def test_headers_of_a_rate_limit_and_of_a_refused_key():
    headers = {}
    for fault in (RateLimit(), RateLimit(0.05)):
        with StubServer(faults=fault) as stub, pytest.raises(openai.RateLimitError) as caught:
            chat(stub)
        headers[fault] = caught.value.response.headers.get("Retry-After")
    assert headers == {RateLimit(): None, RateLimit(0.05): "0.05"}
    with StubServer(faults=Unauthorized()) as stub, pytest.raises(openai.AuthenticationError) as caught:
        chat(stub)
    assert "Bearer sk-canary" in caught.value.message
    assert stub.requests[0].headers["Authorization"] == "Bearer sk-canary"


# Records, mistakes in the script, and shutting down


def test_a_call_is_recorded_with_what_was_sent_and_when():
    before = time.monotonic()
    with StubServer(faults=FirstAttempt(ServerError(502))) as stub:
        with pytest.raises(openai.InternalServerError):
            chat(stub, "hello", temperature=0.5)
        chat(stub, "hello")
    first, second = stub.requests
    assert first.body["temperature"] == 0.5
    assert first.body["messages"][-1] == {"role": "user", "content": "hello"}
    assert (first.path, first.status, first.fault, first.attempt) == (CHAT, 502, ServerError(502), 1)
    assert (second.path, second.status, second.fault, second.attempt) == (CHAT, 200, None, 2)
    assert before <= first.started <= first.ended <= second.started <= second.ended


@pytest.mark.parametrize(
    ("policy", "kind", "message"),
    [
        (scripted({"known": "x"}), KeyError, "one two three"),
        (lambda request: Reply("a b", tokens=["a", "b"]), ValueError, "do not spell"),
        (lambda request: Reply(" x", top_logprobs=[{" y": -1.0}]), ValueError, "distribution"),
        (lambda request: Reply(" x", top_logprobs=[]), ValueError, "zip"),
    ],
)
def test_a_mistake_in_the_script_fails_the_test_that_made_it(policy, kind, message):
    def use(error_of_the_test: Exception | None = None) -> None:
        with StubServer(policy) as stub:
            with pytest.raises(openai.BadRequestError, match="own script"):
                chat(stub)
            if error_of_the_test:
                raise error_of_the_test

    with pytest.raises(kind, match=message):
        use()
    with pytest.raises(ZeroDivisionError):
        use(ZeroDivisionError())


def test_the_most_calls_in_flight_are_remembered():
    with StubServer() as stub:
        address = urlsplit(stub.base_url).netloc
        unfinished = [http.client.HTTPConnection(address) for _ in range(3)]
        for connection in unfinished:
            connection.putrequest("POST", COMPLETIONS)
            connection.putheader("Content-Length", "2")
            connection.endheaders()
        while stub.count(COMPLETIONS) < 3:
            time.sleep(0.01)
        for connection in unfinished:
            connection.send(b"{}")
            assert connection.getresponse().status == 400
            connection.close()
        chat(stub)
        chat(stub)
    assert stub.max_in_flight == 3


def open_sockets() -> set[str]:
    gc.collect()
    links = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if link.is_symlink() and "socket:" in os.readlink(link)}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets in Linux's /proc")
def test_leaving_stops_calls_in_flight_and_leaves_no_thread_or_socket():
    threads, sockets = set(threading.enumerate()), open_sockets()

    async def ask_and_leave() -> None:
        with StubServer(lambda request: Reply("late", delay_s=60)) as stub:
            client = openai.AsyncOpenAI(base_url=stub.base_url, api_key="k", max_retries=0)
            asks = [asyncio.create_task(chat_once(client)) for _ in range(5)]
            while stub.count(CHAT) < 5:
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*asks, return_exceptions=True)
        await client.close()
        assert [type(result) for result in results] == [openai.APIConnectionError] * 5
        assert stub.max_in_flight == 5
        assert [call.status for call in stub.requests] == [None] * 5
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", urlsplit(stub.base_url).port), timeout=5)

    asyncio.run(ask_and_leave())
    assert set(threading.enumerate()) <= threads
    assert open_sockets() <= sockets


def test_leaving_waits_for_the_servers_thread_to_end():
    threads = set(threading.enumerate())
    with StubServer() as stub:
        chat(stub)
        assert len(set(threading.enumerate()) - threads) == 1
    assert set(threading.enumerate()) == threads


def test_two_servers_at_once_do_not_mix():
    with StubServer(constant("left")) as left, StubServer(constant("right")) as right:
        assert left.base_url != right.base_url
        assert chat(left).choices[0].message.content == "left"
        assert [chat(right).choices[0].message.content for _ in range(2)] == ["right", "right"]
        assert (left.count(CHAT), right.count(CHAT), left.max_in_flight) == (1, 2, 1)
